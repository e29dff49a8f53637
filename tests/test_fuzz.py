"""Calls with arguments of wrong types and values, and a sentence for each kind that a learner meets first."""

import math

import fuzz
import pytest
import torch

from smalearn import ShapeError
from smalearn.data import regression_prompt
from smalearn.kernel_attention import gaussian_directions, softmax_attention
from smalearn.masks import CausalMask, rotary_decay_mask
from smalearn.models import Block, CausalConvolution, Mamba2, SequenceModel, ShortConvolution, initial_dt_bias
from smalearn.sma import sma_quadratic
from smalearn.ssm import Semiseparable, block_factors, from_dense, scan_by_pairs
from smalearn.weights import LowRank, Monarch

X = torch.ones(5, 4)


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
        (lambda: Semiseparable(X, X, X.to_sparse()), ValueError, "Semiseparable: C must be an ordinary dense tensor"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_tokens_are_integers():
    model = SequenceModel(7, [Block(Mamba2(4, state=4, head_dim=4))])
    with pytest.raises(ValueError, match="forward: tokens must be int64 or int32, got"):
        model(X)
