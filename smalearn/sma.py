"""Structured masked attention: one contraction of four tensors, and algorithms that compute it.

Y = contract(TN, SN, SP, TS -> TP)(Q, K, V, L) is a function (Mamba-2 paper, equation 12). An order of its pairwise
contractions is an algorithm.
"""

import torch

from smalearn._checks import check_count, check_dtypes, check_shapes, check_tensor, check_type
from smalearn.contractions import Orders, contract, orders
from smalearn.masks import Mask, SparseMask, dense_mask

__all__ = ["LINEAR", "QUADRATIC", "SMA", "sma_linear", "sma_orders", "sma_quadratic", "sma_sparse"]

SMA = "TN, SN, SP, TS -> TP"
QUADRATIC = "((QK)L)V"
"""Name of the order (13): scores, mask, values."""
LINEAR = "((KV)L)Q"
"""Name of the order (15): outer products, mask, queries."""


def sma_quadratic(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, L: Mask | torch.Tensor) -> torch.Tensor:
    """Quadratic mode of structured masked attention, equations (13a-c).

    G = Q K^T, M = G ∘ L, Y = M V. A NaN or infinity in K or V, or an overflow, may reach all outputs, also where L is
    0: 0·NaN is NaN.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        V: (..., S, P) values.
        L: (..., T, S) mask, a tensor or a structured mask; it multiplies the scores.

    Returns:
        (..., T, P), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        TypeError: an argument is not a tensor, or L neither a mask nor a tensor.
        ValueError: the dtypes or devices differ.

    Cost:
        T·S·(N + P + 1) multiply-adds; the largest intermediate has T·S entries.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.1.4.
    """
    check_sma("sma_quadratic", Q, K, V, L)
    G = contract("TN, SN -> TS", Q, K)
    M = G * dense_mask(L, like=Q)
    return contract("TS, SP -> TP", M, V)


def sma_linear(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, L: Mask | torch.Tensor) -> torch.Tensor:
    """Linear mode of structured masked attention, equations (15a-c): the same function as `sma_quadratic`.

    Z[s, p, n] = V[s, p] K[s, n], H = L Z with (P, N) as columns, Y[t, p] = Σ_n Q[t, n] H[t, p, n].

    It is linear in T where the product by L is: a running sum for the causal mask. With a tensor as mask it costs more
    than the quadratic mode. What a NaN reaches stands in `Mask.matmul`. Arguments, results and errors are those of
    `sma_quadratic`.

    Cost:
        (S + T)·N·P multiply-adds and `L.cost(N·P)`; S·P·N and T·P·N entries, the latter kept for the
        gradient.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.2.1.
    """
    check_sma("sma_linear", Q, K, V, L)
    Z = contract("SP, SN -> SPN", V, K)
    if isinstance(L, Mask):
        H = L.matmul(Z.flatten(-2)).unflatten(-1, Z.shape[-2:])
    else:
        H = contract("TS, SPN -> TPN", dense_mask(L, like=Q), Z)
    return contract("TN, TPN -> TP", Q, H)


def sma_sparse(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, L: SparseMask) -> torch.Tensor:
    """Masked attention that computes only the scores under the mask's ones.

    Y_t = Σ_{s : L[t,s] = 1} (Q_t · K_s) V_s, the same function as `sma_quadratic` for a (T, S) sparse mask L; any other
    L is a TypeError. A NaN or infinity reaches no output where L is 0. All other arguments, results and errors are
    those of `sma_quadratic`.

    Cost:
        nnz(L)·(N + P) multiply-adds, linear in T at fixed window or block size; nnz(L)·max(N, P) entries.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.1.4.
    """
    if not isinstance(L, SparseMask):
        raise TypeError(f"sma_sparse: L must be a SparseMask, got {type(L).__name__}; use sma_quadratic")
    check_sma("sma_sparse", Q, K, V, L)
    rows, columns = L.nonzeros(Q.device)
    scores = contract("EN, EN -> E", Q[..., rows, :], K[..., columns, :])
    weighted = scores[..., None] * V[..., columns, :]
    Y = weighted.new_zeros(*weighted.shape[:-2], Q.shape[-2], V.shape[-1])
    return Y.index_add(-2, rows, weighted)


def sma_orders(target: int, source: int, features: int, head_dim: int, scan: bool = False) -> Orders:
    """All 15 pairwise contraction orders of masked attention with their costs.

    Args:
        target: length T.
        source: length S.
        features: size N of the contracted axis.
        head_dim: size P.
        scan: count a product by L as a running sum, one addition per entry, instead of a dense product.

    Returns:
        `Orders`, cheapest first; `QUADRATIC` and `LINEAR` are the names of (13) and (15).

    Cost:
        Constant: no tensor is made.
    """
    for name, size in (("target", target), ("source", source), ("features", features), ("head_dim", head_dim)):
        check_count("sma_orders", name, size)
    check_type("sma_orders", "scan", scan, bool)
    sizes = {"T": target, "S": source, "N": features, "P": head_dim}
    return orders(SMA, sizes, names=("Q", "K", "V", "L"), structured=("L",) if scan else ())


def check_sma(function: str, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, L: Mask | torch.Tensor) -> None:
    """Check shapes (T, N), (S, N), (S, P), (T, S), dtypes and devices; a boolean tensor may be a mask."""
    check_dtypes(function, {"Q": Q, "K": K, "V": V})
    check_type(function, "L", L, Mask, torch.Tensor)
    if isinstance(L, torch.Tensor):
        check_tensor(function, "L", L)
        if L.dtype != torch.bool:
            check_dtypes(function, {"Q": Q, "L": L})
    check_shapes(function, {"Q": (Q, "tn"), "K": (K, "sn"), "V": (V, "sp"), "L": (L, "ts")})
