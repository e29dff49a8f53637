"""The feature explorer on a bare page: no kernel, no JupyterLab."""

import itertools

import pytest
import torch
from views import PICTURES, READ, change, drawn, headline, heard, words

from smalearn.course.widgets import FeatureExplorer
from smalearn.course.widgets.feature_explorer import MAPS
from smalearn.testing import relative_rms

TEXTS = ["a a", "to be or not to be", "beautiful is better than ugly. explicit is better than implicit."]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: len(text.split()))
def test_script_computes_the_weights_of_python(mount, text):
    explorer = FeatureExplorer(text)
    page = mount(explorer)
    settings = itertools.product(MAPS, [(4, 3), (32, 0), (512, 1)], [0.25, 1.3, 4])
    states = [{"map": name, "features": size[0], "seed": size[1], "norm": norm} for name, size, norm in settings]
    for state, found in zip(states, page.evaluate(READ, states), strict=True):
        for name, value in state.items():
            setattr(explorer, name, value)
        assert relative_rms(torch.tensor(found["exact"], dtype=torch.float64), explorer.weights) < 1e-12
        assert relative_rms(torch.tensor(found["through"], dtype=torch.float64), explorer.estimate) < 1e-9, state
        assert found["errors"][0] == pytest.approx(explorer.error, rel=1e-8, abs=1e-12)


def test_script_compares_with_equal_weights(mount):
    explorer = FeatureExplorer("a b a", norm=2)
    (found,) = mount(explorer).evaluate(READ, [{}])
    equal = torch.tensor([[0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]], dtype=torch.float64)
    assert found["errors"][1] == pytest.approx(relative_rms(equal, explorer.weights))


def test_error_is_shown_and_described(mount):
    explorer = FeatureExplorer(features=512, norm=2)
    page = mount(explorer)
    said = f"512 features at norm 2: error {explorer.error:.2g}, equal weights have 1.5 times that (0.64)"
    assert headline(page) == said
    assert words(page).startswith(
        f"512 features, hyperbolic, norm 2: error {explorer.error:.2g}. “than”, word 13, attends most to: "
        "“than” (3) 0.45, “than” (8) 0.45, "
    )
    assert headline(change(page, features=4)).endswith(", equal weights do better (0.64)")
    change(page, map="1 + elu", row=0)
    heard(page, "word 0")
    assert words(page).startswith("1 + elu, norm 2: error ")
    assert words(page).endswith("attends most to: nothing (softmax); nothing (features).")
    assert headline(mount(FeatureExplorer("a b", map="1 + elu"))).endswith("where softmax weighs all equally")


def test_sliders_list_and_button_tell_python(mount):
    page = mount(FeatureExplorer(features=64, norm=1.5))
    page.get_by_role("combobox", name="φ, map").select_option("1 + elu")
    assert page.evaluate("saved.map") == "1 + elu"
    assert drawn(page).get_by_role("slider", name="F, features").is_disabled()
    assert page.get_by_role("button", name="Draw other").count() == 0  # there are no directions
    change(page, map="Fourier", features=16, norm=0.5)
    assert page.get_by_role("combobox", name="φ, map").input_value() == "Fourier"
    assert page.get_by_role("slider", name="F, features").get_attribute("aria-valuetext") == "16"


def test_a_word_is_chosen_by_clicks(mount):
    page = mount(FeatureExplorer(row=1))
    maps, bars = drawn(page).locator("canvas").all()
    cell = (maps.bounding_box()["height"] - 40) / 15
    for row in (0, 7, 14):
        maps.click(position={"x": 40, "y": 20 + (row + 0.5) * cell})
        assert page.evaluate("saved.row") == row
        bars.click(position={"x": 34 + (14 - row + 0.5) * (bars.bounding_box()["width"] - 34) / 15, "y": 150})
        assert page.evaluate("saved.row") == 14 - row


def test_a_row_is_looked_at_by_pointing(mount):
    page = drawn(mount(FeatureExplorer(row=14)))
    maps = page.locator("canvas").first
    cell = (maps.bounding_box()["height"] - 40) / 15
    before = page.evaluate(PICTURES)
    maps.hover(position={"x": 40, "y": 20 + 3.5 * cell})
    heard(page, "“than”, word 3")
    assert page.evaluate("model.get('row')") == 14  # Python is not told of a look
    assert drawn(page).evaluate(PICTURES) != before
    for y in (5, 20 + 15 * cell + 10):  # above and below the rows
        maps.hover(position={"x": 40, "y": y})
        assert drawn(page).evaluate(PICTURES) == before
    maps.hover(position={"x": 40, "y": 20 + 3.5 * cell})
    maps.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("saved.row") == 13  # of the chosen row, not of the one that is looked at
