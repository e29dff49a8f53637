"""A wrong answer as an edit of the solution: "softmax(-1) → softmax(-2)"; several are joined by " ; "."""

import ast
import inspect
import itertools
import linecache
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import cached_property

__all__ = ["Edited"]

_numbers = itertools.count()


class Edited:
    """The solution with another text in some places: made when it is first called, since few learners are so wrong.

    Args:
        solution: the right answer.
        kernels: those that it launches, of which the text can be changed, too.
        edits: "old → new" and so on; an old text must stand in a body, and is replaced wherever it does.
    """

    def __init__(self, solution: Callable, kernels: Sequence[Callable], edits: str):
        self.functions, self.edits = [*kernels, solution], edits

    def __call__(self, *arguments: object) -> object:
        """Answer as the edited solution does."""
        return self.function(*arguments)

    @cached_property
    def function(self) -> Callable:
        """The edited solution.

        Raises:
            ValueError: a text to be replaced does not stand in the source.
        """
        name = self.functions[-1].__name__
        heads, bodies = zip(*map(_source, self.functions), strict=True)
        for edit in self.edits.split(" ; "):
            old, arrow, new = edit.partition(" → ")
            if not arrow or not any(old in body for body in bodies):
                raise ValueError(f"{name}: no {old!r} in its source to replace")
            bodies = [body.replace(old, new) for body in bodies]
        source = "\n\n\n".join(map("\n".join, zip(heads, bodies, strict=True)))
        file = f"<{name}, edited {next(_numbers)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)  # where Triton looks for it
        scope = dict(self.functions[-1].__globals__)
        exec(compile(source, file, "exec"), scope)
        return scope[name]


def _source(function: Callable) -> tuple[str, str]:
    """Return head and body, without docstring and the decorator `exercise`; the students' edition packs the text."""
    function = inspect.unwrap(function)
    text = getattr(sys.modules.get(function.__module__), "PACKED", None)
    source = text or textwrap.dedent(inspect.getsource(function))
    defined = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    node = next(node for node in defined if node.name == function.__name__)
    kept = [f"@{ast.unparse(one)}" for one in node.decorator_list if not ast.unparse(one).startswith("exercise(")]
    first, lines = node.body[1 if ast.get_docstring(node) else 0].lineno - 1, source.splitlines()
    head = [*kept, *lines[node.lineno - 1 : node.body[0].lineno - 1]]
    return "\n".join(head), "\n".join(lines[first : node.end_lineno])
