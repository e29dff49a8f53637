"""The claims of chapter 06, one test each or more, in the order of claims.toml."""

import itertools
import math

import pytest
import torch
from counting import counted, slope
from oracles_mixing import decays, entries, walk
from oracles_ssd import INF, gradients
from oracles_ssd import inputs as drawn

from smalearn.course.ch06.mask import decay_mask
from smalearn.course.ch06.pieces import chunk_states, hand_over, read_states
from smalearn.course.ch06.whole import best_chunk_len, ssd_in_chunks
from smalearn.linear_attention import linear_attention_parallel
from smalearn.linear_attention.chunked import pass_states
from smalearn.masks import SemiseparableMask, decay_matrix, segsum
from smalearn.masks.decay import split_chunks
from smalearn.sma import QUADRATIC, sma_linear, sma_orders, sma_quadratic
from smalearn.ssd import scalar_ssm_as_attention, ssd_chunked, ssd_quadratic, ssd_recurrent
from smalearn.ssm import (
    Semiseparable,
    bidiagonal_inverse,
    block_factors,
    block_ranks,
    ssm_matrix,
    ssm_recurrent,
    ssm_states,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

T, N, P = 12, 3, 2
KINDS = ["mild", "ones", "resets", "strong"]
each_chunking = pytest.mark.parametrize(("kind", "chunk_len"), [*itertools.product(KINDS, [1, 3, 4, 12])])


def inputs(length=T, kind="mild", **more):
    """X, log_a, B, C and a state; mild decays leave something of the first token at the end."""
    X, log_a, *others = drawn(length, kind, state=N, head_dim=P, **more)
    return X, log_a / 4 if kind == "mild" else log_a, *others


def scanned(X, log_a, B, C, state=None):
    """One token after the other: Y, and the states before the first token and after every one."""
    return walk(X, log_a.exp(), B, C, state)


def differences(log_a):
    """Segment sums as 004 computes them: a difference of running sums, masked."""
    sums = log_a.cumsum(-1)
    future = torch.ones(*sums.shape, sums.shape[-1]).triu(1) > 0
    return (sums[..., :, None] - sums[..., None, :]).masked_fill(future, -INF)


def listing(X, A, B, C, block_len=64, initial_states=None):
    """004's listing: (batch, length, heads, ·), whole blocks only, states passed on by a matrix over blocks."""
    if X.shape[1] % block_len:
        raise AssertionError("the length is no multiple of block_len")
    x, b, c = (z.unflatten(1, (-1, block_len)).transpose(2, 3) for z in (X, B, C))  # (batch, chunks, heads, l, ·)
    a = A.unflatten(1, (-1, block_len)).transpose(2, 3)
    sums = a.cumsum(-1)
    inside = (differences(a).exp() * (c @ b.mT)) @ x
    states = ((sums[..., -1:] - sums).exp()[..., None] * x).mT @ b
    first = torch.zeros_like(states[:, :1]) if initial_states is None else initial_states
    states = torch.cat([first, states], dim=1)
    totals = torch.nn.functional.pad(sums[..., -1].transpose(1, 2), (1, 0))  # (batch, heads, 1 + chunks)
    states = torch.einsum("bhzc,bchpn->bzhpn", differences(totals).exp(), states)
    through = sums.exp()[..., None] * (c @ states[:, :-1].mT)
    return (inside + through).transpose(2, 3).flatten(1, 2), states[:, -1]


@pytest.mark.claim("004:eq-ssd-attention", "smalearn.ssd.ssd_quadratic")
@pytest.mark.claim("004:duality", "smalearn.ssd.ssd_recurrent")
@pytest.mark.claim("004:duality", "smalearn.ssd.ssd_quadratic")
@pytest.mark.claim("004:all-ones", "smalearn.masks.decay.segsum")
@pytest.mark.claim("004:all-ones", "smalearn.ssd.ssd_quadratic")
@pytest.mark.claim("004:all-ones", "smalearn.linear_attention.parallel.linear_attention_parallel")
@pytest.mark.claim("001:sma-form", "smalearn.ssd.scalar_ssm_as_attention")
@pytest.mark.claim("001:sma-form", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("000:same-duality", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("000:same-duality", "smalearn.sma.sma_linear")
@pytest.mark.claim("000:same-duality", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("000:same-duality", "smalearn.ssm.semiseparable.Semiseparable.dense")
@pytest.mark.claim("001:scalar-ssm", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:1ss-sma", "smalearn.masks.base.Mask.matmul")
@pytest.mark.claim("004:1ss-sma", "smalearn.sma.sma_linear")
@pytest.mark.claim("004:1ss-sma", "smalearn.ssm.recurrent.ssm_states")
@pytest.mark.parametrize("kind", KINDS)
def test_four_computations_are_one(kind):
    X, log_a, B, C, _ = inputs(kind=kind)
    Y, states = scanned(X, log_a, B, C)
    mask = SemiseparableMask(log_a)
    assert_close(sma_quadratic(C, B, X, mask), Y)
    assert_close(sma_linear(C, B, X, mask), Y)
    assert_close(ssm_recurrent(X, log_a.exp(), B, C)[0], Y)
    assert_close(ssm_matrix(log_a.exp(), B, C).dense() @ X, Y)
    for form in (ssd_recurrent, ssd_quadratic):
        assert_close(form(X, log_a, B, C)[0], Y)
    assert_close(scalar_ssm_as_attention(X, log_a, B, C), Y)
    if kind == "ones":  # causal linear attention
        assert torch.equal(segsum(log_a).exp(), torch.ones(T, T, dtype=torch.float64).tril())
        assert_close(linear_attention_parallel(C, B, X), Y)
    Z = torch.einsum("sp,sn->spn", X, B)
    H = mask.matmul(Z.flatten(1)).unflatten(1, (P, N))
    for found in (torch.einsum("ts,spn->tpn", mask.dense(torch.float64), Z), ssm_states(X, log_a.exp(), B), H):
        assert_close(found, torch.stack(states[1:]))
    parts = [scanned(X, log_a, B[:, [n]], C[:, [n]])[0] for n in range(N)]  # they share a decay and do not mix
    assert_close(sum(parts), Y)


def bidiagonal(a):
    """The (T, T) matrix of ones, with -a_1, ..., -a_(T-1) below them."""
    return torch.eye(len(a), dtype=a.dtype) - torch.diag(a[1:], -1)


@pytest.mark.claim("001:kronecker", "smalearn.ssm.factors.block_factors")
def test_the_shuffle_exchanges_the_orders():
    _, log_a, B, C, _ = inputs()
    a, eye = log_a.exp(), torch.eye(N, dtype=torch.float64)
    by_time, by_state = (block_factors(Semiseparable(a, B, C), order)[1] for order in ("time", "state"))
    assert torch.equal(by_time, torch.kron(bidiagonal(a), eye))
    assert torch.equal(by_state, torch.kron(eye, bidiagonal(a)))
    shuffle = torch.eye(T * N, dtype=torch.float64).view(N, T, -1).transpose(0, 1).flatten(0, 1)
    assert torch.equal(shuffle @ by_state @ shuffle.mT, by_time)


@pytest.mark.claim("001:kron-inverse", "smalearn.masks.decay.decay_matrix")
@pytest.mark.claim("001:kron-inverse", "smalearn.masks.decay.segsum")
@pytest.mark.claim("001:kron-inverse", "smalearn.ssm.factors.bidiagonal_inverse")
@pytest.mark.parametrize("kind", KINDS)
def test_the_inverse_is_the_mask(kind):
    _, log_a, B, C, _ = inputs(kind=kind)
    a, eye = log_a.exp(), torch.eye(N, dtype=torch.float64)
    L = torch.linalg.inv(bidiagonal(a)).contiguous()
    assert_close(decay_matrix(log_a), L)
    assert_close(segsum(log_a).exp(), L)
    M = Semiseparable(a, B, C)
    assert_close(bidiagonal_inverse(M, "state"), torch.kron(eye, L))
    if kind in ("mild", "ones"):
        u = torch.cat([torch.ones(1).double(), a[1:]]).cumprod(0)
        assert_close(torch.outer(u, 1 / u).tril(), L)


@pytest.mark.claim("001:id-hadamard", "smalearn.ssm.factors.block_factors")
@pytest.mark.parametrize("kind", KINDS)
def test_diagonals_around_the_mask(kind):
    _, log_a, B, C, _ = inputs(kind=kind)
    left, system, right = block_factors(Semiseparable(log_a.exp(), B, C), "state")
    assert torch.equal(left.mT, torch.cat([C[:, n].diag() for n in range(N)]))
    assert torch.equal(right, torch.cat([B[:, n].diag() for n in range(N)]))
    L, expected = torch.linalg.inv(bidiagonal(log_a.exp())), entries(log_a.exp(), B, C)
    assert_close(left @ torch.linalg.inv(system) @ right, expected)
    assert_close(sum(C[:, n].diag() @ L @ B[:, n].diag() for n in range(N)), expected)
    assert_close(sum(torch.outer(C[:, n], B[:, n]) * L for n in range(N)), expected)
    b, c, M = random_tensors([(T,), (T,), (T, T)], seed=2)
    assert_close(c.diag() @ M @ b.diag(), torch.outer(c, b) * M)


@pytest.mark.claim("001:listing-sma", "smalearn.ssm.semiseparable.Semiseparable.matmul")
def test_the_third_listing_of_001():
    length, state = 10, 6
    decays, b, c, x = random_tensors([(length - 1,), (state, length), (state, length), (length,)])
    a = torch.eye(length, dtype=torch.float64) - torch.diag(decays.sigmoid(), -1)
    A = torch.kron(torch.eye(state, dtype=torch.float64), a)
    B, C = (torch.cat([torch.diag(block) for block in blocks]) for blocks in (b, c))
    M, inverse = C.mT @ torch.linalg.solve(A, B), torch.linalg.inv(a)
    assert_close(sum(c[i].diag() @ inverse @ b[i].diag() for i in range(state)), M)
    assert_close(sum(torch.outer(c[i], b[i]) * inverse for i in range(state)), M)
    assert_close((c.mT @ b) * inverse, M)
    one = torch.ones(length, 1, dtype=torch.float64)
    mask = Semiseparable(torch.cat([one[0], decays.sigmoid()]), one, one)
    product = sum(c[i][:, None] * mask.matmul((b[i] * x)[:, None]) for i in range(state))
    assert_close(product[:, 0], M @ x)


@pytest.mark.claim("004:quadratic-efficiency", "smalearn.sma.sma_orders")
def test_the_quadratic_mode_costs_the_square():
    def quadratic(length, state=N, head_dim=P):
        return sma_orders(length, length, state, head_dim).named(QUADRATIC).macs

    assert quadratic(T) == T * T * (N + P + 1)
    assert slope(quadratic, 64, 4096) == pytest.approx(2, abs=1e-9)
    for state, head_dim in [(64, 64), (16, 64), (128, 64), (3, 2)]:
        crossing = 3 * state * head_dim / (state + head_dim + 1)
        for length in range(1, 2 * round(crossing)):
            assert (quadratic(length, state, head_dim) > 3 * length * state * head_dim) == (length > crossing)


@pytest.mark.claim("004:quadratic-efficiency", "smalearn.ssd.ssd_quadratic")
@pytest.mark.claim("004:quadratic-efficiency", "smalearn.ssd.ssd_recurrent")
@pytest.mark.parametrize("length", [5, 16])
def test_what_the_modes_really_compute(length):
    X, log_a, B, C, _ = inputs(length)
    counter, (Y, state) = counted(ssd_quadratic, X, log_a, B, C)
    assert counter.products == length**2 * (N + P) + length * N * P  # the last state as well
    assert_close(Y, scanned(X, log_a, B, C)[0])
    counter, (Y, state) = counted(ssd_recurrent, X, log_a, B, C)
    assert (counter.products, counter.entrywise) == (0, 3 * length * N * P)
    assert_close(Y, scanned(X, log_a, B, C)[0])
    assert_close(state, scanned(X, log_a, B, C)[1][-1])


@pytest.mark.claim("004:factor-out", "smalearn.ssm.semiseparable.Semiseparable.dense")
@pytest.mark.parametrize("kind", KINDS)
def test_scalars_leave_the_product(kind):
    _, log_a, B, C, _ = inputs(kind=kind)
    M = ssm_matrix(log_a.exp(), B, C).dense()
    assert_close(M, entries(log_a.exp(), B, C))
    assert_close(M, decays(log_a.exp()) * (C @ B.mT))
    (z,) = random_tensors([(T, N)], seed=3)
    A = (-z.abs()).exp()
    once, twice = (ssm_matrix(A, b, C).dense() / (C @ b.mT) for b in (B, B + 1))
    assert relative_rms(twice.tril(), once.tril()) > 0.1  # no mask: the quotient depends on the keys


@pytest.mark.claim("004:block-decomposition", "smalearn.course.ch06.whole.ssd_in_chunks")
@pytest.mark.claim("004:block-decomposition", "smalearn.course.ch06.mask.decay_mask")
@pytest.mark.claim("004:block-decomposition", "smalearn.ssm.ranks.block_ranks")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_len", [1, 2, 3, 4, 5, 7, 12, 20])
def test_blocks_and_their_factors_are_the_matrix(kind, chunk_len):
    X, log_a, B, C, H = inputs(kind=kind)
    expected = entries(log_a.exp(), B, C)
    M = torch.zeros(T, T, dtype=torch.float64)
    spans = [slice(start, min(start + chunk_len, T)) for start in range(0, T, chunk_len)]
    for i, rows in enumerate(spans):
        M[rows, rows] = decay_mask(log_a[rows]) * (C[rows] @ B[rows].mT)
        for j, columns in enumerate(spans[:i]):
            read = log_a[rows].cumsum(0).exp()[:, None] * C[rows]
            write = decay_mask(log_a[columns])[-1][:, None] * B[columns]
            between = [log_a[span].sum().exp() for span in spans[j + 1 : i]]
            M[rows, columns] = math.prod(between, start=torch.ones(()).double()) * (read @ write.mT)
    assert_close(M, expected)
    assert block_ranks(expected, diagonal=-1).max() <= N
    if kind in ("mild", "ones"):
        assert block_ranks(expected).max() == N
    Y, states = scanned(X, log_a, B, C, H)
    for form in (ssd_in_chunks, ssd_chunked):
        found, last = form(X, log_a, B, C, H, chunk_len)
        assert_close(found, Y)
        assert_close(last, states[-1])


@pytest.mark.claim("004:listing-segsum", "smalearn.masks.decay.segsum")
@pytest.mark.claim("004:listing-segsum", "smalearn.course.ch06.mask.decay_mask")
@pytest.mark.parametrize("kind", KINDS)
def test_segment_sums(kind):
    log_a = inputs(33, kind)[1]
    assert_close(segsum(log_a.float()).exp(), decays(log_a.float().double().exp()))
    # exp(-1000) is 0, and so its slope
    expected = gradients(lambda x: [decays(x.exp())], [log_a.clamp(min=-1e3)])
    for form in (lambda x: [segsum(x).exp()], lambda x: [decay_mask(x)]):
        for found, wanted in zip(gradients(form, [log_a]), expected, strict=True):
            assert_close(found, wanted)
    if kind == "resets":
        assert differences(log_a).exp().isnan().any()
        X, _, B, C, _ = inputs(33, kind)
        one = [z[None, :, None] for z in (X, log_a, B, C)]
        assert listing(*one, block_len=11)[0].isnan().any()


@pytest.mark.claim("004:listing-segsum", "smalearn.masks.decay.segsum")
def test_differences_lose_digits_that_segment_sums_keep():
    (z,) = random_tensors([(4096,)], dtype=torch.float32)
    log_a = -10 * z.abs()
    sums = log_a.double().cumsum(0)
    exact = (sums[:, None] - sums).exp().tril()  # in float64 the difference is good to 1e-11
    assert relative_rms(segsum(log_a).exp(), exact) < 3e-7
    assert relative_rms(differences(log_a).exp(), exact) > 1e-4


@pytest.mark.claim("004:listing-log-decay", "smalearn.ssd.ssd_recurrent")
def test_the_argument_is_the_logarithm():
    X, log_a, B, C, _ = inputs(128, leading=(1, 2))
    by_time = [x.transpose(1, 2) for x in (X, B, C)]
    Y, _ = ssd_recurrent(X, log_a, B, C)
    right, _ = listing(by_time[0], log_a.transpose(1, 2), *by_time[1:])
    wrong, _ = listing(by_time[0], log_a.transpose(1, 2).exp(), *by_time[1:])
    assert_close(right.transpose(1, 2), Y)
    assert wrong.abs().max() > 1e30


def in_chunks(chunk_len, kind="mild"):
    """X, log_a, B, C of one sequence, the same in chunks, and the states token by token."""
    X, log_a, B, C, _ = inputs(kind=kind)
    chunked = [split_chunks(z, chunk_len) for z in (X, log_a[:, None], B, C)]
    chunked[1] = chunked[1][..., 0]
    return (X, log_a, B, C), chunked, scanned(X, log_a, B, C)[1]


@pytest.mark.claim("004:listing-step1", "smalearn.course.ch06.mask.decay_mask")
@pytest.mark.claim("004:listing-step1", "smalearn.masks.decay.decay_matrix")
@each_chunking
def test_step_1_is_the_block_diagonal(kind, chunk_len):
    (X, log_a, B, C), (x, a, b, c), _ = in_chunks(chunk_len, kind)
    block = torch.arange(T) // chunk_len
    M = entries(log_a.exp(), B, C) * (block[:, None] == block)
    for mask in (decay_mask, decay_matrix):
        counter, Y = counted(lambda mask=mask: (mask(a) * (c @ b.mT)) @ x)
        assert_close(Y.flatten(0, 1), M @ X)
        assert counter.products == T * chunk_len * (N + P)


@pytest.mark.claim("004:listing-step2", "smalearn.course.ch06.pieces.chunk_states")
@each_chunking
def test_step_2_is_what_each_chunk_leaves(kind, chunk_len):
    _, (x, a, b, c), _ = in_chunks(chunk_len, kind)
    expected = [scanned(*chunk)[1][-1] for chunk in zip(x, a, b, c, strict=True)]
    counter, states = counted(chunk_states, x, a, b)
    assert_close(states, torch.stack(expected))
    assert counter.products == T * N * P


@pytest.mark.claim("004:listing-step3", "smalearn.course.ch06.pieces.hand_over")
@pytest.mark.claim("004:listing-step3", "smalearn.linear_attention.chunked.pass_states")
@each_chunking
def test_step_3_gives_the_true_states(kind, chunk_len):
    _, (x, a, b, _), states = in_chunks(chunk_len, kind)
    chunks, decay, updates = T // chunk_len, a.sum(-1).exp(), chunk_states(x, a, b)
    zero = torch.zeros(P, N, dtype=torch.float64)
    counter, (entering, last) = counted(hand_over, decay, updates, zero)
    assert_close(entering, torch.stack(states[:-1:chunk_len]))
    assert_close(last, states[-1])
    assert counter.entrywise == chunks * N * P
    library = pass_states(decay[:, None, None], updates, zero)
    assert_close(library[0], entering)
    assert_close(library[1], last)
    totals = torch.nn.functional.pad(a.sum(-1), (1, 0))  # 004's way: one matrix over chunks
    counter, dense = counted(torch.matmul, segsum(totals).exp(), torch.cat([zero[None], updates]).flatten(1))
    assert_close(dense.unflatten(1, (P, N)), torch.cat([entering, last[None]]))
    assert counter.products == (chunks + 1) ** 2 * N * P


@pytest.mark.claim("004:listing-step4", "smalearn.course.ch06.pieces.read_states")
@each_chunking
def test_step_4_is_everything_below_the_blocks(kind, chunk_len):
    (X, log_a, B, C), (_, a, _, c), states = in_chunks(chunk_len, kind)
    block = torch.arange(T) // chunk_len
    M = entries(log_a.exp(), B, C)
    counter, below = counted(read_states, c, a, torch.stack(states[:-1:chunk_len]))
    assert_close(below.flatten(0, 1), (M * (block[:, None] > block)) @ X)
    assert counter.products == T * N * P


@pytest.mark.claim("004:listing-states", "smalearn.ssd.ssd_recurrent")
def test_the_listing_cannot_take_the_state_that_it_returns():
    X, log_a, B, C, H = inputs(8, leading=(2, 4))
    by_time = [x.transpose(1, 2) for x in (X, log_a, B, C)]
    Y, last = ssd_recurrent(X, log_a, B, C, H)
    found, state = listing(*by_time, block_len=4, initial_states=H[:, None])
    assert_close(found.transpose(1, 2), Y)
    assert_close(state, last)
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        listing(*by_time, block_len=4, initial_states=state)


@pytest.mark.claim("004:listing-any-length", "smalearn.ssd.ssd_chunked")
def test_any_length():
    X, log_a, B, C, H = inputs(130, "resets")
    Y, states = scanned(X, log_a, B, C, H)
    for length in range(1, 131):
        for chunk_len in (1, 7, 64, length):
            found, last = ssd_chunked(X[:length], log_a[:length], B[:length], C[:length], H, chunk_len)
            assert_close(found, Y[:length])
            assert_close(last, states[length])
    with pytest.raises(AssertionError, match="multiple of block_len"):
        listing(*(x[None, :100, None] for x in (X, log_a, B, C)))


@pytest.mark.claim("004:listing-cost", "smalearn.course.ch06.whole.best_chunk_len")
def test_the_cheapest_chunk_length():
    def whole(length, q, state, head_dim, power):
        """Multiply-adds without rounding the number of chunks; power 2: states passed on by a matrix."""
        handed = (length / q) ** power * state * head_dim
        return length * (q * (state + head_dim) + 2 * state * head_dim) + handed

    for length, state, head_dim in [(2520, 64, 64), (2520, 16, 64), (2520, 256, 64), (840, 8, 8)]:
        found = best_chunk_len(length, state, head_dim)
        assert abs(found - math.sqrt(state * head_dim / (state + head_dim))) < 1
        costs = [whole(length, q, state, head_dim, 1) for q in range(1, length + 1)]
        assert costs.index(min(costs)) + 1 == found
    assert best_chunk_len(2520, 64, 64) == 6
    assert 1.6 < whole(2048, 64, 64, 64, 1) / whole(2048, 6, 64, 64, 1) < 1.8  # a flat valley
    assert 1.01 < whole(2048, 128, 64, 64, 2) / whole(2048, 128, 64, 64, 1) < 1.03  # both ways cost the same from here
    costs = [whole(2048, q, 64, 64, 2) for q in range(1, 2049)]
    assert costs.index(min(costs)) + 1 == 51 == round((2 * 2048 * 64 * 64 / 128) ** (1 / 3))


@pytest.mark.claim("004:listing-cost", "smalearn.ssd.ssd_chunked")
@pytest.mark.parametrize("chunk_len", [2, 4, 16])
def test_the_chunked_form_is_linear(chunk_len):
    def macs(length):
        X, log_a, B, C, _ = inputs(length)
        counter, (Y, _) = counted(ssd_chunked, X, log_a, B, C, None, chunk_len)
        assert_close(Y, scanned(X, log_a, B, C)[0])
        assert counter.products == length * (chunk_len * (N + P) + 2 * N * P)
        return counter.products + counter.entrywise

    assert slope(macs, 32, 128) == pytest.approx(1, abs=0.02)
