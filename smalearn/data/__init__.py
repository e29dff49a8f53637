"""Real data and synthetic tasks.

Real: what every Python carries, what the course has recorded, two public files that are fetched when asked for. A text
or a series that was loaded has a `source`, which says what it is. Where a file cannot be had (no network), the loaders
give something that needs none, and the source says so.

Synthetic, drawn anew for every seed: what solves a task is known, so what a model lacks can be measured. `recall` asks
for memory, `nearest` for a scoring function of full rank, `regression` for learning within the sequence.
"""

from smalearn.data.included import ngram_features, recorded, recorded_cpus, ten_words, trained, zen_of_python
from smalearn.data.nearest import full_rank_head, nearest_neighbour
from smalearn.data.pieces import Pieces
from smalearn.data.recall import IGNORE, MQAR_BLANK, mqar, mqar_lookup, recall_stream
from smalearn.data.regression import curriculum, least_squares, regression, regression_prompt
from smalearn.data.series import Series, load_series, seasonal_series, series_windows, split_series
from smalearn.data.sources import Source
from smalearn.data.text import Text, Vocabulary, excerpts, load_text, split_text

__all__ = [
    "IGNORE",
    "MQAR_BLANK",
    "Pieces",
    "Series",
    "Source",
    "Text",
    "Vocabulary",
    "curriculum",
    "excerpts",
    "full_rank_head",
    "least_squares",
    "load_series",
    "load_text",
    "mqar",
    "mqar_lookup",
    "nearest_neighbour",
    "ngram_features",
    "recall_stream",
    "recorded",
    "recorded_cpus",
    "regression",
    "regression_prompt",
    "seasonal_series",
    "series_windows",
    "split_series",
    "split_text",
    "ten_words",
    "trained",
    "zen_of_python",
]
