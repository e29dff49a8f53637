"""Calls with arguments of wrong types and values, and a sentence for each kind that a learner meets first."""

import math

import fuzz
import pytest
import torch

from smalearn import ShapeError, ssd
from smalearn.contractions import orders
from smalearn.data import Vocabulary, full_rank_head, least_squares, regression_prompt, series_windows, split_series
from smalearn.fast import linear_attention, multilevel_attention, ssd_step_
from smalearn.kernel_attention import EluPlusOne, gaussian_directions, softmax_attention
from smalearn.linear_attention import gated_slot_attention, linear_attention_step
from smalearn.masks import BandedMask, CausalMask, DecayMask, rotary_decay_mask, scan_chunked
from smalearn.models import (
    Block,
    CausalConvolution,
    GatedRMSNorm,
    Mamba2,
    ModelCache,
    RecurrentCache,
    SequenceModel,
    ShortConvolution,
    SoftmaxAttention,
    initial_dt_bias,
)
from smalearn.multilevel import halving_blocks, receptive_field, score_macs
from smalearn.scores import BilinearAttention
from smalearn.sma import sma_quadratic
from smalearn.ssm import Semiseparable, block_factors, from_dense, scan_by_pairs, ssm_recurrent
from smalearn.train import Plan, accuracy, mean_loss, train
from smalearn.weights import LowRank, Monarch

X = torch.ones(5, 4)
META, COMPLEX, DECAY = X.to("meta"), X.to(torch.complex64), -torch.ones(5)
HEADS = torch.ones(2, 3, 5, 4)  # batch, heads, time, features


def test_every_call_returns_or_says_what_is_wrong():
    outcomes, failures = fuzz.run(200)
    assert not failures, "\n".join(failures)
    assert all(sum(counter[kind] for counter in outcomes.values()) > 20 for kind in ("returned", "refused"))


