"""Scores X M_h X^T of structured weights M_h, as products Q K^T: an order says what is called query, and what key."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrize import type_before_parametrizations

from smalearn._checks import ShapeError, brief, check_dtypes, check_type
from smalearn.scores.products import by_order, two_sides
from smalearn.weights import (
    BlockLowRank,
    BlockTensorTrain,
    LowRank,
    MultiLevelBlockTensorContraction,
    MultiLevelLowRank,
    Weight,
)

ORDERS = ("keys", "both", "keys by level", "dense", "dense by level")
"""Names of all orders: equations (31) and (34), (29) and (33), (30), (27), (28)."""

Weights = Weight | Sequence[Weight]
TWO_SIDED = LowRank | BlockLowRank | BlockTensorTrain | MultiLevelLowRank | MultiLevelBlockTensorContraction


def orders_of(weight: Weight) -> tuple[str, ...]:
    """The orders in which a weight's scores can be computed.

    Args:
        weight: of any family.

    Returns:
        "keys" and "dense" for all; "both" where M is a product of two factors whose sides can be had alone; the two
        "by level" for multi-level low rank.
    """
    both = ("both",) if isinstance(weight, TWO_SIDED) else ()
    levels = ("keys by level", "dense by level") if isinstance(weight, MultiLevelLowRank) else ()
    return tuple(name for name in ORDERS if name in ("keys", "dense", *both, *levels))


def score_factors(X: torch.Tensor, weights: Weights, order: str = "keys") -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys with Q K^T = X M_h X^T for every head h, equations (12), (13), (15), (16) and (27) to (35).

    ::

        order            Q                       K                          W
        keys             X                       X M^T                      D
        both             [X L_1 | X L_2 | …]     [X R_1 | X R_2 | …]        Σ_l r_l p_l; s·b·c for a BTT
        keys by level    [X | X | …]             [X M_1^T | X M_2^T | …]    D times levels
        dense            X                       X M^T with M formed        D
        dense by level   [X | X | …]             the same, M_l formed       D times levels

    Sums over levels need no addition of T × T matrices: levels stand side by side, and one product adds them up.

    Args:
        X: (..., T, D) tokens.
        weights: one (D, D) weight, or one for each of H heads, all of one structure. In the order "both" heads in equal
            groups may share their key factor R: one parameter, set for each of them.
        order: one of `orders_of(weight)`.

    Returns:
        Q and K (..., H, T, N), N the W of the table, dtype of X, without the axis H for a single weight. H is 1 in Q
        where all heads ask the same, and the number of groups in K where heads share R. Features stand in an order of
        their own.

    Raises:
        ShapeError: X has no axis of time, a weight is not (D, D), or weights have several structures.
        ValueError: the order is not one of the weight's, or dtypes or devices differ.

    Cost:
        `smalearn.scores.orders.score_costs` for each head, with the product Q K^T.
    """
    heads = check_weights("score_factors", X, weights)
    if order not in (known := orders_of(heads[0])):
        family = type(heads[0]).__name__
        raise ValueError(f"score_factors: order of {family} must be one of {', '.join(known)}, got {brief(order)}")
    Q, K = by_order(X, heads, order)
    return (Q[..., 0, :, :], K[..., 0, :, :]) if isinstance(weights, Weight) else (Q, K)


