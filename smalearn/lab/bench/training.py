"""The benchmark `training`: what a larger state costs SSD and the selective scan, and a step of three small models."""

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import torch
from torch.nn import functional

from smalearn import fast
from smalearn.lab.bench.problem import SSDProblem, job, judge
from smalearn.lab.bench.timing import SHORT, interleaved, machine, one_thread, seconds, slope
from smalearn.linear_attention import linear_attention_recurrent
from smalearn.models import Block, Mamba1, Mamba2, SequenceModel, SoftmaxAttention
from smalearn.ssm import ssm_scan

__all__ = ["MODELS", "ROUTES", "STATES", "benchmark", "growth", "quartiles", "steps", "table"]

STATES = (16, 32, 64, 128, 256)
PROBLEM = SSDProblem(length=1024, heads=2, head_dim=64, backward=True)
TRIED = 16  # tokens of the text on which a model must be right
WORDS = 64  # of the vocabulary

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _gate(X, log_a, B):
    """A decay for every entry of the state, (..., T, P, N), as Mamba has it; here they happen to be equal."""
    return log_a[..., None, None] * X.new_ones(X.shape[-1], B.shape[-1])


def _scan(X, log_a, B, C):
    """Every channel is a head of P = 1, and goes by the associative scan."""
    A = _gate(X, log_a, B).exp().movedim(-2, -3)
    return ssm_scan(X.mT[..., None], A, B[..., None, :, :], C[..., None, :, :])[0][..., 0].mT


ROUTES: dict[str, Form] = {
    "SSD": lambda X, log_a, B, C: fast.ssd(X, log_a, B, C)[0],
    "selective scan": _scan,
    "selective loop": lambda X, log_a, B, C: linear_attention_recurrent(C, B, X, _gate(X, log_a, B))[0],
}
"""The same function three times. Only SSD makes use of it that the decays of a head are one."""


class FusedAttention(SoftmaxAttention):
    """Softmax attention trained by PyTorch's own fused form, the best rival there is; `step` is as it was."""

    def forward(self, x):
        """Outputs (..., T, D) for x (..., T, D)."""
        Q, K, V = self.in_proj(x).unflatten(-1, (3 * self.heads, self.head_dim)).movedim(-3, -2).chunk(3, -3)
        Y = functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
        return self.out_proj(Y.movedim(-2, -3).flatten(-2))


class ScannedMamba1(Mamba1):
    """Mamba trained by the associative scan in place of the loop; `step` is as it was."""

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
    left = 2 * _parameters(_mamba2(dim)[0]) - _parameters(Block(FusedAttention(dim, heads)))
    return [Block(FusedAttention(dim, heads), mlp=round((left - 2 * dim) / (2 * dim + 1)))]


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
    problem: SSDProblem = PROBLEM,
    states: Sequence[int] = STATES,
    dim: int = 128,
    texts: tuple[int, int] = (2, 512),
    rounds: int = 21,
) -> dict[str, object]:
    """Run both parts, two to three minutes at the usual sizes: float32, one thread.

    Args:
        problem: of the growth, whatever its state.
        states: N of the growth.
        dim: D of the models.
        texts: how many, and how long, in a step of training.
        rounds: samples of each time.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, `growth`, `steps`, and no `targets`.
    """
    result = {"command": "smalearn bench training", "machine": machine(), "rounds": rounds}
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result["growth"] = growth(problem, states, rounds)
        result["steps"] = steps(dim, texts, rounds)
    return result | {"load_at_the_end": machine()["load"], "targets": []}


