"""What the benchmark of the GPU programs asks for: inputs on a device, and the least that any program must do."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from smalearn.lab.bench.problem import DECAYS, SSDProblem

__all__ = ["WAYS", "DeviceProblem", "floor", "work"]

WAYS = ("forward", "backward", "both")
CHUNK_LEN = 64  # of the floor: with fewer tokens the products of a chunk do not fill matrix units


@dataclass(frozen=True)
class DeviceProblem(SSDProblem):
    """State space duality on a device, all heads with the same B and C, with gradients."""

    batch: int = 1
    backward: bool = True
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    seed: int = 0

    def __str__(self) -> str:
        sizes = f"b{self.batch} h{self.heads} p{self.head_dim} n{self.state} T{self.length}"
        return f"{sizes} {str(self.dtype).removeprefix('torch.')}"

    def inputs(self) -> tuple[list[torch.Tensor], torch.Tensor]:
        """X (batch, heads, T, P), log_a (batch, heads, T) in float32, B, C (batch, 1, T, N); and dY like X.

        All are views of tensors (batch, T, heads, ...), as projections give them.
        """
        generator = torch.Generator(self.device).manual_seed(self.seed)

        def drawn(*sizes, dtype=self.dtype):
            shape = self.batch, self.length, *sizes
            return torch.randn(shape, generator=generator, device=self.device, dtype=dtype)

        X, dY, B, C = (drawn(*size) for size in 2 * [(self.heads, self.head_dim)] + 2 * [(1, self.state)])
        log_a = DECAYS[self.decay](drawn(self.heads, dtype=torch.float32))
        X, log_a, B, C, dY = (x.transpose(1, 2) for x in (X, log_a, B, C.mul_(self.state**-0.5), dY))
        return [X, log_a, B, C], dY


def work(problem: DeviceProblem) -> dict[str, tuple[float, float]]:
    """Bytes and flops of each way that no program can do without, if it works in chunks of 64.

    Operands are read once and results are written once, log_a in float32. For each token and head with Q = 64, the
    forward has 2·Q·P + 4·N·P flops and 2·Q·N more for each group of heads; the backward, which must compute
    states and scores again, 4·Q·P + 10·N·P and 6·Q·N.

    Args:
        problem: its sizes.

    Returns:
        For each of `WAYS` (bytes, flops).
    """
    tokens = problem.batch * problem.length
    rows, P, N = tokens * problem.heads, problem.head_dim, problem.state
    item = problem.dtype.itemsize
    decays, values, maps = 4 * rows, item * rows * P, item * 2 * tokens * N
    forward = decays + 2 * values + maps, 2 * CHUNK_LEN * (rows * P + tokens * N) + 4 * rows * N * P
    backward = 2 * decays + 3 * values + 2 * maps, CHUNK_LEN * (4 * rows * P + 6 * tokens * N) + 10 * rows * N * P
    return dict(zip(WAYS, [forward, backward, tuple(map(sum, zip(forward, backward, strict=True)))], strict=True))


def floor(problem: DeviceProblem, rates: Mapping[str, float]) -> dict[str, float]:
    """The seconds of each way under which nothing can come: those of its bytes, or those of its flops.

    Args:
        problem: its sizes.
        rates: `copy` in bytes and `gemm` in flops a second, as measured.

    Returns:
        For each of `WAYS` the larger of the two.
    """
    return {way: max(size / rates["copy"], flops / rates["gemm"]) for way, (size, flops) in work(problem).items()}
