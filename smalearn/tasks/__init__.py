"""Synthetic tasks, drawn anew for every seed: what solves them is known, so what a model lacks can be measured.

`recall` asks for memory, `nearest` for a scoring function of full rank, `regression` for learning within the text.
"""

from smalearn.tasks.nearest import full_rank_head, nearest_neighbour
from smalearn.tasks.recall import IGNORE, MQAR_BLANK, mqar, mqar_lookup
from smalearn.tasks.regression import curriculum, least_squares, regression, regression_prompt

__all__ = [
    "IGNORE",
    "MQAR_BLANK",
    "curriculum",
    "full_rank_head",
    "least_squares",
    "mqar",
    "mqar_lookup",
    "nearest_neighbour",
    "regression",
    "regression_prompt",
]
