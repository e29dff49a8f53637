"""Every public function of arrays, as a call with a few small tensors that all need a gradient."""

from functools import partial

import torch

from smalearn import fast, kernel_attention, linear_attention, masks, multilevel, ssd, ssm
from smalearn.contractions import contract
from smalearn.scores.tiled import tiled_attention
from smalearn.sma import sma_linear, sma_quadratic
from smalearn.testing import random_tensors

T, N, P = 5, 4, 3
LEVELS = (2, 1, 1), (8, 4, 2)
SSD = {"X": (T, P), "gate": (T,), "B": (T, N), "C": (T, N), "H": (P, N)}
STEP = {"x": (P,), "gate": (), "B": (N,), "C": (N,), "H": (P, N)}
ATTENTION = {"Q": (T, N), "K": (T, N), "V": (T, P)}
LINEAR = {**ATTENTION, "gate": (T,), "H": (P, N)}
BY_KEY = {**ATTENTION, "gate": (T, N), "H": (P, N)}
DELTA = {**ATTENTION, "beta": (T,), "gate": (T,), "H": (P, N)}
MAP = kernel_attention.EluPlusOne(N)


def by_name(module, shapes, *names, **options):
    """Calls of a module's functions, by name."""
    room = module.__name__.rpartition(".")[2]
    return {f"{room}.{name}": (partial(getattr(module, name), **options), shapes) for name in names}


def structured(module, **builders):
    """Products of a structured matrix of its parameters, and its dense form."""
    room = module.__name__.rpartition(".")[2]
    for name, (build, shapes, columns) in builders.items():
        yield f"{room}.{name}", (lambda *x, build=build: build(*x[:-1]).matmul(x[-1]), {**shapes, "x": (columns, P)})
        yield f"{room}.{name}.dense", (lambda *x, build=build: build(*x).dense(torch.float64), shapes)


DIRECTIONS = {
    **dict.fromkeys(("A", "B", "C", "A_up", "B_up", "C_up"), (T, N)),
    "beta": (T,),
    "x": (T, P),
}


def two_directions(method):
    """A product or a solve of a quasiseparable matrix; its diagonal dominates."""

    def call(A, B, C, A_up, B_up, C_up, diagonal, x):
        lower, upper = ssm.Semiseparable(A.tanh(), B, C), ssm.Semiseparable(A_up.tanh(), B_up, C_up)
        return getattr(ssm.Quasiseparable(lower, diagonal + 30, upper), method)(x)

    return call


