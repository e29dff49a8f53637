"""The exercises of chapter 01 on contraction orders: which axes survive a step, what an order costs, which one wins."""

import math

import torch

from smalearn.course.exercises.core import exercise

# ---------------------------------------------------------------------------------------- 1.3 which axes survive


def _axes_cases(randn):
    yield "S", "S", [], ""
    yield "TN", "SN", ["SP", "TS"], "TP"
    yield "SN", "SP", ["TN", "TS"], "TP"
    yield "TS", "SPN", ["TN"], "TP"
    yield "TN", "TPN", [], "TP"
    yield "AB", "BC", ["CD"], "AD"
    yield "AB", "BC", [], "C"


def _sorted_axes(axes):
    return "".join(sorted(axes))


@exercise(
    "1.3",
    "Which axes survive?",
    claim="000:function-vs-algorithm",
    level=2,
    minutes=8,
    cases=_axes_cases,
    oracle=lambda left, right, others, output: "".join(
        axis for axis in sorted({*left, *right}) if axis in output or any(axis in operand for operand in others)
    ),
    wrong={
        "you summed every axis that both operands share. K and V share S, but L still asks for S: a shared "
        "axis stays while the output or a waiting operand has it": lambda left, right, others, output: _sorted_axes(
            {*left} ^ {*right}
        ),
        "you kept an axis that only one operand has, though nobody will ask for it again: "
        "it can be summed too": lambda left, right, others, output: _sorted_axes(
            ({*left} ^ {*right}) | ({*left} & {*right} & set(output).union(*others))
        ),
        "you kept every axis: right, but then nothing is ever summed and the "
        "intermediate is too large": lambda left, right, others, output: _sorted_axes({*left, *right}),
        "you asked only the output: an axis that a waiting operand "
        "has must stay as well": lambda left, right, others, output: _sorted_axes(({*left, *right}) & {*output}),
    },
)
def kept_axes(left, right, others, output):
    """The axes, sorted, of the pairwise contraction of `left` and `right` while `others` still wait for their turn.

    Two operands of a larger contraction are multiplied first. Which axes must the result keep?

    Hint: An axis may be summed away when nobody will ask for it again. Who could ask?

    Hint: Two can ask: the output, and any operand that is still waiting.

    Hint: `set(output).union(*others)` holds every axis that somebody still needs.

    Insight: Libraries such as opt_einsum try all orders by this one rule.
    """
    needed = set(output).union(*others)
    return "".join(sorted(set(left + right) & needed))


# ----------------------------------------------------------------------------------------- 1.4 the cost of an order


def _macs_cases(randn):
    steps = {
        "elementwise": ["T, T -> T"],
        "outer": ["T, S -> TS"],
        "quadratic": ["TN, SN -> TS", "TS, TS -> TS", "TS, SP -> TP"],
        "linear": ["SN, SP -> SPN", "SPN, TS -> TPN", "TPN, TN -> TP"],
    }
    for name in steps:
        drawn = torch.randint(2, 9, (4,), generator=randn.generator).tolist()
        yield steps[name], dict(zip("TSNP", drawn, strict=True))
    yield steps["quadratic"], {"T": 128, "S": 128, "N": 16, "P": 16}


def _macs_loop(steps, sizes):
    total = 0
    for step in steps:
        inputs = step.partition("->")[0]
        cost = 1
        for axis in sizes:
            cost *= sizes[axis] if axis in inputs else 1
        total += cost
    return total


def _macs_with(cost, combine=sum):
    """A wrong answer that takes `cost(left, right, output, sizes)` for one step."""

    def macs(steps, sizes):
        costs = []
        for step in steps:
            inputs, output = step.replace(" ", "").split("->")
            costs.append(cost(*inputs.split(","), output, sizes))
        return combine(costs)

    return macs


def _entries(axes, sizes):
    return math.prod(sizes[axis] for axis in axes)


