"""Multi-level attention against all scores at once; its tiling against a count of pairs; costs against what runs."""

import contextlib
import math

import pytest
import torch
from comparing import same_slope
from counting import Counter
from hypothesis import given
from hypothesis import strategies as st
from oracles_multilevel import PAPER, dense

from smalearn import ShapeError
from smalearn.fast import executed_macs, multilevel, multilevel_attention
from smalearn.fast.cpu import tiling
from smalearn.fast.cpu.layout import Layout
from smalearn.multilevel import halving_blocks, level_counts, score_macs
from smalearn.testing import assert_close, random_tensors

TINY = {"DIAGONAL": 4, "ROWS": 8, "KEYS": 16, "SCORES": 100}
"""Sizes of tiles at which short sequences have all that long ones have."""


@contextlib.contextmanager
def tiles(**sizes):
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(tiling, name, size)
        yield


def with_gradients(function, operands, *args, **kwargs):
    """Y, and the gradients of the operands for a seeded dY."""
    operands = [None if x is None else x.detach().requires_grad_() for x in operands]
    Q, K, V, bias = operands
    Y = function(Q, K, V, *args, bias=bias, **kwargs)
    (dY,) = random_tensors([Y.shape], seed=5)
    return Y, *torch.autograd.grad(Y, [x for x in operands if x is not None], dY.to(Y.dtype))


def assert_same(results, expected, output=1e-12, gradient=1e-11):
    for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        same_slope(ours, theirs, gradient if number else output)


def assert_near(results, expected):
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ((ours - theirs).abs() <= 1e-11 * (1 + theirs.abs())).all()


@st.composite
def allocations(draw):
    """T, ranks with zeros, nested block lengths that need not divide T, the first at least T."""
    length = draw(st.integers(1, 90))
    block_lens = [draw(st.integers(1, 9))]
    while block_lens[0] < length or draw(st.booleans()):
        block_lens.insert(0, block_lens[0] * draw(st.integers(1, 7)))
        if len(block_lens) > 6:
            block_lens[0] *= length
            break
    ranks = draw(st.lists(st.integers(0, 4), min_size=len(block_lens), max_size=len(block_lens)))
    return length, tuple(ranks), tuple(block_lens)


