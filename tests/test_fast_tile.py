"""The tile machine: each operation against NumPy written out, its checks, and what it records."""

import numpy as np
import pytest
import torch

from smalearn.course.widgets import KernelTracer
from smalearn.fast import tile as tl
from smalearn.fast.lanes import Tile, running


def run(program, *operands, grid=(1,), **constants):
    """Launch, and give the events."""
    with tl.recording() as events:
        tl.launch(program, grid, *operands, **constants)
    return events


def double(x, y, size):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < size, other=-1.0), mask=i < size)


def test_programs_of_a_grid_run_in_order_and_write_through_masks():
    x, y = np.arange(6.0), np.full(8, np.nan)
    events = run(double, x, y, grid=(2,), size=6)
    np.testing.assert_array_equal(y, [0, 2, 4, 6, 8, 10, np.nan, np.nan])
    assert [(e.program, e.kind, e.operand) for e in events] == [
        ((0, 0, 0), "load", "x"),
        ((0, 0, 0), "store", "y"),
        ((1, 0, 0), "load", "x"),
        ((1, 0, 0), "store", "y"),
    ]
    assert [e.offsets.tolist() for e in events[2:]] == [[4, 5, -1, -1]] * 2
    assert [(e.bytes, e.flops) for e in events] == [(32, 0), (32, 0), (16, 0), (16, 0)]


def test_the_axes_of_a_grid():
    def program(y):
        index = tl.program_id(0) + 2 * tl.program_id(1) + 6 * tl.program_id(2)
        tl.store(y + index, index)

    y = np.zeros(24)
    assert [e.program for e in run(program, y, grid=(2, 3, 4))][:3] == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    np.testing.assert_array_equal(y, np.arange(24))
    assert run(program, y, grid=(2, 0)) == []


@pytest.mark.parametrize(
    ("size", "lengths", "message"),
    [
        (7, (6, 8), r"double, program \(1, 0, 0\): load of x at offset 6, expected 0 to 5 or a mask"),
        (6, (6, 5), r"double, program \(1, 0, 0\): store of y at offset 5, expected 0 to 4 or a mask"),
        (1, (0, 5), r"double, program \(0, 0, 0\): load of x at offset 0, expected 0 to -1 or a mask"),
    ],
)
def test_an_access_outside_is_an_error(size, lengths, message):
    with pytest.raises(IndexError, match=message):
        run(double, *map(np.zeros, lengths), grid=(2,), size=size)


def test_an_offset_below_zero_is_an_error():
    with pytest.raises(IndexError, match="load of x at offset -1"):
        run(lambda x: tl.load(x + -1), np.zeros(3))


def test_pointers_follow_strides_and_end_with_the_last_entry():
    x = np.arange(12.0).reshape(3, 4)
    seen = x.T[1:]  # (3, 3) with strides 1 and 4, from entry 1
    results = []

    def program(x, offset):
        results.append(tl.load(x[0] + (tl.arange(0, 2)[:, None] * x[1] + tl.arange(0, 2)[None, :] * x[2] + offset)))

    run(program, (seen, 1, 4), offset=5)
    np.testing.assert_array_equal(array(results[0]), x.T[2:4, 1:3])
    with pytest.raises(IndexError, match="offset 11, expected 0 to 10"):
        run(program, (seen, 1, 4), offset=6)


def array(tile):
    """What a program computed, for the test to look at."""
    return tile._values


def test_a_product_rounds_float32_as_a_gpu_does_unless_it_is_told_not_to(monkeypatch):
    monkeypatch.setattr(running, "rounds", True)
    fine = np.eye(16, dtype=np.float32)
    fine[0, :4] = 1 + 2.0**-12, 1 + 2.0**-10, -1 - 3 * 2.0**-11, np.inf
    ones = Tile(np.ones((16, 16), np.float32))
    rounded = array(tl.dot(Tile(fine[:, :3].repeat(16, 1)[:, :16]), ones))
    np.testing.assert_array_equal(rounded[0], 16.0)
    assert array(tl.dot(Tile(fine[:, :1].repeat(16, 1)), ones, input_precision="ieee"))[0, 0] == 16 + 2.0**-8
    assert array(tl.dot(Tile(fine[:, 1:2].repeat(16, 1)), ones))[0, 0] == 16 + 2.0**-6
    assert array(tl.dot(Tile(fine[:, 2:3].repeat(16, 1)), ones))[0, 0] == -16 - 2.0**-5  # a half goes away from 0
    assert array(tl.dot(Tile(fine), ones))[0, 0] == np.inf


