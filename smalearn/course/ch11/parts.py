"""The exercises of chapter 11 on softmax in parts: an anchor that overflows, and two parts merged."""

import torch

from smalearn.course.exercises.core import exercise


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
    return "" if wrong else f"the program is right on these scores: {_why_right(answer)}"


def _why_right(scores):
    above = (scores.max() - scores[-1]).item()
    if not above:
        return "no score is above the anchor, scores[-1], so that no exponential exceeds 1"
    return f"the largest score is only {above:.4g} above the anchor, scores[-1], and e^{above:.4g} fits into a float32"


exercise(
    "11.5",
    "Break the anchor",
    claim="003:batched-score",
    kind="break",
    level=1,
    minutes=6,
    cases=lambda randn: ((length,) for length in (2, 3, 8)),
    refuse=_still_right,
    wrong={
        "every score is the same: nothing is far above the anchor": "100 → 0",
        "the last score, which is the anchor, is far above all others: "
        "then their exponentials are 0, as they should be": "scores[0] = 100 → scores[-1] = 900",
        "a score is above the anchor, but e^80 still fits into a float32": "100 → 80",
        "these scores are not finite": "scores[0] = 100 → scores += torch.inf",
    },
)(overflowing)


def merge(Y_1, lse_1, Y_2, lse_2):
    """Attention to all keys from attention to two parts of them: Y (T, P), and lse (T), the log of the denominators.

    Merge softmax attention to two sets of keys into attention to both, from outputs and log-sum-exps. Return both,
    (Y, lse).

    Hint: Each output is a quotient u/z with z = exp(lse). What are the numerator and the denominator of the whole?

    Hint: u = z_1 Y_1 + z_2 Y_2 and z = z_1 + z_2, so Y is a mean of Y_1 and Y_2 with weights z_1/z and z_2/z. But z may
    be too large for a float: work with its logarithm alone.

    Hint: `torch.logaddexp(a, b)` is log(e^a + e^b), and overflows nowhere. And what is the logarithm of z_1/z?

    Insight: The merge is associative and commutative: keys may lie on many machines, and their parts come in any order.
    """
    lse = torch.logaddexp(lse_1, lse_2)
    Y = (lse_1 - lse).exp()[:, None] * Y_1 + (lse_2 - lse).exp()[:, None] * Y_2
    return Y, lse


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
    """Softmax attention of random scores to some keys, and its log denominator."""
    S, V = factor * randn(length, keys), randn(keys, size)
    return S.softmax(-1) @ V, S.logsumexp(-1)


