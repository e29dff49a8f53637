"""The claims of chapter 07, one test each or more, in the order of claims.toml."""

import pytest
import torch
from ch06.test_claims import KINDS, N, P, T, inputs, scanned
from counting import counted
from oracles_mixing import decays, matrix

from smalearn.course.ch07.layer import block_step
from smalearn.masks import BandedMask, CausalMask, SemiseparableMask, decay_matrix
from smalearn.sma import LINEAR, QUADRATIC, sma_linear, sma_orders, sma_quadratic
from smalearn.ssd import diagonal_ssm_as_attentions, ssd_chunked, ssd_quadratic, ssd_recurrent, ssd_step
from smalearn.ssm import block_ranks, ssm_matrix, ssm_recurrent, ssm_scan
from smalearn.testing import assert_close, random_tensors, relative_rms


@pytest.mark.claim("004:s6-vs-ssd", "smalearn.ssd.ssd_recurrent")
@pytest.mark.claim("004:s6-vs-ssd", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:s6-vs-ssd", "smalearn.ssd.diagonal_ssm_as_attentions")
def test_two_ties_make_ssd_of_s6():
    X, log_a, B, C, _ = inputs()
    (free,) = random_tensors([(P, T, N)], seed=3)
    tied = log_a[:, None].expand(P, T, N)
    expected = ssd_recurrent(X, log_a, B, C)[0]

    def s6(log_decays):
        """A diagonal model with one channel for each of P decays (T, N)."""
        channels = [ssm_recurrent(X[:, p : p + 1], log_decays[p].exp(), B, C)[0] for p in range(P)]
        return torch.cat(channels, 1)

    assert_close(s6(tied), expected)
    assert_close(diagonal_ssm_as_attentions(X, tied[0], B, C), expected)
    assert relative_rms(s6(-free.abs()), expected) > 0.1
    sequences = [torch.unique(gates.mT.reshape(-1, T), dim=0) for gates in (free, tied)]
    assert [len(found) for found in sequences] == [N * P, 1]


@pytest.mark.claim("004:inference-speed", "smalearn.ssd.ssd_step")
def test_a_decoding_step_costs_the_same_for_ever_and_one_of_attention_more_and_more():
    X, log_a, B, C, _ = inputs(40)
    Y, states = scanned(X, log_a, B, C)
    state, calls = torch.zeros(P, N, dtype=torch.float64), set()
    for t in range(40):
        counter, (y, state) = counted(ssd_step, X[t], log_a[t], B[t], C[t], state)
        assert counter.products + counter.entrywise == 3 * N * P
        assert state.numel() == N * P
        assert_close(y, Y[t])
        assert_close(state, states[t + 1])
        calls.add(counter.calls)
        counter, _ = counted(lambda t=t: (C[t, None] @ B[: t + 1].mT).softmax(-1) @ X[: t + 1])
        assert counter.products == (t + 1) * (N + P)
    assert len(calls) == 1


@pytest.mark.claim("004:relative-position", "smalearn.masks.decay.decay_matrix")
def test_the_discount_depends_on_what_lies_between():
    _, log_a, *_ = inputs()
    L, constant = decay_matrix(log_a), decay_matrix(torch.full((T,), 0.8, dtype=torch.float64).log())
    assert_close(L, decays(log_a.exp()))
    assert_close(constant, matrix(lambda t, s: 0.8 ** (t - s) if s <= t else 0.0, T))
    assert abs(L[4, 1] - L[8, 5]) > 1e-3
    for t in range(T):
        assert (L[t, :t] <= L[t, 1 : t + 1]).all()  # the further back, the less is left


@pytest.mark.claim("004:gateloop", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("004:gateloop", "smalearn.masks.decay.decay_matrix")
def test_complex_decays_are_the_same_mask():
    X, log_a, B, C, _ = inputs()
    (theta,) = random_tensors([(T,)], seed=3)
    x, b, c = (z.to(torch.complex128) for z in (X, B, C))
    for turning in (torch.complex(log_a, theta), torch.complex(log_a, 0 * theta), torch.complex(0 * log_a, theta)):
        expected, _ = scanned(x, turning, b, c, torch.zeros(P, N, dtype=torch.complex128))
        assert_close(sma_quadratic(c, b, x, SemiseparableMask(turning)), expected)
        assert_close((decay_matrix(turning) * (c @ b.mT)) @ x, expected)
    assert_close(decay_matrix(torch.complex(log_a, 0 * theta)).real, decay_matrix(log_a))
    assert_close(decay_matrix(torch.complex(0 * log_a, theta)).abs(), torch.ones(T, T).double().tril())


@pytest.mark.claim("004:hybrid", "smalearn.course.ch07.layer.block_step")
@pytest.mark.claim("004:hybrid", "smalearn.ssd.ssd_step")
@pytest.mark.claim("004:hybrid", "smalearn.ssd.ssd_quadratic")
@pytest.mark.claim("004:hybrid", "smalearn.ssd.ssd_chunked")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [1, 7])
def test_prompt_in_one_form_decoding_in_the_other(kind, prompt):
    X, log_a, B, C, H = inputs(T, kind, leading=(3,), shared=(1,))
    expected, _ = scanned(X, log_a, B, C, H)
    for prefill in (ssd_quadratic, ssd_chunked):
        Y, state = prefill(X[:, :prompt], log_a[:, :prompt], B[:, :prompt], C[:, :prompt], H)
        assert_close(Y, expected[:, :prompt])
        mine, zeros = state, torch.zeros(3, dtype=X.dtype)
        for t in range(prompt, T):
            y, state = ssd_step(X[:, t], log_a[:, t], B[:, t], C[:, t], state)
            z, mine = block_step(X[:, t], zeros + 1, (-log_a[:, t]).log(), B[0, t], C[0, t], zeros, mine)
            assert_close(y, expected[:, t])
            assert_close(z, expected[:, t])


@pytest.mark.claim("004:hybrid", "smalearn.ssd.ssd_recurrent")
@pytest.mark.claim("004:hybrid", "smalearn.ssd.ssd_quadratic")
def test_training_is_a_few_large_products_and_the_loop_many_small_calls():
    calls = {}
    for length in (64, 1024):
        X, log_a, B, C, _ = inputs(length)
        loop, (Y, _) = counted(ssd_recurrent, X, log_a, B, C)
        whole, (again, _) = counted(ssd_quadratic, X, log_a, B, C)
        assert_close(again, Y)
        assert loop.products == 0
        assert whole.products > whole.entrywise
        calls[length] = loop.calls, whole.calls
    (short_loop, short_whole), (long_loop, long_whole) = calls[64], calls[1024]
    assert long_loop > 15 * short_loop
    assert long_whole < 2 * short_whole


def families():
    """Names of models that have a recurrence with N components, and of those that have a mask; as the chapter finds."""
    length = 24
    gates, diagonal, general, lags = random_tensors([(length,), (length, N), (length, N, N), (length,)], seed=3)
    ones, causal = torch.ones(length).double(), CausalMask(length).dense(torch.float64)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    transitions = {"linear attention": ones, "RetNet": 0.8 * ones, "SSD": gates.sigmoid(), "any A": general / 3}
    transitions |= {"S4D": diagonal[:1].sigmoid().expand(length, N), "S6": diagonal.sigmoid()}
    masks = {"Toeplitz": lags[distance] * causal, "softmax": causal}
    masks |= {"window": BandedMask(length, length, 6).dense(torch.float64) * causal}
    masks |= {"random": random_tensors([(length, length)], seed=4)[0].tril()}

    def matrix(name, seed):
        Q, K = random_tensors([(length, N), (length, N)], seed=seed)
        scores = (Q @ K.mT).exp() if name == "softmax" else Q @ K.mT
        M = ssm_matrix(transitions[name], K, Q).dense() if name in transitions else masks[name] * scores
        return M, M / scores

    recurrent, masked = set(), set()
    for name in (*transitions, *masks):
        (M, mask), (_, other) = matrix(name, 1), matrix(name, 2)
        assert torch.equal(M, M.tril())
        if block_ranks(M).max() <= N:
            recurrent.add(name)
        if relative_rms(mask, other) < 1e-8:
            masked.add(name)
    return recurrent, masked


@pytest.mark.claim("004:venn", "smalearn.ssm.ranks.block_ranks")
@pytest.mark.claim("004:venn", "smalearn.ssm.semiseparable.Semiseparable.dense")
def test_two_families_and_their_intersection():
    recurrent, masked = families()
    assert recurrent - masked == {"S4D", "S6", "any A"}
    assert recurrent & masked == {"linear attention", "RetNet", "SSD"}
    assert masked - recurrent == {"Toeplitz", "softmax", "window", "random"}


@pytest.mark.claim("004:summary-table", "smalearn.ssm.semiseparable.Semiseparable.matmul")
@pytest.mark.claim("004:summary-table", "smalearn.sma.sma_linear")
@pytest.mark.claim("004:summary-table", "smalearn.sma.sma_quadratic")
def test_the_summary_holds_on_one_layer():
    X, log_a, B, C, _ = inputs()
    Y, M = scanned(X, log_a, B, C)[0], ssm_matrix(log_a.exp(), B, C)
    for found in (M.matmul(X), ssm_scan(X, log_a.exp(), B, C)[0], M.dense() @ X):  # algorithms for one matrix product
        assert_close(found, Y)
    L = SemiseparableMask(log_a)
    assert {QUADRATIC, LINEAR} <= {order.name for order in sma_orders(T, T, N, P)}  # orders of one contraction
    assert_close(sma_quadratic(C, B, X, L), Y)
    assert_close(sma_linear(C, B, X, L), Y)
