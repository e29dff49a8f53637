"""What chapters conclude from recorded experiments: every number in prose is computed again from the record."""

from pathlib import Path
from statistics import fmean, median

import nbformat
import pytest

from smalearn.data import recorded
from smalearn.lab.experiments import charlm_questions, icl_regression_questions, recall_questions
from smalearn.lab.experiments.grid import best_rates, reported
from smalearn.lab.experiments.questions import UNDECIDED, answer

CHAPTERS = Path(__file__).parents[2] / "chapters"
LEARNED, ROPE, EQUAL = "learned positions, {}", "RoPE, {}", "equal parameters, {}"


def prose(chapter, cell):
    (path,) = CHAPTERS.glob(f"{chapter}_*.ipynb")
    (source,) = (one.source for one in nbformat.read(path, 4).cells if one.id == cell)
    return source


def charlm(model, against):
    """The answer of the record to one question."""
    (question,) = (q for q in charlm_questions.QUESTIONS if (q.model, q.against) == (model, against))
    found = answer(question, recorded("charlm")["runs"], "loss", charlm_questions.MARGIN)
    assert found.seeds == 5
    return found


def losses(model):
    return [run["loss"] for run in reported(recorded("charlm")["runs"])[model]]


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
        assert f"{low:.2f} to {high:.2f}" in text


def test_in_context_regression():
    """One of seven comparisons is decided; trains end below all others; both as the atlas says."""
    text, runs = prose("appendix/A", "reported-icl-after"), recorded("icl_regression")["runs"]
    asked = [answer(q, runs, "error", icl_regression_questions.MARGIN) for q in icl_regression_questions.QUESTIONS]
    (decided,) = (found for found in asked if found.sentence != UNDECIDED)
    assert (decided.question.model, decided.seeds, len(asked)) == ("2 layers, D = 32, 8 × BTT 1", 3, 7)
    low, high = sorted(map(abs, decided.ends))
    assert f"by {-decided.mean:.2f} (95 % interval: {low:.2f} to {high:.2f})" in text
    for layers in (2, 4):
        kinds = {name: found for name, found in reported(runs).items() if name.startswith(f"{layers} layers")}
        trains = kinds.pop(f"{layers} layers, D = 32, 8 × BTT 1")
        others = [run for found in kinds.values() for run in found]
        assert max(run["error"] for run in trains) < min(run["error"] for run in others)
        assert round(100 * trains[0]["parameters"] / others[0]["parameters"]) == 108
    lowest = [lr for model, lr in best_rates(runs).items() if "MLR" in model]
    assert lowest == [2e-3] * 2 == [min(run["lr"] for run in runs.values())] * 2


def test_means_of_chapter_07():
    text = prose("07", "model-after")
    means = [fmean(losses(EQUAL.format(model))) for model in ("full", "Mamba-2", "full, convolution")]
    for mean in means:
        assert f"{mean:.2f}" in text
    assert f"the lead of {means[0] - means[1]:.2f}" in text


def test_levels_with_learned_positions():
    text = prose("11", "learn-after")
    split = charlm(LEARNED.format("8|4|2|2"), LEARNED.format("full"))
    assert f"ends {-split.mean:.2f} lower than standard attention" in text
    shuffled = charlm(LEARNED.format("8|4|2|2"), LEARNED.format("8|4|2|2, shuffled"))
    assert f"the same blocks end {-shuffled.mean:.2f} higher" in text
    biased = charlm("ALiBi, full", LEARNED.format("8|4|2|2"))
    assert f"beats the split by {-biased.mean:.2f}" in text
    assert max(losses(LEARNED.format("window 16"))) < min(losses(LEARNED.format("8|4|2|2")))


def test_levels_with_rope():
    text = prose("11", "learn-after")
    split = charlm(ROPE.format("8|4|2|2"), ROPE.format("full"))
    assert f"8|4|2|2 ends {-split.mean:.2f} lower on average, and lower with each of the five seeds" in text
    pairs = zip(losses(ROPE.format("8|4|2|2")), losses(ROPE.format("full")), strict=True)
    assert all(one < other for one, other in pairs)
    learned = charlm(LEARNED.format("8|4|2|2"), LEARNED.format("full"))
    assert 0.4 < split.mean / learned.mean < 0.6
    fewer = charlm(ROPE.format("2|2|4|8"), ROPE.format("full"))
    assert fewer.sentence == UNDECIDED
    assert f"may be {-fewer.ends[0]:.2f} lower or {fewer.ends[1]:.2f} higher" in text
    others = ("full", "8|4|2|2", "8|4|2|2, shuffled", "2|2|4|8", "full + window 16")
    assert all(max(losses(ROPE.format("window 16"))) < min(losses(ROPE.format(other))) for other in others)


