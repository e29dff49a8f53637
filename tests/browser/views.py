"""Looking at an explorer on the bare page of `mount`."""

FRAMES = "async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }"
PICTURES = "[...document.querySelectorAll('#first canvas')].map((canvas) => canvas.toDataURL())"


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
