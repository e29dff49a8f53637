"""Maximal update parametrisation of structured scores: activations that stay the same at every width (appendix F.1).

A map of d_in numbers to d_out keeps coordinates of size 1 at that size, before training and after every step, if it and
its update have a spectral norm of about √(d_out/d_in). Hence a start and a learning rate for each factor, by the
numbers that it really takes in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import parametrize

from smalearn._checks import check_count, check_dtypes
from smalearn.scores.bilinear import BilinearAttention
from smalearn.scores.factors import has_levels
from smalearn.weights import (
    BlockLowRank,
    BlockTensorTrain,
    LowRank,
    MultiLevelBlockTensorContraction,
    MultiLevelLowRank,
    Weight,
)


class Fan(NamedTuple):
    """Sizes of one block of a factor: the numbers it takes in, and those it gives out, for all heads together."""

    inputs: int
    outputs: int


def init_std(fan: Fan) -> float:
    """σ = min(1, √(d_out/d_in)) / √d_in, at which a Gaussian matrix has a spectral norm of about √(d_out/d_in).

    Equation (36) goes with 1/√d_in alone, which is too large where a factor gives out less than it takes in.

    Args:
        fan: (d_in, d_out).

    Returns:
        σ, which is also √min(d_in, d_out) / d_in.

    Example:
        >>> init_std(Fan(64, 16)), init_std(Fan(64, 256))
        (0.0625, 0.125)
    """
    return min(1.0, (fan.outputs / fan.inputs) ** 0.5) / fan.inputs**0.5


def fans(weight: Weight, heads: int = 1) -> dict[str, Fan]:
    """The fan of every factor, as appendix F.1 applies it.

    ::

        low rank, blocks, levels   both factors take in the D/p_l features of a block and give out H r_l numbers
        block tensor train         R takes in d and gives out H b s, then L takes in c s and gives out a

    (Equation (38) has a for the d of R: the same only where a = d.) Multi-level low rank holds all its levels in one
    parameter, which an optimiser gives one learning rate; `as_mlbtc` makes it the same matrix with levels apart. Of
    such contractions those without permutations count as levels, the others as BTT.

    Args:
        weight: a low rank, block low rank, block tensor train or multi-level block tensor contraction.
        heads: H that read the same input.

    Returns:
        The fan by the parameter's name.

    Raises:
        TypeError: the family has no rule here.
        ValueError: heads is not an integer ≥ 1.
    """
    check_count("fans", "heads", heads)
    match weight:
        case LowRank():
            m, n = weight.shape
            return {"L": Fan(m, heads * weight.rank), "R": Fan(n, heads * weight.rank)}
        case BlockLowRank():
            return {name: Fan(getattr(weight, name).shape[1], heads * weight.rank) for name in "LR"}
        case BlockTensorTrain():
            a, b, c, d = weight.sizes
            return {"L": Fan(c * weight.rank, a), "R": Fan(d, heads * b * weight.rank)}
        case MultiLevelBlockTensorContraction():
            return dict(_level_fans(weight, heads))
        case MultiLevelLowRank():
            raise TypeError("fans: MultiLevelLowRank holds its levels in one parameter, use as_mlbtc(weight)")
    raise TypeError(f"fans: no rule for {type(weight).__name__}")


def _level_fans(weight, heads):
    """Names and fans of a contraction, level by level."""
    for i, (rows, columns) in enumerate(zip(weight.rows, weight.columns, strict=True)):
        ranks = weight.L[i].shape[1], weight.R[i].shape[1]
        yield f"L.{i}", Fan(max(rows), heads * ranks[0]) if has_levels(weight) else Fan(ranks[0], max(rows))
        yield f"R.{i}", Fan(max(columns), heads * ranks[1])


def initialise(layer: BilinearAttention, seed: int) -> BilinearAttention:
    """Draw all factors and matrices of a layer anew, each from N(0, σ²) with the σ of its fan.

    Args:
        layer: its scores have a rule in `fans`; structured values are BTT.
        seed: of the draw.

    Returns:
        The layer itself, changed in place.

    Raises:
        TypeError: a family has no rule.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for factor, fan in _parameters(layer):
            drawn = torch.randn(factor.shape, generator=generator, dtype=torch.float64)
            factor.copy_(drawn * init_std(fan))
    return layer