def test_operations():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 32)).astype(np.float32), rng.standard_normal((32, 64)).astype(np.float32)
    x, y, products = Tile(a), Tile(b), []
    (event,) = run(lambda: products.append(tl.dot(x, y)))
    np.testing.assert_allclose(array(products[0]), a.astype(float) @ b, rtol=1e-4, atol=1e-4)
    assert (event.kind, event.offsets.tolist(), event.bytes, event.flops) == ("dot", [16, 32, 64], 0, 2 * 16 * 32 * 64)
    half = tl.dot(x.to(tl.float16), tl.cast(y, tl.float16))
    assert half.dtype == np.float32
    np.testing.assert_allclose(array(half), a.astype(np.float16).astype(float) @ b.astype(np.float16), 1e-4, 1e-4)
    np.testing.assert_array_equal(array(tl.dot(x, y, half)), array(half + products[0]))
    wide = tl.dot(tl.cast(x, tl.float64), tl.cast(y, tl.float64), input_precision="tf32")
    np.testing.assert_allclose(array(wide), a.astype(float) @ b, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(array(tl.cumsum(x, 0))[-1], a.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(array(tl.sum(x, 1)), a.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(array(tl.max(x, 0)), a.max(0))
    np.testing.assert_array_equal(array(tl.min(x, 0)), a.min(0))
    np.testing.assert_array_equal(array(tl.trans(x)), a.T)
    np.testing.assert_array_equal(array(tl.abs(x)), np.abs(a))
    np.testing.assert_array_equal(array(tl.maximum(x, 0.0)), a.clip(0))
    np.testing.assert_array_equal(array(tl.minimum(x, 0.0)), a.clip(None, 0))
    assert array(tl.full((2, 3), 1.5, tl.float32)).tolist() == [[1.5] * 3] * 2
    assert array(tl.zeros((2,), tl.int32)).tolist() == [0, 0]
    assert array(tl.exp2(tl.where(tl.arange(0, 2) > 0, 3.0, float("-inf")))).tolist() == [0, 8]
    assert array(tl.arange(0, 4) % 2 == 1).tolist() == [False, True] * 2


HALF, SINGLE, LONG, SHORT, MASK = (Tile(np.ones(2, t)) for t in ("float16", "float32", "int64", "int32", "bool"))
BRAIN = SINGLE.to(tl.bfloat16)


@pytest.mark.parametrize(
    ("result", "dtype"),
    [
        (HALF * 2.5, "float16"),
        (2 * HALF, "float16"),
        (HALF + SINGLE, "float32"),
        (HALF + SHORT, "float16"),
        (HALF / 2, "float32"),
        (HALF / HALF, "float32"),
        (SHORT + 1, "int32"),
        (SHORT + 0.5, "float32"),
        (SHORT / 2, "float32"),
        (SHORT * LONG, "int64"),
        (1 - LONG, "int64"),
        (MASK & MASK, "bool"),
        (~MASK, "bool"),
        (MASK + 1, "int32"),
        (SHORT < 0.5, "bool"),
        (tl.sum(MASK), "int32"),
        (tl.cumsum(HALF), "float16"),
        (tl.where(MASK, HALF, 0.0), "float16"),
        (tl.where(MASK, 1.0, 0.0), "float32"),
        (tl.where(MASK, 1, 0), "int32"),
        (tl.cast(3, tl.float32), "float32"),
        (2 * BRAIN, tl.bfloat16),
        (-BRAIN * BRAIN, tl.bfloat16),
        (BRAIN / 2, "float32"),
        (BRAIN + SINGLE, "float32"),
        (BRAIN + HALF, "float16"),
        (BRAIN + SHORT, "float32"),
        (tl.sum(BRAIN), tl.bfloat16),
        (tl.cumsum(BRAIN), "float32"),
        (tl.maximum(BRAIN, BRAIN), "float32"),
        (tl.where(MASK, BRAIN, 0.0), tl.bfloat16),
    ],
    ids=range(31),
)
def test_types_are_those_of_the_compiler(result, dtype):
    assert result.dtype == dtype


def test_division_of_whole_numbers_goes_towards_zero():
    x = Tile(np.array([7, -7], np.int32))
    assert array(x // 2).tolist() == [3, -3]
    assert array(x % 2).tolist() == [1, -1]
    assert array(-x - 1).tolist() == [-8, 6]


ONES = Tile(np.ones((16, 16), np.float32))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tl.arange(0, 12), ValueError, "arange: length is 12, expected a power of two"),
        (lambda: tl.arange(0, tl.program_id(0)), TypeError, "its bounds are constexpr, .*: mark them `tl.const"),
        (lambda: tl.full((tl.program_id(0),), 0.0, tl.float32), TypeError, "sizes of a tile are constexpr"),
        (lambda: tl.dot(tl.trans(ONES[None][0:]), ONES), TypeError, "a tile has no entries that one can pick"),
        (lambda: tl.dot(tl.zeros((8, 16), tl.float32), ONES), ValueError, r"dot: shapes are \(8, 16\) and \(16, 16\)"),
        (lambda: tl.dot(tl.zeros((16, 32), tl.float32), ONES), ValueError, r"expected \(m, k\) and \(k, n\)"),
        (lambda: tl.dot(ONES, ONES.to(tl.float16)), TypeError, r"first factor is float32, its second float16: cast"),
        (lambda: tl.exp2(HALF), TypeError, r"tl.exp2: x is float16, expected float32: x.to\(tl.float32\)"),
        (lambda: tl.exp2(np.ones(2)), TypeError, "tl.exp2: expected a tile or a number, got ndarray"),
        (lambda: tl.where(SHORT, 1.0, 0.0), TypeError, "tl.where: the condition is int32, expected a comparison"),
        (lambda: SINGLE[-1], TypeError, r"no entries that one can pick, \[-1\]: mask with tl.where and add up, tl.sum"),
        (lambda: ONES @ ONES, TypeError, r"tiles have no @: use tl.dot\(x, y\)"),
        (lambda: ONES**2, TypeError, r"tiles have no \*\*: use tl.exp2, or multiply"),
        (lambda: ONES.T, AttributeError, r"a tile has no .T: use tl.trans\(x\)"),
        (lambda: ONES.sum(0), AttributeError, r"a tile has no .sum: use tl.sum\(x\)"),
        (lambda: ONES.memory, AttributeError, r"a tile has no .memory: use tl.load\(pointer \+ offsets\)"),
        (lambda: ONES.ravel(), AttributeError, "a tile has no .ravel: use the words of tl"),
        (lambda: len(ONES), TypeError, r"a tile has no len\(\): its sizes are constexpr, x.shape\[0\]"),
        (lambda: list(ONES), TypeError, "a tile cannot be looped over"),
        (lambda: bool(MASK), TypeError, r"neither true nor false: use &, \| and ~ on masks"),
        (lambda: range(SINGLE), TypeError, r"a tile of shape \(2,\) and float32 counts no loop"),
        (lambda: float(SINGLE), TypeError, "a tile is not a number: store it with tl.store"),
        (lambda: np.cumsum(ONES), TypeError, "a GPU has no np.cumsum: use tl.cumsum"),
        (lambda: np.matmul(ONES, ONES), TypeError, "a GPU has no np.matmul: use tl.dot"),
        (lambda: np.asarray(ONES), TypeError, "NumPy knows no tile: use the words of tl"),
        (lambda: torch.exp(ONES), TypeError, "inside a program there is no torch.exp: use tl.exp"),
        (lambda: SINGLE // 2, TypeError, "// is for whole numbers"),
        (lambda: tl.sigmoid(SINGLE), AttributeError, r"tl.sigmoid: .*Triton may; 1 / \(1 \+ tl.exp\(-x\)\)"),
        (lambda: tl.dot(ONES, ONES, allow_tf32=False), TypeError, r'allow_tf32=False write input_precision="ieee"'),
        (lambda: tl.exp2(ONES.to(tl.bfloat16)), TypeError, "tl.exp2: x is bfloat16, expected float32"),
        (lambda: tl.load(SHORT), TypeError, "tl.load: expected a pointer plus offsets, got Tile"),
    ],
    ids=range(31),
)
def test_what_triton_refuses(call, error, message):
    with pytest.raises(error, match=message):
        run(lambda: call() and None)


def test_a_printed_tile_shows_its_numbers():
    assert str(Tile(np.arange(3))) == "Tile([0, 1, 2], shape=(3,), dtype=int64)"
    assert repr(Tile(np.array([1.001, -2.0])).to(tl.bfloat16)) == "Tile([ 1., -2.], shape=(2,), dtype=bfloat16)"


def test_what_the_emulator_lacks_triton_has():
    assert not [name for name in tl.ABSENT if hasattr(tl, name)]
    language = pytest.importorskip("triton.language")
    assert not [name for name in tl.ABSENT if not hasattr(language, name)]


def test_entries_of_a_tile_cannot_be_set():
    with pytest.raises(TypeError, match=r"make a new tile, tl.where\(mask, x, y\)"):
        ONES[0] = 1


def test_an_int32_that_wraps_around_is_an_error():
    rows = Tile(np.array([40_000_000], np.int32))
    with pytest.raises(TypeError, match=r"an int32 wraps around, 2560000000: tl.cast\(..., tl.int64\) before you"):
        rows * 64
    assert array(tl.cast(rows, tl.int64) * 64).tolist() == [2_560_000_000]


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (lambda x: tl.load(x, other=0.0), ValueError, "`other` is for what a mask leaves out, but there is no mask"),
        (lambda x: tl.load(x, mask=tl.arange(0, 2) > 0), ValueError, r"mask of the load of x: shape \(2,\) does not"),
        (lambda x: tl.load(x, mask=1), TypeError, "mask of the load of x: expected a comparison, got int"),
        (lambda x: tl.store(x, tl.arange(0, 2)), ValueError, r"tile that is stored in x: shape \(2,\) does not spread"),
        (lambda x: tl.load(x + 0.5), TypeError, r"x \+ offsets: offsets are float64, expected whole numbers"),
        (lambda x: x.shape, AttributeError, "pointer x has no .shape: a program gets sizes and strides as arguments"),
    ],
    ids=range(6),
)
def test_accesses_that_triton_refuses(program, error, message):
    with pytest.raises(error, match=message):
        run(program, np.zeros(4))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_a_pointer_knows_what_it_points_to(dtype):
    out = np.zeros(4, dtype)

    def program(y):
        places = y + tl.arange(0, 4)
        tile = tl.arange(0, 4).to(y.dtype.element_ty)
        assert tile.dtype == places.dtype.element_ty == y.type.element_ty == dtype
        tl.store(places, tile)

    run(program, out)
    assert out.tolist() == [0, 1, 2, 3]


