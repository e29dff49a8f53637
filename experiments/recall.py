"""How much does a state remember? Multi-query associative recall by models that differ in their mixer alone.

    python -m experiments.recall -o assets/results/recall.json

Every model has two blocks of the same dim and is trained with the same steps on the same batches. Softmax attention
keeps all keys and values; the others have a state of channels·N entries, whatever the length of the sequence. Seed 0
tries three rates for each model, the other seeds have the best of them and are reported; the examples that choose are
not those of the test.

`recall_questions` says what is asked, and which sentence each outcome allows. On two cores it takes about an hour.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from experiments.command import Experiment
from experiments.grid import each_seed, mean_seconds, means, model_lines, swept, trained
from experiments.variants import NormedMamba1, SequentialMamba2, UntiedMamba2, undecayed, unnormed
from smalearn.course.ch07.recall_questions import MARGIN, QUESTIONS
from smalearn.course.results import Question, answers
from smalearn.data import mqar
from smalearn.models import (
    Block,
    GatedDeltaNet,
    LinearAttention,
    LogLinearMamba2,
    Mamba1,
    Mamba2,
    Mamba3,
    Mixer,
    SequenceModel,
    ShortConvolution,
    SoftmaxAttention,
)
from smalearn.train import Plan, mean_loss

LONGEST = 256  # tokens of the longest text of `recall_stream`
MIXERS: dict[str, Callable[[int, int], tuple[Mixer, Mixer]]] = {
    "attention": lambda dim, state: (ShortConvolution(dim), SoftmaxAttention(dim)),
    "linear attention": lambda dim, state: _twice(LinearAttention, dim, state, head_dim=dim),
    "Mamba-1": lambda dim, state: _twice(Mamba1, dim, state),
    "Mamba-1, norm": lambda dim, state: _twice(NormedMamba1, dim, state),
    "Mamba-2": lambda dim, state: _twice(Mamba2, dim, state, head_dim=dim // 2),
    "Mamba-2, no norm": lambda dim, state: _twice(unnormed, dim, state, head_dim=dim // 2),
    "Mamba-2, in sequence": lambda dim, state: _twice(SequentialMamba2, dim, state, head_dim=dim // 2),
    "Mamba-2, no decay": lambda dim, state: _twice(undecayed, dim, state, head_dim=dim // 2),
    "Mamba-2, untied decay": lambda dim, state: _twice(UntiedMamba2, dim, state, head_dim=dim // 2),
    "Mamba-2, P = 1": lambda dim, state: _twice(Mamba2, dim, state, head_dim=1),
    "Gated DeltaNet": lambda dim, state: _twice(GatedDeltaNet, dim, state, head_dim=dim // 2, groups=1),
    "hybrid": lambda dim, state: (*_twice(Mamba2, dim, state, head_dim=dim // 2), SoftmaxAttention(dim)),
    "log-linear Mamba-2": lambda dim, state: _twice(LogLinearMamba2, dim, state, context=LONGEST, head_dim=dim // 2),
    "Mamba-3": lambda dim, state: _twice(Mamba3, dim, state, head_dim=dim // 2),
}
"""The mixers of the two blocks, from dim and N. All have dim channels, so equal N is equal size of the state.

But for log-linear Mamba-2, which has as many states as levels. The hybrid has a third block, which is attention.

Mamba-2 has two heads that share B and C. Linear attention has one: without decays, heads that share their keys are one.
"""


def _twice(mixer, dim, state, **sizes):
    return tuple(mixer(dim, state=state, expand=1, **sizes) for _ in range(2))


@dataclass(frozen=True)
class Setting:
    """One difficulty of the task, the models that face it, and how they are trained."""

    pairs: int  # K, to remember
    states: dict[str, tuple[int, ...]]  # for each mixer the N to try; (0,) where there is none
    length: int = 64  # T of the sequence
    vocabulary: int = 64  # V
    steps: int = 1200  # of training
    seeds: int = 6  # the first tries every rate, all others have the best
    batch: int = 32  # examples of a step
    dim: int = 64  # D
    lrs: tuple[float, ...] = (4e-3, 8e-3, 16e-3)  # the highest learning rates to try
    tests: int = 512  # examples of the validation, and of the test, which no step has seen

    def runs(self, _: int) -> dict[str, dict[str, object]]:
        """Every mixer with every size of its state at every rate, whatever the seed."""
        return {
            f"{mixer}, N = {state}, lr {lr:.2g}": {"mixer": mixer, "state": state, "lr": lr}
            for mixer, states in self.states.items()
            for state in states
            for lr in self.lrs
        }

    def texts(self, examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets (examples, T), the same for the same seed."""
        return mqar(examples, self.length, self.pairs, self.vocabulary, seed)


