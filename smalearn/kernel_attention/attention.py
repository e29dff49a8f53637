"""Attention as a kernel on queries and keys, normalised over the sources."""

import torch

from smalearn._checks import check_count, check_dtypes, check_shapes, check_type, holds
from smalearn.contractions import contract
from smalearn.kernel_attention.base import FeatureMap
from smalearn.kernel_attention.landmarks import segment_means
from smalearn.masks import Mask, dense_mask
from smalearn.sma import check_sma, sma_linear, sma_quadratic


def softmax_weights(Q: torch.Tensor, K: torch.Tensor, L: Mask | torch.Tensor | None = None) -> torch.Tensor:
    """The matrix M of softmax attention: M[t, s] = L[t, s]·exp(Q_t · K_s), each row divided by its sum.

    There is no hidden scale: for the usual 1/√N, pass Q / √N. The mask multiplies the exponential, so a zero removes
    a source and a decay weighs it down. (Multiplying the scores inside the softmax would not: exp(0) = 1.) An exact
    zero of L is structure: no gradient reaches it.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        L: (..., T, S) non-negative mask, a tensor or a structured mask; all ones if None.

    Returns:
        (..., T, S), dtype of Q: every row is non-negative and sums to 1. A row whose mask has no source left is zero.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        ValueError: the dtypes or devices differ, or L (on a CPU) has a negative entry.

    Cost:
        T·S·N multiply-adds, T·S exponentials and entries.

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.1.3.
    """
    _check("softmax_weights", Q, K, K, L)
    return _weights("softmax_weights", Q, K, L)


