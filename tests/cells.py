"""What a chapter shows: the source of its cells, what they print, and what they define."""

import ast
import functools
import linecache
from pathlib import Path

import nbformat

from smalearn.course.exercises import registry


@functools.cache
def cells(number):
    """The cells of a chapter by their ids."""
    (path,) = (Path(__file__).parents[1] / "chapters").rglob(f"{number}_*.ipynb")
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


def printed(number, name):
    """What a cell prints, as it is stored."""
    outputs = cells(number)[name].outputs
    return "".join(output.text for output in outputs if output.output_type == "stream")


def shown(number, *names, **given):
    """What these cells define, after the set-up of their chapter and with what is given."""
    for name in ("setup", *names):
        exec(cells(number)[name].source, given)
    return given


def run_cell(source, space):
    """Run a cell as a kernel does: the source of its functions can be read afterwards."""
    name = f"<cell {len(linecache.cache)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), space)


def answered(chapter, id):
    """A stub with the body of the solution: what a learner may write."""
    code = registry()[id].code
    body = code.splitlines()[ast.parse(code).body[0].body[0].end_lineno :]
    stub = cells(chapter)[f"ex-{id.replace('.', '-')}-stub"].source
    return stub.replace("    raise NotImplementedError", "\n".join(body))
