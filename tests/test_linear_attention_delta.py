"""The readable forms of the delta rule against the loop, and what makes it one: it overwrites, projects, reflects."""

import importlib.util
import inspect
import warnings

import pytest
import torch
from oracles_delta import KINDS, alike, delta_rule, expected, inputs
from oracles_ssd import gradients

from smalearn import ShapeError
from smalearn.linear_attention import (
    delta_rule_chunked,
    delta_rule_recurrent,
    delta_rule_step,
    l2norm,
)
from smalearn.testing import assert_close, random_tensors, relative_rms


def chunks_of(length):
    return lambda *operands: delta_rule_chunked(*operands, chunk_len=length)


FORMS = {
    "recurrent": delta_rule_recurrent,
    "chunks of 1": chunks_of(1),
    "chunks of 7": chunks_of(7),
    "chunks of 32": delta_rule_chunked,
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def check(form, operands, tolerance=None):
    for actual, oracle in zip(gradients(form, operands), gradients(expected, operands), strict=True):
        assert_close(actual, oracle, tolerance)


@every_form
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 71])
def test_outputs_and_gradients(form, kind, length):
    check(form, inputs(length, kind))


@every_form
def test_a_gate_for_each_key_feature(form):
    Q, K, V, beta, _, H = inputs(37, leading=(2,))
    (gate,) = random_tensors([(2, 37, 4)], seed=3)
    check(form, [Q, K, V, beta, torch.where(gate > 1.5, -float("inf"), -gate.abs()), H])


@every_form
@pytest.mark.parametrize(("leading", "shared"), [((2, 4), (2, 1)), ((2, 4), (1, 4)), ((3,), (1,)), ((0, 2), (0, 1))])
def test_leading_axes(form, leading, shared):
    check(form, inputs(9, "mild", leading, shared))


@every_form
def test_no_tokens(form):
    *operands, H = inputs(0, "mild", (2,))
    Y, state = form(*operands, H)
    assert Y.shape == (2, 0, 3)
    assert torch.equal(state, H)
    assert not form(*operands)[1].any()


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_float32(form, dtype):
    operands = inputs(40, dtype=dtype)
    Y, state = form(*operands)
    wide = form(*(x.float() for x in operands))
    assert (Y.dtype, state.dtype) == (dtype, torch.float32)
    assert_close(Y.float(), wide[0].to(dtype).float(), 1e-6)
    assert_close(state, wide[1], 1e-6)


def test_steps_are_the_recurrence():
    Q, K, V, beta, log_a, H = inputs(9, leading=(2,))
    (by_key,) = random_tensors([(2, 9, 4)], seed=3)
    for gate in (None, log_a, -by_key.abs()):
        Y, final = delta_rule_recurrent(Q, K, V, beta, gate, H)
        state = H
        for t in range(9):
            now = None if gate is None else gate[:, t]
            y, state = delta_rule_step(Q[:, t], K[:, t], V[:, t], beta[:, t], now, state)
            assert_close(y, Y[:, t])
        assert_close(state, final)


@every_form
@pytest.mark.parametrize("strength", [1e-3, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["none", "resets"])
def test_float32_with_unit_keys(form, strength, kind):
    """A reflection keeps all earlier rounding: with β = 2 and no decay a chunk of 32 comes to twice the loop's."""
    times = 2.3 if form is delta_rule_chunked and strength == 2 and kind == "none" else 2
    check_float32(form, inputs(300, kind, (4,), state=16, head_dim=8, strength=strength), times)


@every_form
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("strength", "times"), [(1.0, 2), (1.5, 4), (2.0, 20)])
def test_float32_with_keys_that_are_alike(form, strength, times, seed):
    """With β = 2 entries of (I + A)^-1 that are large cancel: a chunk of 32 comes to 16 times the loop's error."""
    check_float32(form, [x.double() for x in alike(300, 0.05, strength, seed)], times)


def check_float32(form, operands, times):
    """A form's errors in float32 are at most so many times those of the recurrence."""
    exact = expected(*operands)
    narrow = [x if x is None else x.float() for x in operands]
    for actual, plain, oracle in zip(form(*narrow), delta_rule(*narrow), exact, strict=True):
        assert relative_rms(actual.double(), oracle) <= times * relative_rms(plain.double(), oracle)


