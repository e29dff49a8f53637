"""The weight explorer on a bare page: no kernel, no JupyterLab."""

import itertools

import pytest
import torch
from views import PICTURES, change, drawn

from smalearn.course.widgets.weight_explorer import FAMILIES, WeightExplorer
from smalearn.testing import relative_rms

STATES = """(states) => states.map((state) => {
  Object.entries(state).forEach((entry) => model.set(...entry));
  return script.read(model);
})"""
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
    for state, found in zip(states, page.evaluate(STATES, states), strict=True):
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


def test_counts_are_shown_and_said(mount):
    page = mount(WeightExplorer("block tensor train", 16, 4, 1))
    line = page.locator("#first b", has_text="multiply-adds")
    assert line.inner_text() == "128 of 256 numbers, 128 multiply-adds, rank 16 of at most 16"
    assert page.locator("#first [aria-live=polite]").inner_text() == (
        "block tensor train, 16 by 16, p = 4, r = 1: 128 numbers where a dense matrix has 256, "
        "128 multiply-adds for one vector, rank 16 of at most 16."
    )
    change(page, blocks=2)
    assert line.inner_text() == "64 of 256 numbers, 64 multiply-adds, rank 4 of at most 4"
    change(page, family="Kronecker", blocks=4)
    assert line.inner_text() == "32 of 256 numbers, 128 multiply-adds, rank 16 of at most 16"


def test_controls_tell_python_and_hide_what_a_family_has_not(mount):
    page = mount(WeightExplorer("block tensor train", 16, 4, 1))
    for name, key, saved in [
        ("p, blocks", "ArrowLeft", {"blocks": 2}),
        ("p, blocks", "End", {"blocks": 16}),
        ("r, rank", "ArrowRight", {"rank": 2}),
        ("D, features", "End", {"dim": 32}),
        ("D, features", "Home", {"dim": 8}),
    ]:
        page.get_by_role("slider", name=name).focus()
        page.keyboard.press(key)
        assert page.evaluate("(names) => names.map((name) => saved[name])", list(saved)) == list(saved.values())
        drawn(page)
    page.get_by_role("combobox").select_option("butterfly")
    drawn(page)
    assert page.evaluate("saved.family") == "butterfly"
    assert not page.get_by_role("slider", name="p, blocks").is_visible()
    assert not page.get_by_role("slider", name="r, rank").is_visible()
    change(page, family="low rank")
    assert not page.get_by_role("slider", name="p, blocks").is_visible()
    assert page.get_by_role("slider", name="r, rank").is_visible()


def test_arrow_keys_on_every_canvas(mount):
    page = mount(WeightExplorer("block low rank", 16, 4, 2))
    for canvas in page.locator("#first canvas").all():
        canvas.focus()
        for key, name, value in [
            ("ArrowRight", "blocks", 8),
            ("ArrowLeft", "blocks", 4),
            ("ArrowUp", "rank", 3),
            ("ArrowDown", "rank", 2),
        ]:
            page.keyboard.press(key)
            assert page.evaluate(f"saved.{name}") == value


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
            assert all(one != other for one, other in zip(*pictures, strict=False)), family
    change(page, family="block tensor train", dim=32, blocks=32, rank=4)
    assert page.locator("#first b").count() > 0
