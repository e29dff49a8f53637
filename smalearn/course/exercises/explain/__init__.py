"""What is said of a wrong answer that no list knows: one list of explainers, in one order, under one budget of time.

Each module looks at one thing: the form of the answers, their values, memory that nobody wrote, the line where numbers
end, an argument that is ignored, and which rows change with which.
"""

from smalearn.course.exercises.explain.arguments import ignored
from smalearn.course.exercises.explain.asked import Asked
from smalearn.course.exercises.explain.forms import (
    changed_in_place,
    item_alone,
    leading_axes,
    other_dtype,
    other_order,
    with_leading_axes,
)
from smalearn.course.exercises.explain.lines import first_line
from smalearn.course.exercises.explain.memory import unwritten
from smalearn.course.exercises.explain.rows import changed_rows
from smalearn.course.exercises.explain.values import values

__all__ = ["Asked", "explain", "with_leading_axes"]

ORDER = (
    changed_in_place,
    other_dtype,
    leading_axes,
    unwritten,
    item_alone,
    other_order,
    values,
    first_line,
    ignored,
    changed_rows,
)


def explain(asked: Asked) -> str | None:
    """Return the first sentence that holds of an attempt; None where nothing is known to be true."""
    if asked.exercise.refuse:  # which says itself why
        return None
    for look in ORDER:
        try:
            if said := look(asked):
                return said
        except Exception:  # an answer may be anything, 10**400 say: then nothing more is said of it
            continue
        if asked.late:
            return None
    return None
