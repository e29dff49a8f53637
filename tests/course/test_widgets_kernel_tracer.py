"""The Python half of the kernel tracer: its designs against the recurrence, its traces against the events."""

import re

import numpy as np
import pytest
import torch

from smalearn.course.ch12.walk import walk
from smalearn.course.widgets import KernelTracer
from smalearn.course.widgets.kernel_designs import DESIGNS, operands, run
from smalearn.course.widgets.kernel_traces import HELD, KINDS, LETTERS
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton
from smalearn.fast.triton import ssd_tiles
from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close, random_tensors

SIZES = [(40, 16, 8, 20, 2), (1, 16, 1, 1, 1), (64, 16, 32, 32, 4), (33, 32, 3, 17, 3), (64, 64, 16, 16, 1)]


def tracer(sizes=SIZES[0], **shown):
    return KernelTracer(*sizes, **shown)


def trace(explorer, design="one walk"):
    return next(trace for trace in explorer._traces if trace["name"] == design)


def tensors(made):
    return {name: torch.tensor(memory[: np.prod(shape)].reshape(shape)) for name, (memory, shape) in made.items()}


@pytest.mark.parametrize("design", ["one walk", "four steps"])
@pytest.mark.parametrize("sizes", SIZES)
def test_designs_compute_the_recurrence(design, sizes):
    made = operands(*sizes)
    for stage in DESIGNS[design]:
        run(stage, made, sizes[1])
    x = tensors(made)
    Y, H = ssd_recurrent(x["x"].double(), x["log_a"][..., 0].double(), x["b"].double(), x["c"].double())
    assert_close(x["y"], Y.float())
    assert_close(x["final"].mT, H.float())
    for memory, shape in made.values():
        assert not memory[np.prod(shape) :].any()  # what is behind a tensor is nobody's


def test_a_walk_without_masks_is_wrong_and_writes_where_it_must_not():
    right, wrong = operands(*SIZES[0]), operands(*SIZES[0])
    run(*DESIGNS["one walk"], right, 16)
    run(*DESIGNS["one walk without masks"], wrong, 16)
    assert (tensors(right)["y"] - tensors(wrong)["y"]).abs().max() > 0.1
    memory, shape = wrong["y"]
    assert memory[np.prod(shape) :].any()


def test_a_walk_without_masks_is_right_where_tiles_fit():
    assert tracer(SIZES[2]).costs["one walk"] == tracer(SIZES[2]).costs["one walk without masks"]
    assert trace(tracer(SIZES[2]))["steps"] == trace(tracer(SIZES[2]), "one walk without masks")["steps"]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("sizes", SIZES)
