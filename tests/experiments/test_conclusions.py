"""What chapters conclude from recorded experiments and times: numbers in prose are computed again from the record."""

import math
import re
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median

import nbformat
import numpy as np
import pytest
import torch
from cells import printed, shown
from ch10 import test_claims_bottleneck as sphere
from seeds import asked

from experiments import icl_regression_questions, recall_stream_questions
from experiments.grid import best_rates
from smalearn.course.ch05.converse import generators
from smalearn.course.ch07 import recall_questions
from smalearn.course.ch11 import charlm_questions
from smalearn.course.results import UNDECIDED, answer, changes, interval, reported
from smalearn.data import nearest_neighbour, recorded
from smalearn.ssm import block_ranks, ssm_matrix
from smalearn.testing import relative_rms

CHAPTERS = Path(__file__).parents[2] / "chapters"
LEARNED, ROPE, EQUAL = "learned positions, {}", "RoPE, {}", "equal parameters, {}"


def prose(chapter, cell):
    (path,) = CHAPTERS.glob(f"{chapter}_*.ipynb")
    (source,) = (one.source for one in nbformat.read(path, 4).cells if one.id == cell)
    return source


def all_seeds(name, value, model):
    return [run[value] for run in reported(recorded(name)["runs"])[model]]


charlm, losses = partial(asked, "charlm", charlm_questions, "loss"), partial(all_seeds, "charlm", "loss")
STUDENT = {12: 5.885, 13: 6.015}  # of four degrees of freedom, at 1 - 0.025 / the number of comparisons
recall, accuracies = partial(asked, "recall", recall_questions, "accuracy"), partial(all_seeds, "recall", "accuracy")


def survives(found, of):
    """Whether a difference of five seeds is decided when its interval is corrected for so many comparisons."""
    return abs(found.mean) > STUDENT[of] / 2.776 * (found.ends[1] - found.mean)


@pytest.mark.parametrize(
    ("chapter", "cell", "model", "against", "sign"),
    [
        ("07", "model-after", "full, convolution", "full", -1),
        ("07", "model-after", "Mamba-2", "full, convolution", -1),
        ("08", "model-after", "Gated DeltaNet", "Mamba-2", 1),
        ("09", "recall-after", "Mamba-3", "Mamba-2", 1),
        ("09", "recall-after", "log-linear Mamba-2", "Mamba-2", -1),
    ],
)
def test_a_difference_at_equal_parameters(chapter, cell, model, against, sign):
    found, text = charlm(EQUAL.format(model), EQUAL.format(against)), prose(chapter, cell)
    assert found.mean * sign > charlm_questions.MARGIN
    assert f"{abs(found.mean):.2f}" in text
    low, high = sorted(map(abs, found.ends))
    assert found.ends[0] * found.ends[1] > 0
    if (model, against) != ("full, convolution", "full"):
        doubt = "" if survives(found, 13) else "; corrected for thirteen comparisons it contains 0"
        assert re.search(rf"{low:.2f} to {high:.2f}( nats)?{doubt}\)", text)
    assert len(charlm_questions.QUESTIONS) == 13


def test_in_context_regression():
    """One of seven comparisons is decided; trains end below all others; both as the atlas says."""
    text, runs = prose("appendix/A", "reported-icl-read"), recorded("icl_regression")["runs"]
    found = [answer(q, runs, "error", icl_regression_questions.MARGIN) for q in icl_regression_questions.QUESTIONS]
    (decided,) = (one for one in found if one.sentence != UNDECIDED)
    assert (decided.question.model, decided.seeds, len(found)) == ("2 layers, D = 32, 8 × BTT 1", 3, 7)
    low, high = sorted(map(abs, decided.ends))
    assert f"by {-decided.mean:.2f} on average over the seeds (95 % interval: {low:.2f} to {high:.2f})" in text
    for layers in (2, 4):
        kinds = {name: found for name, found in reported(runs).items() if name.startswith(f"{layers} layers")}
        trains = kinds.pop(f"{layers} layers, D = 32, 8 × BTT 1")
        others = [run for found in kinds.values() for run in found]
        assert max(run["error"] for run in trains) < min(run["error"] for run in others)
        more = 100 * trains[0]["parameters"] / others[0]["parameters"] - 100
    assert f"with {more:.0f} % more parameters" in text
    lowest = [lr for model, lr in best_rates(runs).items() if "MLR" in model]
    assert lowest == [2e-3] * 2 == [min(run["lr"] for run in runs.values())] * 2


