"""The afternoon: one notebook, made of the cells that chapters tag `afternoon`, that ends with one's own Mamba-2."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from smalearn.course.workbook.notebook import Notebook, exercises, find, read
from smalearn.course.workbook.tally import ChapterProgress

__all__ = ["NAME", "PLACES", "afternoon", "hours", "made", "progress", "table"]

NAME, TAG = Path("afternoon.ipynb"), "afternoon"
PLACES = {  # chapter: minutes, what one does there, and what one needs to know of the cells that are skipped
    "01": (22, "attention in three steps, its mask, and the orders of one formula", ""),
    "03": (
        14,
        "another order: a state in place of all keys, and gates that let it fade",
        "The mask stays; the division of the softmax does not come back, and no model below has one.",
    ),
    "04": (
        11,
        "decays are a mask, whose blocks are one column times one row",
        "Of the three steps of (15), $H = LZ$ alone knows about time. With the ones of the causal mask it is a running "
        "sum. **What did that need of the ones?**",
    ),
    "05": (19, "a recurrence is a matrix, and the past reaches the future through N numbers", ""),
    "06": (
        74,
        "both are one; the four steps of the fast algorithm, and `my_ssd.py`",
        "Of the state space models take those whose transition is one number a token, for $P$ channels at once: "
        "$H_t = a_t H_{t-1} + X_t B_t^\\top$, $Y_t = H_t C_t$.",
    ),
    "07": (72, "a clock, a convolution, the layer, and `my_mamba2.py`, which writes", ""),
}
OPENING = """# Your own Mamba-2 in an afternoon

{hours} from attention to a layer that you wrote, in a file that needs nothing of this course:

{table}

The cells are those of the chapters, in their order. What is left out stands in the chapters, one link away; sections
keep the numbers that they have there. Your answers are kept, and count in `smalearn progress`, as if they had been
given there. Run every cell from the top. Where an answer is missing, the cells behind it use ours, and the two files
wait for yours."""


def hours() -> str:
    """Say how long the road is: "3½ hours"."""
    halves = round(sum(minutes for minutes, *_ in PLACES.values()) / 30)
    return f"{halves // 2}{'½' * (halves % 2)} hours"


def table(folder: Path, link: Callable[[Path], str] = lambda path: path.name) -> str:
    """Write the places as a table in Markdown, with a link to each chapter."""
    lines = ["| minutes | chapter | what you do |", "|---|---|---|"]
    for path, chapter in _chapters(folder):
        minutes, doing, _ = PLACES[_number(path)]
        lines.append(f"| {minutes} | [{_title(chapter)}]({link(path)}) | {doing} |")
    return "\n".join(lines)


def afternoon(folder: Path) -> Notebook:
    """Make the notebook: an opening, one cell of imports, and for each place a heading and the chapter's own cells."""
    chapters = _chapters(folder)
    cells = [_text(TAG, OPENING.format(hours=hours().capitalize(), table=table(folder)))]
    setup = {"cell_type": "code", "id": "setup", "metadata": {"tags": ["setup"]}, "execution_count": None}
    cells.append(setup | {"outputs": [], "source": ""})
    for path, chapter in chapters:
        number = _number(path)
        minutes, _, needed = PLACES[number]
        cells.append(_text(number, f"# {_title(chapter)}\n\n*{minutes} minutes.* {needed}".strip()))
        cells += (cell | {"id": f"{number}-{cell['id']}"} for cell in _part(path, chapter))
    cells[1]["source"] = _setup([chapter["cells"] for _, chapter in chapters], exercises({"cells": cells}))
    metadata = next((chapter["metadata"] for _, chapter in chapters), {})
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def made(folder: Path) -> dict[Path, Notebook]:
    """Make the notebook under the name that it has in `work`."""
    return {NAME: afternoon(folder)}


def progress(rows: Iterable[ChapterProgress], folder: Path) -> str:
    """Count the exercises of the road that are passed, in one line; empty where no chapter has any."""
    states = {id: state for row in rows for id, state in row.states.items()}
    found = [states[id] for id in exercises(afternoon(folder)) if id in states]
    words = f"An afternoon, {hours()}: smalearn afternoon"
    return f"{words}  {found.count('passed')} of {len(found)}" if found else ""


def _chapters(folder: Path) -> list[tuple[Path, Notebook]]:
    """Read the chapters of the places."""
    paths = filter(None, (find(folder, number) for number in PLACES))
    return [(path, chapter) for path in paths if (chapter := read(path))]


def _number(path: Path) -> str:
    return path.stem.partition("_")[0]


def _title(chapter: Notebook) -> str:
    return chapter["cells"][0]["source"].partition("\n")[0].strip("# ")


def _text(id: str, source: str) -> dict:
    return {"cell_type": "markdown", "id": id, "metadata": {}, "source": source}


def _tagged(cell: dict, tag: str = TAG) -> bool:
    return tag in cell["metadata"].get("tags", [])


def _part(path: Path, chapter: Notebook) -> Iterator[dict]:
    """Yield the tagged cells of a chapter, and behind each section of which some are skipped where it stands."""
    sections = [("", [])]
    for cell in chapter["cells"]:
        if cell["cell_type"] == "markdown" and (heading := re.search(r"(?m)^## (\d*)", cell["source"])):
            sections.append((heading[1], []))
        sections[-1][1].append(cell)
    for section, cells in sections:
        taken = [cell for cell in cells if _tagged(cell)]
        yield from taken
        if section and 0 < len(taken) < len(cells):
            where = f"[chapter {_number(path)}]({path.name})"
            yield _text(f"rest-{section}", f"*The rest of section {section} stands in {where}.*")


def _setup(chapters: Iterable[list[dict]], ids: Iterable[str]) -> str:
    """Write once what the chapters' first cells of code do, what tagged cells need of others' imports, and the road."""
    modules, others = {"smalearn.course": {"follow": None}}, {}
    for cells in chapters:
        first, *code = (cell for cell in cells if cell["cell_type"] == "code")
        trees = [ast.parse(cell["source"]) for cell in code if _tagged(cell)]
        used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for cell in [first, *(cell for cell in code if not _tagged(cell))]:
            for node in ast.parse(cell["source"]).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [one for one in map(ast.unparse, node.names) if cell is first or one.split()[-1] in used]
                    modules.setdefault(getattr(node, "module", ""), {}).update(dict.fromkeys(names))
                elif cell is first:
                    others[ast.unparse(node)] = None
    lines = [f"import {name}" for name in sorted(modules.pop("", ()))]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items()) if names]
    road = ", ".join(f'"{id}"' for id in ids)
    return "\n".join([*lines, "", *others, f"follow({road})"])
