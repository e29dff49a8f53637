"""The exercises of chapter 11 on softmax in parts, and on rotations level by level."""

import torch

from smalearn.course.exercises.core import exercise

INF = float("inf")

# ----------------------------------------------------------------------------------------------- 11.5 merge two parts


def _merge_loop(Y_1, lse_1, Y_2, lse_2):
    """Row by row, the larger denominator taken out."""
    rows, sums = [], []
    for y, a, x, b in zip(Y_1, lse_1, Y_2, lse_2, strict=True):
        top = max(a, b)
        z_1, z_2 = (a - top).exp(), (b - top).exp()
        rows.append((z_1 * y + z_2 * x) / (z_1 + z_2))
        sums.append(top + (z_1 + z_2).log())
    return torch.stack(rows), torch.stack(sums)


def _part(randn, length, keys, size, factor=1.0):
    """Softmax attention of random scores to some keys, and its log denominator; zero and -∞ where there are no keys."""
    S, V = factor * randn(length, keys), randn(keys, size)
    if not keys:
        return torch.zeros(length, size, dtype=torch.float64), torch.full((length,), -INF, dtype=torch.float64)
    return S.softmax(-1) @ V, S.logsumexp(-1)


def _merge_cases(randn):
    for length, keys, others, size, factor in [
        (1, 1, 1, 1, 1.0),
        (2, 3, 0, 2, 1.0),
        (3, 4, 2, 2, 1.0),
        (4, 2, 9, 3, 3.0),
        (5, 6, 6, 2, 600.0),
    ]:
        yield *_part(randn, length, keys, size, factor), *_part(randn, length, others, size, factor)
    Y, lse = _part(randn, 3, 4, 2)
    yield Y, lse, randn(3, 2), lse.clone()
    yield Y, lse, Y.clone(), lse + 1
    two = torch.full((3,), 2.0, dtype=torch.float64).log()
    yield Y, two, randn(3, 2), two.clone()
    yield Y, torch.zeros_like(lse), randn(3, 2), torch.zeros_like(lse)


def _weighted(Y_1, z_1, Y_2, z_2):
    """Parts with weights that need not sum to one; zero where both are."""
    total = z_1 + z_2
    return ((z_1 / total)[:, None] * Y_1 + (z_2 / total)[:, None] * Y_2).nan_to_num(0.0)


def _over_the_larger(Y_1, lse_1, Y_2, lse_2):
    """Numerator and denominator, both over the larger of the denominators of the parts."""
    top = torch.maximum(lse_1, lse_2)
    z_1, z_2 = (lse_1 - top).exp(), (lse_2 - top).exp()
    return z_1[:, None] * Y_1 + z_2[:, None] * Y_2, z_1 + z_2


def _finite(x):
    return x.nan_to_num(0.0, 1e9, -1e9)


def _overflow(Y_1, lse_1, Y_2, lse_2):
    """The denominators themselves, in single precision, where they overflow; NaN becomes 0."""
    z_1, z_2 = lse_1.float().exp(), lse_2.float().exp()
    exact, lse = _merge_loop(Y_1, lse_1, Y_2, lse_2)
    fits = (z_1 + z_2 < INF) & (z_1 + z_2 > 0)
    return torch.where(fits[:, None], exact, 0.0), torch.where(fits, lse, 0.0)


