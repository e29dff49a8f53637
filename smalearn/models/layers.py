"""The small layers that several mixers share: a short convolution, and norms."""

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn._checks import ShapeError, check_count, check_dtypes, check_eps, check_shapes
from smalearn.multilevel.texts import check_reset, text_starts


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

    def prefill(
        self, x: torch.Tensor, conv_state: torch.Tensor, reset: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs for x (..., T, channels), which follows conv_state (..., K - 1, channels); the next conv state.

        Where `reset` (..., T) is True, all that comes before counts as zeros from there on, in the next conv state too.
        """
        self._check("prefill", x, conv_state, time="t")
        check_reset("CausalConvolution.prefill", reset, x.shape[:-2], x)
        return self(x, conv_state, reset)

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

    def forward(self, x, conv_state, reset=None):
        """`prefill` for a mixer, which has checked x and its cache; the parameters may be wider than x."""
        length, taps = x.shape[-2], self.weight[:, 0].unbind(-1)
        x = torch.cat([conv_state.to(x.dtype), x], -2)
        shifted = [x[..., k : k + length, :] for k in range(len(taps))]
        last = x[..., length:, :].clone()  # a view would keep all tokens for these few
        if reset is not None:
            starts, numbers = text_starts(reset, len(taps) - 1), torch.arange(x.shape[-2], device=x.device)
            shifted = [_since(part, numbers[k : k + length], starts[..., 1:]) for k, part in enumerate(shifted)]
            last = _since(last, numbers[length:], starts[..., -1:])
        # Shifted copies, not conv1d: faster on a CPU, and it is the formula; addcmul rounds once.
        y = taps[0] * shifted[0] if self.bias is None else torch.addcmul(self.bias, taps[0], shifted[0])
        for tap, part in zip(taps[1:], shifted[1:], strict=True):
            y = torch.addcmul(y, tap, part)
        return narrow(y, x), last

    def step_unchecked(self, x, conv_state):
        """`step` for a mixer, which has checked x and its cache."""
        y, conv_state = self(x[..., None, :], conv_state)
        return y[..., 0, :], conv_state


def _since(x, numbers, starts):
    """Tokens x (..., T, channels) of these numbers, zeros for those before the start of a text."""
    return x.masked_fill((numbers < starts)[..., None], 0)


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


class WideLinear(nn.Linear):
    """A linear map whose bias may be wider than its weight: then the result is, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it to x (..., channels)."""
        return functional.linear(x, self.weight) + self.bias


def narrow(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return y in the dtype of x; as it is under `torch.autocast`, which casts only where it multiplies."""
    return y if not x.is_meta and torch.is_autocast_enabled(x.device.type) else y.to(x.dtype)


def _beside(weight, x):
    """A parameter as a check sees it: one of float32 may stand beside tokens of half precision."""
    mixed = isinstance(x, torch.Tensor) and x.dtype.itemsize == 2 and weight.dtype == torch.float32
    return weight.to(x.dtype) if mixed else weight


def divide(function: str, whole: str, size: int, part: str, count: int) -> int:
    """The quotient of two sizes; ValueError if `count`, called `part`, does not divide `size`, called `whole`."""
    check_count(function, whole, size)
    check_count(function, part, count)
    if size % count:
        raise ValueError(f"{function}: {part} {count} does not divide {whole} {size}")
    return size // count
