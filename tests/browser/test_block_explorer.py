"""The block explorer on a bare page: no kernel, no JupyterLab."""

import itertools
import random

import pytest
import torch
from views import PICTURES, READ, change, drags, drawn, headline, heard, words

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
        assert_block_passes(found, explorer)


def assert_block_passes(found, explorer):
    """What is written into the waist and read there is the block; nothing passes beside it but what may."""
    top, bottom, left, right = explorer.block
    block, passed = explorer.matrix[top:bottom, left:right], len(found["flow"]["write"])
    through = torch.zeros(bottom - top, passed, dtype=torch.float64)
    for row, read in zip(through, found["flow"]["read"], strict=explorer.kind != "softmax"):
        if read and passed:
            row[:] = torch.tensor(found["flow"]["write"], dtype=torch.float64) @ torch.tensor(read, dtype=torch.float64)
    torch.testing.assert_close(through, block[:, :passed], rtol=1e-12, atol=1e-14)
    beside = int((block[:, passed:] != 0).any(0).sum())
    assert beside == (max(min(right, bottom) - left, 0) if explorer.kind == "softmax" else found["beyond"])


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
    assert headline(page) == "64 threads through 3 numbers: rank 3, of at most 3"
    assert words(page) == (
        "The block M[12:20, 3:11] has rank 3 of at most 3. "
        "What passes from its inputs to its outputs passes through N = 3 numbers."
    )
    for new, text, reason in [
        (
            {"block": [8, 20, 3, 14]},
            "117 threads, 5 words beside the waist: rank 8, of at most 8",
            "so its rank may exceed N = 3 by 5.",
        ),
        (
            {"block": [0, 4, 4, 9]},
            "0 threads through 3 numbers: rank 0, of at most 0",
            "above the diagonal, where M is 0 by convention: no output",
        ),
        (
            {"block": [12, 20, 3, 11], "kind": "softmax"},
            "64 threads, no waist: rank 8, of at most 8",
            "its N = 3 features are no bound.",
        ),
        ({"kind": "scalar", "state": 1}, "64 threads through 1 number: rank 1, of at most 1", "through N = 1 numbers."),
    ]:
        assert headline(change(page, **new)) == text
        heard(page, reason)


def test_controls_tell_python(mount):
    page = mount(BlockExplorer(length=24, block=(12, 20, 3, 11)))
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


def test_a_cut_stays_a_cut_when_the_text_grows_or_shrinks(mount):
    page = mount(BlockExplorer(length=24))
    length = page.get_by_role("slider", name="T, length")
    for new, expected in [("32", [16, 32, 0, 16]), ("9", [5, 9, 0, 5]), ("1", [0, 1, 0, 1]), ("4", [1, 4, 0, 1])]:
        length.fill(new)
        assert page.evaluate("saved.block") == expected


MATRIX = 1  # number of its canvas; 0 is the hourglass


def place(page, row, column):
    """Where an edge between cells is, in pixels of the canvas."""
    cell = (page.locator("canvas").nth(MATRIX).bounding_box()["height"] - 56) / page.evaluate("model.get('length')")
    return 26 + column * cell, 30 + row * cell


def drag(page, start, end, steps=4):
    """Move the pressed pointer from one place to another, each given as row and column."""
    box = page.locator("canvas").nth(MATRIX).bounding_box()
    (x, y), (to_x, to_y) = place(page, *start), place(page, *end)
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.mouse.move(box["x"] + to_x, box["y"] + to_y, steps=steps)
    page.mouse.up()
    return block(drawn(page))


@pytest.mark.parametrize("width", [360, 1000])
def test_block_is_dragged_and_stays_within_the_matrix(mount, width):
    page = mount(BlockExplorer(length=20, block=(10, 16, 2, 7)))
    page.set_viewport_size({"width": width, "height": 1200})
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
    page.locator("canvas").nth(MATRIX).click(position={"x": x, "y": y})
    assert block(page) == [2, 8, 10, 14]
    script = """([x, y]) => {
      const canvas = document.querySelectorAll("canvas")[1], box = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new MouseEvent("click", { clientX: box.left + x, clientY: box.top + y }));
    }"""
    page = drawn(mount(BlockExplorer(length=20, block=(10, 16, 2, 6))))
    page.evaluate(script, place(page, 5, 12))  # without a pointer, as some screen readers do
    assert block(page) == [2, 8, 10, 14]


def test_a_finger_drags_the_block_and_the_cut_and_scrolls_elsewhere(mount):
    page = drawn(mount(BlockExplorer(length=20, block=(10, 16, 2, 6))))
    for row, column, held in [(13, 4, True), (10, 2, True), (15.7, 6.3, True), (3, 4, False), (13, 12, False)]:
        assert drags(page, MATRIX, *place(page, row, column)) is held
    (x, y) = waist(page, 6)
    for point, held in [((x, y), True), ((x, y - 100), False), ((20, y - 100), False)]:
        assert drags(page, 0, *point) is held


def waist(page, k):
    """Where the knob of a cut before word k is, in pixels of the hourglass."""
    box = page.locator("canvas").first.bounding_box()
    return 80 + (box["width"] - 160) * (0.28 + 0.44 * k / page.evaluate("model.get('length')")), box["height"] - 14


@pytest.mark.parametrize(("kind", "width"), [("diagonal", 1000), ("delta", 360), ("softmax", 1000)])
def test_the_cut_is_dragged_along_the_text(mount, kind, width):
    page = mount(BlockExplorer(kind, length=20, block=(13, 18, 2, 9)))
    page.set_viewport_size({"width": width, "height": 800})
    box = drawn(page).locator("canvas").first.bounding_box()
    (x, y), (to, _) = waist(page, 9), waist(page, 15)
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    for end, expected in [(to, [15, 20, 0, 15]), (-50, [1, 20, 0, 1]), (width, [19, 20, 0, 19])]:
        page.mouse.move(box["x"] + end, box["y"] + 40, steps=4)
        assert block(drawn(page)) == page.evaluate("saved.block") == expected
    page.mouse.up()
    page.locator("canvas").first.click(position={"x": waist(page, 7)[0], "y": 100})
    assert block(page) == [7, 20, 0, 7]


@pytest.mark.parametrize("kind", ["diagonal", "softmax"])
def test_a_word_that_is_pointed_at_clicked_or_called_by_keys_is_lit(mount, kind):
    page = drawn(mount(BlockExplorer(kind, length=10)))
    glass, (unlit, matrix) = page.locator("canvas").first, page.evaluate(PICTURES)
    right, rows = glass.bounding_box()["width"] - 10, glass.bounding_box()["height"] - 56
    for x, y, lit in [(10, 30, "“beautiful” (word 1) tells"), (right, 28 + 0.9 * rows, "“implicit” (word 10) hears")]:
        glass.hover(position={"x": x, "y": y})
        heard(page, lit)
        picture, same = drawn(page).evaluate(PICTURES)
        assert (picture != unlit, same) == (True, matrix)
    page.locator(".title").hover()
    assert drawn(page).evaluate(PICTURES) == [unlit, matrix]
    glass.click(position={"x": right, "y": 30})
    page.locator(".title").hover()
    heard(page, "“explicit” (word 6) hears")
    page.keyboard.press("ArrowUp")
    heard(page, "“ugly” (word 5) tells")
    assert not page.evaluate("'saved' in window")
    glass.click(position={"x": right / 2, "y": 30})
    page.wait_for_function("!document.querySelector('[aria-live]').textContent.includes('Lit')")
