"""The page of all public functions, from their signatures and docstrings."""

import importlib
import inspect
import pkgutil
import re
import textwrap
import types
from collections.abc import Iterator

import smalearn

__all__ = ["page"]

MEMBERS = (types.FunctionType, classmethod, staticmethod, property)
SECTIONS = ("Args", "Returns", "Raises", "Cost", "Source", "Example")
SHORTER = (  # of a signature as Python prints it
    (r"(: |-> )'([^']*)'", r"\1\2"),  # an annotation that was not evaluated
    (r"<class '([\w.]+)'>", r"\1"),
    (r"<function (?:[\w.]*\.)?(\w+|<lambda>) at 0x\w+>", r"\1"),
    (r"<lambda>|<factory>", "..."),
    (r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", ""),  # the modules in front of a class
    (r"^\(self(?:, )?", "("),
    (r" -> None$", ""),
)
LEFT_OUT = {"bench", "cli", "doctor", "experiments", "site", "workbook", "widgets", "exercises", "grading"}


def page() -> str:
    """Markdown: a section for each room of the package, an entry for each public name in it."""
    parts = ["# Reference", "Every public function, by module. Shapes are written `(..., T, N)`."]
    for module in _modules():
        parts += [f"## smalearn.{module.__name__.partition('.')[2]}", _plain(inspect.getdoc(module) or "")]
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and value.__module__.startswith("smalearn"):
                parts += _entry(name, value)
    return "\n\n".join(parts) + "\n"


def _modules() -> Iterator:
    """The rooms and modules directly below the package that a reader imports from, in the order of the alphabet."""
    for found in pkgutil.iter_modules(smalearn.__path__):
        if found.name not in LEFT_OUT and not found.name.startswith("_"):
            module = importlib.import_module(f"smalearn.{found.name}")
            if getattr(module, "__all__", None):
                yield module


def _entry(name, value) -> Iterator[str]:
    """Name, signature, docstring; of a class, its own public members too."""
    yield f"### {name}"
    yield f"```python\n{name}{_signature(value)}\n```"
    yield from _docstring(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        for member, found in vars(value).items():
            if isinstance(found, MEMBERS) and not member.startswith("_"):
                yield f"**{name}.{member}**"
                if not isinstance(found, property):
                    yield f"```python\n{member}{_signature(getattr(value, member))}\n```"
                yield from _docstring(inspect.getdoc(found) or "")


def _signature(value):
    """Parameters and what they are, one line each where they are many."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    for pattern, shorter in SHORTER:
        text = re.sub(pattern, shorter, text)
    return text if len(text) < 75 else _broken(text)


def _broken(text):
    """A signature with each parameter in a line of its own; commas in inner brackets end none."""
    lines, depth = [""], 0
    for place, sign in enumerate(text[1:], 1):
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return "(\n    " + ",\n    ".join(map(str.strip, lines)) + "\n" + text[place:]
        if sign == "," and depth == 0:
            lines.append("")
        else:
            lines[-1] += sign


def _docstring(text) -> Iterator[str]:
    """A docstring in Google's sections, as markdown."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):[ \t]*\n?", text, flags=re.MULTILINE)
    yield _plain(parts[0])
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        body = textwrap.dedent(body).strip("\n")
        if title == "Example":
            yield f"**Example**\n\n```pycon\n{body}\n```"
        elif title in ("Args", "Raises"):
            entries = re.split(r"\n(?=\S)", body)
            yield f"**{title}**\n\n" + "\n".join("- " + _item(entry) for entry in entries if entry.strip())
        else:
            yield f"**{title}** — {_plain(body)}"


def _item(entry):
    """An argument, its name as code."""
    name, colon, text = " ".join(entry.split()).partition(":")
    return f"`{name}`:{_safe(text)}" if colon else _safe(name)


def _plain(text):
    """Prose as prose, and what is indented, the formulas, as it stands."""
    blocks = [block for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]
    indented = [f"```text\n{textwrap.dedent(block)}\n```" if block[:4] == "    " else _safe(block) for block in blocks]
    return "\n\n".join(indented)


def _safe(text):
    """Text in which no character outside of code begins markup."""
    code = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>$\[\]|#])", r"\\\1", part) for part in code)
