"""What the README and the page of results say was measured, and names what exists: run it, and it prints the table."""

import re
import textwrap
from pathlib import Path
from statistics import median

import pytest
import torch

from smalearn.course.workbook.notebook import chapters
from smalearn.data import recorded, recorded_cpus
from smalearn.lab.bench.records import cpu_name
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
    ("ssd", r"^peak.*T = 2048", "its peak memory, forward and backward, over the bytes of X", "{:.1f}"),
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
        "8 levels of attention of 8 columns, T = 4096, beside PyTorch's",
        "{:.2f} of its time",
    ),
    ("multilevel", r"^a step", "decoding with its cache at T = 16384", "{:.2f} of its time"),
]


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
    assert [line for line in RESULTS.splitlines() if line.startswith("|")] == list(table())


def test_the_readme_shows_three_rows_of_it():
    shown = README.partition("| one core")[2].partition("\n\n")[0].splitlines()
    head, rule, *rows = table()
    expected = [head.removeprefix("| one core"), rule]
    expected += [row for row in rows if row.startswith(tuple(f"| {name}" for name in SHOWN))]
    assert shown == expected
    assert len(shown) == 5


def test_the_first_look_at_a_gpu_is_what_was_recorded():
    """In the README, on the page of results, and in chapter 12."""
    parts = recorded("h200_programs")["milliseconds"]
    forward, backward = ({name: sum(one.values()) for name, one in parts[way].items()} for way in parts)
    once, again = ((forward[name], backward[name]) for name in ("mamba_ssm", "mamba_ssm, again"))
    readme, results = " ".join(README.split()), " ".join(RESULTS.split())
    assert f"took {forward['ours']:.2f} ms forward and {backward['ours']:.2f} ms backward" in readme
    assert f"{once[0]:.2f} to {again[0]:.2f} and {once[1]:.2f} to {again[1]:.2f} ms" in readme
    assert f"Forward {forward['ours']:.2f} ms, backward {backward['ours']:.2f} ms" in results
    assert "took {:.2f} and {:.2f} ms once, {:.2f} and {:.2f} the other time".format(*once, *again) in results
    (beside,) = recorded("gpu/nvidia-h200/ssd")["finished"]
    ours, mamba, attention = (
        1000 * median(beside["contestants"][name]["seconds"])
        for name in ("ssd_triton", "mamba_ssm mamba_chunk_scan_combined", "softmax attention (torch)")
    )
    assert f"{ours:.2f} against {mamba:.2f} ms" in readme
    assert f"ours {ours:.2f} ms, `mamba_ssm` {mamba:.2f} ms, softmax attention by PyTorch {attention:.2f} ms" in results
    assert f"takes {beside['speedups']['floor']['ssd_triton']:.1f} times what its bytes take" in results
    wide, long, narrow = (
        1000 * median(part["contestants"]["delta_rule_triton"]["seconds"])
        for part in recorded("gpu/nvidia-h200/delta_rule")["finished"]
    )
    assert f"{wide:.2f} ms at batch 8" in results
    assert f"{narrow:.2f} ms at N = P = 64, {long:.2f} ms for one text" in results
    chapter = (ROOT / "chapters/12_chunked_kernel.ipynb").read_text(encoding="utf-8")
    assert f"ours took {ours:.2f} ms beside {mamba:.2f} of `mamba_ssm`" in chapter
    first, now = parts["backward"]["ours, first form"], parts["backward"]["ours"]
    slower = sorted(backward["ours, first form"] / one for one in (once[1], again[1]))
    assert "took {:.1f} to {:.1f} times as long".format(*slower) in chapter
    assert f"{now['pairs'] + now['groups']:.1f} ms in place of {first['chunks']:.1f}" in chapter
    walks = (parts["forward"][name]["walk"] for name in ("ours", "ours, first form"))
    assert "{:.2f} ms in place of {:.2f}".format(*walks) in chapter
    assert all(
        f"{name} *({milliseconds:.2f})" in chapter
        for name, milliseconds in (first | now).items()
        if name != "walk back"
    )
    assert f"walk back *({now['walk back']:.2f})" in chapter
    assert f"walk back *({first['walk back']:.2f})" in chapter


@pytest.mark.parametrize("link", re.findall(r"(?:\]\(|srcset=\"|src=\")([^)#:\"]+)", README))
def test_its_links_lead_somewhere(link):
    assert (ROOT / link).exists()


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
    assert all(picture.stat().st_size < 1_500_000 for picture in pictures)
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
    print("\n".join(table()))
