"""What the experiment with recall in growing texts asks, and the sentence that each outcome allows.

Written before the runs. Twelve comparisons; where nothing differs, chance decides one in twenty.
"""

from smalearn.course.results import Question

MARGIN = 0.02
"""The least difference in accuracy that a sentence is about."""

PAIRS = (
    ("log-linear Mamba-2", "Mamba-2", 8),
    ("log-linear Mamba-2", "attention", 0),
    ("Mamba-3", "Mamba-2", 8),
    ("hybrid", "attention", 0),
)
QUESTIONS = tuple(
    Question(
        f"{length} tokens, {one}, N = 8",
        f"{length} tokens, {other}, N = {state}",
        f"In {length} tokens {one} recalls less than {other}.",
        f"In {length} tokens {one} recalls what {other} does.",
        f"In {length} tokens {one} recalls more than {other}.",
    )
    for length in (64, 128, 256)
    for one, other, state in PAIRS
)
"""The same four comparisons at each length of the text."""
