"""Our solution to an exercise as text, for a submission's process, where it stands in once the answer is judged."""

import ast
import inspect
import sys
import types

from smalearn.course.exercises import Exercise, registry
from smalearn.course.exercises.core import of_a_chapter
from smalearn.course.exercises.way import names_in
from smalearn.fast.jit import Kernel

__all__ = ["reference"]


def reference(exercise: Exercise) -> str | None:
    """Source of our solution, with the imports of its module and what it calls of other solutions.

    None for one that is not the course's: that stays here.
    """
    solution = inspect.unwrap(exercise.solution)
    if not solution.__module__.startswith("smalearn."):
        return None
    body = ast.parse(inspect.getsource(inspect.getmodule(solution))).body
    lines = [_there(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    if "__all__" in solution.__globals__:
        lines.append(f"from {solution.__module__} import *")
    others = {one: other for other in registry().values() for one in (other.solution, *other.kernels)}
    names = [name for one in (solution, *exercise.kernels) for name in names_in(inspect.unwrap(one).__code__)]
    called = [solution.__globals__.get(name) for name in names]
    owners = [others.get(one, exercise) for one in called if isinstance(one, types.FunctionType | Kernel)]
    sources = [reference(other) for id, other in {one.id: one for one in owners}.items() if id != exercise.id]
    return "\n".join([*lines, *sources, exercise.code])


def _there(node: ast.Import | ast.ImportFrom) -> str:
    """Write an import of what the package without solutions has, too; nothing if that is nothing."""
    module = sys.modules.get(getattr(node, "module", ""))
    if module is None or not of_a_chapter(module.__name__):
        return ast.unparse(node)
    names = [ast.unparse(alias) for alias in node.names if alias.name in getattr(module, "__all__", ())]
    return f"from {module.__name__} import {', '.join(names)}" if names else ""
