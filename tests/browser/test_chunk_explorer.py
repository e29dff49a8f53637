"""The chunk explorer on a bare page: no kernel, no JupyterLab."""

import itertools
import random
import re

import pytest
import torch
from views import PICTURES, READ, change, drags, drawn, headline, heard, words

from smalearn.course.widgets import ChunkExplorer
from smalearn.course.widgets.chunk_explorer import PARTS, best_chunk_len, chunked_macs
from smalearn.testing import assert_close


def chosen(page):
    """The steps whose rows are marked."""
    return [row.inner_text().split()[0] for row in page.locator("tr.mode th").all()]


def test_script_computes_the_matrix_and_the_factors_of_python(mount):
    explorer = ChunkExplorer()
    page = mount(explorer)
    settings = itertools.product([(1, 1), (9, 4), (24, 5), (99, 24), (4096, 64)], [0, 0.3, 0.97, 1], [(1, 0), (64, 3)])
    states = [
        {"length": size[0], "chunk_len": size[1], "decay": decay, "state": draw[0], "seed": draw[1]}
        for size, decay, draw in settings
    ]
    for state, found in zip(states, page.evaluate(READ, states), strict=True):
        for name, value in state.items():
            setattr(explorer, name, value)
        expected = [explorer.matrix, *explorer.factors]
        for name, M in zip(["M", "left", "centre", "right"], expected, strict=True):
            assert_close(torch.tensor(found[name], dtype=torch.float64), M)
        assert (found["S"], found["features"]) == tuple(explorer.factors[0].shape)
        assert found["chunks"][-1][1] == found["S"]


def test_script_computes_the_costs_and_the_best_chunk_of_python(mount):
    chance = random.Random(0)
    sizes = [[round(2 ** chance.uniform(0, top)) for top in (17, 17, 9, 9)] for _ in range(200)]
    sizes += [[1, 1, 1, 1], [2**17, 2**17, 512, 512], [2**17, 1, 512, 512], [3, 9, 512, 512], [4096, 6, 64, 64]]
    found = mount(ChunkExplorer()).evaluate(
        "(all) => all.map(([T, Q, N, P]) => [script.costs({ T, Q, N, P }), script.best({ T, N, P })])", sizes
    )
    for (T, Q, N, P), (costs, best) in zip(sizes, found, strict=True):
        assert costs == pytest.approx(chunked_macs(T, Q, N, P), rel=1e-14)
        assert best == best_chunk_len(T, N, P)


