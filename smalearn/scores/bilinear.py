"""Attention whose scores are any bilinear form of structured weights (structured attention paper, sections 2 and 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from smalearn._checks import ShapeError, check_count, check_dtypes, check_shapes, check_type
from smalearn.scores.factors import alike, check_order, check_weights, normed_factors, score_factors
from smalearn.scores.orders import cheapest, score_width
from smalearn.scores.products import apply_heads
from smalearn.scores.tiled import tiled_attention
from smalearn.weights import LowRank, Weight

Scoring = Callable[[int], Weight] | Sequence[Weight] | nn.ModuleList


@dataclass(frozen=True)
class Logits:
    """Scale, layer norm and mask, from the product X M X^T to the softmax.

    Attributes:
        scale: of the scores. None is 1/√W, W the numbers that a score sums (`score_width`): for low rank the 1/√r of
            standard attention. It gives logits of variance 1 while queries and keys are independent, as at the start;
            once training has aligned them, W products of one sign add up, and 1/W is what keeps logits the same at
            every width (μP; pass it as the number).
        norm: the C of equations (39) and (40): layer norm on queries and keys, and C/W in place of `scale`. None
            leaves both as they are.
        causal: whether a token sees only those up to itself; −∞ for the others.
    """

    scale: float | None = None
    norm: float | None = None
    causal: bool = True

    def __post_init__(self):
        if self.scale is not None and self.norm is not None:
            raise ValueError(f"Logits: either scale or norm, got scale={self.scale} and norm={self.norm}")


def bilinear_scores(X: torch.Tensor, weights: Weight | Sequence[Weight], order: str | None = None) -> torch.Tensor:
    """S_h = X M_h X^T, equations (2), (6), (7), without a scale.

    Args:
        X: (..., T, D) tokens.
        weights: one (D, D) weight, or one for each of H heads, all of one structure.
        order: see `score_factors`; by default the one with the fewest multiply-adds.

    Returns:
        (..., H, T, T), dtype of X; (..., T, T) for a single weight.

    Raises:
        ShapeError: X has no axis of time, a weight is not (D, D), or weights have several structures.
        ValueError: the order is not one of the weight's, or dtypes or devices differ.

    Cost:
        `score_costs(weight, T)[order]` for each head.

    Example:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> bilinear_scores(X, LowRank(torch.eye(2), torch.eye(2))).detach()
        tensor([[1., 1.],
                [1., 5.]])
    """
    heads = check_weights("bilinear_scores", X, weights)
    check_order("bilinear_scores", order)
    Q, K = score_factors(X, weights, order or cheapest(heads[0], X.shape[-2]))
    if not isinstance(weights, Weight) and K.shape[-3] < len(heads):
        K = K.repeat_interleave(len(heads) // K.shape[-3], -3)
    return Q @ K.mT


def bilinear_weights(
    X: torch.Tensor, weights: Weight | Sequence[Weight], logits: Logits | None = None, order: str | None = None
) -> torch.Tensor:
    """The matrix softmax(S_h) of every head, equations (14) and (17), T × T numbers each.

    The paper calls it the output; it is still to be applied to the values, as `bilinear_attention` does.

    Args:
        X: (..., T, D) tokens.
        weights: as for `bilinear_scores`.
        logits: scale, layer norm and mask.
        order: as for `bilinear_scores`; without layer norm only.

    Returns:
        (..., H, T, T), dtype of X, without H for a single weight. Rows sum to 1.

    Raises:
        ShapeError: as `bilinear_scores`.
        ValueError: as there, or an order is given as well as layer norm.
    """
    _check_logits("bilinear_weights", logits)
    single = isinstance(weights, Weight)
    heads = check_weights("bilinear_weights", X, weights)
    check_order("bilinear_weights", order)
    Q, K = _queries_and_keys("bilinear_weights", X, heads, logits or Logits(), order)
    identity = torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)[None]
    P = tiled_attention(Q, K, identity.expand(K.shape[-3], -1, -1), (logits or Logits()).causal)
    return P[..., 0, :, :] if single else P


def bilinear_attention(
    X: torch.Tensor,
    weights: Sequence[Weight],
    V: torch.Tensor,
    logits: Logits | None = None,
    order: str | None = None,
) -> torch.Tensor:
    """softmax(S_h) V_h for every head, equation (3) before its last product.

    Args:
        X: (..., T, D) tokens.
        weights: one (D, D) weight for each of H heads; heads of equal structure are computed together.
        V: (..., H, T, P) values, or with a divisor of H in place of H: groups of heads then share them.
        logits: scale, layer norm and mask.
        order: as for `bilinear_scores`; without layer norm only.

    Returns:
        (..., H, T, P), dtype of X.

    Raises:
        ShapeError: X has no axis of time, a weight is not (D, D), or V does not fit.
        ValueError: dtypes or devices differ, the order is not one of the weight's or given as well as layer norm.
    """
    check_type("bilinear_attention", "weights", weights, Sequence, nn.ModuleList)
    for i, weight in enumerate(weights):
        check_type("bilinear_attention", f"weights[{i}]", weight, Weight)
    check_dtypes("bilinear_attention", {"X": X, "V": V})
    _check_logits("bilinear_attention", logits)
    check_order("bilinear_attention", order)
    logits, groups = logits or Logits(), alike(weights)
    check_weights("bilinear_attention", X, [weights[i] for i in groups[0]] if groups else [])
    check_shapes("bilinear_attention", {"V": (V, "hsp")})
    if V.shape[-3] < 1 or len(weights) % V.shape[-3]:
        got = f"{len(weights)} weights, got {V.shape[-3]}"
        raise ShapeError(f"bilinear_attention: heads of V must divide the {got}")
    if len(groups) > 1 and V.shape[-3] != len(weights):
        V = V.repeat_interleave(len(weights) // V.shape[-3], -3)
    parts = []
    for group in groups:
        heads = check_weights("bilinear_attention", X, [weights[i] for i in group])
        Q, K = _queries_and_keys("bilinear_attention", X, heads, logits, order)
        parts.append(tiled_attention(Q, K, V if len(groups) == 1 else V[..., group, :, :], logits.causal))
    return _in_order(parts, groups)


class BilinearAttention(nn.Module):
    """Attention with a structured score: y = Σ_h softmax(X M_h X^T) X (W_V W_O^T)_h, equations (1) and (3).

    Only the score differs from standard attention, which is what low rank weights of rank D/H make of it (the
    default). All heads are computed at once, in the order of fewest multiply-adds.

    Args:
        dim: D, size of a token.
        heads: H.
        scoring: the (D, D) weight of each head: a function that draws one from a seed (seeds come from torch's own), or
            a list of H of them, of any families, which the layer then trains. By default low rank with r = D/H.
        value: the map W_O W_V^T of each head as (D, D) weights, given likewise, one for each of `kv_heads`. By default
            W_V and W_O, both (D, D) for all heads together, each head with D/H values.
        kv_heads: how many heads have keys and values of their own; the others share theirs in equal groups, by a common
            factor R of their scores. By default all.
        logits: scale, layer norm and mask; causal attention with 1/√W by default.

    Raises:
        ShapeError: a weight is not (D, D).
        TypeError: one weight is given where a list is expected.
        ValueError: heads does not divide dim, kv_heads does not divide heads, a list has another length, or weights
            without a factor R are to share it.

    Cost:
        Of a forward: `score_costs` for each head, half of its T² part under a causal mask, and those of the values:
        2·T·D² + T²·D for the default.

    Source:
        Structured attention paper (003), sections 2.1, 3.2 and 7, appendices B, E and F.

    Example:
        >>> from smalearn.weights import BlockTensorTrain, balanced_sizes
        >>> btt = lambda seed: BlockTensorTrain.random(balanced_sizes(64, 64), 1, seed)
        >>> layer = BilinearAttention(64, 8, btt, logits=Logits(causal=False))
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        scoring: Scoring | None = None,
        value: Scoring | None = None,
        kv_heads: int | None = None,
        logits: Logits | None = None,
    ):
        super().__init__()
        self.dim, self.heads = check_count("BilinearAttention", "dim", dim), heads
        self.head_dim = _divide("dim", dim, "heads", heads)
        self.kv_heads = heads if kv_heads is None else kv_heads
        size = _divide("heads", heads, "kv_heads", self.kv_heads)
        _check_logits("BilinearAttention", logits)
        self.logits = logits or Logits()
        draw = (lambda seed: LowRank.random(dim, dim, self.head_dim, seed)) if scoring is None else scoring
        self.scores = nn.ModuleList(_drawn("scoring", draw, dim, heads))
        if size > 1:
            _share(self.scores, size)
        if value is not None:
            self.values = nn.ModuleList(_drawn("value", value, dim, self.kv_heads))
        else:
            self.values = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
            self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs for all tokens.

        Args:
            x: (..., T, D), dtype and device of the weights.

        Returns:
            (..., T, D).

        Raises:
            ShapeError: x has no axis of time, or its last axis is not `dim`.
            ValueError: x and the weights differ in dtype or device.
        """
        check_dtypes("BilinearAttention", {"weights": next(self.parameters()), "x": x})
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise ShapeError(f"BilinearAttention: x needs axes (..., T, {self.dim}), got {tuple(x.shape)}")
        if isinstance(self.values, nn.Linear):
            V = self.values(x).unflatten(-1, (self.kv_heads, -1)).movedim(-2, -3)
            Y = bilinear_attention(x, self.scores, V, self.logits)
            return self.out(Y.movedim(-3, -2).flatten(-2))
        groups = alike(self.values)
        V = _in_order([apply_heads(x, [self.values[i] for i in group]) for group in groups], groups)
        return bilinear_attention(x, self.scores, V, self.logits).sum(-3)


def _check_logits(function, logits):
    """Check that these are logits, or none."""
    if logits is not None:
        check_type(function, "logits", logits, Logits)


def _in_order(parts, groups):
    """All heads (..., H, T, P) in their own order, from those of each group."""
    if len(groups) == 1:
        return parts[0]
    back = torch.tensor([i for group in groups for i in group], device=parts[0].device).argsort()
    return torch.cat(parts, -3)[..., back, :, :]


def _queries_and_keys(function, X, heads, logits, order):
    """Queries and keys whose products are the logits."""
    if logits.norm is not None:
        if order is not None:
            raise ValueError(f"{function}: layer norm fixes the order, got order={order!r} beside norm={logits.norm}")
        return normed_factors(X, heads, logits.norm)
    Q, K = score_factors(X, heads, order or cheapest(heads[0], X.shape[-2]))
    scale = score_width(heads[0]) ** -0.5 if logits.scale is None else logits.scale
    return Q * scale, K


def _divide(whole, size, name, parts):
    """Size of each of `parts` equal parts."""
    check_count("BilinearAttention", name, parts)
    if size % parts:
        raise ValueError(f"BilinearAttention: {name} must divide {whole} = {size}, got {parts}")
    return size // parts


def _drawn(name, scoring, dim, count):
    """Check `count` weights, or draw them with seeds from torch's own generator."""
    if isinstance(scoring, Weight):
        raise TypeError(f"BilinearAttention: {name} must be a function or a list, got one {type(scoring).__name__}")
    draws = callable(scoring) and not isinstance(scoring, nn.Module)
    if not draws and not isinstance(scoring, Sequence | nn.ModuleList):
        kind = type(scoring).__name__
        raise TypeError(f"BilinearAttention: {name} must be a function of a seed or a list of weights, got {kind}")
    if draws:
        scoring = [scoring(seed) for seed in torch.randint(2**31, (count,)).tolist()]
    if len(scoring) != count:
        raise ValueError(f"BilinearAttention: {name} needs {count} weights, got {len(scoring)}")
    for i, weight in enumerate(scoring):
        check_type("BilinearAttention", f"{name}[{i}]", weight, Weight)
        if weight.shape != (dim, dim):
            raise ShapeError(f"BilinearAttention: weight {i} of {name} must be {(dim, dim)}, got {weight.shape}")
    return scoring


def _share(weights, size):
    """Give all heads of a group the key factor of its first."""
    shareable = all(isinstance(getattr(weight, "R", None), nn.Parameter | nn.ParameterList) for weight in weights)
    if not shareable or len(alike(weights)) > 1:
        families = ", ".join(sorted({type(weight).__name__ for weight in weights}))
        raise ValueError(f"BilinearAttention: kv_heads needs weights of one structure with a factor R, got {families}")
    for i, weight in enumerate(weights):
        weight.R = weights[i - i % size].R
