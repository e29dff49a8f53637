"""The pages of text: the landing page, the ten-minute path, and what an examiner asks; see the folder `text`."""

import base64
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from smalearn.course.site import explorers
from smalearn.course.workbook import notebook, road
from smalearn.data import ten_words

__all__ = ["PAGES", "page", "stills"]

PAGES = ("index", "ten_minutes", "oral", "404")


def page(name: str, course: Path, places: Mapping[Path, str], repository: str | None = None) -> tuple[str, set[str]]:
    """Write a page: its text, with explorers, cards and links in the place of comments that name them."""
    text, used = (Path(__file__).parent / "text" / f"{name}.md").read_text(encoding="utf-8"), set()

    def part(match):
        word, _, number = match[1].partition(" ")
        if word.lower() == "chapter":
            return _link(match[1], number, places)
        if word == "cards":
            return _cards(course, places)
        if word == "start":
            first = next(iter(places.values())).replace(".ipynb", ".html")
            return f'<a class="first" href="{first}">Start reading</a>'
        if word == "hours":
            return road.hours()
        if word == "afternoon":
            return road.table(course / "chapters", lambda path: places.get(path, path.name))
        if word == "run":
            return _commands(repository)
        widget = _explorer(word)
        used.add(type(widget).__name__)
        return explorers.html(widget, widget._repr_mimebundle_()[0]["image/png"], "An explorer, which needs JavaScript")

    return re.sub(r"<!-- (.+?) -->", part, text), used


def _explorer(word):
    """Make one of the explorers of these pages."""
    from smalearn.course.widgets import ContractionMap, DualityExplorer, MaskExplorer, StateExplorer

    if word == "duality":
        return DualityExplorer()
    if word == "mask":
        return MaskExplorer(" ".join(ten_words()[0]), family="1-semiseparable", decays=0.8)
    if word == "state":
        return StateExplorer(gates=0.8, query="than", time=9)
    return ContractionMap(target=1024, features=16, head_dim=64, scan=True)


def _link(words, number, places):
    """Link a chapter by its number, where there is one."""
    found = (place for path, place in places.items() if path.stem.partition("_")[0] == number)
    return f"[{words}]({place})" if (place := next(found, None)) else words


def _commands(repository):
    """Write the commands that set the course up: from the repository, or in a folder that the reader has."""
    if repository:
        clone = f"git clone https://github.com/{repository} smalearn\ncd smalearn\npython start.py"
        at_once = f'uvx --from "smalearn[lab] @ git+https://github.com/{repository}" smalearn lab'
        return f"```console\n{clone}\n```\n\nWith uv one line does, in any folder:\n\n```console\n{at_once}\n```"
    return "In the course's folder:\n\n```console\npython start.py\n```"


def _cards(course, places):
    """Write a card for each chapter: its picture, its title and the README's line on it."""
    readme = (course / "README.md").read_text(encoding="utf-8")
    lines = {place: line.strip() for place, line in re.findall(r"\(chapters/(\S+?)\) \|[^|]*\|([^|]*)\|", readme)}
    cards = [_card(path, place, lines.get(place, "")) for path, place in places.items()]
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _card(path, place, line):
    number, _, title = notebook.read(path)["cells"][0]["source"].partition("\n")[0].strip("# ").partition(" · ")
    words = f"<span>{escape(number)}</span> {escape(title)}"
    picture = f'<i><img loading="lazy" alt="" src="_static/stills/{path.stem}.png"></i>'
    link = place.replace(".ipynb", ".html")
    return f'<li><a href="{link}">{picture}<strong>{words}</strong></a><small>{escape(line)}</small></li>'


def stills(paths: Iterable[Path]) -> dict[str, bytes]:
    """Choose the picture of each chapter's card: of an explorer that no earlier chapter has, or else its first one."""
    found, seen = {}, set()
    for path in paths:
        pictures = {}
        for name, picture in _pictures(notebook.read(path)):
            pictures.setdefault("" if name in seen else name or "", picture)
        if pictures:
            name = max(pictures)
            seen.add(name)
            found[path.stem] = base64.b64decode(pictures[name])
    return found


def _pictures(chapter):
    """Yield the name of its explorer, None without one, and the PNG of each output with a picture."""
    for cell in chapter["cells"]:
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                yield explorers.shown(cell), "".join(picture)
