"""An explorer in JupyterLab: alive, in step with Python, in the colours of the theme, and there again the next day."""

import pytest
from playwright.sync_api import expect
from views import CHANGE

from smalearn.course import widgets

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


def test_shortcuts_of_the_notebook_work_while_an_explorer_has_the_focus(lab, notebook):
    lab.save(notebook)
    cells = notebook.locator(".jp-Notebook .jp-Cell").count()
    slider = notebook.locator(".smalearn").first.get_by_role("slider", name="T, target length")
    for part in (slider, *(notebook.locator(".smalearn").first.locator(name).first for name in ("canvas", "button"))):
        notebook.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty = true")
        part.focus()
        notebook.keyboard.press("ControlOrMeta+s")
        notebook.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
        for key in ("d", "d", "a", "b", "ArrowUp"):
            notebook.keyboard.press(key)
    assert notebook.locator(".jp-Notebook .jp-Cell").count() == cells


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


LOOK = "(live) => live.innerText + [...live.querySelectorAll('canvas')].map((canvas) => canvas.toDataURL())"


def test_a_saved_notebook_has_explorers_that_move_without_their_kernel(lab, page):
    lab.write(NOTEBOOK, *(f"from smalearn.course.widgets import {name}\n{name}()" for name in widgets.__all__))
    lab.open(page, NOTEBOOK)
    lab.run_all(page)
    explorers = page.locator(".smalearn")
    expect(explorers).to_have_count(len(widgets.__all__))
    lab.save(page)
    for _ in range(2):  # JupyterLab saves again what is opened again, and knows no explorer that has no kernel
        page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        lab.open(page, NOTEBOOK)
        expect(explorers).to_have_count(len(widgets.__all__), timeout=10_000)
        for live in explorers.all():
            before = live.evaluate(LOOK)
            live.locator("input[type=range], select").first.evaluate(CHANGE)
            page.wait_for_function(f"([live, was]) => ({LOOK})(live) !== was", arg=[live.element_handle(), before])
        lab.save(page)
    page.errors[:] = [error for error in page.errors if "widget model not found" not in error]  # then shown again


def test_an_output_whose_saved_model_came_too_late_is_shown_again(mount):
    page = mount(widgets.StateExplorer())
    page.evaluate(
        """() => {
          const models = { seen: { views: { v: 0 } }, unseen: { views: {} }, live: { comm_live: true, views: {} } };
          const outputs = (id) => ({
            length: 2,
            get: (i) => ({ data: i ? { "application/vnd.jupyter.widget-view+json": { model_id: id } } : {} }),
            toJSON: () => id,
            fromJSON: (id) => (window.again ??= []).push(id),
          });
          const cells = [{}, ...["seen", "unseen", "live", "lost"].map((id) => ({ outputs: outputs(id) }))];
          const [has_model, get_model] = [(id) => id in models, (id) => models[id]];
          const widget_manager = { context: { model: { cells } }, has_model, get_model };
          for (let i = 0; i < 3; i++) script.default.initialize({ model: { widget_manager } });
          script.default.initialize({ model: {} }); // as elsewhere
        }"""
    )
    page.wait_for_function("window.again")
    assert page.evaluate("again") == ["unseen"]


def test_where_an_explorer_was_not_saved_its_still_picture_stands(lab, notebook):
    notebook.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(notebook.locator(".smalearn canvas")).to_have_count(2)
    lab.save(notebook)
    lab.open(notebook, NOTEBOOK)
    expect(notebook.locator(".jp-OutputArea-output img")).to_have_count(2)
    expect(notebook.get_by_text("Error displaying widget")).to_have_count(0)
