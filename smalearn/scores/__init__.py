"""Attention whose scores are a bilinear form x_i^T M x_j with a structured M: scores, orders and costs, muP.

    S[i, j] = x_i^T M x_j = (M^T x_i) · x_j

One file an idea: the layer, the factors of a score, the orders in which they multiply with what each costs, scores that
are never formed, and the rules by which a layer starts and learns at every width.
"""

from smalearn.scores.bilinear import (
    BilinearAttention,
    Logits,
    bilinear_attention,
    bilinear_scores,
    bilinear_weights,
)

__all__ = ["BilinearAttention", "Logits", "bilinear_attention", "bilinear_scores", "bilinear_weights"]
