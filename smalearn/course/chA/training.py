"""The exercises of appendix A on how a score learns: start and rate by fan, and what aligned numbers add up to."""

import torch

from smalearn.course.exercises.core import exercise


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


def _by_shapes(sizes, rank, heads, lr, base_dim):
    """Fans read off the matrices that are really applied: (outputs, inputs) of one block."""
    a, b, c, d = sizes
    L, R = torch.empty(a, c * rank), torch.empty(heads * b * rank, d)
    return tuple(x for W in (L, R) for x in (min(W.shape) ** 0.5 / W.shape[1], lr / (W.shape[1] / base_dim)))


def _rule_cases(randn):
    yield from [
        ((1, 1, 1, 1), 1, 1, 0.1, 1),
        ((2, 2, 8, 32), 2, 2, 0.01, 4),
        ((8, 8, 8, 8), 1, 8, 0.001, 64),
        ((16, 4, 8, 8), 1, 1, 0.001, 64),
        ((8, 32, 16, 16), 2, 8, 0.02, 64),
        ((32, 2, 2, 32), 1, 2, 0.02, 16),
    ]


exercise(
    "A.5",
    "Each factor by its own fan",
    claim="003:eq37-38",
    level=2,
    minutes=10,
    cases=_rule_cases,
    oracle=_by_shapes,
    wrong={
        "the rate of R has a where d belongs, as in equation 38: "
        "R takes in d numbers": "return → numbers = ; \n    ) → \n    )\n    return *numbers[:3], lr * base_dim / a",
        "what a block takes in and what it gives out are exchanged": "inputs, outputs in → outputs, inputs in",
        "L gives out a numbers: "
        "every head has blocks of its own, which read that head's numbers alone": "rank, a) → rank, heads * a)",
        "you solved the sum exactly; μP keeps the larger root, min(1, √(out/in))/√in": (
            "min(1, (outputs / inputs) ** 0.5) / inputs**0.5 → (outputs / inputs) ** 0.5 / (outputs**0.5 + inputs**0.5)"
        ),
        "you give the variance: "
        "σ is its root": "min(1, (outputs / inputs) ** 0.5) / inputs**0.5 → min(1, outputs / inputs) / inputs",
        "you divide the rate by the width D: "
        "a block takes in only c·s or d numbers, far fewer than D": "lr * base_dim / inputs → lr * base_dim / (a * b)",
        "your σ is √(out/in)/√in: a factor that gives out more than it takes in needs no larger one, "
        "so take the minimum with 1": "min(1, (outputs / inputs) ** 0.5) → (outputs / inputs) ** 0.5",
        "your rate is upside down: "
        "it is to fall with what a block takes in, as base_dim / in": "base_dim / inputs → inputs / base_dim",
        "the ratio in your σ lacks its root: it is √(out/in)": "(outputs / inputs) ** 0.5 → outputs / inputs",
        "the ratio in your σ is upside down: "
        "σ is smaller by √(out/in) where less goes out than comes in": "(outputs / inputs) → (inputs / outputs)",
        "your rate has a root: "
        "it is divided by in / base_dim itself": "lr * base_dim / inputs → lr * (base_dim / inputs) ** 0.5",
    },
)(train_rules)


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


exercise(
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
)(aligned_score)
