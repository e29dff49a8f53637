"""What a record of an experiment allows to say: which runs are reported, how sure a difference is, and its sentence.

Runs of one seed have the same data, so models are compared seed by seed. A sentence is written before the runs, one for
each outcome (`Question`), and the record chooses among them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "UNDECIDED",
    "Answer",
    "Question",
    "answer",
    "answers",
    "changes",
    "interval",
    "model_of",
    "ratios",
    "relative_change",
    "reported",
    "slope_interval",
    "slopes",
]

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""The 97.5 % quantiles of Student's t for 1, 2, 3, … degrees of freedom."""


def reported(runs: Mapping[str, Mapping]) -> dict[str, list[Mapping]]:
    """By model the runs of all seeds but 0, which chose the rate."""
    models: dict[str, list[Mapping]] = {}
    for name, run in runs.items():
        if run["seed"]:
            models.setdefault(model_of(name), []).append(run)
    return models


def model_of(name):
    """Return the title and the model in the name of a run."""
    return name.partition(", lr ")[0]


def relative_change(errors: Sequence[float], standard: Sequence[float]) -> list[float]:
    """(e - e_standard) / e_standard for each seed: negative is better, as an error is.

    Source:
        Kuang et al. 2025, appendix J, who call it relative improvement.
    """
    if len(errors) != len(standard):
        raise ValueError(f"relative_change: {len(errors)} errors need as many of the standard, got {len(standard)}")
    if not all(value > 0 for value in standard):
        raise ValueError(f"relative_change: errors of the standard must be positive, got {min(standard)}")
    return [(error - value) / value for error, value in zip(errors, standard, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean, by Student's t; from the 17th value on, the quantile of 16 is used."""
    if len(values) < 2:
        raise ValueError(f"interval: values must be at least two, got {len(values)}")
    half = _student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def slope_interval(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the slope of the line of least squares."""
    if len(x) < 3 or len(x) != len(y) or len(set(x)) < 2:
        raise ValueError(f"slope_interval: expected three or more points, not all at one x, got {len(x)} and {len(y)}")
    slope, offset = statistics.linear_regression(x, y)
    rest = sum((b - slope * a - offset) ** 2 for a, b in zip(x, y, strict=True)) / (len(x) - 2)
    centre = statistics.fmean(x)
    half = _student(len(x) - 2) * math.sqrt(rest / sum((a - centre) ** 2 for a in x))
    return slope - half, slope + half


def _student(freedom):
    """The quantile; a little too large beyond the table."""
    return STUDENT[min(freedom, len(STUDENT)) - 1]


@dataclass(frozen=True)
class Question:
    """One comparison.

    Args:
        model: title and model, as in the names of runs.
        against: the other.
        less: the sentence that holds if the measure of the first is lower.
        same: if they are equal within the margin.
        more: if it is higher.
    """

    model: str
    against: str
    less: str
    same: str
    more: str


@dataclass(frozen=True)
class Answer:
    """A question, the mean of measure(model) - measure(against), its 95 % interval, the seeds and the sentence."""

    question: Question
    mean: float
    ends: tuple[float, float]
    seeds: int
    sentence: str


UNDECIDED = "These seeds do not decide."


def answer(question: Question, runs: Mapping[str, Mapping], measure: str, margin: float) -> Answer:
    """The sentence that the record allows.

    Lower or higher needs a 95 % interval without 0 and a mean beyond the margin; the same, an interval within the
    margin. Whatever is neither is not decided.
    """
    models = reported(runs)
    one, other = (
        {run["seed"]: run[measure] for run in models.get(name, ())} for name in (question.model, question.against)
    )
    if one.keys() != other.keys():
        raise ValueError(
            f"answer: seeds of {question.model} {list(one)} and of {question.against} {list(other)} differ"
        )
    differences = [one[seed] - other[seed] for seed in one]
    mean, (low, high) = statistics.fmean(differences) if differences else 0.0, interval(differences)
    if high < 0 and mean <= -margin:
        sentence = question.less
    elif low > 0 and mean >= margin:
        sentence = question.more
    elif -margin < low <= high < margin:
        sentence = question.same
    else:
        sentence = UNDECIDED
    return Answer(question, mean, (low, high), len(differences), sentence)


def answers(questions: Sequence[Question], runs: Mapping[str, Mapping], measure: str, margin: float) -> str:
    """All of them as lines of a terminal; models that have not run yet are left out."""
    known = reported(runs)
    lines = []
    for question in questions:
        if question.model in known and question.against in known:
            found = answer(question, runs, measure, margin)
            low, high = found.ends
            lines.append(f"{question.model}, against {question.against}:")
            lines.append(f"  {found.mean:+.3f} ({low:+.3f} to {high:+.3f}, {found.seeds} seeds). {found.sentence}")
    return "\n".join(lines)


def changes(result: Mapping[str, Mapping], measure: str = "loss") -> dict[tuple[str, str], list[float]]:
    """Relative change of each split's loss against the standard's, for every seed: negative is better.

    By title of the setting and split, `relative_change` of the seeds, in their order. `measure` is "loss", or "error"
    for the oil temperature.
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    for name, one in result["runs"].items():
        if measure in one:
            values.setdefault((name.partition(f", {one['ranks']},")[0], one["ranks"]), {})[one["seed"]] = one[measure]
    relative = {}
    for (title, ranks), errors in values.items():
        standard = values.get((title, result["settings"][title]["ranks"][0]), {})
        seeds = sorted(errors.keys() & standard.keys())
        if "|" in ranks and seeds:
            relative[title, ranks] = relative_change([errors[s] for s in seeds], [standard[s] for s in seeds])
    return relative


def slopes(result: Mapping[str, Mapping], measure: str = "error") -> dict[str, tuple[float, float]]:
    """Interval of the slope, in relative change per hour, for each split: does the advantage grow with the horizon?"""
    points: dict[str, list[tuple[int, float]]] = {}
    for (title, ranks), relative in changes(result, measure).items():
        setting = result["settings"][title]
        if not setting["bins"]:
            points.setdefault(ranks, []).extend((setting["horizon"], change) for change in relative)
    fit = {ranks: tuple(zip(*pairs, strict=True)) for ranks, pairs in points.items() if len({x for x, _ in pairs}) > 1}
    return {ranks: slope_interval(*columns) for ranks, columns in fit.items()}


def ratios(milliseconds: Mapping[str, Sequence[float]], model: str, than: str) -> list[float]:
    """Time of a model's step over that of another's, round by round: what slows a round slows both."""
    return [time / other for time, other in zip(milliseconds[model], milliseconds[than], strict=True)]
