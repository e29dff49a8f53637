"""The exercises of chapter 08 about factors I - β k k^T: their product, and the one that swaps."""

import torch

from smalearn.course.ch08.delta import even_keys
from smalearn.course.exercises.core import exercise


def last_row(W, K, k, beta):
    """The row w (N,) that one more factor adds to W (t, N), where K (t, N) holds the keys so far.

    Finish the proof that factors I − β_s k_s k_s^T multiply to I − W^T K. The first t do; for one more, fill in w in
    (I − W^T K)(I − β k k^T) = I − W^T K − w k^T.

    Hint: Multiply the two brackets out. That makes four terms; two of them end in k^T.

    Hint: −β k k^T, and (W^T K) β k k^T. What stands before k^T, with its sign turned, is w.

    Insight: t factors make two matrices of t rows each, thin while t is small: so a state crosses a chunk in one step.
    """
    return beta * (k - W.mT @ (K @ k))


def _short_cases(randn):
    for count, N in [(0, 1), (1, 2), (2, 3), (4, 3), (6, 5)]:
        unit = torch.nn.functional.normalize(randn(count + 1, N), dim=-1)
        unit = 1.3 * unit if count == 4 else unit  # the product stays short for keys of any norm
        W = _thin(unit[:-1], torch.sigmoid(randn(count)))
        yield W, unit[:-1], unit[-1], torch.sigmoid(randn(1))[0]
    keys, beta = even_keys(randn, 4), torch.tensor([0.5, 0.25, 0.5, 0.75])  # in float32, as a later cell has it
    yield _thin(keys[:-1], beta[:-1]), keys[:-1], keys[-1], beta[-1]


def _thin(K, beta):
    """W of all these keys."""
    W = K.new_zeros(0, K.shape[-1])
    for at, (key, b) in enumerate(zip(K, beta, strict=True)):
        W = torch.cat([W, _last_row(W, K[:at], key, b)[None]])
    return W


def _last_row(W, K, k, b):
    """From the product itself: what is missing is a multiple of k."""
    one = torch.eye(len(k), dtype=k.dtype)
    product = (one - W.mT @ K) @ (one - b * torch.outer(k, k))
    return ((one - W.mT @ K) - product) @ k / (k @ k)


exercise(
    "8.5",
    "A product that stays short",
    claim="005:wy",
    kind="prove",
    level=2,
    minutes=7,
    cases=_short_cases,
    oracle=_last_row,
    wrong={
        "the sign of the second term: (−W^T K)(−β k k^T) is a plus, and w stands behind a minus": "k - → k +",
        "you took K^T W for W^T K": "W.mT @ (K → K.mT @ (W",
        "β is missing in the second term: it stands before both": "(k - W.mT @ (K @ k)) → k - W.mT @ (K @ k)",
        "the first term of the product is missing": "k - W → -W",
        "both terms are there with β, but the second one twice": "- W → - 2 * W",
        "you multiply two sums: W^T (K k) is a sum of products, "
        "row by row": "W.mT @ (K @ k) → W.sum(0) * (K @ k).sum()",
        "you divide by |k|²: the product has no such factor": "(K @ k)) → (K @ k)) / (k @ k)",
        "you took W^T W for W^T K": "K @ → W @",
        "β counts twice: I − β k k^T has one": "beta → beta**2",
        "the factor is I − β k k^T: β, not 1 − β": "beta → (1 - beta)",
        "this has the wrong sign: the product is I − W^T K − w k^T, so w is what is SUBTRACTED": "beta → -beta",
        "β is missing before k: it stands before both terms": "beta * (k - W → (k - beta * W",
        "the first term, β k, is missing, and the second has the wrong sign": "k - W → W",
        "only the last rows of W and K take part: W^T K has all of them": "W.mT @ (K @ k) → W[-1:].mT @ (K[-1:] @ k)",
        "you multiply W and K entry by entry: W^T K is a matrix, (N, N)": "W.mT @ (K @ k) → (W * K).sum(0) * k",
        "this is the whole term w k^T: w is what stands before k^T": "beta → torch.outer(beta ; @ k)) → @ k)), k)",
        "this is all of the new W: "
        "its last row alone is asked for": "beta → torch.cat([W, (beta ; @ k)) → @ k)))[None]])",
        "W may have no row yet: with t = 0 there is no W[-1]": "return → W[-1]\n    return",
    },
)(last_row)


