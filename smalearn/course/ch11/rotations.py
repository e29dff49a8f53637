"""The exercise of chapter 11 on rotations, level by level."""

import torch

from smalearn.course.exercises.core import exercise


def rotate_levels(x, ranks, positions):
    """Each level of x (T, Σ r_l) rotated alone: its pair k at position i turns by i · 10000^(-2k / r_l).

    Apply RoPE to each level by itself, as if it were a whole head. Pair k of a level is its columns 2k and 2k + 1;
    every r_l is even.

    Hint: One level first. Write two neighbouring features as one complex number; what turns it by an angle θ?

    Hint: Multiply by exp(iθ). Pair k of a level of rank r turns by position · 10000^(-2k/r): with r of the level, not
    of the head, and k beginning at 0 in each level.

    Hint: `torch.view_as_complex(part.unflatten(-1, (-1, 2)))` is (T, r/2); `torch.view_as_real(...).flatten(-2)` goes
    back; the exponents are `-torch.arange(0, rank, 2) / rank`, in the dtype of x.

    Insight: Of a rotated pair that is cut in two, what is left depends on i and j, and not on i − j alone: rotation and
    truncation commute only if pairs stay whole.
    """
    parts = []
    for part, rank in zip(x.split(ranks, -1), ranks, strict=True):
        angles = positions[:, None] * 10000.0 ** (-torch.arange(0, rank, 2, dtype=x.dtype) / rank)
        pairs = torch.view_as_complex(part.unflatten(-1, (-1, 2)))
        parts.append(torch.view_as_real(pairs * torch.exp(1j * angles)).flatten(-2))
    return torch.cat(parts, -1)


def _rotate(x, ranks, positions):
    """Token by token, level by level, pair by pair, as points in a plane."""
    y, start = torch.empty_like(x), 0
    for rank in ranks:
        for i in range(len(x)):
            for k in range(rank // 2):
                a, b = start + 2 * k, start + 2 * k + 1
                angle = positions[i] * 10000.0 ** (-2 * k / rank)
                y[i, a] = x[i, a] * angle.cos() - x[i, b] * angle.sin()
                y[i, b] = x[i, a] * angle.sin() + x[i, b] * angle.cos()
        start += rank
    return y


def _planes(turn):
    """Both features of each pair from what they were, and from the cosine and sine of its angle; side by side."""

    def rotated(x, ranks, positions):
        parts = []
        for part, rank in zip(x.split(ranks, 1), ranks, strict=True):
            a, b = part[:, ::2], part[:, 1::2]
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


exercise(
    "11.8",
    "Rotations, level by level",
    claim="003:rope",
    level=3,
    minutes=12,
    cases=_rope_cases,
    oracle=_rotate,
    wrong={
        "you rotate the head as one, with frequencies that run on from level to level: "
        "each level begins anew with the fastest": "parts = [] → parts, ranks = [], [sum(ranks)]",
        "your pairs are counted on from level to level: each level begins anew with k = 0": (
            "angles = → start = sum(done.shape[1] for done in parts)\n        angles = ; "
            "(0, rank, 2 → (start, start + rank, 2"
        ),
        "your exponent has the columns of the head below the line: "
        "pair k of a level turns by position · 10000^(-2k/r_l), with the level's own": "/ rank → / sum(ranks)",
        "your exponent has the first level's columns below the line: level l has r_l": "/ rank → / ranks[0]",
        "you mirror each pair, (a cos θ + b sin θ, a sin θ − b cos θ): "
        "a rotation has one minus, in front of b sin θ": "pairs * → pairs.conj() *",
        "you turn the other way: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": "1j → -1j",
        "both signs are plus: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * cos + b * sin, a * sin + b * cos)
        ),
        "both signs are minus: (a, b) becomes (a cos θ - b sin θ, a sin θ + b cos θ)": _planes(
            lambda a, b, cos, sin: (a * cos - b * sin, a * sin - b * cos)
        ),
        "sine and cosine are exchanged: (a, b) becomes (a cos θ - b sin θ, "
        "a sin θ + b cos θ)": "torch.exp(1j * angles) → (angles.sin() + 1j * angles.cos())",
        "your second feature of a pair is made of the first one turned already: keep what that was before": _planes(
            lambda a, b, cos, sin: (a * cos - b * sin, (a * cos - b * sin) * sin + b * cos)
        ),
        "your first feature of a pair is made of the second one turned already: keep what that was before": _planes(
            lambda a, b, cos, sin: (a * cos - (a * sin + b * cos) * sin, a * sin + b * cos)
        ),
        "you pair feature k with k + r/2: here the pairs are neighbours, 2k and "
        "2k + 1": "part.unflatten(-1, (-1, 2)) → torch.stack(part.chunk(2, -1), -1) ; .flatten(-2) → .mT.flatten(-2)",
        "your angles are those of k and k + r/2, but neighbours are turned: 2k and 2k + 1 have one angle": _columns(
            lambda rank: torch.arange(rank) % (rank // 2) * 2
        ),
        "each feature has an angle of its own in your code: 2k and 2k + 1 turn by the same angle": _columns(
            torch.arange
        ),
        "all pairs turn by the position itself: pair k turns by position · 10000^(-2k/r)": "10000.0 → 1.0",
        "your exponent is -k/r with k the number of the pair: it is -2k/r": "arange(0, rank, 2 → arange(rank // 2",
        "your exponent is -4k/r with k the number of the pair: "
        "features 2k and 2k + 1 turn by -2k/r": "(-torch → (-2 * torch",
        "your exponent is +2k/r: it is -2k/r, later pairs turn more slowly": "(-torch → (torch",
        "your pairs are counted from 1: "
        "the first of a level, k = 0, turns by the position itself": "(0, rank, 2 → (2, rank + 2, 2",
        "your slowest pairs come first: "
        "pair k turns by position · 10000^(-2k/r), k = 0 fastest": "/ rank) → / rank).flip(0)",
        "your angle has a factor 2π: "
        "it is position · 10000^(-2k/r), in radians": "positions[:, None] → 2 * torch.pi * positions[:, None]",
        "your positions are 1 too high: use them as they are given": "positions[:, None] → (positions[:, None] + 1)",
        "your base is 1000: pair k turns by position · 10000^(-2k/r)": "10000.0 → 1000.0",
        "your exponents are whole numbers, divided with //: it is -2k/r": "/ rank → // rank",
        "you divide by r - 2, so that the slowest pair turns by position/10000: "
        "the exponent is -2k/r": "/ rank → / max(rank - 2, 1)",
        "your positions begin anew after r_l tokens: "
        "they are used as they are given": "positions[:, None] → (positions % rank)[:, None]",
        "all tokens turn by the first one's position: each has its own": "positions[:, None] → positions[:1, None]",
    },
)(rotate_levels)
