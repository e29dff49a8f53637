"""Calls with arguments of wrong types and values: each is refused, by function and argument.

What a check says stands in `test_checks`; here it is provoked everywhere.
"""

import inspect
import math

import fuzz
import pytest
import torch

from smalearn import ShapeError, ssd
from smalearn.data import full_rank_head, least_squares, series_windows, split_series
from smalearn.fast import linear_attention
from smalearn.kernel_attention import softmax_attention
from smalearn.linear_attention import gated_slot_attention, linear_attention_step
from smalearn.masks import BandedMask, rotary_decay_mask, scan_chunked
from smalearn.models import (
    Block,
    CausalConvolution,
    Mamba2,
    ModelCache,
    RecurrentCache,
    SequenceModel,
    ShortConvolution,
    SoftmaxAttention,
    initial_dt_bias,
)
from smalearn.multilevel import halving_blocks
from smalearn.scores import BilinearAttention
from smalearn.ssm import Semiseparable, from_dense
from smalearn.train import Plan, accuracy, mean_loss, train
from smalearn.weights import LowRank

X = torch.ones(5, 4)
META, COMPLEX, DECAY = X.to("meta"), X.to(torch.complex64), -torch.ones(5)
HEADS = torch.ones(2, 3, 5, 4)  # batch, heads, time, features

TARGETS = {target.name: target for target in fuzz.targets()}
SEEDS = 60  # of draws, until one fits
NEVER_FIT = {  # abstract, or called with arguments that the fuzz draws rarely
    *("contract", "FeatureMap", "Mask", "SparseMask", "Weight", "Mixer", "RecurrentMixer", "Orders.named"),
    *("MultiLevelBlockTensorContraction.random", "MultiLevelLowRank.random", "MultiLevelLowRank.from_dense"),
    *("select_rows", "ngram_features", "recall_stream", "load"),
}
EXACT = {"x", "y", "like", "part"}  # numbers that may be any, where they are only moved or added
OTHER_WORDS = {  # what an argument is called where its check is another function's
    **dict.fromkeys("xy", "the operand"),
    "conv_len": "length",
    "features": "ranks",
    "context": "block_lens|every level",
    "weight": "is not a special case",
    "token": "tokens",
}


def test_every_call_returns_or_says_what_is_wrong():
    outcomes, failures = fuzz.run(200)
    assert not failures, "\n".join(failures)
    assert all(sum(counter[kind] for counter in outcomes.values()) > 20 for kind in ("returned", "refused"))


@pytest.mark.parametrize("wrong", [lambda **_: 1 / 0, lambda **_: [].shape, lambda **_: torch.tensor(math.nan)])
def test_a_raw_error_and_a_silent_nan_are_failures(wrong):
    assert fuzz.call(fuzz.Target("wrong", lambda d: wrong, {}), 0)[0] == "failed"


def run(function, positional, named):
    result = function(*positional, **named)
    return list(result) if inspect.isgenerator(result) else result


def fitting(target):
    """A function with arguments that fit, drawn until a call returns."""
    for seed in range(SEEDS):
        draw = fuzz.Draw(seed)
        torch.manual_seed(seed)
        try:
            function = target.get(draw)
            call = function, *fuzz.arguments(target, function, draw, 0.0)
            run(*call)
        except fuzz.EXPECTED:
            continue
        return call
    return None


def said(function, positional, named):
    """What is wrong with the error of a call; None if it returns, or says by name what does not fit."""
    try:
        run(function, positional, named)
    except fuzz.EXPECTED as error:
        return fuzz.verdict(error)


def wrong_values(name, value):
    """What is no such argument."""
    if isinstance(value, torch.Tensor):
        kinds = [value.bool()] if value.is_floating_point() and name not in EXACT else []
        return [value.tolist(), "x", *kinds, *([value.to_sparse()] if value.ndim else [])]
    if isinstance(value, bool):
        return ["x", object(), 2]
    if isinstance(value, int):
        counts = [] if name == "beta" else [1.5] if name == "seed" else [1.5, -1]
        return ["x", True, 2**70, torch.ones(99, 99), *counts]
    return ["x", True, math.nan] if isinstance(value, float) else [object()]


