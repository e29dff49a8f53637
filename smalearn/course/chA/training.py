"""The exercises of appendix A on how a score learns: start and rate by fan, and what aligned numbers add up to."""

import torch

from smalearn.course.exercises.core import exercise

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
        "you solved the sum exactly; μP keeps the larger root, min(1, √(out/in))/√in": lambda *given: _by_shapes(
            *given, std=lambda W: (W.shape[0] / W.shape[1]) ** 0.5 / (W.shape[0] ** 0.5 + W.shape[1] ** 0.5)
        ),
        "you give the variance: σ is its root": lambda *given: _by_shapes(
            *given, std=lambda W: min(W.shape) / W.shape[1] ** 2
        ),
        "you divide the rate by the width D: a block takes in only c·s or d numbers, "
        "far fewer than D": lambda sizes, rank, heads, lr, base_dim: _by_shapes(
            sizes, rank, heads, lr, base_dim, rate=lambda W: lr * base_dim / (sizes[0] * sizes[1])
        ),
        "your rates do not depend on the width: what is good for one width is too "
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

    Insight: The rule lets every layer change its output by the same amount in one step, whatever its width.
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