def normed_factors(X: torch.Tensor, weights: Weights, C: float, eps: float = 1e-5) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys with layer norm on both, equations (39) and (40), scaled so that scores stay within ±C.

    Low rank, in blocks and levels, normalises both projections of each level, C / (r_l p_l) · LN(X L_l) · LN(X R_l);
    every other family the token and its image, C / D · LN(X) · LN(X M^T). LN has no parameters here. Levels add up:
    with more than one, scores stay within ±C·levels. Of two numbers a layer norm leaves the order alone, 1 and -1, and
    no gradient: a level that is to learn has three or more.

    Args:
        X: (..., T, D) tokens.
        weights: as for `score_factors`.
        C: the bound, of each level.
        eps: added to the variances; with 0 the scores do not change when X or a level's factor is scaled.

    Returns:
        As `score_factors`.

    Raises:
        ShapeError: as there.
        ValueError: dtypes or devices differ, or a level has a single number, which layer norm turns to 0.
    """
    heads = check_weights("normed_factors", X, weights)
    pairs = two_sides(X, heads) if has_levels(heads[0]) else [by_order(X, heads, "keys")]
    for Q, _ in pairs:
        if Q.shape[-1] < 2:
            raise ValueError("normed_factors: a layer norm needs 2 numbers or more, got 1 of a level: raise its rank")
    normed = [[_layer_norm(F, eps) for F in pair] for pair in pairs]
    Q = torch.cat([Q * (C / Q.shape[-1]) for Q, _ in normed], -1)
    K = torch.cat([K for _, K in normed], -1)
    return (Q[..., 0, :, :], K[..., 0, :, :]) if isinstance(weights, Weight) else (Q, K)


def has_levels(weight: Weight) -> bool:
    """Whether M = Σ_l ⊕_k L_lk R_lk^T: low rank, in blocks, in levels, or a contraction that permutes nothing."""
    contraction = isinstance(weight, MultiLevelBlockTensorContraction)
    plain = contraction and not any(name.startswith(("left_", "right_")) for name in weight.state_dict())
    return plain or isinstance(weight, LowRank | BlockLowRank | MultiLevelLowRank)


def alike(weights: Sequence[Weight]) -> list[list[int]]:
    """Numbers of the heads with equal structure (family, sizes of all factors, how they are cut), group by group."""
    groups: dict[object, list[int]] = {}
    for i, weight in enumerate(weights):
        groups.setdefault(_structure(weight), []).append(i)
    return list(groups.values())


def check_weights(function: str, X: torch.Tensor, weights: Weights) -> list[Weight]:
    """Check tokens X (..., T, D) against (D, D) weights of one structure; return the weights as a list."""
    check_type(function, "weights", weights, Weight, Sequence, nn.ModuleList)
    heads = [weights] if isinstance(weights, Weight) else list(weights)
    for i, weight in enumerate(heads):
        check_type(function, f"weights[{i}]", weight, Weight)
    if not heads:
        raise ValueError(f"{function}: weights needs one weight or more, got none")
    check_dtypes(function, {"X": X, **{f"weight {i}": next(w.parameters()) for i, w in enumerate(heads)}})
    if X.ndim < 2:
        raise ShapeError(f"{function}: X needs trailing axes (T, D), got shape {tuple(X.shape)}")
    for i, weight in enumerate(heads):
        if weight.shape != (X.shape[-1], X.shape[-1]):
            raise ShapeError(f"{function}: weight {i} must be {(X.shape[-1],) * 2} for X, got {weight.shape}")
    if len(alike(heads)) > 1:
        raise ShapeError(f"{function}: weights must have one structure, got {', '.join(map(repr, heads))}")
    return heads


def check_order(function: str, order: object) -> None:
    """Check that an order is a name of `ORDERS`, or None."""
    if order is not None and (not isinstance(order, str) or order not in ORDERS):
        raise ValueError(f"{function}: order must be one of {', '.join(ORDERS)}, got {brief(order)}")


def _structure(weight):
    """Everything but the values of a weight's factors: weights of equal structure are computed together."""
    cuts = [str(getattr(weight, name, None)) for name in ("ranks", "rows", "columns", "alpha")]
    sizes = [(name, tuple(F.shape)) for name, F in weight.named_parameters()]
    return (
        type_before_parametrizations(weight),
        *cuts,
        *sizes,
        *((name, *order.tolist()) for name, order in weight.named_buffers()),
    )


def _layer_norm(F, eps):
    return functional.layer_norm(F, F.shape[-1:], eps=eps)
