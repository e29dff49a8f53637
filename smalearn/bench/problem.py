"""What a contest asks for: seeded inputs, the right answer, and how far from it an answer may be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from smalearn.bench.contestants import Contestant
from smalearn.linear_attention import linear_attention_recurrent
from smalearn.testing import TOLERANCE, random_tensors, relative_rms

__all__ = ["Problem", "job", "judge", "native", "oracle"]


@dataclass(frozen=True)
class Problem:
    """Causal linear attention in float32, batch 1, with or without a decay per token, with or without its gradients."""

    length: int = 2048
    heads: int = 8
    features: int = 64
    head_dim: int = 64
    decay: bool = True
    backward: bool = False

    def __str__(self) -> str:
        what = "forward + backward" if self.backward else "forward"
        return f"{what}, {'one decay per token' if self.decay else 'no decay'}"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Q, K (1, heads, T, N), V, dY (1, heads, T, P), and log_a (1, heads, T) if there is decay."""
        rows = (1, self.heads, self.length)
        sizes = (self.features, self.features, self.head_dim, self.head_dim)
        Q, K, V, dY, gate = random_tensors([*((*rows, size) for size in sizes), rows], dtype=torch.float32)
        scale = self.features**-0.5
        return Q * scale, K, V, dY, *([F.logsigmoid(gate + 3)] if self.decay else [])


def oracle(problem: Problem) -> list[torch.Tensor]:
    """Y, and for a backward the gradients of Q, K, V and log_a: the recurrence in float64, one head after the other."""
    heads = []
    for head in range(problem.heads):
        run = job(
            lambda *inputs: linear_attention_recurrent(*inputs)[0], [x[:, head].double() for x in problem.inputs()]
        )
        heads.append(run(problem.backward))
    return [torch.stack(parts, 1) for parts in zip(*heads, strict=True)]


def job(run: Callable, inputs: Sequence[torch.Tensor]) -> Callable[[bool], list[torch.Tensor]]:
    """A function of `backward` that computes Y, and the gradients too if it is true."""
    Q, K, V, dY, *gate = inputs
    leaves = [x.detach().requires_grad_() for x in (Q, K, V, *gate)]
    arguments = leaves if gate else [*leaves, None]

    def compute(backward: bool) -> list[torch.Tensor]:
        with torch.set_grad_enabled(backward):
            Y = run(*arguments)
        return [Y.detach(), *(torch.autograd.grad(Y, leaves, dY) if backward else ())]

    return compute


def native(contestant: Contestant, x: torch.Tensor) -> torch.Tensor:
    """A tensor (batch, heads, T, ...) in the contestant's layout, contiguous; its own inverse."""
    return x.transpose(1, 2).contiguous() if contestant.time_first else x


def judge(answers: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> tuple[float, bool]:
    """The largest relative RMS error of the answers, and whether all are within the tolerance of their dtype."""
    errors = [relative_rms(*pair) for pair in zip(answers, expected, strict=True)]
    passed = all(error <= TOLERANCE[x.dtype] for error, x in zip(errors, answers, strict=True))
    return max(errors, key=lambda error: (error != error, error)), passed
