"""The exercises of chapter 11 on softmax in parts, and on rotations level by level."""

import math

import torch

from smalearn.course.exercises.core import exercise

INF = float("inf")

# ------------------------------------------------------------------------------------- 11.5 break the anchor


def anchored(scores, values):
    """Softmax attention of one query in float32, its last score taken out of the exponent."""
    weights = (scores - scores[-1]).exp()
    return weights @ values / weights.sum()


def _still_right(answer, length):
    if not isinstance(answer, torch.Tensor) or answer.shape != (length,) or answer.dtype != torch.float32:
        return f"return a float32 tensor of shape ({length},)"
    if not answer.isfinite().all():
        return "all scores must be finite"
    if answer.abs().max() > 1000:
        return "scores must lie between -1000 and 1000"
    values = torch.arange(length, dtype=torch.float32)
    wrong = not (anchored(answer, values) - answer.softmax(-1) @ values).abs() < 1e-3
    return "" if wrong else "the program is right on these scores"


@exercise(
    "11.5",
    "Break the anchor",
    claim="003:batched-score",
    kind="break",
    level=1,
    minutes=6,
    cases=lambda randn: ((length,) for length in (2, 3, 8)),
    refuse=_still_right,
    wrong={
        "every score is the same: nothing is far above the anchor": lambda length: torch.zeros(length),
        "the last score, which is the anchor, is far above all others: then their exponentials are 0, as they should "
        "be": lambda length: torch.cat([torch.zeros(length - 1), torch.full((1,), 900.0)]),
        "a score is above the anchor, but e^80 still fits into a float32": lambda length: torch.cat(
            [torch.full((1,), 80.0), torch.zeros(length - 1)]
        ),
        "these scores are not finite": lambda length: torch.full((length,), INF),
    },
)
def overflowing(length):
    """Finite float32 scores (length), between -1000 and 1000, on which the program goes wrong.

    A program computes attention of one query with its last score as the anchor: `weights = (scores -
    scores[-1]).exp()`, then `weights @ values / weights.sum()`. Find scores for which that is not the softmax.

    Hint: When is e^(s - m) too large for a float32, whose largest number is about 3.4e38?

    Hint: ln(3.4e38) is 88.7. Which score do you choose as m, and which above it?

    Insight: An anchor near the largest score is enough, for numerator and denominator shrink alike; only one far below
    it overflows.
    """
    scores = torch.zeros(length)
    scores[0] = 100
    return scores


# ----------------------------------------------------------------------------------------------- 11.6 merge two parts


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
    far = torch.tensor([0.0, 2000.0, -2000.0], dtype=torch.float64)  # no maximum serves two of these rows
    yield Y, lse + far, randn(3, 2), lse + far - 1


def _with(Y=lambda *given: _merge_loop(*given)[0], lse=lambda *given: _merge_loop(*given)[1]):
    """The merge with another output, or another log-sum-exp."""
    return lambda *given: (Y(*given), lse(*given))


def _weighted(weight, total=None):
    """Outputs with these weights of a part's log-sum-exp, over their sum or over another total."""

    def output(Y_1, lse_1, Y_2, lse_2):
        w_1, w_2 = weight(lse_1), weight(lse_2)
        z = w_1 + w_2 if total is None else total
        return (w_1[:, None] * Y_1 + w_2[:, None] * Y_2) / torch.as_tensor(z).expand(len(Y_1))[:, None]

    return output


def _over_the_larger(Y_1, lse_1, Y_2, lse_2):
    """Numerator and denominator, both over the larger of the denominators of the parts."""
    top = torch.maximum(lse_1, lse_2)
    z_1, z_2 = (lse_1 - top).exp(), (lse_2 - top).exp()
    return z_1[:, None] * Y_1 + z_2[:, None] * Y_2, z_1 + z_2


def _of_all(Y_1, lse_1, Y_2, lse_2):
    """Both over the exponential of the largest log-sum-exp of all rows."""
    top = max(lse_1.max(), lse_2.max())
    z_1, z_2 = (lse_1 - top).exp(), (lse_2 - top).exp()
    return (z_1[:, None] * Y_1 + z_2[:, None] * Y_2) / (z_1 + z_2)[:, None], top + (z_1 + z_2).log()


def _sum(Y_1, lse_1, Y_2, lse_2):
    return Y_1 + Y_2


def _mean(Y_1, lse_1, Y_2, lse_2):
    return (Y_1 + Y_2) / 2


