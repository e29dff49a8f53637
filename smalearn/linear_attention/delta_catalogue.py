"""Models of the delta rule's family as choices of three keys.

    H_t = H' - (H' r_t) p_t^T + V_t k_t^T,   H' = H_(t-1) Diag(exp(log_a_t)),   Y_t = H_t Q_t

A model's `keys` makes the operands of `generalized_delta_rule` from what the model's linear layers put out, keys K of
norm 1; the layers themselves, convolutions, norms and output gates are left out, and so is any scale: scale Q.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from smalearn.linear_attention.gates import exp_bounded, log_softplus
from smalearn.linear_attention.generalized_delta import generalized_delta_rule_recurrent

Tensor = torch.Tensor


class Keys(NamedTuple):
    """Operands that a model gives to the generalized delta rule, in its order.

    Attributes:
        Q: (..., T, N) queries.
        K: (..., T, N) keys that write.
        V: (..., T, P) values.
        read: (..., T, N) keys that read after the decay.
        erase: (..., T, N) keys that erase, or None for K.
        log_a: log of the decay, or None.
    """

    Q: Tensor
    K: Tensor
    V: Tensor
    read: Tensor
    erase: Tensor | None
    log_a: Tensor | None


@dataclass(frozen=True)
class DeltaModel:
    """A named choice of keys.

    Attributes:
        name: of the model.
        gate: its decay: "none", "scalar" (one per token) or "key" (one per key feature).
        reads: the key r_t that reads.
        erases: the key p_t along which is erased what was read.
        writes: the key k_t that writes, and its value where it is not V_t.
        source: where it was published.
        keys: the model's inputs to `Keys`; its docstring names them.
    """

    name: str
    gate: str
    reads: str
    erases: str
    writes: str
    source: str
    keys: Callable[..., Keys]

    def run(self, *inputs: Tensor, form: Callable = generalized_delta_rule_recurrent) -> tuple[Tensor, Tensor]:
        """The model's output and the state after the last token, by any form of the generalized delta rule.

        Args:
            *inputs: as `keys` takes them.
            form: generalized_delta_rule_recurrent, generalized_delta_rule_chunked or fast.generalized_delta_rule.

        Returns:
            Y (..., T, P) and the state (..., P, N).
        """
        return form(*self.keys(*inputs))


DELTA_MODELS: dict[str, DeltaModel] = {}
"""The models of this form, by name."""


def _model(name: str, *description: str):
    """Register the decorated function as the `keys` of a model."""

    def register(keys):
        DELTA_MODELS[name] = DeltaModel(name, *description, keys)
        return keys

    return register


@_model("DeltaNet", "none", "K_t", "β_t K_t", "β_t K_t", "Schlag et al. 2021; Yang et al. 2024")
def deltanet(Q, K, V, z):
    """Logits z (..., T) of β_t = σ(z_t)."""
    return Keys(Q, _times(z, K), V, K, None, None)


@_model("Gated DeltaNet", "scalar", "K_t", "β_t K_t", "β_t K_t", "Yang, Kautz and Hatamizadeh 2024")
def gated_deltanet(Q, K, V, z, g, a):
    """Logits z (..., T) of β; the decay exp(−softplus(g_t) e^a) of g (..., T) with its bias and a (...) per head."""
    return Keys(Q, _times(z, K), V, K, None, _decay(g, a[..., None]))


@_model("KDA", "key", "K_t", "β_t K_t", "β_t K_t", "Kimi Team 2025 (Kimi Linear)")
def kda(Q, K, V, z, g, a):
    """As Gated DeltaNet, with g (..., T, N)."""
    return Keys(Q, _times(z, K), V, K, None, _decay(g, a[..., None, None]))


@_model("Comba", "scalar", "σ(b) K_t, before the decay", "β_t K_t", "β_t K_t", "Hu et al. 2025")
def comba(Q, K, V, z, g, a, b, d):
    """As Gated DeltaNet, with b and d (...) per head: the query is Q_t − d σ(b) K_t.

    It reads before the decay: with the keys r / exp(log_a), which this bounds where hardly anything is left to read.
    """
    log_a = _decay(g, a[..., None])
    read = torch.sigmoid(b)[..., None, None] * K
    return Keys(Q - d[..., None, None] * read, _times(z, K), V, exp_bounded(-log_a)[..., None] * read, None, log_a)


@_model("GDN-2", "key", "σ(b_t) ∘ K_t", "K_t", "K_t, the value σ(w_t) ∘ V_t", "Gated DeltaNet-2, 2026")
def gated_deltanet2(Q, K, V, g, a, b, w):
    """Logits b (..., T, N) of what is erased, w (..., T, P) of what is written; g and a as for KDA."""
    return Keys(Q, K, torch.sigmoid(w) * V, torch.sigmoid(b) * K, None, _decay(g, a[..., None, None]))


@_model(
    "RWKV-7",
    "key",
    "κ_t = ξ ∘ K_t / ‖ξ ∘ K_t‖, before the decay",
    "σ(a_t) ∘ κ_t",
    "K_t ∘ (1 + (σ(a_t) − 1) ∘ α)",
    "Peng et al. 2025 (Goose)",
)
def rwkv7(Q, K, V, z, a, xi, alpha):
    """Q = R, logits z and a (..., T, N), xi and alpha (..., 1, N). Without token shift, norm, bonus and output gate.

    The decay is exp(−e^(-1/2) σ(z_t)), never below 0.545, so that to read before it is to read with κ_t divided by it.
    """
    log_a = -math.exp(-0.5) * torch.sigmoid(z)
    key, rate = F.normalize(xi * K, dim=-1), torch.sigmoid(a)
    return Keys(Q, K * (1 + (rate - 1) * alpha), V, key * torch.exp(-log_a), rate * key, log_a)


def _times(z, K):
    """σ(z_t) K_t."""
    return torch.sigmoid(z)[..., None] * K


def _decay(g, a):
    """Log of the decay, −softplus(g) e^a in one exponential: softplus may underflow, and e^a overflow."""
    return -exp_bounded(log_softplus(g) + a)
