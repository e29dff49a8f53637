"""Claims of chapter 08: what the delta rule is as a matrix, as a state space model, as a learner."""

import math
from functools import partial

import pytest
import torch
from oracles_delta import check, delta_rule, generalized, inputs
from test_linear_attention_delta_catalogue import CASES
from test_linear_attention_delta_catalogue import inputs as inputs_of

from smalearn.linear_attention import (
    delta_rule_chunked,
    delta_rule_recurrent,
    generalized_delta_rule_chunked,
    linear_attention_chunked,
    linear_attention_recurrent,
)
from smalearn.masks import decay_matrix
from smalearn.ssm import block_ranks, ssm_recurrent
from smalearn.testing import assert_close, random_tensors, relative_rms


@pytest.mark.claim("005:rule", "smalearn.linear_attention.delta.delta_rule_recurrent")
@pytest.mark.claim("005:chunks", "smalearn.linear_attention.delta.delta_rule_chunked")
@pytest.mark.claim("005:by-feature", "smalearn.linear_attention.delta.delta_rule_chunked")
@pytest.mark.parametrize("kind", ["none", "mild", "by feature"])
def test_read_compare_write_token_by_token_or_in_chunks(kind):
    Q, K, V, beta, log_a, H = inputs(40, "none" if kind == "none" else "mild")
    log_a = -random_tensors([(40, 4)], seed=3)[0].abs() if kind == "by feature" else log_a
    for form in (delta_rule_recurrent, *(partial(delta_rule_chunked, chunk_len=size) for size in (1, 8, 13))):
        check(form, (Q, K, V, beta, log_a, H))


@pytest.mark.claim("005:identity", "smalearn.linear_attention.delta.delta_rule_chunked")
def test_attention_times_the_inverse_of_an_attention():
    Q, K, V, beta, log_a, _ = inputs(40)
    L, one = decay_matrix(log_a), torch.eye(40, dtype=torch.float64)
    A = (beta[:, None] * (L * (K @ K.mT))).tril(-1)
    M = (L * (Q @ K.mT)) @ torch.linalg.inv(one + A) @ torch.diag(beta)
    Y, _ = delta_rule_chunked(Q, K, V, beta, log_a)
    assert_close(M @ V, Y)
    U = torch.linalg.solve_triangular(one + A, beta[:, None] * V, upper=False)
    assert_close(linear_attention_chunked(Q, K, U, log_a)[0], Y)


def scores(x, y, log_a, diagonal=0):
    """⟨x, y⟩, with a decay per feature."""
    until = log_a.cumsum(0)
    return (x[:, None] * y * (until[:, None] - until).clamp(max=0).exp()).sum(-1).tril(diagonal)


@pytest.mark.claim("008:three-keys", "smalearn.linear_attention.generalized_delta.generalized_delta_rule_chunked")
def test_three_keys_take_one_solve():
    Q, K, V, beta, _, _ = inputs(40)
    read, erase, z = random_tensors([(40, 4)] * 3, seed=1)
    read, erase, log_a = torch.nn.functional.normalize(read, dim=-1), erase / 4, -z.abs() / 8
    inverse = torch.linalg.inv(torch.eye(40, dtype=torch.float64) + scores(read, erase, log_a, -1))
    M = scores(Q, K, log_a) - scores(Q, erase, log_a) @ inverse @ scores(read, K, log_a, -1)
    assert_close(M @ V, generalized(Q, K, V, read, erase, log_a)[0])
    assert_close(M @ V, generalized_delta_rule_chunked(Q, K, V, read, erase, log_a)[0])
    b = beta[:, None]
    by_keys = generalized_delta_rule_chunked(Q, K, b * V, K, b * K, log_a)[0]
    assert_close(by_keys, delta_rule(Q, K, V, beta, log_a)[0])


