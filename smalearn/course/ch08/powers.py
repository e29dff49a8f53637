"""The exercise of chapter 08 on where an inverse by powers breaks."""

import torch

from smalearn.course.exercises.core import exercise

# ---------------------------------------------------------------------------------------------- 8.8 where powers break


def break_powers(most, dtype):
    """Keys (T, N) of norm 1, at most `most` tokens, for which the inverse of I + A by powers is wrong by a tenth.

    A is what K K^T has below its diagonal: beta is 1. K is cast to dtype, "float32" or "bfloat16", and all is computed
    in that: (I + A)^-1 = (I − A)(I + A²)(I + A⁴) …

    Hint: Where are the numbers of A as large as they can be? What must the keys be for that?

    Hint: With one key A has ones below its diagonal, and A² counts the ways from s to t in two steps. How large does
    A^16 get with the length?

    Insight: The inverse has no number above 1, but the powers grow like binomials and must cancel. Blocks that are
    inverted alone and then joined multiply inverses, which stay small.
    """
    return torch.ones(most, 1)


def _by_powers(A):
    inverse, power = torch.eye(len(A)).to(A), -A
    for _ in range((len(A) - 1).bit_length()):
        inverse, power = inverse + power @ inverse, power @ power
    return inverse


def _cases(randn):
    yield from ((40, "float32"), (16, "bfloat16"), (48, "float32"))


def _still_right(K, most, dtype):
    if not isinstance(K, torch.Tensor) or K.ndim != 2 or not K.is_floating_point() or not 0 < len(K) <= most:
        found = f"{tuple(K.shape)} in {K.dtype}" if isinstance(K, torch.Tensor) else type(K).__name__
        return f"keys (T, N) of floating dtype are asked for, T from 1 to {most}; yours: {found}"
    lengths = K.double().norm(dim=1)
    if not (lengths - 1).abs().max() < 1e-2:
        return f"keys must have norm 1; yours have {lengths.min():.3g} to {lengths.max():.3g}"
    K = K.to(getattr(torch, dtype))
    A = (K @ K.mT).tril(-1)
    exact = torch.linalg.inv(torch.eye(len(A)) + A.double())
    error = ((_by_powers(A) - exact).norm() / exact.norm()).nan_to_num(torch.inf).item()
    if error > 0.1:
        return ""
    largest = max(torch.linalg.matrix_power(A.double(), k).abs().max().item() for k in range(1, len(A) + 1))
    return f"in {dtype} the powers still give the inverse, to {error:.0e}: their largest number is {largest:.0e}"


exercise(
    "8.8",
    "Where powers break",
    claim="005:chunks",
    kind="break",
    level=2,
    minutes=8,
    cases=_cases,
    refuse=_still_right,
    wrong={
        "keys at right angles have nothing to correct: A is 0": "torch.ones(most, 1) → torch.eye(most)",
        "these are too few tokens: the powers of A grow with the length": "torch.ones(most, 1) → torch.ones(8, 1)",
        "with keys in turn a token has fewer of its like before it: "
        "all may be alike": "torch.ones(most, 1) → torch.eye(2).repeat(most // 2, 1)",
    },
)(break_powers)
