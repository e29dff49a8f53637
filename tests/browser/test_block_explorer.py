"""The block explorer on a bare page: no kernel, no JupyterLab."""

import itertools
import random

import pytest
import torch
from views import READ, change, drags, drawn, headline, heard, words

from smalearn.course.widgets import BlockExplorer
from smalearn.course.widgets.block_explorer import KINDS
from smalearn.testing import random_tensors, relative_rms


def block(page):
    return page.evaluate("model.get('block')")


def close(found, expected):
    """Within 1e-9 of each singular value, or within rounding of the largest."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) <= 1e-9 * other + 1e-14 * expected[0]


@pytest.mark.parametrize("kind", KINDS)
def test_script_computes_the_matrix_the_values_and_the_ranks_of_python(mount, kind):
    explorer, chance = BlockExplorer(kind), random.Random(kind)
    page = mount(explorer)
    states = []
    for state, length, seed in itertools.product((1, 3, 6), (1, 5, 24, 32), (0, 3)):
        edges = [sorted(chance.sample(range(length + 1), 2)) for _ in "ts"]
        states.append({"state": state, "length": length, "seed": seed, "block": edges[0] + edges[1]})
    for state, found in zip(states, page.evaluate(READ, states), strict=True):
        for name, value in state.items():
            setattr(explorer, name, value)
        assert relative_rms(torch.tensor(found["M"], dtype=torch.float64), explorer.matrix) < 1e-14
        close(found["values"], explorer.singular_values.tolist())
        assert found["cut"] == pytest.approx(explorer.cut, rel=1e-12)
        assert (found["rank"], found["bound"]) == (explorer.rank, explorer.bound), state


def cases():
    """Matrices of many shapes: random, of low rank, graded, repeated, zero."""
    for (rows, columns), seed in itertools.product([(1, 1), (1, 9), (9, 1), (7, 12), (32, 5), (32, 32)], range(2)):
        (M,) = random_tensors([(rows, columns)], seed)
        yield M
        yield M.triu()
        yield M @ torch.diag(0.1 ** torch.arange(columns, dtype=M.dtype).clamp(max=12))
        yield M[:, :1] @ M[:1]
        yield torch.eye(rows, columns, dtype=M.dtype)
        yield torch.zeros_like(M)


def test_script_finds_the_singular_values_of_lapack(mount):
    matrices = list(cases())
    found = mount(BlockExplorer()).evaluate("(all) => all.map(script.singularValues)", [M.tolist() for M in matrices])
    for values, M in zip(found, matrices, strict=True):
        close(values, torch.linalg.svdvals(M).tolist())


def test_rank_and_reason_are_shown(mount):
    page = mount(BlockExplorer(state=3, length=24, block=(12, 20, 3, 11)))
    assert headline(page) == "A block of 8 by 8 has rank 3, of at most 3"
    assert words(page) == (
        "The block M[12:20, 3:11] has rank 3 of at most 3. "
        "What passes from its inputs to its outputs passes through N = 3 numbers."
    )
    for new, text, reason in [
        (
            {"block": [8, 20, 3, 14]},
            "A block of 12 by 11 has rank 8, of at most 8",
            "so its rank may exceed N = 3 by 5.",
        ),
        (
            {"block": [0, 4, 4, 9]},
            "A block of 4 by 5 has rank 0, of at most 0",
            "above the diagonal, where M is 0 by convention: no output",
        ),
        (
            {"block": [12, 20, 3, 11], "kind": "softmax"},
            "A block of 8 by 8 has rank 8, of at most 8",
            "its N = 3 features are no bound.",
        ),
        ({"kind": "scalar", "state": 1}, "A block of 8 by 8 has rank 1, of at most 1", "passes through N = 1 numbers."),
    ]:
        assert headline(change(page, **new)) == text
        heard(page, reason)


def test_controls_tell_python(mount):
    page = mount(BlockExplorer(length=24))
    page.get_by_role("slider", name="T, length").focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("[saved.length, saved.block]") == [23, [12, 20, 3, 11]]
    page.get_by_role("slider", name="T, length").fill("10")
    assert page.evaluate("[saved.length, saved.block]") == [10, [2, 10, 2, 10]]
    assert drawn(page).get_by_role("slider", name="T, length").get_attribute("aria-valuetext") == "10"
    page.get_by_role("slider", name="T, length").fill("32")
    for kind in reversed(KINDS):
        page.get_by_role("combobox", name="M, kind of A").select_option(kind)
        assert page.evaluate("saved.kind") == kind
    page.get_by_role("button", name="Take the largest").click()
    assert page.evaluate("saved.block") == [2, 32, 0, 3]
    change(page, kind="general", state=5, length=20, block=[7, 9, 0, 1])
    assert page.get_by_role("combobox", name="M, kind of A").input_value() == "general"
    assert page.get_by_role("slider", name="N, state size").get_attribute("aria-valuetext") == "5"


@pytest.mark.parametrize("length", [5, 12])
def test_a_block_that_is_too_large_for_a_moment_is_drawn_as_python_will_move_it(mount, length):
    """Python first tells the length, and then the block that it has moved."""
    explorer = BlockExplorer(length=24, block=(16, 23, 5, 20))
    page = mount(explorer)
    (found,) = page.evaluate(READ, [{"length": length}])
    drawn(page)
    explorer.length = length
    assert found["block"] == explorer.block


def place(page, row, column):
    """Where an edge between cells is, in pixels of the canvas."""
    cell = (page.locator("canvas").first.bounding_box()["height"] - 56) / page.evaluate("model.get('length')")
    return 26 + column * cell, 30 + row * cell


def drag(page, start, end, steps=4):
    """Move the pressed pointer from one place to another, each given as row and column."""
    box = page.locator("canvas").first.bounding_box()
    (x, y), (to_x, to_y) = place(page, *start), place(page, *end)
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.mouse.move(box["x"] + to_x, box["y"] + to_y, steps=steps)
    page.mouse.up()
    return block(drawn(page))


@pytest.mark.parametrize("width", [360, 1000])
def test_block_is_dragged_and_stays_within_the_matrix(mount, width):
    page = mount(BlockExplorer(length=20, block=(10, 16, 2, 7)))
    page.set_viewport_size({"width": width, "height": 800})
    drawn(page)
    assert drag(page, (13, 4.5), (15, 7.5)) == [12, 18, 5, 10]
    assert page.evaluate("saved.block") == [12, 18, 5, 10]
    assert drag(page, (14, 8), (60, -60)) == [14, 20, 0, 5]
    assert drag(page, (16, 2), (-60, 60)) == [0, 6, 15, 20]
    page.mouse.move(100, 300)
    assert block(page) == [0, 6, 15, 20]


@pytest.mark.parametrize(
    ("corner", "to", "expected"),
    [
        ((8, 4), (6, 1), [6, 14, 1, 12]),
        ((8, 12), (10, 15), [10, 14, 4, 15]),
        ((14, 4), (18, 2), [8, 18, 2, 12]),
        ((14, 12), (20, 20), [8, 20, 4, 20]),
        ((14, 12), (4, 2), [4, 8, 2, 4]),  # past the opposite corner
        ((14, 12), (8, 4), [8, 9, 4, 5]),  # never empty
        ((8, 4), (14, 12), [13, 14, 11, 12]),
        ((8, 4), (-50, -50), [0, 14, 0, 12]),
    ],
)
def test_corners_resize_the_block(mount, corner, to, expected):
    assert drag(drawn(mount(BlockExplorer(length=20, block=(8, 14, 4, 12)))), corner, to) == expected


def test_a_small_block_can_be_held_inside_and_its_corners_outside(mount):
    page = drawn(mount(BlockExplorer(length=32, block=(20, 22, 6, 8))))
    assert drag(page, (21, 7), (24, 5)) == [23, 25, 4, 6]
    assert drag(page, (25.3, 6.3), (29.3, 9.3)) == [23, 29, 4, 9]


def test_a_click_elsewhere_calls_the_block(mount):
    page = drawn(mount(BlockExplorer(length=20, block=(10, 16, 2, 6))))
    x, y = place(page, 5, 12)
    page.locator("canvas").first.click(position={"x": x, "y": y})
    assert block(page) == [2, 8, 10, 14]
    script = """([x, y]) => {
      const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new MouseEvent("click", { clientX: box.left + x, clientY: box.top + y }));
    }"""
    page = drawn(mount(BlockExplorer(length=20, block=(10, 16, 2, 6))))
    page.evaluate(script, place(page, 5, 12))  # without a pointer, as some screen readers do
    assert block(page) == [2, 8, 10, 14]


def test_a_finger_drags_the_block_and_scrolls_elsewhere(mount):
    page = drawn(mount(BlockExplorer(length=20, block=(10, 16, 2, 6))))
    for row, column, held in [(13, 4, True), (10, 2, True), (15.7, 6.3, True), (3, 4, False), (13, 12, False)]:
        assert drags(page, 0, *place(page, row, column)) is held
    assert not drags(page, 1, 100, 100)
