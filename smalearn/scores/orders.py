"""Costs of a bilinear score's orders (structured attention paper, appendix E, Tables 2 and 3), and the cheapest order.

The tables say FLOPs and count multiply-adds, for one head and the full T × T square; so do these functions.
"""

from collections.abc import Sequence
from typing import NamedTuple

from smalearn._checks import check_count
from smalearn.scores.factors import has_levels, orders_of
from smalearn.weights import (
    BlockLowRank,
    BlockTensorTrain,
    LowRank,
    MultiLevelBlockTensorContraction,
    MultiLevelLowRank,
    Weight,
)
from smalearn.weights.btt import check_sizes


class Cost(NamedTuple):
    """Multiply-adds of all products, and the additions that join levels apart from them."""

    macs: int
    additions: int = 0


def low_rank_costs(length: int, dim: int, rank: int) -> dict[str, Cost]:
    """Scores X W_Q W_K^T X^T of low rank; "both" is the first row of Table 2 and what attention does.

    Args:
        length: T.
        dim: D.
        rank: r.

    Returns:
        The cost of each order by its name::

            both    T² r + 2 T D r
            keys    T² D + 2 T D r
            dense   T² D + T D² + D² r

    Raises:
        ValueError: a size is not an integer ≥ 1.

    Example:
        >>> low_rank_costs(1024, 512, 64)["both"]
        Cost(macs=134217728, additions=0)
    """
    check_count("low_rank_costs", "rank", rank)
    return {name: level_costs(length, dim, [rank], [1])[name] for name in ("keys", "both", "dense")}


