"""What chapter 01 asks: a case that is printed is that case, and a plan is not taken for another."""

import re
from itertools import product

import notebooks
import pytest
import torch

from smalearn import sma
from smalearn.course.ch01.orders import LINEAR, QUADRATIC, _macs
from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.report import argument

EXERCISES = registry()


@pytest.mark.parametrize("id", ["1.2", "1.6"])
def test_a_case_that_is_copied_has_the_answer_that_is_printed(id):
    exercise, copied = EXERCISES[id], 0
    for case in exercise.draw():
        lines = [argument("x", value) for value in case]
        if all(line.startswith("x = ") for line in lines):  # a big tensor is only described
            pasted = [eval(line.removeprefix("x = "), {"torch": torch}) for line in lines]
            torch.testing.assert_close(exercise.solution(*pasted), exercise.solution(*case), rtol=0, atol=1e-3)
            copied += 1
    assert copied


@pytest.mark.parametrize(
    "order", [QUADRATIC, LINEAR, lambda sizes: min(QUADRATIC(sizes), LINEAR(sizes), key=lambda s: _macs(s, sizes))]
)
def test_who_knows_no_more_than_two_orders_hears_of_no_measure(order):
    result = evaluate(EXERCISES["1.4"], order)
    assert "largest" not in result.problem.sentence
    assert "(15)" not in f"{result.problem.sentence} {result.misconception}"


def third_wins(target, source, features, head_dim, scan):
    table = sma.sma_orders(target, source, features, head_dim, scan)
    return table[0].macs < min(table.named(name).macs for name in (sma.QUADRATIC, sma.LINEAR))


@pytest.mark.parametrize("scan", [False, True])
def test_neither_of_two_orders_wins_where_the_chapter_says_so(scan):
    cells = {cell.id: cell.source for cell in notebooks.read(notebooks.CHAPTERS / "01_one_contraction.ipynb").cells}
    source, head_dim = map(int, re.search(r"begin at \$S = (\d+)\$, \$P = (\d+)\$", cells["map"]).groups())
    assert any(third_wins(target, source, 1, head_dim, scan) for target in (4, 64, 1024))
    found = [sizes for sizes in product(range(1, 6), repeat=4) if third_wins(*sizes, scan)]
    assert all(target != source and 1 in (features, head_dim) for target, source, features, head_dim in found)
