"""The contract of all sequence mixers of a model, and what those have in common that carry a state."""

import math
from typing import NamedTuple, Protocol

import torch
from torch import nn
from torch.utils import _pytree as pytree

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
from smalearn.multilevel.texts import check_reset


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

    A `reset` (..., T) is True where a text begins: of what comes before, if it is finite, the outputs from there on and
    the cache know nothing, and no gradient flows back to it. So rows are padded on their left, and several texts packed
    into one.
    """

    dim: int
    makes_decays = False
    varies = True  # whether one program can be exported for all lengths
    no_reset = ""  # why a text cannot begin within a sequence, if it cannot
    context: int | None = None  # the most tokens, those of the cache included

    @property
    def weights(self) -> torch.Tensor | None:
        """A tensor whose dtype and device tokens have; see `weights_of`."""
        return weights_of(getattr(self, "in_proj", self), self)

    def start(self, *leading: int) -> Cache:
        """The cache before the first token, for the given leading axes, such as the batch."""
        raise NotImplementedError

    def check_cache(self, function: str, cache: Cache, leading: tuple[int, ...]) -> None:
        """Check that a cache is for these leading axes."""
        raise NotImplementedError

    def prefill(self, x: torch.Tensor, cache: Cache, reset: torch.Tensor | None = None) -> tuple[torch.Tensor, Cache]:
        """Read all tokens at once.

        Args:
            x: (..., T, D), which follows the tokens of the cache.
            cache: from `start`, `prefill` or `step`.
            reset: (..., T) boolean, True where a text begins; leading axes of x or fewer. None if nowhere.

        Returns:
            y (..., T, D), and the cache after x.

        Raises:
            ShapeError: x or the cache does not fit the mixer, or reset does not fit x.
            ValueError: dtype or device differ from the weights', or the mixer takes no reset.
        """
        raise NotImplementedError

    def step(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        """Output (..., D) for one more token x (..., D), and the cache after it; raises what `prefill` raises."""
        self.check("step", x, cache, time="")
        y, cache = self.prefill(x[..., None, :], cache)
        return y[..., 0, :], cache

    def forward(self, x: torch.Tensor, reset: torch.Tensor | None = None) -> torch.Tensor:
        """Outputs (..., T, D) for x (..., T, D), nothing before it; `reset` (..., T) as `prefill` takes it.

        Raises:
            ShapeError: x has no axis of time, or its last axis is not `dim`, or reset does not fit x.
            ValueError: x and the weights differ in dtype or device, or the mixer takes no reset.
        """
        self.check("forward", x, reset=reset)
        return self.prefill(x, self.start(*x.shape[:-2]), *given(reset))[0]

    def check(
        self, function: str, x: torch.Tensor, *cache: Cache, time: str = "t", reset: torch.Tensor | None = None
    ) -> None:
        """Check x (..., T, D), without T if `time` is empty, against the weights and, if given, the cache and reset.

        Raises:
            ShapeError: naming function, argument, expected and got; or there are more tokens than the context has.
            TypeError: x is not a tensor, or the cache not one of this mixer.
            ValueError: dtype or device differ, decays would be NaN, it is exported for a length that it cannot vary, or
                the mixer takes no reset.
        """
        function = f"{type(self).__name__}.{function}"
        check_tokens(function, x, self.dim, self.weights, time)
        if self.makes_decays:
            check_no_nan(function, "x", x)
        if time and not self.varies and isinstance(x.shape[-2], torch.SymInt):
            raise ValueError(f"{function}: each length is another program: export it for one length, or export `step`")
        if reset is not None and self.no_reset:
            raise ValueError(f"{function}: reset must be None: {self.no_reset}")
        leading = tuple(x.shape[: x.ndim - len(time) - 1])
        check_reset(function, reset, leading, x)
        for kept in cache:
            self.check_cache(function, kept, leading)
        if self.context is not None:
            length = sum(kept.length for kept in cache) + (x.shape[-2] if time else 1)
            if length > self.context:
                limit = f"{length} tokens, expected at most {self.context}, the context"
                raise ShapeError(f"{function}: {limit}")


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
        """Check that it is such a cache, and the shapes of both tensors."""
        check_type(function, "cache", cache, self.cache_type)
        for name, sizes in self.cache_shapes().items():
            check_tensor(function, f"cache.{name}", getattr(cache, name))
            got, expected = tuple(getattr(cache, name).shape), (*leading, *sizes)
            if got != expected:
                raise ShapeError(
                    f"{function}: cache.{name} has shape {got}, expected {expected}: x has leading axes {leading}"
                )


def weights_of(*modules: nn.Module) -> torch.Tensor | None:
    """The tensor that says in which dtype and on which device a module computes: the largest of floating dtype.

    Of the first module that has one; None if none has. Not its `weight`, which a quantised layer has as a method, and a
    wrapped one not at all; nor its first parameter, which may be an adapter's.
    """
    for module in modules:
        # A replica that `DataParallel` made has plain tensors in place of parameters.
        tensors = list(module.parameters()) or [x for part in module.modules() for x in vars(part).values()]
        floating = [x for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point()]
        sizes = [x.numel() for x in floating]
        if floating:
            return floating[sizes.index(max(sizes))]
    return None


def given(reset: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The last argument of a call, left out if it is None: so a mixer that takes no reset need not know of it."""
    return () if reset is None else (reset,)


def forget(log_a: torch.Tensor, reset: torch.Tensor | None) -> torch.Tensor:
    """Log decays (..., T, ·, ·) that are −inf where reset (..., T) is True: nothing before is seen from there on."""
    return log_a if reset is None else log_a.masked_fill(reset[..., None, None], -math.inf)


def check_tokens(function: str, x: torch.Tensor, dim: int, weights: torch.Tensor | None, time: str = "t") -> None:
    """Check tokens x (..., T, D), without T if `time` is empty, against their size and any weights that are known."""
    check_dtypes(function, {"x": x} if weights is None else {"weights": weights, "x": x})
    check_shapes(function, {"x": (x, time + "d")})
    if x.shape[-1] != dim:
        raise ShapeError(f"{function}: axis 'd' of x is {x.shape[-1]}, expected {dim}")