def _merge_cases(randn):
    for length, keys, others, size, factor in [
        (2, 3, 1, 2, 1.0),
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
    yield Y, lse + far, randn(3, 2), lse - far  # neither part is the larger one in all rows


def _mean(w_1, Y_1, w_2, Y_2):
    return (w_1[:, None] * Y_1 + w_2[:, None] * Y_2) / (w_1 + w_2)[:, None]


def _shared(share, Y_1, Y_2):
    return share[:, None] * Y_1 + (1 - share)[:, None] * Y_2


exercise(
    "11.6",
    "Merge two parts",
    claim="003:batched-score",
    level=2,
    minutes=10,
    cases=_merge_cases,
    oracle=_merge_loop,
    wrong={
        "these are plain means, of outputs and of logarithms: "
        "weights are z_1 : z_2, and denominators add up": "return Y, lse → return (Y_1 + Y_2) / 2, (lse_1 + lse_2) / 2",
        "you add the outputs: "
        "numerators add up, but each output has been divided by its own denominator": "return Y, → return Y_1 + Y_2,",
        "you add the log-sum-exps: it is the denominators that add up, "
        "so that lse = log(e^lse_1 + e^lse_2)": "torch.logaddexp(lse_1, lse_2) → lse_1 + lse_2",
        "you cut the difference of the log-sum-exps off: a part "
        "may weigh next to nothing": "return Y, → return _shared((lse_1 - lse_2).clamp(-8, 8).sigmoid(), Y_1, Y_2),",
        "you add outputs and logarithms: "
        "it is numerators that add up, and denominators": "return Y, lse → return Y_1 + Y_2, lse_1 + lse_2",
        "your weights are the log-sum-exps: "
        "the weights are the denominators, their exponentials": "return Y, → return _mean(lse_1, Y_1, lse_2, Y_2),",
        "your weights are the log-sum-exps, and you add these: add their exponentials, "
        "the denominators": "return Y, lse → return _mean(lse_1, Y_1, lse_2, Y_2), lse_1 + lse_2",
        "your Y is a numerator: divide it by z_1 + z_2, "
        "both with the same maximum subtracted": "return Y, → return Y * (1 + (-abs(lse_1 - lse_2)).exp())[:, None],",
        "both are over e^m, m the larger logarithm: divide Y by the other sum, and lse = "
        "m + its logarithm": "return Y, lse → z = 1 + (-abs(lse_1 - lse_2)).exp()\n    return Y * z[:, None], z.log()",
        "your weights sum to 1 over the tokens: they must "
        "do so over the two parts": "(lse_1 - lse).exp() → lse_1.softmax(0) ; (lse_2 - lse).exp() → lse_2.softmax(0)",
        "your log-sum-exp lacks the maximum: lse = m + log z, "
        "where m is what you have subtracted": "return Y, lse → return Y, (1 + (-abs(lse_1 - lse_2)).exp()).log()",
        "your log-sum-exp is a sum of exponentials over the larger one: "
        "lse = m + log of it": "return Y, lse → return Y, 1 + (-abs(lse_1 - lse_2)).exp()",
        "this is the denominator itself, which overflows: "
        "its logarithm is asked": "return Y, lse → return Y, lse_1.exp() + lse_2.exp()",
        "you take out lse_1: where lse_2 is far above, e^(lse_2 − lse_1) overflows. "
        "Take out the larger one": "torch.logaddexp(lse_1, lse_2) → lse_1 + (1 + (lse_2 - lse_1).exp()).log()",
        "you take out lse_2: where lse_1 is far above, e^(lse_1 − lse_2) overflows. "
        "Take out the larger one": "torch.logaddexp(lse_1, lse_2) → lse_2 + (1 + (lse_1 - lse_2).exp()).log()",
        "your Y is right, but the log-sum-exp takes exp(lse) itself, which overflows: "
        "take out the larger": "return Y, lse → return Y, (lse_1.exp() + lse_2.exp()).log()",
        "your weights are softmaxes over the tokens, over their sum: weights are z_1/z and z_2/z, "
        "for each token": "return Y, → return _mean(lse_1.softmax(0), Y_1, lse_2.softmax(0), Y_2),",
        "your log-sum-exp has the base 2: "
        "these are natural logarithms": "return Y, lse → return Y, torch.logaddexp2(lse_1, lse_2)",
        "your weights are powers of 10: "
        "the denominators are e^lse": "return Y, → return _mean(10**lse_1, Y_1, 10**lse_2, Y_2),",
        "your shares are made of powers of 10: "
        "the denominators are e^lse": "return Y, → return _shared(10**lse_1 / (10**lse_1 + 10**lse_2), Y_1, Y_2),",
        "only Y_1 has a weight: each part has its own, z_1/z and z_2/z": "(lse_2 - lse).exp()[:, None] * Y_2 → Y_2",
        "a weight belongs to a row: `[:, None]` puts it there": "[:, None] → ",
        "your Y is that of the part with the larger denominator: "
        "the other has its weight, too": "return Y, → return torch.where((lse_1 >= lse_2)[:, None], Y_1, Y_2),",
        "the weights are exchanged: Y_1 has weight z_1/z": "Y = → Y_1, Y_2 = Y_2, Y_1\n    Y =",
        "your log-sum-exp is the sum of the two, the logarithm of z_1·z_2: "
        "the denominators add, z_1 + z_2": "return Y, lse → return Y, lse_1 + lse_2",
        "your log-sum-exp is the mean of the two: "
        "it is the logarithm of z_1 + z_2": "return Y, lse → return Y, (lse_1 + lse_2) / 2",
        "your log-sum-exp is log 2 too low, the logarithm of a mean: "
        "it is that of the sum": "return Y, lse → return Y, lse - torch.full_like(lse, 2).log()",
        "your log-sum-exp is the larger of the two: "
        "it is the log of the sum, up to log 2 more": "return Y, lse → return Y, torch.maximum(lse_1, lse_2)",
    },
)(merge)
