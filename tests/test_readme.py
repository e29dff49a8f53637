"""What the README and the page of results say was measured, and names what exists: run it, and it prints the table."""

import re
import textwrap
from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks.records import cpu_name
from smalearn.course.workbook.notebook import chapters
from smalearn.data import recorded, recorded_cpus
from smalearn.masks import sparse
from smalearn.testing import assert_close, random_tensors

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "assets/results/README.md").read_text(encoding="utf-8")
SHOWN = ("SSD, T = 2048, 24 heads, forward, beside", "the delta rule, T = 8192", "causal mask by running sums")
"""Rows of the table of results that the README shows as well."""
ROWS = [
    ("ssd", r"^T = 2048,.*: forward:", "SSD, T = 2048, 24 heads, forward, beside the fastest peer", "{:.1f} × as fast"),
    ("ssd", r"^T = 2048,.*backward:", "the same, forward and backward", "{:.1f} × as fast"),
    ("ssd", r"^beside.* T = 2048,.*backward:", "the same beside our readable form, compiled", "{:.1f} × as fast"),
    ("ssd", r"^T = 3008,.*: forward:", "SSD, T = 3008, 8 heads of P = 32, N = 64, forward", "{:.1f} × as fast"),
    ("ssd", r"^T = 3008,.*backward:", "the same, forward and backward", "{:.1f} × as fast"),
    ("ssd", r"^T = 16384,.*: forward:", "SSD, T = 16384, 8 heads, forward", "{:.1f} × as fast"),
    ("ssd", r"^T = 16384,.*backward:", "the same, forward and backward", "{:.1f} × as fast"),
    ("ssd", r"^largest error", "its largest relative error under any decay, gradients included", "{:.0e}"),
    ("ssd", r"^peak.*T = 2048", "SSD, T = 2048, peak memory, both ways, over the bytes of X", "{:.1f}"),
    (
        "delta-rule",
        r"^T = 8192,.*: forward:",
        "the delta rule, T = 8192, 8 heads, forward, beside the fastest peer",
        "{:.1f} × as fast",
    ),
    ("delta-rule", r"^T = 8192,.*backward: times", "the same, forward and backward", "{:.1f} × as fast"),
    ("delta-rule", r"^T = 2048, 16.*: forward:", "the same, T = 2048, 16 heads, N = 128, forward", "{:.1f} × as fast"),
    ("delta-rule", r"^T = 2048, 16.*backward: times", "the same, forward and backward", "{:.1f} × as fast"),
    ("masks", r"^causal.*dense", "causal mask by running sums, T = 4096, beside the dense product", "{:.0f} × as fast"),
    ("weights", r"^BTT, D = 4096.*nn", "block tensor train of D = 4096 beside `nn.Linear`", "{:.0f} × as fast"),
    (
        "multilevel",
        r"^T = 4096, forward: time of 8",
        "8 levels of attention of 8 columns, T = 4096, forward, beside PyTorch's",
        "{:.2f} of its time",
    ),
    ("multilevel", r"^a step", "decoding with its cache at T = 16384", "{:.2f} of its time"),
]

MAMBA, FLA = "mamba_ssm mamba_chunk_scan_combined", "fla chunk_gated_delta_rule"
GPU_ROWS = [
    ("ssd", "batch 8, T = 2048, 80 heads, P = 64, N = 128", "SSD, batch 8, T = 2048, 80 heads", "ssd_triton", MAMBA),
    ("ssd", "batch 8, T = 8192, 80 heads, P = 64, N = 128", "the same, T = 8192", "ssd_triton", MAMBA),
    ("ssd", "T = 65536, 24 heads, P = 64, N = 128", "SSD, one text of 65,536 tokens, 24 heads", "ssd_triton", MAMBA),
    (
        "ssd",
        "batch 8, T = 2048, 80 heads, P = 64, N = 128",
        "the whole layer of Mamba-2, batch 8, T = 2048, 80 heads",
        "mamba2_ssd, whole layer",
        "mamba_ssm, whole layer",
    ),
    (
        "ssd",
        "batch 8, T = 8192, 80 heads, P = 64, N = 128",
        "the same, T = 8192",
        "mamba2_ssd, whole layer",
        "mamba_ssm, whole layer",
    ),
    (
        "delta-rule",
        "batch 8, T = 2048, 16 heads, P = 128, N = 128",
        "the gated delta rule, batch 8, T = 2048, 16 heads",
        "delta_rule_triton",
        FLA,
    ),
    (
        "delta-rule",
        "T = 16384, 16 heads, P = 128, N = 128",
        "the same, one text of 16,384 tokens",
        "delta_rule_triton",
        FLA,
    ),
]