def test_means_of_chapter_07():
    text = prose("07", "model-after")
    means = [fmean(losses(EQUAL.format(model))) for model in ("full", "Mamba-2", "full, convolution")]
    for mean in means:
        assert f"{mean:.2f}" in text
    assert f"the lead of {means[0] - means[1]:.2f}" in text


def test_the_size_that_chapter_08_tells():
    models = reported(recorded("charlm")["runs"])
    sizes = [models[EQUAL.format(name)][0]["parameters"] for name in ("Gated DeltaNet", "Mamba-2")]
    assert f"equal parameters, about {round(fmean(sizes), -3):,.0f}," in prose("08", "model-after")


def test_levels_with_learned_positions():
    text = prose("11", "learn-after")
    split = charlm(LEARNED.format("8|4|2|2"), LEARNED.format("full"))
    assert f"ends {-split.mean:.2f} lower than standard attention" in text
    shuffled = charlm(LEARNED.format("8|4|2|2"), LEARNED.format("8|4|2|2, shuffled"))
    assert f"the same blocks end {-shuffled.mean:.2f} higher" in text
    biased = charlm("ALiBi, full", LEARNED.format("8|4|2|2"))
    assert f"beats the split by {-biased.mean:.2f}" in text


def test_levels_with_rope():
    text = prose("11", "learn-after")
    split = charlm(ROPE.format("8|4|2|2"), ROPE.format("full"))
    assert f"8|4|2|2 ends {-split.mean:.2f} lower on average, and lower with each of the five seeds" in text
    pairs = zip(losses(ROPE.format("8|4|2|2")), losses(ROPE.format("full")), strict=True)
    assert all(one < other for one, other in pairs)
    learned = charlm(LEARNED.format("8|4|2|2"), LEARNED.format("full"))
    assert 0.4 < split.mean / learned.mean < 0.6
    told = fmean(losses(ROPE.format("full"))) - fmean(losses(LEARNED.format("full")))
    assert told < learned.mean < 0  # the title of the figure
    fewer = charlm(ROPE.format("2|2|4|8"), ROPE.format("full"))
    assert fewer.sentence == UNDECIDED
    assert f"may be {-fewer.ends[0]:.2f} lower or {fewer.ends[1]:.2f} higher" in text
    others = ("full", "8|4|2|2", "8|4|2|2, shuffled", "2|2|4|8", "full + window 16")
    assert all(max(losses(ROPE.format("window 16"))) < min(losses(ROPE.format(other))) for other in others)


def test_which_answers_on_levels_survive():
    pairs = [(one.model, one.against) for one in charlm_questions.QUESTIONS[:8]]
    assert [pair for pair in pairs if survives(charlm(*pair), 13)] == [
        (ROPE.format("8|4|2|2"), ROPE.format("full")),
        ("ALiBi, full", LEARNED.format("8|4|2|2")),
        (ROPE.format("window 16"), ROPE.format("full")),
    ]
    told = "thirteen comparisons, three of these are decided: the bias, and beside RoPE 8|4|2|2 and the window"
    assert told in prose("11", "learn-after")


def test_no_rate_is_at_the_edge_of_those_that_were_tried():
    runs = recorded("charlm")["runs"]
    tried = sorted({run["lr"] for run in runs.values()})
    assert len(tried) == 5
    assert set(best_rates(runs).values()) <= set(tried[1:-1])


