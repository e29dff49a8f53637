"""The claims of chapter 05 on the factors of a semiseparable matrix, in the order of claims.toml."""

import pytest
import torch
from counting import counted
from oracles_mixing import entries, full, transition, walk

from smalearn.masks import SemiseparableMask
from smalearn.ssd import diagonal_ssm_as_attentions, scalar_ssm_as_attention
from smalearn.ssm import (
    Semiseparable,
    bidiagonal_inverse,
    block_factors,
    block_ranks,
    product_generators,
    ssm_matrix,
    ssm_recurrent,
    ssm_scan,
    ssm_states,
    tril_factors,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

T, N, P = 7, 3, 2
STRUCTURES = {"general": (N, N), "diagonal": (N,), "scalar": ()}
each_structure = pytest.mark.parametrize("structure", STRUCTURES)


def model(structure="general", length=T, seed=0):
    """A, B and C; the transitions are invertible, do not commute, and are of size about 1."""
    z, B, C = random_tensors([(length, *STRUCTURES[structure]), (length, N), (length, N)], seed)
    if structure == "general":
        return torch.eye(N, dtype=torch.float64) + 0.3 * z, B, C
    return (0.3 * z).exp(), B, C


def loop(x, *operands):
    """One channel x (T,): outputs, and the state after every token."""
    Y, states = walk(x[:, None], *operands)
    return Y[:, 0], torch.stack(states[1:])[:, 0]


@pytest.mark.claim("001:tril-lowrank", "smalearn.ssm.semiseparable.Semiseparable.matmul")
@pytest.mark.claim("001:tril-lowrank", "smalearn.ssm.ranks.block_ranks")
@pytest.mark.parametrize("p", [1, 3])
def test_a_triangle_of_a_low_rank_matrix_is_a_running_sum(p):
    U, V, x = random_tensors([(12, p), (12, p), (12, 2)])
    M = Semiseparable(torch.ones(12, dtype=torch.float64), V, U)
    assert_close(M.matmul(x), (U @ V.mT).tril() @ x)
    assert_close(M.matmul(x), torch.einsum("tn,tnp->tp", U, torch.einsum("tn,tp->tnp", V, x).cumsum(0)))
    # two sides: tril(U V^T) + triu(V U^T, 1) is symmetric
    dense = (U @ V.mT).tril() + (V @ U.mT).triu(1)
    diagonal = (U * V).sum(-1, keepdim=True)
    assert_close(dense, dense.mT)
    assert_close(M.matmul(x) + M.transpose_matmul(x) - diagonal * x, dense @ x)
    ranks = [min(t + 1, 12 - t, p) for t in range(12)]
    assert block_ranks((U @ V.mT).tril()).tolist() == ranks


@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.ssm_scan")
@pytest.mark.claim("001:ssm", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:eq-ssm", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:structure-of-a", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:multihead", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:eq-ssm-transformation", "smalearn.ssm.recurrent.ssm_recurrent")
@each_structure
@pytest.mark.parametrize("started", [False, True])
def test_the_recurrence_is_the_unrolled_sum(structure, started):
    """Channel by channel, and the same for every way to store one transition."""
    A, B, C = model(structure)
    X, h = random_tensors([(T, P), (P, N)], seed=1)
    h = h if started else 0 * h
    start = h if started else None
    Y, last = ssm_recurrent(X, A, B, C, start)
    assert A.shape == (T, *STRUCTURES[structure])
    assert started or relative_rms(entries(A, B, C) @ X, Y) < 1e-12
    for t in range(T):
        state = sum(torch.outer(X[s], transition(full(A, N), s, t) @ B[s]) for s in range(t + 1))
        state = state + h @ transition(full(A, N), -1, t).mT
        assert_close(Y[t], state @ C[t])
    assert_close(last, state)
    for p in range(P):
        y, states = loop(X[:, p], A, B, C, h[p : p + 1])
        assert_close(Y[:, p], y)
        assert_close(last[p], states[-1])
    for same in (full(A, N), A[:, None].expand(T, N) if structure == "scalar" else A):
        assert_close(ssm_recurrent(X, same, B, C, start)[0], Y)
    for found, expected in zip(ssm_scan(X, A, B, C, start), (Y, last), strict=True):
        assert_close(found, expected)


@pytest.mark.claim("001:bidiagonal", "smalearn.ssm.factors.block_factors")
@pytest.mark.claim("001:forward-substitution", "smalearn.ssm.recurrent.ssm_states")
@pytest.mark.claim("001:states", "smalearn.ssm.recurrent.ssm_states")
@pytest.mark.claim("001:states", "smalearn.ssm.factors.product_generators")
@pytest.mark.claim("001:outputs", "smalearn.ssm.factors.block_factors")
@each_structure
def test_the_states_solve_a_bidiagonal_system(structure):
    A, B, C = model(structure)
    (x,) = random_tensors([(T,)], seed=1)
    y, states = loop(x, A, B, C)
    outputs, system, inputs = block_factors(Semiseparable(A, B, C))
    assert system.shape == (T * N, T * N)
    assert_close(inputs @ x, (B * x[:, None]).flatten())
    assert_close(system @ states.flatten(), inputs @ x)
    blocks = system.unflatten(0, (T, N)).unflatten(2, (T, N)).transpose(1, 2)
    for t in range(T):
        for s in range(T):
            expected = {0: torch.eye(N, dtype=torch.float64), 1: -full(A, N)[t]}.get(t - s, torch.zeros(N, N).double())
            assert torch.equal(blocks[t, s], expected)
    other = A.clone()
    other[0] += 1  # A_0 acts on h_(-1) = 0 alone
    assert torch.equal(block_factors(Semiseparable(other, B, C))[1], system)
    # Solved by forward substitution, by the recurrence, and with the generators of the inverse.
    U, V = product_generators(Semiseparable(full(A, N), B, C))
    solved = torch.linalg.solve_triangular(system, (inputs @ x)[:, None], upper=False)[:, 0]
    for found in (solved, (U.flatten(0, 1) @ V.flatten(0, 1).mT).tril() @ inputs @ x):
        assert_close(found.unflatten(0, (T, N)), states)
    assert_close(ssm_states(x[:, None], A, B)[:, 0], states)
    M = outputs @ torch.linalg.inv(system) @ inputs
    assert torch.equal(outputs, torch.block_diag(*C[:, None]))
    assert_close(M, entries(A, B, C))
    assert_close(M @ x, y)


@pytest.mark.claim("001:tril-lowrank", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("001:forward-substitution", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("004:structure-of-a", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("004:constant-state", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("004:asymptotics", "smalearn.ssm.semiseparable.Semiseparable.cost")
@each_structure
@pytest.mark.parametrize(("length", "state"), [(5, N), (20, N), (10, 4), (10, 8), (40, 2)])
def test_the_product_is_linear_in_length_and_for_structured_a_in_the_state(structure, length, state):
    """Slopes 1 in T, and 2, 1, 1 in N, of what one channel takes."""
    A, B = torch.zeros(length, *[state] * len(STRUCTURES[structure])), torch.zeros(length, state)
    counter, (_, last) = counted(ssm_recurrent, B[:, :1], A, B, B)
    assert last.numel() == state
    moved = state**2 if structure == "general" else state
    assert counter.macs == ssm_matrix(A, B, B).cost() == length * (moved + 2 * state)


@pytest.mark.claim("001:id-inverse", "smalearn.ssm.factors.bidiagonal_inverse")
@each_structure
def test_the_inverse_holds_the_products(structure):
    A, B, C = model(structure)
    M = Semiseparable(A, B, C)
    inverse = bidiagonal_inverse(M)
    assert_close(inverse, torch.linalg.inv(block_factors(M)[1]))
    blocks = inverse.unflatten(0, (T, N)).unflatten(2, (T, N)).transpose(1, 2)
    for t in range(T):
        for s in range(t + 1):
            assert_close(blocks[t, s], transition(full(A, N), s, t))
    assert torch.equal(inverse, inverse.tril())  # entry-wise and block-wise triangle agree
    A[3] = 0  # no generators, but an inverse
    assert_close(bidiagonal_inverse(Semiseparable(A, B, C)), torch.linalg.inv(block_factors(Semiseparable(A, B, C))[1]))


@pytest.mark.claim("001:id-inverse", "smalearn.ssm.factors.product_generators")
@pytest.mark.claim("001:id-inverse", "smalearn.ssm.factors.tril_factors")
@pytest.mark.parametrize("kind", ["general", "symmetric", "diagonal", "scalar"])
def test_the_generators_need_the_transpose(kind):
    A, B, C = model("general" if kind == "symmetric" else kind)
    M = Semiseparable((A + A.mT) / 2 if kind == "symmetric" else A, B, C)
    inverse = bidiagonal_inverse(M)
    U, V = (full(x, N) for x in product_generators(M))
    assert_close((U.flatten(0, 1) @ V.flatten(0, 1).mT).tril(), inverse)
    untransposed = (U.flatten(0, 1) @ V.mT.flatten(0, 1).mT).tril()  # as printed in 001
    commute = kind in ("diagonal", "scalar")
    assert relative_rms(untransposed, inverse) < 1e-12 if commute else relative_rms(untransposed, inverse) > 0.1
    queries, keys = tril_factors(M)
    assert_close((queries @ keys.mT).tril(), entries(M.A, B, C))


@pytest.mark.claim("001:generator-overflow", "smalearn.ssm.factors.product_generators")
@pytest.mark.parametrize(
    ("a", "dtype", "step"),
    [(0.5, torch.float64, 1024), (0.9, torch.float64, 6737), (0.5, torch.float32, 128), (0.9, torch.float32, 843)],
)
def test_the_generators_overflow(a, dtype, step):
    one = torch.ones(step + 5, 1, dtype=dtype)
    M = Semiseparable(a * one[:, 0], one, one)
    _, V = product_generators(M)
    assert V.isinf().nonzero()[0, -1].item() == step
    # the matrix, the scan and sums of logarithms are at ease
    gap = torch.arange(step + 5).double()
    exact = torch.where(gap >= 0, torch.tensor(a, dtype=dtype).double() ** gap, 0)
    impulse = torch.zeros_like(one)
    impulse[0] = 1
    x = one.cumsum(0).sin()
    for form in (ssm_recurrent, ssm_scan):
        assert_close(form(impulse, M.A, M.B, M.C)[0][:, 0], exact)
    expected = SemiseparableMask(M.A.double().log()).matmul(x.double())
    assert_close(M.matmul(x), expected)


@pytest.mark.claim("001:inverse-cost", "smalearn.ssm.factors.bidiagonal_inverse")
@pytest.mark.claim("001:inverse-cost", "smalearn.ssm.factors.product_generators")
def test_the_inverse_as_a_matrix_is_quadratic_and_its_generators_are_linear():
    for length in (4, 9):
        M = Semiseparable(*model(length=length))
        blocks = bidiagonal_inverse(M).unflatten(0, (length, N)).unflatten(2, (length, N))
        assert (blocks != 0).any(3).any(1).sum() == length * (length + 1) // 2
        U, V = product_generators(M)
        assert len(U) + len(V) == 2 * length
        assert_close(U[-1], transition(M.A, 0, length - 1))
        (x,) = random_tensors([(length * N, 2)], seed=1)
        running = (V.mT @ x.unflatten(0, (length, N))).cumsum(0)  # applying the inverse, one pass
        assert_close((U @ running).flatten(0, 1), torch.linalg.solve(block_factors(M)[1], x))


@pytest.mark.claim("001:listing-ssm", "smalearn.ssm.factors.block_factors")
@pytest.mark.parametrize("kind", ["multiples of the identity", "general"])
def test_the_second_listing(kind):
    length, n = 10, 6
    numbers, z, B, C, x = random_tensors([(length - 1,), (length - 1, n, n), (length, n), (length, n), (length,)])
    A_blks = [number.abs() * torch.eye(n, dtype=torch.float64) for number in numbers]
    if kind == "general":
        A_blks = list(torch.eye(n, dtype=torch.float64) + 0.1 * z)
    h_blks = [B[0] * x[0]]
    for i in range(1, length):
        h_blks.append(A_blks[i - 1] @ h_blks[i - 1] + B[i] * x[i])
    y_blks = torch.stack([c @ h for c, h in zip(C, h_blks, strict=True)])

    def generators(order):
        products = [torch.eye(n, dtype=torch.float64)]
        for a in A_blks:
            products.append(a @ products[-1] if order == "later on the left" else products[-1] @ a)
        return torch.cat(products), torch.cat([torch.linalg.inv(block).mT for block in products])

    A = torch.stack([torch.zeros(n, n, dtype=torch.float64), *A_blks])
    outputs, _, inputs = block_factors(Semiseparable(A, B, C))
    U, V = generators("later on the left")
    states = (U @ V.mT).tril() @ inputs @ x
    assert_close(states, torch.cat(h_blks))
    assert_close(outputs @ states, y_blks)
    U, V = generators("prod(A_blks[1:i-1])")
    same = relative_rms((U @ V.mT).tril() @ inputs @ x, torch.cat(h_blks)) < 1e-12
    assert same == (kind != "general")


@pytest.mark.claim("001:diagonal-sum", "smalearn.ssd.scalar_ssm_as_attention")
@pytest.mark.claim("001:diagonal-sum", "smalearn.ssd.diagonal_ssm_as_attentions")
def test_a_diagonal_model_is_a_sum_of_attentions():
    A, B, C = model("diagonal")
    log_a = -A.log().abs()
    (X,) = random_tensors([(T, P)], seed=1)
    expected = torch.stack([loop(x, log_a.exp(), B, C)[0] for x in X.mT], -1)
    assert_close(diagonal_ssm_as_attentions(X, log_a, B, C), expected)
    equal = log_a[:, :1].expand(T, N)
    collapsed = (SemiseparableMask(log_a[:, 0]).dense(torch.float64) * (C @ B.mT)) @ X
    assert_close(diagonal_ssm_as_attentions(X, equal, B, C), collapsed)
    assert_close(scalar_ssm_as_attention(X, log_a[:, 0], B, C), collapsed)


@pytest.mark.claim("001:diagonal-sum", "smalearn.ssm.semiseparable.Semiseparable.dense")
def test_no_single_mask_fits():
    A, B, C = model("diagonal")
    B, C = B.exp(), C.exp()

    def defect(a):
        L = Semiseparable(a, B, C).dense() / (C @ B.mT)
        return relative_rms(L[4:, 4:5] @ L[4:5, :4], L[4:, :4])

    assert defect(A) > 1e-2
    assert defect(A[:, 0]) < 1e-12
