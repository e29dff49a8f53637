"""Log-linear attention: against the mask's definition, fla's, linear attention; and its binary counter of states."""

import math

import pytest
import torch
from comparing import all_close

from smalearn import ShapeError
from smalearn.linear_attention import log_linear_attention, log_linear_step
from smalearn.masks import HierarchicalMask, level_count
from smalearn.sma import sma_linear, sma_quadratic
from smalearn.testing import assert_close, random_tensors

N, P = 4, 3


def operands(T, leading=(), shared=None, levels=None, grad=False, dtype=torch.float64):
    shared = leading if shared is None else shared
    levels = levels or level_count(T)
    shapes = [(*shared, T, N), (*shared, T, N), (*leading, T, P), (*leading, T), (*leading, T, levels)]
    Q, K, V, log_a, weights = random_tensors(shapes, dtype=dtype)
    log_a = -log_a.abs() / 4
    log_a[..., 3::11], log_a[..., 6::13] = -math.inf, -1e3
    return [x.requires_grad_() if grad else x for x in (Q, K, V, log_a, weights)]


def decode(Q, K, V, log_a, weights):
    leading = torch.broadcast_shapes(Q.shape[:-2], V.shape[:-2])
    states, outputs = V.new_zeros(*leading, weights.shape[-1], P, N), []
    for t in range(Q.shape[-2]):
        token = Q[..., t, :], K[..., t, :], V[..., t, :], log_a[..., t], weights[..., t, :]
        y, states = log_linear_step(*token, states, t)
        outputs.append(y)
    return torch.stack(outputs, -2) if outputs else V, states


def test_levels_of_so_many_tokens():
    assert [level_count(T) for T in (0, 1, 2, 3, 4, 5, 8, 9)] == [1, 1, 2, 3, 3, 4, 4, 5]


@pytest.mark.parametrize("chunk_len", [1, 2, 16, 64])
@pytest.mark.parametrize("T", [0, 1, 2, 7, 16, 33, 100, 130])
@pytest.mark.parametrize(("leading", "shared"), [((), ()), ((2,), ()), ((2, 3), (2, 1))])
def test_it_is_attention_with_the_mask(T, chunk_len, leading, shared):
    Q, K, V, log_a, weights = operands(T, leading, shared)
    Y, states = log_linear_attention(Q, K, V, log_a, weights, chunk_len)
    assert_close(Y, sma_quadratic(Q, K, V, HierarchicalMask(log_a, weights)))
    assert_close(Y, sma_linear(Q, K, V, HierarchicalMask(log_a, weights)))
    assert states.shape == (*leading, level_count(T), P, N)


def test_it_is_that_of_fla():
    naive = pytest.importorskip("fla.ops.log_linear_attn.naive", reason="needs a peer: fla")
    Q, K, V, log_a, weights = operands(64, (2, 4), (2, 4))
    log_a = log_a.clamp(min=-2.0)  # theirs takes differences of running sums
    by_time = [x.transpose(1, 2) for x in (Q, K, V, log_a, weights)]
    expected = naive.naive_log_linear_attn(*by_time).transpose(1, 2)
    assert_close(log_linear_attention(Q, K, V, log_a, weights)[0], expected, 1e-11)


def test_gradients_of_the_states():
    tensors = operands(11, grad=True)
    all_close(
        torch.autograd.grad(log_linear_attention(*tensors)[1].square().sum(), tensors[1:4]),
        torch.autograd.grad(decode(*tensors)[1].square().sum(), tensors[1:4]),
    )


def test_errors():
    Q, K, V, log_a, weights = operands(9, dtype=torch.float32)
    with pytest.raises(ShapeError, match=r"^log_linear_attention: axis 'l' of level_weights is 4, expected at least 5"):
        log_linear_attention(Q, K, V, log_a, weights[:, :4])
    with pytest.raises(ValueError, match=r"^log_linear_attention: chunk_len must be a power of 2, got 12"):
        log_linear_attention(Q, K, V, log_a, weights, 12)
    with pytest.raises(ShapeError, match=r"^log_linear_step: axis 'l' of level_weights is 5, expected at least 6"):
        log_linear_step(Q[0], K[0], V[0], log_a[0], weights[0], torch.zeros(5, P, N), 16)