def gpu_table():
    """The lines of the table of what an H200 did: a row for each contest, forward and backward."""
    results = {name: recorded(f"gpu/nvidia-h200/{name.replace('-', '_')}") for name in ("ssd", "delta-rule")}
    device, machine = results["ssd"]["device"], results["ssd"]["machine"]
    versions = f"torch {machine['torch'].split('+')[0]}, Triton {device['triton']}, {machine['date'][:10]}"
    yield f"| bfloat16 | {device['name']}, {versions} | beside | by |"
    yield "|---|---|---|---|"
    for name, sizes, words, ours, peer in GPU_ROWS:
        for way in ("forward", "backward"):
            titles = f"{sizes}, bfloat16, {way}", f"{sizes}, bfloat16, {way}, beside {peer}"
            parts = [
                part["contestants"]
                for part in results[name]["contests"]
                if part["problem"] in titles and {ours, peer} <= part["contestants"].keys()
            ]
            for mine, theirs in ((median(part[who]["seconds"]) for who in (ours, peer)) for part in parts):
                told = f"{words}, {way} | {1000 * mine:.2f} ms, {theirs / mine:.1f} × as fast"
                yield f"| {told} | {peer.split(',')[0].split()[0]} | `smalearn bench {name} --device cuda` |"


def table():
    """The lines of the table of results, from the records: a column for each CPU."""
    cpus = recorded_cpus("ssd")
    files = {name: name.replace("-", "_") for name, *_ in ROWS}
    results = [
        {name: recorded(file, cpu) for name, file in files.items() if cpu in recorded_cpus(file)} for cpu in cpus
    ]
    heads = []
    for found in results:
        machine, dates = found["ssd"]["machine"], {one["machine"]["date"][:10] for one in found.values()}
        torch = machine["torch"].split("+")[0]
        heads.append(f"{cpu_name(machine)}, torch {torch}, {' to '.join(sorted({min(dates), max(dates)}))}")
    yield f"| one core, float32 | {' | '.join(heads)} | by |"
    yield f"|---|{'---|' * len(cpus)}---|"
    for name, pattern, words, form in ROWS:
        cells = []
        for found in results:
            targets = [one for one in found.get(name, {"targets": []})["targets"] if re.search(pattern, one["what"])]
            assert len(targets) == (name in found)
            measured = targets[0]["measured"] if targets else None
            cells.append("–" if measured is None else form.format(measured))
        yield f"| {words} | {' | '.join(cells)} | `smalearn bench {name}` |"


def test_the_table_is_what_was_recorded():
    assert [line for line in RESULTS.splitlines() if line.startswith("|")] == [*table(), *gpu_table()]


def test_the_readme_shows_three_rows_of_it():
    shown = README.partition("| one core")[2].partition("\n\n")[0].splitlines()
    head, rule, *rows = table()
    expected = [head.removeprefix("| one core"), rule]
    expected += [row for row in rows if row.startswith(tuple(f"| {name}" for name in SHOWN))]
    assert shown == expected
    assert len(shown) == 5


def medians(part):
    """Milliseconds of all contestants."""
    return {who: 1000 * median(one["seconds"]) for who, one in part["contestants"].items() if "seconds" in one}