MASKS = {
    "SemiseparableMask": (masks.SemiseparableMask, {"gate": (T,)}, T),
    "ToeplitzMask": (masks.ToeplitzMask, {"a": (T,), "b": (T,)}, T),
    "HierarchicalMask": (masks.HierarchicalMask, {"gate": (T,), "w": (T, 4)}, T),
    "LowRankMask": (masks.LowRankMask, {"a": (T, 2), "b": (T, 2)}, T),
}
FUNCTIONS = {
    **by_name(ssd, SSD, "ssd_recurrent", "ssd_quadratic", "ssd_chunked"),
    **by_name(ssd, STEP, "ssd_step"),
    **by_name(ssd, {k: SSD[k] for k in ("X", "gate", "B", "C")}, "scalar_ssm_as_attention"),
    **by_name(ssd, {"X": (T, P), "gate": (T, N), "B": (T, N), "C": (T, N)}, "diagonal_ssm_as_attentions"),
    **by_name(fast, SSD, "ssd"),
    **by_name(fast, LINEAR, "linear_attention"),
    "fast.linear_attention by key": (fast.linear_attention, BY_KEY),
    **by_name(fast, DELTA, "delta_rule"),
    "fast.delta_rule by key": (fast.delta_rule, {**DELTA, "gate": (T, N)}),
    "fast.multilevel_attention": (lambda *x: fast.multilevel_attention(*x, *LEVELS), ATTENTION),
    "fast.multilevel_attention with bias": (
        lambda Q, K, V, bias: fast.multilevel_attention(Q, K, V, *LEVELS, bias=bias),
        {**ATTENTION, "bias": (T, T)},
    ),
    "scores.tiled_attention": (tiled_attention, {"Q": (2, T, N), "K": (2, T, N), "V": (2, T, P)}),
    **by_name(linear_attention, LINEAR, "linear_attention_recurrent", "linear_attention_recomputed"),
    **by_name(linear_attention, BY_KEY, "linear_attention_chunked"),
    **by_name(linear_attention, {**ATTENTION, "gate": (T, N)}, "linear_attention_parallel"),
    **by_name(linear_attention, {"q": (N,), "k": (N,), "v": (P,), "gate": (), "H": (P, N)}, "linear_attention_step"),
    **by_name(linear_attention, DELTA, "delta_rule_recurrent", "delta_rule_chunked"),
    "linear_attention.delta_rule_step": (
        linear_attention.delta_rule_step,
        {"q": (N,), "k": (N,), "v": (P,), "beta": (), "gate": (), "H": (P, N)},
    ),
    **by_name(linear_attention, {**ATTENTION, "gate": (T,), "w": (T, 4)}, "log_linear_attention"),
    "linear_attention.log_linear_step": (
        lambda *x: linear_attention.log_linear_step(*x, 5),
        {"q": (N,), "k": (N,), "v": (P,), "gate": (), "w": (4,), "H": (4, P, N)},
    ),
    **by_name(linear_attention, {"x": (T, N)}, "l2norm"),
    **by_name(linear_attention, {**ATTENTION, "gate": (T, N)}, "gated_slot_attention"),
    **by_name(kernel_attention, ATTENTION, "softmax_attention"),
    **by_name(kernel_attention, ATTENTION, "kernel_attention", phi=MAP, L=masks.CausalMask(T)),
    **by_name(kernel_attention, ATTENTION, "nystrom", landmarks=2),
    **by_name(kernel_attention, {**ATTENTION, "E": (2, T), "F": (2, T)}, "linformer"),
    **by_name(
        multilevel,
        {"Q": (T, N), "K": (T, N)},
        "multilevel_scores",
        "batched_scores",
        ranks=LEVELS[0],
        block_lens=LEVELS[1],
    ),
    **by_name(multilevel, ATTENTION, "window_attention", window=2),
    **by_name(multilevel, {"x": (T, N)}, "rope"),
    **by_name(multilevel, {"x": (T, 6)}, "rope_levels", ranks=(4, 2)),
    "sma.sma_quadratic": (
        lambda Q, K, V, log_a: sma_quadratic(Q, K, V, masks.SemiseparableMask(log_a)),
        {**ATTENTION, "gate": (T,)},
    ),
    "sma.sma_linear": (
        lambda Q, K, V, log_a: sma_linear(Q, K, V, masks.SemiseparableMask(log_a)),
        {**ATTENTION, "gate": (T,)},
    ),
    "contractions.contract": (lambda *x: contract("TN, SN, SP -> TP", *x), ATTENTION),
    **by_name(masks, {"x": (T, P), "gate": (T,)}, "scan_associative", "scan_chunked", "scan_recurrent"),
    **by_name(masks, {"gate": (T,)}, "decay_matrix"),
    **dict(structured(masks, **MASKS)),
    **by_name(ssm, {"X": (T, P), "A": (T, N), "B": (T, N), "C": (T, N), "H": (P, N)}, "ssm_recurrent", "ssm_scan"),
    **by_name(ssm, {"X": (T, P), "A": (T, N), "B": (T, N), "H": (P, N)}, "ssm_states"),
    **by_name(ssm, {"beta": (T,), "A": (T, N), "B": (T, N), "weight": (T,)}, "discretise_trapezoid"),
    "ssm.Quasiseparable": (two_directions("matmul"), DIRECTIONS),
    "ssm.Quasiseparable.solve": (two_directions("solve"), DIRECTIONS),
    **dict(structured(ssm, Semiseparable=(ssm.Semiseparable, {"A": (T, N), "B": (T, N), "C": (T, N)}, T))),
}


def operands(shapes, count=(), dtype=torch.float64):
    """Random tensors of these shapes behind leading axes; what is called gate is a log decay, beta is from 0 to 2."""
    sizes = [(*count, *shape) for shape in shapes.values()]
    drawn = random_tensors(sizes, dtype=dtype)
    ranges = {"gate": lambda x: -x.abs(), "beta": lambda x: 2 * x.sigmoid()}
    return [ranges[name](x) if name in ranges else x for name, x in zip(shapes, drawn, strict=True)]
