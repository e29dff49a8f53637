"""What the experiment with models of characters asks, and the sentence that each outcome allows.

Written before the runs. Each question is one comparison; where nothing differs, chance decides one in twenty.
"""

from smalearn.course.results import Question

__all__ = ["MARGIN", "QUESTIONS"]

MARGIN = 0.02
"""Nats a character: the least difference in loss that a sentence of `QUESTIONS` is about."""

QUESTIONS = (
    Question(
        "learned positions, 8|4|2|2",
        "learned positions, full",
        "With learned positions the split ends lower than standard attention, at fewer multiply-adds.",
        "With learned positions the split ends where standard attention does, at fewer multiply-adds.",
        "With learned positions the split ends higher than standard attention.",
    ),
    Question(
        "learned positions, 8|4|2|2",
        "learned positions, 8|4|2|2, shuffled",
        "It matters that the tokens of a block are near each other.",
        "Any tokens would do: that those of a block are near each other does not matter.",
        "Blocks of near tokens are worse than blocks of any.",
    ),
    Question(
        "RoPE, 8|4|2|2",
        "RoPE, full",
        "With RoPE, too, 8|4|2|2 ends lower than standard attention.",
        "With RoPE 8|4|2|2 ends where standard attention does, with two thirds of the keys.",
        "With RoPE 8|4|2|2 saves a third of the keys and costs loss.",
    ),
    Question(
        "RoPE, 2|2|4|8",
        "RoPE, full",
        "With RoPE, too, 2|2|4|8 ends lower than standard attention.",
        "With RoPE 2|2|4|8 ends where standard attention does, with less than a third of the keys.",
        "With RoPE 2|2|4|8 saves two thirds of the keys and costs loss.",
    ),
    Question(
        "RoPE, 8|4|2|2",
        "RoPE, 8|4|2|2, shuffled",
        "With RoPE, too, it matters that the tokens of a block are near each other.",
        "With RoPE any tokens would do in a block.",
        "With RoPE blocks of near tokens are worse than blocks of any.",
    ),
    Question(
        "ALiBi, full",
        "learned positions, 8|4|2|2",
        "A bias by distance, which costs nothing, gives more than the split does.",
        "A bias by distance, which costs nothing, gives what the split does.",
        "A bias by distance gives less than the split does.",
    ),
    Question(
        "RoPE, window 16",
        "RoPE, full",
        "In these steps a window of 16 is better than looking everywhere.",
        "In these steps a window of 16 is as good as looking everywhere.",
        "Looking further than 16 tokens back pays.",
    ),
    Question(
        "RoPE, full + window 16",
        "RoPE, window 16",
        "One layer that looks everywhere pays.",
        "A layer that looks everywhere adds nothing to windows.",
        "Two window layers are better than one window layer and one that looks everywhere.",
    ),
    Question(
        "equal parameters, full, convolution",
        "equal parameters, full",
        "A short convolution helps attention.",
        "A short convolution does not change attention.",
        "A short convolution harms attention.",
    ),
    Question(
        "equal parameters, Mamba-2",
        "equal parameters, full, convolution",
        "Mamba-2 ends lower than attention, even where attention has a short convolution.",
        "With a short convolution attention ends where Mamba-2 does.",
        "With a short convolution attention ends lower than Mamba-2.",
    ),
    Question(
        "equal parameters, Gated DeltaNet",
        "equal parameters, Mamba-2",
        "The delta rule ends lower than Mamba-2.",
        "The delta rule ends where Mamba-2 does.",
        "The delta rule ends higher than Mamba-2.",
    ),
    Question(
        "equal parameters, Mamba-3",
        "equal parameters, Mamba-2",
        "Mamba-3 ends lower than Mamba-2.",
        "Mamba-3 ends where Mamba-2 does.",
        "Mamba-3 ends higher than Mamba-2.",
    ),
    Question(
        "equal parameters, log-linear Mamba-2",
        "equal parameters, Mamba-2",
        "Log-linear Mamba-2, which has 14 % more parameters, ends lower than Mamba-2.",
        "Log-linear Mamba-2 ends where Mamba-2 does.",
        "Log-linear Mamba-2 ends higher than Mamba-2.",
    ),
)
"""Thirteen comparisons."""