def growth(problem: SSDProblem, states: Sequence[int], rounds: int) -> dict[str, object]:
    """Time of a forward and backward against N by each of the routes.

    Returns:
        `sizes` of the problem; `states`; for each route its `errors` against float64; and of those that are within
        tolerance at every N the `seconds`, for each N a list, and the `slopes`: p of time ∝ N^p, for every round.
    """
    turns, errors, wrong = {}, {name: [] for name in ROUTES}, set()
    for state in states:
        one = replace(problem, state=state, backward=True)
        (arguments, dY), expected = one.inputs(), one.oracle()
        for name, form in ROUTES.items():
            compute = job(form, arguments, dY)
            error, passed = judge(compute(True), expected)
            errors[name].append(error)
            wrong |= set() if passed else {name}
            turns[name, state] = _turn(lambda compute=compute: compute(True))
    samples = interleaved({key: turn for key, turn in turns.items() if key[0] not in wrong}, rounds)
    times = {name: [samples[name, state] for state in states] for name in ROUTES if name not in wrong}
    slopes = {name: [slope(states, one) for one in zip(*found, strict=True)] for name, found in times.items()}
    sizes = {key: value for key, value in asdict(problem).items() if key in ("length", "heads", "head_dim")}
    return {"sizes": sizes, "states": list(states), "errors": errors, "seconds": times, "slopes": slopes}


def steps(dim: int, texts: tuple[int, int], rounds: int) -> dict[str, object]:
    """Time of a step of training (forward, loss, backward, AdamW) of each of the models.

    Each must first give, on a short text, the logits and gradients that it has token by token in float64.

    Returns:
        `dim`, `texts`, `length`; and `models`: for each its `parameters` without embedding and head, its `error` and
        whether it is `tolerated`, and, if it is, `seconds`.
    """
    batch, length = texts
    tokens = torch.randint(WORDS, (batch, length + 1), generator=torch.Generator().manual_seed(0))
    found, turns = {}, {}
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model = SequenceModel(WORDS, [*build(dim), *build(dim)], length if name == "Transformer" else 0)
        text = tokens[:, : min(TRIED, length) + 1]
        error, passed = judge(_answers(model, text), _answers(copy.deepcopy(model).double(), text, decode=True))
        found[name] = {"parameters": _parameters(model.blocks), "error": error, "tolerated": passed}
        if passed:
            turns[name] = _turn(_step(model, tokens))
    for name, samples in interleaved(turns, rounds).items():
        found[name]["seconds"] = samples
    return {"dim": dim, "texts": batch, "length": length, "models": found}


def _parameters(part):
    """How many numbers a part of a model learns."""
    return sum(parameter.numel() for parameter in part.parameters())


def _loss(logits, tokens):
    """Of the prediction of each next token."""
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
    """A function that does one step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run():
        optimizer.zero_grad()
        _loss(model(tokens[:, :-1]), tokens).backward()
        optimizer.step()

    return run


def _turn(run):
    """A turn that measures a run; one so short that cold caches would count is done again, and counts then."""

    def turn():
        first = seconds(run)
        return seconds(run) if first < SHORT else first

    return turn


def quartiles(samples: Sequence[float]) -> list[float]:
    """The median between the two other quartiles; a single sample is all three."""
    return statistics.quantiles(samples, method="inclusive") if len(samples) > 1 else 3 * list(samples)


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal: medians, and the middle half of the samples in brackets."""
    part, models = result["growth"], result["steps"]
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    sizes = part["sizes"]
    lines += ["", f"Forward + backward, T = {sizes['length']}, {sizes['heads']} heads, P = {sizes['head_dim']}"]
    lines += [f"  {'N':15}" + "".join(f"{state:>11}" for state in part["states"])]
    for name, errors in part["errors"].items():
        if name not in part["seconds"]:
            lines.append(f"  {name:15} not reported: error {max(errors):.0e}")
            continue
        shown = "".join(f"{1e3 * statistics.median(one):8.2f} ms" for one in part["seconds"][name])
        low, middle, high = quartiles(part["slopes"][name])
        lines.append(f"  {name:15}{shown}   time ∝ N^p: p = {middle:.2f} ({low:.2f} to {high:.2f})")
    lines += ["", f"A step of training, D = {models['dim']}, {models['texts']} texts of {models['length']} tokens"]
    for name, one in models["models"].items():
        start = f"  {name:15} {one['parameters']:9,} parameters   error {one['error']:.0e}   "
        if "seconds" not in one:
            lines.append(f"{start}not reported")
            continue
        low, middle, high = (1e3 * value for value in quartiles(one["seconds"]))
        lines.append(f"{start}{middle:8.1f} ms ({low:.1f} to {high:.1f})")
    return "\n".join(lines)