def test_steps_are_the_events(design, sizes):
    """Every lane of every tile, from the rectangle that the browser gets, against the offsets of the recording."""
    made, found = operands(*sizes), trace(tracer(sizes), design)
    letters = {operand["name"]: operand for operand in found["operands"]}
    steps = iter(found["steps"])
    for number, stage in enumerate(DESIGNS[design]):
        events, grid = run(stage, made, sizes[1])
        assert found["grids"][number] == list(grid)
        for event in events:
            launch, program, kind, what, *place, moved, macs, _ = next(steps)
            assert (launch, KINDS[kind], moved, macs) == (number, event.kind, event.bytes, event.flops // 2)
            assert event.program == np.unravel_index(program, grid)
            if event.kind == "dot":
                assert place[:3] == event.offsets.tolist()
                continue
            operand = letters[LETTERS.get(event.operand, event.operand)]
            assert found["operands"][what] == operand
            panel, row, column, height, width, down, across = place
            lanes = np.arange(height)[:, None], np.arange(width)
            offsets = ((panel * operand["rows"] + row) + lanes[0]) * operand["columns"] + column + lanes[1]
            expected = np.where((lanes[0] < down) & (lanes[1] < across), offsets, -1)
            np.testing.assert_array_equal(event.offsets.reshape(height, width), expected)
            assert row + height <= operand["height"]
            assert column + width <= operand["width"]
    assert next(steps, None) is None


def test_totals_are_those_of_the_steps_that_are_done():
    explorer = tracer(step=0)
    assert explorer.totals == {"loaded": 0, "stored": 0, "macs": 0}
    sums = {"load": 0, "store": 0, "dot": 0}
    for number, step in enumerate(trace(explorer)["steps"], 1):
        sums[KINDS[step[2]]] += step[11] + step[12]
        explorer.step = number
        assert list(explorer.totals.values()) == list(sums.values())
    assert explorer.totals == explorer.costs["one walk"]


def held(explorer, design="one walk"):
    found = trace(explorer, design)
    return [{name: (rows, columns) for name, rows, columns in found["held"][step[13]]} for step in found["steps"]]


def test_the_walk_keeps_the_state_and_drops_the_chunk():
    chips = held(tracer())
    assert list(chips[0]) == list(chips[9]) == list(chips[18]) == ["H", "sums of log a"]
    assert list(chips[8]) == list(chips[27]) == ["H", "sums of log a", "B", "X", "C", "M", "Y"]
    assert all(chip["H"] == (16, 16) for chip in chips)
    assert chips[8]["sums of log a"] == (16, 2)
    assert held(tracer((64, 32, 32, 16, 1)))[8]["M"] == (32, 32)
    assert held(tracer((64, 32, 32, 16, 1)))[8]["C"] == (32, 32)


def test_only_the_second_of_four_steps_keeps_a_state():
    explorer = tracer()
    launches = [step[0] for step in trace(explorer, "four steps")["steps"]]
    first = [launches.index(number) for number in range(4)]
    chips = held(explorer, "four steps")
    assert ["H" in chips[place] for place in first] == [False, True, False, False]
    assert [list(chips[place + 3])[1:] for place in first] == [
        ["B", "X", "added H"],
        ["sums of log a"],
        ["B", "C", "M"],
        ["C", "H", "Y"],
    ]
    assert set(HELD.values()) <= {name for chip in chips for name in chip}


def test_the_step_fits_the_design():
    explorer = tracer(design="four steps", step=200)
    explorer.design = "one walk"
    assert explorer.step == 112
    explorer.design = "four steps"
    assert explorer.step == 112


def recorded(*shapes, program):
    with tl.recording() as events:
        tl.launch(program, (1,), *map(np.zeros, shapes))
    return events


def test_another_recording_is_shown():
    """`ssd_tiles` and its gradients: four launches; the memory of the last states is turned."""
    X, B, C, dY, dstate = (x.float() for x in random_tensors([(2, 20, 5), (20, 3), (20, 3), (2, 20, 5), (2, 5, 3)]))
    for x in (X, B, C):
        x.requires_grad_()
    with tl.recording() as events:
        Y, state = ssd_tiles(X, torch.zeros(2, 20), B, C)
        torch.autograd.backward((Y, state), (dY, dstate))
    shapes = dict.fromkeys(("x", "y", "dy", "dx"), (2, 20, 5)) | dict.fromkeys(("b", "c", "db", "dc"), (20, 3))
    shapes |= dict.fromkeys(("final", "dfinal", "dinitial"), (2, 5, 3)) | dict.fromkeys(("log_a", "dlog_a"), (2, 20, 1))
    shapes |= dict.fromkeys(("states", "dstates"), (2, 3, 5)) | {"pairs": (2, 20, 64)}
    explorer = KernelTracer.of(events, shapes)
    found = explorer._traces[0]
    assert found["grids"] == [[1, 2, 1], [1, 2, 1], [2, 1, 1], [1, 1, 1]]
    assert explorer.costs["recording"]["stored"] == sum(e.bytes for e in events if e.kind == "store")
    assert explorer.costs["recording"]["macs"] == sum(e.flops for e in events) // 2
    final = next(operand for operand in found["operands"] if operand["name"] == "last H")
    assert (final["panels"], final["rows"], final["columns"]) == (2, 5, 3)
    assert (final["height"], final["width"]) == (16, 16)
    assert found["held"] == [[]]
    assert repr(explorer) == f"KernelTracer.of({len(events)} events, step={len(events) // 2})"
    assert explorer.png().startswith(b"\x89PNG")


def test_launches_are_told_apart_by_their_programs():
    def program(x):
        tl.load(x + tl.program_id(0) * 2 + tl.arange(0, 2))

    with tl.recording() as events:
        for grid in [(2,), (1, 2), (2, 1, 2)]:
            tl.launch(program, grid, np.zeros((2, 2)))
    explorer = KernelTracer.of(events, {"x": (2, 2)}, step=7)
    found = explorer._traces[0]
    assert found["grids"] == [[2, 1, 1], [1, 2, 1], [2, 1, 2]]
    assert [step[:2] for step in found["steps"]] == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2], [2, 3]]
    assert explorer.totals == {"loaded": 7 * 16, "stored": 0, "macs": 0}


def test_what_lies_behind_the_last_matrix_hangs_below_it():
    events = recorded((20,), program=lambda x: tl.load(x + 9 + tl.arange(0, 1)))
    (found,) = KernelTracer.of(events, {"x": (2, 2, 2)})._traces
    assert found["steps"][0][4:7] == [1, 2, 1]
    assert (found["operands"][0]["height"], found["operands"][0]["width"]) == (3, 2)
    events = recorded((32,), program=lambda x: tl.load(x + tl.arange(0, 4)))  # of one row of four, a half
    (found,) = KernelTracer.of(events, {"x": (4, 8)})._traces
    assert (found["operands"][0]["height"], found["operands"][0]["width"]) == (4, 8)


def loads(length, shape, program=lambda x: tl.load(x)):
    """What one program recorded, on a tensor of this length, and its shape."""
    return recorded((length,), program=program), {"x": shape}


