"""The contract of all sequence mixers of a model, and the two small layers that several of them share."""

from typing import NamedTuple, Protocol

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from smalearn._checks import (
    ShapeError,
    check_count,
    check_counts,
    check_dtypes,
    check_eps,
    check_no_nan,
    check_shapes,
    check_tensor,
    check_type,
)

__all__ = [
    "Cache",
    "CausalConvolution",
    "GatedRMSNorm",
    "Mixer",
    "RMSNorm",
    "RecurrentCache",
    "RecurrentMixer",
    "check_tokens",
    "divide",
    "narrow",
    "select_rows",
    "weights_of",
]


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
    than `prefill` takes, `step`. Its dtype is that of its projection `in_proj`, which may be wrapped or quantised; what
    a few bits would spoil, as decays, biases and norms, may stay in float32. Under FSDP2 say
    `register_fsdp_forward_method(block, "step")`, and the same of "prefill", since neither is `forward`.
    """

    dim: int
    makes_decays = False
    varies = True  # whether one program can be exported for all lengths

    @property
    def weights(self) -> torch.Tensor | None:
        """A tensor whose dtype and device tokens have; see `weights_of`."""
        return weights_of(getattr(self, "in_proj", self), self)

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
            ValueError: dtype or device differ, decays would be NaN, or it is exported for a length that it cannot vary.
        """
        function = f"{type(self).__name__}.{function}"
        check_tokens(function, x, self.dim, self.weights, time)
        if self.makes_decays:
            check_no_nan(function, "x", x)
        if time and not self.varies and isinstance(x.shape[-2], torch.SymInt):
            raise ValueError(f"{function}: each length is another program: export it for one length, or export `step`")
        for given in cache:
            self.check_cache(function, given, tuple(x.shape[: x.ndim - len(time) - 1]))


