"""The exercise of chapter 02 on landmarks."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.kernel_attention import softmax_weights


def nystrom_attention(Q, K, V, landmarks):
    """Y (T, P) = softmax(Q K̃ᵀ) · A⁺ · softmax(Q̃ Kᵀ) · V with A = softmax(Q̃ K̃ᵀ), by r landmarks.

    The landmarks Q̃ and K̃ (r, N) are the means of r segments of equal length; r divides T. Make no (T, T) matrix.

    Hint: A segment is `Q.unflatten(0, (landmarks, -1))[i]`. Which axis does the mean go over?

    Hint: Three softmaxes: all queries on the landmark keys, landmarks on landmarks, landmark queries on all keys. The
    second is inverted by `torch.linalg.pinv`; `softmax_weights(Q, K)` makes one.

    Hint: Four factors, (T, r) (r, r) (r, T) (T, P): from which end do you multiply so that none is (T, T)?

    Insight: With as many landmarks as tokens, the answer is softmax attention itself.
    """
    Q_means, K_means = (x.unflatten(0, (landmarks, -1)).mean(1) for x in (Q, K))
    middle = torch.linalg.pinv(softmax_weights(Q_means, K_means))
    return softmax_weights(Q, K_means) @ (middle @ (softmax_weights(Q_means, K) @ V))


def _means(x, landmarks):
    """Mean of each segment, one after the other."""
    size = len(x) // landmarks
    return torch.stack([x[k * size : (k + 1) * size].mean(0) for k in range(landmarks)])


def _nystrom_oracle(Q, K, V, landmarks):
    """With the pseudo-inverse, a singular value at a time."""
    Q_means, K_means = _means(Q, landmarks), _means(K, landmarks)
    U, S, Vh = torch.linalg.svd(softmax_weights(Q_means, K_means))
    inverse = sum(torch.outer(Vh[k], U[:, k]) / S[k] for k in range(len(S)) if S[k] > 1e-12 * S[0])
    return softmax_weights(Q, K_means) @ inverse @ softmax_weights(Q_means, K) @ V


def _newton(A):
    """Six steps of the iteration that runs on GPUs."""
    Z, eye = A.mT / (A.abs().sum(0).max() * A.abs().sum(1).max()), torch.eye(len(A), dtype=A.dtype)
    for _ in range(6):
        Z = Z @ (13 * eye - A @ Z @ (15 * eye - A @ Z @ (7 * eye - A @ Z))) / 4
    return Z


def _nystrom_cases(randn):
    yield randn(1, 2), randn(1, 2), randn(1, 1), 1
    for length, landmarks in [(4, 1), (6, 2), (6, 3), (4, 4)]:
        yield randn(length, 4), randn(length, 4), randn(length, 3), landmarks
    again = [0, 1, 2, 3, 2, 3]  # a landmark that is there twice: then A has no inverse
    Q = 1.5 * randn(4, 4)
    K = Q + 0.5 * randn(4, 4)  # near its queries, so that apart from that A is far from singular
    yield Q[again], K[again], randn(6, 3), 3
    yield 0.1 * randn(6, 4), 0.1 * randn(6, 4), randn(6, 3), 3  # singular values of A are small, and not 0


A, FIRST, LAST = "softmax_weights(Q_means, K_means)", "softmax_weights(Q, K_means)", "softmax_weights(Q_means, K)"

exercise(
    "2.7",
    "Through the landmarks",
    claim="000:nystromformer",
    level=2,
    minutes=12,
    tolerance=1e-8,
    cases=_nystrom_cases,
    oracle=_nystrom_oracle,
    way=Way(case=lambda randn, length: (*(randn(length, 2) for _ in "QKV"), 4), memory=1),
    wrong={
        "A stands in the middle as it is; "
        "it must be inverted, so that landmarks among themselves give back A": "torch.linalg.pinv( → (",
        "the middle factor is missing: two softmaxes in a row average twice": "middle @ → ",
        "the pseudo-inverse is transposed: "
        "A has landmark QUERIES in its rows, its inverse landmark KEYS": "middle @ → middle.mT @",
        "your A is softmax(K̃ Q̃ᵀ): "
        "the landmark QUERIES come first, A = softmax(Q̃ K̃ᵀ)": f"{A} → softmax_weights(K_means, Q_means)",
        "A is transposed in the middle, not inverted": "torch.linalg.pinv( → ( ; middle @ → middle.mT @",
        "you invert A entry by entry: a pseudo-inverse is that of a matrix": "torch.linalg.pinv( → 1 / (",
        "0.001 is added to the diagonal of A: "
        "A⁺ is that of A as it is": "torch.linalg.pinv( → torch.linalg.inv(1e-3 * torch.eye(landmarks).to(Q) + ",
        "a millionth is added to the diagonal of A: "
        "A⁺ is that of A as it is": "torch.linalg.pinv( → torch.linalg.inv(1e-6 * torch.eye(landmarks).to(Q) + ",
        "small singular values of A are cut off, at a hundredth of the largest: "
        "only those that are 0 must be": f"{A} → {A}, rtol=1e-2",
        "these are six steps of an iteration towards A⁺, which is not there yet: "
        "`torch.linalg.pinv` is exact": "torch.linalg.pinv → _newton",
        "the first factor sums to 1 over the queries: "
        "each softmax goes over its own sources": f"{FIRST} → (Q @ K_means.mT).softmax(0)",
        "all your softmaxes go over the rows, dim=0: each goes over its own sources, dim=-1": "Q_means, K_means = → "
        "softmax_weights = lambda Q, K: (Q @ K.mT).softmax(0)\n    Q_means, K_means =",
        "A has no softmax: it is made as the other two are": f"{A} → Q_means @ K_means.mT",
        "`landmarks` is how many there are, not the length of a segment": "(landmarks, -1) → (-1, landmarks)",
        "the last factor sums to 1 over the landmarks: "
        "each softmax goes over its own sources": f"{LAST} → (Q_means @ K.mT).softmax(0)",
        "the last factor has no softmax: it is made as the other two are": f"{LAST} → Q_means @ K.mT",
        "the first factor has no softmax: it is made as the other two are": f"{FIRST} → Q @ K_means.mT",
        "the columns of your A sum to 1: its softmax goes over the landmark KEYS, "
        "as the others over theirs": f"{A} → (Q_means @ K_means.mT).softmax(0)",
        "your landmarks are sums of their segments, not means": "mean(1) → sum(1)",
        "the scores are divided by √N: in this course there is no hidden scale": "Q_means, K_means = → "
        "Q, K = Q / Q.shape[1] ** 0.25, K / K.shape[1] ** 0.25\n    Q_means, K_means =",
        "you approximate the scores, and take one softmax at the end: that needs the whole (T, "
        "T) matrix": f"{A} → Q_means @ K_means.mT ; {FIRST} @ (middle @ ({LAST} @ V)) → "
        "(Q @ K_means.mT @ middle @ Q_means @ K.mT).softmax(-1) @ V",
        "your landmarks are single tokens, one of every T/r: "
        "a landmark is the mean of a whole segment": ".mean(1) → [:, 0]",
        "your landmarks are the first r tokens: "
        "they are means of r segments": "x.unflatten(0, (landmarks, -1)).mean(1) → x[:landmarks]",
        "your segments are interleaved: a landmark is the "
        "mean of tokens that stand side by side": "(landmarks, -1)).mean(1) → (-1, landmarks)).mean(0)",
    },
)(nystrom_attention)
