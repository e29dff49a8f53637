"""Hydra: a mixer of two directions, whose matrix is quasiseparable: not causal, so it has no cache."""

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count, check_no_nan
from smalearn.linear_attention.gates import exp_bounded
from smalearn.models.layers import CausalConvolution, GatedRMSNorm, divide, narrow
from smalearn.models.mamba2 import initial_dt_bias
from smalearn.models.mixer import check_tokens, weights_of


class Hydra(nn.Module):
    """Mamba-2 in two directions: every token sees all, the earlier ones by one call of SSD, the later by another.

        [z, xBC, dt, x W_δ] = x W_in                    B, C and dt for each direction
        [X, B, C]    = SiLU(conv(xBC))                  a convolution that sees as much on both sides
        M            = below(SSD) + diag(δ) + above(SSD) quasiseparable; δ = D + x W_δ for each head
        y            = norm(M X · SiLU(z)) W_out

    The part of a direction that lies on the diagonal is left out: δ alone stands there.

    Args:
        dim: D, size of a token.
        state: N, size of the state for each channel.
        head_dim: P, channels of a head.
        expand: the block works on expand·D channels.
        conv_len: K, an odd number of tokens that the convolution sees.

    Raises:
        ValueError: head_dim does not divide expand·dim, or conv_len is even.

    Cost:
        Per token D·(3·expand·D + 4·N + 3·heads) multiply-adds for the projections, and twice those of `fast.ssd`.

    Source:
        Hwang et al. 2024 (Hydra), section 3; one group of B and C for each direction. The published code differs in
        four ways, so its weights do not fit: it shifts both scans by a token, which then reads with its neighbour's
        query; its norm comes before the gate; its δ is a projection of the convolved X, here of x; and one `dt_bias`
        serves both directions, here each has its own.
    """

    def __init__(self, dim: int, state: int = 64, head_dim: int = 64, expand: int = 2, conv_len: int = 7):
        super().__init__()
        inner = check_count("Hydra", "expand", expand) * check_count("Hydra", "dim", dim)
        heads = divide("Hydra", "expand·dim", inner, "head_dim", head_dim)
        if not check_count("Hydra", "conv_len", conv_len) % 2:
            raise ValueError(f"Hydra: conv_len must be odd, got {conv_len}: it sees as much before as after")
        self.dim, self.state, self.head_dim = dim, check_count("Hydra", "state", state), head_dim
        self.parts = [inner, 2 * state, 2 * state]
        self.widths = [inner, sum(self.parts), 2 * heads, heads]
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = CausalConvolution(sum(self.parts), conv_len)
        self.dt_bias = nn.Parameter(initial_dt_bias(2 * heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedRMSNorm(inner)
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, x: torch.Tensor, reset: None = None) -> torch.Tensor:
        """Outputs (..., T, D) for x (..., T, D); it takes no reset.

        Raises:
            ShapeError: x has no axis of time, or its last axis is not `dim`.
            ValueError: x and the weights differ in dtype or device, x (on a CPU) has a NaN, or there is a reset.
        """
        if reset is not None:
            raise ValueError("Hydra.forward: reset must be None: a token sees later texts too, which no reset hides")
        check_tokens("Hydra.forward", x, self.dim, weights_of(self.in_proj, self))
        check_no_nan("Hydra.forward", "x", x)
        z, xBC, dt, own = self.in_proj(x).split(self.widths, -1)
        X, B, C = self._convolve(xBC).split(self.parts, -1)
        X = rearrange(X, "... t (h p) -> ... h t p", p=self.head_dim)
        B, C = (rearrange(part, "... t (way n) -> way ... 1 t n", way=2) for part in (B, C))
        dt = rearrange(functional.softplus(dt + self.dt_bias), "... t (way h) -> way ... h t", way=2)
        Y = rearrange(own + self.D, "... t h -> ... h t 1") * X
        for way in range(2):
            Y = Y + self._direction(X, dt[way], B[way], C[way], backwards=way == 1)
        return self.out_proj(self.norm(rearrange(narrow(Y, X), "... h t p -> ... t (h p)"), z))

    def _direction(self, X, dt, B, C, backwards):
        """SSD in one direction, without its diagonal."""
        operands = [narrow(dt[..., None] * X, X), -(exp_bounded(self.A_log)[:, None] * dt)[..., None], B, C]
        if backwards:
            operands = [part.flip(-2) for part in operands]
        V, log_a, B, C = operands
        Y = fast.ssd(V, log_a[..., 0], B, C)[0] - (C * B).sum(-1, keepdim=True) * V
        return Y.flip(-2) if backwards else Y

    def _convolve(self, xBC):
        """SiLU of the convolution, which is a causal one that looks K // 2 tokens ahead."""
        channels, _, length = self.conv.weight.shape
        ahead = length // 2
        zeros = xBC.new_zeros(*xBC.shape[:-2], length - 1, channels)
        y, _ = self.conv(functional.pad(xBC, (0, 0, 0, ahead)), zeros)
        return functional.silu(y[..., ahead:, :])
