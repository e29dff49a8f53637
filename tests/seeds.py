"""When seeds agree: what recorded runs must show for a conclusion, whatever the numbers are."""

from collections.abc import Sequence

__all__ = ["apart"]


def apart(low: Sequence[float], high: Sequence[float]) -> bool:
    """Whether every seed of one model lies below every seed of another, by more than the seeds of either differ."""
    return min(high) - max(low) > max(max(low) - min(low), max(high) - min(high))
