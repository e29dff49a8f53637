"""Every explorer shows itself without a complaint, and one touch of a control changes what it says. No more by default.

What each of them draws, says and hears is tested in a file of its own, with `--full`.
"""

import pytest
from views import drawn

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
