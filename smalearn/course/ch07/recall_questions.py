"""What the experiment with recall asks, and the sentence that each outcome allows.

Written before the runs. Each question is one comparison; where nothing differs, chance decides one in twenty. The
measure is the accuracy after these steps: what was learned, which bounds what a state can hold from below.
"""

from smalearn.course.results import Question

__all__ = ["MARGIN", "QUESTIONS"]

MARGIN = 0.05
"""The least difference in accuracy that a sentence is about."""

WHOLE = "8 pairs, Mamba-2, N = 4"
QUESTIONS = (
    Question(
        "8 pairs, Mamba-2, untied decay, N = 4",
        WHOLE,
        "A decay for each component of the state recalls less than one for the whole head.",
        "A decay for each component of the state recalls what one for the whole head does.",
        "A decay for each component of the state recalls more than one for the whole head.",
    ),
    Question(
        "8 pairs, Mamba-2, no decay, N = 4",
        WHOLE,
        "Without decay Mamba-2 recalls less.",
        "Without decay Mamba-2 recalls as much.",
        "Without decay Mamba-2 recalls more.",
    ),
    Question(
        "8 pairs, Mamba-2, no norm, N = 4",
        WHOLE,
        "Without the norm before its last projection Mamba-2 recalls less.",
        "Without the norm before its last projection Mamba-2 recalls as much.",
        "Without the norm before its last projection Mamba-2 recalls more.",
    ),
    Question(
        "8 pairs, Mamba-2, in sequence, N = 4",
        WHOLE,
        "With B, C and dt made from the convolved input, as in Mamba, Mamba-2 recalls less.",
        "With B, C and dt made from the convolved input, as in Mamba, Mamba-2 recalls as much.",
        "With B, C and dt made from the convolved input, as in Mamba, Mamba-2 recalls more.",
    ),
    Question(
        "8 pairs, Mamba-2, P = 1, N = 4",
        WHOLE,
        "With a head for each channel Mamba-2 recalls less.",
        "With a head for each channel Mamba-2 recalls as much.",
        "With a head for each channel Mamba-2 recalls more.",
    ),
    Question(
        "8 pairs, Mamba-1, N = 4",
        WHOLE,
        "At equal state Mamba recalls less than Mamba-2 after the same steps.",
        "At equal state Mamba recalls what Mamba-2 does after the same steps.",
        "At equal state Mamba recalls more than Mamba-2 after the same steps.",
    ),
    Question(
        "8 pairs, Mamba-1, norm, N = 4",
        "8 pairs, Mamba-1, N = 4",
        "The norm alone makes Mamba recall less.",
        "The norm alone does not change what Mamba recalls.",
        "The norm alone makes Mamba recall more.",
    ),
    Question(
        "8 pairs, linear attention, N = 4",
        WHOLE,
        "Linear attention recalls less than Mamba-2 of equal state.",
        "Linear attention recalls what Mamba-2 of equal state does.",
        "Linear attention recalls more than Mamba-2 of equal state.",
    ),
    Question(
        "8 pairs, Gated DeltaNet, N = 4",
        WHOLE,
        "The delta rule recalls less than Mamba-2 of equal state.",
        "The delta rule recalls what Mamba-2 of equal state does.",
        "The delta rule recalls more than Mamba-2 of equal state.",
    ),
    Question(
        "8 pairs, Mamba-2, N = 16",
        WHOLE,
        "A state four times as large recalls less of 8 pairs.",
        "A state four times as large recalls as much of 8 pairs.",
        "A state four times as large recalls more of 8 pairs.",
    ),
    Question(
        "16 pairs, Mamba-2, N = 32",
        "16 pairs, Mamba-2, N = 4",
        "A state eight times as large recalls less of 16 pairs.",
        "A state eight times as large recalls as much of 16 pairs.",
        "A state eight times as large recalls more of 16 pairs.",
    ),
    Question(
        "16 pairs, linear attention, N = 4",
        "16 pairs, linear attention, N = 1",
        "With N = 4 linear attention recalls less of 16 pairs than with N = 1.",
        "With N = 4 linear attention recalls what it does with N = 1.",
        "With N = 4 linear attention recalls more of 16 pairs than with N = 1.",
    ),
)
"""Twelve comparisons, ten of them with 8 pairs."""