def test_where_most_rates_are_at_the_edge_the_chapter_says_so():
    for name, chapter, cell, words in (
        ("recall", "07", "recall-caption", "for {} of the record's {} models the best of three rates"),
        ("recall_stream", "09", "recall-after", "for {} of the {} models it chose the lowest or the highest"),
    ):
        runs = recorded(name)["runs"]
        lowest, _, highest = sorted({run["lr"] for run in runs.values()})
        best = list(best_rates(runs).values())
        assert words.format(best.count(lowest) + best.count(highest), len(best)) in prose(chapter, cell)


def test_one_rate_for_three_widths():
    text, above = prose("appendix/A", "rates-after"), {}
    for name, run in recorded("charlm_rates")["runs"].items():
        above.setdefault(name.partition(", lr")[0], {})[run["lr"]] = run["loss"]
    lowest = {name: min(found.values()) for name, found in above.items()}
    above = {name: {lr: loss - min(found.values()) for lr, loss in found.items()} for name, found in above.items()}
    rates = above["D = 32, standard, full"]
    new, old = (
        {lr: max(found[lr] for name, found in above.items() if scheme in name) for lr in rates}
        for scheme in ("width-stable", "standard")
    )
    assert f"one rate, $2^{{-6}}$, is at most {new[2**-6]:.3f} above" in text
    assert f"the best single rate is at most {min(old.values()):.3f} above" in text
    assert all(new[lr] < old[lr] for lr in (2**-7, 2**-6, 2**-5))
    gaps = {name: found[2**-6] for name, found in above.items() if "width-stable" in name}
    moved = [gap for name, gap in gaps.items() if "D = 64" not in name]
    assert f"beats $2^{{-6}}$ by {min(moved):.4f} to {max(moved):.3f} at" in text
    assert sum(gaps.values()) == sum(moved)
    best = Counter(-math.log2(lr) for found in above.values() for lr, gap in found.items() if not gap)
    assert best == {4: 1, 5: 3, 6: 4, 7: 4}
    assert "from $2^{-5}$ (once $2^{-4}$) to $2^{-7}$" in text
    higher = [
        low - lowest[name.replace("width-stable", "standard")] for name, low in lowest.items() if "stable" in name
    ]
    assert f"left valley is the lower one, though, by {min(higher[2:]):.2f} to {max(higher[2:]):.2f}." in text


def listed(values):
    *most, last = (f"{value:.2f}" for value in values)
    return f"{', '.join(most)} and {last}"


def test_what_a_state_recalls():
    text = prose("07", "recall-curves-after")
    more = recall("8 pairs, Mamba-2, N = 16", "8 pairs, Mamba-2, N = 4")
    assert f"rises by {more.mean:.2f} (95 % interval: {more.ends[0]:.2f} to {more.ends[1]:.2f})" in text
    assert recall("16 pairs, Mamba-2, N = 32", "16 pairs, Mamba-2, N = 4").sentence == UNDECIDED
    assert min(accuracies("8 pairs, linear attention, N = 4")) > 0.995
    assert min(accuracies("16 pairs, linear attention, N = 4")) > 0.995
    assert max(accuracies("16 pairs, Mamba-2, N = 4")) < 1 / 3
    assert "recalls all, with every seed, and Mamba-2 a third of them at most" in text
    lead = recall("8 pairs, linear attention, N = 4", "8 pairs, Mamba-2, N = 4")
    assert f"{lead.mean:.2f} above that of Mamba-2 on 8 pairs ({lead.ends[0]:.2f} to {lead.ends[1]:.2f})" in text
    assert "Twelve comparisons were planned; corrected for that, neither interval would survive" in text
    assert len(recall_questions.QUESTIONS) == 12
    assert not survives(more, 12)
    assert not survives(lead, 12)


def test_what_a_part_recalls():
    text = prose("07", "recall-curves-after")
    assert f"ends at {listed(accuracies('8 pairs, Mamba-2, N = 4'))}" in text