def swap(cups, i, j):
    """A key (cups,) of norm 1 and a β from 0 to 2 that swap two different cups, i and j.

    A state of one row holds a number for each cup, H = (x_0, …). A token with value 0 turns it into H (I − β k k^T).
    Find the key and the β for which x_i and x_j change places, and all others stay.

    Hint: β = 2 reflects along k: what lies along k changes its sign, what is orthogonal to it stays.

    Hint: A swap leaves x_i + x_j and all other cups alone, and turns the sign of x_i − x_j.

    Insight: Swaps make all permutations. With β ≤ 1 no product is even one swap: no factor has a negative determinant,
    and a swap has −1.
    """
    k = torch.zeros(cups, dtype=torch.float64)
    k[i], k[j] = 0.5**0.5, -(0.5**0.5)
    return k, 2.0


def _not_swapped(move, cups, i, j):
    if unusable := _unusable(move, cups):
        return unusable
    k, beta = (torch.as_tensor(x, dtype=torch.float64) for x in move)
    before = torch.arange(1.0, cups + 1, dtype=torch.float64)
    after, wanted = before - beta * (before @ k) * k, before.clone()
    wanted[[i, j]] = before[[j, i]]
    if torch.allclose(after, wanted, atol=1e-6):
        return ""
    shown = f"cups that hold {', '.join(f'{x:.0f}' for x in before)} hold {', '.join(f'{x:.4g}' for x in after)}"
    return f"{shown} after it, where cups {i} and {j} should change places: {_why_not(k, beta, i, j)}"


def _unusable(move, cups):
    """Why an answer is no key and β; "" if it is."""
    if not isinstance(move, tuple | list) or len(move) != 2:
        return "the answer must be a pair: the key, and beta"
    try:
        k, beta = (torch.as_tensor(x, dtype=torch.float64) for x in move)
    except (TypeError, ValueError):
        return "the answer must be a pair: the key, and beta"
    if beta.numel() != 1:
        return "the key comes first, then beta" if k.numel() == 1 else "beta must be one number"
    if k.shape == (cups, cups):
        return f"this is a matrix: the key is the vector of {cups} numbers from which I − β k k^T is made"
    if k.shape != (cups,):
        return f"the key must have one number for each of the {cups} cups, got shape {tuple(k.shape)}"
    if not torch.allclose(k @ k, torch.ones((), dtype=torch.float64), atol=1e-6):
        remedy = ": divide it by its norm, and choose β for that" if k.any() else ": it is 0 everywhere"
        return f"the key must have norm 1, yours has norm {k.norm():.6g}{remedy}"
    return "" if 0 <= beta <= 2 else f"beta must be from 0 to 2, got {beta.item():.3g}"


def _why_not(k, beta, i, j):
    """What keeps a usable key and β from swapping cups i and j."""
    heavy = (k.abs() > 1e-6).nonzero().flatten().tolist()
    if others := [cup for cup in heavy if cup not in (i, j)]:
        return f"the key has a weight on cup {others[0]}, counted from 0: it needs them on cups {i} and {j} alone"
    if len(heavy) < 2:
        return "a key along one cup changes that cup alone: the key needs weights on both"
    if not torch.isclose(k[i].abs(), k[j].abs(), atol=1e-6):
        return "one cup has more weight than the other: both must weigh alike"
    if k[i] * k[j] > 0:
        return "two equal weights leave x_i − x_j alone: it is x_i + x_j that has to stay"
    return f"the key is right, but β = {beta:.3g} takes each cup only {beta / 2:.1%} of the way to the other's number"


exercise(
    "8.6",
    "The shell game",
    claim="005:permutations",
    kind="open",
    level=2,
    minutes=8,
    cases=lambda randn: [(2, 0, 1), (3, 0, 1), (3, 2, 0), (5, 1, 4)],
    refuse=_not_swapped,
    reached=lambda move, cups, i, j: f"a swap of cups {i} and {j} among {cups}",
    wrong={
        "with β = 1 the two cups end up equal, at their mean: a projection": "2.0 → 1.0",
        "with a plus the two swap and change their signs: "
        "the reflection must leave x_i + x_j alone": "-(0.5**0.5) → 0.5**0.5",
        "a key along one cup turns its sign and swaps nothing": "0.5**0.5, -(0.5**0.5) → 1.0, 0.0",
        "your key has norm √2: divide by it": "0.5**0.5, -(0.5**0.5) → 1.0, -1.0",
        "β = 0 does nothing": "2.0 → 0.0",
        "β = 1.5 goes three quarters of the way": "2.0 → 1.5",
        "your key weighs one cup more: "
        "the mirror must treat both alike": "0.5**0.5, -(0.5**0.5) → 0.8**0.5, -(0.2**0.5)",
    },
)(swap)