def test_what_is_said_of_a_gpu_is_what_was_recorded():
    """In the README, on the page of results, and in chapter 12."""
    readme, results, ssd = " ".join(README.split()), " ".join(RESULTS.split()), recorded("gpu/nvidia-h200/ssd")
    lines = [line.split(" | ") for line in gpu_table()][2:]
    times = [float(cells[1].split(" ms")[0]) for cells in lines]
    faster = [float(cells[1].split(", ")[1].split(" ×")[0]) for cells in lines]
    assert f"forward {faster[0]} and {faster[2]} times, backward {faster[1]} times as fast as `mamba_ssm`" in readme
    assert faster[3] == faster[4] == faster[5] == faster[1]
    assert f"one text of 65,536 tokens and 24 heads {faster[4]} times both ways" in readme
    layer = f"forward {faster[6]}, backward {faster[7]} and {faster[9]} times as fast"
    assert f"The whole layer of Mamba-2 is {layer}" in readme
    assert faster[6] == faster[8]
    assert f"{faster[10]} times as fast as fla's" in readme
    long = next(
        part
        for part in recorded("gpu/nvidia-h200/delta_rule")["contests"]
        if part["problem"].endswith(FLA) and part["problem"].startswith("T = 16384")
    )
    assert (
        f"takes {medians(long)['delta_rule_triton'] / medians(long)[FLA]:.1f} times as long for one long text" in readme
    )
    steps = {(one["batch"], one["captured"]): one for one in ssd["decode"]}
    large = medians(steps[64, True])
    over = f"{large['ssd_step_triton_'] / large['floor']:.2f} times what its bytes take"
    assert f"a step of decoding for 64 texts takes {over}" in readme
    assert over in results
    per_step = {key: medians(one)["ssd_step_triton_"] / one["steps"] for key, one in steps.items()}
    assert f"{1000 * per_step[64, True]:.0f} µs" in results
    einsums = medians(steps[1, False])["einsums"] / steps[1, False]["steps"]
    assert f"from Python, {1000 * per_step[1, False]:.0f} µs, where two einsums take {1000 * einsums:.0f}" in results
    floors = [part["speedups"]["floor"]["ssd_triton"] for part in ssd["contests"][2:4]]
    assert "{:.0f} and {:.0f} times what their bytes take at the least".format(*floors) in results
    ours, theirs = (
        ssd["memory"][0]["bytes"][name]["peak"] / ssd["memory"][0]["unit"] for name in ("ssd_triton", MAMBA)
    )
    assert f"holds {ours:.1f} times the bytes of X for the way back, where `mamba_ssm` holds {theirs:.1f}" in readme
    assert f"hold {ours:.1f} times the bytes of X; `mamba_ssm` holds {theirs:.1f} times" in results
    multilevel = [medians(part) for part in recorded("gpu/nvidia-h200/multilevel")["contests"]]
    shares = [one["multilevel_forward, 8|8|8|8|8|8|8|8"] / one["scaled_dot_product_attention"] for one in multilevel]
    assert "takes {:.2f} to {:.2f} of the time of PyTorch's".format(*sorted(shares)) in results
    assert f"`multilevel.json` ({recorded('gpu/nvidia-h200/multilevel')['machine']['date'][:10]})" in results
    assert f"`h200_programs.json` ({recorded('h200_programs')['date']})" in results
    parts = recorded("h200_programs")["milliseconds"]
    forward, backward = ({name: sum(one.values()) for name, one in parts[way].items()} for way in parts)
    once, again = (backward[name] for name in ("mamba_ssm", "mamba_ssm, again"))
    chapter = (ROOT / "chapters/12_chunked_kernel.ipynb").read_text(encoding="utf-8")
    assert f"ours took {times[0]} ms beside {medians(ssd['contests'][2])[MAMBA]:.2f} of `mamba_ssm`" in chapter
    assert f"now takes {times[4]} ms" in chapter
    heads = medians(next(part for part in ssd["contests"] if part["problem"].startswith("T = 65536, 128 heads")))
    assert f"the library took {heads['ssd_triton']:.2f} ms, `mamba_ssm` {heads[MAMBA]:.2f}" in chapter
    assert f"the floor of one walk is {heads['floor']:.1f} ms, a fifth of the library's time" in chapter
    assert round(heads["ssd_triton"] / heads["floor"]) == 5
    found = (medians(part)[MAMBA] for part in ssd["contests"][2:4])
    assert "found {:.2f} and {:.2f}".format(*found) in chapter
    first, now = parts["backward"]["ours, first form"], parts["backward"]["ours"]
    slower = sorted(backward["ours, first form"] / one for one in (once, again))
    assert "took {:.1f} to {:.1f} times as long".format(*slower) in chapter
    calls = forward["ours, first form"], medians(ssd["contests"][2])[MAMBA], forward["mamba_ssm, again"]
    told = "took {:.2f} ms, that of `mamba_ssm` between {:.2f} (without the gaps between launches) and {:.2f};"
    assert told.format(*calls) in chapter
    assert f"{now['pairs'] + now['groups']:.1f} ms in place of {first['chunks']:.1f}" in chapter
    walks = (parts["forward"][name]["walk"] for name in ("ours", "ours, first form"))
    assert "{:.2f} ms in place of {:.2f}".format(*walks) in chapter
    assert all(
        f"*{name}* ({milliseconds:.2f})" in chapter
        for name, milliseconds in (first | now).items()
        if name != "walk back"
    )
    assert f"*walk back* ({now['walk back']:.2f})" in chapter
    assert f"*walk back* ({first['walk back']:.2f})" in chapter


