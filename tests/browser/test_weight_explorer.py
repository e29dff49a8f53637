"""The weight explorer on a bare page: no kernel, no JupyterLab."""

import itertools

import pytest
import torch
from views import PICTURES, READ, change, drags, drawn, heard, words

from smalearn.course.widgets.weight_explorer import FAMILIES, WeightExplorer
from smalearn.testing import relative_rms

PRODUCTS = """({factors, joiner}) => factors.map((pair) => pair[1]).reduce((A, B) => joiner === "+"
  ? A.map((row, i) => row.map((value, j) => value + B[i][j]))
  : joiner === "·" ? A.map((row) => B[0].map((_, j) => row.reduce((sum, value, k) => sum + value * B[k][j], 0)))
  : A.flatMap((row) => B.map((other) => row.flatMap((value) => other.map((entry) => value * entry)))))"""


@pytest.mark.parametrize("family", FAMILIES)
def test_script_computes_the_matrix_the_factors_and_the_counts_of_python(mount, family):
    explorer = WeightExplorer(family)
    page = mount(explorer)
    sizes = itertools.product((8, 16, 32), (1, 4, 32), (1, 3))
    states = [{"dim": dim, "blocks": blocks, "rank": rank} for dim, blocks, rank in sizes]
    for state, found in zip(states, page.evaluate(READ, states), strict=True):
        for name, value in state.items():
            setattr(explorer, name, value)
        weight = explorer.weight
        assert relative_rms(torch.tensor(found["M"], dtype=torch.float64), explorer.matrix) < 1e-14
        assert found["cut"] == pytest.approx(explorer.cut, rel=1e-12)
        assert found["values"] == pytest.approx(
            explorer.singular_values.tolist(), rel=1e-6, abs=1e-12 * found["values"][0]
        )
        counts = weight.num_parameters, weight.macs, weight.rank_bound, explorer.measured_rank
        assert (found["numbers"], found["macs"], found["bound"], found["rank"]) == counts
        if found["factors"]:
            whole = page.evaluate(PRODUCTS, {"factors": found["factors"], "joiner": found["joiner"]})
            assert relative_rms(torch.tensor(whole, dtype=torch.float64), explorer.matrix) < 1e-13


def test_headline_sets_the_rank_beside_that_of_low_rank_at_the_same_cost(mount):
    page = mount(WeightExplorer("block tensor train", 16, 4, 1))
    line = page.locator("#first .headline")
    assert line.inner_text() == "128 numbers, rank 16; low rank with 128 numbers: rank 4"
    assert words(page) == (
        "block tensor train, 16 by 16, p = 4, r = 1: 128 numbers where a dense matrix has 256, 128 multiply-adds "
        "for one vector, rank 16 of at most 16. M[2, 9] = 0.84, one path through the factors."
    )
    for state, text in [
        ({"blocks": 2}, "64 numbers, rank 4; low rank with 64 numbers: rank 2"),
        ({"family": "Kronecker", "dim": 32, "blocks": 8}, "80 numbers, rank 32; low rank with 80 numbers: rank 1"),
        ({"blocks": 4, "dim": 8}, "20 numbers, rank 8; low rank with 20 numbers: rank 1"),
        ({"family": "low rank", "rank": 3}, "48 numbers, rank 3: a rank costs 2D = 16 numbers"),
    ]:
        assert change(page, **state).locator("#first .headline").inner_text() == text


@pytest.mark.parametrize("family", FAMILIES)
def test_path_of_an_entry_gives_its_value(mount, family):
    """The sum over all ways through the lit entries, of the product of what they hold."""
    page, entries = mount(WeightExplorer(family, 16, 4, 2)), [[0, 0], [2, 9], [15, 4], [7, 7]]
    paths = "(all) => { const now = script.read(model); return [now, all.map((entry) => script.path(now, entry))]; }"
    shown, found = page.evaluate(paths, entries)
    for (i, j), lit in zip(entries, found, strict=True):
        factors = [torch.tensor(A, dtype=torch.float64) for _, A in shown["factors"]]
        kept = [torch.zeros_like(A) for A in factors]
        for A, own, places in zip(factors, kept, lit, strict=True):
            for place in places:
                own[tuple(place)] = A[tuple(place)]
        if shown["joiner"] == "+":
            value = sum(own[i, j] for own in kept)
        elif shown["joiner"] == "⊗":
            value = kept[0].sum() * kept[1].sum()
        else:
            value = torch.linalg.multi_dot(kept)[i, j] if len(kept) > 1 else kept[0][i, j]
            assert torch.count_nonzero(torch.linalg.multi_dot(kept) if len(kept) > 1 else kept[0]) <= 1
        assert float(value) == pytest.approx(shown["M"][i][j], rel=1e-12, abs=1e-15)


def test_controls_tell_python_and_hide_what_a_family_has_not(mount):
    page = mount(WeightExplorer("block tensor train", 16, 4, 1))
    page.get_by_role("radio", name="butterfly").check(force=True)
    drawn(page)
    assert page.evaluate("saved.family") == "butterfly"
    assert not page.get_by_role("slider", name="p, blocks").is_visible()
    assert not page.get_by_role("slider", name="r, rank").is_visible()
    change(page, family="low rank")
    assert not page.get_by_role("slider", name="p, blocks").is_visible()
    assert page.get_by_role("slider", name="r, rank").is_visible()


def test_an_entry_is_pointed_at_and_moved_by_arrow_keys(mount):
    page = mount(WeightExplorer("block low rank", 16, 4, 2))
    canvas = drawn(page).locator("#first canvas[tabindex]").first
    canvas.hover(position={"x": 6, "y": 28})
    heard(page, "M[0, 0] = ")
    page.mouse.move(0, 0)
    canvas.focus()
    for key in ("ArrowUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
        drawn(page)
    page.wait_for_function("document.querySelector('[aria-live]').textContent.endsWith('M[1, 11] = 0: no path.')")


def test_a_finger_scrolls_over_the_picture(mount):
    page = drawn(mount(WeightExplorer()))
    number = page.locator("canvas:not([tabindex])").count()  # thumbnails come first
    before = page.evaluate(PICTURES)
    assert not drags(page, number, 100, 100)
    assert drawn(page).evaluate(PICTURES) == before


@pytest.mark.parametrize("width", [360, 1000])
def test_every_state_draws_all_pictures_within_the_page(mount, width):
    page = mount(WeightExplorer())
    page.set_viewport_size({"width": width, "height": 900})
    for family in FAMILIES:
        pictures = []
        for blocks in (1, 8):
            change(page, family=family, blocks=blocks, dim=8, rank=2)
            pictures.append(page.evaluate(PICTURES))
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        if family not in ("low rank", "butterfly"):
            assert all(one != other for one, other in zip(*(each[-2:] for each in pictures), strict=True)), family
    change(page, family="block tensor train", dim=32, blocks=32, rank=4)
    assert page.locator("#first canvas[tabindex]").first.bounding_box()["height"] > 100