def test_what_a_mask_leaves_out_is_nothing_to_rely_on():
    seen = []

    def program(x, k):
        mask = tl.arange(0, 2) < 1
        seen.extend(array(tl.load(y + tl.arange(0, 2), mask=mask)) for y in (x, k))
        seen.append(array(tl.load(x + tl.arange(0, 2), mask=mask, other=float("-inf"))))

    run(program, np.zeros(2, np.float32), np.zeros(2, np.int32))
    assert np.isnan(seen[0][1])
    assert seen[1][1] < -(2**30)
    assert seen[2][1] == -np.inf


def test_pointers_go_back_and_have_axes():
    seen = []

    def program(x):
        columns = x + tl.arange(0, 2)
        seen.append(array(tl.load(columns[None, :] + 2 * tl.arange(0, 2)[:, None])))
        seen.append(array(tl.load(x + 3 - 1)))

    run(program, np.arange(4.0))
    assert seen[0].tolist() == [[0, 1], [2, 3]]
    assert seen[1] == 2


def test_recordings_nest_and_end_with_an_error():
    with tl.recording() as outer:
        with tl.recording() as inner:
            tl.launch(double, (1,), np.zeros(4), np.zeros(4), size=4)
        with pytest.raises(IndexError), tl.recording():
            tl.launch(double, (1,), np.zeros(2), np.zeros(4), size=4)
        tl.launch(double, (1,), np.zeros(4), np.zeros(4), size=4)
    assert len(outer) == len(inner) == 2
    tl.launch(double, (1,), np.zeros(4), np.zeros(4), size=4)
    assert len(outer) == 2