def learning_rates(layer: BilinearAttention, lr: float, base_dim: int) -> list[dict[str, object]]:
    """Parameter groups for AdamW with learning rate lr·D_1/d_in, equations (36) to (38).

    Args:
        layer: as for `initialise`.
        lr: the rate that was found good, η_base.
        base_dim: the width D_1 of the model with which it was found.

    Returns:
        `[{"params": [...], "lr": ...}, ...]`, one for every different rate, as `torch.optim.AdamW` takes it.

    Raises:
        TypeError: a family has no rule.
        ValueError: base_dim is not an integer ≥ 1.

    Example:
        >>> from smalearn.weights import BlockTensorTrain
        >>> layer = BilinearAttention(64, 2, lambda seed: BlockTensorTrain.random((4, 16, 8, 8), 1, seed))
        >>> [(group["lr"], len(group["params"])) for group in learning_rates(layer, 0.001, 64)]
        [(0.008, 4), (0.001, 2)]
    """
    check_count("learning_rates", "base_dim", base_dim)
    groups: dict[int, list[nn.Parameter]] = {}
    for factor, fan in _parameters(layer):
        groups.setdefault(fan.inputs, []).append(factor)
    return [{"params": factors, "lr": lr * base_dim / inputs} for inputs, factors in groups.items()]


def rms_clamp(W: torch.Tensor, fan: Fan) -> torch.Tensor:
    """W / max(1, RMS(W) / target) with target √min(d_in, d_out) / d_in, the σ of its fan: a bound that training keeps.

    Args:
        W: a factor, of any shape.
        fan: its fan.

    Returns:
        W itself while its RMS is at most the target, else W scaled down to it. The gradient includes that of the RMS.

    Raises:
        TypeError: W is not a tensor.
        ValueError: W has no floating dtype.
    """
    check_dtypes("rms_clamp", {"W": W})
    return W / (W.square().mean() / init_std(fan) ** 2).clamp(min=1).sqrt()  # the root of 1, not of a 0


class RMSClamp(nn.Module):
    """`rms_clamp` as a parametrisation: what is trained is W, what is used is W clamped."""

    def __init__(self, fan: Fan):
        super().__init__()
        self.fan = fan

    def forward(self, W: torch.Tensor) -> torch.Tensor:
        """The clamped factor."""
        return rms_clamp(W, self.fan)


def clamp(layer: BilinearAttention) -> BilinearAttention:
    """Clamp every factor of a layer's scores, from now on and in every forward.

    The paper speaks of BTT; its published code clamps levels, too.

    Args:
        layer: as for `initialise`.

    Returns:
        The layer itself, changed in place.

    Raises:
        TypeError: a family has no rule.
    """
    for weight in layer.scores:
        for name, fan in _score_fans(layer, weight).items():
            owner, _, leaf = name.rpartition(".")
            parametrize.register_parametrization(weight.get_submodule(owner), leaf, RMSClamp(fan))
    return layer


def coordinate_check(
    build: Callable[[int], tuple[nn.Module, Iterable[Mapping]]], widths: Sequence[int], steps: int = 4, seed: int = 0
) -> dict[int, float]:
    """How much training changes the outputs of a layer, at several widths: flat is right, growth is a rate too large.

    Tokens are fixed random maps of 16 numbers to D coordinates of size 1; AdamW fits the mean coordinate to one of the
    16, for a few steps; then the outputs' root mean square change is taken.

    Args:
        build: for a width D a layer of (..., T, D) to (..., T, D), and parameter groups with their rates for AdamW.
        widths: D.
        steps: of training.
        seed: of the tokens.

    Returns:
        For each width the root mean square of all outputs' change.

    Raises:
        ValueError: steps is not an integer ≥ 1.
    """
    check_count("coordinate_check", "steps", steps)
    changes = {}
    for width in widths:
        generator = torch.Generator().manual_seed(seed)
        Z = torch.randn(4, 16, 16, generator=generator)
        x = Z @ torch.randn(16, width, generator=generator) / 4
        signs = torch.randint(2, (width,), generator=generator) * 2.0 - 1
        layer, groups = build(width)
        optimiser = torch.optim.AdamW(list(groups), weight_decay=0.0, eps=1e-12)
        before = layer(x).detach()
        for _ in range(steps):
            optimiser.zero_grad()
            ((layer(x) * signs).mean(-1) - Z[..., 0]).square().mean().backward()
            optimiser.step()
        changes[width] = (layer(x).detach() - before).square().mean().sqrt().item()
    return changes


def _score_fans(layer, weight):
    """Fans of a weight of a layer's scores: key factors are read by as many heads as have their own."""
    queries, keys = fans(weight, layer.heads), fans(weight, layer.kv_heads)
    return {name: (keys if name.startswith("R") else queries)[name] for name in queries}


def _parameters(layer):
    """Every parameter of a layer once, with its fan."""
    rules = {}
    for weight in layer.scores:
        for name, fan in _score_fans(layer, weight).items():
            rules.setdefault(weight.get_parameter(name), fan)
    if isinstance(layer.values, nn.Linear):
        for linear in (layer.values, layer.out):
            rules[linear.weight] = Fan(linear.in_features, linear.out_features)
        return rules.items()
    for weight in layer.values:
        if not isinstance(weight, BlockTensorTrain):
            raise TypeError(f"BilinearAttention: no rule for structured values of {type(weight).__name__}")
        rules |= {weight.get_parameter(name): fan for name, fan in fans(weight, layer.kv_heads).items()}
    return rules.items()
