"""What the experiment with in-context regression asks, and the sentence that each outcome allows.

Written before the runs that are reported; single runs of seed 0 had been seen. Each question is one comparison; where
nothing differs, chance decides one in twenty. The measure is the squared error at the last point, where the answer is
determined by the pairs before it; whoever answers 0 has 1.
"""

from smalearn.course.results import Question

MARGIN = 0.03
"""The least difference in error that a sentence is about."""

SUBJECTS = {
    "1 × low rank 32": "one head of full rank is",
    "8 × BTT 1": "eight heads that are block tensor trains are",
    "4 × MLR 4|4": "four heads of two levels are",
}


def _beside_narrow(layers, model):
    said = f"In {layers} layers {SUBJECTS[model]}"
    return Question(
        f"{layers} layers, D = 32, {model}",
        f"{layers} layers, D = 32, 8 × low rank 4",
        f"{said} less wrong than eight of rank 4.",
        f"{said} as wrong as eight of rank 4.",
        f"{said} more wrong than eight of rank 4.",
    )


QUESTIONS = (
    *(_beside_narrow(layers, model) for layers in (2, 4) for model in SUBJECTS),
    Question(
        "4 layers, D = 32, 8 × low rank 4",
        "2 layers, D = 32, 8 × low rank 4",
        "Two more layers make eight heads of rank 4 less wrong.",
        "Two more layers change nothing for eight heads of rank 4.",
        "Two more layers make eight heads of rank 4 more wrong.",
    ),
)
"""Seven comparisons."""
