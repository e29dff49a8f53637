"""The GPU program of multi-level attention against all scores in float64: interpreted, compiled, on a GPU."""

import itertools

import pytest
import torch
from comparing import same_slope, second_derivative
from oracles_multilevel import PAPER, dense
from triton_marks import needs_gpu, needs_triton

from smalearn import fast
from smalearn.fast import multilevel_attention
from smalearn.fast.triton import launch, multilevel
from smalearn.fast.triton.multilevel import multilevel_forward
from smalearn.multilevel import halving_blocks, multilevel_scores
from smalearn.testing import assert_close, pairwise, random_tensors

pytestmark = pytest.mark.usefixtures("fresh_memory_is_not_a_number")
NAN = float("nan")
DTYPES = [torch.float32, torch.float16]
LEVELS = {
    "halves": ((8,) * 8, halving_blocks(128, 8)),
    "the paper's": (PAPER, halving_blocks(1024, 8)),
    "blocks that fit no tile": ((1, 2, 1, 2), (300, 60, 20, 5)),
    "zero ranks": ((0, 3, 0, 2), (276, 138, 69, 23)),
    "equal levels": ((1, 2, 1), (192, 48, 48)),
    "one level": ((6,), (128,)),
}
FACTORS = {
    "length": [1, 33, 100],
    "levels": list(LEVELS),
    "dtype": DTYPES,
    "leading": [((), ()), ((2,), (2,)), ((2, 2), (2, 1))],
    "head_dim": [1, 20, 32],
    "seen": [False, True],
    "tile": [16, 32],
}
CASES = pairwise(FACTORS)
SHORT_FIRST = [pytest.param(case, marks=pytest.mark.full) if case["length"] > 33 else case for case in CASES]


def build(length, levels, dtype, leading=((), ()), head_dim=20, seen=False, device="cpu"):
    """Q, K, V; `seen` ones are transposed views, whose rows are not consecutive."""
    features = sum(LEVELS[levels][0])
    shapes = [(*leading[0], length, features), (*leading[1], length, features), (*leading[1], length, head_dim)]
    operands = random_tensors(shapes, dtype=dtype)
    operands = [operands[0] / max(features, 1) ** 0.5, *operands[1:]]
    return [(x.mT.contiguous().mT if seen else x).to(device) for x in operands]


