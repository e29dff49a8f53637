"""Explorers in a notebook that JupyterLab saves: kept as long as an output shows them, with or without a kernel.

Saved are what an output shows, a view that names a model, and what it is drawn from, the model's state in the metadata
of the notebook. JupyterLab writes the states of all models that a running kernel holds, and of no other: it would keep
what no output shows any more, and leave out, the next time it saves, what another kernel has made.
"""

import json
import re
from pathlib import Path

from smalearn.course.workbook.notebook import Notebook, read

__all__ = ["before_saving"]

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"


def before_saving(model: dict, path: str, contents_manager: object, **options: object) -> None:
    """Complete a notebook in place before Jupyter Server writes it, as `pre_save_hook` of .jupyter/."""
    if model["type"] == "notebook":
        before = read(Path(contents_manager.root_dir, path.strip("/"))) or {}
        _keep_shown(model["content"], _states(before) | _states(model["content"]))


def _states(notebook: Notebook) -> dict[str, dict]:
    """Collect the saved states by the id of their model; none where something else stands in their place."""
    found = notebook
    for name in ("metadata", "widgets", STATE, "state"):
        found = found.get(name) if isinstance(found, dict) else None
    found = found if isinstance(found, dict) else {}
    return {
        id: one for id, one in found.items() if "smalearn.course.exercises" not in json.dumps(one)
    }  # a card's buttons


def _keep_shown(notebook: Notebook, states: dict[str, dict]) -> None:
    """Save the states of what is shown and no other; a view of an unknown model gives way to its still picture."""
    data = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    views = [one for one in data if VIEW in one]
    waiting, kept = [one[VIEW]["model_id"] for one in views], {}
    while waiting:
        id = waiting.pop()
        if id in states and id not in kept:
            kept[id] = states[id]
            waiting += re.findall(r'"IPY_MODEL_(\w+)"', json.dumps(states[id]))
    for one in views:
        if one[VIEW]["model_id"] not in kept and len(one) > 1:
            del one[VIEW]
    widgets = notebook["metadata"].pop("widgets", {})
    widgets = {name: value for name, value in widgets.items() if name != STATE} if isinstance(widgets, dict) else {}
    if kept:
        widgets[STATE] = {"version_major": 2, "version_minor": 0, "state": kept}
    if widgets:
        notebook["metadata"]["widgets"] = widgets