def test_the_access_that_fails_is_recorded_too():
    with pytest.raises(IndexError, match="load of x at offset 6"), tl.recording() as events:
        tl.launch(double, (2,), np.zeros(6), np.zeros(8), size=7)
    assert [(e.program, e.kind, e.operand) for e in events][2:] == [((1, 0, 0), "load", "x")]
    assert events[-1].offsets.tolist() == [4, 5, 6, -1]


def entry(x):
    return x[2]


def put(x):
    x[2] = 0


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (entry, r"entry: pointer x has no entries; read with tl.load\(x \+ offsets\)"),
        (put, r"put: pointer x has no entries; write with tl.store\(x \+ offsets, tile\)"),
    ],
)
def test_a_pointer_says_how_to_reach_entries(program, message):
    with pytest.raises(TypeError, match=message):
        run(program, np.zeros(3))


def test_the_tracer_shows_the_access_that_fails():
    """Rows 2 and 3 of a tensor that has three: the tile hangs out of it at the bottom."""

    def copy(x, y):
        rows = 2 * tl.program_id(0) + tl.arange(0, 2)
        where = rows[:, None] * 4 + tl.arange(0, 4)[None, :]
        tl.store(y + where, tl.load(x + where))

    with pytest.raises(IndexError, match="load of x at offset 12, expected 0 to 11"), tl.recording() as events:
        tl.launch(copy, (2,), np.zeros((3, 4)), np.zeros((4, 4)))
    (trace,) = KernelTracer.of(events, {"x": (3, 4), "y": (4, 4)}, step=3)._traces
    _, program, _, what, _, row, column, _, _, down, across, *_ = trace["steps"][-1]
    assert (program, row, column, down, across) == (1, 2, 0, 2, 4)
    assert (trace["operands"][what]["name"], trace["operands"][what]["rows"]) == ("X", 3)
    assert trace["operands"][what]["height"] == 4
