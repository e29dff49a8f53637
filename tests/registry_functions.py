"""Every public function of arrays: a call, the axes of its operands, and what its definition says of it.

A function that mixes tokens has an oracle, and is asked what `test_conformance` asks; a new one is a line here. What
works with PyTorch's transforms stands in FUNCTIONS, which `test_transforms` asks too.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import NamedTuple

import oracles_delta
import oracles_linear_attention
import oracles_mixing as oracles
import pytest
import torch
from triton_marks import needs_triton

from smalearn import fast, masks, multilevel, ssd, ssm
from smalearn.contractions import contract
from smalearn.fast.cpu import ssd_cpu
from smalearn.fast.triton import delta_rule_tiles, delta_rule_triton, ssd_tiles, ssd_triton
from smalearn.kernel_attention import EluPlusOne, kernel_attention, linformer, nystrom, softmax_attention
from smalearn.linear_attention import (
    delta_rule_chunked,
    delta_rule_recurrent,
    delta_rule_step,
    gated_slot_attention,
    generalized_delta_rule_chunked,
    generalized_delta_rule_recurrent,
    generalized_delta_rule_step,
    l2norm,
    linear_attention_chunked,
    linear_attention_parallel,
    linear_attention_recomputed,
    linear_attention_recurrent,
    linear_attention_step,
    log_linear_attention,
    log_linear_step,
)
from smalearn.multilevel import window_attention
from smalearn.scores.tiled import tiled_attention
from smalearn.sma import sma_linear, sma_quadratic, sma_sparse
from smalearn.testing import random_tensors

T = 5  # tokens of an operand, where a test asks for no other length
SIZES = {"n": 4, "p": 3, "q": 4, "d": 6, "r": 2, "h": 2, "m": 4}
LEVELS = {"ranks": (2, 1, 1), "block_lens": (256, 4, 2)}
LONG = {"ranks": (2, 1, 1), "block_lens": (128, 64, 16)}
INF = float("inf")


def exact(t):
    """A NaN at t reaches no output before t."""
    return t


def inside(size):
    """A NaN reaches outputs of its chunk, tile or block."""
    return lambda t: t - t % size


def everything(t):
    """A NaN reaches any output."""
    return 0


class Form(NamedTuple):
    """A function as a test calls it, with its operands in their order.

    Args:
        function: takes the operands by position; those called log_a, A, beta, dt and K are drawn from their ranges.
        axes: the trailing axes of each: t tokens, s sources, l levels of a tree over tokens, or a key of SIZES.
        loop: the same function in its slowest obvious form, in the dtype of its operands; None if it mixes no tokens.
        reach: the first output that a NaN at a token may reach; None if an output may depend on later tokens.
        says: whose docstring says it, if not that of `function`.
            differentiable: whether it has gradients.
        dtype: the widest that it takes.
        marks: of its tests.
    """

    function: Callable
    axes: dict[str, str]
    loop: Callable | None = None
    reach: Callable | None = None
    says: Callable | None = None
    differentiable: bool = True
    dtype: torch.dtype = torch.float64
    marks: tuple = ()

    def operands(self, length=T, leading=(), kind="mild", dtype=None):
        """Random operands by name behind leading axes, with decays of a kind."""
        sizes = SIZES | {"t": length, "s": length, "l": max(4, length.bit_length() + 1)}
        shapes = [(*leading, *(sizes[axis] for axis in axes)) for axes in self.axes.values()]
        drawn = dict(zip(self.axes, random_tensors(shapes), strict=True))
        return {name: in_range(name, x, kind, self.axes[name]).to(dtype or self.dtype) for name, x in drawn.items()}


def in_range(name, x, kind, axes):
    """Random numbers as an argument of this name takes them."""
    if name == "log_a":
        return decays(x, kind)
    if name == "A":
        return transitions(x, kind) if axes == "tnn" else decays(x, kind).exp()
    if name in ("beta", "dt"):
        return 2 * x.sigmoid()
    if name == "erase":
        return torch.nn.functional.normalize(x, dim=-1) / 2
    return torch.nn.functional.normalize(x, dim=-1) if name in ("K", "read") else x


def decays(x, kind):
    """Logs of decays: near 1, some so strong that nothing is left, some resets, or nothing but resets."""
    return {
        "mild": -x.abs(),
        "strong": torch.where(x > 1, -1e4, -0.01 * x.abs()),
        "resets": torch.where(x > 1, -INF, torch.where(x < -1, -1e4, -0.1 * x.abs())),
        "nothing": torch.full_like(x, -INF),
    }[kind]


def transitions(x, kind):
    """Matrices: of any sign, of rank 1, some of them zero, or all of them."""
    reset = x[..., :1, :1] > 0.5
    return {
        "mild": x / 4,
        "strong": x[..., :1, :] * x[..., :1] / 4,
        "resets": torch.where(reset, 0.0, x / 4),
        "nothing": 0 * x,
    }[kind]


def by_token(step, axes):
    """A whole sequence by the step of a function, one token after the other; the state comes last."""

    @wraps(step)
    def function(*operands):
        *tokens, state = operands
        along = [name.index("t") - len(name) for name in axes.values() if "t" in name]
        outputs = []
        for t in range(tokens[0].shape[-2]):
            y, state = step(*(x.select(axis, t) for x, axis in zip(tokens, along, strict=True)), state)
            outputs.append(y)
        return torch.stack(outputs, -2) if outputs else tokens[list(axes.values()).index("tp")], state

    return function


def two_directions(method):
    """A product or a solve of a quasiseparable matrix; its diagonal dominates."""

    def call(A, B, C, A_up, B_up, C_up, diagonal, x):
        lower, upper = ssm.Semiseparable(A.tanh(), B, C), ssm.Semiseparable(A_up.tanh(), B_up, C_up)
        return getattr(ssm.Quasiseparable(lower, diagonal + 30, upper), method)(x)

    return call


def asked(function, axes, loop=None, reach=None, by="", **more):
    """An entry: its name has the room of the function, its own name, and what tells it from others of the function."""
    plain = getattr(function, "func", function)
    name = f"{plain.__module__.split('.')[1]}.{plain.__name__}"
    return f"{name} {by}".strip(), Form(function, axes, loop, reach, **more)


def structured(room, build, axes):
    """Products of a structured matrix of its parameters, and its dense form."""
    name = f"{room}.{build.__name__}"
    return {
        name: Form(lambda *x: build(*x[:-1]).matmul(x[-1]), {**axes, "x": "tp"}),
        f"{name}.dense": Form(lambda *x: build(*x).dense(torch.float64), axes),
    }


def with_mask(function, build, **options):
    """Attention with a mask of as many tokens as there are."""

    @wraps(function)
    def masked(Q, K, V):
        length = next(x.shape[-2] for x in (V, K) if isinstance(x, torch.Tensor))
        return function(Q, K, V, L=build(length), **options)

    return masked


def banded(length):
    return masks.BandedMask(length, length, 2) * masks.CausalMask(length)


def one_write(function):
    """A generalized delta rule that erases along the keys that write."""

    @wraps(function)
    def without(Q, K, V, read, *others, **named):
        return function(Q, K, V, read, None, *others, **named)

    return without


def chunks(function, chunk_len=8):
    return partial(function, chunk_len=chunk_len)


STATE = {"initial_state": "pn"}
QKV = {"Q": "tn", "K": "tn", "V": "tp"}
SOURCES = {"Q": "tn", "K": "sn", "V": "sp"}
TOKEN, KEY, FULL = (QKV | {"log_a": axes} | STATE for axes in ("t", "tn", "tpn"))
DELTA, DELTA_BY_KEY = (QKV | {"beta": "t", "log_a": axes} | STATE for axes in ("t", "tn"))
KEYS, KEYS_BY_KEY = (QKV | {"read": "tn", "erase": "tn", "log_a": axes} | STATE for axes in ("t", "tn"))
ONE_WRITE = QKV | {"read": "tn", "log_a": "t"} | STATE
XBC = {"X": "tp", "log_a": "t", "B": "tn", "C": "tn"}
SSD, BY_STATE = XBC | STATE, XBC | {"log_a": "tn"}
SCALAR, DIAGONAL, GENERAL = ({"X": "tp", "A": axes, "B": "tn", "C": "tn"} | STATE for axes in ("t", "tn", "tnn"))
TREE = QKV | {"log_a": "t", "level_weights": "tl"}
DIRECTIONS = dict.fromkeys(("A_", "B", "C", "A_up", "B_up", "C_up"), "tn") | {"diagonal": "t", "x": "tp"}
linear_loop, delta_loop = oracles_linear_attention.linear_attention, oracles_delta.delta_rule
keys_loop = oracles_delta.generalized
MAP = EluPlusOne(SIZES["n"])


def ssd_loop(X, log_a, B, C, initial_state=None):
    return linear_loop(C, B, X, log_a, initial_state)


def diagonal_loop(X, log_a, B, C):
    return linear_loop(C, B, X, log_a)[0]


def parallel_loop(Q, K, V, log_a=None):
    return linear_loop(Q, K, V, log_a)[0]


MULTILEVEL = oracles.multilevel(**LEVELS)
STEP = {"q": "n", "k": "n", "v": "p"}
MATRIX = {"Q": "tn", "K": "tn"}
HEADS = {"Q": "htn", "K": "hsn", "V": "hsp"}
THREE_KEYS = {**STEP, "read": "n", "erase": "n", "log_a": "", "state": "pn"}
FULL_RULE = {**STEP, "beta": "", "log_a": "", "state": "pn"}
SCAN = {"x": "tp", "log_a": "t"}

FUNCTIONS = dict(
    [
        asked(ssd.ssd_recurrent, SSD, ssd_loop, exact),
        asked(ssd.ssd_quadratic, SSD, ssd_loop, everything),
        asked(chunks(ssd.ssd_chunked), SSD, ssd_loop, inside(8)),
        asked(ssd.ssd_step, {"x": "p", "log_a": "", "B": "n", "C": "n", "state": "pn"}),
        asked(ssd.scalar_ssm_as_attention, XBC, diagonal_loop, everything),
        asked(ssd.diagonal_ssm_as_attentions, BY_STATE, diagonal_loop, everything),
        asked(fast.ssd, SSD, ssd_loop, inside(32)),
        asked(fast.linear_attention, TOKEN, linear_loop, inside(32)),
        asked(fast.linear_attention, KEY, linear_loop, inside(64), "by key"),
        asked(fast.delta_rule, DELTA, delta_loop, inside(16)),
        asked(fast.delta_rule, DELTA_BY_KEY, delta_loop, inside(32), "by key"),
        asked(one_write(fast.generalized_delta_rule), ONE_WRITE, one_write(keys_loop), inside(16)),
        asked(fast.generalized_delta_rule, KEYS, keys_loop, inside(32), "by keys that erase"),
        asked(fast.generalized_delta_rule, KEYS_BY_KEY, keys_loop, inside(32), "by key"),
        asked(partial(fast.multilevel_attention, **LEVELS), QKV, MULTILEVEL, everything),
        asked(tiled_attention, HEADS, oracles.causal_softmax, inside(64)),
        asked(linear_attention_recurrent, TOKEN, linear_loop, exact),
        asked(linear_attention_recurrent, FULL, linear_loop, exact, "in full"),
        asked(chunks(linear_attention_recomputed), TOKEN, linear_loop, inside(8), says=linear_attention_chunked),
        asked(chunks(linear_attention_chunked), TOKEN, linear_loop, inside(8)),
        asked(chunks(linear_attention_chunked), KEY, linear_loop, inside(8), "by key"),
        asked(linear_attention_parallel, QKV | {"log_a": "t"}, parallel_loop, everything),
        asked(linear_attention_parallel, QKV | {"log_a": "tn"}, parallel_loop, everything, "by key"),
        asked(linear_attention_step, {**STEP, "log_a": "", "state": "pn"}),
        asked(delta_rule_recurrent, DELTA, delta_loop, exact),
        asked(chunks(delta_rule_chunked), DELTA, delta_loop, inside(8)),
        asked(chunks(delta_rule_chunked), DELTA_BY_KEY, delta_loop, inside(8), "by key"),
        asked(delta_rule_step, FULL_RULE),
        asked(generalized_delta_rule_recurrent, KEYS, keys_loop, exact),
        asked(chunks(generalized_delta_rule_chunked), KEYS, keys_loop, inside(8)),
        asked(chunks(generalized_delta_rule_chunked), KEYS_BY_KEY, keys_loop, inside(8), "by key"),
        asked(generalized_delta_rule_step, THREE_KEYS),
        asked(chunks(log_linear_attention), TREE, oracles.log_linear, inside(8)),
        asked(partial(log_linear_step, length=5), {**STEP, "log_a": "", "level_weights": "l", "states": "lpn"}),
        asked(l2norm, {"x": "tn"}),
        asked(gated_slot_attention, QKV | {"log_a": "tm"}, oracles.slots, inside(64)),
        asked(softmax_attention, SOURCES, oracles.softmax),
        asked(with_mask(softmax_attention, masks.CausalMask), QKV, oracles.causal_softmax, everything, "causal"),
        asked(with_mask(kernel_attention, masks.CausalMask, phi=MAP), QKV, oracles.elu_plus_one, exact),
        asked(partial(nystrom, landmarks=2), SOURCES),
        asked(linformer, SOURCES | {"E": "rs", "F": "rs"}),
        asked(partial(multilevel.multilevel_scores, **LEVELS), MATRIX),
        asked(partial(multilevel.batched_scores, **LEVELS), MATRIX),
        asked(partial(window_attention, window=2, causal=True), SOURCES, oracles.windowed(2), inside(2)),
        asked(partial(window_attention, window=2), SOURCES, oracles.windowed(2, 2), by="of both sides"),
        asked(multilevel.rope, {"x": "tn"}, oracles.rope, exact),
        asked(partial(multilevel.rope_levels, ranks=(4, 2)), {"x": "td"}),
        asked(masks.scan_associative, SCAN, oracles.scan, exact),
        asked(masks.scan_chunked, SCAN, oracles.scan, lambda t: 16),
        asked(masks.scan_recurrent, SCAN, oracles.scan, exact),
        asked(masks.decay_matrix, {"log_a": "t"}),
        asked(ssm.ssm_recurrent, DIAGONAL, oracles.ssm, exact),
        asked(ssm.ssm_scan, DIAGONAL, oracles.ssm, exact),
        asked(ssm.ssm_states, {"X": "tp", "A": "tn", "B": "tn"} | STATE),
        asked(ssm.discretise_trapezoid, {"dt": "t", "A_": "tn", "B": "tn", "weight": "t"}),
    ]
)
FUNCTIONS |= {
    "fast.multilevel_attention with bias": Form(
        lambda Q, K, V, bias: fast.multilevel_attention(Q, K, V, **LEVELS, bias=bias),
        QKV | {"bias": "tt"},
        MULTILEVEL,
        everything,
        fast.multilevel_attention,
    ),
    "fast.mamba2_ssd": Form(
        lambda x, dt, log_a, B, C: fast.mamba2_ssd(x, dt, log_a, B, C, dt_softplus=True),
        {"x": "thp", "dt": "th", "log_a": "h", "B": "thn", "C": "thn"},
    ),
    "sma.sma_quadratic": Form(
        lambda Q, K, V, log_a: sma_quadratic(Q, K, V, masks.SemiseparableMask(log_a)),
        QKV | {"log_a": "t"},
        oracles.masked,
        everything,
        sma_quadratic,
    ),
    "sma.sma_linear": Form(
        lambda Q, K, V, log_a: sma_linear(Q, K, V, masks.SemiseparableMask(log_a)),
        QKV | {"log_a": "t"},
        oracles.masked,
        everything,
        masks.Mask.matmul,
    ),
    "contractions.contract": Form(lambda *x: contract("TN, SN, SP -> TP", *x), QKV),
    "ssm.Quasiseparable": Form(two_directions("matmul"), DIRECTIONS),
    "ssm.Quasiseparable.solve": Form(two_directions("solve"), DIRECTIONS),
    **structured("masks", masks.SemiseparableMask, {"log_a": "t"}),
    **structured("masks", masks.ToeplitzMask, {"a": "t", "b": "t"}),
    **structured("masks", masks.HierarchicalMask, {"log_a": "t", "w": "tl"}),
    **structured("masks", masks.LowRankMask, {"a": "tr", "b": "tr"}),
    **structured("ssm", ssm.Semiseparable, {"A_": "tn", "B": "tn", "C": "tn"}),
}
ON_A_GPU = {"dtype": torch.float32, "marks": (needs_triton, pytest.mark.full)}
# The same functions for other operands, and forms that PyTorch's transforms do not see from outside.
MORE = dict(
    [
        asked(linear_attention_recurrent, KEY, linear_loop, exact, "by key"),
        asked(delta_rule_recurrent, DELTA_BY_KEY, delta_loop, exact, "by key"),
        asked(one_write(generalized_delta_rule_chunked), ONE_WRITE, one_write(keys_loop), inside(32), "of one write"),
        asked(one_write(generalized_delta_rule_recurrent), ONE_WRITE, one_write(keys_loop), exact, "of one write"),
        asked(by_token(generalized_delta_rule_step, KEYS_BY_KEY), KEYS_BY_KEY, keys_loop, exact, "by token"),
        asked(chunks(linear_attention_chunked, 1), TOKEN, linear_loop, exact, "one by one"),
        asked(partial(window_attention, window=100, causal=True), SOURCES, oracles.windowed(100), inside(64), "wide"),
        asked(
            partial(fast.multilevel_attention, **LONG), QKV, oracles.multilevel(**LONG), inside(64), "of long blocks"
        ),
        asked(with_mask(sma_sparse, banded), QKV, oracles.window_of_scores(2), exact),
        asked(with_mask(sma_linear, banded), QKV, oracles.window_of_scores(2), exact, "banded", says=masks.Mask.matmul),
        asked(with_mask(sma_linear, masks.CausalMask), QKV, parallel_loop, exact, "causal", says=masks.Mask.matmul),
        asked(ssm.ssm_recurrent, SCALAR, oracles.ssm, exact, "scalar"),
        asked(ssm.ssm_recurrent, GENERAL, oracles.ssm, exact, "general"),
        asked(ssm.ssm_scan, SCALAR, oracles.ssm, exact, "scalar"),
        asked(ssm.ssm_scan, GENERAL, oracles.ssm, exact, "general"),
        asked(by_token(ssd.ssd_step, SSD), SSD, ssd_loop, exact, "by token"),
        asked(by_token(linear_attention_step, FULL), FULL, linear_loop, exact, "by token"),
        asked(by_token(delta_rule_step, DELTA_BY_KEY), DELTA_BY_KEY, delta_loop, exact, "by token"),
        asked(ssd_cpu, SSD, ssd_loop, inside(32)),
        asked(ssd_tiles, SSD, ssd_loop, dtype=torch.float32),
        asked(ssd_triton, SSD, ssd_loop, **ON_A_GPU),
        asked(delta_rule_tiles, DELTA, delta_loop, differentiable=False, dtype=torch.float32),
        asked(delta_rule_triton, DELTA, delta_loop, differentiable=False, **ON_A_GPU),
    ]
)
FORMS = {name: form for name, form in (FUNCTIONS | MORE).items() if form.loop}