def test_against_fla():
    if importlib.util.find_spec("fla") is None:
        pytest.skip("needs a peer: fla")
    with warnings.catch_warnings(action="ignore"):  # it warns where there is no GPU
        from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
        from fla.ops.kda.naive import naive_recurrent_kda

    Q, K, V, beta, log_a, H = inputs(45, leading=(2, 3), dtype=torch.float32)
    (gate,) = random_tensors([(2, 3, 45, 4)], seed=3, dtype=torch.float32)
    gate = -gate.abs()
    for theirs, decay in ((naive_recurrent_gated_delta_rule, log_a), (naive_recurrent_kda, gate)):
        q, k, v, b, g = (x.transpose(1, 2) for x in (Q, K, V, beta, decay))
        Y, state = theirs(q, k, v, beta=b, g=g, scale=1.0, initial_state=H.mT, output_final_state=True)
        ours = delta_rule_chunked(Q, K, V, beta, decay, H)
        assert_close(ours[0], Y.transpose(1, 2), 2e-6)
        assert_close(ours[1], state.mT, 2e-6)


def test_against_transformers():
    pytest.importorskip("transformers", reason="needs a peer: transformers")
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    Q, K, V, beta, log_a, H = inputs(77, leading=(2, 3), dtype=torch.float32)
    q, k, v, b, g = (x.transpose(1, 2) for x in (2 * Q, K, V, beta, log_a))  # it divides queries by √4
    Y, state = inspect.unwrap(torch_chunk_gated_delta_rule)(
        q, k, v, g=g, beta=b, initial_state=H.mT, output_final_state=True
    )
    ours = delta_rule_chunked(Q, K, V, beta, log_a, H)
    assert_close(ours[0], Y.transpose(1, 2), 2e-6)
    assert_close(ours[1], state.mT, 2e-6)


def test_l2norm():
    (x,) = random_tensors([(3, 5)])
    assert_close(l2norm(x, 0.0), torch.nn.functional.normalize(x, dim=-1))
    assert not l2norm(torch.zeros(2, 3)).any()
    with pytest.raises(ShapeError, match="l2norm: x needs trailing axes"):
        l2norm(torch.tensor(1.0))
    with pytest.raises(ValueError, match="l2norm: eps must be ≥ 0 and finite, got -1"):
        l2norm(x, -1)
    with pytest.raises(TypeError, match="l2norm: eps must be a number, got str"):
        l2norm(x, "0")


@every_form
def test_wrong_arguments(form):
    Q, K, V, beta, log_a, H = inputs(6, leading=(2,))
    with pytest.raises(ShapeError, match="axis 't' is 6 in Q but 5 in beta"):
        form(Q, K, V, beta[:, 1:], log_a, H)
    with pytest.raises(ShapeError, match="axis 'n' is 4 in Q but 3 in K"):
        form(Q, K[..., 1:], V, beta, log_a, H)
    with pytest.raises(ValueError, match="beta must be from 0 to 2, got -"):
        form(Q, K, V, beta - 1.5, log_a, H)
    with pytest.raises(ValueError, match="beta must be from 0 to 2, got nan"):
        form(Q, K, V, beta * float("nan"), log_a, H)
    with pytest.raises(ValueError, match=r"log_a must be ≤ 0"):
        form(Q, K, V, beta, -log_a, H)
    with pytest.raises(TypeError, match=r"beta must be a torch.Tensor, got float"):
        form(Q, K, V, 1.0, log_a, H)
    with pytest.raises(ValueError, match=r"beta is torch\.float16, expected torch\.float64 or torch\.float32"):
        form(Q, K, V, beta.half(), log_a, H)
    with pytest.raises(ValueError, match="Q must be real"):
        form(*(x.to(torch.complex128) for x in (Q, K, V)), beta, log_a)
    with pytest.raises(ShapeError, match=r"log_a must have axes \(..., T\), or \(..., T, N\), got shape"):
        form(Q, K, V, beta, -torch.ones(2, 6, 3, 4, dtype=torch.float64), H)


def test_chunk_len_is_a_count():
    with pytest.raises(ValueError, match="chunk_len must be an integer ≥ 1, got 0"):
        delta_rule_chunked(*inputs(6), chunk_len=0)