def test_at_the_lowest_rate_one_would_have_written_something_else():
    runs, text = recorded("charlm")["runs"], prose("11", "learn-after")

    def gain(lr):
        full, split = (runs[f"learned positions, {mixer}, lr {lr}, seed 0"]["loss"] for mixer in ("full", "8|4|2|2"))
        return full - split

    assert (
        f"the gain of 8|4|2|2 on the test is {gain('0.0039'):.2f} at the lowest of the five, $2^{{-8}}$, "
        f"and {gain('0.031'):.2f} at the" in text
    )
    assert min(best_rates(runs).values()) > 0.0039
    assert best_rates(runs)["learned positions, full"] == best_rates(runs)["learned positions, 8|4|2|2"] == 2**-5
    late = {model: runs[f"{model}, lr 0.0039, seed 0"]["loss"] - fmean(losses(model)) for model in reported(runs)}
    assert max(late, key=late.__getitem__) in ("learned positions, full", "learned positions, 8|4|2|2, shuffled")


def test_no_rate_is_at_the_edge_of_those_that_were_tried():
    runs = recorded("charlm")["runs"]
    tried = sorted({run["lr"] for run in runs.values()})
    assert len(tried) == 5
    assert set(best_rates(runs).values()) <= set(tried[1:-1])


def recall(model, against):
    (question,) = (q for q in recall_questions.QUESTIONS if (q.model, q.against) == (model, against))
    found = answer(question, recorded("recall")["runs"], "accuracy", recall_questions.MARGIN)
    assert found.seeds == 5
    return found


def accuracies(model):
    return [run["accuracy"] for run in reported(recorded("recall")["runs"])[model]]


def listed(values):
    *most, last = (f"{value:.2f}" for value in values)
    return f"{', '.join(most)} and {last}"


def test_what_a_state_recalls():
    text = prose("07", "recall-curves-after")
    more = recall("8 pairs, Mamba-2, N = 16", "8 pairs, Mamba-2, N = 4")
    assert f"rises by {more.mean:.2f} (95 % interval: {more.ends[0]:.2f} to {more.ends[1]:.2f})" in text
    assert f"end at {listed(accuracies('16 pairs, Mamba-2, N = 16'))}" in text
    assert recall("16 pairs, Mamba-2, N = 32", "16 pairs, Mamba-2, N = 4").sentence == UNDECIDED
    assert min(accuracies("8 pairs, linear attention, N = 4")) > 0.995
    lead = recall("8 pairs, linear attention, N = 4", "8 pairs, Mamba-2, N = 4")
    assert f"{lead.mean:.2f} above that of Mamba-2 on 8 pairs ({lead.ends[0]:.2f} to {lead.ends[1]:.2f})" in text
    medians = [median(accuracies(f"16 pairs, linear attention, N = {N}")) for N in (1, 2, 4)]
    assert f"medians of {listed(medians)}" in text


def test_what_a_part_recalls():
    text = prose("07", "recall-answers-after")
    assert f"ends at {listed(accuracies('8 pairs, Mamba-2, N = 4'))}" in text
    for part in ("no norm", "no decay", "in sequence", "P = 1"):
        assert recall(f"8 pairs, Mamba-2, {part}, N = 4", "8 pairs, Mamba-2, N = 4").sentence == UNDECIDED
    assert max(accuracies("8 pairs, Mamba-2, in sequence, N = 4")) < 1.6 / 8


def test_digits_that_running_sums_lose_to_strong_decays():
    text = prose("12", "library-coarse")
    (one,) = (part for part in recorded("ssd")["accuracy"] if "5 % at -1e4" in part["problem"])
    errors = {name: contestant["error"] for name, contestant in one["contestants"].items()}
    for name in ("transformers mamba2_chunk_scan", "fla naive_chunk_simple_gla", "fast.ssd"):
        digit, power = f"{errors[name]:.0e}".split("e-0")
        assert f"${digit} \\cdot 10^{{-{power}}}$" in text


def test_recall_in_texts_that_grow():
    text, found = prose("09", "recall-after"), {}
    for title, run in recorded("recall_growing")["runs"].items():
        found.setdefault((title.split()[0], run["mixer"]), []).append(f"{run['accuracy']:.2f}")
    for mixer in ("attention", "Mamba-3", "Mamba-2", "log-linear Mamba-2", "hybrid"):
        assert ", ".join(found["256", mixer]) in text
