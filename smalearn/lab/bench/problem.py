"""What a contest asks for: seeded inputs, the right answer, and how far from it an answer may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from smalearn.linear_attention import linear_attention_recurrent
from smalearn.ssd import ssd_recurrent
from smalearn.testing import TOLERANCE, random_tensors, relative_rms

__all__ = ["DECAYS", "Problem", "SSDProblem", "job", "judge"]

SEGMENT = 64  # tokens of the oracle between two states that its backward keeps


@dataclass(frozen=True)
class Problem:
    """Causal linear attention in float32, batch 1, with or without a decay per token, with or without its gradients."""

    length: int = 2048
    heads: int = 8
    features: int = 64
    head_dim: int = 64
    decay: bool = True
    backward: bool = False

    @property
    def kind(self) -> str:
        """What a contestant must be able to do."""
        return "one decay per token" if self.decay else "no decay"

    def __str__(self) -> str:
        return f"{'forward + backward' if self.backward else 'forward'}, {self.kind}"

    def inputs(self) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        """Q, K (1, heads, T, N), V (1, heads, T, P), log_a (1, heads, T) or None; and dY (1, heads, T, P)."""
        rows = (1, self.heads, self.length)
        sizes = (self.features, self.features, self.head_dim, self.head_dim)
        Q, K, V, dY, gate = random_tensors([*((*rows, size) for size in sizes), rows], dtype=torch.float32)
        return [Q * self.features**-0.5, K, V, DECAYS["gate"](gate) if self.decay else None], dY

    def oracle(self) -> list[torch.Tensor]:
        """Y, and for a backward the gradients of Q, K, V and log_a: the recurrence in float64."""
        return _oracle(self, linear_attention_recurrent)


DECAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gate": lambda z: F.logsigmoid(z + 3),
    "5 % at -1e4, others -0.01": lambda z: torch.where(z > 1.645, -1e4, -0.01),
    "mean -2": lambda z: -2 * (1 + z / 4).abs(),
    "mean -5": lambda z: -5 * (1 + z / 4).abs(),
    "mean -20": lambda z: -20 * (1 + z / 4).abs(),
}
"""log_a of independent standard normal z: that of a learned gate, resets among weak decays, and ever stronger ones."""


@dataclass(frozen=True)
class SSDProblem:
    """State space duality in float32, batch 1, all heads with the same B and C, with or without its gradients."""

    length: int = 2048
    heads: int = 24
    head_dim: int = 64
    state: int = 128
    decay: str = "gate"
    backward: bool = False

    kind: ClassVar[str] = "one decay per token"

    def __str__(self) -> str:
        sizes = f"T = {self.length}, {self.heads} heads, P = {self.head_dim}, N = {self.state}"
        return f"{sizes}: {'forward + backward' if self.backward else 'forward'}"

    def inputs(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """X (1, heads, T, P), log_a (1, heads, T), B, C (1, 1, T, N); and dY (1, heads, T, P)."""
        rows = (1, self.heads, self.length)
        maps = (1, 1, self.length, self.state)
        shapes = [(*rows, self.head_dim), (*rows, self.head_dim), rows, maps, maps]
        X, dY, z, B, C = random_tensors(shapes, dtype=torch.float32)
        return [X, DECAYS[self.decay](z), B, C * self.state**-0.5], dY

    def oracle(self) -> list[torch.Tensor]:
        """Y, and for a backward the gradients of X, log_a, B and C: the recurrence in float64."""
        return _oracle(self, ssd_recurrent)


def _oracle(problem, form):
    """What a recurrent form answers in float64, by segments: a backward through all states would not fit the memory."""
    arguments, dY = problem.inputs()
    parts = list(zip(*(x.double().split(SEGMENT, 2) for x in (*arguments, dY) if x is not None), strict=True))
    outputs, states = [], [None]
    for *inputs, _ in parts:
        y, state = form(*inputs, initial_state=states[-1])
        outputs.append(y)
        states.append(state)
    if not problem.backward:
        return [torch.cat(outputs, 2)]
    dstate = states[0] = torch.zeros_like(states.pop())
    gradients = []
    for (*inputs, dy), state in zip(reversed(parts), reversed(states), strict=True):
        leaves = [x.detach().requires_grad_() for x in (*inputs, state)]
        *found, dstate = torch.autograd.grad(form(*leaves[:-1], initial_state=leaves[-1]), leaves, (dy, dstate))
        gradients.append(found)
    return [torch.cat(outputs, 2), *(torch.cat(found[::-1], 2) for found in zip(*gradients, strict=True))]


def job(run: Callable, arguments: Sequence[torch.Tensor | None], dY: torch.Tensor) -> Callable[[bool], list]:
    """A function of `backward` that computes Y, and the gradients of all tensors too if it is true."""
    arguments = [None if x is None else x.detach().requires_grad_() for x in arguments]
    leaves = [x for x in arguments if x is not None]

    def compute(backward: bool) -> list[torch.Tensor]:
        with torch.set_grad_enabled(backward):
            Y = run(*arguments)
        return [Y.detach(), *(torch.autograd.grad(Y, leaves, dY) if backward else ())]

    return compute


def judge(answers: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[float, bool]:
    """The largest relative RMS error of the answers, and whether all are within the tolerance of their dtype."""
    errors = [relative_rms(*pair) for pair in zip(answers, expected, strict=True)]
    passed = all(error <= TOLERANCE[x.dtype] for error, x in zip(errors, answers, strict=True))
    return max(errors, key=lambda error: (error != error, error)), passed