@pytest.mark.parametrize("link", re.findall(r"(?:\]\(|srcset=\"|src=\")([^)#:\"]+)", README))
def test_its_links_lead_somewhere(link):
    assert (ROOT / link).exists()


def test_the_version_of_transformers_is_the_pinned_one():
    pin = re.search(r"^transformers==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert f"are those of transformers {pin[1]} up to" in README


def test_it_lists_every_chapter():
    places = [path.relative_to(ROOT).as_posix() for path in chapters(ROOT / "chapters")]
    assert re.findall(r"\((chapters/.*?)\)", README) == places


def test_its_hours_are_those_of_the_chapters():
    for place in re.findall(r"\((chapters/.*?)\) \|", README):
        (hours,) = re.findall(rf"\({place}\) \| (.*?) \|", README)
        opening = (ROOT / place).read_text(encoding="utf-8")
        told = re.search(r"\*\*Time:\*\* (\S+) (hour|minute)", opening)
        assert hours == (told[1] if told[2] == "hour" else "½"), place


def test_the_moving_picture_is_light_in_both_of_its_colours():
    pictures = [ROOT / name for name in re.findall(r"assets/\w+\.gif", README)]
    assert {picture.stem.rpartition("_")[2] for picture in pictures} == {"light", "dark"}
    assert all(picture.stat().st_size < 1_000_000 for picture in pictures)
    assert set(pictures) == set((ROOT / "assets").glob("*.gif"))


def test_its_commands_are_two():
    commands = README.partition("## Two commands")[2].partition("```console\n")[2].partition("```")[0]
    assert [line.partition("#")[0].strip() for line in commands.splitlines()] == [
        "python start.py",
        "python start.py test",
    ]


def test_the_first_contribution_is_a_mask():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = textwrap.dedent(text.partition("```python\n")[2].partition("```")[0])
    names = dict(vars(sparse))
    exec(code, names)
    L, (V,) = names["SinkMask"](7, 13, 2), random_tensors([(13, 3)])
    definition = torch.tensor([[float(s < 2) for s in range(13)] for _ in range(7)], dtype=torch.float64)
    assert_close(L.dense(), definition)
    assert_close(L @ V, definition @ V)
    with pytest.raises(ValueError, match=r"SinkMask: source must be an integer ≥ 3, got 2"):
        names["SinkMask"](7, 2, 3)


if __name__ == "__main__":
    print("\n".join([*table(), "", *gpu_table()]))
