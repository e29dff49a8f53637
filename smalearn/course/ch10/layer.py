"""One layer of attention of which only the scoring is trained: what can scores of this structure find?

A query meets points. It is to find the nearest of them (`smalearn.data.nearest_neighbour`), or to continue a linear
function of which they are examples (`smalearn.data.regression`). `bottleneck` trains many.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from smalearn.data import nearest_neighbour, regression
from smalearn.scores.products import apply_heads
from smalearn.train import Plan
from smalearn.weights import BlockTensorTrain, LowRank, MultiLevelLowRank, Weight, balanced_sizes

__all__ = ["FAMILIES", "OneLayer", "Setting", "batch", "build", "linear_error", "squared_error", "title", "training"]

FAMILIES: dict[str, Callable[[int, Sequence[int], int], Weight]] = {
    "low rank": lambda dim, ranks, seed: LowRank.random(dim, dim, *ranks, seed),
    "BTT": lambda dim, ranks, seed: BlockTensorTrain.random(balanced_sizes(dim, dim), *ranks, seed),
    "MLR": lambda dim, ranks, seed: MultiLevelLowRank.random(
        (dim, dim), ranks, [2**level for level in range(len(ranks))], seed
    ),
}
"""Scoring matrices (D, D) from dim, the rank (of every level) and a seed."""

Model = tuple[str, int, Sequence[int]]  # family, heads, ranks


@dataclass(frozen=True)
class Setting:
    """A task, and the models that face it."""

    task: str  # "nearest" for `nearest_neighbour`, "regression" for `regression`
    dim: int  # d
    points: int  # N, the points that the query is compared with
    models: tuple[Model, ...] = ()  # of each the family, the heads, and the rank or the rank of every level
    softmax: bool = True  # False for linear attention, whose scores are its weights
    steps: int = 1500  # of training
    seeds: int = 2  # how many runs of each model
    batch: int = 256  # examples of a step
    lr: float = 2e-2  # the first and highest learning rate
    tests: int = 4096  # examples of the test, which no step has seen

    def runs(self, _: int) -> dict[str, dict[str, object]]:
        """Every model, whatever the seed."""
        return {title(*model): {"model": model} for model in self.models}


class OneLayer(nn.Module):
    """Attention of one query x over points x_i with values V_i, all heads of one family.

        y = Σ_h v_h Σ_i A_h[i] V_i,    A_h = softmax_i(exp(t_h) x_i^T M_h x)

    Trained are the scoring matrices M_h and, for each head, the log t_h of the scale of its logits and what it counts,
    v_h. Without softmax the logits are the weights, as in linear attention.

    Args:
        weights: M_h, (D, D), of one structure.
        shares: (H,), v_h at the start.
        softmax: whether there is one.
    """

    def __init__(self, weights: Sequence[Weight], shares: torch.Tensor, softmax: bool = True):
        super().__init__()
        self.weights, self.softmax = nn.ModuleList(weights), softmax
        self.shares, self.log_scale = nn.Parameter(shares), nn.Parameter(torch.zeros_like(shares))

    def attention(self, query: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Σ_h v_h A_h, (batch, N), of query (batch, D) and X (batch, N, D). M_h meets x: it is one, the points many."""
        queries = apply_heads(query, list(self.weights)).transpose(0, 1)  # (batch, H, D)
        logits = queries @ X.mT * self.log_scale.exp()[:, None]
        return self.shares @ (logits.softmax(-1) if self.softmax else logits)

    def forward(self, query: torch.Tensor, X: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        """The answers (batch, P), from values V (batch, N, P)."""
        return (self.attention(query, X)[:, None] @ V)[:, 0]

    def count(self, points: int, size: int) -> int:
        """Multiply-adds of one example with N points and values of P numbers: M_h x, the scores, the sums."""
        dim, heads = self.weights[0].shape[0], len(self.weights)
        return sum(weight.macs for weight in self.weights) + points * (heads * dim + heads + size)


def linear_error(rank: int, dim: int, points: int) -> float:
    """The least error of one layer of linear attention on `regression`, whose heads have this rank in all.

        1 - (r/d) · N/(N + d + 1)

    With M = Σ_h v_h M_h the answer is w^T A M x for A = Σ_i x_i x_i^T, so the error is E ‖I - A M‖²/d (Frobenius).
    With E A = (N/d) I and E A² = N(N + d + 1)/d² I it is least for M = d/(N + d + 1) times a projection of rank r.
    Heads add up: eight of rank 2 are one of rank 16; above d a rank counts as d. The answer 0 has error 1.
    """
    return 1 - min(rank, dim) / dim * points / (points + dim + 1)


def title(family: str, heads: int, ranks: Sequence[int]) -> str:
    """A model in words, such as "8 × low rank 2" or "1 × MLR 4|4|8"."""
    return f"{heads} × {family} {'|'.join(map(str, ranks))}"


def build(model: Model, setting: Setting, seed: int) -> OneLayer:
    """A model as it is before its training, the same on every machine for the same seed.

    All heads count 1/H for the nearest neighbour. For regression they count 1 and -1 in turn: the difference of two
    softmaxes has weights of both signs, as the task wants.
    """
    family, heads, ranks = model
    weights = [FAMILIES[family](setting.dim, ranks, 10**9 + 1000 * seed + head) for head in range(heads)]
    shares = torch.full((heads,), 1 / heads) if setting.task == "nearest" else (-1.0) ** torch.arange(heads)
    return OneLayer(weights, shares, setting.softmax)


def batch(setting: Setting, examples: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Examples of a setting's task: the inputs of `OneLayer`, with as many examples for its batch; the answers (…, P).

    For the nearest neighbour the values are the points; for regression the last pair asks.
    """
    if setting.task == "nearest":
        query, X, nearest = nearest_neighbour(examples, setting.dim, setting.points, seed)
        return (query, X, X), X[torch.arange(examples), nearest]
    X, y = regression(examples, setting.dim, setting.points + 1, seed)
    return (X[:, -1], X[:, :-1], y[:, :-1, None]), y[:, -1:]


def training(model: OneLayer, setting: Setting, seed: int) -> Iterator[int]:
    """Train a model by Adam on the squared error, the rate falling as a cosine; yield the number of steps done."""
    plan = Plan(steps=setting.steps, lr=setting.lr, warmup=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.lr)
    for step in range(setting.steps):
        inputs, answers = batch(setting, setting.batch, seed * 10**6 + step)
        optimizer.param_groups[0]["lr"] = plan.rate(step)
        loss = squared_error(model(*inputs), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield step + 1


def squared_error(predictions: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """The mean over examples of ‖predictions - answers‖², both (batch, P)."""
    return (predictions - answers).square().sum(-1).mean()