@given(allocations(), st.booleans(), st.sampled_from([None, (), (3,), (2, 1), (2, 3), (4, 1, 1), (4, 2, 3)]))
def test_any_allocation_groups_and_bias(allocation, causal, axes):
    length, ranks, block_lens = allocation
    queries, keys, features = (2, 3, length), (2, 1, length), sum(ranks)
    shapes = [(*queries, features), (*keys, features), (*keys, 2), (*(axes or ()), length, length)]
    *operands, bias = random_tensors(shapes)
    operands = [*operands, None if axes is None else bias]
    with tiles(**TINY):
        results = with_gradients(multilevel_attention, operands, ranks, block_lens, causal=causal)
    expected = with_gradients(dense, operands, ranks, block_lens, causal=causal)
    assert_near(results, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("length", "ranks", "block_lens"),
    [
        (997, (8,) * 8, halving_blocks(1024, 8)),
        (600, (3, 0, 2), (2001, 667, 23)),
        (700, (4, 3), (7000, 250)),
        (65, (4,), (65,)),
    ],
)
def test_usual_tiles_and_their_gradients(length, ranks, block_lens, causal):
    features = sum(ranks)
    operands = random_tensors([(2, length, features), (2, length, features), (2, length, 5)])
    operands = [operands[0] / features**0.5, *operands[1:], None]
    expected = with_gradients(dense, operands, ranks, block_lens, causal=causal)
    assert_same(with_gradients(multilevel_attention, operands, ranks, block_lens, causal=causal), expected)
    single = [None if x is None else x.float() for x in operands]
    assert_same(with_gradients(multilevel_attention, single, ranks, block_lens, causal=causal), expected, 2e-6, 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias_dtype", [None, "same", torch.float32])
def test_half_precision_is_computed_in_float32(dtype, bias_dtype):
    Q, K, V, bias = random_tensors([(90, 8), (90, 8), (90, 3), (90, 90)], dtype=dtype)
    bias = None if bias_dtype is None else bias.to(dtype if bias_dtype == "same" else bias_dtype)
    results = with_gradients(multilevel_attention, [Q, K, V, bias], (4, 4), (90, 30))
    wide = [None if x is None else x.float() for x in (Q, K, V, bias)]
    expected = with_gradients(multilevel_attention, wide, (4, 4), (90, 30))
    assert results[0].dtype == results[1].dtype == dtype
    assert torch.equal(results[0], expected[0].to(dtype))
    if bias is not None:
        assert results[4].dtype == bias.dtype


def test_shared_keys_are_laid_out_once():
    Q, K, V = random_tensors([(2, 3, 4, 20, 4), (3, 1, 20, 4), (2, 3, 1, 20, 5)])
    layout = Layout(Q, K, V, None)
    assert (layout.heads, layout.queries) == (6, 4)
    plan = tiling.Tiling(20, (4,), (20,), True, 6, 4)
    assert layout.lay(K, plan, 1, of_keys=True).shape == (6, plan.padded_len, 5)
    assert layout.lay(Q, plan, 1).shape == (6, plan.padded_len * 4, 5)


def test_no_features_and_no_values():
    (V,) = random_tensors([(9, 2)])
    empty = V[:, :0]
    means = V.cumsum(0) / torch.arange(1, 10)[:, None]
    assert_close(multilevel_attention(empty, empty, V, (0,), (9,)), means)
    assert multilevel_attention(V, V, empty, (2,), (9,)).shape == (9, 0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scores_far_above_the_running_max(causal, with_bias):
    """The largest score of a row is not near the diagonal, by far more than exp can hold; rows near it stay right."""
    length, ranks, blocks = 300, (2, 2), (512, 16)
    Q, K, V = random_tensors([(length, 4), (length, 4), (length, 3)], dtype=torch.float32)
    K[3, 0] = 3000.0
    Q[:, 0] = Q[:, 0].abs() + 0.5
    Q[200:] *= 30
    bias = torch.zeros(length, length) if with_bias else None
    results = with_gradients(multilevel_attention, [Q, K, V, bias], ranks, blocks, causal=causal)
    wide = [None if x is None else x.double() for x in (Q, K, V, bias)]
    expected = with_gradients(dense, wide, ranks, blocks, causal=causal)
    assert_close(results[0], expected[0])
    assert_close(results[3], expected[3])
    assert all(torch.isfinite(x).all() for x in results)


def test_large_values_do_not_overflow_the_sum():
    """A far score 100 bits above the running max fits a float, its product with a value does not."""
    Q, K, V = random_tensors([(200, 2), (200, 2), (200, 3)], dtype=torch.float32)
    Q[:, 0], K[:, 0], K[0, 0] = 1, 0, 75
    V *= 1e12
    wide = [x.double() for x in (Q, K, V)]
    assert_close(multilevel_attention(Q, K, V, (2,), (200,)), dense(*wide, (2,), (200,)))


def test_the_running_max_is_enough_for_ordinary_scores(monkeypatch):
    """The rescaling path, which is slower, does not run."""
    from smalearn.fast.cpu.squares import Heads

    asked, run = [], Heads._run
    monkeypatch.setattr(Heads, "_run", lambda self, *rest: asked.append(rest[-1]) or run(self, *rest))
    Q, K, V = random_tensors([(300, 4), (300, 4), (300, 3)], dtype=torch.float32)
    multilevel_attention(Q, K, V, (2, 2), (512, 16))
    assert asked == [False]
    K[0, 0] = 1e4
    multilevel_attention(Q, K, V, (2, 2), (512, 16))
    assert asked == [False, False, True]


@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_removes_pairs_and_rows(causal):
    length, ranks, blocks = 150, (2, 2), (160, 20)
    Q, K, V, bias = random_tensors([(2, length, 4), (length, 4), (length, 3), (length, length)])
    bias[bias > 0.5] = -math.inf
    bias[70:, 64:] = -math.inf  # nothing near the diagonal is left to these rows
    bias[140] = -math.inf
    results = with_gradients(multilevel_attention, [Q, K, V, bias], ranks, blocks, causal=causal)
    rows = torch.ones(length, dtype=torch.bool)
    allowed = torch.isfinite(bias).tril() if causal else torch.isfinite(bias)
    rows = allowed.any(-1)
    finite = torch.where(rows[:, None], bias, torch.zeros(()))

    def zero_rows(*args, **kwargs):
        return dense(*args, **kwargs) * rows[:, None]

    expected = with_gradients(zero_rows, [Q, K, V, finite], ranks, blocks, causal=causal)
    assert not rows.all()
    assert (results[0][:, ~rows] == 0).all()
    assert_same(results, expected)


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (2, 1, 1, 40), (3, 40, 40), (1, 1)])
def test_a_bias_broadcasts(shape):
    operands = random_tensors([(2, 3, 40, 4), (2, 1, 40, 4), (2, 1, 40, 3), shape])
    with tiles(**TINY):
        results = with_gradients(multilevel_attention, operands, (2, 2), (40, 10), causal=False)
    expected = with_gradients(dense, operands, (2, 2), (40, 10), causal=False)
    assert_near(results, expected)