def test_table_shows_the_costs(mount):
    page = mount(ChunkExplorer(length=4096, chunk_len=64, state=16, head_dim=32))
    costs = chunked_macs(4096, 64, 16, 32)
    rows = page.evaluate(
        "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert [row[0].split("\n")[0] for row in rows] == [f"{i + 1} {part}" for i, part in enumerate(PARTS[:4])]
    assert [row[1].split("\n") for row in rows] == [
        [f"{cost:,.0f}", letters] for cost, letters in zip(costs, ["Tc(N + P)", "TNP", "(T/c) NP", "TNP"], strict=True)
    ]
    assert [row[2] for row in rows] == [f"{100 * cost / sum(costs):.0f}\u00a0%" for cost in costs]


def test_description_says_which_step_computes_a_part(mount):
    page = mount(ChunkExplorer(chunk_len=5))
    assert words(page) == (
        "Step 1, within chunks: the blocks on the diagonal, attention, quadratic in the chunk's length c, "
        "7 % of the cost. At c = 5 all take 39,531,315 multiply-adds, 1.00088 times as many as at c = 6."
    )
    assert headline(page) == "c = 5 takes 39.5 million multiply-adds, hardly more than c = 6"
    assert headline(change(page, chunk_len=6)) == "c = 6 takes 39.5 million multiply-adds, the fewest"
    change(page, chunk_len=5)
    for new, text in [
        ({"part": PARTS[1]}, "Step 2, write, the right factor: "),
        ({"part": PARTS[2]}, "this alone runs in sequence, 8 % of the cost."),
        ({"part": PARTS[3]}, "Step 4, read, the left factor: "),
        ({"part": PARTS[4]}, "a product of three factors, steps 4, 3 and 2. It is never formed. At c = 5"),
        ({"chunk_len": 6}, "At c = 6 all take 39,496,363 multiply-adds, the fewest."),
        ({"chunk_len": 4096}, "At c = 4,096, one chunk, the quadratic form, all take 2,181,042,176 multiply-adds, "),
        ({"chunk_len": 1}, "At c = 1, the recurrent form, all take "),
    ]:
        heard(change(page, **new), text)


def test_controls_tell_python(mount):
    page = mount(ChunkExplorer(length=64))
    for number, part in reversed(list(enumerate(PARTS))):
        page.get_by_role("combobox", name="M, part").select_option(part)
        assert page.evaluate("saved.part") == part
        assert chosen(drawn(page)) == (["2", "3", "4"] if number == 4 else [str(number + 1)])
    change(page, chunk_len=40, length=1000, decay=0, part=PARTS[3])
    assert page.get_by_role("slider", name="c, chunk length").get_attribute("aria-valuetext") == "40"
    assert page.get_by_role("slider", name="a, decay").get_attribute("aria-valuetext") == "0"
    assert page.get_by_role("combobox", name="M, part").input_value() == PARTS[3]


def places(page, width):
    """Some place in every part, in pixels of the canvas, and one in none; the picture is of 24 steps, 4 features."""
    cell = (page.locator("canvas").first.bounding_box()["height"] - 12) // 28
    start = 4 * cell + 8
    assert page.locator("canvas").first.bounding_box()["height"] == start + 24 * cell + 4
    assert 10 < cell <= min(17, (width - 12) / 28)
    at = [(start + 1.5 * cell, start + 2.5 * cell), (start + 9 * cell, cell), (cell, cell), (cell, start + 9 * cell)]
    return [*at, (start + 2.5 * cell, start + 20.5 * cell)], (start + 20 * cell, start + 2 * cell)


@pytest.mark.parametrize("width", [360, 1000])
def test_parts_are_looked_at_by_pointing_and_chosen_by_a_click(mount, width):
    page = mount(ChunkExplorer(part=PARTS[2]))
    page.set_viewport_size({"width": width, "height": 800})
    canvas = drawn(page).locator("canvas").first
    inside, outside = places(page, canvas.bounding_box()["width"])
    marks = [["1"], ["2"], ["3"], ["4"], ["2", "3", "4"]]
    for (x, y), steps in zip(inside, marks, strict=True):
        canvas.hover(position={"x": x, "y": y})
        assert chosen(drawn(page)) == steps
        assert page.evaluate("model.get('part')") == PARTS[2]  # not chosen yet
    canvas.hover(position={"x": outside[0], "y": outside[1]})
    assert chosen(drawn(page)) == ["3"]
    for (x, y), steps, part in zip(inside, marks, PARTS, strict=True):
        canvas.click(position={"x": x, "y": y})
        assert page.evaluate("saved.part") == part
        page.get_by_role("button", name="Draw other").hover()
        assert chosen(drawn(page)) == steps
    canvas.click(position={"x": outside[0], "y": outside[1]})
    assert page.evaluate("saved.part") == PARTS[4]


def test_every_block_has_its_own_factors_framed(mount):
    page = mount(ChunkExplorer(part=PARTS[4]))
    canvas = drawn(page).locator("canvas").first
    (*_, (x, y)), _ = places(page, canvas.bounding_box()["width"])
    pictures = [page.evaluate(PICTURES)[0]]
    for place in [(x, y), (x, y - 100), (x + 100, y)]:
        canvas.click(position=dict(zip("xy", place, strict=True)))
        page.get_by_role("button", name="Draw other").hover()
        pictures.append(drawn(page).evaluate(PICTURES)[0])
    assert pictures[0] == pictures[1]  # what is framed at first is the block in the lower left corner
    assert len(set(pictures)) == 3
    change(page, chunk_len=64)  # a single chunk has no such block
    assert not re.search("NaN|undefined", words(page))


def test_a_step_has_one_colour_in_picture_table_and_curve(mount):
    """Step 3: the colour of its mark in the table is in both pictures, on the curve with an edge of ink."""
    count = """(number) => {
      const canvas = document.querySelectorAll("canvas")[number], { width, height } = canvas;
      const mark = getComputedStyle(document.querySelectorAll("tbody i")[2]).backgroundColor.match(/\\d+/g).map(Number);
      const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
      let same = 0;
      for (let i = 0; i < data.length; i += 4) same += mark.every((part, k) => data[i + k] === part);
      return same;
    }"""
    page = drawn(mount(ChunkExplorer()))
    assert min(page.evaluate(count, number) for number in (0, 1)) > 50


def test_chunk_length_is_dragged_along_the_curve(mount):
    page = mount(ChunkExplorer(length=100))
    box = page.locator("canvas").nth(1).bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 100)
    page.mouse.down()
    visited = []
    for step in range(1, 9):
        page.mouse.move(box["x"] + 60 + 40 * step, box["y"] + 100)
        visited.append(page.evaluate("saved.chunk_len"))
    page.mouse.move(box["x"] + 2000, box["y"] + 100)
    page.mouse.up()
    assert visited == sorted(visited)
    assert visited[0] <= 3
    assert len(set(visited)) >= 7
    assert page.evaluate("saved.chunk_len") == 100  # not beyond T, though a slider has no such step
    page.mouse.move(box["x"] + 60, box["y"] + 100)
    assert page.evaluate("saved.chunk_len") == 100


def test_a_finger_drags_the_ring_and_scrolls_elsewhere(mount):
    page = drawn(mount(ChunkExplorer(length=4096, chunk_len=64)))
    middle = 48 + (page.locator("canvas").nth(1).bounding_box()["width"] - 60) / 2
    assert [drags(page, 1, x, 100) for x in (middle, middle + 60)] == [True, False]
    assert not drags(page, 0, 100, 100)