@exercise(
    "11.5",
    "Merge two parts",
    claim="003:batched-score",
    level=2,
    minutes=10,
    cases=_merge_cases,
    oracle=_merge_loop,
    wrong={
        "this is the plain mean: a part with the larger denominator "
        "weighs more, z_1 : z_2": lambda Y_1, lse_1, Y_2, lse_2: (
            (Y_1 + Y_2) / 2,
            torch.logaddexp(lse_1, lse_2),
        ),
        "you add the outputs: numerators add up, but each output has been divided "
        "by its own denominator": lambda Y_1, lse_1, Y_2, lse_2: (
            Y_1 + Y_2,
            torch.logaddexp(lse_1, lse_2),
        ),
        "your weights are the log-sum-exps: the weights are the "
        "denominators, their exponentials": lambda Y_1, lse_1, Y_2, lse_2: (
            _weighted(Y_1, _finite(lse_1), Y_2, _finite(lse_2)),
            torch.logaddexp(lse_1, lse_2),
        ),
        "your Y is a numerator: divide it by z_1 + z_2, both with the same maximum subtracted": lambda *given: (
            _over_the_larger(*given)[0],
            _merge_loop(*given)[1],
        ),
        "your weights sum to 1 over the tokens: they must do so over the two parts": lambda Y_1, lse_1, Y_2, lse_2: (
            lse_1.softmax(0)[:, None] * Y_1 + lse_2.softmax(0)[:, None] * Y_2,
            torch.logaddexp(lse_1, lse_2),
        ),
        "your log-sum-exp lacks the maximum: lse = m + log z, where m is what you have subtracted": lambda *given: (
            _merge_loop(*given)[0],
            _over_the_larger(*given)[1].log(),
        ),
        "you keep the part with the larger denominator and drop the other": lambda Y_1, lse_1, Y_2, lse_2: (
            torch.where((lse_1 >= lse_2)[:, None], Y_1, Y_2),
            torch.maximum(lse_1, lse_2),
        ),
        "the weights are exchanged: Y_1 has weight z_1/z": lambda Y_1, lse_1, Y_2, lse_2: (
            _merge_loop(Y_2, lse_1, Y_1, lse_2)[0],
            torch.logaddexp(lse_1, lse_2),
        ),
        "your log-sum-exp is the sum of the two, the logarithm of z_1·z_2: the "
        "denominators add, z_1 + z_2": lambda Y_1, lse_1, Y_2, lse_2: (
            _merge_loop(Y_1, lse_1, Y_2, lse_2)[0],
            _finite(lse_1) + _finite(lse_2),
        ),
        "your log-sum-exp is the larger of the two: it is the log of the "
        "sum, up to log 2 more": lambda Y_1, lse_1, Y_2, lse_2: (
            _merge_loop(Y_1, lse_1, Y_2, lse_2)[0],
            torch.maximum(lse_1, lse_2),
        ),
        "you compute exp(lse) itself, which overflows: take differences of logarithms first": _overflow,
    },
)
def merge(Y_1, lse_1, Y_2, lse_2):
    """Attention to all keys from attention to two parts of them: Y (T, P), and lse (T), the log of the denominators.

    Merge softmax attention to two sets of keys into attention to both, from outputs and log-sum-exps.

    Hint: Each output is a quotient u/z with z = exp(lse). What are the numerator and the denominator of the whole?

    Hint: u = z_1 Y_1 + z_2 Y_2 and z = z_1 + z_2, so Y is a mean of Y_1 and Y_2 with weights z_1/z and z_2/z. But z may
    be too large for a float: work with its logarithm alone.

    Hint: `lse = torch.logaddexp(lse_1, lse_2)`, and the weight of Y_1 is `(lse_1 - lse).exp()[:, None]`: never above 1.

    Insight: The merge is associative: keys may lie on many machines, and their parts come in any order.
    """
    lse = torch.logaddexp(lse_1, lse_2)
    Y = (lse_1 - lse).exp()[:, None] * Y_1 + (lse_2 - lse).exp()[:, None] * Y_2
    return Y, lse


# ------------------------------------------------------------------------------------ 11.7 rotations, level by level


