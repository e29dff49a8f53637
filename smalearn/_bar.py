"""What is seen of a training: below a notebook's cell the loss as a curve that grows, in a terminal a bar."""

import contextlib
import math
import sys
import time
from collections.abc import Callable

__all__ = ["bar"]

REDRAW = 0.2  # seconds from one drawing to the next
WIDTH = 30  # of the bar, in characters
POINTS = 200  # of the curve: each is the mean of as many steps
CURVE = """<svg viewBox="-34 -12 440 138" style="display: block; max-width: 30em" role="img" aria-label="{line}">
<path d="M0 0V100H400" fill="none" stroke="#888"/><path d="M{path}" fill="none" stroke="#3b8fd0" stroke-width="2"/>
<g fill="currentColor" font-family="sans-serif" font-size="12"><text y="120">{line}</text>
<text x="-6" y="4" text-anchor="end">{top:.1f}</text> <text x="-6" y="104" text-anchor="end">0</text></g></svg>"""


def bar(total: int, start: int) -> Callable[[int, float], None] | None:
    """A function of the steps done and the loss that draws both; None where nobody would see it."""
    write = _place()
    if write is None:
        return None
    began, drawn, losses = time.monotonic(), -math.inf, []

    def show(done, loss):
        nonlocal drawn
        losses.append(loss)
        now = time.monotonic()
        if now - drawn < REDRAW and done < total:
            return
        drawn = now
        left = round((now - began) / (done - start) * (total - done))
        full = WIDTH * done // total
        line = f"{done}/{total}  loss {loss:.3f}  {left // 60}:{left % 60:02} left"
        write(
            f"[{'#' * full}{'.' * (WIDTH - full)}] {line}" + "\n" * (done == total), _curve(losses, line, total - start)
        )

    return show


def _curve(losses, line, total):
    """The loss of the steps so far, out of so many, as a picture."""
    each = math.ceil(total / POINTS)
    means = [sum(part) / len(part) for part in (losses[i : i + each] for i in range(0, len(losses), each))]
    top = max(means) or 1
    places = [(400 * min((i + 1) * each, total) / total, 100 - 100 * mean / top) for i, mean in enumerate(means)]
    return CURVE.format(path="L".join(f"{x:.1f} {y:.1f}" for x, y in places), line=line, top=top)


def _place():
    """A function that redraws the progress line, below a notebook's cell or in a terminal; None elsewhere."""
    with contextlib.suppress(ImportError):
        from IPython import display, get_ipython

        if hasattr(get_ipython(), "kernel"):
            handle = display.display({"text/plain": ""}, raw=True, display_id=True)
            return lambda line, html: handle.update({"text/plain": line, "text/html": html}, raw=True)
    if sys.stderr.isatty():
        return lambda line, html: print(f"\r{line:79}", end="", file=sys.stderr, flush=True)
    return None
