"""Claims of chapter 09: a state that turns, two weights for each write, levels of a tree, two directions."""

import itertools
import math

import pytest
import torch
from oracles_mixing import log_linear

from smalearn import fast
from smalearn.linear_attention import (
    delta_rule_recurrent,
    linear_attention_recurrent,
    log_linear_attention,
    log_linear_step,
)
from smalearn.masks import HierarchicalMask, SemiseparableMask, decay_matrix, level_count, level_matrix
from smalearn.models import Hydra
from smalearn.multilevel.rope import turn_pairs
from smalearn.sma import sma_quadratic
from smalearn.ssm import Quasiseparable, Semiseparable, discretise_trapezoid, ssm_recurrent
from smalearn.testing import assert_close, random_tensors

T, N, P = 24, 4, 3


def operands():
    Q, K, V, z, theta = random_tensors([(T, N), (T, N), (T, P), (3, T), (T,)])
    return Q, K, V, -z[0].abs() / 4, torch.nn.functional.softplus(z[1]), torch.sigmoid(z[2]), theta


def rotation(angle):
    one = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]], dtype=torch.float64)
    return torch.block_diag(*[one] * (N // 2))


@pytest.mark.claim("006:rotary", "smalearn.multilevel.rope.turn_pairs")
def test_a_state_that_turns_is_keys_and_queries_that_turn_back():
    Q, K, V, log_a, _, _, theta = operands()
    A = log_a.exp()[:, None, None] * torch.stack([rotation(angle) for angle in theta])
    phi = theta.cumsum(0)[:, None]
    turned = [turn_pairs(x, -phi) for x in (Q, K)]
    assert_close(ssm_recurrent(V, A, K, Q)[0], linear_attention_recurrent(*turned, V, log_a)[0])
    forwards = [turn_pairs(x, phi) for x in (Q, K)]
    assert not torch.allclose(linear_attention_recurrent(*forwards, V, log_a)[0], ssm_recurrent(V, A, K, Q)[0])


@pytest.mark.claim("006:modular", "smalearn.multilevel.rope.turn_pairs")
@pytest.mark.parametrize("modulus", [2, 3, 5, 12])
def test_angles_count_modulo_any_number(modulus):
    """One write, at the beginning; each token turns it by its share of a circle, and what it shows is the sum."""
    generator = torch.Generator().manual_seed(0)
    moves = torch.randint(modulus, (2000,), generator=generator)
    phi = (2 * math.pi / modulus * moves.double()).cumsum(0)[:, None]
    one = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(2000, 2)
    Q, K = turn_pairs(one, phi), one
    side = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(2000, 2)
    V = torch.zeros(2000, 1, dtype=torch.float64)
    V[0] = 1
    start = torch.zeros(2000, dtype=torch.float64)
    cos, sin = (linear_attention_recurrent(x, K, V, start)[0] for x in (Q, turn_pairs(side, phi)))
    assert_close(cos.square() + sin.square(), torch.ones(2000, 1))
    hand = torch.atan2(-sin, cos)[:, 0] * modulus / (2 * math.pi)
    assert torch.equal(hand.round().long() % modulus, moves.cumsum(0) % modulus)


@pytest.mark.claim("006:trapezoid", "smalearn.ssm.discretise.discretise_trapezoid")
def test_the_write_counts_at_both_ends_of_a_step():
    dt, share, x = torch.tensor([0.5, 0.25, 1.0]).double(), torch.tensor([0.5, 0.2, 0.9]).double(), [2.0, -1.0, 4.0]
    rate = torch.tensor([-1.0, -2.0, -0.5]).double()
    A_bar, before, now = discretise_trapezoid(dt, rate, torch.ones(3, 1).double(), share)
    h, expected = 0.0, 0.0
    for t in range(3):
        h = A_bar[t] * h + before[t, 0] * (x[t - 1] if t else 0) + now[t, 0] * x[t]
        alpha = math.exp(dt[t] * rate[t])
        previous = (1 - share[t]) * dt[t] * alpha * (x[t - 1] if t else 0)
        expected = alpha * expected + previous + share[t] * dt[t] * x[t]
        assert_close(h, expected)


def solved(share, steps):
    """h(2) of h' = -h + sin 2t from 0."""
    dt = torch.full((steps,), 2 / steps, dtype=torch.float64)
    x, one = torch.sin(2 * dt.cumsum(0)), torch.ones_like(dt)
    A_bar, before, now = discretise_trapezoid(dt, -one, one[:, None], share * one)
    u = before[:, 0] * torch.cat([0 * x[:1], x[:-1]]) + now[:, 0] * x
    return ssm_recurrent(u[:, None], A_bar, one[:, None], one[:, None])[0][-1, 0].item()


@pytest.mark.claim("006:order", "smalearn.ssm.discretise.discretise_trapezoid")
def test_both_ends_have_order_two_and_one_end_order_one():
    exact = (math.sin(4) - 2 * math.cos(4) + 2 * math.exp(-2)) / 5
    for share, order in ((1 / 2, 2), (1.0, 1)):
        errors = [abs(solved(share, steps) - exact) for steps in (100, 200, 400)]
        for coarse, fine in itertools.pairwise(errors):
            assert coarse / fine == pytest.approx(2**order, rel=0.1)


@pytest.mark.claim("006:product", "smalearn.ssm.discretise.discretise_trapezoid")
def test_the_mask_is_a_product_and_semiseparable_below_its_diagonal():
    _, _, _, log_a, dt, share, _ = operands()
    beta, gamma = (1 - share) * dt * log_a.exp(), share * dt
    L3 = decay_matrix(log_a) @ (torch.diag(gamma) + torch.diag(beta[1:], -1))
    one = torch.ones(T, 1, dtype=torch.float64)
    eye = torch.eye(T, dtype=torch.float64)
    _, before, now = discretise_trapezoid(dt, log_a / dt, one, share)
    u = before * torch.cat([0 * eye[:1], eye[:-1]]) + now * eye
    assert_close(L3, ssm_recurrent(u, log_a.exp(), one, one)[0])
    assert all(torch.linalg.matrix_rank(L3[k:, :k], rtol=1e-10) == 1 for k in range(1, T))


@pytest.mark.claim("006:one-call", "smalearn.fast.dispatch.ssd")
def test_one_call_of_ssd_and_a_diagonal():
    Q, K, V, log_a, dt, share, _ = operands()
    later = torch.nn.functional.pad(((1 - share) * dt)[1:], (0, 1))
    Y, state = fast.ssd((share * dt + later)[:, None] * V, log_a, K, Q)
    Y = Y - (later * (Q * K).sum(-1))[:, None] * V
    H, before = torch.zeros(P, N, dtype=torch.float64), 0
    for t in range(T):
        write = torch.outer(V[t], K[t])
        H = log_a[t].exp() * (H + (1 - share[t]) * dt[t] * before) + share[t] * dt[t] * write
        before = write
        assert_close(Y[t], H @ Q[t])
    assert_close(state, H)


@pytest.mark.claim("006:mimo", "smalearn.fast.dispatch.ssd")
@pytest.mark.parametrize("R", [2, 3])
def test_writes_of_rank_r_are_r_tokens_of_which_the_first_decays(R):
    Q, K, V = random_tensors([(T, R, N), (T, R, N), (T, R, P)])
    log_a = operands()[3]
    gate = torch.nn.functional.pad(log_a[:, None], (0, R - 1)).flatten()
    Y, state = fast.ssd(V.flatten(0, 1), gate, K.flatten(0, 1), Q.flatten(0, 1))
    missing = (Q @ K.mT).triu(1) @ V  # the later writes of the same token
    H = torch.zeros(P, N, dtype=torch.float64)
    for t in range(T):
        H = log_a[t].exp() * H + V[t].mT @ K[t]
        assert_close(Y.unflatten(0, (T, R))[t] + missing[t], Q[t] @ H.mT)
    assert_close(state, H)


def levels(length=T, count=None):
    Q, K, V, z, weights = random_tensors(
        [(length, N), (length, N), (length, P), (length,), (length, count or level_count(length))], seed=3
    )
    return Q, K, V, -z.abs() / 4, weights


@pytest.mark.claim("007:level", "smalearn.masks.hierarchical.level_matrix")
def test_a_level_is_that_of_the_smallest_block_and_of_the_fenwick_tree():
    table = level_matrix(32).tolist()
    for t, s in itertools.product(range(32), repeat=2):
        assert table[t][s] == (t ^ s).bit_length()
        assert table[t][s] == next(level for level in range(6) if t >> level == s >> level)
    for t in range(32):  # off with the lowest bit, again and again: what lies between is a bucket
        stop = t
        while stop:
            start = stop & (stop - 1)
            assert set(table[t][start:stop]) == {(stop - start).bit_length()}
            stop = start


@pytest.mark.claim("007:mask", "smalearn.linear_attention.log_linear.log_linear_attention")
@pytest.mark.parametrize("length", [1, 24, 100])
def test_log_linear_attention_is_attention_with_decays_and_levels(length):
    Q, K, V, log_a, weights = levels(length)
    Y = log_linear(Q, K, V, log_a, weights)
    assert_close(log_linear_attention(Q, K, V, log_a, weights)[0], Y)
    assert_close(sma_quadratic(Q, K, V, HierarchicalMask(log_a, weights)), Y)


@pytest.mark.claim("007:equal-weights", "smalearn.masks.hierarchical.HierarchicalMask.dense")
def test_equal_weights_leave_the_old_mask():
    Q, K, V, log_a, weights = levels()
    ones = torch.ones_like(weights)
    assert_close(HierarchicalMask(log_a, ones).dense(torch.float64), SemiseparableMask(log_a).dense(torch.float64))
    Y, _ = log_linear_attention(Q, K, V, log_a, ones)
    assert_close(Y, linear_attention_recurrent(Q, K, V, log_a)[0])


@pytest.mark.claim("007:ranks", "smalearn.masks.hierarchical.HierarchicalMask.dense")
def test_blocks_of_the_tree_have_rank_one_and_a_cut_at_most_the_ones_of_its_number():
    _, _, _, log_a, weights = levels(64)
    M = HierarchicalMask(log_a.clamp(min=-0.5), weights).dense(torch.float64)
    rank = {k: int(torch.linalg.matrix_rank(M[k:, :k], rtol=1e-9)) for k in range(1, 64)}
    assert all(rank[k] <= k.bit_count() for k in rank)
    assert (rank[32], rank[0b101010], rank[0b111011]) == (1, 3, 5)
    _, _, _, log_a, weights = levels(1024)
    long = HierarchicalMask(log_a.clamp(min=-0.01), weights).dense(torch.float64)
    cuts = [k for k in range(1, 1024) if k.bit_count() > 8]  # no other could have a rank above 8
    assert max(int(torch.linalg.matrix_rank(long[k:, :k], rtol=1e-9)) for k in [*cuts, 1014]) == 8
    for half in (1, 2, 4, 8, 16, 32):
        for start in range(0, 64, 2 * half):
            assert torch.linalg.matrix_rank(M[start + half :, start : start + half][:half], rtol=1e-9) == 1


@pytest.mark.claim("007:cost", "smalearn.masks.hierarchical.HierarchicalMask.cost")
def test_a_product_costs_t_log_t():
    for T in (1024, 4096, 65536):
        z, weights = random_tensors([(T,), (T, level_count(T))], dtype=torch.float32)
        cost = HierarchicalMask(-z.abs(), weights).cost()
        halves = T // 2 * (level_count(T) - 1)  # targets that stand in a later half, over all levels
        assert cost == T + 2 * halves + 2 * (T - 1)


@pytest.mark.claim("007:counter", "smalearn.linear_attention.log_linear.log_linear_step")
def test_decoding_counts_in_binary():
    Q, K, V, log_a, weights = levels(100)
    expected, after = log_linear_attention(Q, K, V, log_a, weights)
    states = torch.zeros(level_count(100), P, N, dtype=torch.float64)
    for t in range(100):
        y, states = log_linear_step(Q[t], K[t], V[t], log_a[t], weights[t], states, t)
        assert_close(y, expected[t])
        held = [bit for bit in range(len(states)) if states[bit].any()]
        assert held == [bit for bit in range(len(states)) if t + 1 >> bit & 1]
    assert_close(states, after)


@pytest.mark.claim("007:delta", "smalearn.masks.hierarchical.HierarchicalMask.dense")
def test_levels_and_corrections_act_in_different_places():
    """The states of the gated delta rule without levels, each token's writings kept apart, read with weights."""
    Q, K, V, log_a, weights = levels()
    K, beta = torch.nn.functional.normalize(K, dim=-1), torch.sigmoid(operands()[4])
    A = (beta[:, None] * decay_matrix(log_a) * (K @ K.mT)).tril(-1)
    U = torch.linalg.solve(torch.eye(T, dtype=torch.float64) + A, beta[:, None] * V)
    Y = sma_quadratic(Q, K, U, HierarchicalMask(log_a, weights))
    for t in range(T):
        reads = [0] * weights.shape[-1]
        for s in range(t + 1):
            decay = log_a[s + 1 : t + 1].sum().exp()
            reads[(t ^ s).bit_length()] = reads[(t ^ s).bit_length()] + decay * (Q[t] @ K[s]) * U[s]
        assert_close(Y[t], sum(w * read for w, read in zip(weights[t], reads, strict=True)))
    assert_close(sma_quadratic(Q, K, U, SemiseparableMask(log_a)), delta_rule_recurrent(Q, K, V, beta, log_a)[0])


@pytest.mark.claim("007:quasiseparable", "smalearn.ssm.quasiseparable.Quasiseparable.solve")
def test_the_inverse_is_quasiseparable_of_the_same_orders():
    A, B, C, b, c, z = random_tensors([(T, 3), (T, 3), (T, 3), (T, 2), (T, 2), (T,)])
    lower = Semiseparable(torch.sigmoid(A), B, C)
    M = Quasiseparable(lower, 20 + z, Semiseparable(torch.full((T,), 0.7, dtype=torch.float64), b, c))
    D = M.dense()
    inverse = torch.linalg.inv(D)
    assert_close(M.solve(torch.eye(T, dtype=torch.float64)), inverse)
    for matrix, cut in itertools.product((D, inverse), range(4, T - 3)):
        assert torch.linalg.matrix_rank(matrix[cut:, :cut], rtol=1e-9) == 3
        assert torch.linalg.matrix_rank(matrix[:cut, cut:], rtol=1e-9) == 2


@pytest.mark.claim("007:hydra", "smalearn.models.hydra.Hydra.forward")
def test_the_matrix_of_hydra_is_quasiseparable():
    """That of one head, from its values to what the gate gets."""
    torch.manual_seed(0)
    mixer, (x,) = Hydra(6, state=2, head_dim=6, expand=1).double(), random_tensors([(T, 6)])
    z, xBC, dt, own = mixer.in_proj(x).split(mixer.widths, -1)
    X, B, C = mixer._convolve(xBC).split(mixer.parts, -1)
    steps = torch.nn.functional.softplus(dt + mixer.dt_bias)
    gates = torch.exp(-mixer.A_log.exp() * steps)
    lower = Semiseparable(gates[:, 0], steps[:, :1] * B[:, :2], C[:, :2])
    upper = Semiseparable(gates[:, 1].roll(1), C[:, 2:], steps[:, 1:] * B[:, 2:])
    Y = Quasiseparable(lower, own[:, 0] + mixer.D, upper) @ X
    u = Y * torch.nn.functional.silu(z)
    u = mixer.norm.weight * u / (u.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert_close(mixer(x), mixer.out_proj(u))