def _rotate(
    x, ranks, positions, pair=lambda k, rank: (2 * k, 2 * k + 1), turn=lambda i, k, rank: i * 10000.0 ** (-2 * k / rank)
):
    """Token by token, level by level, pair by pair, as points in a plane."""
    y, start = torch.empty_like(x), 0
    for rank in ranks:
        for i in range(len(x)):
            for k in range(rank // 2):
                a, b = (start + feature for feature in pair(k, rank))
                angle = torch.as_tensor(turn(positions[i], k, rank), dtype=x.dtype)
                y[i, a] = x[i, a] * angle.cos() - x[i, b] * angle.sin()
                y[i, b] = x[i, a] * angle.sin() + x[i, b] * angle.cos()
        start += rank
    return y


def _rope_cases(randn):
    for ranks, positions in [
        ([2], [0]),
        ([2], [3, 5]),
        ([4], [0, 1, 2]),
        ([2, 2], [1, 2, 3]),
        ([4, 2, 2], [0, 1, 7, 30]),
        ([8, 4], [100, 2, 3]),
    ]:
        positions = torch.tensor(positions, dtype=torch.float64)
        yield randn(len(positions), sum(ranks)), ranks, positions


@exercise(
    "11.7",
    "Rotations, level by level",
    claim="003:rope",
    level=3,
    minutes=12,
    cases=_rope_cases,
    oracle=_rotate,
    wrong={
        "you rotate the head as one, with frequencies that run on from level to level: each level begins anew "
        "with the fastest": lambda x, ranks, positions: _rotate(x, [sum(ranks)], positions),
        "your exponent has the columns of the head below the line: pair k of a level turns by "
        "position · 10000^(-2k/r_l), with the level's own": lambda x, ranks, positions: _rotate(
            x, ranks, positions, turn=lambda i, k, rank: i * 10000.0 ** (-2 * k / sum(ranks))
        ),
        "you turn the other way: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": lambda x, ranks, positions: (
            _rotate(x, ranks, -positions)
        ),
        "you pair feature k with k + r/2: here the pairs are neighbours, 2k and 2k + 1": lambda *given: _rotate(
            *given, pair=lambda k, rank: (k, k + rank // 2)
        ),
        "all pairs turn by the position itself: pair k turns by position · 10000^(-2k/r)": lambda *given: _rotate(
            *given, turn=lambda i, k, rank: i
        ),
        "your exponent is -k/r with k the number of the pair: it is -2k/r": lambda *given: _rotate(
            *given, turn=lambda i, k, rank: i * 10000.0 ** (-k / rank)
        ),
        "your exponent is -4k/r with k the number of the pair: features 2k and 2k + 1 turn by -2k/r": lambda *given: (
            _rotate(*given, turn=lambda i, k, rank: i * 10000.0 ** (-4 * k / rank))
        ),
        "your exponent is +2k/r: it is -2k/r, later pairs turn more slowly": lambda *given: _rotate(
            *given, turn=lambda i, k, rank: i * 10000.0 ** (2 * k / rank)
        ),
        "the pairs are turned, but not put back side by side: the result's features 2k "
        "and 2k + 1 are a pair": lambda x, ranks, positions: torch.cat(
            [torch.cat([y[:, 0::2], y[:, 1::2]], 1) for y in _rotate(x, ranks, positions).split(ranks, 1)], 1
        ),
        "you rotate by the number of the row: use the given positions, "
        "which need not begin at 0": lambda x, ranks, positions: _rotate(x, ranks, torch.arange(len(x)).double()),
        "nothing is rotated": lambda x, ranks, positions: x.clone(),
    },
)
def rotate_levels(x, ranks, positions):
    """Each level of x (T, Σ r_l) rotated alone: its pair k at position i turns by i · 10000^(-2k / r_l).

    Apply RoPE to each level alone, so that a score that leaves levels out still has whole pairs.

    Hint: One level first. Write two neighbouring features as one complex number; what turns it by an angle θ?

    Hint: Multiply by exp(iθ). Pair k of a level of rank r turns by position · 10000^(-2k/r): with r of the level, not
    of the head, and k beginning at 0 in each level.

    Hint: `torch.view_as_complex(part.unflatten(-1, (-1, 2)))` is (T, r/2); `torch.view_as_real(...).flatten(-2)` goes
    back; the exponents are `-torch.arange(0, rank, 2) / rank`, in the dtype of x.

    Insight: A pair that two levels shared would turn by two angles: rotation and truncation commute only if pairs stay
    whole.
    """
    parts = []
    for part, rank in zip(x.split(ranks, -1), ranks, strict=True):
        angles = positions[:, None] * 10000.0 ** (-torch.arange(0, rank, 2, dtype=x.dtype) / rank)
        pairs = torch.view_as_complex(part.unflatten(-1, (-1, 2)))
        parts.append(torch.view_as_real(pairs * torch.exp(1j * angles)).flatten(-2))
    return torch.cat(parts, -1)