@pytest.mark.claim("008:rwkv7", "smalearn.linear_attention.generalized_delta.generalized_delta_rule_chunked")
def test_rwkv7_erases_elsewhere_than_it_writes():
    R, K, V, z, a, xi, alpha = operands = inputs_of("RWKV-7", 40)
    w, rate, kappa = torch.exp(-z.sigmoid() / math.sqrt(math.e)), a.sigmoid(), xi * K
    kappa = kappa / kappa.norm(dim=-1, keepdim=True)
    Y, _ = generalized_delta_rule_chunked(R, K * (1 + (rate - 1) * alpha), V, kappa / w, rate * kappa, w.log())
    assert_close(Y, CASES["RWKV-7"][0](*operands))
    assert 0.545 < math.exp(-(math.e**-0.5)) < w.min()


@pytest.mark.claim("008:gdn2", "smalearn.linear_attention.chunked.linear_attention_chunked")
def test_gdn2_is_the_delta_rule_with_one_key_exchanged():
    Q, K, V, g, a, b, w = operands = inputs_of("GDN-2", 40)
    log_a = -a.exp() * torch.nn.functional.softplus(g)
    A = scores(b.sigmoid() * K, K, log_a, -1)
    U = torch.linalg.solve_triangular(A, w.sigmoid() * V, upper=False, unitriangular=True)
    assert_close(linear_attention_chunked(Q, K, U, log_a)[0], CASES["GDN-2"][0](*operands))


