"""What every sequence mixer of a model can do, and the two small layers that several of them share."""

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from smalearn._checks import ShapeError, check_count, check_dtypes, check_shapes

__all__ = ["CausalConvolution", "GatedRMSNorm", "Mixer", "divide"]


class Mixer(nn.Module):
    """A causal layer over time: all tokens at once for training, one after the other with a cache for decoding.

    Both are one function: `prefill` on T tokens, or T calls of `step`, give the same outputs and the same cache. A
    cache is a tuple of tensors that nobody overwrites, so an old one can be decoded from again.

    A mixer has `dim`, the size of a token; `Cache`, the class of its cache; `cache_shapes`; `prefill`; and, where one
    token can be had for less than `prefill` takes, `step`.
    """

    dim: int
    Cache: ClassVar[type[tuple]]

    def cache_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """For each tensor of a cache its trailing axes, None where it grows with the number of tokens."""
        raise NotImplementedError

    def prefill(self, x: torch.Tensor, cache: tuple) -> tuple[torch.Tensor, tuple]:
        """Outputs for x (..., T, D), which follows the tokens of the cache, and the cache after it."""
        raise NotImplementedError

    def step(self, x: torch.Tensor, cache: tuple) -> tuple[torch.Tensor, tuple]:
        """Output (..., D) for one more token x (..., D), and the cache after it."""
        self.check("step", x, cache, time="")
        y, cache = self.prefill(x[..., None, :], cache)
        return y[..., 0, :], cache

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (..., T, D) for x (..., T, D), nothing before it.

        Raises:
            ShapeError: x has no axis of time, or its last axis is not `dim`.
            ValueError: x and the weights differ in dtype or device.
        """
        self.check("forward", x)
        return self.prefill(x, self.start(*x.shape[:-2]))[0]

    def start(self, *leading: int) -> tuple:
        """The cache before the first token.

        Args:
            *leading: sizes of the leading axes, such as the batch.

        Returns:
            Zeros of the shapes that `cache_shapes` says, in the dtype of the weights; float32 for half precision.
        """
        weight = next(self.parameters())
        wide = torch.promote_types(weight.dtype, torch.float32)
        shapes = {name: (*leading, *(size or 0 for size in sizes)) for name, sizes in self.cache_shapes().items()}
        return self.Cache(**{name: weight.new_zeros(shape, dtype=wide) for name, shape in shapes.items()})

    def check(self, function: str, x: torch.Tensor, cache: tuple | None = None, time: str = "t") -> None:
        """Check x (..., T, D), without T if `time` is empty, against the weights and the cache.

        Raises:
            ShapeError: naming function, argument, expected and got.
            ValueError: dtype or device differ.
        """
        function = f"{type(self).__name__}.{function}"
        check_dtypes(function, {"weights": next(self.parameters()), "x": x})
        check_shapes(function, {"x": (x, time + "d")})
        if x.shape[-1] != self.dim:
            raise ShapeError(f"{function}: axis 'd' of x is {x.shape[-1]}, expected {self.dim}")
        leading = x.shape[: x.ndim - len(time) - 1]
        for name, sizes in self.cache_shapes().items() if cache is not None else ():
            got = tuple(getattr(cache, name).shape)
            wanted = (*leading, *sizes)
            if len(got) != len(wanted) or any(w not in (None, g) for w, g in zip(wanted, got, strict=True)):
                shown = ", ".join("any" if size is None else str(size) for size in wanted)
                raise ShapeError(f"{function}: cache.{name} has shape {got}, expected ({shown})")


class CausalConvolution(nn.Module):
    """Depthwise causal convolution: every channel is a weighted sum of its own last few values.

    y_t = bias + Σ_k weight[k] x_(t - K + 1 + k), with K = `length` and zeros before the first token.

    Args:
        channels: number of channels.
        length: K ≥ 1, how many tokens a channel sees, its own included.

    Cost:
        K multiply-adds per token and channel; the window kept for decoding has K - 1 tokens.
    """

    def __init__(self, channels: int, length: int):
        super().__init__()
        bound = check_count("CausalConvolution", "length", length) ** -0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, length).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))

    def prefill(self, x: torch.Tensor, window: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs for x (..., T, channels) after those of `window` (..., K - 1, channels); the next window."""
        length, taps = x.shape[-2], self.weight[:, 0].unbind(-1)
        x = torch.cat([window.to(x.dtype), x], -2)
        # Shifted copies, not conv1d: faster on a CPU, and it is the formula.
        y = self.bias + sum(tap * x[..., k : k + length, :] for k, tap in enumerate(taps))
        return y, x[..., length:, :]

    def step(self, x: torch.Tensor, window: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (..., channels) for one more token, and the next window."""
        y, window = self.prefill(x[..., None, :], window)
        return y[..., 0, :], window


class GatedRMSNorm(nn.Module):
    """Root-mean-square normalisation after a gate: weight · u / rms(u) with u = y · SiLU(z).

    Args:
        channels: size of the last axis.
        groups: parts of the channels that are normalised for themselves, so that a block can be cut into them.

    Raises:
        ValueError: groups does not divide channels.

    Source:
        Dao and Gu 2024 (Mamba-2), section 7.1; the groups are those of section 8.1, tensor parallelism.
    """

    def __init__(self, channels: int, groups: int = 1):
        super().__init__()
        divide("GatedRMSNorm", "channels", channels, "groups", groups)
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Both (..., channels), the gate z before its nonlinearity."""
        u = (y * functional.silu(z)).unflatten(-1, (self.groups, -1))
        return self.weight * functional.rms_norm(u, u.shape[-1:], eps=1e-5).flatten(-2)


def divide(function: str, whole: str, size: int, part: str, count: int) -> int:
    """The quotient of two sizes; ValueError if `count`, called `part`, does not divide `size`, called `whole`."""
    check_count(function, whole, size)
    check_count(function, part, count)
    if size % count:
        raise ValueError(f"{function}: {part} {count} does not divide {whole} {size}")
    return size // count
