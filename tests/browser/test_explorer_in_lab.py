"""An explorer in JupyterLab: alive, in step with Python, and in the colours of the theme."""

import re

import pytest
from playwright.sync_api import expect

NOTEBOOK = "explorer_for_the_test.ipynb"
FILL = """(name) => {
  const canvas = document.querySelector(".smalearn canvas");
  const wanted = getComputedStyle(canvas).getPropertyValue(`--${name}`).trim();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const [r, g, b] = [1, 3, 5].map((place) => parseInt(wanted.slice(place, place + 2), 16));
  let count = 0;
  for (let i = 0; i < data.length; i += 4) count += data[i] === r && data[i + 1] === g && data[i + 2] === b;
  return [wanted, count / (canvas.width * canvas.height)];
}"""


@pytest.fixture
def notebook(lab, page):
    """A notebook that shows an explorer twice, executed."""
    lab.write(
        NOTEBOOK,
        "from smalearn.course.widgets import ContractionMap\nexplorer = ContractionMap(scan=True)\nexplorer",
        "explorer.head_dim, explorer.target",
        "explorer.head_dim = 7",
        "explorer",
    )
    lab.open(page, NOTEBOOK)
    lab.run_all(page)
    expect(page.locator(".smalearn canvas")).to_have_count(2)
    return page


def test_live_picture_is_in_step_with_python(lab, notebook):
    live = notebook.locator(".smalearn").first
    assert notebook.locator(".jp-OutputArea-output img").count() == 0  # the still picture is for other readers
    slider = live.get_by_role("slider", name="P, head dimension")
    expect(slider).to_have_attribute("aria-valuetext", "7")  # what the third cell has set

    box = slider.bounding_box()
    notebook.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + box["height"] / 2)
    notebook.mouse.down()
    notebook.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + box["height"] / 2, steps=8)
    notebook.mouse.up()
    expect(slider).not_to_have_attribute("aria-valuetext", "7")
    expect(notebook.locator(".smalearn").nth(1).get_by_role("slider", name="P, head dimension")).to_have_js_property(
        "value", slider.input_value()
    )
    for _ in range(20):  # the last of the moves may still be on its way to the kernel
        said, shown = lab.run_cell(notebook, 1), slider.get_attribute("aria-valuetext")
        if said == f"({shown}, 1024)":
            break
    assert said == f"({shown}, 1024)"
    assert 20 < int(shown) < 80


def test_keys_that_move_the_point_do_nothing_to_the_notebook(lab, notebook):
    live = notebook.locator(".smalearn").first
    cells = notebook.locator(".jp-Notebook .jp-Cell").count()
    for place in (live.locator("canvas"), live.get_by_role("slider", name="T, target length")):
        place.focus()
        for key in ("ArrowRight", "ArrowUp", "ArrowDown", "d", "d", "a", "b"):
            notebook.keyboard.press(key)
        assert place.evaluate("(element) => element === document.activeElement")
    assert notebook.locator(".jp-Notebook .jp-Cell").count() == cells
    assert re.fullmatch(r"\(7, 1\d\d\d\)", lab.run_cell(notebook, 1))


def test_picture_takes_the_colours_of_the_theme(notebook):
    themes = {}
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{ theme: '{theme}' }})")
        dark = int(theme.endswith("Dark"))
        expect(notebook.locator(".smalearn[data-dark]")).to_have_count(2 * dark)
        notebook.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        themes[theme], share = notebook.evaluate(FILL, "second")
        assert share > 0.2
    assert len(set(themes.values())) == 2