def _larger(Y_1, lse_1, Y_2, lse_2):
    return torch.where((lse_1 >= lse_2)[:, None], Y_1, Y_2)


@exercise(
    "11.6",
    "Merge two parts",
    claim="003:batched-score",
    level=2,
    minutes=10,
    cases=_merge_cases,
    oracle=_merge_loop,
    wrong={
        "this is the plain mean: a part with the larger denominator weighs more, z_1 : z_2": _with(_mean),
        "these are plain means, of outputs and of logarithms: weights are z_1 : z_2, and denominators add up": _with(
            _mean, lambda Y_1, lse_1, Y_2, lse_2: (lse_1 + lse_2) / 2
        ),
        "you add the outputs: numerators add up, but each output has been divided by its own denominator": _with(_sum),
        "you add outputs and logarithms: it is numerators that add up, and denominators": _with(
            _sum, lambda Y_1, lse_1, Y_2, lse_2: lse_1 + lse_2
        ),
        "your weights are the log-sum-exps: the weights are the denominators, their exponentials": _with(
            _weighted(lambda lse: lse)
        ),
        "your weights are the log-sum-exps, and you add these: add their exponentials, the denominators": _with(
            _weighted(lambda lse: lse), lambda Y_1, lse_1, Y_2, lse_2: lse_1 + lse_2
        ),
        "your Y is a numerator: divide it by z_1 + z_2, both with the same maximum subtracted": _with(
            lambda *given: _over_the_larger(*given)[0]
        ),
        "both are over e^m, m the larger logarithm: divide Y by the other sum, and lse = m + its logarithm": (
            lambda *given: (_over_the_larger(*given)[0], _over_the_larger(*given)[1].log())
        ),
        "your weights sum to 1 over the tokens: they must do so over the two parts": _with(
            _weighted(lambda lse: lse.softmax(0), 1.0)
        ),
        "your log-sum-exp lacks the maximum: lse = m + log z, where m is what you have subtracted": _with(
            lse=lambda *given: _over_the_larger(*given)[1].log()
        ),
        "your log-sum-exp is a sum of exponentials over the larger one: lse = m + log of it": _with(
            lse=lambda *given: _over_the_larger(*given)[1]
        ),
        "this is the denominator itself, which overflows: its logarithm is asked": _with(
            lse=lambda Y_1, lse_1, Y_2, lse_2: lse_1.exp() + lse_2.exp()
        ),
        "you keep the part with the larger denominator and drop the other": _with(
            _larger, lambda Y_1, lse_1, Y_2, lse_2: torch.maximum(lse_1, lse_2)
        ),
        "your Y is that of the part with the larger denominator: the other has its weight, too": _with(_larger),
        "the weights are exchanged: Y_1 has weight z_1/z": _with(
            lambda Y_1, lse_1, Y_2, lse_2: _merge_loop(Y_2, lse_1, Y_1, lse_2)[0]
        ),
        "your log-sum-exp is the sum of the two, the logarithm of z_1·z_2: the denominators add, z_1 + z_2": _with(
            lse=lambda Y_1, lse_1, Y_2, lse_2: lse_1 + lse_2
        ),
        "your log-sum-exp is the mean of the two: it is the logarithm of z_1 + z_2": _with(
            lse=lambda Y_1, lse_1, Y_2, lse_2: (lse_1 + lse_2) / 2
        ),
        "your log-sum-exp is log 2 too low, the logarithm of a mean: it is that of the sum": _with(
            lse=lambda Y_1, lse_1, Y_2, lse_2: torch.logaddexp(lse_1, lse_2) - math.log(2)
        ),
        "your log-sum-exp is the larger of the two: it is the log of the sum, up to log 2 more": _with(
            lse=lambda Y_1, lse_1, Y_2, lse_2: torch.maximum(lse_1, lse_2)
        ),
        "your Y takes exp(lse) itself, which overflows: take differences of logarithms first": _with(
            _weighted(torch.exp)
        ),
        "you compute exp(lse) itself, which overflows: take differences of logarithms first": _with(
            _weighted(torch.exp), lambda Y_1, lse_1, Y_2, lse_2: (lse_1.exp() + lse_2.exp()).log()
        ),
        "one maximum serves all rows in your code, so that rows far below it become 0/0: each row needs its own": (
            _of_all
        ),
        "one maximum serves all rows in your Y, so that rows far below it become 0/0: each row needs its own": _with(
            lambda *given: _of_all(*given)[0]
        ),
    },
)
def merge(Y_1, lse_1, Y_2, lse_2):
    """Attention to all keys from attention to two parts of them: Y (T, P), and lse (T), the log of the denominators.

    Merge softmax attention to two sets of keys into attention to both, from outputs and log-sum-exps. Return both,
    (Y, lse).

    Hint: Each output is a quotient u/z with z = exp(lse). What are the numerator and the denominator of the whole?

    Hint: u = z_1 Y_1 + z_2 Y_2 and z = z_1 + z_2, so Y is a mean of Y_1 and Y_2 with weights z_1/z and z_2/z. But z may
    be too large for a float: work with its logarithm alone.

    Hint: `lse = torch.logaddexp(lse_1, lse_2)`, and the weight of Y_1 is `(lse_1 - lse).exp()[:, None]`: never above 1.

    Insight: The merge is associative: keys may lie on many machines, and their parts come in any order.
    """
    lse = torch.logaddexp(lse_1, lse_2)
    Y = (lse_1 - lse).exp()[:, None] * Y_1 + (lse_2 - lse).exp()[:, None] * Y_2
    return Y, lse


