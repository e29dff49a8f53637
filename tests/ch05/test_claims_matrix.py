"""The claims of chapter 05 on models and their matrices, in the order of claims.toml."""

import functools

import pytest
import torch
from cells import printed, shown
from oracles_mixing import decays, entries, full, transition

from ch05.test_claims import N, P, T, each_structure, loop, model
from smalearn.course.ch05.matrix import through_the_state
from smalearn.course.ch05.steps import combine
from smalearn.kernel_attention import softmax_attention
from smalearn.linear_attention import linear_attention_chunked
from smalearn.masks import SemiseparableMask, ToeplitzMask
from smalearn.sma import sma_quadratic
from smalearn.ssm import Semiseparable, block_factors, block_ranks, from_dense, ssm_matrix, ssm_recurrent, ssm_scan
from smalearn.testing import assert_close, random_tensors, relative_rms


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
    assert ranks["SSM (time-varying)"] == ranks["H3"] == 2
    assert ranks["linear attention"] == 4
    assert ranks["softmax attention"] == ranks["convolution (long)"] == ranks["Hyena"] == 8
    A, B, C = (cells[name][:16] for name in "ABC")
    steady = ssm_recurrent(torch.eye(16, dtype=torch.float64), A[:1].expand(16, 2, 2), B, C)[0]
    assert block_ranks(steady).max() == 2  # S4's kernel: Toeplitz and semiseparable
    assert_close(steady[1:, 1:], steady[:-1, :-1])
    keys = torch.cat([torch.zeros(1), cells["w"][:-1, 0]])  # H3: a shift of the keys, S4's kernel, the queries
    assert_close(mixers["H3"], cells["z"][:, :1] * steady * keys)


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
def test_the_operation_is_associative():
    first, second, third = (steps(5, seed) for seed in range(3))
    for left, right in zip(combine(combine(first, second), third), combine(first, combine(second, third)), strict=True):
        assert_close(left, right)
    assert relative_rms(combine(first, second)[0], combine(second, first)[0]) > 0.1
