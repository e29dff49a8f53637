"""Looking at a page, and at an explorer on the bare page of `mount`."""

import re

from playwright.sync_api import Error, Page

FRAMES = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"
PICTURES = "[...document.querySelectorAll('#first canvas')].map((canvas) => canvas.toDataURL())"
SHOWN = PICTURES.replace(".map(", ".filter((one) => one.clientWidth).map(")
# The texts that are written on pictures, and their sizes in pixels of the screen.
WRITTEN = """Object.assign(window, { sizes: [], texts: [] });
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (...parts) {
  const { a, b } = this.getTransform(); // of a text that stands upright or not
  sizes.push(Math.round(parseFloat(/([\\d.]+)px/.exec(this.font)[1]) * Math.hypot(a, b)));
  texts.push(parts[0]);
  return write.apply(this, parts);
};"""
# What the script computes of each state of an explorer.
READ = """(states) => states.map((state) => {
  Object.entries(state).forEach((entry) => model.set(...entry));
  return script.read(model);
})"""
# One step of a slider, list, box or button.
CHANGE = """(control) => {
  if (control.type === "range") +control.value < +control.max ? control.stepUp() : control.stepDown();
  else if (control.tagName === "SELECT") control.selectedIndex = (control.selectedIndex + 1) % control.options.length;
  else return control.click();
  for (const event of ["input", "change"]) control.dispatchEvent(new Event(event, { bubbles: true }));
}"""


def watched(page: Page) -> Page:
    """The page, which from now on keeps its errors in `errors` and what it asks for, address by address, in `asked`."""
    page.errors, page.asked = [], []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: None if of_windowing(error) else page.errors.append(error.stack or str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    return page


def of_windowing(error: Error) -> bool:
    """Whether it is JupyterLab's own: a node of a cell out of sight may be taken off twice (jupyterlab#15415)."""
    files = re.findall(r"https?://\S+", error.stack or "")
    return "'removeChild'" in str(error) and files != [] and all("/static/lab/" in file for file in files)


def drawn(page):
    """The page, when everything that has changed is drawn."""
    page.evaluate(FRAMES)
    return page


def change(page, **new):
    """Set the state as Python would."""
    page.evaluate("(state) => Object.entries(state).forEach((entry) => model.set(...entry))", new)
    return drawn(page)


def words(page):
    """The sentence that a screen reader reads when the state changes."""
    return page.locator("#first [aria-live=polite]").inner_text().replace("\u00a0", " ")


def heard(page, text):
    """Wait until a screen reader reads this."""
    said = "(text) => document.querySelector('[aria-live]').textContent.replaceAll('\\u00a0', ' ').includes(text)"
    page.wait_for_function(said, arg=text)


def headline(page):
    """The sentence in large letters above the picture."""
    return page.locator("#first .headline").inner_text().replace("\u00a0", " ")


STATE = """async () => {
  const names = Object.keys(await (await fetch("state.json")).json());
  return JSON.stringify(names.map((name) => [name, model.get(name)]));
}"""


def drags(page, number, x, y):
    """Whether a finger that swipes upwards from this place of a canvas drags something; else it scrolls, no more.

    The state is then what it was before.
    """
    cdp = page.context.new_cdp_session(page)
    page.evaluate("document.body.style.padding = '500px 0 1500px'")
    box = drawn(page).locator("canvas").nth(number).bounding_box()
    page.evaluate("(by) => window.scrollBy(0, by)", box["y"] + y - 400)
    before, top = page.evaluate(STATE), page.evaluate("window.scrollY")
    for step in range(12):
        point = {"x": box["x"] + x + 5 * step, "y": 400 - 10 * step}
        cdp.send("Input.dispatchTouchEvent", {"type": "touchMove" if step else "touchStart", "touchPoints": [point]})
        drawn(page)
    cdp.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    scrolled, changed = drawn(page).evaluate("window.scrollY") != top, page.evaluate(STATE) != before
    assert not (scrolled and changed), (number, x, y)
    page.evaluate("(state) => JSON.parse(state).forEach((entry) => model.set(...entry))", before)
    return not scrolled
