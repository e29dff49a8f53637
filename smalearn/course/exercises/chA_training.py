"""The exercises of appendix A on what a score costs and how it learns: the cheaper order, and rates by fan."""  # noqa: N999

import torch

from smalearn.contractions import orders
from smalearn.course.exercises.core import exercise

# -------------------------------------------------------------------------------------------- A.4 the cheaper order


def _counted(length, dim, ranks):
    """The cost of both orders, by the tool of chapter 01."""
    sizes = {"T": length, "S": length, "D": dim}
    both, keys = 0, orders("TD, DS -> TS", sizes)[0].macs
    for level, rank in enumerate(ranks):
        sizes |= {"P": 2**level, "M": dim // 2**level, "R": rank}
        both += orders("TPM, PMR, PNR, SPN -> TS", sizes | {"N": sizes["M"]}, "XLRY").named("(XL)(RY)").macs
        keys += orders("PMR, SPM -> SPR", sizes)[0].macs + orders("PMR, SPR -> SPM", sizes)[0].macs
    return both, keys


def _cheaper(length, dim, ranks):
    both, keys = _counted(length, dim, ranks)
    return ("both", both) if both < keys else ("keys", keys)


def _not_cheaper(answer, length, dim, ranks):
    """Why this is not the cheaper order, or not what it takes; "" if it is."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return "a pair is asked for, (name, multiply-adds)"
    name, macs = answer
    both, keys = _counted(length, dim, ranks)
    right, least = _cheaper(length, dim, ranks)
    if name not in ("both", "keys"):
        return 'the first item is to be the name, "both" or "keys", the second the multiply-adds'
    if name != right:
        if both == keys:
            return 'both orders cost the same here, and of equals the name is "keys"'
        if macs == least:
            return "the number is that of the cheaper order, the name is that of the other"
        own = "what this order takes" if macs == {"both": both, "keys": keys}[name] else "not what this order takes"
        return f"the other order is cheaper, and the number is {own}"
    if macs == least:
        return ""
    if macs == (both if name == "keys" else keys):
        return "the name is right, the number is that of the other order"
    through = 2 * length * dim * sum(ranks)
    for known, missing in ((through, "T² dot products"), (least - through, "factors, through which all tokens pass")):
        if macs == known:
            return f"the name is right; the number lacks the {missing}"
    much = "much" if macs > least else "little"
    return f"the name is right, the number {abs(macs - least):g} too {much}: one part is for factors, one for pairs"


def _by_width(length, dim, ranks, width):
    """The rule with another number in the place of Σ p_l r_l."""
    through = 2 * length * dim * sum(ranks)
    return ("both", through + length**2 * width) if width < dim else ("keys", through + length**2 * dim)


def _all_features(length, dim, ranks):
    """Every block reads all D features."""
    name, macs = _cheaper(length, dim, ranks)
    return name, macs + 2 * length * dim * sum(rank * (2**level - 1) for level, rank in enumerate(ranks))


def _ties_to_both(length, dim, ranks):
    """The other answer where both cost the same."""
    both, keys = _counted(length, dim, ranks)
    return ("both", both) if both <= keys else ("keys", keys)


def _level_by_level(length, dim, ranks):
    """Keys first, with a T × T product for each level."""
    name, macs = _cheaper(length, dim, ranks)
    return name, macs + (name == "keys") * (len(ranks) - 1) * length**2 * dim


def _half_square(length, dim, ranks):
    """Pairs j ≤ i alone."""
    both, keys = _counted(length, dim, ranks)
    hidden = length * (length - 1) // 2
    both, keys = both - hidden * sum(rank << level for level, rank in enumerate(ranks)), keys - hidden * dim
    return ("both", both) if both < keys else ("keys", keys)


def _keys_by(through, levels=lambda ranks: 1):
    """Keys first, where they take `through(T, D, ranks)` multiply-adds to make, and meet the tokens so many times."""

    def order(length, dim, ranks):
        both, _ = _counted(length, dim, ranks)
        keys = levels(ranks) * length**2 * dim + through(length, dim, ranks)
        return ("both", both) if both < keys else ("keys", keys)

    return order


def _through(length, dim, ranks):
    return 2 * length * dim * sum(ranks)


def _one_projection(length, dim, ranks):
    name, macs = _cheaper(length, dim, ranks)
    return name, macs - length * dim * sum(ranks)


def _one_side(length, dim, ranks):
    """Both sides projected, of which one is counted."""
    both, keys = _counted(length, dim, ranks)
    both -= length * dim * sum(ranks)
    return ("both", both) if both < keys else ("keys", keys)


def _projections_by_block(length, dim, ranks):
    """Both sides projected, where each block of a level takes in all features."""
    both, keys = _counted(length, dim, ranks)
    both += 2 * length * dim * sum(rank * (2**level - 1) for level, rank in enumerate(ranks))
    return ("both", both) if both < keys else ("keys", keys)


def _flops(length, dim, ranks):
    name, macs = _cheaper(length, dim, ranks)
    return name, 2 * macs


def _one_block(length, dim, ranks):
    """Projections through a single block of each level."""
    name, macs = _cheaper(length, dim, ranks)
    return name, macs - 2 * length * sum((dim - dim // 2**level) * rank for level, rank in enumerate(ranks))


def _order_cases(randn):
    yield from [
        (1, 2, [1]),
        (3, 4, [2, 1]),
        (4, 8, [1, 1, 1]),
        (5, 16, [4, 2, 1]),
        (16, 16, [1, 1, 1, 2]),
        (7, 32, [2, 1, 1, 1, 1]),
        (8, 512, [32, 8, 6, 4, 4, 4, 4, 2]),
        (8, 1024, [32, 8, 6, 4, 4, 4, 4, 2]),
        (10, 100, [1]),  # far from where both cost the same
        (12, 64, [1, 1]),
        (6, 8, [8, 4]),  # full blocks: "both" costs as much as keys first, level by level
    ]


@exercise(
    "A.4",
    "The cheaper order",
    claim="003:eq32",
    level=2,
    minutes=10,
    cases=_order_cases,
    refuse=_not_cheaper,
    wrong={
        "you count the pairs j ≤ i alone: here the whole square of scores is made": _half_square,
        "your keys pass through one factor only: keys first means both, 2·T·D·Σ r_l": _keys_by(
            lambda length, dim, ranks: length * dim * sum(ranks)
        ),
        "your keys pass through the dense matrix: each level has two thin factors, 2·D·r_l for each token": _keys_by(
            lambda length, dim, ranks: length * dim**2
        ),
        "you project through one block of each level: the p_l blocks together read all D features": _one_block,
        "this is both sides projected, which the paper calls minimal, or keys first counted too high: with "
        "Σ p_l r_l ≥ D keys first is cheaper or as cheap": lambda length, dim, ranks: (
            "both",
            _counted(length, dim, ranks)[0],
        ),
        "this is always keys first: with Σ p_l r_l < D the dot products are shorter on "
        "both projected sides": lambda length, dim, ranks: (
            "keys",
            _counted(length, dim, ranks)[1],
        ),
        "you take dot products over Σ r_l features: a level has p_l blocks, "
        "each with r_l of its own": lambda length, dim, ranks: _by_width(length, dim, ranks, sum(ranks)),
        "your levels have 2, 4, 8, … blocks: the first has one": lambda length, dim, ranks: _by_width(
            length, dim, ranks, sum(rank * 2 ** (level + 1) for level, rank in enumerate(ranks))
        ),
        "your levels have 1, 2, 3, … blocks: they double": lambda length, dim, ranks: _by_width(
            length, dim, ranks, sum(rank * (level + 1) for level, rank in enumerate(ranks))
        ),
        "your blocks take in all D features each: a block takes in D/p_l, so that a side of a level costs "
        "T·D·r_l, whatever p_l is": _all_features,
        'where both orders cost the same the answer is "keys": its keys are no longer than tokens': _ties_to_both,
        "keys first, you make one T × T product for each level: add up the keys of all levels before, T·D "
        "numbers each": _level_by_level,
        "your keys meet the tokens once for each level, L·T²·D: add up the keys of all levels before": _keys_by(
            _through, levels=len
        ),
        "with both sides projected you count one: the tokens of either side pass, 2·T·D·Σ r_l": _one_side,
        "you count one projection: the tokens pass through both factors, 2·T·D·Σ r_l": _one_projection,
        "with both sides projected you count all D features for each block: it takes in D/p_l, so that a level costs "
        "2·T·D·r_l": _projections_by_block,
        "you count two for each multiply-add: these are FLOPs, multiply-adds are half of them": _flops,
    },
)
def cheaper_order(length, dim, ranks):
    """("both" or "keys", multiply-adds) for the scores of levels with 1, 2, 4, … blocks.

    Say which order of a multi-level score takes fewer multiply-adds, both sides projected or keys first, and how many.

    Hint: Both orders put T tokens through both factors, 2TD Σ r_l. They differ in one number: over how many features do
    the T² dot products run?

    Hint: Σ p_l r_l features with both sides projected; D, if keys have come all the way back to features.

    Hint: `width = sum(rank * 2**level for level, rank in enumerate(ranks))`; both sides if it is below `dim`.

    Insight: Once the columns of all levels outnumber the features, the second projection saves nothing: the keys may as
    well meet the tokens themselves.
    """
    through = 2 * length * dim * sum(ranks)
    width = sum(rank * 2**level for level, rank in enumerate(ranks))
    if width < dim:
        return "both", through + length**2 * width
    return "keys", through + length**2 * dim


# -------------------------------------------------------------------------------------- A.5 each factor by its own fan


def _by_shapes(sizes, rank, heads, lr, base_dim, std=None, rate=None):
    """Fans read off the matrices that are really applied: (outputs, inputs) of one block."""
    a, b, c, d = sizes
    std = std or (lambda W: min(W.shape) ** 0.5 / W.shape[1])
    rate = rate or (lambda W: lr / (W.shape[1] / base_dim))
    L, R = torch.empty(a, c * rank), torch.empty(heads * b * rank, d)
    return std(L), rate(L), std(R), rate(R)


def _no_minimum(W):
    return W.shape[1] ** -0.5


def _turned_ratio(W):
    out, into = W.shape
    return min(1, (into / out) ** 0.5) / into**0.5


def _printed_rate(sizes, rank, heads, lr, base_dim, std=None):
    """R's rate with a for d, as equation 38 has it."""
    return (*_by_shapes(sizes, rank, heads, lr, base_dim, std)[:3], lr * base_dim / sizes[0])


def _right_first(*given):
    left, right = _by_shapes(*given)[:2], _by_shapes(*given)[2:]
    return right + left


def _heads_of_left(sizes, rank, heads, lr, base_dim):
    """L as if its blocks gave out a numbers for every head."""
    a, _, c, _ = sizes
    return (min(heads * a, c * rank) ** 0.5 / (c * rank), *_by_shapes(sizes, rank, heads, lr, base_dim)[1:])


def _by_the_whole(sizes, rank, heads, lr, base_dim):
    """Both factors by the sizes of the matrix."""
    a, b, c, d = sizes
    std = min(1, (a * b / (c * d)) ** 0.5) / (c * d) ** 0.5
    return (std, lr * base_dim / (c * d)) * 2


def _fans_exchanged(sizes, rank, heads, lr, base_dim):
    """What a factor gives out in the place of what it takes in."""
    a, b, c, d = sizes
    fans = (a, c * rank), (heads * b * rank, d)
    return tuple(number for i, o in fans for number in (min(1, (o / i) ** 0.5) / i**0.5, lr * base_dim / i))


def _rule_cases(randn):
    yield from [
        ((1, 1, 1, 1), 1, 1, 0.1, 1),
        ((2, 2, 8, 32), 2, 2, 0.01, 4),
        ((8, 8, 8, 8), 1, 8, 0.001, 64),
        ((16, 4, 8, 8), 1, 1, 0.001, 64),
        ((8, 32, 16, 16), 2, 8, 0.02, 64),
        ((32, 2, 2, 32), 1, 2, 0.02, 16),
    ]


@exercise(
    "A.5",
    "Each factor by its own fan",
    claim="003:eq37-38",
    level=2,
    minutes=10,
    cases=_rule_cases,
    oracle=_by_shapes,
    wrong={
        "the rate of R has a where d belongs, as in equation 38: R takes in d numbers": _printed_rate,
        "your σ is 1/√in: a factor that gives out less than it takes in needs a "
        "smaller one, by √(out/in)": lambda *given: _by_shapes(*given, std=_no_minimum),
        "this is what the paper prints, with two slips: the rate of R has a where d belongs, and σ lacks the "
        "minimum": lambda *given: _printed_rate(*given, std=_no_minimum),
        "these are the right numbers with those of R first: the answer is (σ of L, rate of L, σ of R, rate of "
        "R)": _right_first,
        "these are the right numbers in the order σ, σ, rate, rate: the answer is (σ of L, rate of L, σ of R, rate of "
        "R)": lambda *given: tuple(_by_shapes(*given)[k] for k in (0, 2, 1, 3)),
        "you take the sizes of the whole matrix: what counts is what one block takes in and gives out": _by_the_whole,
        "what a block takes in and what it gives out are exchanged": _fans_exchanged,
        "s is missing: s numbers pass along each connection, so R gives out "
        "H·b·s and L takes in c·s": lambda sizes, rank, heads, lr, base_dim: _by_shapes(sizes, 1, heads, lr, base_dim),
        "L gives out a numbers: every head has blocks of its own, which read that head's numbers alone": _heads_of_left,
        "all heads read the same token: R gives out H·b·s numbers": lambda sizes, rank, heads, lr, base_dim: _by_shapes(
            sizes, rank, 1, lr, base_dim
        ),
        "you give the variance: σ is its root": lambda *given: _by_shapes(
            *given, std=lambda W: min(W.shape) / W.shape[1] ** 2
        ),
        "you divide the rate by the width D: a block takes in c·s, or d, numbers, "
        "and far fewer than D": lambda sizes, rank, heads, lr, base_dim: _by_shapes(
            sizes, rank, heads, lr, base_dim, rate=lambda W: lr * base_dim / (sizes[0] * sizes[1])
        ),
        "your rates do not know the width: what is good for one width is too "
        "fast for a larger one": lambda sizes, rank, heads, lr, base_dim: _by_shapes(
            sizes, rank, heads, lr, base_dim, rate=lambda W: lr
        ),
        "your σ is √(out/in)/√in: a factor that gives out more than it takes in needs no larger one, so take the "
        "minimum with 1": lambda *given: _by_shapes(*given, std=lambda W: W.shape[0] ** 0.5 / W.shape[1]),
        "your rate is upside down: it is to fall with what a block takes in, as base_dim / in": lambda *given: (
            _by_shapes(*given, rate=lambda W: given[3] * W.shape[1] / given[4])
        ),
        "the ratio in your σ lacks its root: it is √(out/in)": lambda *given: _by_shapes(
            *given, std=lambda W: min(1, W.shape[0] / W.shape[1]) / W.shape[1] ** 0.5
        ),
        "the ratio in your σ is upside down: σ is smaller by √(out/in) where less goes out than comes "
        "in": lambda *given: _by_shapes(*given, std=_turned_ratio),
        "your rate has a root: it is divided by in / base_dim itself": lambda sizes, rank, heads, lr, base_dim: (
            _by_shapes(sizes, rank, heads, lr, base_dim, rate=lambda W: lr * (base_dim / W.shape[1]) ** 0.5)
        ),
    },
)
def train_rules(sizes, rank, heads, lr, base_dim):
    """(σ of L, rate of L, σ of R, rate of R) for a train, by μP with the good rate `lr` of width `base_dim`.

    Give the start σ and the learning rate of both factors of a train, by the numbers that a block takes in and gives
    out. R reads the token, which all heads share; L reads what R gives out, each head with blocks of its own, so that
    heads do not enter into what a block of L gives out.

    Hint: Which numbers does a block of R take in, and how many does it give out for all heads together? A block of L?

    Hint: R: d in, H·b·s out. And L? σ is 1/√in, and smaller by √(out/in) where less goes out than comes in.

    Hint: For L `inputs, outputs = c * rank, a`; σ is `min(1, (outputs / inputs) ** 0.5) / inputs**0.5`, and the rate
    goes with 1/inputs: it is `lr` where `inputs` is `base_dim`. For R the same, with its own numbers.

    Insight: The rule asks every layer to change its output by as much in one step: the width drops out of both.
    """
    a, b, c, d = sizes
    fans = (c * rank, a), (d, heads * b * rank)
    return tuple(
        number
        for inputs, outputs in fans
        for number in (min(1, (outputs / inputs) ** 0.5) / inputs**0.5, lr * base_dim / inputs)
    )


# ---------------------------------------------------------------------------------------------------- A.6 aligned


@exercise(
    "A.6",
    "Aligned",
    claim="003:logit-scale",
    kind="predict",
    level=1,
    minutes=4,
    tolerance=1e-3,
    oracle=lambda: 256 / 256**0.5,
    wrong={
        "this is the size of independent ones, whose products cancel: here each product is a square": lambda: 1.0,
        "this is the product itself: it is divided by √r": lambda: 256.0,
        "this is the mean of independent ones: a square is never negative": lambda: 0.0,
        "this is √(√r): the product is r, and r/√r is √r": lambda: 4.0,
        "you multiply by √r": lambda: 4096.0,
        "you divide once too often: the product is a sum of r squares, not their mean": lambda: 1 / 16,
    },
)
def aligned_score():
    """The expected score.

    A query of r = 256 numbers, each normal with variance 1, meets a key equal to it, and their product is divided by
    √r. What score do you expect?

    Hint: The product is a sum of 256 squares. What is one of them on average?

    Hint: 256 squares of mean 1 add up to 256. Divide by √256.

    Too little: Each of the r products is a square: they have a mean, and do not cancel.

    Too much: The mean of a square is 1, so that r of them sum to r; then √r divides.

    Insight: Independent products add up like a random walk, √r; aligned ones add up in full, r. So a scale that is
    right at the start lets scores grow with the width once queries and keys have learned to agree.
    """
    return 256 / 256**0.5
