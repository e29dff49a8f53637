"""What does a state for each level of a tree buy? Recall while the text goes on, in texts of growing length.

    python -m experiments.recall_stream -o assets/results/recall_stream.json

A text of T tokens stores T / 4 pairs, and asks for each doubling of the distance about as often. Models and their
training are those of `recall`: seed 0 tries three rates for each model and length, the other seeds have the best of
them and are reported; the examples that choose are not those of the test.

`recall_stream_questions` says what is asked, and which sentence each outcome allows. On two cores it takes about an
hour and a half.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from experiments import recall
from experiments.command import Experiment
from experiments.grid import swept
from experiments.recall_stream_questions import MARGIN, QUESTIONS
from smalearn.data import recall_stream

VALUES = 16


@dataclass(frozen=True)
class Setting(recall.Setting):
    """A length of the text, with the arguments of `recall.Setting`; its vocabulary has 16 values, the rest is keys."""

    def texts(self, examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (examples, T), the same for the same seed."""
        return recall_stream(examples, self.length, self.vocabulary - 1 - VALUES, VALUES, seed)


STATES = {"attention": (0,)} | dict.fromkeys(("Mamba-2", "log-linear Mamba-2", "Mamba-3", "hybrid"), (8,))
FULL = {
    f"{length} tokens": Setting(pairs=length // 4, states=STATES, length=length, vocabulary=81, steps=800)
    for length in (64, 128, recall.LONGEST)
}
"""The recorded experiment: only the length grows, and with it the number of pairs."""

SMOKE = {
    "8 tokens": Setting(
        pairs=2, states=STATES, length=8, vocabulary=20, steps=3, seeds=2, lrs=(4e-3, 8e-3), batch=4, dim=8, tests=8
    )
}
"""The same in seconds, to see that it runs; its numbers say nothing."""


def run(mixer: str, state: int, lr: float, setting: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train and test one model; arguments, results and errors are those of `recall.run`."""
    return recall.trial(Setting(**setting), mixer, state, lr, seed)


table = partial(recall.table, questions=QUESTIONS, margin=MARGIN)
"""A result for a terminal, as in `recall`, with the questions of this experiment."""

main = Experiment("recall_stream", __doc__, FULL, SMOKE, run, table, jobs=swept)
"""The command: from its arguments, those of the process where None are given, to its exit status."""


if __name__ == "__main__":
    sys.exit(main())
