"""How chapter 12 runs a learner's program, and what its exercises say to answers that are no known mistake."""

import numpy as np
import pytest
import torch

from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.ch12_tiles import program, tiles
from smalearn.fast import tile as tl


@tiles
def half(x, factor):
    return x * factor


@program("y")
def copy(x, y, length):
    i = tl.arange(0, 4)
    tl.store(y + i, tl.load(x + i, mask=i < length, other=-1.0))


@program("y", "count", grid="count")
def rows(x, y, count):
    k = tl.program_id(0)
    copy(x + 4 * k, y + 4 * k, k)
    tl.store(count + k, k)


def test_a_function_of_tiles_takes_tensors_and_arrays():
    found = half(torch.tensor([2.0, 4.0]), 0.5)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [1, 2]
    assert isinstance(half(np.ones(2), 0.5), np.ndarray)
    assert tiles(lambda x: None)(torch.ones(2)) is None
    assert tiles(lambda x: x[::-1])(torch.tensor([1.0, 2.0])).tolist() == [2, 1]


def test_a_program_runs_on_copies_and_gives_what_it_stored():
    x, y = torch.arange(4.0), torch.full((4,), torch.nan)
    assert copy(x, y, 3).tolist() == [0, 1, 2, -1]
    assert y.isnan().all()
    transposed = torch.arange(8.0).reshape(4, 2).mT[1]
    assert copy(transposed, y, 4).tolist() == [1, 3, 5, 7]


def test_one_program_for_each_entry_and_programs_call_programs():
    y, count = rows(torch.arange(8.0), torch.zeros(8), torch.zeros(2))
    assert y.tolist() == [-1, -1, -1, -1, 4, -1, -1, -1]
    assert count.tolist() == [0, 1]
    assert (copy.__name__, copy.__wrapped__.__name__) == ("copy", "copy")


def test_a_program_that_returns_is_told_to_store():
    @program("y")
    def back(y):
        return y

    with pytest.raises(TypeError, match="back: a program returns nothing, it stores; got Pointer"):
        back(torch.ones(2))


def judged(id, attempt):
    exercise = registry()[id]
    return evaluate(exercise, attempt)


def test_a_mask_after_the_exponential_is_no_number():
    @tiles
    def read_chunk(H, X, B, C, log2_a):
        s, i = tl.cumsum(log2_a), tl.arange(0, len(log2_a))
        M = tl.dot(C, tl.trans(B)) * tl.exp2(s[:, None] - s[None, :]) * (i[:, None] >= i[None, :])
        return tl.dot(C, H) * tl.exp2(s)[:, None] + tl.dot(M, X)

    with np.errstate(all="ignore"):
        result = judged("12.4", read_chunk)
    assert (result.outcome, result.passed, result.misconception) == ("failed", 4, None)
    assert result.problem.sentence.startswith("Not finite")


@pytest.mark.parametrize(("forgotten", "says"), [("load", "load of x at offset"), ("store", "store of y at offset")])
def test_the_tile_machine_reports_what_is_not_masked(forgotten, says):
    @program("y", "final")
    def walk(x, log2_a, b, c, y, initial, final, length, sizes):
        i, p = tl.arange(0, sizes[0]), tl.arange(0, sizes[2])
        inside = (i < length)[:, None]
        wide = i[:, None] * sizes[2] + p[None, :]
        X = tl.load(x + wide, mask=None if forgotten == "load" else inside, other=0.0)
        tl.store(y + wide, X, mask=None if forgotten == "store" else inside)

    result = judged("12.5", walk)
    assert result.outcome == "error"
    assert any(f"walk, program (0, 0, 0): {says}" in line for line in result.problem.lines)


def test_rows_of_the_state_are_not_its_columns():
    @program("y", "final")
    def walk(x, log2_a, b, c, y, initial, final, length, sizes):
        n, p = tl.arange(0, sizes[1]), tl.arange(0, sizes[2])
        tl.store(final + p[:, None] * sizes[1] + n[None, :], tl.load(initial + n[:, None] * sizes[2] + p[None, :]))

    result = judged("12.5", walk)
    assert result.outcome == "error"
    assert any("broadcast" in line for line in result.problem.lines)


def test_a_forgotten_store_leaves_holes():
    @program("added", "total", grid="total")
    def summary(x, log2_a, added, total, length, chunk_len):
        tl.store(total + tl.program_id(0), 0.0)

    result = judged("12.2", summary)
    assert result.outcome == "failed"
    assert "item 0 of the answer: not finite" in result.problem.sentence
