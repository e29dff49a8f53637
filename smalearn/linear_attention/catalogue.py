"""Recurrent models with a matrix state as choices of one gate.

    H_t = G_t ∘ H_(t-1) + V_t K_t^T,    Y_t = H_t Q_t

Every model here is this recurrence, with its own queries, keys, values and gate. A model's `gates` makes these four
from what the model's linear layers put out; the layers themselves, convolutions, norms and output gates around the
recurrence are left out, and so is any scale: scale Q or K. H is (P, N), so a gate G is exp of

    a scalar (...)      per key feature (..., N), the same for all rows      or full (..., P, N)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from smalearn.linear_attention.gates import exp_bounded, log_of_gate, log_softplus, running_max
from smalearn.linear_attention.recurrent import linear_attention_recurrent

Tensor = torch.Tensor


class Gates(NamedTuple):
    """Operands that a model gives to linear attention, and how it reads the result.

    Attributes:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values, with a column of ones where the model normalises.
        log_a: log of the gate, or None.
        read: the model's output (..., T, P) from that of linear attention.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    log_a: Tensor | None
    read: Callable[[Tensor], Tensor] = lambda Y: Y


@dataclass(frozen=True)
class RecurrentModel:
    """A named gate.

    Attributes:
        name: of the model.
        gate: "none", "scalar" (one per token), "key" (one per key feature) or "full".
        formula: the gate, and what else differs from V_t K_t^T and H_t Q_t.
        source: where it was published.
        gates: the model's inputs to `Gates`; its docstring names them.
    """

    name: str
    gate: str
    formula: str
    source: str
    gates: Callable[..., Gates]

    def run(self, *inputs: Tensor, form: Callable = linear_attention_recurrent) -> tuple[Tensor, Tensor]:
        """The model's output and the state after the last token, by any form of linear attention.

        Args:
            *inputs: as `gates` takes them.
            form: linear_attention_recurrent, or linear_attention_chunked unless the gate is full.

        Returns:
            Y (..., T, P) and the state (..., P, N), with one more row for the normaliser where there is one.
        """
        *operands, read = self.gates(*inputs)
        Y, state = form(*operands)
        return read(Y), state


MODELS: dict[str, RecurrentModel] = {}
"""The models of this form, by name."""

OTHER_MODELS = {
    "DeltaNet": "H_t = H_(t-1) (I − β_t K_t K_t^T) + β_t V_t K_t^T: a matrix product in the place of the gate",
    "Gated DeltaNet": "H_t = α_t H_(t-1) (I − β_t K_t K_t^T) + β_t V_t K_t^T: the same with a decay",
    "RWKV-7": "H_t = H_(t-1) (Diag(w_t) − κ_t (a_t ∘ κ_t)^T) + V_t K_t^T: diagonal plus rank one",
    "sLSTM": "gates that depend on the previous output: not a linear recurrence",
}
"""Models that an elementwise gate cannot express, and why."""


def _model(name: str, gate: str, formula: str, source: str):
    """Register the decorated function as the `gates` of a model."""

    def register(gates):
        MODELS[name] = RecurrentModel(name, gate, formula, source, gates)
        return gates

    return register


@_model("linear attention", "none", "G_t = 1; Y_t = H_t Q_t / (z_t·Q_t), z_t = Σ K_s", "Katharopoulos et al. 2020")
def linear_attention(Q, K, V):
    """Q and K after the feature map; every row of weights is divided by its sum."""
    return Gates(Q, K, _with_ones(V), None, _normalise)


@_model("RetNet", "scalar", "G_t = γ; Q_t and K_t turned by the angles t θ", "Sun et al. 2023")
def retnet(Q, K, V, gamma, theta):
    """Decay gamma (...), angles theta (..., N/2): features n and n + N/2 make a complex number. No norm, no xPos."""
    phase = torch.arange(Q.shape[-2], dtype=Q.dtype, device=Q.device)[:, None] * theta[..., None, :]
    log_a = log_of_gate(gamma)[..., None] + torch.zeros_like(K[..., 0])  # as many axes as a gate per token has
    return Gates(_rotate(Q, phase), _rotate(K, phase), V, log_a)


@_model("gated RetNet", "scalar", "G_t = σ(z_t)^(1/τ), τ = 16", "Sun et al. 2024 (YOCO)")
def gated_retnet(Q, K, V, z):
    """Logits z (..., T). Without rotation."""
    return Gates(Q, K, V, F.logsigmoid(z) / 16)


@_model("gated RFA", "scalar", "G_t = σ(z_t); K_t times 1 − σ(z_t); normalised", "Peng et al. 2021")
def gated_rfa(Q, K, V, z):
    """Q and K after the random features, z (..., T).

    While all gates are open, all weights 1 − σ(z) are tiny, and so is their sum. The state is therefore kept divided by
    the largest weight in it, exp(m_t) with m_t = max(log σ(z_t) + m_(t-1), log σ(−z_t)): the norm divides it out.
    """
    log_a, log_weight, _ = running_max(F.logsigmoid(z), F.logsigmoid(-z), -torch.inf)
    return Gates(Q, log_weight.exp()[..., None] * K, _with_ones(V), log_a, _normalise)


