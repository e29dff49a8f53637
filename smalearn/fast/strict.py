"""A program as Triton's compiler sees it: its words alone, and what a loop carries keeps its shape and its dtype."""

import ast
import builtins
import dis
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from smalearn.fast.lanes import Tile, named, refuse, word
from smalearn.fast.tile import constexpr

INFINITY = 'float("inf")'
LIBRARIES = ("torch", "numpy", "math", "einops")
ABSENT = {
    ast.Break: "no break: the condition of a `while` ends a loop",
    ast.Continue: "no continue: put the rest of the turn under `if`, or mask it",
    ast.Dict: "no dictionaries: give each thing a name",
    ast.FunctionDef: "no functions inside of kernels: write it above, with @triton.jit",
    ast.GeneratorExp: "no generators: write out what they do",
    ast.Lambda: "no lambda: write a function with @triton.jit",
    ast.Try: "no try: mask what may fail",
    ast.Raise: "no raise: check arguments before the launch",
}
"""Python that Triton's compiler does not know, each with what does instead."""
SIZED = {"arange": 2, "static_range": 3, "zeros": 1, "full": 1}
"""Words of `tl` whose first arguments are constexpr."""


def strict(program: Callable) -> Callable:
    """The same program, to which PyTorch, NumPy and math do not exist, and whose loops are looked at in each turn.

    It raises a TypeError where it uses such a library, `-torch.inf`, say; or where a name changes its shape or dtype in
    a loop, `total = 0.0` before one that adds a tile to it. A global number that is no `tl.constexpr`, and Python that
    Triton does not compile, are refused at once.
    """
    if program.__globals__.get("range", range) is not range:
        return program
    _words_of_triton(program.__code__)
    for name, x in outside(program).items():
        if isinstance(x, bool | int | float | str | list | tuple | dict) and not isinstance(x, constexpr):
            remedy = f"make it a tl.constexpr parameter, or write {name} = tl.constexpr(...)"
            refuse(f"{program.__name__}: a kernel cannot read the global {name}: {remedy}")
    found = {name: program.__globals__.get(name) for name in program.__code__.co_names}
    absent = {name: _Absent(name) for name, x in found.items() if getattr(x, "__name__", None) in LIBRARIES}
    space = program.__globals__ | absent | {"range": _range}  # as they are now: it may call what is defined after it
    made = types.FunctionType(program.__code__, space, program.__name__, program.__defaults__, program.__closure__)
    return functools.update_wrapper(made, program)


def outside(program: Callable) -> dict[str, object]:
    """What a program reads from around it, by name."""
    read = {one.argval for one in dis.get_instructions(program) if one.opname in ("LOAD_GLOBAL", "LOAD_DEREF")}
    around = program.__globals__ | inspect.getclosurevars(program).nonlocals
    return {name: around[name] for name in read & set(around)}


@functools.cache
def _words_of_triton(code):
    """Refuse Python that Triton does not compile, and sizes that change in a loop; where the source can be read."""
    try:
        program = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, SyntaxError):
        return
    if not isinstance(program, ast.FunctionDef):
        return
    for node in (part for statement in program.body for part in ast.walk(statement)):
        if instead := _absent(node):
            refuse(f"{code.co_name}: Triton has {instead}")
        if isinstance(node, ast.While) or (isinstance(node, ast.For) and not _unrolled(node)):
            _sizes_stay(program, node)


def _absent(node):
    """What to do instead, where Triton does not compile a node."""
    if isinstance(node, ast.Attribute) and node.attr == "append":
        return "no lists that grow: carry a tile from turn to turn, or store it"
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        return "no chained comparisons: (a <= i) & (i < b)"
    if isinstance(node, ast.For) and not ast.unparse(node.iter).split("(")[0].endswith("range"):
        return "no loops but over range and tl.static_range"
    return ABSENT.get(type(node))


def _unrolled(loop):
    return "static_range" in ast.unparse(loop.iter)


def _sizes_stay(program, loop):
    """Refuse a size that a loop carries: what is there before and assigned in a turn is no constexpr from then on."""
    stored = {(n.id, n.lineno) for n in ast.walk(program) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    before = {name for name, line in stored if line < loop.lineno} | {one.arg for one in program.args.args}
    carried = before & {name for name, line in stored if loop.body[0].lineno <= line <= loop.end_lineno}
    for call in ast.walk(program):
        word = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
        if word not in SIZED or call.lineno < loop.lineno:
            continue
        for name in sorted(carried & set().union(*map(_names, call.args[: SIZED[word]]))):
            instead = f"{name} + tl.arange(0, 16), say" if word == "arange" else "a constexpr that stays as it is"
            refuse(f"{program.name}: tl.{word} takes constexpr, and {name} changes in a loop: use {instead}")


def _names(node):
    """Names in an expression, but not in x.shape, which is a constexpr."""
    if isinstance(node, ast.Attribute):
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*map(_names, ast.iter_child_nodes(node)))


class _Absent:
    """A library that is not there inside a program."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        refuse(f"inside a program there is no {self._name}.{name}: use {INFINITY if name == 'inf' else word(name)}")


def _range(*bounds: object) -> Iterator[Tile]:
    """Count as `range` does, in tiles of one number, and look at the program that counts."""
    program = sys._getframe(1)
    before = _kinds(program)
    dtype = np.result_type(np.int32, *(x.dtype for x in bounds if isinstance(x, Tile)))
    for number in builtins.range(*bounds):
        yield Tile(np.asarray(number, dtype))
        after = _kinds(program)
        for name, kind in before.items():
            if after.get(name, kind) != kind:
                refuse(
                    f"{name} is {_words(kind)} before the loop and {_words(after[name])} after a turn: what is carried "
                    "from turn to turn keeps its shape and dtype"
                )


def _kinds(frame):
    """Shape and dtype of the tiles and numbers in a frame, by name."""
    return {name: kind for name, x in frame.f_locals.items() if (kind := _kind(x)) is not None}


def _kind(x):
    if isinstance(x, Tile):
        return x.shape, x.dtype
    if isinstance(x, bool | int | float):
        return (), np.dtype(np.bool_ if isinstance(x, bool) else np.int32 if isinstance(x, int) else np.float32)
    return None


def _words(kind):
    shape, dtype = kind
    return f"a tile of shape {shape}, {named(dtype)}," if shape else f"one number, {named(dtype)},"