def test_digits_that_running_sums_lose_to_strong_decays():
    text = prose("12", "library-coarse")
    (one,) = (part for part in recorded("ssd")["accuracy"] if "5 % at -1e4" in part["problem"])
    errors = {name: contestant["error"] for name, contestant in one["contestants"].items()}
    for name in ("transformers mamba2_chunk_scan", "fla naive_chunk_simple_gla", "fast.ssd"):
        digit, power = f"{errors[name]:.0e}".split("e-0")
        assert f"${digit} \\cdot 10^{{-{power}}}$" in text


def test_recall_in_texts_that_grow():
    text, runs = prose("09", "recall-after"), recorded("recall_stream")["runs"]
    found = [answer(q, runs, "accuracy", recall_stream_questions.MARGIN) for q in recall_stream_questions.QUESTIONS]
    levels, attention, mamba3, hybrid = (found[k::4] for k in range(4))  # at 64, 128 and 256 tokens
    models = {(4 * five[0]["pairs"], five[0]["mixer"]): five for five in reported(runs).values()}
    mean = {model: fmean(run["accuracy"] for run in five) for model, five in models.items()}
    assert f"a difference of at least {recall_stream_questions.MARGIN}" in text
    assert "Twelve comparisons" in text
    assert len(found) == 12
    assert {setting["steps"] for setting in recorded("recall_stream")["settings"].values()} == {800}
    assert "Each model trained for 800 steps" in text
    for mixer in ("log-linear Mamba-2", "Mamba-2"):
        assert ", ".join(f"{mean[T, mixer]:.2f}" for T in (64, 128, 256)) in text
    assert all(mean[T, "Mamba-2"] < mean[T, "log-linear Mamba-2"] < mean[T, "attention"] for T in (64, 128, 256))
    for answers, outcomes in ((levels, "?m?"), (attention, "lll"), (mamba3, "??l"), (hybrid, "==?")):
        for one, outcome in zip(answers, outcomes, strict=True):
            question = one.question
            sentences = {"?": UNDECIDED, "m": question.more, "l": question.less, "=": question.same}
            assert one.sentence == sentences[outcome]
    for decided, words in ((levels[1], " (95 % interval: {:.2f} to {:.2f})"), (mamba3[2], " ({:.2f} to {:.2f})")):
        low, high = sorted(map(abs, decided.ends))
        assert f"by {abs(decided.mean):.2f}{words.format(low, high)}" in text
        assert not survives(decided, 12)
    assert all(survives(one, 12) for one in attention)
    doubtful = (abs(levels[1].mean), abs(mamba3[2].mean))
    assert "Corrected for twelve, neither the {:.2f} nor the {:.2f} would be decided".format(*doubtful) in text
    lost = {mixer: mean[64, mixer] - mean[256, mixer] for _, mixer in models}
    assert sorted(lost, key=lost.get)[-2:] == ["hybrid", "Mamba-3"]
    assert f"loses most, {lost['Mamba-3']:.2f} on average; the hybrid loses {lost['hybrid']:.2f}" in text
    sizes = {mixer: round(five[0]["parameters"] / 1000) for (_, mixer), five in models.items()}
    assert sizes["Mamba-2"] == sizes["Mamba-3"]
    for mixer, words in (("attention", "attention"), ("Mamba-2", "Mamba-2 and Mamba-3"), ("hybrid", "the hybrid")):
        assert f"{sizes[mixer]},000 ({words})" in prose("09", "recall").replace("000 parameters (", "000 (")
    assert f"{sizes['log-linear Mamba-2']},000 (log-linear Mamba-2)" in prose("09", "recall")
    large, small = (
        reported(recorded("charlm")["runs"])[EQUAL.format(name)][0] for name in ("log-linear Mamba-2", "Mamba-2")
    )
    assert f"with {100 * large['parameters'] / small['parameters'] - 100:.0f} % more parameters" in text