@pytest.mark.claim("008:comba", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_comba_is_the_delta_rule_at_other_rates():
    Q, K, V, z, g, a, b, d = operands = inputs_of("Comba", 40)
    log_a, s = -a.exp() * torch.nn.functional.softplus(g), b.sigmoid()
    fade = log_a.exp()
    Y, _ = delta_rule_recurrent(Q - d * s * K, K, fade[:, None] / s * V, z.sigmoid() * s / fade, log_a)
    assert_close(Y, CASES["Comba"][0](*operands))


@pytest.mark.claim("008:path", "smalearn.linear_attention.generalized_delta.generalized_delta_rule_chunked")
@pytest.mark.claim("008:path", "smalearn.linear_attention.delta.delta_rule_chunked")
def test_reflections_between_two_tokens_take_one_solve():
    Q, K, _, b, _, _ = inputs(12, "none")
    W = torch.nn.functional.normalize(random_tensors([(12, 4)], seed=1)[0], dim=-1)
    one, b = torch.eye(12, dtype=torch.float64), b[:, None]
    pairs = torch.zeros_like(one)
    for s in range(12):
        k = K[s]
        for t in range(s, 12):
            k = k - b[t] * W[t] * (W[t] @ k) * (t > s)
            pairs[t, s] = Q[t] @ k
    solved = torch.linalg.solve(one + (b * (W @ W.mT)).tril(-1), (b * (W @ K.mT)).tril(-1))
    assert_close((Q @ K.mT).tril() - (Q @ W.mT).tril() @ solved, pairs)
    assert_close(generalized_delta_rule_chunked(Q, K, one, W, b * W)[0], pairs)
    of_keys, _ = generalized_delta_rule_chunked(Q, K, one, K, b * K)
    assert_close(delta_rule_chunked(Q, K, one, b[:, 0])[0], of_keys * b.mT)


@pytest.mark.claim("005:rank", "smalearn.linear_attention.delta.delta_rule_chunked")
def test_the_matrix_is_semiseparable_of_order_n():
    Q, K, V, beta, log_a, _ = inputs(40)
    M, _ = delta_rule_chunked(Q, K, torch.eye(40, dtype=torch.float64), beta, log_a)
    assert max(block_ranks(M)) == 4
    assert_close(M @ V, delta_rule(Q, K, V, beta, log_a)[0])


@pytest.mark.claim("005:general-ssm", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_it_is_a_state_space_model_with_a_full_matrix():
    Q, K, V, beta, log_a, H = inputs(12)
    one = torch.eye(4, dtype=torch.float64)
    A = log_a.exp()[:, None, None] * (one - beta[:, None, None] * K[:, :, None] * K[:, None, :])
    for actual, oracle in zip(
        delta_rule_recurrent(Q, K, V, beta, log_a, H), ssm_recurrent(V, A, beta[:, None] * K, Q, H), strict=True
    ):
        assert_close(actual, oracle)


@pytest.mark.claim("005:wy", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_a_product_of_factors_is_one_less_a_product():
    """With values of zero the state is multiplied by all I - β k k^T, which is I - W^T K."""
    _, K, V, beta, _, H = inputs(12, "none")
    A = (beta[:, None] * (K @ K.mT)).tril(-1)
    W = torch.linalg.solve_triangular(torch.eye(12, dtype=torch.float64) + A, beta[:, None] * K, upper=False)
    _, state = delta_rule_recurrent(K, K, 0 * V, beta, None, H)
    assert_close(state, H @ (torch.eye(4, dtype=torch.float64) - W.mT @ K))


@pytest.mark.claim("005:overwrite", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_what_is_written_last_is_read():
    k, first, last = random_tensors([(1, 8), (1, 3), (1, 3)])
    k = torch.nn.functional.normalize(k, dim=-1)
    K, V = torch.cat([k, k]), torch.cat([first, last])
    Y, _ = delta_rule_recurrent(K, K, V, torch.ones(2, dtype=torch.float64))
    assert_close(Y[1:], last)
    assert_close(linear_attention_chunked(K, K, V)[0][1:], first + last)


@pytest.mark.claim("005:capacity", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_as_many_orthogonal_keys_as_features_are_kept():
    keys = torch.linalg.qr(random_tensors([(6, 6)])[0])[0]
    (V,) = random_tensors([(6, 3)], seed=1)
    ones = torch.ones(6, dtype=torch.float64)
    _, state = delta_rule_recurrent(keys, keys, V, ones)
    assert_close(keys @ state.mT, V)
    seventh = torch.nn.functional.normalize(keys.sum(0, keepdim=True), dim=-1)
    _, changed = delta_rule_recurrent(seventh, seventh, 5 + V[:1], ones[:1], None, state)
    assert relative_rms(keys @ changed.mT, V) > 0.1


@pytest.mark.claim("005:reflection", "smalearn.linear_attention.delta.delta_rule_recurrent")
@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_along_the_key_the_state_is_multiplied_by_one_less_beta(strength):
    _, K, V, beta, _, H = inputs(1, "none", strength=strength)
    _, state = delta_rule_recurrent(K, K, 0 * V, beta, None, H)
    across = torch.linalg.svd(K)[2][1:]  # all that is orthogonal to the key
    directions = torch.cat([K, across])
    factors = torch.tensor([1 - strength, 1, 1, 1], dtype=torch.float64)
    assert_close(state @ directions.mT, (H @ directions.mT) * factors)


@pytest.mark.claim("005:parity", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_reflections_count_parity():
    """β = 2 for a one and 0 for a zero: the state changes its sign with every one, at any length."""
    (z,) = random_tensors([(500,)])
    bits = (z > 0).double()
    key, nothing = torch.ones(500, 1, dtype=torch.float64), torch.zeros(500, 1, dtype=torch.float64)
    Y, _ = delta_rule_recurrent(key, key, nothing, 2 * bits, None, torch.ones(1, 1, dtype=torch.float64))
    assert torch.equal(Y[:, 0], 1 - 2 * (bits.cumsum(0) % 2))


@pytest.mark.claim("005:parity", "smalearn.linear_attention.delta.delta_rule_recurrent")
@pytest.mark.parametrize("strength", [0.3, 1.0, 1.7])
def test_an_eigenvalue_is_negative_for_beta_above_1_alone(strength):
    """A state I and a value of zero leave the transition itself, here with a decay too."""
    _, K, V, beta, log_a, _ = inputs(1, "mild", head_dim=4, strength=strength)
    one = torch.eye(4, dtype=torch.float64)
    _, transition = delta_rule_recurrent(K, K, 0 * V, beta, log_a, one)
    factors = torch.tensor([1 - strength, 1, 1, 1], dtype=torch.float64)
    assert_close(torch.linalg.eigvalsh(transition), log_a.exp() * factors)


@pytest.mark.claim("005:no-parity", "smalearn.linear_attention.delta.delta_rule_recurrent")
@pytest.mark.parametrize(
    ("strength", "decay", "settles"), [(0.3, 0.0, True), (1.0, 0.0, True), (0.5, -0.1, True), (2.0, 0.0, False)]
)
def test_on_ones_alone_layers_settle(strength, decay, settles):
    """The parity of a text of ones changes at every token: two layers end without any change, unless β = 2."""
    X = torch.ones(300, 4, dtype=torch.float64)
    beta, log_a = X[:, 0] * strength, X[:, 0] * decay
    for seed in (0, 1):
        *weights, H = random_tensors([(4, 4)] * 4, seed=seed)
        Q, K, V = (X @ weight for weight in weights)
        X, _ = delta_rule_recurrent(Q, torch.nn.functional.normalize(K, dim=-1), V, beta, log_a, H)
    change = (X[-1] - X[-2]).norm() / X[-1].norm()
    assert change < 1e-12 if settles else change > 0.1


@pytest.mark.claim("005:permutations", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_reflections_swap():
    """β = 2 and the key (e_i - e_j) / √2 swap two entries: products of them are all permutations."""
    swaps = [(0, 1), (1, 2), (0, 2), (1, 2), (0, 1), (0, 2), (0, 2)]
    keys = torch.zeros(len(swaps), 3, dtype=torch.float64)
    order = torch.arange(3)
    for k, (i, j) in enumerate(swaps):
        keys[k, i], keys[k, j] = 0.5**0.5, -(0.5**0.5)
        order[[i, j]] = order[[j, i]]
    H = torch.eye(3, dtype=torch.float64)
    _, state = delta_rule_recurrent(keys, keys, 0 * keys, torch.full((len(swaps),), 2.0, dtype=torch.float64), None, H)
    assert_close(state[:, order], H)


@pytest.mark.claim("005:products", "smalearn.linear_attention.delta.delta_rule_chunked")
def test_several_corrections_for_a_token_are_several_tokens():
    Q, K, V, beta, _, H = inputs(10, "none")
    Y, _ = delta_rule_chunked(Q, K, V, beta, None, H)
    state, outputs = H, []
    for t in range(0, 10, 2):
        for step in (t, t + 1):
            state = state - torch.outer(beta[step] * (state @ K[step] - V[step]), K[step])
        outputs.append(state @ Q[t + 1])
    assert_close(Y[1::2], torch.stack(outputs))


@pytest.mark.claim("005:online", "smalearn.linear_attention.delta.delta_rule_recurrent")
def test_it_is_a_step_of_gradient_descent():
    _, K, V, beta, _, H = inputs(1, "none")
    H = H.requires_grad_()
    (gradient,) = torch.autograd.grad(0.5 * (H @ K[0] - V[0]).square().sum(), H)
    assert_close(delta_rule_recurrent(K, K, V, beta, None, H)[1], H - beta[0] * gradient)
    (hebb,) = torch.autograd.grad(-(V[0] @ H @ K[0]), H)
    assert_close(linear_attention_chunked(K, K, V, None, H)[1], H - hebb)


@pytest.mark.claim("005:mesa", "smalearn.linear_attention.recurrent.linear_attention_recurrent")
def test_two_sums_and_a_solve_give_the_best_state_for_all_pairs_so_far():
    Q, K, V, *_ = inputs(12)
    one, ridge, rows = torch.eye(4, dtype=torch.float64), 0.1, []
    for t in range(1, 13):
        _, keys = linear_attention_recurrent(K[:t], K[:t], K[:t])
        _, pairs = linear_attention_recurrent(K[:t], K[:t], V[:t])
        asked = torch.linalg.solve(keys + ridge * one, Q[t - 1])
        extended = torch.cat([K[:t], ridge**0.5 * one]), torch.cat([V[:t], torch.zeros(4, 3, dtype=torch.float64)])
        assert_close(pairs @ asked, torch.linalg.lstsq(*extended).solution.mT @ Q[t - 1])
        rows.append(torch.cat([K[:t] @ asked, asked.new_zeros(12 - t)]))
    assert max(block_ranks(torch.stack(rows))) == 4
