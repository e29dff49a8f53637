"""The tile machine: each operation against NumPy written out, its checks, and what it records."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from smalearn.course.widgets import KernelTracer
from smalearn.course.widgets.kernel_tracer import FILLS
from smalearn.fast import tile as tl


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
    np.testing.assert_array_equal(results[0], x.T[2:4, 1:3])
    with pytest.raises(IndexError, match="offset 11, expected 0 to 10"):
        run(program, (seen, 1, 4), offset=6)


def test_operations():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 32)).astype(np.float32), rng.standard_normal((32, 64)).astype(np.float32)
    products = []
    (event,) = run(lambda: products.append(tl.dot(x, y)))
    np.testing.assert_allclose(products[0], x.astype(float) @ y, rtol=1e-4, atol=1e-4)
    assert (event.kind, event.offsets.tolist(), event.bytes, event.flops) == ("dot", [16, 32, 64], 0, 2 * 16 * 32 * 64)
    half = tl.dot(tl.cast(x, tl.float16), tl.cast(y, tl.float16))
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, x.astype(np.float16).astype(float) @ y.astype(np.float16), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tl.cumsum(x, 0)[-1], x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(tl.sum(x, 1), x.sum(1), rtol=1e-5, atol=1e-5)
    assert tl.full((2, 3), 1.5, tl.float32).tolist() == [[1.5] * 3] * 2
    assert tl.exp2(tl.where(tl.arange(0, 2) > 0, 3.0, float("-inf"))).tolist() == [0, 8]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: tl.arange(0, 12), ValueError, "arange: length is 12, expected a power of two"),
        (lambda: tl.dot(np.ones((8, 16)), np.ones((16, 16))), ValueError, r"dot: shapes are \(8, 16\) and \(16, 16\)"),
        (lambda: tl.dot(np.ones((16, 16)), np.ones((16, 16), np.float32)), TypeError, "dot: y is float32 but x is fl"),
    ],
)
def test_what_triton_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


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
    """Rows 2 and 3 of a tensor that has three: the tile hangs out of it at the bottom, in the colour of a warning."""

    def copy(x, y):
        rows = 2 * tl.program_id(0) + tl.arange(0, 2)
        where = rows[:, None] * 4 + tl.arange(0, 4)[None, :]
        tl.store(y + where, tl.load(x + where))

    with pytest.raises(IndexError, match="load of x at offset 12, expected 0 to 11"), tl.recording() as events:
        tl.launch(copy, (2,), np.zeros((3, 4)), np.zeros((4, 4)))
    tracer = KernelTracer.of(events, {"x": (3, 4), "y": (4, 4)}, step=3)
    figure = Figure()
    tracer.draw(figure)
    patches = [p for p in figure.axes[0].patches if to_hex(p.get_facecolor()) == FILLS["warning"]]
    assert sum(p.get_width() * p.get_height() for p in patches) == 4
    (x,) = (operand for operand in tracer._traces[0]["operands"] if operand["name"] == "X")
    assert (x["rows"], x["height"]) == (3, 4)
