"""Problems of the benchmarks: seeded inputs, the right answer, and how far from it an answer may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from smalearn.linear_attention import linear_attention_recurrent
from smalearn.testing import TOLERANCE, relative_rms

__all__ = ["DECAYS", "Problem", "judge", "recurrence"]

SEGMENT = 64  # tokens of the oracle between two states that its backward keeps

DECAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gate": lambda z: F.logsigmoid(z + 3),
    "5 % at -1e4, others -0.01": lambda z: torch.where(z > 1.645, -1e4, -0.01),
    "mean -2": lambda z: -2 * (1 + z / 4).abs(),
    "mean -5": lambda z: -5 * (1 + z / 4).abs(),
    "mean -20": lambda z: -20 * (1 + z / 4).abs(),
}
"""log_a of independent standard normal z: that of a learned gate, resets among weak decays, and ever stronger ones."""


@dataclass(frozen=True)
class Problem:
    """State space duality Y of (X, log_a, B, C); with B and C of every head, linear attention of (C, B, X, log_a).

    Args:
        length: T.
        heads: how many.
        head_dim: P.
        state: N.
        decay: a name of `DECAYS`, or None for no decay.
        backward: whether the gradients are part of the answer.
        shared: whether all heads have the same B and C.
        views: whether operands are views of tensors (batch, T, heads, ...), as projections give them.
        batch: sequences.
        dtype: of X, B and C; log_a is float32.
        device: as torch names it.
        seed: of the draw.
    """

    length: int = 2048
    heads: int = 24
    head_dim: int = 64
    state: int = 128
    decay: str | None = "gate"
    backward: bool = False
    shared: bool = True
    views: bool = False
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0

    def __str__(self) -> str:
        way = "forward + backward" if self.backward else "forward"
        if not self.shared:
            return f"{way}, {'one decay per token' if self.decay else 'no decay'}"
        return f"T = {self.length}, {self.heads} heads, P = {self.head_dim}, N = {self.state}: {way}"

    def sizes(self) -> dict[str, object]:
        """The sizes, as records name them."""
        if not self.shared:
            names = {"length": self.length, "heads": self.heads, "features": self.state, "head_dim": self.head_dim}
            return names | {"decay": self.decay is not None, "backward": self.backward}
        return {name: getattr(self, name) for name in ("length", "heads", "head_dim", "state", "decay", "backward")}

    def inputs(self) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        """X (batch, heads, T, P), log_a (batch, heads, T) or None, B, C (batch, heads or 1, T, N); and dY like X."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        maps = (1 if self.shared else self.heads, self.state)

        def drawn(*sizes, dtype=self.dtype):
            shape = self.batch, self.length, *sizes
            return torch.randn(shape, generator=generator, device=self.device, dtype=dtype)

        X, dY, B, C = (drawn(*sizes) for sizes in 2 * [(self.heads, self.head_dim)] + 2 * [maps])
        log_a = DECAYS[self.decay](drawn(self.heads, dtype=torch.float32)) if self.decay else None
        heads_first = [x if x is None else x.transpose(1, 2) for x in (X, log_a, B, C.mul_(self.state**-0.5), dY)]
        *operands, dY = heads_first if self.views else [x if x is None else x.contiguous() for x in heads_first]
        return operands, dY

    def oracle(self) -> list[torch.Tensor]:
        """Y, and for a backward the gradients of the operands: the recurrence in float64.

        It goes by segments, because a backward through all states would not fit the memory.
        """
        operands, dY = self.inputs()
        parts = [
            [x if x is None else x[:, :, start : start + SEGMENT].double() for x in (*operands, dY)]
            for start in range(0, self.length, SEGMENT)
        ]
        outputs, states = [], [None]
        for *segment, _ in parts:
            y, state = _recurrent(*segment, states[-1])
            outputs.append(y)
            states.append(state)
        if not self.backward:
            return [torch.cat(outputs, 2)]
        dstate = states[0] = torch.zeros_like(states.pop())
        gradients = []
        for (*segment, dy), state in zip(reversed(parts), reversed(states), strict=True):
            leaves = [None if x is None else x.detach().requires_grad_() for x in (*segment, state)]
            present = [x for x in leaves if x is not None]
            *grads, dstate = torch.autograd.grad(_recurrent(*leaves), present, (dy, dstate))
            gradients.append(grads)
        return [torch.cat(outputs, 2), *(torch.cat(grads[::-1], 2) for grads in zip(*gradients, strict=True))]


def _recurrent(X, log_a, B, C, state):
    return linear_attention_recurrent(C, B, X, log_a, initial_state=state)


def recurrence(
    X: torch.Tensor, log_a: torch.Tensor | None, B: torch.Tensor, C: torch.Tensor, state: torch.Tensor | None = None
) -> torch.Tensor:
    """Y of the recurrence: the definition that every implementation is compared with."""
    return _recurrent(X, log_a, B, C, state)[0]


def judge(answers: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[float, bool]:
    """The largest relative RMS error of the answers, and whether all are within the tolerance of their dtype."""
    errors = [relative_rms(*pair) for pair in zip(answers, expected, strict=True)]
    passed = all(error <= TOLERANCE[x.dtype] for error, x in zip(errors, answers, strict=True))
    return max(errors, key=lambda error: (error != error, error)), passed