SPHERE = "nearest, d = 16"


def test_one_layer_on_the_sphere():
    """At the one rate that all were given, as the chapter says each time."""
    text, rank = prose("10", "depth"), prose("10", "sphere-after")
    assert {setting["lr"] for name, setting in recorded("bottleneck")["settings"].items() if "lr" in setting} == {0.02}
    models = ("1 × BTT 1", "4 × MLR 1|1|2", "4 × low rank 4", "8 × low rank 12", sphere.NARROW, sphere.WIDE)
    error = {model: fmean(sphere.errors(SPHERE, model)) for model in models}
    size = {model: sphere.runs(SPHERE, model)[0]["parameters"] for model in models}
    assert f"a quarter of the parameters of eight narrow heads, ends at {error['1 × BTT 1']:.2f}" in text
    assert round(size[sphere.NARROW] / size["1 × BTT 1"]) == 4
    assert "half the error of four of low rank with as many parameters" in text
    assert 0.45 < error["4 × MLR 1|1|2"] / error["4 × low rank 4"] < 0.55
    assert size["4 × MLR 1|1|2"] == size["4 × low rank 4"]
    assert f"six times the parameters of the full head, the error is still {error['8 × low rank 12']:.2f}" in rank
    assert round(size["8 × low rank 12"] / size[sphere.WIDE]) == 6


def test_from_step_200_on_one_train_and_one_head_of_levels_lead():
    """Against each rival of the picture, at every budget that both have spent."""
    assert "Large markers: step 200.* From there on the train and the levels, one head each" in prose(
        "10", "sphere-rank-guess"
    )
    lines = {}
    for model in ("1 × BTT 1", "1 × MLR 4|4|8", sphere.WIDE, sphere.TRAIN, sphere.NARROW):
        found = sphere.runs(SPHERE, model)
        lines[model] = [sphere.curve(one, one["macs"]) for one in found]
    for leader in list(lines)[:2]:
        begins = next(iter(sphere.runs(SPHERE, leader)))["macs"] * 3 * 256 * 200
        for rival in list(lines)[2:]:
            for (mine, my_errors), (theirs, their_errors) in product(lines[leader], lines[rival]):
                spent = np.linspace(max(math.log(begins), theirs[0]), min(mine[-1], theirs[-1]), 200)
                assert (np.interp(spent, mine, my_errors) < np.interp(spent, theirs, their_errors)).all()


def test_eight_trains_and_one_full_head_at_equal_compute():
    text = prose("appendix/A", "reported")
    trains, full = (sphere.runs(SPHERE, model) for model in (sphere.TRAIN, sphere.WIDE))
    spent = [math.log(3 * 256 * trains[0]["macs"] * 200), math.log(3 * 256 * full[0]["macs"] * 1500)]
    at = [
        [fmean(np.interp(x, *sphere.curve(one, one["macs"])) for one in model) for x in spent]
        for model in (trains, full)
    ]
    assert f"both have an error of about {at[0][0]:.2f}" in text
    assert round(at[0][0], 2) == round(at[1][0], 2)
    assert f"when it ends, at {at[1][1]:.3f}, the trains are near {at[0][1]:.2f}." in text
    assert f"They end at {fmean(one['error'] for one in trains):.3f}, after about three times its compute" in text
    assert round(trains[0]["macs"] / full[0]["macs"]) == 3


def test_a_head_that_compares_some_of_the_coordinates():
    """The table of chapter 10, computed beforehand: the error at the best scale of those that were tried."""
    names, values = (row.strip("| ").split(" | ") for row in prose("10", "confuse-added-after").splitlines()[-3::2])
    queries, points, nearest = nearest_neighbour(40_000, 16, 16, seed=2)
    wanted = points[torch.arange(len(points)), nearest]
    for r, told in zip(map(int, names[1:]), map(float, values[1:]), strict=True):
        scores = (points[..., :r] @ queries[:, :r, None])[..., 0]
        found = [((beta * scores).softmax(-1)[:, None] @ points)[:, 0] - wanted for beta in (9, 12, 18, 27, 1e5)]
        assert abs(min(one.square().sum(-1).mean().item() for one in found) - told) < 0.01


