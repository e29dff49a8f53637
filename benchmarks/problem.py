"""Problems of the benchmarks: seeded inputs, and the right answer in float64."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from smalearn.linear_attention import linear_attention_recurrent

SEGMENT = 64  # tokens of the recurrence between two states that its backward keeps

DECAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gate": lambda z: F.logsigmoid(z + 3),
    "5 % at -1e4, others -0.01": lambda z: torch.where(z > 1.645, -1e4, -0.01),
    "mean -2": lambda z: -2 * (1 + z / 4).abs(),
    "mean -5": lambda z: -5 * (1 + z / 4).abs(),
    "mean -20": lambda z: -20 * (1 + z / 4).abs(),
}
"""log_a of independent standard normal z: that of a learned gate, resets among weak decays, and ever stronger ones."""


def way(backward: bool) -> str:
    """Name of what is timed."""
    return "forward + backward" if backward else "forward"


def operands(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The problem's operands as they are."""
    return tensors


def recurrence(X: torch.Tensor, log_a: torch.Tensor | None, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """Y of the recurrence: the definition that implementations are compared with."""
    return by_segments(linear_attention_recurrent, C, B, X, log_a)


def by_segments(function: Callable[..., tuple], *operands: torch.Tensor | None) -> torch.Tensor:
    """Y of a function of operands (batch, heads, T, ...) and an initial state, which returns Y and the next state.

    It goes by segments, because a backward through all states would not fit the memory.
    """
    outputs, state = [], None
    for start in range(0, operands[0].shape[2], SEGMENT):
        segment = (x if x is None else x[:, :, start : start + SEGMENT] for x in operands)
        y, state = checkpoint(function, *segment, state, use_reentrant=False)
        outputs.append(y)
    return torch.cat(outputs, 2)


@dataclass(frozen=True)
class Problem:
    """State space duality Y of (X, log_a, B, C); with B and C of every head, linear attention of (C, B, X, log_a)."""

    length: int = 2048  # T
    heads: int = 24  # how many
    head_dim: int = 64  # P
    state: int = 128  # N
    decay: str | None = "gate"  # a name of `DECAYS`, or None for no decay
    backward: bool = False  # whether the gradients are part of the answer
    shared: bool = True  # whether all heads have the same B and C
    views: bool = False  # whether operands are views of tensors (batch, T, heads, ...), as projections give them
    batch: int = 1  # sequences
    dtype: torch.dtype = torch.float32  # of X, B and C; log_a is float32
    device: str = "cpu"  # as torch names it
    seed: int = 0  # of the draw

    @property
    def title(self) -> str:
        """The sizes, and whatever is unusual."""
        decay = {None: ", no decay", "gate": ""}.get(self.decay, f", decay {self.decay}")
        dtype = "" if self.dtype == torch.float32 else f", {str(self.dtype).removeprefix('torch.')}"
        batch = f"batch {self.batch}, " if self.batch > 1 else ""
        return f"{batch}T = {self.length}, {self.heads} heads, P = {self.head_dim}, N = {self.state}{decay}{dtype}"

    def __str__(self) -> str:
        return f"{self.title}: {way(self.backward)}"

    def sizes(self) -> dict[str, object]:
        """What a record says of it."""
        return asdict(self) | {"dtype": str(self.dtype)}

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

    def oracle(
        self,
        exact: Callable[..., torch.Tensor] = recurrence,
        arguments: Callable[..., Sequence[torch.Tensor | None]] = operands,
        heads: int | None = None,
    ) -> list[torch.Tensor]:
        """Y in float64, and for a backward the gradients of the arguments; of the first so many heads."""
        tensors, dY = self.inputs()
        tensors = [x if x is None else x[:, :heads] for x in tensors]
        leaves = [x if x is None else x.double().detach().requires_grad_() for x in arguments(*tensors)]
        present = [x for x in leaves if x is not None]
        Y = exact(*leaves)
        grads = torch.autograd.grad(Y, present, dY[:, :heads].to(Y)) if self.backward else ()
        return [Y.detach(), *grads]
