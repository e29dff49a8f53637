"""Every model of the catalogue against its own recurrence, written in the model's own words."""

import itertools
import re

import oracles_linear_attention as oracles
import pytest
import torch
from comparing import all_close
from oracles_linear_attention import CASES, N, P, inputs

from smalearn import ShapeError
from smalearn.linear_attention import (
    MODELS,
    OTHER_MODELS,
    gated_slot_attention,
    linear_attention_chunked,
    linear_attention_recurrent,
)
from smalearn.testing import assert_close, random_tensors

M = 5


def test_every_model_has_a_case():
    assert list(CASES) == list(MODELS)
    assert {model.gate for model in MODELS.values()} == {"none", "scalar", "key", "full"}
    assert not set(OTHER_MODELS) & set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_heads_are_independent(name):
    operands = inputs(name, 9, leading=(2, 3))
    Y, state = MODELS[name].run(*operands)
    assert Y.shape == (2, 3, 9, P)
    assert state.shape[:-2] == (2, 3)
    for b in range(2):
        for h in range(3):
            assert_close(Y[b, h], CASES[name][0](*(x[b, h] for x in operands)))


def test_parameters_shared_by_a_batch():
    operands = inputs("RetNet", 9, leading=(2, 3))
    operands[3:] = operands[3][0], operands[4][0, 0]
    Y, _ = MODELS["RetNet"].run(*operands)
    gamma, theta = operands[3:]
    assert_close(Y[1, 2], oracles.retnet(*(x[1, 2] for x in operands[:3]), gamma[2], theta))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_its_gate_and_its_source(name):
    model = MODELS[name]
    log_a = model.gates(*inputs(name, 7)).log_a
    assert log_a is None or (log_a <= 0).all()
    assert model.name == name
    assert model.formula.startswith("G_t = ")
    assert model.source
    assert model.run(*inputs(name, 0))[0].shape == (0, P)


def test_the_state_is_H_and_tokens_are_rows_of_Q_K_V():
    written = " ".join([*(model.formula for model in MODELS.values()), *OTHER_MODELS.values()])
    assert re.search(r"\bH_t\b", written)
    assert not re.findall(r"\b[Sqkvy]_(?:t|\()", written)


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    operands = [x.requires_grad_() for x in inputs(name, 4)]
    assert torch.autograd.gradcheck(lambda *x: MODELS[name].run(*x)[0], operands, fast_mode=True)


# name -> inputs that are logits or logs, by position; gates that are given themselves, b and gamma, are then 0 or 1
LOGITS = {
    "linear attention": [],
    "RetNet": [],
    "gated RetNet": [3],
    "gated RFA": [3],
    "Mamba-2": [3, 4],
    "mLSTM": [3, 4],
    "GLA": [3],
    "HGRN2": [2],
    "RWKV-6": [3, 4],
    "GateLoop": [3],
    "Mamba": [3, 4],
}
GATES = {"RetNet": 3, "HGRN2": 3}


def extremes(name, size, length=9):
    """Inputs in float64 with logits of this size: of either sign, or both among ordinary ones."""
    ordinary = inputs(name, length)
    if name in GATES:
        ordinary[GATES[name]] = torch.zeros_like(ordinary[GATES[name]])
    for signs in itertools.product((-1, 0, 1), repeat=len(LOGITS[name])):
        operands = list(ordinary)
        for sign, k in zip(signs, LOGITS[name], strict=True):
            mixed = torch.where(operands[k].abs() > 0.5, size * operands[k].sign(), operands[k])
            operands[k] = torch.full_like(mixed, sign * size) if sign else mixed
        yield operands


def with_gradients(name, operands, form=linear_attention_recurrent):
    """Output, and the gradients of all inputs for a random cotangent."""
    operands = [x.detach().clone().requires_grad_() for x in operands]
    Y, state = MODELS[name].run(*operands, form=form)
    (cotangent,) = random_tensors([Y.shape], 1, Y.dtype)
    grads = torch.autograd.grad((Y * cotangent).sum() + 0 * state.sum(), operands)
    return [Y, *grads]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [100.0, 300.0])
def test_finite_at_extreme_logits(name, size):
    forms = [linear_attention_recurrent] + [linear_attention_chunked] * (MODELS[name].gate != "full")
    for operands in extremes(name, size):
        expected = CASES[name][0](*operands)
        for form in forms:
            exact = with_gradients(name, operands, form)
            assert_close(exact[0], expected)
            single = with_gradients(name, [x.float() for x in operands], form)
            assert all(torch.isfinite(x).all() for x in exact + single)
            error = (single[0] - exact[0]).norm()
            assert error <= 1e-5 * exact[0].norm().clamp(min=1e-30)  # what is smaller may be 0 in float32


@pytest.mark.parametrize("name", GATES)
def test_a_gate_of_zero_has_its_gradient(name):
    for operands in extremes(name, 300.0):
        gate = operands[GATES[name]].requires_grad_()
        actual, expected = MODELS[name].run(*operands)[0], CASES[name][0](*operands)
        (cotangent,) = random_tensors([actual.shape], 1)
        of = [torch.autograd.grad(Y, gate, cotangent)[0] for Y in (actual, expected)]
        assert_close(*of)
        assert of[1].abs().max() > 0.1 or (operands[2] > 0).all()  # an open gate needs no lower bound


def test_mlstm_survives_huge_input_gates():
    Q, K, V, i, f = inputs("mLSTM", 12)
    i = 60 * i  # exp(i) leaves the range of float32
    expected = oracles.mlstm(Q, K, V, i, f)
    assert torch.isinf(i.float().exp()).any()
    assert_close(MODELS["mLSTM"].run(*(x.float() for x in (Q, K, V, i, f)))[0], expected)
    Y, _ = MODELS["mLSTM"].run(Q, K, V, i + 900, f)
    assert torch.isfinite(Y).all()


def slot_inputs(length, leading=(), seed=0):
    Q, K, V, log_a = random_tensors([(*leading, length, n) for n in (N, N, P, M)], seed=seed)
    return Q, K, V, -log_a.abs()


def test_gated_slots_in_two_parts_and_for_every_head():
    operands = slot_inputs(11, leading=(2, 3))
    whole, last = gated_slot_attention(*operands)
    first, state = gated_slot_attention(*(x[..., :4, :] for x in operands))
    second, state = gated_slot_attention(*(x[..., 4:, :] for x in operands), state)
    assert_close(torch.cat([first, second], -2), whole)
    all_close(state, last)
    assert [x.shape for x in last] == [(2, 3, M, N), (2, 3, P, M)]
    nothing, state = gated_slot_attention(*(x[..., :0, :] for x in operands), last)
    assert nothing.shape == (2, 3, 0, P)
    assert all(map(torch.equal, state, last))


def test_states_of_slots_are_checked():
    operands = slot_inputs(6)
    for k, pair in enumerate([(torch.zeros(4, N), torch.zeros(P, M)), (torch.zeros(M, N), torch.zeros(2, M))]):
        with pytest.raises(ShapeError, match=rf"^gated_slot_attention: .* initial_state\[{k}\]"):
            gated_slot_attention(*operands, pair)
