"""The still pictures of the explorers, for readers without a kernel: `python assets/stills.py`.

A browser shows every explorer as it is at first, and in each state that a chapter shows; what it shows is kept in
`smalearn/course/widgets/stills`. Its last line is the call that makes this state. One more picture is what is seen of
a link to the site.
"""

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from smalearn.course import widgets
from smalearn.course.site import explorers
from smalearn.course.widgets.base import STILLS, Explorer
from smalearn.course.workbook import notebook
from smalearn.data import ten_words

CHAPTERS = Path(__file__).parents[1] / "chapters"
WIDTH, COLOURS = 944, 256  # CSS pixels, with two pixels for each; of a picture
CARD = Path(__file__).parents[1] / "smalearn/course/site/static/card.png"
CARD_SIZE, CARD_SCALE = {"width": 960, "height": 504}, 1.25  # CSS pixels, and those of the picture for each
CARD_HEAD = """<h1>Attention and Mamba-2 are one matrix</h1>
<p><b>smalearn</b> · a notebook course: drag it, prove it, write the fast kernel</p>"""
CARD_STYLE = """body { padding: 30px 44px 0; font-family: system-ui, sans-serif; color: #1a1a1a; }
h1 { margin: 0; font-size: 40px; white-space: nowrap; letter-spacing: -0.01em; }
h1 + p { margin: 0 0 6px; font-size: 21px; color: #595959; }
h1 + p b { color: #a34400; }
.smalearn { padding: 0; }
.smalearn > :not(canvas) { display: none !important; }"""
HIDDEN = ".tools, .hint, .write, .smalearn button, details { display: none !important; }"  # what needs a kernel
SHOW = """async ([source, style, state, text]) => {
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  const model = { get: (name) => state[name], on() {}, off() {} };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  module.default.render({ model, el: document.body });
  const last = Object.assign(document.createElement("p"), { className: "dim", textContent: text });
  document.querySelector(".smalearn").append(last);
  for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
}"""


def shown() -> Iterator[tuple[Path, Explorer]]:
    """Yield the file and the explorer of each picture: all at first, then those of the chapters."""
    firsts = [getattr(widgets, name)() for name in widgets.__all__]
    for explorer in firsts:
        yield STILLS / f"{type(explorer).__name__}.png", explorer
    for path in notebook.chapters(CHAPTERS):
        cells = notebook.read(path)["cells"]
        setup = [cell["source"] for cell in cells if "setup" in cell["metadata"].get("tags", [])]
        for cell in cells:
            if explorers.shown(cell):
                explorer = explorers.made(setup, cell["source"])
                if explorer.still() not in [first.still() for first in firsts]:
                    yield explorer.still(), explorer


def picture(page: Page, explorer: Explorer) -> bytes:
    """A PNG of an explorer as it is."""
    state = explorer.get_state()
    source, style = state.pop("_esm"), state.pop("_css") + HIDDEN
    page.set_content("<!doctype html><html lang='en'><body style='margin: 0' data-theme='light'></body></html>")
    text = f"A still picture of {explorer!r}. Run the cell to move it."
    page.evaluate(SHOW, [source, style, json.loads(json.dumps(state, default=str)), text])
    return compressed(page.locator(".smalearn").screenshot())


def compressed(data: bytes) -> bytes:
    """A PNG of few colours."""
    file = io.BytesIO()
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.quantize(COLOURS, kmeans=1, dither=Image.Dither.NONE).save(file, format="png", optimize=True)
    return file.getvalue()


def card(page: Page) -> bytes:
    """A PNG of what a link to the site shows: its title, and both forms on ten words."""
    explorer = widgets.DualityExplorer(" ".join(ten_words()[0]), chunk=3)
    picture(page, explorer)
    page.add_style_tag(content=CARD_STYLE)
    page.evaluate("(head) => document.body.insertAdjacentHTML('afterbegin', head)", CARD_HEAD)
    page.evaluate("async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }")
    return compressed(page.screenshot())


def main() -> None:
    """Take all pictures anew; those of states that nothing shows any more are deleted."""
    STILLS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        path = shutil.which("chromium")  # of the system, or else Playwright's own
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        size = {"width": WIDTH, "height": 900}
        page = browser.new_page(viewport=size, device_scale_factor=2, reduced_motion="reduce", color_scheme="light")
        pictures = {file: picture(page, explorer) for file, explorer in shown()}
        page = browser.new_page(viewport=CARD_SIZE, device_scale_factor=CARD_SCALE, reduced_motion="reduce")
        CARD.write_bytes(card(page))
        browser.close()
    for old in STILLS.glob("*.png"):
        old.unlink()
    for file, data in pictures.items():
        file.write_bytes(data)
        print(f"{file.name}: {len(data) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
