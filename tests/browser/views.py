"""Looking at a page, and at an explorer on the bare page of `mount`."""

import re

from playwright.sync_api import Error, Page

FRAMES = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"
PICTURES = "[...document.querySelectorAll('#first canvas')].map((canvas) => canvas.toDataURL())"


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


def headline(page):
    """The sentence in large letters above the picture."""
    return page.locator("#first .headline").inner_text().replace("\u00a0", " ")
