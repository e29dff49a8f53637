"""Batched products behind `score_factors`: queries and keys of every order, for all heads at once."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch.func import functional_call, vmap

from smalearn.weights import (
    BlockTensorTrain,
    LowRank,
    MultiLevelBlockTensorContraction,
    MultiLevelLowRank,
    Weight,
)


def apply_heads(X: torch.Tensor, weights: Sequence[Weight]) -> torch.Tensor:
    """M_h x (..., H, T, D) for X (..., T, D) and heads of one structure, by the weights' own product, all at once."""
    states = [weight.state_dict(keep_vars=True) for weight in weights]
    state = {name: torch.stack([one[name] for one in states]) for name in states[0]}
    return vmap(lambda state: functional_call(weights[0], state, (X,)))(state).movedim(0, -3)


def by_order(X, heads, order):
    """Q and K of any order, see `score_factors`; X and heads are checked."""
    if order == "both":
        return tuple(torch.cat(side, -1) for side in zip(*two_sides(X, heads), strict=True))
    if order == "keys":
        if isinstance(heads[0], BlockTensorTrain):
            return _btt_keys(X, *_factors(heads))
        if isinstance(heads[0], MultiLevelLowRank) and all(
            len({*rows}) == 1 for rows in heads[0].rows + heads[0].columns
        ):
            return X[..., None, :, :], _level_keys(X, heads)
        return X[..., None, :, :], apply_heads(X, heads)
    if order == "dense":
        return X[..., None, :, :], X[..., None, :, :] @ _formed(heads).mT
    if order == "dense by level":
        keys = [_through_blocks(X, blocks, columns) for blocks, _, columns in _levels(heads)]
    else:
        levels = zip(heads[0].rows, heads[0].columns, *_split(heads), strict=True)
        keys = [_expand(_project(X, R, columns), L, rows) for rows, columns, L, R in levels]
    return torch.cat([X[..., None, :, :]] * len(keys), -1), torch.cat(keys, -1)


def _formed(heads):
    """M_h of every head, (H, D, D)."""
    first = heads[0]
    if isinstance(first, BlockTensorTrain):
        return torch.einsum("hbacs,hcdbs->habcd", *_factors(heads)).flatten(3).flatten(1, 2)
    if isinstance(first, LowRank):
        L, R = _factors(heads)
        return L @ R.mT
    if not isinstance(first, MultiLevelLowRank):
        unit = torch.eye(first.shape[1], dtype=(factor := next(first.parameters())).dtype, device=factor.device)
        return apply_heads(unit, heads).mT
    M = first.L.new_zeros(len(heads), *first.shape)
    for blocks, rows, columns in _levels(heads):
        corners = zip(accumulate(rows, initial=0), accumulate(columns, initial=0), blocks, strict=False)
        for i, j, block in corners:
            M[:, i : i + block.shape[1], j : j + block.shape[2]] += block
    return M


def _levels(heads):
    """For each level the products L_k R_k^T of its blocks, (H, m_k, n_k) each, and the sizes of these."""
    for rows, columns, L, R in zip(heads[0].rows, heads[0].columns, *_split(heads), strict=True):
        yield [L_k @ R_k.mT for L_k, R_k in zip(L.split(rows, 1), R.split(columns, 1), strict=True)], rows, columns


def _through_blocks(X, blocks, columns):
    """X (⊕_k M_k)^T, (..., H, T, D)."""
    parts = zip(X[..., None, :, :].split(columns, -1), blocks, strict=True)
    return torch.cat([x @ block.mT for x, block in parts], -1)


def _btt_keys(X, L, R):
    """Equation (35) for BTT factors L (H, b, a, c, s) and R (H, c, d, b, s), with P_L on X, which all heads share.

    So the keys are read where the last batched product writes them, as (b a) rows and a column for each token.
    """
    heads, b, a, c, s = L.shape
    blocks = R.permute(1, 4, 0, 3, 2).reshape(c, -1, R.shape[2])
    Z = torch.bmm(blocks, X.reshape(-1, X.shape[-1]).mT.unflatten(0, (c, -1)))  # (c, s·H·b, tokens)
    Z = Z.view(c * s, heads * b, -1).transpose(0, 1)
    Y = torch.bmm(L.reshape(heads * b, a, c * s), Z)
    K = Y.view(heads, b * a, *X.shape[:-1]).movedim((0, 1), (-3, -1))
    return X.unflatten(-1, (a, b)).mT.flatten(-2)[..., None, :, :], K


