"""Real data: what every Python carries, what the course has recorded, two public files that are fetched when asked for.

A text or a series that was loaded has a `source`, which says what it is. Where a file cannot be had (no network), the
loaders give something that needs none, and the source says so.
"""

from smalearn.data.included import ngram_features, recorded, zen_of_python
from smalearn.data.series import Series, load_series, seasonal_series, series_windows, split_series
from smalearn.data.sources import Source
from smalearn.data.text import Text, Vocabulary, excerpts, load_text, split_text

__all__ = [
    "Series",
    "Source",
    "Text",
    "Vocabulary",
    "excerpts",
    "load_series",
    "load_text",
    "ngram_features",
    "recorded",
    "seasonal_series",
    "series_windows",
    "split_series",
    "split_text",
    "zen_of_python",
]