def neighbours(value):
    """What may fit, or not: no tokens; a tensor of another dtype, device or shape."""
    if isinstance(value, int):
        yield 0
    if isinstance(value, torch.Tensor) and fuzz.is_dense(value):
        yield from (value.double(), value.half(), value.to("meta"))
        yield value.new_ones(())
        yield value.expand(7, *value.shape)
        yield from (value.narrow(k, 0, size - 1) for k, size in enumerate(value.shape) if size > 1)


@pytest.mark.filterwarnings("ignore")  # of PyTorch, where a tensor of another kind is made
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in NEVER_FIT and "Cache" not in name])
def test_what_does_not_fit_is_refused_by_function_and_argument(name):
    function, positional, named = fitting(TARGETS[name])
    for argument, value in named.items():
        words = rf"\b({argument}|{OTHER_WORDS.get(argument, argument)})"
        for wrong in wrong_values(argument, value):
            with pytest.raises((TypeError, ValueError), match=words) as caught:
                run(function, positional, named | {argument: wrong})
            assert fuzz.verdict(caught.value) is None
        for other in neighbours(value):
            assert said(function, positional, named | {argument: other}) is None, argument


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: softmax_attention(X, X, X, torch.ones(5, 5) / -0.0), ValueError, r"passed as L\.exp\(\)"),
        (lambda: initial_dt_bias(3, shortest=0), ValueError, "initial_dt_bias: steps need 0 < shortest ≤ longest"),
        (lambda: rotary_decay_mask(3, torch.ones(2), torch.ones(3)), ShapeError, "rotary_decay_mask: leading axes"),
        (lambda: rotary_decay_mask(3, 1.0, math.nan), ValueError, "rotary_decay_mask: theta must be finite, got nan"),
        (lambda: from_dense(torch.eye(3) / 0), ValueError, "from_dense: M must be finite"),
        (lambda: SequenceModel(7, [Mamba2(4, 4, 4)]), TypeError, r"SequenceModel: blocks\[0\] must be a Block, got"),
        (lambda: LowRank.from_dense(X / 0, 1), ValueError, "LowRank.from_dense: M must be finite"),
        (lambda: gated_slot_attention(X, X, X, -X, 1.0), TypeError, r"gated_slot_attention: initial_state must be a"),
        (lambda: ssd.diagonal_ssm_as_attentions(X, -META, X, X), ValueError, "diagonal_ssm_as_attentions: log_a must"),
        (
            lambda: linear_attention(HEADS, HEADS[:, 0], HEADS, -HEADS[..., 0]),
            ShapeError,
            r"^linear_attention: log_a with as many axes as K has one gate per key feature, \(\.\.\., T, N\), "
            r"got shape \(2, 3, 5\); for one per token give K an axis of size 1: \(2, 1, 5, 4\)$",
        ),
        (
            lambda: linear_attention_step(
                *[HEADS[:, :, 0]] * 1, HEADS[:, 0, 0], HEADS[:, :, 0], -X[:2, :3], HEADS[..., :4, :]
            ),
            ShapeError,
            r"for one per token give k an axis of size 1: \(2, 1, 4\)$",
        ),
        (lambda: Semiseparable(*3 * [COMPLEX]).dense(torch.float64), ValueError, "the matrix is complex but the dtype"),
        (lambda: halving_blocks(2**62, 2**62), ValueError, r"halving_blocks: 4611686018427387904 levels need context"),
        (lambda: rotary_decay_mask(5, 0.5, META), ValueError, "rotary_decay_mask: theta must have values, got"),
        (lambda: scan_chunked(X, 1j * DECAY), ValueError, "scan_chunked: log_a is complex but x is torch.float32"),
        (lambda: least_squares(X / 0, X[:, 0]), ValueError, "least_squares: X "),
        (lambda: full_rank_head(X[0], X, math.inf), ValueError, "full_rank_head: beta must be finite, got inf"),
        (lambda: BilinearAttention(4, 2, torch.nn.Linear(4, 4)), TypeError, "BilinearAttention: scoring must be a"),
        (lambda: CausalConvolution(4, 3).prefill(X, X), ShapeError, r"CausalConvolution\.prefill: conv_state has"),
        (lambda: CausalConvolution(4, 3).step(X[0], META[:2]), ValueError, r"CausalConvolution\.step: conv_state is"),
        (lambda: ShortConvolution(4).step(X[0], None), TypeError, r"ShortConvolution\.step: cache must be a"),
        (lambda: ShortConvolution(4).step(X[0], RecurrentCache(None, X)), TypeError, r"cache\.conv_state must be a"),
        (lambda: SoftmaxAttention(4).prefill(X, None), TypeError, r"SoftmaxAttention\.prefill: cache must be a"),
    ],
)
def test_sentences_that_one_function_says(call, error, message):
    with pytest.raises(error, match=message):
        call()


