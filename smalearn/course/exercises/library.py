"""What an answer takes from the library that it is to write itself, found in its code and in that of its helpers."""

import inspect
import sys
from collections.abc import Callable, Iterator, Set
from types import CodeType, FunctionType, ModuleType

__all__ = ["names_in", "taken"]

TOOLS = ("course", "testing", "data", "fast.tile", "fast.jit", "fast.lanes", "fast.everywhere")  # and our solutions


def taken(attempt: Callable, welcome: Set[str]) -> str | None:
    """Name the first thing of the library, none of those that are welcome, that an attempt uses; None if there is none.

    An attempt may also be such a thing. A name after a dot, `fast.ssd`, is welcome as ".ssd".
    """
    for value in (attempt, _plain(attempt)):
        if _of_library(value):
            return getattr(value, "__name__", type(value).__name__)
    todo, seen = [attempt], []
    while todo:
        function = _plain(todo.pop())
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.append(function)
        used = dict(_used(function))
        if found := next((name for name, value in used.items() if name not in welcome and _of_library(value)), None):
            return found.strip(".")
        todo += [value for name, value in used.items() if name not in welcome and callable(value)]
    return None


def _plain(value):
    """The function behind a decorator, a partial, or an object that can be called."""
    value = inspect.unwrap(getattr(value, "func", value))
    return value if isinstance(value, FunctionType) else getattr(type(value), "__call__", None)  # noqa: B004


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of other things in a function's code, and in the functions inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)


def _used(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function's code names: globals, what it closes over, and functions of the modules that it names."""
    names = dict.fromkeys(names_in(function.__code__))
    known = function.__globals__ | {name: sys.modules.get(name) for name in names if name.startswith("smalearn")}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: known[name] for name in names if name in known} | {n: c.cell_contents for n, c in cells if _full(c)}
    yield from found.items()
    modules = list(filter(_is_room, found.values()))
    for module in modules:
        for name in names:
            value = getattr(module, name, None)
            if _is_room(value) and value not in modules:
                modules.append(value)
            elif callable(value):
                yield f".{name}", value


def _is_room(value):
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "smalearn"


def _full(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:  # a function that is not defined yet
        return False


def _of_library(value):
    """Whether a value is a function, a class or an object of the library, and none of its tools."""
    home = getattr(value, "__module__", None) or type(value).__module__
    package, _, rest = str(home).partition(".")
    return package == "smalearn" and not isinstance(value, ModuleType) and not rest.startswith(TOOLS)
