"""The benchmark `training`: what a larger state costs SSD and the selective scan, and a step of three small models."""

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from benchmarks.contest import Finish, contest, judge, ratio
from benchmarks.implementation import Implementation, compare
from benchmarks.problem import Problem
from benchmarks.report import at_least, at_most, record
from smalearn import fast
from smalearn.course.timing import slope, warm_seconds
from smalearn.linear_attention import linear_attention_recurrent
from smalearn.models import Block, Mamba1, Mamba2, SequenceModel, SoftmaxAttention
from smalearn.ssm import ssm_scan

STATES = (16, 32, 64, 128, 256)
PROBLEM = Problem(length=1024, heads=2, head_dim=64, backward=True)
TRIED = 16  # tokens of the sequence on which a model must be right
WORDS = 64  # of the vocabulary

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _gate(X, log_a, B):
    """A decay for every entry of the state, (..., T, P, N), as Mamba has it; here they happen to be equal."""
    return log_a[..., None, None] * X.new_ones(X.shape[-1], B.shape[-1])


def _scan(X, log_a, B, C):
    """Y by the associative scan, every channel being a head of P = 1."""
    A = _gate(X, log_a, B).exp().movedim(-2, -3)
    return ssm_scan(X.mT[..., None], A, B[..., None, :, :], C[..., None, :, :])[0][..., 0].mT


ROUTES: dict[str, Form] = {
    "SSD": lambda X, log_a, B, C: fast.ssd(X, log_a, B, C)[0],
    "selective scan": _scan,
    "selective loop": lambda X, log_a, B, C: linear_attention_recurrent(C, B, X, _gate(X, log_a, B))[0],
}
"""One function in three forms. Only SSD uses that the decays of a head are one."""


class FusedAttention(SoftmaxAttention):
    """Softmax attention trained by PyTorch's own fused form, the fastest alternative; `step` is inherited."""

    def forward(self, x):
        """Outputs (..., T, D) for x (..., T, D)."""
        Q, K, V = self.in_proj(x).unflatten(-1, (3 * self.heads, self.head_dim)).movedim(-3, -2).chunk(3, -3)
        Y = functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
        return self.out_proj(Y.movedim(-2, -3).flatten(-2))


class ScannedMamba1(Mamba1):
    """Mamba trained by the associative scan in place of the loop; `step` is inherited."""

    def forward(self, x):
        """Outputs (..., T, D) for x (..., T, D)."""
        x, z = self.in_proj(x).chunk(2, -1)
        X, C, B, inputs, log_a = self._operands(self.conv.prefill(x, self.start(*x.shape[:-2]).conv_state)[0])
        A = log_a.exp().movedim(-2, -3)
        Y = ssm_scan(inputs.mT[..., None], A, B[..., None, :, :], C[..., None, :, :])[0][..., 0].mT
        return self._output(Y, X, z)


