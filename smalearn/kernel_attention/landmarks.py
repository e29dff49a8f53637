"""Features that look at the data first: random directions moved to where the softmax has its mass."""

import math
from copy import copy

import torch

from smalearn._checks import check_count, check_dtypes, check_shapes
from smalearn.kernel_attention.random import PositiveRandom


class LinearRandomized(PositiveRandom):
    """Linear randomized attention: positive features whose directions are drawn where queries and keys are.

    `fit` cuts both sequences into m segments with means q̄_c and k̄_c, and takes ω_c = q̄_c + k̄_c + (row c of W), a
    draw from N(q̄_c + k̄_c, I), for a direction. What has been drawn too often is weighed down:

        phi_q(q)_c phi_k(k)_c = w_c exp(ω_c·q - |q|²/2) exp(ω_c·k - |k|²/2),
        w_c = N(ω_c; 0, I) / Σ_c' N(ω_c; q̄_c' + k̄_c', I).

    This is importance sampling from m proposals with the balance heuristic: the kernel is an unbiased estimate of
    exp(q · k) still, and kernel attention with it is the self-normalised estimate of the whole softmax. Until it is
    fitted the map is `PositiveRandom`. A fitted map has seen all tokens: under a causal mask it leaks the future. The
    paper adds to w_c a term for each query; over the landmarks these terms sum to zero.

    Args:
        W: (..., m, N) draws from N(0, I), one for each landmark; m features. Zeros leave the directions at the means.

    Raises:
        ShapeError: W has fewer than two axes.
        ValueError: W has no floating dtype; in `fit`, a sequence is shorter than m.

    Cost:
        As `PositiveRandom`, and m²·N multiply-adds in `fit`.

    Source:
        Zheng, Wang and Kong 2022, "Linear Complexity Randomized Self-attention Mechanism"; Veach and
        Guibas 1995 for the balance heuristic; Mamba-2 paper, section 4.1.3.
    """

    def __init__(self, W: torch.Tensor):
        super().__init__(W)
        self.noise, self.log_weight = W, W.new_zeros(1)

    def _query_exponent(self, Q):
        return self._exponent(Q) + self.log_weight

    def _fit(self, Q, K):
        means = segment_means(Q, self.features) + segment_means(K, self.features)
        moved = copy(self)
        moved.W = self.noise + means
        # log(N(ω; mean, I) / N(ω; 0, I)) of every direction (row) under every proposal (column)
        ratios = moved.W @ means.mT - means.square().sum(-1)[..., None, :] / 2
        moved.log_weight = math.log(self.features) - ratios.logsumexp(-1)[..., None, :]
        return moved._shifted(K)


def segment_means(x: torch.Tensor, segments: int) -> torch.Tensor:
    """Means of consecutive segments of a sequence: its landmarks.

    Row t belongs to segment t·segments // T, so the segments' lengths differ by at most one.

    Args:
        x: (..., T, N).
        segments: m ≤ T, how many.

    Returns:
        (..., m, N), dtype of x.

    Raises:
        ShapeError: x has fewer than two axes.
        ValueError: segments is not an integer from 1 to T.

    Cost:
        T·N additions.

    Source:
        Xiong et al. 2021 (Nyströmformer).

    Example:
        >>> segment_means(torch.tensor([[1.0], [3.0], [5.0], [7.0]]), 2)
        tensor([[2.],
                [6.]])
    """
    check_dtypes("segment_means", {"x": x})
    length = check_shapes("segment_means", {"x": (x, "tn")})["t"]
    if check_count("segment_means", "segments", segments) > length:
        raise ValueError(f"segment_means: segments must be at most the length {length}, got {segments}")
    segment = torch.arange(length, device=x.device) * segments // length
    sums = x.new_zeros(*x.shape[:-2], segments, x.shape[-1]).index_add(-2, segment, x)
    counts = (segment == torch.arange(segments, device=x.device)[:, None]).sum(-1, keepdim=True)
    return sums / counts
