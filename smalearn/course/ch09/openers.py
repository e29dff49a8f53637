"""Three closed-book questions before chapter 09, on chapters 04 and 08."""

import math

import torch

from smalearn.course.exercises.core import Randn, opener


def disturbed():
    """What the memory answers to the first key.

    The delta rule with β = 1 and two keys of norm 1 at an angle of 60°. An empty memory is given the value 4 under the
    first key, then 10 under the second. What does it answer to the first key now?

    Hint: Chapter 08: it reads with the second key before it writes. What does it find?

    Hint: It finds 2, so it writes 8 under the second key. With which factor does that reach the first?

    Too little: Part of the second writing reaches the first key, too.

    Too much: The rule writes the difference to what it has read, and only a part of that reaches the first key.

    Insight: The last key is exact, 10; the first is not any more. Each step puts one pair right and may disturb others:
    one gradient step, not a solve.
    """
    return 8.0


def _delta():
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([math.cos(math.pi / 3), math.sin(math.pi / 3)])
    H = torch.zeros(2)
    for key, value in ((first, 4.0), (second, 10.0)):
        H = H + (value - H @ key) * key
    return (H @ first).item()


WRONG_A = {
    "the second writing reaches the first key, too: their cosine is a half": lambda: 4.0,
    "this is the memory that only adds: the rule writes the difference": lambda: 9.0,
    "this is the answer to the second key": lambda: 10.0,
    "the difference is written whole, but it reaches the first key with the cosine only": lambda: 12.0,
    "the difference is 10 − 2: what was read under the second key counts": lambda: 7.0,
}
opener("9.a", "Corrected, and disturbed", claim="005:overwrite", oracle=_delta, wrong=WRONG_A)(disturbed)


def two_reflections():
    """The determinant.

    Two tokens with β = 2 and one with β = ½, with keys of norm 1 in three different directions. What is the determinant
    of the product of their transitions I − β k kᵀ?

    Hint: Chapter 08, "let it count": what does a token do along k, and what to all other directions?

    Hint: Each has the eigenvalue 1 − β once, and 1 otherwise. Determinants multiply.

    Too little: Two signs are turned, which is none; and the third token wipes nothing.

    Too much: The third token keeps only a part of what lies along its key.

    Insight: Its sign counts reflections modulo 2, whatever their keys are. With β ≤ 1 no determinant is negative: no
    such state is a counter.
    """
    return 0.5


def _determinant():
    randn, product = Randn(0), torch.eye(4, dtype=torch.float64)
    for beta in (2, 2, 0.5):
        k = torch.nn.functional.normalize(randn(4), dim=0)
        product = product - beta * torch.outer(product @ k, k)
    return torch.linalg.det(product).item()


WRONG_B = {
    "two reflections turn the sign twice": lambda: -0.5,
    "β = 1 would wipe a direction; here none is": lambda: 0.0,
    "determinants multiply, they do not add up": lambda: -1.5,
    "along the key the factor is 1 − β, not β": lambda: 2.0,
    "along its key the third token keeps 1 − β, not all": lambda: 1.0,
}
opener("9.b", "Two reflections", claim="005:reflection", oracle=_determinant, wrong=WRONG_B)(two_reflections)


def turned_away():
    """The weight.

    A pair of features is turned by 60° with every token, before the token is written, and loses nothing. Query and key
    are the same vector of norm 1 for all tokens. With which weight does token t read token t − 5?

    Hint: Chapter 04: the rotation of a pair is a decay mask with a complex γ.

    Hint: Five turns make 300°. What is the product of a vector with itself, turned by that?

    Too little: Five turns are most of a full circle.

    Too much: Five turns are not yet a full circle.

    Insight: The weight is the cosine of all angles since; to turn queries and keys in place of the state gives the
    same. A state that only shrinks has no weight below 0 here.
    """
    return 0.5


WRONG_C = {
    "this is the weight four turns away": lambda: -0.5,
    "this is the weight three turns away": lambda: -1.0,
    "a turn keeps the length of the state, not its direction": lambda: 1.0,
    "the angles add up, and then the cosine is taken: weights of turns are not multiplied": lambda: 0.5**5,
}
opener(
    "9.c",
    "Five turns of 60°",
    claim="006:rotary",
    oracle=lambda: (torch.polar(torch.ones(()), torch.tensor(math.pi / 3)) ** 5).real.item(),
    wrong=WRONG_C,
)(turned_away)
