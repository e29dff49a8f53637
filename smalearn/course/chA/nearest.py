"""The exercise of appendix A on best approximation: the block tensor train nearest to a matrix."""

import torch

from smalearn.course.exercises.core import exercise


def nearest_train(M, sizes, rank):
    """The (a·b, c·d) matrix nearest to M that is a block tensor train of these sizes with s = rank.

    Project a matrix onto the block tensor trains of given sizes: cut each of its slices to rank s.

    Hint: Which rows share a j, and which columns a k? Together they are a slice; different slices share no number of
    the factors.

    Hint: View M as (a, b, c, d) and bring b and c to the front. `torch.linalg.svd` decomposes all slices at once; keep
    the s largest singular values of each.

    Hint: `M.view(a, b, c, d).permute(1, 2, 0, 3)` are the slices, and `torch.linalg.svd(slices, full_matrices=False)`
    gives U, S and Vᵀ of each. Multiply what you keep of the three; then all axes go back to their places.

    Insight: Each slice is cut by itself, so the best train is found exactly: few structured families allow that.
    """
    a, b, c, d = sizes
    slices = M.view(a, b, c, d).permute(1, 2, 0, 3)  # (b, c, a, d)
    U, S, Vh = torch.linalg.svd(slices, full_matrices=False)
    near = (U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank, :]
    return near.permute(2, 0, 1, 3).reshape(M.shape)


def _cut(M, rank):
    """M with only its largest singular values."""
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    return U[:, :rank] @ torch.diag(S[:rank]) @ Vh[:rank]


def _slice_loop(M, sizes, rank):
    """Every slice on its own: rows j, j + b, ..., columns k·d to (k + 1)·d, cut to rank s."""
    _, b, c, d = sizes
    near = torch.zeros_like(M)
    for j in range(b):
        for k in range(c):
            where = slice(j, None, b), slice(k * d, (k + 1) * d)
            near[where] = _cut(M[where], rank)
    return near


def _nearest_cases(randn):
    yield torch.ones(1, 1).double(), (1, 1, 1, 1), 1
    for sizes, rank in [
        ((3, 1, 1, 4), 2),
        ((1, 4, 3, 1), 1),
        ((2, 2, 2, 2), 1),
        ((4, 2, 1, 4), 1),
        ((3, 4, 2, 6), 2),
        ((4, 3, 3, 4), 3),
    ]:
        a, b, c, d = sizes
        yield randn(a * b, c * d), sizes, rank


exercise(
    "A.3",
    "The nearest train",
    claim="003:btt-universal",
    level=3,
    minutes=15,
    cases=_nearest_cases,
    oracle=_slice_loop,
    wrong={
        "this is the nearest matrix of rank s: "
        "cut every slice on its own, M may then have a high rank": "= sizes → = len(M), 1, 1, M.shape[1]",
        "you cut M into a × d tiles of neighbouring rows: "
        "rows are numbered (a b), so that the rows of a slice are b apart": (
            "view(a, b, c, d).permute(1, 2, 0, 3) → view(b, a, c, d).transpose(1, 2) ; "
            "permute(2, 0, 1, 3) → transpose(1, 2)"
        ),
        "the columns of your slices are c apart: "
        "columns are numbered (c d), so that those of a slice stand side by side": (
            "view(a, b, c, d).permute(1, 2, 0, 3) → view(a, b, d, c).permute(1, 3, 0, 2) ; "
            "permute(2, 0, 1, 3) → permute(2, 0, 3, 1)"
        ),
        "you cut the b × d tiles of M, one for each i and k: a slice has one j and one k, "
        "and is a × d": "permute(1, 2, 0, 3) → transpose(1, 2) ; permute(2, 0, 1, 3) → transpose(1, 2)",
        "your slices are right, but still in the order (b, c, a, d): "
        "put the axes back before you reshape": "near.permute(2, 0, 1, 3) → near",
        "these are the slices: put the axes back to (a, "
        "b, c, d), and join them to (m, n)": "near.permute(2, 0, 1, 3).reshape(M.shape) → near",
        "you keep the smallest singular values: the nearest matrix keeps the largest": ":rank → -rank:",
        "you keep s + 1 singular values of each slice": ":rank → : rank + 1",
        "you keep s - 1 singular values of each slice": ":rank → : rank - 1",
        "you keep the largest singular values of all slices together: each slice keeps its own s": (
            "near = → S = S * (S >= S.flatten().sort(descending=True).values[min(b * c * rank, S.numel()) - 1])\n"
            "    near = ; :rank → :"
        ),
        "`torch.linalg.svd` returns Vᵀ: "
        "you have transposed it once more": ", full_matrices=False →  ; Vh[..., :rank, :] → Vh[..., :rank].mT",
        "`torch.linalg.svd` returns Vᵀ: "
        "keep its first s rows, and do not transpose it": "Vh[..., :rank, :] → Vh[..., :rank].mT",
        "U and V alone are directions: the singular values say how far to go in each": " * S[..., None, :rank] → ",
        "you take the root of the singular values on one side alone: "
        "the product of both factors needs all of them": "None, :rank] → None, :rank].sqrt()",
    },
)(nearest_train)
