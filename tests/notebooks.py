"""Execute the chapters and store them in one normal form: `python tests/notebooks.py [--check] [chapter ...]`.

Without `--check` every chapter is run from top to bottom and written back with its outputs. With `--check` nothing is
written; the exit code is 1 if a fresh run or the normal form differs from what is stored (pictures are not compared:
their pixels differ between machines; the arrays behind them are tested). So that none is older than its cell, a cell
with output that no fresh run is compared with keeps the digest of the source that made it.
"""

import argparse
import base64
import copy
import difflib
import hashlib
import io
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from smalearn.course.workbook.notebook import chapters

CHAPTERS = Path(__file__).parents[1] / "chapters"
KEPT_METADATA = {"tags", "jupyter", "mystnb", "jp-MarkdownHeadingCollapsed", "exercise", "made_by"}
IMAGES = {"image/png", "image/jpeg"}
WIDGET = "application/vnd.jupyter.widget-view+json"  # names a model that ended with its kernel; the still picture stays


def execute(notebook: nbformat.NotebookNode, folder: Path = CHAPTERS) -> nbformat.NotebookNode:
    """A copy with the outputs of a fresh run in the given folder, and what made them; a cell's exception is raised."""
    notebook = copy.deepcopy(notebook)
    environment = {name: value for name, value in os.environ.items() if name != "SMALEARN_STRICT"}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("made_by", None)
        if made_by := digest(cell):
            cell.metadata["made_by"] = made_by
    return notebook


def digest(cell: nbformat.NotebookNode) -> str | None:
    """The source of a code cell in a few letters, or None if all its outputs are compared with those of a fresh run."""
    pictured = any(IMAGES & set(output.get("data", {})) for output in cell.get("outputs", []))
    if pictured or (cell.cell_type == "code" and "nbval-ignore-output" in cell.metadata.get("tags", [])):
        return hashlib.sha256(cell.source.encode()).hexdigest()[:12]
    return None


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy in normal form: no timing, no versions, no widget state, pictures small, neighbouring streams joined."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in KEPT_METADATA})
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
            for output in cell.outputs:
                output.get("data", {}).pop(WIDGET, None)
                if picture := output.get("data", {}).get("image/png"):
                    output.data["image/png"] = with_few_colours(picture)
                if "metadata" in output:
                    output.metadata = nbformat.from_dict({})
                if output.output_type == "execute_result":
                    output.execution_count = cell.execution_count
    return notebook


def with_few_colours(picture: str) -> str:
    """A PNG in base64 with a palette, which takes half the bytes of one with all colours."""
    image = Image.open(io.BytesIO(base64.b64decode(picture)))
    if image.mode == "P":
        return picture
    file = io.BytesIO()
    few = image.convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE)
    few.save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def merge_streams(outputs: list) -> list:
    """Neighbouring outputs of one stream joined: how often a kernel flushes is chance."""
    merged = []
    for output in outputs:
        if output.output_type == "stream" and merged and merged[-1].get("name") == output.name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def dumps(notebook: nbformat.NotebookNode) -> str:
    """The file's text."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def without_pictures(notebook: nbformat.NotebookNode) -> str:
    """The file's text with every picture's bytes left out."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for image in IMAGES & set(output.get("data", {})):
                output.data[image] = "picture"
    return dumps(notebook)


def read(path: Path) -> nbformat.NotebookNode:
    """A validated notebook."""
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    nbformat.validate(notebook)
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with a fresh run, write nothing")
    parser.add_argument("chapters", nargs="*", type=Path, help="all chapters if none is named")
    options = parser.parse_args(arguments)
    failed = [path.name for path in options.chapters or chapters(CHAPTERS) if not run(path, options.check)]
    return 1 if failed else 0


def run(path: Path, check: bool) -> bool:
    """Execute one chapter and write it, or compare it with what is stored; True if nothing differs."""
    fresh = normalise(execute(read(path), path.parent))
    if not check:
        path.write_text(dumps(fresh), encoding="utf-8", newline="\n")
        print(f"{path.name}: written")
        return True
    normal = path.read_text(encoding="utf-8") == dumps(normalise(read(path)))
    old, new = without_pictures(read(path)), without_pictures(fresh)
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), path.name, "fresh run", n=2))
    verdict = "as stored" if old == new else "a fresh run differs"
    print(f"{path.name}: {verdict}{'' if normal else '; not in normal form: run python tests/notebooks.py'}")
    return normal and old == new


if __name__ == "__main__":
    raise SystemExit(main())
