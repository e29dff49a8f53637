"""The moving picture of the README, light and dark: `python assets/record.py FOLDER`, the folder of the site.

A browser opens the ten-minute path and drags the decay of one word to 0 and back; every position is a frame.
"""

import argparse
import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ASSETS = Path(__file__).parent
WINDOW, COLOURS, MILLISECONDS, MOST = (1280, 1100), 64, 80, 1_500_000  # of the browser; of a frame; bytes of a file
WORDS, WORD, TITLE, FOOT = 10, 5, 20, 16  # of the text; the one that is dragged; pixels above a decay of 1, below 0
STEPS, PAUSE = 10, 8  # frames of one way, frames of rest


def frames(page: Page) -> Iterator[bytes]:
    """Yield the whole explorer, as a PNG: at rest, while a decay is dragged down, at rest, and back up."""
    explorer = page.locator(".explorer .smalearn").first
    strip = explorer.locator("canvas[aria-label^='Decays']").first
    box = strip.bounding_box()
    x, top, tall = box["x"] + box["width"] * (WORD + 0.5) / WORDS, box["y"] + TITLE, box["height"] - TITLE - FOOT
    depths = [0.2 + 0.8 * step / STEPS for step in range(STEPS + 1)]
    page.mouse.move(x, top + depths[0] * tall)
    page.mouse.down()
    for depth in [*PAUSE * depths[:1], *depths, *PAUSE * depths[-1:], *depths[::-1]]:
        page.mouse.move(x, top + depth * tall)
        page.wait_for_timeout(60)
        yield explorer.screenshot()
    page.mouse.up()


def film(pictures: list[bytes], path: Path) -> int:
    """Write a GIF of all pictures; returns its bytes."""
    images = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    first, *others = [image.quantize(COLOURS, dither=Image.Dither.NONE) for image in images]
    first.save(path, save_all=True, append_images=others, duration=MILLISECONDS, loop=0, optimize=True)
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
            viewport = dict(zip(("width", "height"), WINDOW, strict=True))
            page = browser.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
            page.goto((site / "ten_minutes.html").as_uri())
            page.wait_for_selector(".explorer[data-live]")
            page.locator(".explorer").first.scroll_into_view_if_needed()
            taken = list(frames(page))
            sizes.append(film(taken, ASSETS / f"drag_a_decay_{scheme}.gif"))
            print(f"{scheme}: {len(taken)} frames, {sizes[-1] / 1e6:.2f} MB")
        browser.close()
    return int(max(sizes) > MOST)


if __name__ == "__main__":
    sys.exit(main())