# ------------------------------------------------------------------------------------ 11.8 rotations, level by level


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


def _planes(turn, halves=False):
    """Both features of each pair from what they were, and from the cosine and sine of its angle; side by side."""

    def rotated(x, ranks, positions):
        parts = []
        for part, rank in zip(x.split(ranks, 1), ranks, strict=True):
            a, b = part.chunk(2, 1) if halves else (part[:, ::2], part[:, 1::2])
            angle = positions[:, None] * 10000.0 ** (-torch.arange(0, rank, 2).double() / rank)
            parts.append(torch.stack(turn(a, b, angle.cos(), angle.sin()), -1).flatten(1))
        return torch.cat(parts, 1)

    return rotated


def _columns(angles, halves=False):
    """Each feature with an angle of its own, by the exponents of `angles(rank)`, and with its partner's sine."""

    def rotated(x, ranks, positions):
        parts = []
        for part, rank in zip(x.split(ranks, 1), ranks, strict=True):
            a, b = part.chunk(2, 1) if halves else (part[:, ::2], part[:, 1::2])
            partner = torch.cat([-b, a], 1) if halves else torch.stack([-b, a], -1).flatten(1)
            angle = positions[:, None] * 10000.0 ** -(angles(rank).double() / rank)
            parts.append(part * angle.cos() + partner * angle.sin())
        return torch.cat(parts, 1)

    return rotated


def _by_level(rotate):
    """Levels one by one, `rotate` knowing how many columns stand before."""
    return lambda x, ranks, positions: torch.cat(
        [
            rotate(part, [rank], positions, sum(ranks[:n]))
            for n, (part, rank) in enumerate(zip(x.split(ranks, 1), ranks, strict=True))
        ],
        1,
    )


