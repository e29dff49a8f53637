"""Attention over a passage of text: the matrix with the words on its axes, and a table of what attends to what."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from smalearn._checks import ShapeError
from smalearn.course.plots.matrices import heatmap, real_matrix
from smalearn.course.plots.style import own_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["attends", "words"]

LABEL_POINTS, LABEL_CHARACTERS = 11.5, 17


def words(
    M: object,
    passage: str | Sequence[str],
    ax: Axes | None = None,
    *,
    title: str | None = None,
    scale: str = "linear",
) -> Axes:
    """Picture of attention within a passage: row t attends to column s, both labelled with words.

    Where there is no room for every word, the lines of a text are labelled with their first words. A line, or a word of
    a list, that would touch the label before it gets none.
    """
    tokens = _tokens("words", M, passage)
    ax = heatmap(M, own_axes("words", ax, (7, 6.2), title), scale=scale)
    # The labels themselves take some of the height, hence more points for a label than it is high.
    points = 72 * ax.figure.get_figheight() * ax.get_position().height
    gap = len(tokens) * LABEL_POINTS / points
    labels = dict(enumerate(tokens))
    if gap > 1 and isinstance(passage, str):
        labels = _line_starts(passage)
    places = _spread(labels, gap)
    for axis, rotation in ((ax.yaxis, 0), (ax.xaxis, 90)):
        axis.set_ticks(places, labels=[_shorten(labels[place]) for place in places], rotation=rotation)
    return ax


def attends(M: object, passage: str | Sequence[str], targets: int | Iterable[int], top: int = 5) -> str:
    """Table of what the words at some positions attend to, the largest weights first.

    Args:
        M: (T, T) weights, one row and one column for each word.
        passage: a text, which is split at white space, or its T tokens.
        targets: a position or several; −1 is the last.
        top: how many sources to list; those that would print as 0.00 are left out.

    Returns:
        One line for each target, with the position behind each word. Equal printed weights come by position, so that
        the text does not depend on the machine's last digits.

    Raises:
        ShapeError: M is not (T, T).
        ValueError: M is complex, or a target is not a position of the passage.

    Example:
        >>> print(attends([[1.0, 0.0], [0.25, 0.75]], "to be", [0, 1]))
        to 0  <-  1.00 to 0
        be 1  <-  0.75 be 1   0.25 to 0
    """
    tokens = _tokens("attends", M, passage)
    weights = real_matrix("attends", M)
    rows = []
    for target in targets if isinstance(targets, Iterable) else [targets]:
        if not -len(tokens) <= target < len(tokens):
            raise ValueError(f"attends: targets, expected positions from 0 to {len(tokens) - 1}, got {target}")
        target %= len(tokens)
        rounded = [round(float(weight), 2) for weight in weights[target]]
        best = sorted((s for s, weight in enumerate(rounded) if weight), key=lambda s: (-rounded[s], s))[:top]
        sources = "   ".join(f"{rounded[s]:.2f} {tokens[s]} {s}" for s in best)
        rows.append((f"{tokens[target]} {target}", sources or "nothing"))
    width = max((len(word) for word, _ in rows), default=0)
    return "\n".join(f"{word:<{width}}  <-  {sources}" for word, sources in rows)


def _tokens(function: str, M: object, passage: str | Sequence[str]) -> list[str]:
    """The words of a passage, as many as M has rows and columns."""
    tokens = passage.split() if isinstance(passage, str) else list(passage)
    shape = real_matrix(function, M).shape
    if shape != (len(tokens), len(tokens)):
        raise ShapeError(f"{function}: M must be ({len(tokens)}, {len(tokens)}) for {len(tokens)} words, got {shape}")
    return tokens


def _line_starts(text: str) -> dict[int, str]:
    """The lines of a text that have words, by the position of their first word."""
    starts, position = {}, 0
    for line in text.splitlines():
        if line.strip():
            starts[position] = line.strip()
            position += len(line.split())
    return starts


def _spread(places: Iterable[int], gap: float) -> list[int]:
    """Drop from ascending places those closer than the gap to the last one kept."""
    chosen: list[int] = []
    for place in places:
        if not chosen or place - chosen[-1] >= gap:
            chosen.append(place)
    return chosen


def _shorten(label: str) -> str:
    """Cut a label to a readable length, after a word where it can be."""
    cut = textwrap.shorten(label, LABEL_CHARACTERS, placeholder="…")
    return cut if cut != "…" else label[: LABEL_CHARACTERS - 1] + "…"
