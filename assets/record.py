"""The moving picture of the README, light and dark: `python assets/record.py FOLDER`, the folder of the site.

A browser opens the landing page and moves the slider of its explorer from attention to the recurrence and back. The
page's clock is ours, so that every frame of the film is one that a reader sees.
"""

import argparse
import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from stills import HIDDEN

ASSETS = Path(__file__).parent
WINDOW, COLOURS, MOST = {"width": 1000, "height": 1400}, 128, 1_000_000  # of the browser; of a frame; bytes of a file
FRAME, REST, LONG = 80, 600, 1600  # milliseconds: of a frame on the way, at a chunk length, at both ends
CLOCK = """let now = 0;
const waiting = [];
performance.now = () => now;
window.requestAnimationFrame = (draw) => waiting.push(draw);
window.pass = (milliseconds) => {
  for (const end = now + milliseconds; now < end; now += 16) for (const draw of waiting.splice(0)) draw(now);
};
window.smalearnSeen = { has: () => true }; // nothing moves by itself"""
SLIDE = """([slider, place]) => {
  slider.value = place;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""


def frames(page: Page) -> Iterator[tuple[bytes, int]]:
    """Yield the explorer as a PNG, and for how many milliseconds: slowly to the recurrence, and quickly back."""
    explorer = page.locator(".explorer .smalearn").first
    slider = explorer.locator(".dial input").element_handle()
    places = range(int(slider.get_attribute("max")) + 1)

    def after(milliseconds: int, shown: int) -> tuple[bytes, int]:
        page.evaluate("(milliseconds) => pass(milliseconds)", milliseconds)
        return explorer.screenshot(), shown

    page.evaluate(SLIDE, [slider, 0])
    yield after(LONG, LONG)
    for place in places[1:]:
        page.evaluate(SLIDE, [slider, place])
        yield from (after(FRAME, FRAME) for _ in range(5))
        yield after(REST - FRAME, REST if place < places[-1] else LONG)
    for place in places[-2::-1]:
        page.evaluate(SLIDE, [slider, place])
        yield from (after(FRAME, FRAME) for _ in range(3))


def film(pictures: list[tuple[bytes, int]], path: Path) -> int:
    """Write a GIF of all pictures; returns its bytes."""
    images = [Image.open(io.BytesIO(picture)).convert("RGB") for picture, _ in pictures]
    (width, height), some = images[0].size, images[:: len(images) // 6]
    sheet = Image.new("RGB", (width, height * len(some)))
    for place, image in enumerate(some):
        sheet.paste(image, (0, height * place))
    palette = sheet.quantize(
        COLOURS, kmeans=1, dither=Image.Dither.NONE
    )  # one for all: a colour that stays is stored once
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [shown for _, shown in pictures]
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    return path.stat().st_size


def main(arguments: list[str] | None = None) -> int:
    """Record both films; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="what `smalearn site` has written")
    site = parser.parse_args(arguments).site.resolve()
    sizes = []
    with sync_playwright() as playwright:
        path = shutil.which("chromium")  # of the system, or else Playwright's own
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=WINDOW, color_scheme=scheme)
            page.add_init_script(CLOCK)
            page.goto((site / "index.html").as_uri())
            page.wait_for_selector(".explorer[data-live]")
            page.add_style_tag(content=f"{HIDDEN} .smalearn [role=status], header {{ display: none !important; }}")
            taken = list(frames(page))
            sizes.append(film(taken, ASSETS / f"attention_to_recurrence_{scheme}.gif"))
            print(f"{scheme}: {len(taken)} frames, {sizes[-1] / 1e6:.2f} MB")
        browser.close()
    return int(max(sizes) > MOST)


if __name__ == "__main__":
    sys.exit(main())
