"""Chapter as a page: buttons on top, hints and solutions folded under each exercise, explorers that move."""

import contextlib
import copy
import textwrap
from collections.abc import Iterator
from pathlib import Path

from smalearn.course.exercises import Exercise, registry
from smalearn.course.site import explorers
from smalearn.course.workbook import notebook

__all__ = ["chapter", "colab"]

COLAB = "colab"
"""The folder of the site, on its branch gh-pages, with the notebooks that Colab opens."""
COLAB_LACKS = ("einops", "anywidget", "pooch")
"""Our dependencies that Colab does not preinstall."""


def chapter(path: Path, repository: str | None = None, place: str = "") -> tuple[notebook.Notebook, set[str]]:
    """Turn a chapter into the notebook from which its page is made."""
    if (source := notebook.read(path)) is None:
        raise ValueError(f"site: {path} is not a notebook")
    setup = [cell["source"] for cell in source["cells"] if "setup" in cell["metadata"].get("tags", [])]
    checks = {cells[-1]["id"]: id for id, cells in notebook.exercises(source).items()}
    place = place or path.name
    cells, used = [], set()
    for cell in source["cells"]:
        if str(cell.get("id")).endswith("-help"):
            continue  # folded hints and solution stand there
        name = explorers.shown(cell)
        if name is not None:
            used.add(name)
            cell = _live(cell, setup, _up(place))
        if cell["cell_type"] == "markdown" or "opener" not in cell["metadata"].get("tags", []):
            cells.append(cell)  # of closed-book questions the words alone: a page has nobody to answer to
        if len(cells) == 1:
            cells.append(_markdown("buttons", _buttons(place, repository)))
        if cell.get("id") in checks:
            exercise = registry()[checks[cell["id"]]]
            cells.append(_markdown(f"help-{cell['id']}", "\n\n".join(_help(exercise))))
    metadata = {"kernelspec": source["metadata"].get("kernelspec", {})}
    return source | {"cells": cells, "metadata": metadata}, used


def colab(path: Path, repository: str) -> notebook.Notebook:
    """Make a copy of a chapter, without outputs, that first installs the course on Colab, whose own PyTorch stays."""
    missing = " ".join(COLAB_LACKS)
    lines = [
        "# On Colab only: the course, and what it needs besides the PyTorch, NumPy and Matplotlib that are there.",
        f"%pip install --quiet --no-deps git+https://github.com/{repository}",
        f"%pip install --quiet {missing}",
    ]
    cell = {"cell_type": "code", "id": "colab", "metadata": {}, "source": "\n".join(lines)}
    cell |= {"execution_count": None, "outputs": []}
    source = notebook.blank(notebook.read(path))
    return source | {"cells": [cell, *source["cells"]]}


def _markdown(id, text):
    """Make a cell of Markdown."""
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": text}


def _up(place):
    """Write the way from a page up to the folder of the site."""
    return "../" * place.count("/")


def _live(cell, setup, up):
    """Put its explorer into a cell in the place of the still picture."""
    cell = copy.deepcopy(cell)
    text = cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", "")
    for output in cell["outputs"]:
        if picture := output.get("data", {}).get("image/png"):
            widget = explorers.made(setup, cell["source"])
            output["data"] = {"text/html": explorers.html(widget, "".join(picture).strip(), text, up)}
    return cell


def _buttons(place, repository):
    """Write links to the notebook, to where it runs, and to where somebody answers."""
    links = {f"{_up(place)}notebooks/{place}": "Download this notebook"}
    if repository:
        links[f"https://colab.research.google.com/github/{repository}/blob/gh-pages/{COLAB}/{place}"] = "Open in Colab"
        links[f"https://mybinder.org/v2/gh/{repository}/main?urlpath=lab/tree/chapters/{place}"] = "Open in Binder"
        links[f"https://github.com/{repository}/issues/new?title={place}:+"] = "Ask a question"
    return '<p class="buttons">' + "".join(f'<a href="{link}">{text}</a>' for link, text in links.items()) + "</p>"


def _help(exercise: Exercise) -> Iterator[str]:
    """Yield each hint and the solution, folded."""
    for number, hint in enumerate(exercise.hints, 1):
        yield f"<details><summary>Hint {number}</summary>\n\n```text\n{textwrap.fill(hint, 100)}\n```\n\n</details>"
    with contextlib.suppress(OSError):  # in the students' edition it comes later
        yield f"<details><summary>Solution</summary>\n\n```python\n{exercise.code}\n```\n\n</details>"