@pytest.mark.parametrize(
    ("recording", "message"),
    [
        (([], {}), "events, expected 1 to 4000, got 0"),
        ((loads(4, (4, 1))[0] * 4001, {"x": (4, 1)}), "events, expected 1 to 4000, got 4001"),
        ((loads(4, None)[0], {}), "shape of x, expected (..., rows, columns), at most 16 matrices of at most 256 rows"),
        *((loads(4, one), f"columns, got {one}") for one in ((4,), (17, 4, 4), (257, 4), (0, 4))),
        (loads(8, (1, 8), lambda x: tl.load(x + 2 * tl.arange(0, 4))), "expected neighbouring rows and columns"),
        (loads(8, (1, 8), lambda x: tl.load(x + tl.arange(0, 4), mask=tl.arange(0, 4) > 0)), "neighbouring rows"),
    ],
    ids=range(9),
)
def test_what_is_no_recording_is_refused(recording, message):
    with pytest.raises(ValueError, match=rf"^KernelTracer\.of: .*{re.escape(message)}"):
        KernelTracer.of(*recording)


def walk_operands(length=40, state=16, head_dim=16):
    shapes = [(length, head_dim), (length,), (length, state), (length, state), (state, head_dim)]
    X, z, B, C, H = random_tensors(shapes, dtype=torch.float32)
    return X, -z.abs(), B, C, H, 16


@triton.jit
def unmasked_kernel(x, y, length, Q: tl.constexpr, P: tl.constexpr):
    for start in range(0, length, Q):
        where = (start + tl.arange(0, Q))[:, None] * P + tl.arange(0, P)[None, :]
        X = tl.load(x + where)
        tl.store(y + where, X)


def unmasked(X, log2_a, B, C, initial, chunk_len):
    Y = torch.empty_like(X)
    unmasked_kernel[(1,)](X, Y, len(X), Q=chunk_len, P=X.shape[1])
    return Y


def test_a_learners_walk_races_against_four_steps():
    explorer = KernelTracer.race(walk, walk_operands())
    T, N, P = 40, 16, 16
    assert list(explorer.costs) == ["your walk", "four steps"]
    assert explorer.costs["your walk"]["loaded"] == 4 * (T * P + 2 * T * N + T + N * P)
    assert explorer.costs["your walk"]["stored"] == 4 * (T * P + N * P)
    assert explorer.costs["your walk"]["macs"] == explorer.costs["four steps"]["macs"]
    assert (explorer._race, explorer._fails) == (True, "")
    names = {operand["name"] for operand in trace(explorer, "your walk")["operands"]}
    assert names == {"X", "log2_a", "B", "C", "Y", "initial", "last H"}
    assert repr(explorer) == (
        "KernelTracer(length=40, chunk_len=16, state=16, head_dim=16, heads=1, design='your walk', step=14)"
    )
    assert explorer.png().startswith(b"\x89PNG")


def test_the_chip_holds_what_the_kernels_own_variables_hold():
    chips = held(KernelTracer.race(walk, walk_operands()), "your walk")
    assert list(chips[0]) == ["H"]
    assert list(chips[3]) == ["H", "X", "B", "C"]
    assert chips[8] == dict.fromkeys(["H", "X", "B", "C", "L", "M", "Y", "fX"], (16, 16)) | {"a": (16, 1), "s": (16, 1)}


def test_a_product_is_named_after_the_variables_that_it_multiplies():
    found = trace(KernelTracer.race(walk, walk_operands()), "your walk")
    assert found["products"] == ["C Bᵀ", "C H", "M X", "Bᵀ fX"]
    assert [found["products"][step[3]] for step in found["steps"] if step[2] == 2] == found["products"] * 3


@triton.jit
def unnamed_kernel(x, y):
    i = tl.arange(0, 16)
    where = i[:, None] * 16 + i[None, :]
    X = tl.load(x + where)
    half = X.to(tl.float16)
    tl.store(y + where, tl.dot(half, tl.trans(half)) + tl.dot(X + 1.0, X))


def test_a_factor_that_is_in_no_variable_has_no_name():
    def run(X, *_):
        Y = torch.empty_like(X)
        unnamed_kernel[(1,)](X, Y)
        return Y

    assert trace(KernelTracer.race(run, walk_operands(16)), "your walk")["products"] == ["half halfᵀ", "… X"]


def test_an_access_that_fails_is_the_last_and_is_said():
    explorer = KernelTracer.race(unmasked, walk_operands())
    assert explorer._fails == (
        "unmasked_kernel, program (0, 0, 0): load of x at offset 640, expected 0 to 639 or a mask"
    )
    found = trace(explorer, "your walk")
    _, _, kind, what, _, row, _, height, _, down, *_ = found["steps"][-1]
    assert (KINDS[kind], row, height, down) == ("load", 32, 16, 16)  # rows 40 to 47 are not there
    assert (found["operands"][what]["rows"], found["operands"][what]["height"]) == (40, 48)


@pytest.mark.parametrize(
    ("run", "operands", "message"),
    [
        (lambda *_: None, walk_operands(), "KernelTracer.race: run launched no kernel that touches memory"),
        (walk, walk_operands(65), "length, expected an int from 1 to 64, got 65"),
        (walk, walk_operands(head_dim=64), "head_dim, expected an int from 1 to 32, got 64"),
    ],
    ids=range(3),
)
def test_what_cannot_race_is_refused(run, operands, message):
    with pytest.raises(ValueError, match=message):
        KernelTracer.race(run, operands)