def test_forecasts_over_all_columns():
    text, record = prose("11", "series-after"), recorded("forecast")
    found = {key: seeds for key, seeds in changes(record, "loss").items() if "hours" in key[0]}
    means = sorted(-100 * fmean(seeds) for seeds in found.values())
    assert f"better with every seed, by {means[0]:.1f} to {means[-1]:.1f} % on average" in text
    assert max(map(max, found.values())) < 0
    decided = sorted(high for _, high in map(interval, found.values()) if high < 0)
    assert "of the two intervals that exclude 0 one does so by a hair" in text
    assert len(decided) == 2
    assert -1e-4 < decided[1] < 0
    assert "all models have one learning rate" in text
    assert len({setting["lr"] for name, setting in record["settings"].items() if "hours" in name}) == 1


EPYC, XEON = "amd-epyc-avx512", "intel-xeon-avx512"


def medians(part):
    """Seconds of each contestant."""
    return {name: median(one["seconds"]) for name, one in part["contestants"].items() if "seconds" in one}


def test_which_linear_attention_is_fastest_depends_on_the_processor():
    assert "depends on the processor" in prose("03", "clock-after")
    epyc, xeon = (medians(recorded("linear_attention", cpu)["contests"][2]) for cpu in (EPYC, XEON))
    fast, compiled = "fast.linear_attention", "linear_attention_chunked, compiled"
    assert epyc[fast] < epyc[compiled]
    assert xeon[compiled] < xeon[fast]


def test_sixteen_times_the_state():
    text, contests = prose("06", "motive-after"), recorded("training", EPYC)["growth"]["contests"]
    small, large = (medians(contests[place]) for place in (0, -1))
    scan = large["selective scan"]
    assert f"takes {large['SSD'] / small['SSD']:.1f} times as long" in text
    assert f"takes {scan / small['selective scan']:.0f} times as long, {scan:.1f} seconds" in text
    loop = large["selective loop"]
    assert f"by a plain loop {loop / small['selective loop']:.1f} times, {loop:.1f} seconds" in text
    sizes = contests[-1]["sizes"]
    bytes_of = 4 * math.prod(sizes[name] for name in ("length", "heads", "head_dim", "state"))
    assert f"{bytes_of / 1e6:.0f} MB at $N = 256$, {bytes_of / 16e6:.0f} at $N = 16$" in text


def test_the_pair_just_before_in_a_tree():
    """Token t asks for the pair of t - 1, whose block holds as many pairs as the lowest 1 of t says."""
    errors = [math.sqrt(((t & -t) - 1) / 16) for t in range(1, 1025)]
    told = f"an error of about {errors[-1]:.0f}. That is rare: averaged over all tokens that may ask, the error for the"
    assert f"{told} pair just before is {fmean(errors):.2f}." in prose("09", "level-after")


def test_what_a_small_state_keeps_of_attention():
    given = {"generators": generators, "ssm_matrix": ssm_matrix, "block_ranks": block_ranks}
    space = shown("05", "distil-run", relative_rms=relative_rms, **given)
    whole, kept, off = space["right"][-1], space["right"][3:5], space["errors"][3:5]
    shares = [f"{100 * part:.0f} %" for part in (kept[0] / whole, kept[1] / whole, *off)]
    told = (
        "All keys together give the right word {:.2f}. Eight states keep {} of that, sixteen {}, although the matrix is"
    )
    assert f"{told} still {{}} and {{}} off".format(whole, *shares) in prose("05", "distil-after")


