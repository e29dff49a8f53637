"""The exercise of appendix A on best approximation: the block tensor train nearest to a matrix."""

import torch

from smalearn.course.exercises.core import exercise


def _cut(M, keep):
    """M with only its singular values number `keep`."""
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    return U[:, keep] @ torch.diag(S[keep]) @ Vh[keep]


def _slice_loop(M, sizes, rank, keep=None, rows=None, columns=None):
    """Every slice on its own: rows j, j + b, ..., columns k·d to (k + 1)·d, cut to rank s."""
    a, b, c, d = sizes
    keep = keep or (lambda s: slice(None, s))
    rows = rows or (lambda j: [i * b + j for i in range(a)])
    columns = columns or (lambda k: [k * d + j for j in range(d)])
    near = torch.zeros_like(M)
    for j in range(b):
        for k in range(c):
            where = torch.tensor(rows(j))[:, None], torch.tensor(columns(k))
            near[where] = _cut(M[where], keep(rank))
    return near


def _tiles(M, sizes, rank):
    a, *_ = sizes
    return _slice_loop(M, sizes, rank, rows=lambda j: [j * a + i for i in range(a)])


def _strided(M, sizes, rank):
    _, _, c, d = sizes
    return _slice_loop(M, sizes, rank, columns=lambda k: [j * c + k for j in range(d)])


def _cut_all(slices, rank):
    """Each of the slices (..., rows, columns) cut to rank s."""
    U, S, Vh = torch.linalg.svd(slices, full_matrices=False)
    return (U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank, :]


def _not_back(M, sizes, rank):
    return _cut_all(M.reshape(sizes).permute(1, 2, 0, 3), rank).reshape(M.shape)


def _neighbours(M, sizes, rank):
    """The b × d tiles of M, a and c in front."""
    return _cut_all(M.reshape(sizes).transpose(1, 2), rank).transpose(1, 2).reshape(M.shape)


def _unweighted(M, sizes, rank):
    a, b, c, d = sizes
    U, _, Vh = torch.linalg.svd(M.reshape(a, b, c, d).permute(1, 2, 0, 3), full_matrices=False)
    return (U[..., :rank] @ Vh[..., :rank, :]).permute(2, 0, 1, 3).reshape(M.shape)


def _root(M, sizes, rank):
    a, b, c, d = sizes
    U, S, Vh = torch.linalg.svd(M.reshape(a, b, c, d).permute(1, 2, 0, 3), full_matrices=False)
    cut = (U[..., :rank] * S[..., None, :rank].sqrt()) @ Vh[..., :rank, :]
    return cut.permute(2, 0, 1, 3).reshape(M.shape)


def _largest_of_all(M, sizes, rank):
    """The largest singular values of all slices together."""
    _, b, c, _ = sizes
    U, S, Vh = torch.linalg.svd(M.reshape(sizes).permute(1, 2, 0, 3), full_matrices=False)
    least = S.flatten().sort(descending=True).values[min(b * c * rank, S.numel()) - 1]
    return ((U * S.where(least <= S, 0.0)[..., None, :]) @ Vh).permute(2, 0, 1, 3).reshape(M.shape)


def _across(M, sizes, rank):
    """Slices for each a and d, b and c inside."""
    return _cut_all(M.reshape(sizes).permute(0, 3, 1, 2), rank).permute(0, 2, 3, 1).reshape(M.shape)


def _other_column(M, sizes, rank):
    """Slices for each b and d, a and c inside."""
    return _cut_all(M.reshape(sizes).permute(1, 3, 0, 2), rank).permute(2, 0, 3, 1).reshape(M.shape)


def _turned_back(M, sizes, rank):
    """The third factor of `svd` taken for V."""
    U, S, Vh = torch.linalg.svd(M.reshape(sizes).permute(1, 2, 0, 3))
    near = (U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank].mT
    return near.permute(2, 0, 1, 3).reshape(M.shape)


def _turned_thin(M, sizes, rank):
    """The same of the thin decomposition, whose third factor need not be square."""
    U, S, Vh = torch.linalg.svd(M.reshape(sizes).permute(1, 2, 0, 3), full_matrices=False)
    near = (U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank].mT
    return near.permute(2, 0, 1, 3).reshape(M.shape)


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


@exercise(
    "A.3",
    "The nearest train",
    claim="003:btt-universal",
    level=3,
    minutes=15,
    cases=_nearest_cases,
    oracle=_slice_loop,
    wrong={
        "this is the nearest matrix of rank s: cut every slice on its own, M may "
        "then have a high rank": lambda M, sizes, rank: _cut(M, slice(None, rank)),
        "you cut M into a × d tiles of neighbouring rows: rows are numbered (a b), so that the rows of a slice "
        "are b apart": _tiles,
        "the columns of your slices are c apart: columns are numbered (c d), so that those of a slice stand "
        "side by side": _strided,
        "you cut the b × d tiles of M, one for each i and k: a slice has one j and one k, and is a × d": _neighbours,
        "your slices are right, but still in the order (b, c, a, d): put the axes back before you reshape": _not_back,
        "these are the slices: put the axes back to (a, b, c, d), and join them to (m, n)": lambda M, sizes, rank: (
            _cut_all(M.reshape(sizes).permute(1, 2, 0, 3), rank)
        ),
        "you keep the smallest singular values: the nearest matrix keeps the largest": lambda M, sizes, rank: (
            _slice_loop(M, sizes, rank, keep=lambda s: slice(-s, None))
        ),
        "you keep s + 1 singular values of each slice": lambda M, sizes, rank: _slice_loop(
            M, sizes, rank, keep=lambda s: slice(None, s + 1)
        ),
        "you keep s - 1 singular values of each slice": lambda M, sizes, rank: _slice_loop(
            M, sizes, rank, keep=lambda s: slice(None, s - 1)
        ),
        "you keep the largest singular values of all slices together: each slice keeps its own s": _largest_of_all,
        "you cut a b × c slice for each i and h: a slice has one j and one k, and is a × d": _across,
        "you cut an a × c slice for each j and h: a slice has one j and one k, and is a × d": _other_column,
        "`torch.linalg.svd` returns Vᵀ: you have transposed it once more": _turned_back,
        "`torch.linalg.svd` returns Vᵀ: keep its first s rows, and do not transpose it": _turned_thin,
        "U and V alone are directions: the singular values say how far to go in each": _unweighted,
        "you take the root of the singular values on one side alone: the product of both factors needs all of "
        "them": _root,
    },
)
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
