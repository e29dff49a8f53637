"""Explorers without a kernel: their state as JSON in the page, their script beside it, static/site.js between them."""

from __future__ import annotations

import ast
import json
import re
from html import escape
from typing import TYPE_CHECKING

from smalearn.course.exercises import registry

if TYPE_CHECKING:
    import ipywidgets

__all__ = ["html", "made", "script", "shown"]


def shown(cell: dict) -> str | None:
    """Name the explorer that a code cell of a chapter shows; None if it shows none."""
    from smalearn.course import widgets

    for output in cell.get("outputs", []):
        match = re.match(r"(\w+)(\.of)?\(", "".join(output.get("data", {}).get("text/plain", "")))
        if match and match[1] in widgets.__all__:
            return match[1]
    return None


def made(setup: list[str], source: str) -> ipywidgets.DOMWidget:
    """Make the explorer that a cell ends in; it needs the chapter's cells tagged `setup`, and exercises.

    Our solutions stand in for what a learner has written.
    """
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        raise ValueError(f"explorer cell must end in the explorer, got {ast.unparse(last)!r}")
    names: dict = {exercise.solution.__name__: exercise.solution for exercise in registry().values()}
    try:
        for cell in setup:
            exec(cell, names)
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    except Exception as error:
        raise ValueError(f"explorer cell needs more than the setup: {type(error).__name__}: {error}") from error


def html(widget: ipywidgets.DOMWidget, picture: str, text: str, up: str = "") -> str:
    """Write the HTML of an explorer: the still picture, which the script replaces, and the state."""
    import ipywidgets

    hidden = {"_esm", "_css", "_anywidget_id", *ipywidgets.DOMWidget.class_traits()}
    state = {name: value for name, value in widget.get_state().items() if name not in hidden}
    data = json.dumps(state, separators=(",", ":")).replace("</", "<\\/")
    still = f'<img alt="{escape(text)}" src="data:image/png;base64,{picture}">'
    name = type(widget).__name__
    return (
        f'<div class="explorer" data-explorer="{name}">{still}</div>'
        f'<script type="application/json">{data}</script><script src="{up}_static/{name}.js"></script>'
    )


def script(name: str) -> str:
    """Write a classic script that makes an explorer, since a page from a folder may not load modules.

    It shows at once what stands before it, so that nothing that comes later has to move.
    """
    from smalearn.course import widgets

    explorer = getattr(widgets, name)
    source, style = explorer._esm, explorer._css
    body = re.sub(r"(?m)^export (default )?", lambda match: "const theExplorer = " if match[1] else "", str(source))
    make = f'() => {{\n"use strict";\n{body}\nreturn theExplorer;\n}}'
    made = f"{{ make: {make}, style: {json.dumps(str(style))} }}"
    return f'(window.explorers ??= {{}})["{name}"] = {made};\nwindow.enlivenAll?.();\n'
