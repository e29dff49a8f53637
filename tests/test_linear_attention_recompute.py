"""What the backward of its own promises: how little it keeps, what it is made of, what it refuses."""

import pytest
import torch

from smalearn.linear_attention import (
    linear_attention_chunked,
    linear_attention_parallel,
    linear_attention_recomputed,
    linear_attention_recurrent,
)
from smalearn.masks import CausalMask
from smalearn.sma import sma_linear
from smalearn.testing import assert_close, random_tensors

N, P = 6, 5


def saved_elements(function):
    """Entries of all tensors that autograd keeps for the backward of a call, each storage once."""
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        keep = function()
    assert keep is not None
    return sum(storages.values())


def operands(length, gate=True, state=True):
    Q, K, V, log_a, S = random_tensors([(length, N), (length, N), (length, P), (length,), (P, N)])
    parts = [Q, K, V, -log_a.abs() if gate else None, S if state else None]
    return [None if x is None else x.requires_grad_() for x in parts]


@pytest.mark.parametrize("length", [64, 256])
def test_only_inputs_are_saved(length):
    assert saved_elements(lambda: linear_attention_recomputed(*operands(length, False, False))) == length * (2 * N + P)
    everything = saved_elements(lambda: linear_attention_recomputed(*operands(length)))
    assert everything == length * (2 * N + P + 1) + N * P


def test_other_forms_save_more():
    length = 256
    parts = operands(length, False, False)
    naive = saved_elements(lambda: sma_linear(*parts[:3], CausalMask(length)))
    assert naive >= length * N * P
    assert saved_elements(lambda: linear_attention_recurrent(*parts)) >= length * N * P
    assert saved_elements(lambda: linear_attention_chunked(*parts)) > length * (2 * N + P)


@pytest.mark.parametrize("gate", [False, True])
def test_gradients_are_linear_attentions(gate):
    Q, K, V, log_a, _ = operands(30, gate, False)
    dY, *_ = random_tensors([(30, P)], seed=9)
    Y, _ = linear_attention_recomputed(Q, K, V, log_a, chunk_len=7)
    dQ, dK, dV = torch.autograd.grad(Y, (Q, K, V), dY)
    assert_close(dQ, linear_attention_parallel(dY, V, K, log_a))
    # The others run backwards in time: the decay between two tokens belongs to the later one, now the earlier.
    back = None if log_a is None else torch.cat([log_a.new_zeros(1), log_a[1:].flip(0)])
    Q, K, V, dY = (x.flip(0) for x in (Q, K, V, dY))
    assert_close(dK, linear_attention_parallel(V, dY, Q, back).flip(0))
    assert_close(dV, linear_attention_parallel(K, Q, dY, back).flip(0))
