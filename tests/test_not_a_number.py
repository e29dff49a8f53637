"""What a NaN or an infinity at one token reaches: no output before it, or as few of them as the docstring says.

A product with a mask of zeros carries it to tokens that do not see it, because 0·NaN is NaN.
"""

import math

import pytest
import torch

from smalearn import fast
from smalearn.fast.cpu import ssd_cpu
from smalearn.kernel_attention import EluPlusOne, kernel_attention, softmax_attention
from smalearn.linear_attention import (
    delta_rule_chunked,
    delta_rule_recurrent,
    gated_slot_attention,
    linear_attention_chunked,
    linear_attention_parallel,
    linear_attention_recomputed,
    linear_attention_recurrent,
    log_linear_attention,
)
from smalearn.masks import BandedMask, CausalMask, DecayMask, Mask, SemiseparableMask, ToeplitzMask
from smalearn.masks.scan import scan_associative, scan_chunked, scan_recurrent
from smalearn.models import (
    GatedDeltaNet,
    Hydra,
    LinearAttention,
    LogLinearMamba2,
    Mamba1,
    Mamba2,
    Mamba3,
    MultiLevelAttention,
    ShortConvolution,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.models.mixer import Mixer
from smalearn.multilevel import window_attention
from smalearn.scores.tiled import tiled_attention
from smalearn.sma import sma_linear, sma_quadratic, sma_sparse
from smalearn.ssd import diagonal_ssm_as_attentions, ssd_chunked, ssd_quadratic, ssd_recurrent
from smalearn.testing import assert_close, random_tensors

T, N, P = 300, 4, 3

Q, K, V = random_tensors([(T, N), (T, N), (T, P)])
TOKEN, KEY, FULL = (-0.1 * x.abs() for x in random_tensors([(T,), (T, N), (T, P, N)], seed=1))
CAUSAL, BAND = CausalMask(T), BandedMask(T, T, 20) * CausalMask(T)
BETA = 2 * torch.sigmoid(random_tensors([(T,)], seed=3)[0]) / N
(LEVELS,) = random_tensors([(T, 10)], seed=4)
(COLUMN,) = random_tensors([(T,)], seed=2)


def exact(t):
    """No output before t."""
    return t


def inside(size):
    """Outputs of the chunk, tile or block that holds t."""
    return lambda t: t - t % size


def everything(t):
    """Any output."""
    return 0


def ssd(form, log_a=TOKEN):
    return lambda K, V: form(V, log_a, K, Q)[0]


def attention(form, *others):
    return lambda K, V: form(Q, K, V, *others)


def with_state(form, *others):
    return lambda K, V: form(Q, K, V, *others)[0]


def tiles(K, V):
    return tiled_attention(Q[None], K[None], V[None])[0]


# name -> (function whose docstring says it, outputs from operands with a NaN, first output that a NaN at t may reach)
FORMS = {
    "ssd_recurrent": (ssd_recurrent, ssd(ssd_recurrent), exact),
    "ssd_quadratic": (ssd_quadratic, ssd(ssd_quadratic), everything),
    "ssd_chunked": (ssd_chunked, ssd(ssd_chunked), inside(64)),
    "fast.ssd": (fast.ssd, ssd(fast.ssd), inside(32)),
    "ssd_cpu": (ssd_cpu, ssd(ssd_cpu), inside(32)),
    "heads": (diagonal_ssm_as_attentions, lambda K, V: diagonal_ssm_as_attentions(V, KEY, K, Q), everything),
    "parallel": (linear_attention_parallel, attention(linear_attention_parallel, TOKEN), everything),
    "parallel-key": (linear_attention_parallel, attention(linear_attention_parallel, KEY), everything),
    "recurrent": (linear_attention_recurrent, with_state(linear_attention_recurrent, TOKEN), exact),
    "recurrent-full": (linear_attention_recurrent, with_state(linear_attention_recurrent, FULL), exact),
    "chunked": (linear_attention_chunked, with_state(linear_attention_chunked, TOKEN), inside(64)),
    "chunked-key": (linear_attention_chunked, with_state(linear_attention_chunked, KEY, None, 16), inside(16)),
    "chunked-one": (linear_attention_chunked, with_state(linear_attention_chunked, TOKEN, None, 1), exact),
    "recomputed": (linear_attention_chunked, with_state(linear_attention_recomputed, TOKEN), inside(64)),
    "fast": (fast.linear_attention, with_state(fast.linear_attention, TOKEN), inside(32)),
    "fast-none": (fast.linear_attention, with_state(fast.linear_attention), inside(32)),
    "fast-key": (fast.linear_attention, with_state(fast.linear_attention, KEY), inside(64)),
    "delta": (delta_rule_recurrent, with_state(delta_rule_recurrent, BETA, TOKEN), exact),
    "delta-key": (delta_rule_recurrent, with_state(delta_rule_recurrent, BETA, KEY), exact),
    "delta-chunked": (delta_rule_chunked, with_state(delta_rule_chunked, BETA, TOKEN), inside(32)),
    "delta-chunked-key": (delta_rule_chunked, with_state(delta_rule_chunked, BETA, KEY), inside(32)),
    "delta-fast": (fast.delta_rule, with_state(fast.delta_rule, BETA, TOKEN), inside(16)),
    "delta-fast-none": (fast.delta_rule, with_state(fast.delta_rule, BETA), inside(16)),
    "log-linear": (log_linear_attention, with_state(log_linear_attention, TOKEN, LEVELS), inside(64)),
    "slots": (gated_slot_attention, with_state(gated_slot_attention, KEY), inside(64)),
    "multilevel": (
        fast.multilevel_attention,
        attention(fast.multilevel_attention, (2, 1, 1), (512, 128, 32)),
        inside(64),
    ),
    "multilevel-one": (fast.multilevel_attention, attention(fast.multilevel_attention, (N,), (512,)), inside(75)),
    "tiles": (tiled_attention, tiles, inside(64)),
    "window-20": (window_attention, attention(window_attention, 20, True), inside(20)),
    "window-100": (window_attention, attention(window_attention, 100, True), inside(64)),
    "window-0": (window_attention, attention(window_attention, 0, True), exact),
    "quadratic": (sma_quadratic, attention(sma_quadratic, CAUSAL), everything),
    "linear": (Mask.matmul, attention(sma_linear, CAUSAL), exact),
    "linear-band": (Mask.matmul, attention(sma_linear, BAND), exact),
    "linear-decay": (Mask.matmul, attention(sma_linear, DecayMask(T, 0.9)), everything),
    "linear-ss": (Mask.matmul, attention(sma_linear, SemiseparableMask(TOKEN)), everything),
    "linear-toeplitz": (Mask.matmul, attention(sma_linear, ToeplitzMask(COLUMN, 0 * COLUMN)), everything),
    "sparse": (sma_sparse, attention(sma_sparse, BAND), exact),
    "softmax": (softmax_attention, attention(softmax_attention, CAUSAL), everything),
    "kernel": (kernel_attention, attention(kernel_attention, EluPlusOne(N), CAUSAL), exact),
    "kernel-dense": (kernel_attention, attention(kernel_attention, EluPlusOne(N), CAUSAL.dense().double()), everything),
    "scan": (scan_recurrent, lambda K, V: scan_recurrent(V, TOKEN), exact),
    "scan-associative": (scan_recurrent, lambda K, V: scan_associative(V, TOKEN), exact),
    "scan-chunked": (scan_chunked, lambda K, V: scan_chunked(V, TOKEN), lambda t: 16),
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", FORMS)
def test_outputs_before_a_nan(name, value):
    _, outputs, first = FORMS[name]
    expected = outputs(K, V)
    for t in (150, 170):
        for poisoned in range(2):
            operands = [K.clone(), V.clone()]
            operands[poisoned][t, 0] = value
            assert_close(outputs(*operands)[: first(t)], expected[: first(t)])


@pytest.mark.parametrize("name", FORMS)
def test_the_docstring_says_what_a_nan_reaches(name):
    function, outputs, first = FORMS[name]
    contract = " ".join(function.__doc__.split())
    assert first is exact or "NaN" in contract
    assert first is exact or "reaches no earlier output" not in contract
    poisoned = V.clone()
    poisoned[150] = math.nan
    assert outputs(K, poisoned)[150].isnan().all()


@pytest.mark.parametrize("name", FORMS)
def test_the_docstring_says_what_an_overflow_reaches(name):
    """A finite key whose product with another number is infinite, a finite value likewise."""
    function, outputs, first = FORMS[name]
    reached = []
    for poisoned in range(2):
        operands = [K.clone(), V.clone()]
        operands[poisoned][150] = torch.finfo(torch.float64).max
        Y = outputs(*operands)
        assert Y[: first(150)].isfinite().all()
        reached.append(not Y[:150].isfinite().all())
    assert any(reached) <= ("overflow" in function.__doc__)


# mixer -> first output that a NaN at t may reach; None where a decay of NaN is an error
MIXERS = {
    "Mamba2": (lambda: Mamba2(8, state=4, head_dim=4), None),
    "LogLinearMamba2": (lambda: LogLinearMamba2(8, 512, state=4, head_dim=4), None),
    "Mamba3": (lambda: Mamba3(8, state=4, head_dim=4, rank=2), None),
    "Mamba1": (lambda: Mamba1(8, state=4), None),
    "LinearAttention": (lambda: LinearAttention(8, state=4, head_dim=4), inside(32)),
    "GatedDeltaNet": (lambda: GatedDeltaNet(8, state=4, head_dim=4), None),
    "Hydra": (lambda: Hydra(8, state=4, head_dim=4), None),
    "ShortConvolution": (lambda: ShortConvolution(8), exact),
    "SoftmaxAttention": (lambda: SoftmaxAttention(8, 2), everything),
    "MultiLevelAttention": (lambda: MultiLevelAttention(8, 2, (2, 1, 1), 512), inside(64)),
    "WindowAttention": (lambda: WindowAttention(8, 2, 20), inside(20)),
}


@pytest.mark.parametrize("name", MIXERS)
def test_outputs_of_a_mixer_before_a_nan(name):
    make, first = MIXERS[name]
    torch.manual_seed(0)
    mixer = make().double()
    (x,) = random_tensors([(T, 8)], seed=3)
    expected = mixer(x).detach()
    assert "NaN in a token" in " ".join(Mixer.__doc__.split())
    for t in (150, 170):
        poisoned = x.clone()
        poisoned[t, 0] = math.nan
        if first is None:
            with pytest.raises(ValueError, match=rf"{name}\.forward: x must have no NaN, .*; got one at \[{t}, 0\]"):
                mixer(poisoned)
            if name == "Hydra":  # no step: it sees what follows
                continue
            with pytest.raises(ValueError, match=rf"{name}\.step: x must have no NaN, .*; got one at \[1, 0\]"):
                mixer.step(torch.stack([x[t], poisoned[t]]), mixer.start(2))
            continue
        Y = mixer(poisoned)
        assert_close(Y[: first(t)], expected[: first(t)])
        assert Y[t].isnan().any()