@pytest.mark.parametrize(
    ("chapter", "cell", "shows", "numbers"),
    [
        ("02", "variance-ask", "ex-2-5-use", "2.05 0.16"),
        ("02", "zen", "zen-sharp", "29"),
        ("03", "zen-background", "zen-scores", "288"),
        ("05", "distil-after", "distil-run", "31"),
        ("10", "confuse-added-after", "confuse-added", "95 56"),
        ("11", "cache-bytes-after", "cache-bytes", "0.62 0.80"),
        ("11", "series-bins-after", "series-bins", "0.63"),
    ],
)
def test_a_cell_prints_the_number_that_is_told_of_it(chapter, cell, shows, numbers):
    for number in numbers.split():
        assert number in printed(chapter, shows)
        assert number in prose(chapter, cell)


def test_what_levels_of_attention_save():
    text, shares, loops, by_medians = prose("11", "speed-loop-after"), {}, [], []
    for cpu in (EPYC, XEON):
        for part in recorded("multilevel", cpu)["contests"]:
            found = part["speedups"]["scaled_dot_product_attention"]
            for name in ("8|8|8|8|8|8|8|8", "32|8|6|4|4|4|4|2"):
                shares[cpu, part["sizes"]["backward"], part["sizes"]["length"], name[0]] = found[name]
                if cpu == XEON and not part["sizes"]["backward"] and part["sizes"]["length"] >= 2048:
                    times = medians(part)
                    by_medians.append(times[name] / times["scaled_dot_product_attention"] - found[name])
            loops += [found["all levels in full"]] if cpu == XEON and "all levels in full" in found else []
    forward = {(cpu, T, name): share for (cpu, backward, T, name), share in shares.items() if not backward}
    late = {key: share for key, share in forward.items() if key[1] >= 2048}
    for cpu, name, near in [(EPYC, "8", 0.7), (EPYC, "3", 0.85), (XEON, "8", 0.9), (XEON, "3", 1.05)]:
        assert all(abs(share - near) < 0.06 for (c, _, n), share in late.items() if (c, n) == (cpu, name))
    assert min(forward[XEON, 1024, name] for name in "83") > 1
    assert all(shares[cpu, True, T, "8"] < share for (cpu, T, name), share in forward.items() if name == "8")
    assert f"takes {min(loops):.0f} to {max(loops):.0f} times as long" in text
    ranks = ((8,) * 8, (32, 8, 6, 4, 4, 4, 4, 2))
    counted = [(sum(r / 2**n for n, r in enumerate(one)) / 64 + 1) / 2 for one in ranks]
    assert "about 0.7 and 0.85" in text
    assert "has {:.2f} of the multiply-adds, the paper's {:.2f}.".format(*counted) in text
    assert "about 0.9 and 1.05 from $T = 2048$ on (by medians, up to 0.2 more)" in text
    assert round(max(by_medians), 1) == 0.2
    needs = recorded("multilevel", EPYC)["memory"][0]["bytes"]
    peaks = (needs[name]["peak"] / 2**20 for name in ("8|8|8|8|8|8|8|8", "scaled_dot_product_attention"))
    assert "need {:.0f} MiB, standard attention {:.0f}".format(*peaks) in text


def test_fewer_multiply_adds_are_not_as_many_times_faster():
    text = prose("appendix/A", "costs-recorded-after")
    parts = {cpu: [one for one in recorded("weights", cpu)["contests"] if not one["backward"]] for cpu in (EPYC, XEON)}
    assert 0.25 < min(one["reached"] for one in parts[EPYC]) < max(one["reached"] for one in parts[EPYC]) < 0.55
    assert 0.045 < min(one["reached"] for one in parts[XEON]) < max(one["reached"] for one in parts[XEON]) < 0.305
    assert "a quarter to just over a half of what was counted" in text
    slower = [(one["family"], one["dim"]) for one in parts[XEON] if one["speedups"]["structured"]["dense"] < 1]
    assert slower == [("MLR", 1024)]
    assert "a twentieth to three tenths; there the smaller MLR is slower than the dense matrix" in text