def exact(Q, K, V, ranks, block_lens):
    """Y and log Σ exp S in float64, with all of S."""
    S = multilevel_scores(Q.double(), K.double(), ranks, block_lens)
    S = S.masked_fill(torch.ones(S.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return S.softmax(-1) @ V.double(), S.logsumexp(-1)


def check(operands, ranks, block_lens):
    """In half precision weights are rounded once, and results."""
    dtype = operands[0].dtype
    (Y, log_sum), truth = (
        multilevel_forward(*operands, ranks, block_lens),
        exact(*(x.cpu() for x in operands), ranks, block_lens),
    )
    assert (Y.dtype, log_sum.dtype) == (dtype, torch.float32)
    assert_close(Y, truth[0], 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps)
    assert ((log_sum.cpu() - truth[1]).abs() <= 2e-6 * (1 + truth[1].abs())).all()


def check_gradients(operands, ranks, block_lens):
    """Y and the gradients of `multilevel_attention` on the way over the program."""
    dtype = operands[0].dtype
    leaves = [x.detach().requires_grad_() for x in operands]
    Y = multilevel_attention(*leaves, ranks, block_lens)
    (dY,) = random_tensors([Y.shape], seed=5, dtype=dtype)
    outputs = Y, *torch.autograd.grad(Y, leaves, dY.to(Y.device))
    leaves = [x.detach().cpu().double().requires_grad_() for x in operands]
    Y = dense(*leaves, ranks, block_lens)
    truth = Y, *torch.autograd.grad(Y, leaves, dY.double())
    assert [x.dtype for x in outputs] == [dtype] * 4
    for ours, theirs in zip(outputs, truth, strict=True):
        same_slope(ours, theirs, 3e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps, 1e-5)


@pytest.fixture
def short_tiles(monkeypatch):
    """Tiles of 16 rows, so that short sequences have many."""
    monkeypatch.setattr(multilevel, "_tile", lambda *_: (16, 4, 1))


@pytest.mark.parametrize("levels", LEVELS)
def test_the_emulator_runs_the_program(levels, short_tiles, monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: True)
    monkeypatch.setattr(multilevel, "check_triton", lambda *_: None)
    monkeypatch.setattr(launch, "on_triton", launch.on_tiles)
    check(build(70, levels, torch.float32, ((2,), (2,)), 20, False), *LEVELS[levels])


@pytest.fixture
def as_on_a_gpu(monkeypatch, short_tiles):
    """`multilevel_attention` takes the program for tensors on a CPU too; gives the shapes of Q it was called with."""
    calls = []

    def counted(Q, *rest):
        calls.append(Q.shape)
        return multilevel_forward(Q, *rest)

    monkeypatch.setattr(fast.multilevel, "multilevel_handles", lambda Q, V: True)
    monkeypatch.setattr(fast.multilevel, "multilevel_forward", counted)
    return calls


@needs_triton
@pytest.mark.parametrize("case", SHORT_FIRST, ids=lambda case: "-".join(map(str, case.values())))
def test_against_all_scores(case, monkeypatch):
    case = dict(case)
    tile = case.pop("tile")
    monkeypatch.setattr(multilevel, "_tile", lambda *_: (tile, 4, 1))
    check(build(**case), *LEVELS[case["levels"]])


@needs_triton
def test_the_usual_tile():
    check(build(150, "blocks that fit no tile", torch.float32), *LEVELS["blocks that fit no tile"])


@needs_triton
@pytest.mark.parametrize(
    ("queries", "keys", "values"),
    [((2, 2, 3), (2, 2, 1), (1,)), ((), (3,), (2, 1)), ((2, 2), (1, 2), (1, 2)), ((0, 2), (0, 1), (0, 1))],
)
def test_leading_axes_broadcast(queries, keys, values, short_tiles):
    Q, K, V = random_tensors([(*queries, 18, 4), (*keys, 18, 4), (*values, 18, 3)], dtype=torch.float32)
    Y, log_sum = multilevel_forward(Q, K, V, (2, 2), (24, 6))
    truth, wanted_sum = exact(Q, K, V, (2, 2), (24, 6))
    assert_close(Y, truth, 1e-6)
    assert_close(log_sum, wanted_sum, 1e-6)


def test_nothing_is_copied_for_groups_and_strides(monkeypatch):
    seen = []
    monkeypatch.setattr(launch, "has_triton", lambda: True)
    monkeypatch.setattr(launch, "interprets", lambda: True)
    monkeypatch.setattr(multilevel, "_launch", lambda *operands, **constants: seen.append(operands))
    Q, K, V = (x.movedim(0, 1) for x in random_tensors([(9, 2, 3, 6), (9, 2, 1, 6), (9, 2, 1, 5)], dtype=torch.float32))
    Q, K, V = (x.movedim(1, 2) for x in (Q, K, V))
    multilevel_forward(Q, K, V, (3, 3), (9, 3))
    (q, k, v, y, log_sum, *numbers) = seen[0]
    assert [x[0].data_ptr() for x in (q, k, v)] == [x.data_ptr() for x in (Q, K, V)]
    assert [x[0].shape for x in (q, k, v)] == [(2, 1, 3, 9, 6), (2, 1, 1, 9, 6), (2, 1, 1, 9, 5)]
    assert q[1:] == tuple(q[0].stride())
    assert (y[0].shape, log_sum[0].shape, numbers) == ((2, 1, 3, 9, 5), (2, 1, 3, 9, 1), [9, 3, 1])


@needs_triton
def test_a_segment_reads_only_columns_that_count(short_tiles):
    """Rows from 32 on share 16 columns or fewer with token 1: what its others hold, they do not read."""
    Q, K, V = build(100, "halves", torch.float32)
    expected = exact(Q, K, V, *LEVELS["halves"])[0]
    K[1, 16:] = NAN
    Y = multilevel_forward(Q, K, V, *LEVELS["halves"])[0]
    assert_close(Y[32:], expected[32:], 2e-6)
    assert Y[1:32].isnan().all()


@needs_triton
def test_not_a_number_is_not_hidden(short_tiles):
    Q, K, V = build(40, "one level", torch.float32)
    K[7] = NAN
    Y, log_sum = multilevel_forward(Q, K, V, *LEVELS["one level"])
    assert Y[7:].isnan().all()
    assert log_sum[7:].isnan().all()
    assert torch.isfinite(Y[:7]).all()


@needs_triton
def test_scores_that_exp_cannot_hold(short_tiles):
    Q, K, V = random_tensors([(60, 4), (60, 4), (60, 3)], dtype=torch.float32)
    Q[:, 0], K[:, 0] = 1, -2000
    K[3, 0], K[20, 0] = 3000, 3001
    truth, wanted_sum = exact(Q, K, V, (2, 2), (64, 16))
    Y, log_sum = multilevel_forward(Q, K, V, (2, 2), (64, 16))
    assert_close(Y, truth, 2e-4)  # float32 holds a score of 3000 to 2e-4
    assert_close(log_sum, wanted_sum, 1e-6)


@needs_triton
def test_two_runs_give_the_same_bits_and_inputs_stay(short_tiles):
    operands = build(40, "halves", torch.float16, ((2,), ()))
    before = [x.clone() for x in operands]
    once, again = (multilevel_forward(*operands, *LEVELS["halves"]) for _ in range(2))
    assert all(map(torch.equal, once, again))
    assert all(map(torch.equal, operands, before))


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", ["blocks that fit no tile", "the paper's"])
def test_gradients(levels, dtype, as_on_a_gpu):
    check_gradients(build(50, levels, dtype, ((2,), (1,)), seen=True), *LEVELS[levels])
    assert as_on_a_gpu == [(1, 2, 50, sum(LEVELS[levels][0]))]


@needs_triton
def test_gradients_of_shared_operands_and_of_some(as_on_a_gpu):
    Q, K, V = random_tensors([(18, 4), (3, 1, 18, 4), (1, 2, 18, 3)], dtype=torch.float32)
    check_gradients([Q, K, V], (2, 2), (24, 6))
    V.requires_grad_()
    (dV,) = torch.autograd.grad(multilevel_attention(Q, K, V, (2, 2), (24, 6)).sum(), V)
    exact_V = V.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(dense(Q.double(), K.double(), exact_V, (2, 2), (24, 6)).sum(), exact_V)
    assert_close(dV, truth, 1e-6)
    assert len(as_on_a_gpu) == 2


@needs_triton
def test_second_derivatives(as_on_a_gpu):
    """By Q of the gradient of V."""
    operands = build(5, "one level", torch.float32)
    ours, theirs = (
        second_derivative(lambda *x, form=form: form(*x, *LEVELS["one level"]), given, 2, 0)
        for form, given in ((multilevel_attention, operands), (dense, [x.double() for x in operands]))
    )
    assert_close(ours, theirs, 1e-5)


def test_what_the_program_does_not_cover_goes_another_way(as_on_a_gpu):
    Q, K, V = random_tensors([(20, 4), (20, 4), (20, 3)])
    (bias,) = random_tensors([(20, 20)])
    both = (2, 2), (24, 6)
    assert_close(multilevel_attention(Q, K, V, *both, causal=False), dense(Q, K, V, *both, causal=False))
    assert_close(multilevel_attention(Q, K, V, *both, bias=bias), dense(Q, K, V, *both, bias=bias))
    assert multilevel_attention(Q[:0], K[:0], V[:0], *both).shape == (0, 3)
    assert multilevel_attention(Q.expand(0, 20, 4), K, V, *both).shape == (0, 20, 3)
    assert not as_on_a_gpu


def test_constants(monkeypatch):
    """Levels without columns or with the same blocks are none, and so is a border that no tile crosses."""

    def constants(length, ranks, block_lens, tile=64):
        monkeypatch.setattr(multilevel, "_tile", lambda *_: (tile, 4, 1))
        Q, V = torch.zeros(1, 1, 1, length, sum(ranks)), torch.zeros(1, 1, 1, length, 20)
        outputs = multilevel._constants(Q, V, ranks, block_lens)
        return outputs["blocks"], outputs["ends"], outputs["widths"], outputs["sizes"]

    assert constants(1000, (8,) * 4, (1024, 512, 256, 128)) == (
        (0, 512, 256, 128),
        (0, 8, 16, 24, 32),
        (16, 16, 16, 32, 32),
        (32, 20, 64, 32, 4, 4, 4),
    )
    assert constants(300, (8,) * 4, (1024, 512, 256, 32))[0] == (0, 256, 32)
    assert constants(300, (8,) * 4, (1024, 512, 64, 32))[3][4:] == (3, 2, 1)
    assert constants(300, (0, 3, 0, 2), (540, 180, 60, 60))[:2] == ((0, 180, 60), (0, 0, 3, 5))
    assert constants(300, (0, 3, 0, 2), (540, 180, 60, 60))[3][4:] == (3, 1, 3)


@pytest.mark.parametrize("architecture", ["cpu", "sm80", "sm89", "sm90"])
@pytest.mark.parametrize("widest", [1, 64, 65, 128, 129, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiles(architecture, widest, dtype):
    tile, num_warps, num_stages = multilevel._tile(architecture, widest, dtype)
    assert tile in (16, 32, 64, 128)
    assert num_warps in (4, 8)
    assert 1 <= num_stages <= 2
    if architecture != "cpu":  # Y and S in registers, 32·num_warps threads with 255 each; Q, K and V in shared memory
        assert tile * (tile + max(16, widest)) <= 32 * num_warps * 128
        shared = 2 * tile * max(16, widest) * dtype.itemsize * (num_stages + 1)
        assert shared <= (99 if architecture == "sm89" else 160) * 1024


ON_A_GPU = [torch.float32, torch.float16, torch.bfloat16]


@needs_gpu
@pytest.mark.parametrize("dtype", ON_A_GPU)
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("length", [1, 33, 100, 128])
def test_the_whole_product_on_a_gpu(length, levels, dtype):
    for leading, head_dim, seen in itertools.product(*(FACTORS[name] for name in ("leading", "head_dim", "seen"))):
        operands = build(length, levels, dtype, leading, head_dim, seen, "cuda")
        check(operands, *LEVELS[levels])
        check_gradients(operands, *LEVELS[levels])


@needs_gpu
@pytest.mark.parametrize("dtype", ON_A_GPU)
@pytest.mark.parametrize("ranks", [(16, 8, 40), (64, 64), (128, 64, 64), PAPER, (8,) * 8])
def test_long_sequences_on_a_gpu(ranks, dtype):
    features, length = sum(ranks), 2000
    shapes = [(2, 2, length, features), (2, 1, length, features), (2, 1, length, features)]
    Q, K, V = (x.to("cuda") for x in random_tensors(shapes, dtype=dtype))
    for block_lens in (halving_blocks(2048, len(ranks)), tuple(3 ** (8 - level) for level in range(len(ranks)))):
        operands = [Q / features**0.5, K, V]
        check(operands, ranks, block_lens)
        once, again = (multilevel_forward(*operands, ranks, block_lens) for _ in range(2))
        assert all(map(torch.equal, once, again))


@needs_gpu
def test_more_than_two_billion_numbers_on_a_gpu():
    room = torch.empty(2**31 + 2**13, device="cuda")
    Q, K, V = build(100, "halves", torch.float32, ((2,), (2,)), device="cuda")
    far = room.as_strided(K.shape, (2**31, K.shape[-1], 1))
    far.copy_(K)
    for ours, theirs in zip(*(multilevel_forward(Q, k, V, *LEVELS["halves"]) for k in (far, K)), strict=True):
        assert torch.equal(ours, theirs)