PARTS = tuple(name for name in MIXERS if name.startswith(("Mamba-1, ", "Mamba-2, ")))
FULL = {
    "8 pairs": Setting(
        pairs=8,
        states={"attention": (0,), "linear attention": (4,), "Mamba-1": (4,), "Mamba-2": (2, 4, 8, 16)}
        | dict.fromkeys(("Gated DeltaNet", *PARTS), (4,)),
    ),
    "16 pairs": Setting(
        pairs=16,
        states={"attention": (0,), "linear attention": (1, 2, 4), "Mamba-1": (16,), "Mamba-2": (4, 8, 16, 32)},
    ),
}
"""The recorded experiment: what does the size of a state buy, and what each part of the block, at equal size?"""

SMOKE = {
    "2 pairs": Setting(
        pairs=2,
        length=10,
        vocabulary=8,
        states={"attention": (0,), "linear attention": (2,), "Mamba-1": (2,), "Mamba-2": (1, 2)},
        steps=3,
        seeds=2,
        lrs=(4e-3, 8e-3),
        batch=4,
        dim=8,
        tests=8,
    )
}
"""The same in seconds, to see that it runs; its numbers say nothing."""


def build(mixer: str, state: int, setting: Setting, seed: int) -> SequenceModel:
    """A model as it is before its training, the same on every machine for the same seed."""
    torch.manual_seed(seed)
    return SequenceModel(setting.vocabulary, [Block(part) for part in MIXERS[mixer](setting.dim, state)])


def run(mixer: str, state: int, lr: float, setting: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train and test one model; validation and test are the same for all seeds.

    `entries` are those of the cache after the sequence, of both blocks; `losses` are means between two tests.
    """
    return trial(Setting(**setting), mixer, state, lr, seed)


def trial(setting: Setting, mixer: str, state: int, lr: float, seed: int) -> dict[str, object]:
    """`run` for a setting that is at hand."""
    model, plan = build(mixer, state, setting, seed), Plan(steps=setting.steps, lr=lr)
    test = setting.texts(setting.tests, seed=-1)
    began = time.perf_counter()
    record = trained(model, lambda step: setting.texts(setting.batch, seed=seed * 10**6 + step), plan, test)
    return {
        "mixer": mixer,
        "state": state,
        "lr": lr,
        "pairs": setting.pairs,
        "seed": seed,
        "entries": _entries(model, test[0][:1]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": means(record.losses, 4, max(1, plan.every // 10)),
        "accuracies": {str(step): value for step, value in record.accuracies.items()},
        "accuracy": record.accuracy,
        "validation_loss": round(mean_loss(model, *setting.texts(setting.tests, seed=-2)), 5),
        "seconds": round(time.perf_counter() - began, 2),
    }


@torch.no_grad()
def _entries(model, tokens):
    """Numbers that the model keeps of a sequence, conv states aside."""
    _, cache = model.prefill(tokens, model.start(1))
    parts = (getattr(part, "state", part) for part in cache.blocks)
    return sum(part.nbytes for part in parts) // 4


def table(result: Mapping[str, Mapping], questions: Sequence[Question] = QUESTIONS, margin: float = MARGIN) -> str:
    """A result for a terminal: for each model the accuracy of every seed, and the mean time; answers."""

    def line(_, runs):
        first = runs[0]
        model = f"{first['pairs']:2} pairs  {first['mixer']:21}  N = {first['state']:2}  {first['entries']:5} entries"
        model += f"  lr {first['lr']:.3f}"
        return f"{model}  {each_seed(runs, 'accuracy')}  {mean_seconds(runs)}"

    found = answers(questions, result["runs"], "accuracy", margin)
    return "\n".join([*model_lines(result["runs"], line), *found.splitlines()])


main = Experiment("recall", __doc__, FULL, SMOKE, run, table, jobs=swept)
"""The command: from its arguments, those of the process where None are given, to its exit status."""


if __name__ == "__main__":
    sys.exit(main())