def level_costs(length: int, dim: int, ranks: Sequence[int], blocks: Sequence[int] | None = None) -> dict[str, Cost]:
    """Scores of multi-level low rank, equations (27) to (31) and the other rows of Table 2.

    ::

        order              multiply-adds                              additions             row of Table 2
        dense              T² D + T D² + D² Σ r_l / p_l               D² Σ_(l>1) 1 / p_l    2
        dense by level     L T² D + Σ (T D² + D² r_l) / p_l           -                     3
        both               2 T D r + T² Σ p_l r_l                     -                     4, "minimal"
        keys by level      2 T D r + L T² D                           -                     5
        keys               2 T D r + T² D                             (L - 1) T D           6

    The paper calls "both" minimal. It is, if Σ p_l r_l < D; but then M has no full rank. As soon as it has,
    Σ p_l r_l ≥ D and "keys" is cheaper, or as cheap. (Row 2 of the table has half of the additions; in row 3 its sum
    must cover both terms.) What joins the products of levels, T² numbers each, is not an addition of its own: the
    products may be one, of all levels side by side.

    Args:
        length: T.
        dim: D.
        ranks: r_l.
        blocks: p_l; by default 1, 2, 4, …

    Returns:
        The cost of each order by its name.

    Raises:
        ValueError: a size is not an integer ≥ 1, p_l does not divide D, or a level lacks its rank or blocks.

    Example:
        >>> costs = level_costs(512, 512, (32, 8, 6, 4, 4, 4, 4, 2))
        >>> min(costs, key=costs.get), costs["both"].macs // costs["keys"].macs
        ('keys', 1)
    """
    T, D = check_count("level_costs", "length", length), check_count("level_costs", "dim", dim)
    blocks = [2**i for i in range(len(ranks))] if blocks is None else blocks
    if len(blocks) != len(ranks) or not ranks:
        raise ValueError(
            f"level_costs: every level has a rank and blocks, got {len(ranks)} ranks, {len(blocks)} blocks"
        )
    for i, (rank, p) in enumerate(zip(ranks, blocks, strict=True)):
        check_count("level_costs", f"ranks[{i}]", rank)
        if D % check_count("level_costs", f"blocks[{i}]", p):
            raise ValueError(f"level_costs: blocks[{i}] must divide dim = {D}, got {p}")
    return _level_costs(T, D, ranks, [([D // p] * p, [D // p] * p) for p in blocks])


def _level_costs(T, D, ranks, blocks):
    """`level_costs` for blocks of any sizes, given as rows and columns of each level."""
    L, through = len(ranks), 2 * T * D * sum(ranks)
    areas = [sum(m * n for m, n in zip(*sizes, strict=True)) for sizes in blocks]  # D² / p_l where blocks are equal
    formed = sum(rank * area for rank, area in zip(ranks, areas, strict=True))
    return {
        "keys": Cost(through + T * T * D, (L - 1) * T * D),
        "both": Cost(through + T * T * sum(len(rows) * r for r, (rows, _) in zip(ranks, blocks, strict=True))),
        "keys by level": Cost(through + L * T * T * D),
        "dense": Cost(T * T * D + T * D * D + formed, sum(areas[1:])),
        "dense by level": Cost(L * T * T * D + T * sum(areas) + formed),
    }


def btt_costs(length: int, sizes: tuple[int, int, int, int], rank: int) -> dict[str, Cost]:
    """Scores of a block tensor train, equations (33) to (35) and Table 3.

    ::

        order    multiply-adds                               with a = b = c = d = √D
        both     T² s b c + s T (a b c + c d b)              s T² D + 2 s T D^1.5
        keys     T² a b   + s T (a b c + c d b)              T² D + 2 s T D^1.5
        dense    T² a b   + T a b c d + s a b c d            T² D + T D² + s D²

    So at s = 1 both orders of square factors cost the same; the choice matters from s = 2 on.

    Args:
        length: T.
        sizes: (a, b, c, d).
        rank: s.

    Returns:
        The cost of each order by its name.

    Raises:
        ValueError: a size is not an integer ≥ 1.
    """
    T, s = check_count("btt_costs", "length", length), check_count("btt_costs", "rank", rank)
    a, b, c, d = check_sizes("btt_costs", sizes)
    through, square = s * T * (a * b * c + c * d * b), a * b * c * d
    return {
        "keys": Cost(through + T * T * a * b),
        "both": Cost(through + T * T * s * b * c),
        "dense": Cost(T * T * a * b + T * square + s * square),
    }


def score_costs(weight: Weight, length: int) -> dict[str, Cost]:
    """Cost of each order of a weight's scores, for one head and T tokens.

    Args:
        weight: (D, D), of any family.
        length: T.

    Returns:
        The cost by the order's name, for all `orders_of(weight)`. For families without a table, "keys" is
        T² D + T·`macs` and "dense" T² D + T D² + D·`macs`, M being formed by its products with D unit vectors.

    Raises:
        ValueError: length is not an integer ≥ 1.
    """
    T, (D, _) = check_count("score_costs", "length", length), weight.shape
    match weight:
        case LowRank():
            return low_rank_costs(T, D, weight.rank)
        case MultiLevelLowRank():
            costs = _level_costs(T, D, weight.ranks, list(zip(weight.rows, weight.columns, strict=True)))
        case BlockTensorTrain():
            return btt_costs(T, weight.sizes, weight.rank)
        case _:
            costs = {"keys": Cost(T * T * D + T * weight.macs), "dense": Cost(T * T * D + T * D * D + D * weight.macs)}
    if isinstance(weight, BlockLowRank | MultiLevelBlockTensorContraction):
        costs["both"] = Cost(T * weight.macs + T * T * sum(_widths(weight)))
    return {name: costs[name] for name in orders_of(weight)}


def score_width(weight: Weight) -> int:
    """Number of independent products that a score sums: r, Σ_l p_l r_l, and D for all other families.

    Args:
        weight: (D, D), of any family.

    Returns:
        W: with the variances of `random`, the scores of independent tokens of variance 1 have variance W or nearly.
    """
    return sum(_widths(weight)) if has_levels(weight) else weight.shape[0]


def _widths(weight):
    """p_l r_l of every level."""
    match weight:
        case LowRank():
            return [weight.rank]
        case BlockLowRank():
            return [weight.blocks * weight.rank]
        case MultiLevelBlockTensorContraction():
            return [R.shape[1] * len(columns) for R, columns in zip(weight.R, weight.columns, strict=True)]
    return [p * r for p, r in zip(weight.blocks, weight.ranks, strict=True)]


def cheapest(weight: Weight, length: int) -> str:
    """The order with the fewest multiply-adds; of equal ones the first of `ORDERS`.

    Args:
        weight: (D, D), of any family.
        length: T; 0 counts as 1.

    Returns:
        Its name: "keys" or "both", and "dense" where the factors hold more numbers than M and the tokens are many.
    """
    costs = score_costs(weight, max(1, length))
    return min(costs, key=lambda name: costs[name].macs)
