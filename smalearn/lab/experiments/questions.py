"""What an experiment asks, written before it runs: two models, and a sentence for each outcome.

Runs of one seed have the same excerpts, so models are compared seed by seed.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from smalearn.lab.experiments.grid import reported
from smalearn.lab.experiments.spread import interval

__all__ = ["Answer", "Question", "answer", "answers"]


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

    Args:
        question: what is asked.
        runs: all records by name.
        measure: of a record.
        margin: the least difference that counts, in its unit.

    Raises:
        ValueError: the two models have other seeds, or fewer than two.
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
