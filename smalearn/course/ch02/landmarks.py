"""The exercise of chapter 02 on landmarks."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.kernel_attention import softmax_weights

# ---------------------------------------------------------------------------------------- 2.7 Nyström attention


def _means(x, landmarks):
    """Mean of each segment, one after the other."""
    size = len(x) // landmarks
    return torch.stack([x[k * size : (k + 1) * size].mean(0) for k in range(landmarks)])


def _around(middle, means=_means):
    """The three factors with another one in the middle, made from A = softmax(Q̃ K̃ᵀ)."""

    def attention(Q, K, V, landmarks):
        Q_means, K_means = means(Q, landmarks), means(K, landmarks)
        A = softmax_weights(Q_means, K_means)
        return softmax_weights(Q, K_means) @ middle(A) @ softmax_weights(Q_means, K) @ V

    return attention


def _pinv(A):
    """The pseudo-inverse, a singular value at a time."""
    U, S, Vh = torch.linalg.svd(A)
    return sum(torch.outer(Vh[k], U[:, k]) / S[k] for k in range(len(S)) if S[k] > 1e-12 * S[0])


def _newton(A):
    """Six steps of the iteration that runs on GPUs."""
    Z, eye = A.mT / (A.abs().sum(0).max() * A.abs().sum(1).max()), torch.eye(len(A), dtype=A.dtype)
    for _ in range(6):
        Z = Z @ (13 * eye - A @ Z @ (15 * eye - A @ Z @ (7 * eye - A @ Z))) / 4
    return Z


def _shifted(added):
    """The inverse of A with a number added to its diagonal."""
    return lambda A: torch.linalg.inv(A + added * torch.eye(len(A), dtype=A.dtype))


def _nystrom_cases(randn):
    yield randn(1, 2), randn(1, 2), randn(1, 1), 1
    for length, landmarks in [(4, 1), (6, 2), (6, 3), (4, 4)]:
        yield randn(length, 4), randn(length, 4), randn(length, 3), landmarks
    again = [0, 1, 2, 3, 2, 3]  # a landmark that is there twice: then A has no inverse
    Q = 1.5 * randn(4, 4)
    K = Q + 0.5 * randn(4, 4)  # near its queries, so that apart from that A is far from singular
    yield Q[again], K[again], randn(6, 3), 3
    yield 0.1 * randn(6, 4), 0.1 * randn(6, 4), randn(6, 3), 3  # singular values of A are small, and not 0


def _factors(middle=lambda Q, K: softmax_weights(Q, K).pinverse(), first=softmax_weights, last=softmax_weights):
    """The three factors with another one, made from queries and keys."""

    def attention(Q, K, V, landmarks):
        Q_means, K_means = _means(Q, landmarks), _means(K, landmarks)
        return first(Q, K_means) @ middle(Q_means, K_means) @ last(Q_means, K) @ V

    return attention


def _scores(Q, K):
    return Q @ K.mT


def _softmax_of_the_product(Q, K, V, landmarks):
    Q_means, K_means = _means(Q, landmarks), _means(K, landmarks)
    scores = (Q @ K_means.mT) @ torch.linalg.pinv(Q_means @ K_means.mT) @ (Q_means @ K.mT)
    return scores.softmax(-1) @ V


@exercise(
    "2.7",
    "Through the landmarks",
    claim="000:nystromformer",
    level=2,
    minutes=12,
    tolerance=1e-8,
    cases=_nystrom_cases,
    oracle=_around(_pinv),
    way=Way(case=lambda randn, length: (*(randn(length, 2) for _ in "QKV"), 4), memory=1),
    wrong={
        "A stands in the middle as it is; it must be inverted, so that landmarks among themselves give back A": _around(
            lambda A: A
        ),
        "the middle factor is missing: two softmaxes in a row average twice": _around(
            lambda A: torch.eye(len(A), dtype=A.dtype)
        ),
        "the pseudo-inverse is transposed: A has landmark QUERIES in its rows, its inverse landmark KEYS": _around(
            lambda A: torch.linalg.pinv(A).mT
        ),
        "your A is softmax(K̃ Q̃ᵀ): the landmark QUERIES come first, A = softmax(Q̃ K̃ᵀ)": _factors(
            lambda Q, K: softmax_weights(K, Q).pinverse()
        ),
        "A is transposed in the middle, not inverted": _around(lambda A: A.mT),
        "you invert A entry by entry: a pseudo-inverse is that of a matrix": _around(lambda A: 1 / A),
        "0.001 is added to the diagonal of A: A⁺ is that of A as it is": _around(_shifted(1e-3)),
        "a millionth is added to the diagonal of A: A⁺ is that of A as it is": _around(_shifted(1e-6)),
        "small singular values of A are cut off, at a hundredth of the largest: only those that are 0 must be": _around(
            lambda A: torch.linalg.pinv(A, rtol=1e-2)
        ),
        "these are six steps of an iteration towards A⁺, which is not there yet: `torch.linalg.pinv` is exact": (
            _around(_newton)
        ),
        "the first factor sums to 1 over the queries: each softmax goes over its own sources": _factors(
            first=lambda Q, K: _scores(Q, K).softmax(0)
        ),
        "all your softmaxes go over the rows, dim=0: each goes over its own sources, dim=-1": _factors(
            lambda Q, K: _scores(Q, K).softmax(0).pinverse(), *2 * [lambda Q, K: _scores(Q, K).softmax(0)]
        ),
        "this is softmax attention itself: the landmarks are missing": lambda Q, K, V, landmarks: (
            softmax_weights(Q, K) @ V
        ),
        "A has no softmax: it is made as the other two are": _factors(lambda Q, K: _scores(Q, K).pinverse()),
        "`landmarks` is how many there are, not the length of a segment": lambda Q, K, V, landmarks: nystrom_attention(
            Q, K, V, len(Q) // landmarks
        ),
        "the last factor sums to 1 over the landmarks: each softmax goes over its own sources": _factors(
            last=lambda Q, K: _scores(Q, K).softmax(0)
        ),
        "the last factor has no softmax: it is made as the other two are": _factors(last=_scores),
        "the first factor has no softmax: it is made as the other two are": _factors(first=_scores),
        "you invert the scores and take the softmax after that: first the softmax, then A⁺": _factors(
            lambda Q, K: _scores(Q, K).pinverse().softmax(-1)
        ),
        "the columns of your A sum to 1: its softmax goes over the landmark KEYS, as the others over theirs": _factors(
            lambda Q, K: _scores(Q, K).softmax(0).pinverse()
        ),
        "your landmarks are sums of their segments, not means": _around(
            _pinv, lambda x, landmarks: _means(x, landmarks) * (len(x) // landmarks)
        ),
        "the scores are divided by √N: in this course there is no hidden scale": lambda Q, K, V, landmarks: (
            nystrom_attention(Q / Q.shape[1] ** 0.25, K / Q.shape[1] ** 0.25, V, landmarks)
        ),
        "you approximate the scores, and take one softmax at the end: that needs "
        "the whole (T, T) matrix": _softmax_of_the_product,
        "your landmarks are single tokens, one of every T/r: a landmark is the mean of a whole segment": _around(
            _pinv, lambda x, landmarks: x[:: len(x) // landmarks][:landmarks]
        ),
        "your landmarks are the first r tokens: they are means of r segments": _around(
            _pinv, lambda x, landmarks: x[:landmarks]
        ),
        "your segments are interleaved: a landmark is the mean of tokens that stand side by side": _around(
            _pinv, lambda x, landmarks: x.reshape(-1, landmarks, x.shape[1]).mean(0)
        ),
    },
)
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
