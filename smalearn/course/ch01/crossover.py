"""The exercise of chapter 01 on the length from which on the linear order wins."""

from smalearn.course.exercises.core import exercise


def crossover(features, head_dim):
    """The least length T = S at which order (15) with a running sum takes fewer MACs than order (13).

    Return the least T (with S = T) from which on the linear order needs strictly fewer multiply-adds.

    Hint: Count the three steps of each. With a running sum, each step of (15) takes T·N·P. Of the steps of (13) the
    mask's takes T²: find the other two.

    Hint: 3·T·N·P against T²·(N + P + 1): divide both sides by T.

    Hint: The least integer strictly above x / y is `x // y + 1`, also where y divides x.

    Insight: The crossing depends on N and P alone: wide heads make the quadratic order the better one for longer.
    """
    return 3 * features * head_dim // (features + head_dim + 1) + 1


def _crossover_loop(features, head_dim):
    length = 1
    while 3 * length * features * head_dim >= length**2 * (features + head_dim + 1):
        length += 1
    return length


def _crossover_cases(randn):
    yield from [(1, 1), (2, 2), (2, 3), (3, 5), (7, 7), (4, 33), (16, 16), (16, 64), (64, 64), (4096, 4096)]


def _dense_crossover(features, head_dim):
    """The least T up to 10,000 at which order (15) wins with a dense mask."""
    N, P = features, head_dim
    return next((T for T in range(1, 10_000) if T * N * P + 2 * N * P < T * (N + P + 1)), 10_000)


exercise(
    "1.5",
    "When does the linear order win?",
    claim="000:order-cost",
    level=2,
    minutes=8,
    cases=_crossover_cases,
    oracle=_crossover_loop,
    wrong={
        "this is where (QKᵀ)V and Q(KᵀV) cross, attention WITHOUT a mask: "
        "applying the mask costs T·N·P or T² more multiply-adds": "3 → 2 ;  + 1) → )",
        "where N + P + 1 divides 3·N·P, both orders cost the same at your T: "
        "the linear one needs fewer from the next T on": "3 * → -(-3 * ; 1) + 1 → 1))",
        "you count two steps of T·N·P: the running sum takes a third": "3 → 2",
        "you count multiplications and additions apart: "
        "one multiply-add is both": "3 → 4 ; (features + → (2 * features + 2 *",
        "you count flops, two for a multiply-add, and one for an addition of the running sum: "
        "it is one multiply-add, too": "3 → 5 ; (features + → (2 * features + 2 *",
        "you count flops, two for a multiply-add, and one for each entry of the mask: "
        "it is one multiply-add, too": "3 → 6 ; (features + → (2 * features + 2 *",
        "this is where both take the same, which need be no whole number: "
        "return the least T above it": "// → / ; 1) + 1 → 1)",
        "this is where the scores T² outgrow the states T·N·P in memory: "
        "count multiply-adds": "3 * features * head_dim // (features + head_dim + 1) → features * head_dim",
        "a dense mask: with a running sum, step (15b) takes T·N·P, not T²·N·P": _dense_crossover,
        "you double T until it wins: "
        "the least T may lie between two powers of 2": "3 * features → 2 ** (3 * features ; 1) + 1 → 1)).bit_length()",
        "you round to the nearest whole number: "
        "the least T is above the crossing": "3 * features → round(3 * features ; // → / ; 1) + 1 → 1))",
        "the step with the mask adds 1: T² (N + P + 1) is what the quadratic order takes": "+ 1) → - 1)",
        "this is the last T at which the linear order does not win: return the next": "1) + 1 → 1)",
        "you do not divide by N + P + 1, which is what (13) takes for each pair": " // (features + head_dim + 1) → ",
        "you count one step of T·N·P: there are three": "3 * features → features",
        "the quadratic order multiplies by the mask too: T² more, hence N + P + 1 and not N + P": " + 1) → )",
    },
)(crossover)