class Calls(Counter):
    """The largest tensor that is made, too; what an operation does is unseen."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes():
            self.largest = max(self.largest, out.untyped_storage().nbytes() // out.element_size())
        return out


def calls(Q, K, V, ranks, block_lens, causal, backward=False):
    tensors, settings = [Q[None], K[None], V[None], None], (causal, *ranks, *block_lens)
    with Calls() as counted:
        kept = multilevel._squares_forward(tensors, settings, backward)
        if backward:
            multilevel._squares_backward([kept[0]], tensors, kept, settings, [True] * 3 + [False])
    return counted


@pytest.mark.parametrize("causal", [True, False])
def test_no_matrix_of_scores_is_made(causal):
    length = 4096
    Q, K, V = random_tensors([(length, 8)] * 3, dtype=torch.float32)
    counted = calls(Q, K, V, (1,) * 8, halving_blocks(length, 8), causal, backward=True)
    assert length * 8 < counted.largest <= max(tiling.SCORES, 10 * length)
    assert counted.largest < length**2 / 10


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 7, 1000, 1024, 1300])
def test_executed_macs_are_those_that_run(length, causal):
    ranks, block_lens = (5, 0, 3, 2), halving_blocks(1304, 4)
    Q, V = random_tensors([(length, 10), (length, 2)])
    both = [calls(Q, Q, V[:, :p], ranks, block_lens, causal).products for p in (1, 2)]
    executed = executed_macs(length, ranks, block_lens, causal)
    assert executed == 2 * both[0] - both[1]
    assert executed >= score_macs(length, ranks, block_lens, causal)


def test_executed_macs_are_few_more_than_needed():
    blocks, square = halving_blocks(4096, 8), 4096**2 / 2 * 64
    for ranks in ((8,) * 8, PAPER):
        needed, executed = (count(4096, ranks, blocks) / square for count in (score_macs, executed_macs))
        assert needed + 1 / 64 < executed < needed + 2 / 64  # the column in front has no sum over levels to save it
    assert executed_macs(0, (1,), (1,)) == 0


@given(allocations(), st.booleans(), st.integers(1, 3))
def test_the_plan_meets_every_pair_once_with_its_columns(allocation, causal, heads):
    length, ranks, block_lens = allocation
    with tiles(**TINY):
        plan = tiling.Tiling(length, ranks, block_lens, causal, heads, 2)
        met = torch.zeros(heads, plan.padded_len, plan.padded_len, dtype=torch.int64)
        for square in [*plan.diagonal(), *plan.squares()]:
            segments = torch.arange(heads * plan.padded_len).view(-1, square.period)[square.batch]
            for tile in square.tiles():
                assert (
                    len(segments) * (tile.rows[0][1] - tile.rows[0][0]) * (tile.keys[1] - tile.keys[0]) * 2
                    <= plan.scratch()
                )
                for piece in segments:
                    rows, keys = piece[slice(*tile.rows[0])], piece[slice(*tile.keys)]
                    head = int(rows[0]) // plan.padded_len
                    met[head][rows[:, None] % plan.padded_len, keys % plan.padded_len] += 1 + tile.columns
    met = met[:, plan.where][:, :, plan.where]
    ends = torch.tensor([0, *ranks]).cumsum(0)
    squares = torch.arange(plan.padded_len)[plan.where] // plan.size
    coarse = len(ranks) - len(plan.local)
    columns = 1 + ends[level_counts(length, block_lens).clamp(max=coarse)]
    if causal:
        columns = columns * (squares[:, None] >= squares)
    assert torch.equal(met, columns.expand(heads, -1, -1))


Q, K, V = random_tensors([(9, 4), (9, 4), (9, 3)])
ATTENTION = [
    ("bias", {"bias": K.new_zeros(9, 5)}, ShapeError),
    ("bias", {"bias": K.new_zeros(9)}, ShapeError),
    ("bias", {"bias": K.new_zeros(9, 9).half()}, ValueError),
    ("bias", {"bias": 1.0}, TypeError),
    ("bias", {"Q": Q.expand(2, 9, 4), "bias": K.new_zeros(3, 9, 9)}, ShapeError),
    ("every level has a rank and a block length, got 0 ranks, 0", {"ranks": (), "block_lens": ()}, ValueError),
    (r"ranks\[1\] must .* got -1", {"ranks": (5, -1)}, ValueError),
    (r"block_lens\[1\] must .* got 0", {"block_lens": (9, 0)}, ValueError),
]


@pytest.mark.parametrize(("message", "changed", "error"), ATTENTION)
def test_messages_of_the_attention(message, changed, error):
    with pytest.raises(error, match=f"^multilevel_attention: .*{message}"):
        multilevel_attention(**{"Q": Q, "K": K, "V": V, "ranks": (2, 2), "block_lens": (12, 3)} | changed)
