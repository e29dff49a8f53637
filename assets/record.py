"""The moving pictures of the README, from the real explorers: `python assets/record.py FOLDER`, the site's folder.

A browser opens the site's pages, moves the controls of an explorer, and every position becomes a frame.
"""

import argparse
import io
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, sync_playwright

ASSETS = Path(__file__).parent
WIDTH, COLOURS, MILLISECONDS, MOST = 760, 48, 90, 1_500_000  # of a picture; of a frame; bytes of a file
SET = """(input, value) => { input.value = value; input.dispatchEvent(new Event("input", { bubbles: true }));
  input.dispatchEvent(new Event("change", { bubbles: true })); }"""

Move = tuple[str, Iterable[object]]  # the label of a control, and the values it goes through
FILMS: dict[str, tuple[str, int, list[Move]]] = {
    "mask_explorer": (
        "04_structured_masks.html",
        660,
        [("a, all decays", range(91, 30, -4)), ("t, row", range(28, 63, 2)), ("L, family", ["Toeplitz", "low rank"])],
    ),
    "chunk_explorer": (
        "06_state_space_duality.html",
        650,
        [("Q, chunk length", [5, 4, 3, 2, 1, 2, 3, 5, 7, 11, 15, 11, 7, 5]), ("N, state size", [*range(3, 20, 2), 3])],
    ),
    "kernel_tracer": ("12_chunked_kernel.html", 720, [("Steps, done", range(0, 65, 2))]),
}
"""Picture -> page, height that is shown, and the moves."""


def frames(explorer: Locator, height: int, moves: list[Move]) -> list[Image.Image]:
    """A picture of the explorer before the first move and after each."""
    taken = [picture(explorer, height)]
    for label, values in moves:
        control = explorer.get_by_label(label, exact=True)
        for value in values:
            control.evaluate(SET, str(value))
            explorer.page.wait_for_timeout(60)
            taken.append(picture(explorer, height))
    return taken


def picture(explorer: Locator, height: int) -> Image.Image:
    """The upper part of the explorer as it is now."""
    image = Image.open(io.BytesIO(explorer.screenshot())).convert("RGB")
    return image.crop((0, 0, image.width, min(height, image.height))).quantize(COLOURS, dither=Image.Dither.NONE)


def main(arguments: list[str] | None = None) -> int:
    """Record all films; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="what `smalearn site` has written")
    site = parser.parse_args(arguments).site.resolve()
    with sync_playwright() as playwright:
        path = shutil.which("chromium")  # of the system, or else Playwright's own
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (file, height, moves) in FILMS.items():
            page = browser.new_page(viewport={"width": WIDTH + 264, "height": 1400})
            page.goto((site / file).as_uri())
            page.wait_for_selector(".explorer[data-live]")
            first, *others = frames(page.locator(".explorer").first, height, moves)
            path = ASSETS / f"{name}.gif"
            first.save(path, save_all=True, append_images=others, duration=MILLISECONDS, loop=0, optimize=True)
            print(f"{path.name}: {1 + len(others)} frames, {path.stat().st_size / 1e6:.2f} MB")
            if path.stat().st_size > MOST:
                return 1
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
