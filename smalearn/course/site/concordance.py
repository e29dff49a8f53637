"""Concordance as a page: an entry for each claim, source by source, with a box that filters them."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from smalearn.course.site import reference
from smalearn.course.site.claims import CLASSES, SOURCES, claims, files, held, named
from smalearn.course.site.latex import inline

__all__ = ["page"]

MARKUP = r"[\\|*_<>\[\]$`#]"
FILTER = (
    '<div class="filter" hidden><label>Filter <input type="search" placeholder="a word, an equation, a function">'
    '</label><label><input type="checkbox"> corrected only</label><span role="status"></span></div>'
)


def page(course: Path) -> str:
    """Write Markdown: an entry for each claim, source by source."""
    listed = claims(course)
    folder = course / "chapters"
    places = {number: file.relative_to(folder).as_posix() for number, file in files(course).items()}
    parts = ["---\ntocdepth: 2\n---", "# Concordance", _introduction(listed), FILTER]
    for number, (name, title) in SOURCES.items():
        own = [claim for claim in listed if claim.id.startswith(number)]
        corrected = sum(claim.nature == "error" for claim in own)
        summary = f"<details><summary>{len(own)} claims, {corrected} of them corrected</summary>"
        parts += [f"## {name}", title, summary, *("\n\n".join(_entry(claim, places)) for claim in own), "</details>"]
    return "\n\n".join(parts) + "\n"


def _introduction(listed):
    """Say how many claims there are, and what an entry tells."""
    pinned, wrong = sum(bool(claim.tests) for claim in listed), sum(claim.nature == "error" for claim in listed)
    count = "all" if pinned == len(listed) else pinned
    error = (
        " The error is the largest relative error that the tests of a claim met when it was last recorded; where there "
        "is none, they count, compare structures or hold a bound."
    )
    return (
        f"What the sources claim, and what the course makes of it: {len(listed)} claims, {count} of them pinned "
        f"by tests that fail when the function is wrong by a thousandth, and {wrong} corrections. "
        "Of an experiment an entry says what came of it in small, and what was tested."
    ) + error * any(claim.residual is not None for claim in listed)


def _entry(claim, places) -> Iterator[str]:
    """Yield paragraphs: what is claimed and corrected, and where it is derived and tested."""
    number, _, name = claim.id.partition(":")
    yield f"````{{container}} claim\n:name: {number}-{name}"
    yield f"{_prose(claim.statement)} `{claim.id}`"
    if claim.erratum:
        corrected = "{.correction}\n" * (claim.nature == "error")
        yield f"{corrected}> **{CLASSES[claim.nature]}.** {_prose(claim.erratum)}"
    if claim.verdict:
        yield f"Tested: {_prose(claim.check)}"
    chapter = named(claim)
    is_written = claim.where and claim.chapter in places
    place = f"[{chapter[0].upper()}{chapter[1:]}]({places[claim.chapter]})" if is_written else f"Not yet in {chapter}"
    parts = [_prose(claim.source), place + (f", {_prose(claim.section)}" if claim.section else "")]
    parts += [", ".join([*map(_linked, claim.functions), *(f"`{name}`" for name in claim.tests)])] * bool(claim.tests)
    yield " · ".join([*parts, held(claim)] if held(claim) != "tested" else parts)
    yield "````"


def _linked(function) -> str:
    """Link a function to its place in the reference, by the name under which its room exports it."""
    for room in sorted(reference.rooms(), key=len, reverse=True):  # a part before its room
        inside = function.removeprefix(f"smalearn.{room}.").split(".")
        public = importlib.import_module(f"smalearn.{room}").__all__
        if function.startswith(f"smalearn.{room}.") and (exported := [name for name in inside if name in public]):
            name = ".".join(inside[inside.index(exported[0]) :])
            return f"{{py:obj}}`{name} <smalearn.{room}.{name.partition('._')[0]}>`"
    return f"`{function}`"


def _prose(text) -> str:
    """Escape a text so that no character in it begins markup, and set its formulas."""
    parts = inline(" ".join(text.split()))
    return "".join(f"${formula}$" if formula else re.sub(MARKUP, r"\\\g<0>", part) for part, formula in parts)