def _transformer(dim: int) -> list[Block]:
    """One block for two of Mamba-2: its MLP is as wide as gives both the same number of parameters."""
    heads = max(1, dim // 64)
    budget = 2 * _parameters(_mamba2(dim)[0]) - _parameters(Block(FusedAttention(dim, heads)))
    return [Block(FusedAttention(dim, heads), mlp=round((budget - 2 * dim) / (2 * dim + 1)))]


def _mamba2(dim: int) -> list[Block]:
    """Two blocks with N = 64, which have as many parameters as Mamba's with N = 16, within one in a hundred."""
    return [Block(Mamba2(dim, state=64, head_dim=min(64, dim))) for _ in range(2)]


MODELS: dict[str, Callable[[int], list[Block]]] = {
    "Transformer": _transformer,
    "Mamba-2": _mamba2,
    "Mamba-1, scan": lambda dim: [Block(ScannedMamba1(dim, state=16)) for _ in range(2)],
    "Mamba-1, loop": lambda dim: [Block(Mamba1(dim, state=16)) for _ in range(2)],
}
"""Half of each model, from D. Mamba has two forms, since neither is what a GPU's kernel does."""


def benchmark(
    problem: Problem = PROBLEM,
    states: Sequence[int] = STATES,
    dim: int = 128,
    batch: tuple[int, int] = (2, 512),
    rounds: int = 21,
    keep: Callable | None = None,
) -> dict[str, object]:
    """Run both parts, two to three minutes at the usual sizes: float32, one thread."""

    def measure(finish):
        return {"growth": growth(problem, states, rounds, finish), "steps": finish(steps(dim, batch, rounds))}

    return record("training", rounds, measure, targets, keep)


def _route(name):
    return ROUTES[name]


def growth(problem: Problem, states: Sequence[int], rounds: int, finish: Finish) -> dict[str, object]:
    """Time of a forward and backward against N by each of the routes; `slopes` p of time ∝ N^p, for every round."""
    problems = [replace(problem, state=state, backward=True) for state in states]
    routes = [Implementation(name, partial(_route, name), base=name == "SSD") for name in ROUTES]
    contests = list(map(finish, compare(problems, routes, rounds, patience=math.inf)))
    part = {"states": list(states), "contests": contests}
    every = samples(part).items()
    return part | {"slopes": {name: [slope(states, one) for one in zip(*by_N, strict=True)] for name, by_N in every}}


def samples(part: Mapping) -> dict[str, list[list[float]]]:
    """Seconds of each route in the part `growth` of a result, for each N a list; of those that are right at every N."""
    entries = {name: [one["contestants"][name] for one in part["contests"]] for name in ROUTES}
    right = {name: every for name, every in entries.items() if all("seconds" in one for one in every)}
    return {name: [one["seconds"] for one in every] for name, every in right.items()}


def steps(dim: int, batch: tuple[int, int], rounds: int) -> dict[str, object]:
    """Time of a training step (forward, loss, backward, AdamW) of each of the models, and their `parameters`.

    Each must first give, on a short sequence, the logits and gradients that it has token by token in float64.
    """
    sequences, length = batch
    tokens = torch.randint(WORDS, (sequences, length + 1), generator=torch.Generator().manual_seed(0))
    parameters = {}

    def enter(name):
        torch.manual_seed(0)
        blocks = [block for _ in range(2) for block in MODELS[name](dim)]
        model = SequenceModel(WORDS, blocks, length if name == "Transformer" else 0)
        parameters[name] = _parameters(model.blocks)
        short = tokens[:, : min(TRIED, length) + 1]
        judged = judge(_answers(model, short), _answers(copy.deepcopy(model).double(), short, decode=True))
        return *judged, partial(warm_seconds, _step(model, tokens))

    problem = f"a training step, D = {dim}, {sequences} sequences of {length} tokens"
    part = contest(problem, {name: partial(enter, name) for name in MODELS}, rounds, ["Transformer"])
    for name, count in parameters.items():
        part["contestants"][name]["parameters"] = count
    return part | {"dim": dim, "texts": sequences, "length": length}


def _parameters(part):
    """Number of parameters of a part of a model."""
    return sum(parameter.numel() for parameter in part.parameters())


def _loss(logits, tokens):
    """Cross-entropy of each next token."""
    return functional.cross_entropy(logits.flatten(0, -2), tokens[:, 1:].flatten())


def _answers(model, tokens, decode=False):
    """Logits, and the gradients of the loss for all parameters as one vector; `decode` goes token by token."""
    logits = _decoded(model, tokens[:, :-1]) if decode else model(tokens[:, :-1])
    gradients = torch.autograd.grad(_loss(logits, tokens), list(model.parameters()))
    return [logits.detach(), torch.cat([one.flatten() for one in gradients])]


def _decoded(model, tokens):
    """Logits of one token after the other."""
    cache, rows = model.start(len(tokens)), []
    for token in tokens.unbind(-1):
        row, cache = model.step(token, cache)
        rows.append(row)
    return torch.stack(rows, -2)


def _step(model, tokens):
    """A function that does one training step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run():
        optimizer.zero_grad()
        _loss(model(tokens[:, :-1]), tokens).backward()
        optimizer.step()

    return run


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on what a larger state costs, and on the steps of Mamba-1."""
    slopes = {name: statistics.median(every) for name, every in result["growth"]["slopes"].items()}
    what = "time ∝ N^p of a forward and backward: p of"
    return [
        at_most(f"{what} SSD", 0.75, slopes.get("SSD")),
        at_least(f"{what} the selective scan", 0.9, slopes.get("selective scan")),
        *(
            at_least(
                f"a training step of {name} over the Transformer's", 2, ratio(result["steps"], "Transformer", name)
            )
            for name in ("Mamba-1, scan", "Mamba-1, loop")
        ),
    ]