def _turned(turn):
    """The rotation by other angles."""
    return lambda *given: _rotate(*given, turn=turn)


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
    "11.8",
    "Rotations, level by level",
    claim="003:rope",
    level=3,
    minutes=12,
    cases=_rope_cases,
    oracle=_rotate,
    wrong={
        "you rotate the head as one, with frequencies that run on from level to level: each level begins anew "
        "with the fastest": lambda x, ranks, positions: _rotate(x, [sum(ranks)], positions),
        "your pairs are counted on from level to level: each level begins anew with k = 0": _by_level(
            lambda x, ranks, positions, start: _rotate(x, ranks, positions * 10000.0 ** (-start / ranks[0]))
        ),
        "your exponent has the columns of the head below the line: pair k of a level turns by "
        "position · 10000^(-2k/r_l), with the level's own": lambda x, ranks, positions: _rotate(
            x, ranks, positions, turn=lambda i, k, rank: i * 10000.0 ** (-2 * k / sum(ranks))
        ),
        "your exponent has the first level's columns below the line: level l has r_l": lambda x, ranks, positions: (
            _rotate(x, ranks, positions, turn=lambda i, k, rank: i * 10000.0 ** (-2 * k / ranks[0]))
        ),
        "only the first level is rotated: each level is, alone": _by_level(
            lambda x, ranks, positions, start: x if start else _rotate(x, ranks, positions)
        ),
        "you turn the other way: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": lambda x, ranks, positions: (
            _rotate(x, ranks, -positions)
        ),
        "both signs are plus: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)
        ),
        "both signs are minus: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * cos - b * sin, a * sin - b * cos)
        ),
        "sine and cosine are exchanged: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * sin - b * cos, a * cos + b * sin)
        ),
        "the two features of a pair are exchanged: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * sin + b * cos, a * cos - b * sin)
        ),
        "the sines are missing: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * cos, b * cos)
        ),
        "your second feature of a pair is made of the first one turned already: keep what that was before": _planes(
            lambda a, b, cos, sin: (a * cos - b * sin, (a * cos - b * sin) * sin + b * cos)
        ),
        "your first feature of a pair is made of the second one turned already: keep what that was before": _planes(
            lambda a, b, cos, sin: (a * cos - (a * sin + b * cos) * sin, a * sin + b * cos)
        ),
        "you pair feature k with k + r/2: here the pairs are neighbours, 2k and 2k + 1": lambda *given: _rotate(
            *given, pair=lambda k, rank: (k, k + rank // 2)
        ),
        "you pair feature k with k + r/2 and put them side by side: here the pairs are neighbours from the start": (
            _planes(lambda a, b, cos, sin: (a * cos - b * sin, a * sin + b * cos), halves=True)
        ),
        "your angles are those of neighbours, but k is turned with k + r/2: the pairs are 2k and 2k + 1": _columns(
            lambda rank: torch.arange(rank) // 2 * 2, halves=True
        ),
        "your angles are those of k and k + r/2, but neighbours are turned: 2k and 2k + 1 have one angle": _columns(
            lambda rank: torch.arange(rank) % (rank // 2) * 2
        ),
        "each feature has an angle of its own in your code: 2k and 2k + 1 turn by the same angle": _columns(
            torch.arange
        ),
        "all pairs turn by the position itself: pair k turns by position · 10000^(-2k/r)": _turned(
            lambda i, k, rank: i
        ),
        "your exponent is -k/r with k the number of the pair: it is -2k/r": _turned(
            lambda i, k, rank: i * 10000.0 ** (-k / rank)
        ),
        "your exponent is -4k/r with k the number of the pair: features 2k and 2k + 1 turn by -2k/r": _turned(
            lambda i, k, rank: i * 10000.0 ** (-4 * k / rank)
        ),
        "your exponent is +2k/r: it is -2k/r, later pairs turn more slowly": _turned(
            lambda i, k, rank: i * 10000.0 ** (2 * k / rank)
        ),
        "your pairs are counted from 1: the first of a level, k = 0, turns by the position itself": _turned(
            lambda i, k, rank: i * 10000.0 ** (-2 * (k + 1) / rank)
        ),
        "your slowest pairs come first: pair k turns by position · 10000^(-2k/r), k = 0 fastest": _turned(
            lambda i, k, rank: i * 10000.0 ** (-2 * (rank // 2 - 1 - k) / rank)
        ),
        "your angle has a factor 2π: it is position · 10000^(-2k/r), in radians": _turned(
            lambda i, k, rank: 2 * torch.pi * i * 10000.0 ** (-2 * k / rank)
        ),
        "the pairs are turned, but not put back side by side: the result's features 2k "
        "and 2k + 1 are a pair": lambda x, ranks, positions: torch.cat(
            [torch.cat([y[:, 0::2], y[:, 1::2]], 1) for y in _rotate(x, ranks, positions).split(ranks, 1)], 1
        ),
        "you rotate by the number of the row: use the given positions, which need not begin at 0": (
            lambda x, ranks, positions: _rotate(x, ranks, torch.arange(len(x)).double())
        ),
        "you rotate from the first row on: use the given positions, as they are": lambda x, ranks, positions: _rotate(
            x, ranks, positions - positions[0]
        ),
        "your positions are 1 too high: use them as they are given": lambda x, ranks, positions: _rotate(
            x, ranks, positions + 1
        ),
        "nothing is rotated": lambda x, ranks, positions: x.clone(),
    },
)
def rotate_levels(x, ranks, positions):
    """Each level of x (T, Σ r_l) rotated alone: its pair k at position i turns by i · 10000^(-2k / r_l).

    Apply RoPE to each level alone, so that a score that leaves levels out still has whole pairs. Pair k of a level is
    its columns 2k and 2k + 1; every r_l is even.

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