@exercise(
    "1.4",
    "The price of an order",
    claim="000:order-cost",
    level=2,
    minutes=8,
    cases=_macs_cases,
    oracle=_macs_loop,
    wrong={
        "you multiplied the entries of both operands: a shared axis is ONE loop, count it once": _macs_with(
            lambda left, right, output, sizes: _entries(left, sizes) * _entries(right, sizes)
        ),
        "you counted the entries of the results: each of them is a sum, and its terms cost too": _macs_with(
            lambda left, right, output, sizes: _entries(output, sizes)
        ),
        "these are flops: a multiplication and an addition together are ONE multiply-accumulate": _macs_with(
            lambda left, right, output, sizes: (
                _entries({*left, *right}, sizes) * (2 if {*left, *right} - {*output} else 1)
            )
        ),
        "this is the first step alone: is there a return inside your loop?": _macs_with(
            lambda left, right, output, sizes: _entries({*left, *right}, sizes), combine=lambda c: c[0]
        ),
        "this is the last step alone: does your loop start the total anew each time?": _macs_with(
            lambda left, right, output, sizes: _entries({*left, *right}, sizes), combine=lambda c: c[-1]
        ),
        "this is the dearest step alone: the steps run one after the other, so their costs add": _macs_with(
            lambda left, right, output, sizes: _entries({*left, *right}, sizes), combine=max
        ),
    },
)
def order_macs(steps, sizes):
    """Multiply-accumulates of a list of steps such as "TN, SN -> TS"; `sizes` maps an axis letter to its size.

    Add up the multiply-accumulates of the steps: for each, the product of the sizes of all its axes.

    Hint: Write "TN, SN -> TS" as nested loops. How many loops are there, and how often does the inner line run?

    Hint: There is one loop for each DIFFERENT axis of the two operands: T, S and N, so T·S·N.

    Hint: The part before "->" without commas and spaces, as a `set`, is the set of loops; `math.prod` multiplies.

    Insight: Orders of one contraction can differ by a factor of T; no choice of hardware wins back as much.
    """
    total = 0
    for step in steps:
        axes = set(step.split("->")[0]) - set(", ")
        total += math.prod(sizes[axis] for axis in axes)
    return total


# ------------------------------------------------------------------------------------------------ 1.5 the crossover


def _crossover_loop(features, head_dim):
    length = 1
    while 3 * length * features * head_dim >= length**2 * (features + head_dim + 1):
        length += 1
    return length


def _crossover_cases(randn):
    yield from [(1, 1), (2, 2), (2, 3), (3, 5), (7, 7), (16, 16), (16, 64), (64, 64), (4096, 4096)]


@exercise(
    "1.5",
    "When does the linear order win?",
    claim="000:order-cost",
    level=2,
    minutes=8,
    cases=_crossover_cases,
    oracle=_crossover_loop,
    wrong={
        "this compares (QKᵀ)V with Q(KᵀV), attention WITHOUT a mask: applying the mask "
        "costs T·N·P or T² more": lambda features, head_dim: 2 * features * head_dim // (features + head_dim) + 1,
        "at this T both orders cost the same where N + P + 1 divides 3·N·P: fewer "
        "means strictly fewer": lambda features, head_dim: -(-3 * features * head_dim // (features + head_dim + 1)),
        "the quadratic order multiplies by the mask too: T² more, hence N "
        "+ P + 1 and not N + P": lambda features, head_dim: 3 * features * head_dim // (features + head_dim) + 1,
    },
)
def crossover(features, head_dim):
    """The least length T = S at which order (15) with a running sum takes fewer MACs than order (13).

    Return the least T (with S = T) at which 3·T·N·P is below T²·(N + P + 1).

    Hint: Order (15) with a running sum takes T·N·P in each of its three steps; order (13) takes T²·(N + P + 1).

    Hint: Divide both sides by T: the linear order wins as soon as T > 3·N·P / (N + P + 1).

    Hint: The least integer strictly above x / y is `x // y + 1`, also where y divides x.

    Insight: The crossing depends on N and P alone: wide heads make the quadratic order the better one for longer.
    """
    return 3 * features * head_dim // (features + head_dim + 1) + 1