@_model("Mamba-2", "scalar", "G_t = exp(−Δ_t e^a), Δ_t = softplus(z_t); V_t times Δ_t", "Dao and Gu 2024")
def mamba2(Q, K, V, z, a):
    """Q = C, K = B, V = X, z (..., T) with its bias, a (...) per head. Without convolution, D and output gate.

    Δ_t e^a is exp(log Δ_t + a), since Δ_t alone may underflow and e^a overflow.
    """
    dt = F.softplus(z)
    return Gates(Q, K, dt[..., None] * V, -exp_bounded(log_softplus(z) + a[..., None]))


@_model(
    "mLSTM", "scalar", "G_t = σ(f_t); K_t times exp(i_t); Y_t = H_t Q_t / max(|n_t·Q_t|, 1)", "Beck et al. 2024 (xLSTM)"
)
def mlstm(Q, K, V, i, f):
    """i, f (..., T). Without output gate; the paper also allows exp(f).

    exp(i) would overflow, so the state is kept divided by exp(m_t), with m_t = max(log σ(f_t) + m_(t-1), i_t, 0). The
    gate log σ(f_t) + m_(t-1) − m_t is ≤ 0 by this very choice of m.
    """
    log_a, log_weight, m = running_max(F.logsigmoid(f), i, 0.0)

    def read(Y):
        return Y[..., :-1] / torch.maximum(Y[..., -1:].abs(), torch.exp(-m)[..., None])

    return Gates(Q, log_weight.exp()[..., None] * K, _with_ones(V), log_a, read)


@_model("GLA", "key", "G_t = 1 α_t^T, α_t = σ(z_t)^(1/τ), τ = 16", "Yang et al. 2023")
def gla(Q, K, V, z):
    """Logits z (..., T, N). Without output gate."""
    return Gates(Q, K, V, F.logsigmoid(z) / 16)


@_model("HGRN2", "key", "G_t = 1 f_t^T, f_t = b + (1 − b) σ(z_t); K_t = 1 − f_t", "Qin et al. 2024")
def hgrn2(Q, V, z, b):
    """Q the output gate, V the input, z (..., T, N), b (..., 1, N) the layer's lower bound in [0, 1)."""
    f = b + (1 - b) * torch.sigmoid(z)
    return Gates(Q, (1 - b) * torch.sigmoid(-z), V, log_of_gate(f))


@_model(
    "RWKV-6",
    "key",
    "G_t = 1 w_t^T, w_t = exp(−exp(z_t)); Y_t = (H_(t-1) + V_t (u ∘ K_t)^T) Q_t",
    "Peng et al. 2024 (Finch)",
)
def rwkv6(Q, K, V, z, u):
    """Q = R, z (..., T, N), u (..., 1, N) the bonus of the present token. Without token shift, norm and output gate.

    A token is read before it is written and decayed, so keys, values and gates come one step late, and `read` adds the
    bonus. The state after the last token therefore lacks that token.
    """

    def read(Y):
        return Y + (Q * u * K).sum(-1, keepdim=True) * V

    return Gates(Q, _shift(K), _shift(V), _shift(-exp_bounded(z)), read)


@_model("GateLoop", "key", "G_t = 1 a_t^T, a_t = σ(z_t) exp(i φ_t); Y_t the real part", "Katsch 2023")
def gateloop(Q, K, V, z, phi):
    """z, phi (..., T, N), Q and K real.

    The real part of q k exp(i(φ_(s+1) + … + φ_t)) is the product of q and k turned by the angles summed up to t and to
    s: 2N real features with the decays σ(z).
    """
    phase = phi.cumsum(-2)
    Q, K = (_rotate(torch.cat([x, torch.zeros_like(x)], -1), phase) for x in (Q, K))
    return Gates(Q, K, V, F.logsigmoid(torch.cat([z, z], -1)))


@_model("Mamba", "full", "G_t = exp(−Δ_t e^a), Δ_t = softplus(z_t) per row; V_t times Δ_t", "Gu and Dao 2023")
def mamba(Q, K, V, z, a):
    """Q = C, K = B, V = X, z (..., T, P) with its bias, a (..., P, N). Without convolution, D and output gate.

    Δ_t e^a is exp(log Δ_t + a), as in Mamba-2.
    """
    dt = F.softplus(z)
    return Gates(Q, K, dt * V, -exp_bounded(log_softplus(z)[..., None] + a.unsqueeze(-3)))


def _with_ones(V):
    """V and a column of ones, whose output is the sum of the weights."""
    return torch.cat([V, torch.ones_like(V[..., :1])], -1)


def _normalise(Y):
    """Divide all columns by the last, which makes sums weighted means."""
    return Y[..., :-1] / Y[..., -1:]


def _rotate(X, phase):
    """Multiply X (..., T, 2D), D complex numbers with real parts first, by exp(i phase), phase (..., T, D)."""
    x, y = X.chunk(2, -1)
    return torch.cat([x * phase.cos() - y * phase.sin(), x * phase.sin() + y * phase.cos()], -1)


def _shift(X):
    """Shift X (..., T, D) one step later in time, zeros first."""
    return torch.cat([torch.zeros_like(X[..., :1, :]), X[..., :-1, :]], -2)
