"""What every explorer does alike. By default: it shows itself without a complaint and answers a touch of a control.

What each of them draws, says and hears is tested in a file of its own, with `--full`.
"""

import pytest
from views import PICTURES, drawn

from smalearn.course import widgets

CHANGE = """(control) => {
  if (control.type === "range") +control.value < +control.max ? control.stepUp() : control.stepDown();
  else if (control.tagName === "SELECT") control.selectedIndex = (control.selectedIndex + 1) % control.options.length;
  else return control.click();
  for (const event of ["input", "change"]) control.dispatchEvent(new Event(event, { bubbles: true }));
}"""


@pytest.mark.parametrize("name", widgets.__all__)
def test_it_shows_itself_and_answers_a_touch(mount, name):
    page = drawn(mount(getattr(widgets, name)()))
    shown = page.locator("#first").inner_html()
    assert page.locator("#first canvas, #first svg").count()
    for control in page.locator("#first").locator("input, select, button").all():
        if control.is_visible() and control.is_enabled():
            control.evaluate(CHANGE)
            if drawn(page).locator("#first").inner_html() != shown and page.evaluate("'saved' in window"):
                return
    pytest.fail("no control changed what is shown and what Python knows")


@pytest.mark.full
@pytest.mark.parametrize("name", widgets.__all__)
def test_keys_pressed_on_any_control_are_not_those_of_the_notebook(mount, name):
    controls = mount(getattr(widgets, name)()).locator("input, select, button, canvas")
    assert controls.count() > 3
    assert all(part.get_attribute("data-lm-suppress-shortcuts") == "true" for part in controls.all())


@pytest.mark.full
@pytest.mark.parametrize("name", widgets.__all__)
def test_two_views_show_one_state_and_leave_nothing_behind(mount, name):
    explorer = getattr(widgets, name)
    traits = [f"change:{trait}" for trait in explorer.class_own_traits(sync=True) if not trait.startswith("_")]
    page = mount(explorer())
    listeners = page.evaluate("callbacks.map((entry) => entry[0])")
    assert set(listeners) == set(traits)
    page.evaluate("window.removeSecond = show('second'); null")
    assert page.evaluate("callbacks.length") == 2 * len(listeners)
    page.locator("#second").locator("input[type=range], select").first.evaluate(CHANGE)
    drawn(page).wait_for_timeout(500)  # until both have said it
    first, second = (page.locator(place).inner_html() for place in ("#first", "#second"))
    assert first == second
    pictures = page.evaluate(PICTURES.replace("#first ", ""))
    half = len(pictures) // 2
    assert pictures[:half] == pictures[half:]
    page.evaluate("remove()")
    assert page.locator("#first > *").count() == 0
    assert page.evaluate("callbacks.length") == len(listeners)
    page.evaluate("removeSecond()")
    page.evaluate("window.frames = 0; window.requestAnimationFrame = () => (window.frames += 1); null")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 500, "height": 500})
    page.evaluate("document.body.className = 'vscode-dark'")
    assert page.evaluate("[callbacks.length, document.querySelectorAll('canvas, svg').length, frames]") == [0, 0, 0]


@pytest.mark.full
@pytest.mark.parametrize("name", widgets.__all__)
def test_pictures_take_the_colours_of_a_dark_page(mount, name):
    page, shown = mount(getattr(widgets, name)()), PICTURES.replace(".map(", ".filter((one) => one.clientWidth).map(")
    light = drawn(page).evaluate(shown)
    page.emulate_media(color_scheme="dark")
    pairs = list(zip(light, drawn(page).evaluate(shown), strict=True))
    assert pairs
    assert all(one != other for one, other in pairs)


@pytest.mark.full
@pytest.mark.parametrize("name", widgets.__all__)
def test_a_drag_is_drawn_once_a_frame(mount, name):
    """However many changes come between two frames."""
    frames = drawn(mount(getattr(widgets, name)())).evaluate(
        """() => {
          let frames = 0;
          window.requestAnimationFrame = () => ++frames;
          for (let change = 0; change < 20; change++) callbacks.forEach(([_, told]) => told());
          return frames;
        }"""
    )
    assert frames == 1


WRITTEN = """window.sizes = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (...parts) {
  sizes.push(parseFloat(/([\\d.]+)px/.exec(this.font)[1]));
  return write.apply(this, parts);
};"""


@pytest.mark.full
@pytest.mark.parametrize("name", widgets.__all__)
def test_text_on_a_picture_is_at_least_nine_points(mount, page, name):
    page.add_init_script(WRITTEN)
    assert min(drawn(mount(getattr(widgets, name)())).evaluate("sizes")) >= 12  # pixels
