"""The claims of chapter 05, one test each or more, in the order of claims.toml."""

import functools

import pytest
import torch
from cells import printed, shown
from counting import counted, slope
from oracles_mixing import decays, entries, full, transition, walk

from smalearn.course.ch05.matrix import through_the_state
from smalearn.course.ch05.steps import combine
from smalearn.kernel_attention import softmax_attention
from smalearn.linear_attention import linear_attention_chunked
from smalearn.masks import SemiseparableMask, ToeplitzMask
from smalearn.sma import sma_quadratic
from smalearn.ssd import diagonal_ssm_as_attentions, scalar_ssm_as_attention
from smalearn.ssm import (
    Semiseparable,
    bidiagonal_inverse,
    block_factors,
    block_ranks,
    from_dense,
    product_generators,
    scan_by_doubling,
    scan_by_pairs,
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


@pytest.mark.claim("001:tril-lowrank", "smalearn.ssm.semiseparable.Semiseparable.cost")
def test_its_product_is_linear_in_length_and_rank():
    def cost(length, p):
        one = torch.ones(length, p)
        return Semiseparable(one[:, 0], one, one).cost()

    assert cost(12, 3) == 3 * 12 * 3
    assert slope(lambda length: cost(length, 4), 64, 1024) == pytest.approx(1)
    assert slope(lambda p: cost(64, p), 2, 32) == pytest.approx(1)


@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.ssm_scan")
@pytest.mark.claim("001:ssm", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:eq-ssm", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:structure-of-a", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:multihead", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:eq-ssm-transformation", "smalearn.ssm.recurrent.ssm_recurrent")
@each_structure
@pytest.mark.parametrize("started", [False, True])
def test_the_recurrence_is_the_unrolled_sum(structure, started):
    """Channel by channel, linear in what comes in, and the same for every way to store one transition."""
    A, B, C = model(structure)
    X, h, other, other_h = random_tensors([(T, P), (P, N), (T, P), (P, N)], seed=1)
    h, other_h = (h, other_h) if started else (0 * h, 0 * other_h)
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
    order = [1, 0]
    assert_close(ssm_recurrent(X[:, order], A, B, C, h[order])[0], Y[:, order])
    sums = ssm_recurrent(2 * X - 3 * other, A, B, C, 2 * h - 3 * other_h)
    for found, one, two in zip(sums, (Y, last), ssm_recurrent(other, A, B, C, other_h), strict=True):
        assert_close(found, 2 * one - 3 * two)


@pytest.mark.claim("004:multihead", "smalearn.ssm.recurrent.ssm_recurrent")
@each_structure
def test_heads_run_apart(structure):
    (X,) = random_tensors([(T, P)], seed=1)
    heads = [model(structure, seed=seed) for seed in range(3)]
    batched = ssm_recurrent(X, *(torch.stack(group) for group in zip(*heads, strict=True)))[0]
    for head, operands in zip(batched, heads, strict=True):
        assert_close(head, torch.stack([loop(x, *operands)[0] for x in X.mT], -1))


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


@pytest.mark.claim("001:forward-substitution", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("004:structure-of-a", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("004:constant-state", "smalearn.ssm.semiseparable.Semiseparable.cost")
@pytest.mark.claim("004:asymptotics", "smalearn.ssm.semiseparable.Semiseparable.cost")
@each_structure
@pytest.mark.parametrize(("length", "state"), [(5, N), (20, N), (10, 4), (10, 8), (40, 2)])
def test_the_product_is_linear_in_length_and_for_structured_a_in_the_state(structure, length, state):
    """Slopes 1 in T, and 2, 1, 1 in N, of what one channel takes."""
    A, B = torch.zeros(length, *[state] * len(STRUCTURES[structure])), torch.zeros(length, state)
    counter, _ = counted(ssm_recurrent, B[:, :1], A, B, B)
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
@pytest.mark.parametrize("kind", ["general", "symmetric", "diagonal"])
def test_the_generators_need_the_transpose(kind):
    A, B, C = model("diagonal" if kind == "diagonal" else "general")
    M = Semiseparable((A + A.mT) / 2 if kind == "symmetric" else A, B, C)
    inverse = bidiagonal_inverse(M)
    U, V = product_generators(M)
    U, V = (x if x.ndim == 3 else torch.diag_embed(x) for x in (U, V))
    assert_close((U.flatten(0, 1) @ V.flatten(0, 1).mT).tril(), inverse)
    untransposed = (U.flatten(0, 1) @ V.mT.flatten(0, 1).mT).tril()  # as printed in 001
    assert (relative_rms(untransposed, inverse) < 1e-12) == (kind == "diagonal")
    assert kind == "diagonal" or relative_rms(untransposed, inverse) > 0.1
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


@pytest.mark.claim("003:matrix-mixers", "smalearn.ssm.ranks.block_ranks")
@pytest.mark.claim("003:matrix-mixers", "smalearn.ssm.recurrent.ssm_recurrent")
def test_the_gallery_of_mixers_has_the_named_structures():
    cells = shown("05", "recurrence-loop", "gallery-data", "gallery-layers")
    (X,) = random_tensors([(16, 3)], seed=20)
    mixers = {name: layer(torch.eye(16, dtype=torch.float64)) for name, layer in cells["LAYERS"].items()}
    for name, layer in cells["LAYERS"].items():
        assert_close(layer(X), mixers[name] @ X)
    convolution, hyena = mixers["convolution (long)"], mixers["Hyena"]
    assert_close(convolution, ToeplitzMask(convolution[:, 0]).dense(torch.float64).tril())
    assert_close(hyena / cells["z"][:, :1] / cells["w"][:, 0], convolution)
    ranks = {name: block_ranks(M, diagonal=-1).max().item() for name, M in mixers.items()}
    assert ranks["SSM (time-varying)"] == 2
    assert ranks["softmax attention"] == ranks["convolution (long)"] == ranks["Hyena"] == 8
    A, B, C = (cells[name][:16] for name in "ABC")
    steady = ssm_recurrent(torch.eye(16, dtype=torch.float64), A[:1].expand(16, 2, 2), B, C)[0]
    assert block_ranks(steady).max() == 2  # S4's kernel: Toeplitz and semiseparable
    assert_close(steady[1:, 1:], steady[:-1, :-1])


@pytest.mark.claim("004:ssm-shapes", "smalearn.ssm.recurrent.ssm_matrix")
def test_constant_parameters_make_a_convolution():
    A, B, C = model()
    assert [x.shape for x in (A, B, C)] == [(T, N, N), (T, N), (T, N)]
    (x,) = random_tensors([(T, 1)], seed=1)
    a, b, c = A[1], B[1], C[1]
    kernel = [c @ torch.linalg.matrix_power(a, k) @ b for k in range(T)]
    expected = torch.stack([sum(kernel[t - s] * x[s] for s in range(t + 1)) for t in range(T)])
    M = ssm_matrix(a.expand(T, N, N), b.expand(T, N), c.expand(T, N))
    assert_close(M.matmul(x), expected)
    assert_close(M.dense()[1:, 1:], M.dense()[:-1, :-1])
    selective = ssm_matrix(A, B, C).dense()
    assert_close(selective, entries(A, B, C))
    assert relative_rms(selective[1:, 1:], selective[:-1, :-1]) > 0.1


@pytest.mark.claim("004:constant-state", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.parametrize("length", [10, 10_000])
def test_the_state_does_not_grow(length):
    (X,) = random_tensors([(length, P)])
    a, one = torch.full((length,), 0.5).double(), torch.ones(length, N, dtype=torch.float64)
    _, state = ssm_recurrent(X, a, one, one)
    assert state.numel() == N * P  # N for each channel, not N in all
    recent = sum(0.5**k * X[length - 1 - k] for k in range(min(length, 60)))
    assert_close(state, recent[:, None].expand(P, N))


@pytest.mark.claim("004:matrix-transformation", "smalearn.kernel_attention.attention.softmax_attention")
@pytest.mark.claim("004:matrix-transformation", "smalearn.ssm.semiseparable.Semiseparable.dense")
def test_examples_of_matrix_transformations():
    cells = shown("05", "recurrence-loop", "gallery-data", "gallery-layers")
    eye = torch.eye(16, dtype=torch.float64)
    mixers = {name: layer(eye) for name, layer in cells["LAYERS"].items()}
    attention = mixers["softmax attention"]
    assert_close(softmax_attention(cells["z"], cells["w"], eye), attention)
    assert_close(attention.sum(-1), torch.ones(16, dtype=torch.float64))
    assert relative_rms(softmax_attention(2 * cells["z"], cells["w"], eye), attention) > 0.1  # depends on the data
    assert torch.equal(mixers["MLP-Mixer (linear part)"], cells["dense"])  # does not
    left, right = cells["l4"], cells["r4"]
    monarch = torch.einsum("bac,cbd->abcd", left, right).reshape(16, 16)
    assert_close(mixers["Monarch Mixer"], monarch)
    slices = monarch.reshape(4, 4, 4, 4).permute(1, 2, 0, 3)
    assert torch.linalg.matrix_rank(slices, rtol=1e-10).max() == 1
    model = Semiseparable(*(cells[name][:16] for name in "ABC"))
    assert_close(model.dense(), mixers["SSM (time-varying)"])
    assert block_ranks(mixers["SSM (time-varying)"]).max() == 2


@pytest.mark.claim("004:lstm-not-mixer", "smalearn.ssm.recurrent.ssm_recurrent")
def test_what_is_linear_once_its_parameters_are_fixed():
    A, B, C = model(length=16)
    first, second = random_tensors([(16, P), (16, P)], seed=1)
    sums = [ssm_recurrent(X, A, B, C)[0] for X in (first, second, first + second)]
    assert_close(sums[2], sums[0] + sums[1])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(P, P, bias=False).double()
        single = torch.nn.LSTM(1, 1).double()
    with torch.no_grad():
        sums = [lstm(X)[0] for X in (first, second, first + second)]
    assert relative_rms(sums[2], sums[0] + sums[1]) > 1e-2
    # A matrix that has seen X and Y reproduces anything, and says nothing about another input.
    M = sums[0] @ torch.linalg.pinv(first)
    assert_close(M @ first, sums[0])
    assert relative_rms(M @ second, sums[1]) > 0.1
    # Causal too, for one channel whose first input is not 0: the column of x_0 is enough.
    with torch.no_grad():
        y = single(first[:, :1])[0]
    causal = torch.cat([y / first[0, 0], torch.zeros(16, 15, dtype=torch.float64)], 1)
    assert torch.equal(causal, causal.tril())
    assert_close(causal @ first[:, :1], y)


@pytest.mark.claim("004:eq-semiseparable", "smalearn.ssm.semiseparable.Semiseparable.dense")
@each_structure
def test_the_entries_of_the_matrix(structure):
    A, B, C = model(structure)
    M = Semiseparable(A, B, C).dense()
    assert_close(M, entries(A, B, C))
    for s in range(T):
        unit = torch.zeros(T, dtype=torch.float64)
        unit[s] = 1
        assert_close(M[:, s], loop(unit, A, B, C)[0])


@pytest.mark.claim("004:fig-matrix", "smalearn.ssm.semiseparable.Semiseparable.dense")
def test_the_matrix_as_displayed():
    A, B, C = model(length=4)
    panel = Semiseparable(A, B, C).dense()
    entry = shown("05", "unroll-symbols")["entry"]
    rows = printed("05", "unroll-symbols").splitlines()
    values = {f"{name}{i}": x[i] for name, x in (("A", A), ("B", B)) for i in range(4)} | {
        f"C{i}ᵀ": C[i] for i in range(4)
    }
    assert entry(3, 0) == "C3ᵀ A3 A2 A1 B0"  # 004 prints C_T in the last row
    for t in range(4):
        for s in range(4):
            text = entry(t, s)
            assert rows[t].split("   ")[0].strip() == entry(t, 0)
            assert text in rows[t]
            value = functools.reduce(torch.matmul, [values[symbol] for symbol in text.split()]) if text != "0" else 0
            assert_close(panel[t, s], torch.as_tensor(value, dtype=torch.float64))


@pytest.mark.claim("004:semiseparable-rank", "smalearn.ssm.semiseparable.Semiseparable.dense")
@pytest.mark.claim("004:semiseparable-rank", "smalearn.ssm.ranks.from_dense")
def test_the_fifth_singular_value():
    z, B, C, noise = random_tensors([(32, 4, 4), (32, 4), (32, 4), (32, 32)])
    M = Semiseparable(0.95 * torch.linalg.qr(z)[0], B, C).dense()
    for k in range(32):
        sizes = torch.linalg.svdvals(M[k:, : k + 1])
        assert sizes[4:].sum() < 1e-12 * sizes[0]
    assert block_ranks(M).max() == 4
    assert block_ranks(noise.tril()).tolist() == [min(32 - k, k + 1) for k in range(32)]
    found = from_dense(M)  # low ranks promise a model
    assert found.state == 4
    assert_close(found.dense(), M)


@pytest.mark.claim("004:semiseparable-rank", "smalearn.course.ch05.matrix.through_the_state")
@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_block_factors_at_the_state(k):
    A, B, C = model()
    left, right = through_the_state(A, B, C, k)
    assert (left.shape, right.shape) == ((T - k, N), (N, k))
    assert_close(left @ right, entries(A, B, C)[k:, :k])
    # Three factors, for the entries until time l: what reads, what moves, what writes.
    outputs = torch.stack([C[t] @ transition(A, k, t) for t in range(k, T)])
    assert_close(left, outputs @ A[k])
    (x,) = random_tensors([(k,)], seed=1)
    assert_close(right @ x, loop(x, A[:k], B[:k], C[:k])[1][-1])


@pytest.mark.claim("004:all-algorithms", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:all-algorithms", "smalearn.ssm.scan.ssm_scan")
@pytest.mark.claim("004:all-algorithms", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("004:all-algorithms", "smalearn.linear_attention.chunked.linear_attention_chunked")
def test_all_algorithms_multiply_by_one_matrix():
    A, B, C = model("scalar")
    log_a = -A.log().abs()
    (X,) = random_tensors([(T, P)], seed=1)
    expected = entries(log_a.exp(), B, C) @ X
    results = [
        ssm_recurrent(X, log_a.exp(), B, C)[0],
        ssm_scan(X, log_a.exp(), B, C)[0],
        sma_quadratic(C, B, X, SemiseparableMask(log_a)),
        linear_attention_chunked(C, B, X, log_a, chunk_len=3)[0],
    ]
    for Y in results:
        assert_close(Y, expected)


@pytest.mark.claim("004:all-algorithms", "smalearn.ssm.factors.block_factors")
def test_the_factorisation_behind_each_algorithm():
    A, B, C = model("scalar")
    M = Semiseparable(A, B, C)
    expected = entries(A, B, C)
    outputs, system, inputs = block_factors(M)
    eye = torch.eye(T * N, dtype=torch.float64)
    shift = eye - system
    # Recurrence: one elementary factor for each step, the last one leftmost.
    recurrence = eye
    for t in range(1, T):
        step = eye.clone()
        step[t * N : (t + 1) * N, (t - 1) * N : t * N] = full(A, N)[t]
        recurrence = step @ recurrence
    # Scan by doubling: (I - S)^-1 = ... (I + S^4)(I + S^2)(I + S).
    scan = functools.reduce(torch.matmul, [eye + torch.linalg.matrix_power(shift, 2**k) for k in (2, 1, 0)])
    for factors in (recurrence, scan):
        assert_close(outputs @ factors @ inputs, expected)
    # Plain product: the entries. Chunks: triangles on the diagonal, products through a state below them.
    assert_close(decays(A) * (C @ B.mT), expected)
    chunked = torch.zeros(T, T, dtype=torch.float64)
    for k in (0, 3, 6):
        chunk = slice(k, min(k + 3, T))
        chunked[chunk, chunk] = entries(A[chunk], B[chunk], C[chunk])
        if k:
            left, right = through_the_state(full(A, N), B, C, k)
            chunked[chunk, :k] = left[:3] @ right
    assert_close(chunked, expected)


@pytest.mark.claim("004:bidirectional", "smalearn.ssm.semiseparable.Semiseparable.matmul")
def test_both_directions_are_quasiseparable():
    forward, backward = (Semiseparable(*model(length=12, seed=seed)) for seed in (0, 1))
    diagonal, X = random_tensors([(12, 1), (12, P)], seed=2)
    lower, upper = entries(forward.A, forward.B, forward.C), entries(backward.A, backward.B, backward.C).mT
    dense = lower.tril(-1) + upper.triu(1) + torch.diag(diagonal[:, 0])
    own = ((forward.C * forward.B) + (backward.C * backward.B)).sum(-1, keepdim=True)
    assert_close(forward.matmul(X) + backward.transpose_matmul(X) + (diagonal - own) * X, dense @ X)
    reversed_scan = ssm_scan(X.flip(0), *(backward.flipped().__dict__[name] for name in "ABC"))[0].flip(0)
    assert_close(reversed_scan, upper @ X)
    assert block_ranks(dense, diagonal=-1).max() == block_ranks(dense.mT, diagonal=-1).max() == N
    assert block_ranks(dense).max() > N  # with the diagonal it is not semiseparable of order N


@pytest.mark.claim("004:interpretability", "smalearn.ssm.semiseparable.Semiseparable.dense")
def test_a_trained_model_looks_at_the_matching_value():
    cells = shown("05", "recall-task", "recall-train")
    tokens, answer, place = cells["recall"](300, cells["generator"])
    with torch.no_grad():
        X, a, B, C = (x.double() for x in cells["layer"](tokens, *cells["weights"]))
    maps = ssm_matrix(a, B, C).dense()
    rows = torch.stack([a[:, j + 1 :].prod(-1) * (C[:, -1] * B[:, j]).sum(-1) for j in range(11)], -1)
    assert_close(maps[:, -1], rows)
    assert (maps[:, -1].argmax(-1) == place).double().mean() > 0.95
    read = torch.einsum("bs,bsv->bv", maps[:, -1], X)
    assert (read.argmax(-1) == answer).double().mean() > 0.95


def steps(length, seed=0):
    """Elements of a scan, as the exercise writes them: A (T, N, N) and b (T, N, P)."""
    return tuple(random_tensors([(length, N, N), (length, N, P)], seed))


@pytest.mark.claim("004:associative-scan", "smalearn.course.ch05.steps.combine")
@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.scan_by_pairs")
@pytest.mark.claim("004:associative-scan", "smalearn.ssm.scan.scan_by_doubling")
@pytest.mark.parametrize("length", range(1, 34))
def test_scans_give_all_states(length):
    A, b = steps(length)
    A = 0.5 * A
    states = [b[0]]
    for t in range(1, length):
        states.append(A[t] @ states[-1] + b[t])
    for scan in (scan_by_pairs, scan_by_doubling):
        products, found = scan(combine, (A, b))
        assert_close(found, torch.stack(states))
        assert_close(products[-1], transition(A, -1, length - 1))


@pytest.mark.claim("004:associative-scan", "smalearn.course.ch05.steps.combine")
def test_the_operation_is_associative():
    first, second, third = (steps(5, seed) for seed in range(3))
    for left, right in zip(combine(combine(first, second), third), combine(first, combine(second, third)), strict=True):
        assert_close(left, right)
    assert relative_rms(combine(first, second)[0], combine(second, first)[0]) > 0.1