def select_rows(cache: Cache, rows: torch.Tensor, axis: int = 0) -> Cache:
    """Pick rows of a batch, each as often as it is named, as beam search does: `rows = torch.tensor([2, 0, 0])`.

    Args:
        cache: of a mixer, of `SequenceModel`, or of `smalearn.multilevel`; it has leading axes, such as a batch.
        rows: (R,) integers from 0 to B - 1.
        axis: which of the leading axes.

    Returns:
        The cache of these R rows, in tensors of its own.

    Raises:
        ShapeError: the tensors of the cache have no axis of that number, or not all of the same size.
        TypeError: rows is not a tensor.
        ValueError: rows are not integers in that range, or axis is not an integer ≥ 0.
    """
    check_tensor("select_rows", "rows", rows)
    check_count("select_rows", "axis", axis, 0)
    if rows.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"select_rows: rows must be int64 or int32, got {rows.dtype}")
    check_shapes("select_rows", {"rows": (rows, "r")})
    tensors = [x for x in pytree.tree_leaves(cache) if isinstance(x, torch.Tensor)]
    sizes = {tuple(x.shape)[axis : axis + 1] for x in tensors}
    if rows.ndim != 1 or sizes == {()} or len(sizes) != 1:
        got = f"tensors of sizes {sorted(sum(sizes, ()))} there, and rows of shape {tuple(rows.shape)}"
        raise ShapeError(f"select_rows: expected a cache with one size at axis {axis}, and rows (R,); got {got}")
    try:
        return pytree.tree_map_only(torch.Tensor, lambda x: x.index_select(axis, rows), cache)
    except IndexError:  # says PyTorch on a CPU
        raise ValueError(f"select_rows: rows must be from 0 to {sizes.pop()[0] - 1}, got another") from None


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
        like = self.weights
        wide = torch.promote_types(like.dtype, torch.float32)
        shapes = ((*leading, *sizes) for sizes in self.cache_shapes().values())
        return self.cache_type(*(torch.zeros(shape, dtype=wide, device=like.device) for shape in shapes))

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
        return self(x, conv_state)

    def step(self, x: torch.Tensor, conv_state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output (..., channels) for one more token, and the next conv state."""
        self._check("step", x, conv_state, time="")
        return self.step_unchecked(x, conv_state)

    def _check(self, function, x, conv_state, time):
        """Check x, without an axis of time if `time` is empty, and the conv state."""
        function = f"CausalConvolution.{function}"
        check_dtypes(function, {"weights": _beside(self.weight, x), "x": x}, real=True)
        check_dtypes(function, {"conv_state": conv_state}, real=True)
        if conv_state.device != x.device:
            raise ValueError(f"{function}: conv_state is on {conv_state.device} but x is on {x.device}")
        channels, _, length = self.weight.shape
        check_shapes(function, {"weights": (self.weight[:, 0, 0], "c"), "x": (x, time + "c")})
        got, expected = tuple(conv_state.shape), (*x.shape[: x.ndim - len(time) - 1], length - 1, channels)
        if got != expected:
            raise ShapeError(f"{function}: conv_state has shape {got}, expected {expected}")

    def forward(self, x, conv_state):
        """`prefill` for a mixer, which has checked x and its cache; the parameters may be wider than x."""
        length, taps = x.shape[-2], self.weight[:, 0].unbind(-1)
        x = torch.cat([conv_state.to(x.dtype), x], -2)
        # Shifted copies, not conv1d: faster on a CPU, and it is the formula; addcmul rounds once.
        y = taps[0] * x[..., :length, :] if self.bias is None else torch.addcmul(self.bias, taps[0], x[..., :length, :])
        for k, tap in enumerate(taps[1:], 1):
            y = torch.addcmul(y, tap, x[..., k : k + length, :])
        return narrow(y, x), x[..., length:, :].clone()  # a view would keep all tokens for these few

    def step_unchecked(self, x, conv_state):
        """`step` for a mixer, which has checked x and its cache."""
        y, conv_state = self(x[..., None, :], conv_state)
        return y[..., 0, :], conv_state


class GatedRMSNorm(nn.Module):
    """Root-mean-square normalisation after a gate: weight · u / rms(u) with u = y · SiLU(z).

    Args:
        channels: size of the last axis.
        groups: parts of the channels, each normalised alone, so that a block can be cut into them.
        eps: added to the mean square.

    Raises:
        ValueError: groups does not divide channels.

    Source:
        Dao and Gu 2024 (Mamba-2), section 7.1; the groups are those of section 8.1, tensor parallelism.
    """

    def __init__(self, channels: int, groups: int = 1, eps: float = 1e-5):
        super().__init__()
        divide("GatedRMSNorm", "channels", channels, "groups", groups)
        self.groups = groups
        self.eps = check_eps("GatedRMSNorm", eps)
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """Both (..., channels), the gate z before its nonlinearity."""
        weight = self.weight
        check_dtypes("GatedRMSNorm.forward", {"weights": _beside(weight, y), "y": y, "z": z})
        check_shapes("GatedRMSNorm.forward", {"weights": (weight, "c"), "y": (y, "c"), "z": (z, "c")})
        u = rearrange(y * functional.silu(z), "... (g c) -> ... g c", g=self.groups)
        u = rearrange(functional.rms_norm(u, u.shape[-1:], eps=self.eps), "... g c -> ... (g c)")
        return narrow(weight * u, y)


class RMSNorm(nn.RMSNorm):
    """PyTorch's, in the dtype of its weights if that is wider than its input's, in which the result comes back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x (..., channels)."""
        wide = torch.promote_types(x.dtype, self.weight.dtype)
        return narrow(functional.rms_norm(x.to(wide), self.normalized_shape, self.weight.to(wide), self.eps), x)


def weights_of(*modules: nn.Module) -> torch.Tensor | None:
    """The tensor that says in which dtype and on which device a module computes: the largest of floating dtype.

    Not its `weight`, which a quantised layer has as a method, and a wrapped one not at all; nor its first parameter,
    which may be an adapter's.

    Args:
        *modules: the first that has such a tensor counts.

    Returns:
        The tensor, or None if no module has one.
    """
    for module in modules:
        # A replica that `DataParallel` made has plain tensors in place of parameters.
        tensors = list(module.parameters()) or [x for part in module.modules() for x in vars(part).values()]
        floating = [x for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point()]
        sizes = [x.numel() for x in floating]
        if floating:
            return floating[sizes.index(max(sizes))]
    return None


def narrow(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return y in the dtype of x; as it is under `torch.autocast`, which casts only where it multiplies."""
    return y if not x.is_meta and torch.is_autocast_enabled(x.device.type) else y.to(x.dtype)


def _beside(weight, x):
    """A parameter as a check sees it: one of float32 may stand beside tokens of half precision."""
    mixed = isinstance(x, torch.Tensor) and x.dtype.itemsize == 2 and weight.dtype == torch.float32
    return weight.to(x.dtype) if mixed else weight


def check_tokens(function: str, x: torch.Tensor, dim: int, weights: torch.Tensor | None, time: str = "t") -> None:
    """Check tokens x (..., T, D), without T if `time` is empty, against their size and the weights, if those are known.

    Raises:
        ShapeError: naming function, expected and got.
        TypeError: x is not a tensor.
        ValueError: dtype or device differ.
    """
    check_dtypes(function, {"x": x} if weights is None else {"weights": weights, "x": x})
    check_shapes(function, {"x": (x, time + "d")})
    if x.shape[-1] != dim:
        raise ShapeError(f"{function}: axis 'd' of x is {x.shape[-1]}, expected {dim}")


def divide(function: str, whole: str, size: int, part: str, count: int) -> int:
    """The quotient of two sizes; ValueError if `count`, called `part`, does not divide `size`, called `whole`."""
    check_count(function, whole, size)
    check_count(function, part, count)
    if size % count:
        raise ValueError(f"{function}: {part} {count} does not divide {whole} {size}")
    return size // count
