"""When seeds agree: what recorded runs must show for a conclusion, whatever the numbers are, and of which settings."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from smalearn.course.results import answer
from smalearn.data import recorded

__all__ = ["apart", "asked", "stored"]


def stored(settings: dict) -> dict:
    """Settings by their titles, as they come back from a file."""
    return json.loads(json.dumps({title: asdict(setting) for title, setting in settings.items()}))


def apart(low: Sequence[float], high: Sequence[float]) -> bool:
    """Whether every seed of one model lies below every seed of another, by more than the seeds of either differ."""
    return min(high) - max(low) > max(max(low) - min(low), max(high) - min(high))


def asked(name, about, value, model, against):
    """The answer of a record to one of the questions about it."""
    (question,) = (q for q in about.QUESTIONS if (q.model, q.against) == (model, against))
    found = answer(question, recorded(name)["runs"], value, about.MARGIN)
    assert found.seeds == 5
    return found