@pytest.mark.parametrize("wrong", [lambda **_: 1 / 0, lambda **_: [].shape, lambda **_: torch.tensor(math.nan)])
def test_a_raw_error_and_a_silent_nan_are_failures(wrong):
    assert fuzz.call(fuzz.Target("wrong", lambda d: wrong, {}), 0)[0] == "failed"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: sma_quadratic([1, 2], X, X, CausalMask(5)),
            TypeError,
            "sma_quadratic: Q must be a torch.Tensor, got list",
        ),
        (lambda: sma_quadratic(X, X, X, [1]), TypeError, "sma_quadratic: L must be a Mask or Tensor, got list"),
        (
            lambda: softmax_attention(X, X, X, torch.full((5, 5), -math.inf).triu(1)),
            ValueError,
            r"passed as L\.exp\(\)",
        ),
        (lambda: CausalConvolution(-1, 2), ValueError, "CausalConvolution: channels must be an integer ≥ 1, got -1"),
        (lambda: ShortConvolution(-1), ValueError, "ShortConvolution: dim must be an integer ≥ 1, got -1"),
        (lambda: initial_dt_bias(-3), ValueError, "initial_dt_bias: count must be an integer ≥ 1, got -3"),
        (
            lambda: initial_dt_bias(3, shortest=0),
            ValueError,
            "initial_dt_bias: steps need 0 < shortest ≤ longest, got 0",
        ),
        (lambda: CausalMask(True), ValueError, "CausalMask: target must be an integer ≥ 0, got True"),
        (
            lambda: gaussian_directions(2, 2, math.inf),
            ValueError,
            "gaussian_directions: seed must be an integer of 64 bits",
        ),
        (lambda: rotary_decay_mask(3, torch.ones(2), torch.ones(3)), ShapeError, "rotary_decay_mask: leading axes"),
        (lambda: rotary_decay_mask(3, 1.0, math.nan), ValueError, "rotary_decay_mask: theta must be finite, got nan"),
        (lambda: from_dense(torch.eye(3), X), TypeError, "from_dense: tolerance must be a number, got Tensor"),
        (lambda: from_dense(torch.eye(3).half()), ValueError, "from_dense: M is torch.float16, expected torch.float64"),
        (lambda: from_dense(torch.eye(3) / 0), ValueError, "from_dense: M must be finite"),
        (lambda: block_factors(X), TypeError, "block_factors: M must be a Semiseparable, got Tensor"),
        (lambda: scan_by_pairs(min, (X,)), ShapeError, r"scan_by_pairs: elements\[0\] needs axes"),
        (
            lambda: SequenceModel(7, [Mamba2(4, 4, 4)]),
            TypeError,
            r"SequenceModel: blocks\[0\] must be a Block, got Mamba2",
        ),
        (lambda: Monarch.random(X, 0), TypeError, "Monarch.random: sizes must be a Sequence, got Tensor"),
        (lambda: LowRank.random(2, 2, 1, 0, X), TypeError, "LowRank.random: dtype must be a dtype, got Tensor"),
        (lambda: LowRank.from_dense(X / 0, 1), ValueError, "LowRank.from_dense: M must be finite"),
        (lambda: regression_prompt(X, X[:, :1]), ShapeError, "regression_prompt: "),
        (
            lambda: gated_slot_attention(X, X, X, -X, 1.0),
            TypeError,
            r"gated_slot_attention: initial_state must be a pair \(keys, values\), got float",
        ),
        (
            lambda: multilevel_attention(X, X, X, (4,), (5,), [1]),
            TypeError,
            "multilevel_attention: causal must be a bool, got list",
        ),
        (lambda: score_macs(5, (4,), (5,), X), TypeError, "score_macs: causal must be a bool, got Tensor"),
        (
            lambda: ssd.diagonal_ssm_as_attentions(X, -META, X, X),
            ValueError,
            "diagonal_ssm_as_attentions: log_a must have values, got a tensor on meta",
        ),
        (lambda: ssd.ssd_recurrent(X, None, X, X), TypeError, "ssd_recurrent: log_a must be a torch.Tensor, got None"),
        (lambda: ssd_step_(X, DECAY, X.numpy(), X, X), TypeError, "ssd_step_: B must be a torch.Tensor, got ndarray"),
        (lambda: ssd_step_(X, None, X, X, X), TypeError, "ssd_step_: log_a must be a torch.Tensor, got None"),
        (
            lambda: ssd_step_(X, DECAY, X.to_sparse(), X, torch.ones(5, 4, 4)),
            ValueError,
            "ssd_step_: B must be an ordinary dense tensor, got a torch.sparse_coo one",
        ),
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
        (
            lambda: linear_attention_step(COMPLEX, COMPLEX, COMPLEX, 1j * DECAY, COMPLEX[:4]),
            ValueError,
            r"linear_attention_step: log_a must be real, got torch\.complex64",
        ),
        (lambda: ssm_recurrent(X, DECAY, X, None), TypeError, "ssm_recurrent: C must be a torch.Tensor, got NoneType"),
        (lambda: from_dense(META[:4]), ValueError, "from_dense: M must have values, got a tensor on meta"),
        (
            lambda: Semiseparable(COMPLEX, COMPLEX, COMPLEX).dense(torch.float64),
            ValueError,
            "Semiseparable.dense: the matrix is complex but the dtype is torch.float64",
        ),
        (
            lambda: halving_blocks(2**62, 2**62),
            ValueError,
            r"halving_blocks: 4611686018427387904 levels need context ≥ 2\^4611686018427387903, a token a block",
        ),
        (
            lambda: receptive_field(X, 5),
            TypeError,
            "receptive_field: windows must be a Sequence or Iterator, got Tensor",
        ),
        (
            lambda: orders("TN, SN -> TS", {"T": 2, "S": 3, "N": 4}, structured=X[0, 0]),
            TypeError,
            "orders: structured must be a Sequence or Set, got Tensor",
        ),
        (
            lambda: orders("TN, SN -> TS", {"T": 2, "S": 3, "N": 4}).named(X),
            TypeError,
            r"Orders\.named: name must be a str, got Tensor",
        ),
        (lambda: DecayMask(5, DECAY.to(torch.float8_e4m3fn)), ValueError, "DecayMask: gamma must be real and floating"),
        (lambda: rotary_decay_mask(5, 0.5, META), ValueError, "rotary_decay_mask: theta must have values, got"),
        (lambda: scan_chunked(X, 1j * DECAY), ValueError, "scan_chunked: log_a is complex but x is torch.float32"),
        (
            lambda: softmax_attention(*[COMPLEX] * 3),
            ValueError,
            "softmax_attention: Q must be real, got torch.complex64",
        ),
        (lambda: EluPlusOne(4).query(COMPLEX), ValueError, r"EluPlusOne\.query: Q must be real, got torch\.complex64"),
        (lambda: least_squares(X / 0, X[:, 0]), ValueError, "least_squares: X must be finite, got infinite numbers"),
        (lambda: full_rank_head(X[0], X, math.inf), ValueError, "full_rank_head: beta must be finite, got inf"),
        (lambda: Vocabulary("ab").decode(META[0].long()), ValueError, r"Vocabulary\.decode: codes must have values"),
        (
            lambda: BilinearAttention(4, 2, torch.nn.Linear(4, 4)),
            TypeError,
            "BilinearAttention: scoring must be a function of a seed or a list of weights, got Linear",
        ),
        (
            lambda: CausalConvolution(4, 3).prefill(X, X),
            ShapeError,
            r"CausalConvolution\.prefill: conv_state has shape \(5, 4\), expected \(2, 4\)",
        ),
        (
            lambda: CausalConvolution(4, 3).step(X[0], META[:2]),
            ValueError,
            r"CausalConvolution\.step: conv_state is on meta but x is on cpu",
        ),
        (
            lambda: GatedRMSNorm(3).forward(X, X),
            ShapeError,
            r"GatedRMSNorm\.forward: axis 'c' is 3 in weights but 4 in y",
        ),
        (
            lambda: ShortConvolution(4).start(-1),
            ValueError,
            r"ShortConvolution\.start: leading\[0\] must be an integer ≥ 0",
        ),
        (
            lambda: ShortConvolution(4).step(X[0], None),
            TypeError,
            r"ShortConvolution\.step: cache must be a RecurrentCache, got NoneType",
        ),
        (
            lambda: ShortConvolution(4).step(X[0], RecurrentCache(None, X)),
            TypeError,
            r"ShortConvolution\.step: cache\.conv_state must be a torch\.Tensor, got NoneType",
        ),
        (
            lambda: SoftmaxAttention(4).prefill(X, None),
            TypeError,
            r"SoftmaxAttention\.prefill: cache must be a KeyCache or WindowCache, got NoneType",
        ),
        (lambda: Semiseparable(X, X, X.to_sparse()), ValueError, "Semiseparable: C must be an ordinary dense tensor"),
    ],
)
def test_messages(call, error, message):
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
        (
            lambda: model.step(tokens[0], ModelCache(0, ())),
            ShapeError,
            r"^SequenceModel\.step: cache has 0 blocks, expected 1$",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
    assert model.to("meta")(tokens.to("meta")).shape == (2, 7)


def test_outputs_fit_the_targets():
    model, tokens = model_of_tokens(), torch.zeros(3, 5, dtype=torch.long)
    got = r"outputs of the model have shape \(3, 5, 7\)"
    for call, error, message in (
        (lambda: accuracy(model, tokens, tokens[:, :1]), ShapeError, rf"^accuracy: {got}, expected \(3, 1, V\)"),
        (lambda: mean_loss(model, tokens, tokens[:, :1]), ShapeError, rf"^mean_loss: {got}, expected \(3, 1, V\)"),
        (
            lambda: mean_loss(model, tokens, tokens[:, :1].float(), "squared error"),
            ShapeError,
            rf"^mean_loss: {got}, expected \(3, 1\)",
        ),
        (
            lambda: accuracy(model, tokens, tokens.float()),
            ValueError,
            "^accuracy: targets of logits must be integers, got",
        ),
        (
            lambda: train(model, lambda step: (tokens, tokens[:, :1]), Plan(1), progress=False),
            ShapeError,
            rf"^train: {got}, expected \(3, 1, V\)",
        ),
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