def softmax_attention(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, L: Mask | torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax attention Y = M V, equation (9) with f = softmax, masked as in equation (10).

    Y_t = Σ_s L[t, s]·exp(Q_t · K_s)·V_s / Σ_s L[t, s]·exp(Q_t · K_s). No hidden scale: for the usual 1/√N pass Q / √N.
    A NaN or infinity in V may reach all outputs, also where L is 0: 0·NaN is NaN.

    V are values (..., S, P); Y is (..., T, P), dtype of Q, and a row whose mask has no source left is zero. All other
    arguments and the errors are those of `softmax_weights`.

    Cost:
        T·S·(N + P) multiply-adds; T·S entries.

    Source:
        Dao and Gu 2024 (Mamba-2), sections 4.1.1 and 4.1.3.
    """
    _check("softmax_attention", Q, K, V, L)
    return _weights("softmax_attention", Q, K, L) @ V


def kernel_attention(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, phi: FeatureMap, L: Mask | torch.Tensor | None = None
) -> torch.Tensor:
    """Kernel attention: masked attention on the features of queries and keys, normalised.

    Y_t = Σ_s L[t, s] w[t, s] V_s / Σ_s L[t, s] w[t, s] with w[t, s] = phi_q(Q_t) · phi_k(K_s). A column of ones beside
    V makes the denominator by the same contraction as the numerator. Y for V = identity is the (T, S) matrix of weights
    itself (give it the mask as a tensor: the linear mode is for few columns).

    Pass `phi.fit(Q, K)` for maps of random features: it keeps numerator and denominator in the range of floats (without
    a mask the denominator of positive features is 1/features at least), and leaves Y as it is otherwise.

    What a NaN or an overflow reaches stands in `Mask.matmul` for a structured mask, in `sma_quadratic` for a tensor.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        V: (..., S, P) values.
        phi: feature map with `inputs` = N.
        L: (..., T, S) mask, a tensor or a structured mask; all ones if None.

    Returns:
        (..., T, P), dtype of Q. A row whose denominator is zero, because no source is left to it or because all its
        weights underflow, is zero. Weights that are not positive may cancel; then a row is large, and means nothing.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        ValueError: the dtypes or devices differ.

    Cost:
        That of phi, and (T + S)·features·(P + 1) multiply-adds: the linear mode, to which a structured mask adds its
        product. With a tensor for a mask it is the quadratic mode, T·S·(features + P + 2).

    Source:
        Dao and Gu 2024 (Mamba-2), section 4.1.3; Katharopoulos et al. 2020.
    """
    check_type("kernel_attention", "phi", phi, FeatureMap)
    _check("kernel_attention", Q, K, V, L)
    phi_Q, phi_K = phi.query(Q), phi.key(K)
    V_and_ones = torch.cat([V, torch.ones_like(V[..., :1])], dim=-1)
    if L is None:
        both = contract("TN, NP -> TP", phi_Q, contract("SN, SP -> NP", phi_K, V_and_ones))
    else:
        mode = sma_linear if isinstance(L, Mask) else sma_quadratic
        both = mode(phi_Q, phi_K, V_and_ones, L)
    numerator, denominator = both[..., :-1], both[..., -1:]
    return numerator / denominator.masked_fill(denominator == 0, 1)


def linformer(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, E: torch.Tensor, F: torch.Tensor) -> torch.Tensor:
    """Linformer: softmax attention to r mixtures of the sources, Y = softmax(Q (E K)^T) (F V).

    The matrix that multiplies V is M = softmax(Q (E K)^T) F, of rank r at most. E and F are learned and fix S. No
    causal mask is possible: each mixture may hold every source. No hidden scale: for the usual 1/√N pass Q / √N.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        V: (..., S, P) values.
        E: (..., R, S) mixes keys.
        F: (..., R, S) mixes values.

    Returns:
        (..., T, P), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        ValueError: the dtypes or devices differ.

    Cost:
        (T + S)·R·(N + P) multiply-adds; T·R entries.

    Source:
        Wang et al. 2020, "Linformer"; Mamba-2 paper, section 4.1.3. The appeal to Johnson and Lindenstrauss is about
        (M R^T)(R V) with a random R, not about E inside the softmax: an orthogonal E with R = S does not give softmax
        attention.
    """
    check_dtypes("linformer", {"Q": Q, "K": K, "V": V, "E": E, "F": F})
    check_shapes("linformer", {"Q": (Q, "tn"), "K": (K, "sn"), "V": (V, "sp"), "E": (E, "rs"), "F": (F, "rs")})
    return softmax_attention(Q, contract("RS, SN -> RN", E, K), contract("RS, SP -> RP", F, V))


def nystrom(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, landmarks: int, iterations: int = 6) -> torch.Tensor:
    """Nyström attention: softmax attention through m landmarks, the means Q̃, K̃ of m segments.

    Y = softmax(Q K̃^T) · A^+ · (softmax(Q̃ K^T) V) with A = softmax(Q̃ K̃^T), whose pseudo-inverse A^+ is iterated.
    With every token a landmark all three matrices are M, and M M^+ M = M is softmax attention. No causal mask is
    possible: a landmark may hold the future. No hidden scale: for the usual 1/√N pass Q / √N.

    Args:
        Q: (..., T, N) queries.
        K: (..., S, N) keys.
        V: (..., S, P) values.
        landmarks: m ≤ T and m ≤ S.
        iterations: of `iterated_pinv`; the paper's 6 are too few where A is not well conditioned.

    Returns:
        (..., T, P), dtype of Q.

    Raises:
        ShapeError: an axis has two sizes, naming it and both operands.
        ValueError: the dtypes or devices differ, or landmarks is not an integer from 1 to the shorter length.

    Cost:
        (T + S)·m·(N + P) + 4·iterations·m³ multiply-adds; (T + S)·m entries.

    Source:
        Xiong et al. 2021, "Nyströmformer" (without its convolution); Mamba-2 paper, section 4.1.3.
    """
    _check("nystrom", Q, K, V, None)
    check_count("nystrom", "iterations", iterations, 0)
    if check_count("nystrom", "landmarks", landmarks) > min(Q.shape[-2], K.shape[-2]):
        shorter = min(Q.shape[-2], K.shape[-2])
        raise ValueError(f"nystrom: landmarks must be at most the shorter length {shorter}, got {landmarks}")
    Q_means, K_means = segment_means(Q, landmarks), segment_means(K, landmarks)
    inverse = iterated_pinv(softmax_weights(Q_means, K_means), iterations)
    return softmax_weights(Q, K_means) @ (inverse @ softmax_attention(Q_means, K, V))


def iterated_pinv(A: torch.Tensor, iterations: int) -> torch.Tensor:
    """The pseudo-inverse of A by products alone: Z ← ¼ Z (13 I - A Z (15 I - A Z (7 I - A Z))).

    Starts from Z = A^T / (‖A‖_1 ‖A‖_∞). Each singular value z of A Z follows z ← 1 - (1 - z)³ (1 - z/4): it grows
    by 13/4 while it is small, then the error is cubed. Where A has the condition number κ, about 2·log(κ) / log(13/4)
    steps pass before that.

    Args:
        A: (..., T, S) matrices, none of them zero.
        iterations: how many, ≥ 0.

    Returns:
        (..., S, T), dtype of A.

    Raises:
        ShapeError: A has fewer than two axes.
        ValueError: A has no floating dtype, or iterations is not an integer ≥ 0.

    Cost:
        4·iterations products of (m, m) matrices for a square A.

    Source:
        Razavi et al. 2014, "A new iterative method for finding approximate inverses of complex matrices"; Xiong et
        al. 2021, "Nyströmformer".
    """
    check_dtypes("iterated_pinv", {"A": A})
    check_shapes("iterated_pinv", {"A": (A, "ts")})
    check_count("iterated_pinv", "iterations", iterations, least=0)
    norms = [torch.linalg.matrix_norm(A, ord=order, keepdim=True) for order in (1, torch.inf)]
    Z = A.mT / (norms[0] * norms[1])
    eye = torch.eye(A.shape[-2], dtype=A.dtype, device=A.device)
    for _ in range(iterations):
        AZ = A @ Z
        Z = Z @ (13 * eye - AZ @ (15 * eye - AZ @ (7 * eye - AZ))) / 4
    return Z


def _check(function, Q, K, V, L):
    """Check operands as `check_sma` does, with L or without."""
    check_dtypes(function, {"Q": Q, "K": K, "V": V}, real=True)
    if L is not None:
        return check_sma(function, Q, K, V, L)
    check_shapes(function, {"Q": (Q, "tn"), "K": (K, "sn"), "V": (V, "sp")})


def _weights(function, Q, K, L):
    """softmax(Q K^T + log L), without NaN where log L = -inf: in single entries and in whole rows."""
    scores = contract("TN, SN -> TS", Q, K)
    if L is None:
        return scores.softmax(-1)
    L = dense_mask(L, like=Q)
    if L.device.type == "cpu" and not holds(L >= 0):
        remedy = "L multiplies exp(scores), so one that is added to scores is passed as L.exp()"
        raise ValueError(f"{function}: L must be non-negative, because each row of M is a distribution; {remedy}")
    zero = L == 0
    empty = zero.all(-1, keepdim=True)
    # A gradient through log(0) or through a row of -inf would be NaN even where it is multiplied by zero.
    scores = scores + L.masked_fill(zero, 1).log()
    M = scores.masked_fill(zero & ~empty, -torch.inf).softmax(-1)
    return M.masked_fill(empty, 0)