def _level_keys(X, heads):
    """Equation (31) for equal blocks: each level adds its part to (H, D) rows and a column for each token."""
    columns = X.reshape(-1, X.shape[-1]).mT
    Y = X.new_zeros(len(heads), *columns.shape)
    for p, L, R in zip(heads[0].blocks, *_split(heads), strict=True):
        blocks = R.unflatten(1, (p, -1)).permute(1, 0, 3, 2).flatten(1, 2)  # (p, H·r, D/p)
        Z = torch.bmm(blocks, columns.unflatten(0, (p, -1))).unflatten(1, (len(heads), -1)).transpose(0, 1)
        Y = torch.baddbmm(
            Y.view(len(heads) * p, -1, Y.shape[-1]), L.reshape(len(heads) * p, -1, L.shape[-1]), Z.flatten(0, 1)
        )
    return Y.view(len(heads), X.shape[-1], *X.shape[:-1]).movedim((0, 1), (-3, -1))


def two_sides(X, heads):
    """For each level queries X L_l and keys X R_l, (..., H, T, r_l p_l) each."""
    first = heads[0]
    match first:
        case MultiLevelBlockTensorContraction():
            return [_two_sides_permuted(X, heads, i) for i in range(len(first.rows))]
        case MultiLevelLowRank():
            levels = zip(first.rows, first.columns, *_split(heads, shared=True), strict=True)
            return [(_project(X, L, rows), _project(X, R, columns)) for rows, columns, L, R in levels]
    L, R = _factors(heads, shared=True)
    match first:
        case BlockTensorTrain():
            a, b, c, d = first.sizes
            Q = torch.einsum("...tab,hbacs->...htsbc", X.unflatten(-1, (a, b)), L).flatten(-3)
            return [(Q, torch.einsum("...tcd,hcdbs->...htsbc", X.unflatten(-1, (c, d)), R).flatten(-3))]
        case LowRank():
            return [(X[..., None, :, :] @ L, X[..., None, :, :] @ R)]
    return [(_in_blocks(X, L), _in_blocks(X, R))]


def _two_sides_permuted(X, heads, i):
    """Level i of contractions: the queries go through P_L first and P_R last; their keys stay as they are."""
    first = heads[0]
    left, right = getattr(first, f"left_{i}"), getattr(first, f"right_{i}")
    L, R = _stack([w.L[i] for w in heads]), _stack([w.R[i] for w in heads], shared=True)
    Q = _project(X if left is None else X[..., left.argsort()], first.alpha[i] * L, first.rows[i])
    return Q if right is None else Q[..., right.argsort()], _project(X, R, first.columns[i])


def _project(X, F, sizes):
    """X (⊕_k F_k) for blocks of these sizes below each other in F (H, D, r)."""
    if len(set(sizes)) == 1:
        return _in_blocks(X, F.unflatten(1, (len(sizes), -1)))
    parts = zip(X.split(sizes, -1), F.split(sizes, 1), strict=True)
    return torch.cat([x[..., None, :, :] @ block for x, block in parts], -1)


def _in_blocks(X, F):
    """X (⊕_k F_k) for equal blocks F (H, p, D/p, r), one product for all heads of a block: (..., H, T, p·r)."""
    return torch.einsum("...tpm,hpmr->...htpr", X.unflatten(-1, (F.shape[1], -1)), F).flatten(-2)


def _expand(Z, F, sizes):
    """Z (⊕_k F_k)^T: the way back of `_project`, from (..., H, T, p·r) to (..., H, T, D)."""
    Z = Z.unflatten(-1, (len(sizes), -1))
    if len(set(sizes)) == 1:
        return torch.einsum("...htpr,hpmr->...htpm", Z, F.unflatten(1, (len(sizes), -1))).flatten(-2)
    return torch.cat([z @ block.mT for z, block in zip(Z.unbind(-2), F.split(sizes, 1), strict=True)], -1)


def _factors(heads, shared=False):
    """L and R of all heads, (H, ...) each; see `_stack`."""
    return _stack([weight.L for weight in heads]), _stack([weight.R for weight in heads], shared)


def _split(heads, shared=False):
    """The columns of each level of L and R, for all heads."""
    return (F.split(heads[0].ranks, -1) for F in _factors(heads, shared))


def _stack(factors, shared=False):
    """The factors of all heads, (H, ...); those that equal groups of heads share only once, if `shared`."""
    distinct = list({id(F): F for F in factors}.values())
    size = len(factors) // len(distinct)
    grouped = [F for F in distinct for _ in range(size)]
    if shared and len(grouped) == len(factors) and all(F is G for F, G in zip(factors, grouped, strict=True)):
        factors = distinct
    return torch.stack(factors)
