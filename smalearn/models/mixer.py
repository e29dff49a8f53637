"""The contract of all sequence mixers of a model, and the two small layers that several of them share."""

from typing import NamedTuple, Protocol

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn._checks import (
    ShapeError,
    check_count,
    check_counts,
    check_dtypes,
    check_no_nan,
    check_shapes,
    check_tensor,
    check_type,
)

__all__ = ["Cache", "CausalConvolution", "GatedRMSNorm", "Mixer", "RecurrentCache", "RecurrentMixer", "divide"]


class Cache(Protocol):
    """State of a mixer between two calls. No call changes a cache: an old one can be decoded from again."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""


class Mixer(nn.Module):
    """A causal layer over time: all tokens at once for training, one after the other with a cache for decoding.

    Both are one function: `prefill` on T tokens, or T calls of `step`, give the same outputs and the same cache. A NaN
    in a token reaches the outputs from there on; with `prefill` it may reach earlier ones too, as far as the function
    says that mixes the tokens. Where decays are made from the tokens, a NaN in one is a ValueError on a CPU.

    A mixer has `dim`, the size of a token; `start`; `check_cache`; `prefill`; and, where one token can be had for less
    than `prefill` takes, `step`.
    """

    dim: int
    makes_decays = False

    def start(self, *leading: int) -> Cache:
        """The cache before the first token, for the given leading axes, such as the batch."""
        raise NotImplementedError

    def check_cache(self, function: str, cache: Cache, leading: tuple[int, ...]) -> None:
        """Check that a cache is for these leading axes.

        Raises:
            ShapeError: naming function, expected and got.
        """
        raise NotImplementedError

    def prefill(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        """Read all tokens at once.

        Args:
            x: (..., T, D), which follows the tokens of the cache.
            cache: from `start`, `prefill` or `step`.

        Returns:
            y (..., T, D), and the cache after x.

        Raises:
            ShapeError: x or the cache does not fit the mixer.
            ValueError: dtype or device differ from the weights'.
        """
        raise NotImplementedError

    def step(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        """Output (..., D) for one more token x (..., D), and the cache after it; raises what `prefill` raises."""
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

    def check(self, function: str, x: torch.Tensor, *cache: Cache, time: str = "t") -> None:
        """Check x (..., T, D), without T if `time` is empty, against the weights and, if given, the cache.

        Raises:
            ShapeError: naming function, argument, expected and got.
            TypeError: x is not a tensor, or the cache not one of this mixer.
            ValueError: dtype or device differ, or decays would be NaN.
        """
        function = f"{type(self).__name__}.{function}"
        check_dtypes(function, {"weights": next(self.parameters()), "x": x})
        check_shapes(function, {"x": (x, time + "d")})
        if x.shape[-1] != self.dim:
            raise ShapeError(f"{function}: axis 'd' of x is {x.shape[-1]}, expected {self.dim}")
        if self.makes_decays:
            check_no_nan(function, "x", x)
        for given in cache:
            self.check_cache(function, given, tuple(x.shape[: x.ndim - len(time) - 1]))


class RecurrentCache(NamedTuple):
    """State of a recurrent mixer between two calls: tensors of one size, however many tokens there were.

    `conv_state` (..., K - 1, channels) are the last inputs of its convolution, `state` is that of its recurrence.
    """

    conv_state: torch.Tensor
    state: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self.conv_state.nbytes + self.state.nbytes


class RecurrentMixer(Mixer):
    """A mixer whose cache is a few tensors of one size, however many tokens there were.

    By default a `RecurrentCache`, for a mixer that has a `CausalConvolution` called `conv` and says the `state_shape`.
    One with another cache has its own `cache_type`, a named tuple, and `cache_shapes`.
    """

    cache_type: type = RecurrentCache

    def cache_shapes(self) -> dict[str, tuple[int, ...]]:
        """Trailing axes of each tensor of a cache."""
        channels, _, length = self.conv.weight.shape
        return {"conv_state": (length - 1, channels), "state": self.state_shape()}

    def state_shape(self) -> tuple[int, ...]:
        """The trailing axes of the state."""
        raise NotImplementedError

    def start(self, *leading: int) -> Cache:
        """The cache before the first token.

        Args:
            *leading: sizes of the leading axes, such as the batch.

        Returns:
            Zeros of the shapes that `cache_shapes` says, in the dtype of the weights; float32 for half precision.

        Raises:
            ValueError: a size is not an integer ≥ 0.
        """
        check_counts(f"{type(self).__name__}.start", "leading", leading, 0)
        weight = next(self.parameters())
        wide = torch.promote_types(weight.dtype, torch.float32)
        zeros = (weight.new_zeros(*leading, *sizes, dtype=wide) for sizes in self.cache_shapes().values())
        return self.cache_type(*zeros)

    def check_cache(self, function: str, cache: Cache, leading: tuple[int, ...]) -> None:
        """Check that it is such a cache, and the shapes of both tensors.

        Raises:
            ShapeError: naming function, tensor, expected and got.
            TypeError: naming function, expected and got.
        """
        check_type(function, "cache", cache, self.cache_type)
        for name, sizes in self.cache_shapes().items():
            check_tensor(function, f"cache.{name}", getattr(cache, name))
            got, expected = tuple(getattr(cache, name).shape), (*leading, *sizes)
            if got != expected:
                raise ShapeError(f"{function}: cache.{name} has shape {got}, expected {expected}")


class CausalConvolution(nn.Module):
    """Depthwise causal convolution: every channel is a weighted sum of its own last few values.

    y_t = bias + Σ_k weight[k] x_(t - K + 1 + k), with K = `length` and zeros before the first token.

    Args:
        channels: number of channels.
        length: K ≥ 1, how many tokens a channel sees, its own included.
        bias: whether there is one.

    Raises:
        ValueError: a size is not an integer ≥ 1.

    Cost:
        K multiply-adds per token and channel; the conv state kept for decoding has K - 1 tokens.
    """

    def __init__(self, channels: int, length: int, bias: bool = True):
        super().__init__()
        check_count("CausalConvolution", "channels", channels)
        bound = check_count("CausalConvolution", "length", length) ** -0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, length).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def prefill(self, x: torch.Tensor, conv_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs for x (..., T, channels), which follows conv_state (..., K - 1, channels); the next conv state."""
        self._check("prefill", x, conv_state, time="t")
        return self.prefill_unchecked(x, conv_state)

    def step(self, x: torch.Tensor, conv_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (..., channels) for one more token, and the next conv state."""
        self._check("step", x, conv_state, time="")
        return self.step_unchecked(x, conv_state)

    def _check(self, function, x, conv_state, time):
        """Check x, without an axis of time if `time` is empty, and the conv state."""
        function = f"CausalConvolution.{function}"
        check_dtypes(function, {"weights": self.weight, "x": x}, real=True)
        check_dtypes(function, {"conv_state": conv_state}, real=True)
        if conv_state.device != x.device:
            raise ValueError(f"{function}: conv_state is on {conv_state.device} but x is on {x.device}")
        channels, _, length = self.weight.shape
        check_shapes(function, {"weights": (self.weight[:, 0, 0], "c"), "x": (x, time + "c")})
        got, expected = tuple(conv_state.shape), (*x.shape[: x.ndim - len(time) - 1], length - 1, channels)
        if got != expected:
            raise ShapeError(f"{function}: conv_state has shape {got}, expected {expected}")

    def prefill_unchecked(self, x, conv_state):
        """`prefill` for a mixer, which has checked x and its cache."""
        length, taps = x.shape[-2], self.weight[:, 0].unbind(-1)
        x = torch.cat([conv_state.to(x.dtype), x], -2)
        # Shifted copies, not conv1d: faster on a CPU, and it is the formula.
        y = sum(tap * x[..., k : k + length, :] for k, tap in enumerate(taps))
        return y if self.bias is None else y + self.bias, x[..., length:, :]

    def step_unchecked(self, x, conv_state):
        """`step` for a mixer, which has checked x and its cache."""
        y, conv_state = self.prefill_unchecked(x[..., None, :], conv_state)
        return y[..., 0, :], conv_state


class GatedRMSNorm(nn.Module):
    """Root-mean-square normalisation after a gate: weight · u / rms(u) with u = y · SiLU(z).

    Args:
        channels: size of the last axis.
        groups: parts of the channels, each normalised alone, so that a block can be cut into them.

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
        weight = self.weight
        check_dtypes("GatedRMSNorm.forward", {"weights": weight, "y": y, "z": z})
        check_shapes("GatedRMSNorm.forward", {"weights": (weight, "c"), "y": (y, "c"), "z": (z, "c")})
        u = rearrange(y * functional.silu(z), "... (g c) -> ... g c", g=self.groups)
        return weight * rearrange(functional.rms_norm(u, u.shape[-1:], eps=1e-5), "... g c -> ... (g c)")


def divide(function: str, whole: str, size: int, part: str, count: int) -> int:
    """The quotient of two sizes; ValueError if `count`, called `part`, does not divide `size`, called `whole`."""
    check_count(function, whole, size)
    check_count(function, part, count)
    if size % count:
        raise ValueError(f"{function}: {part} {count} does not divide {whole} {size}")
    return size // count
