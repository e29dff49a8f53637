"""Mamba-3: a trapezoidal step, a state that rotates, and, if asked for, several writes and reads a token (MIMO).

    H_t     = α_t H_(t-1) + β_t V_(t-1) K_(t-1)^T + γ_t V_t K_t^T        V_t (P, R), K_t (N, R)
    Y_t     = H_t Q_t                                                    Q_t (N, R)
    α, β, γ = exp(A dt), (1 - λ) dt α, λ dt

K and Q are turned by the sum of all angles so far, which is what a complex decay does. One call of `fast.ssd` does all
of it: a write counts γ_t at once and γ_t + (1 - λ_(t+1)) dt_(t+1) from the next token on, so the values are scaled by
the latter, and within a token the difference is added. R writes are R tokens, of which only the first decays.
"""

import math
from typing import NamedTuple

import torch
from einops import rearrange
from torch import nn
from torch.nn import functional

from smalearn import fast
from smalearn._checks import check_count
from smalearn.contractions import contract
from smalearn.models.layers import RMSNorm, divide
from smalearn.models.mamba2 import initial_dt_bias
from smalearn.models.mixer import RecurrentMixer, forget
from smalearn.multilevel.rope import turn_pairs

SLOWEST = 1e-4  # the least decay rate -A


class Mamba3Cache(NamedTuple):
    """State of a Mamba-3 mixer between two calls, of one size however many tokens there were.

    `angle` (..., heads, angles) is the sum of all so far, `state` (..., heads, P, N) the memory after the last token,
    `key` (..., heads, R, N), turned, and `value` (..., heads, R, P) are the last token's, which count once more.
    """

    angle: torch.Tensor
    state: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all four tensors."""
        return sum(part.nbytes for part in self)


class Mamba3(RecurrentMixer):
    """The Mamba-3 block, in training and in decoding.

        [z, X, B, C, dt, A, λ, θ] = x W_in                     no convolution: the trapezoid sees two tokens
        dt, A, λ = softplus(dt + dt_bias), -softplus(A), sigmoid(λ)
        K, Q     = rotate(norm(B) + B_bias, Σ dt π tanh(θ)), the same for C
        Y        = the recurrence of this module with V = X, or X mimo_x for R > 1, + D V
        y        = (Y · SiLU(z)) W_out, for R > 1 Σ_r mimo_o (Y_r · SiLU(z mimo_z)) W_out

    The heads of a group share B and C; their biases, steps and so angles are their own.

    Args:
        dim: D, size of a token.
        state: N, size of the state for each channel.
        head_dim: P, channels of a head.
        expand: the block works on expand·D channels.
        groups: how many pairs of B and C there are.
        rank: R, writes and reads for each token; 1 is the form called SISO.
        angles: pairs of the N features that turn; state // 4 if None.

    Raises:
        ValueError: head_dim does not divide expand·dim, groups the number of heads, or 2·angles is more than state.

    Cost:
        Per token D·(3·expand·D + 2·R·groups·N + 3·heads + angles) multiply-adds for the projections, those of
        `fast.ssd` for R·T tokens, and R²·(N + P) a head. The cache has expand·D·(N + R) + heads·(R·N + angles) entries.

    Source:
        Lahoti et al. 2026 (Mamba-3); names, initial values and the pairs that turn are those of the official code.
    """

    cache_type = Mamba3Cache
    makes_decays = True

    def __init__(
        self,
        dim: int,
        state: int = 128,
        head_dim: int = 64,
        expand: int = 2,
        groups: int = 1,
        rank: int = 1,
        angles: int | None = None,
    ):
        super().__init__()
        inner = check_count("Mamba3", "expand", expand) * check_count("Mamba3", "dim", dim)
        heads = divide("Mamba3", "expand·dim", inner, "head_dim", head_dim)
        self.heads_per_group = divide("Mamba3", "number of heads", heads, "groups", groups)
        self.dim, self.state, self.head_dim = dim, check_count("Mamba3", "state", state), head_dim
        self.heads, self.groups, self.rank = heads, groups, check_count("Mamba3", "rank", rank)
        self.angles = check_count("Mamba3", "angles", state // 4 if angles is None else angles, 0)
        if 2 * self.angles > state:
            raise ValueError(f"Mamba3: angles must be at most half of state {state}, got {angles}")
        shared = rank * groups * state
        self.widths = [inner, inner, shared, shared, heads, heads, heads, self.angles]
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=False)
        self.dt_bias = nn.Parameter(initial_dt_bias(heads))
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(heads, rank, state)) for _ in range(2))
        self.B_norm, self.C_norm = (RMSNorm(state, eps=1e-5) for _ in range(2))
        self.D = nn.Parameter(torch.ones(heads))
        if rank > 1:
            self.mimo_x, self.mimo_o = (nn.Parameter(torch.full((heads, rank, head_dim), 1 / rank)) for _ in range(2))
            self.mimo_z = nn.Parameter(torch.ones(heads, rank, head_dim))
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def cache_shapes(self):
        """Trailing axes of each tensor of a cache."""
        key, value = (self.heads, self.rank, self.state), (self.heads, self.rank, self.head_dim)
        state = (self.heads, self.head_dim, self.state)
        return {"angle": (self.heads, self.angles), "state": state, "key": key, "value": value}

    def prefill(self, x, cache, reset=None):
        """Read all tokens at once, by one call of `fast.ssd`; see `Mixer.prefill`."""
        self.check("prefill", x, cache, reset=reset)
        if not x.shape[-2]:
            return x, cache
        z, V, B, C, dt, log_a, share, turn = self._project(x)
        angle = self._angle(turn.double(), cache.angle, reset)  # a long sum would lose its digits
        K, Q = (self._rotate(part, angle) for part in (B, C))
        key, value = (part[..., -1, :, :, :].clone() for part in (K, V))  # a view would keep those of all tokens
        last = Mamba3Cache(_wrapped(angle[..., -1, :, :], cache), cache.state, key, value)
        now, later = share * dt, (1 - share) * dt
        later = later if reset is None else later.masked_fill(reset[..., None], 0)
        Y, state = self._scan(Q, K, V, now, later, forget(log_a[..., None], reset)[..., 0], cache)
        return self._output(Y, V, z), last._replace(state=state)

    def step(self, x: torch.Tensor, cache: Mamba3Cache) -> tuple[torch.Tensor, Mamba3Cache]:
        """Read one token: the same work whatever came before; see `Mixer.step`."""
        self.check("step", x, cache, time="")
        z, V, B, C, dt, log_a, share, turn = self._project(x)
        angle = cache.angle + turn.double()
        K, Q = (self._rotate(part, angle) for part in (B, C))
        state = self._begin(cache, (1 - share) * dt)
        state = log_a.exp()[..., None, None] * state + (share * dt)[..., None, None] * contract("RP, RN -> PN", V, K)
        Y = contract("PN, RN -> RP", state.to(Q.dtype), Q)
        return self._output(Y, V, z), Mamba3Cache(_wrapped(angle, cache), state, K, V.clone())  # no view of z beside it

    def _scan(self, Q, K, V, now, later, log_a, cache):
        """The recurrence for all tokens: Q, K and V (..., T, heads, R, ·), the others (..., T, heads)."""
        weight = now + torch.cat([later[..., 1:, :], torch.zeros_like(later[..., :1, :])], -2)
        inside = contract("RN, SN -> RS", Q, K)  # within a token the writes count `now`, and all R of them
        own = now[..., None, None] * inside - weight[..., None, None] * inside.tril()
        gate = functional.pad(log_a[..., None], (0, self.rank - 1))
        values = (weight[..., None, None] * V).to(V.dtype)
        values, keys, queries = (rearrange(part, "... t h r n -> ... h (t r) n") for part in (values, K, Q))
        gate = rearrange(gate, "... t h r -> ... h (t r)")
        start = self._begin(cache, later[..., 0, :])
        Y, state = fast.ssd(values, gate, keys, queries, start)
        Y = rearrange(Y, "... h (t r) p -> ... t h r p", r=self.rank)
        return Y + contract("RS, SP -> RP", own.to(V.dtype), V), state

    def _begin(self, cache, later):
        """The state before a token, the last token's second count included: only the decay of this one is missing."""
        last = contract("RP, RN -> PN", cache.value, cache.key).to(cache.state.dtype)
        return cache.state + later[..., None, None] * last

    def _angle(self, turn, before, reset):
        """The sum of all turns (..., T, heads, angles) so far, which a text begins anew."""
        if reset is None:
            return before[..., None, :, :] + turn.cumsum(-3)
        one = turn.new_ones(turn.shape[-3], 1)
        gate = forget(turn.new_zeros(*reset.shape, 1, 1), reset)[..., 0].mT
        sums, _ = fast.ssd(turn.movedim(-3, -2), gate, one, one, before.double()[..., None])
        return sums.movedim(-2, -3)

    def _project(self, x):
        """z, V (..., heads, R, P), B, C (..., heads, R, N), dt, log_a, λ (..., heads), turns (..., heads, angles)."""
        z, X, B, C, dt, A, share, turn = self.in_proj(x).split(self.widths, -1)
        z, X = (rearrange(part, "... (h p) -> ... h p", p=self.head_dim) for part in (z, X))
        V = X[..., None, :] if self.rank == 1 else (X[..., None, :] * self.mimo_x).to(X.dtype)
        B, C = (
            norm(rearrange(part.to(bias.dtype), "... (r g n) -> ... g r n", r=self.rank, g=self.groups))
            for norm, part, bias in ((self.B_norm, B, self.B_bias), (self.C_norm, C, self.C_bias))
        )
        B, C = (
            (part.repeat_interleave(self.heads_per_group, -3) + bias).to(X.dtype)
            for part, bias in ((B, self.B_bias), (C, self.C_bias))
        )
        dt, share = functional.softplus(dt + self.dt_bias), share.sigmoid()
        log_a = -functional.softplus(A).clamp(min=SLOWEST) * dt
        turn = (math.pi * turn.tanh())[..., None, :] * dt[..., None]
        return z, V, B, C, dt, log_a, share, turn

    def _rotate(self, x, angle):
        """Turn the first 2·angles of the N features of x (..., heads, R, N), pair by pair."""
        turned, rest = x[..., : 2 * self.angles], x[..., 2 * self.angles :]
        return torch.cat([turn_pairs(turned, angle[..., None, :]), rest], -1)

    def _output(self, Y, V, z):
        """The skip D V, the gate, the sum over the reads and the last projection."""
        Y = Y + self.D[:, None, None] * V
        if self.rank == 1:
            Y = Y[..., 0, :] * functional.silu(z)
        else:
            Y = (Y * functional.silu(z[..., None, :] * self.mimo_z) * self.mimo_o).sum(-2)
        return self.out_proj(rearrange(Y.to(V.dtype), "... h p -> ... (h p)"))


def _wrapped(angle, cache):
    """The angle within one turn, in the dtype of the cache."""
    return angle.remainder(2 * math.pi).to(cache.angle.dtype)