def model_of_tokens():
    return SequenceModel(7, [Block(Mamba2(4, state=4, head_dim=4))])


def test_tokens_and_caches_of_a_model():
    model, tokens = model_of_tokens(), torch.tensor([0, 6])
    for call, error, message in (
        (lambda: model(X), ValueError, "forward: tokens must be int64 or int32, got"),
        (lambda: model(tokens + 1), ValueError, r"^SequenceModel\.forward: tokens must be from 0 to 6, got another$"),
        (lambda: model(tokens - 1), ValueError, "tokens must be from 0 to 6"),
        (lambda: model.step(tokens[0], None), TypeError, r"^SequenceModel\.step: cache must be a ModelCache, got None"),
        (lambda: model.step(tokens[0], ModelCache(0, ())), ShapeError, r"step: cache has 0 blocks, expected 1$"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert model.to("meta")(tokens.to("meta")).shape == (2, 7)


def test_outputs_fit_the_targets():
    model, tokens = model_of_tokens(), torch.zeros(3, 5, dtype=torch.long)
    first = tokens[:, :1]
    got = r"outputs of the model have shape \(3, 5, 7\)"
    for call, error, message in (
        (lambda: accuracy(model, tokens, first), ShapeError, rf"^accuracy: {got}, expected \(3, 1, V\)"),
        (lambda: mean_loss(model, tokens, first), ShapeError, rf"^mean_loss: {got}, expected \(3, 1, V\)"),
        (lambda: mean_loss(model, tokens, first.float(), "squared error"), ShapeError, rf"{got}, expected \(3, 1\) "),
        (lambda: accuracy(model, tokens, tokens.float()), ValueError, "^accuracy: targets of logits must be"),
        (lambda: train(model, lambda _: (tokens, first), Plan(1), progress=False), ShapeError, f"^train: {got}"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_decay_of_half_precision_turns_in_single_precision(dtype):
    assert rotary_decay_mask(3, torch.tensor(0.5, dtype=dtype), 1.0).dense().dtype == torch.complex64


def test_what_needs_no_values_works_on_meta():
    series = torch.empty(14_400, 2, device="meta")
    assert [len(part) for part in split_series(series, 3)] == [8640, 2883, 2883]
    begin = torch.zeros(4, dtype=torch.long, device="meta")
    assert series_windows(series, begin, 5, 2)[1].shape == (4, 2, 2)
    mask = BandedMask(6, 5, 2)
    assert mask.matmul(META).shape == (6, 4)
    assert mask.transpose_matmul(torch.empty(6, 4, device="meta")).shape == (5, 4)
