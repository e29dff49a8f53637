"""What is saved of explorers: the states that outputs show, and no other; nothing of them in a blank copy."""

import json
from types import SimpleNamespace

import pytest

from smalearn.course import workbook
from smalearn.course.workbook.explorers import STATE, VIEW, before_saving
from smalearn.course.workbook.notebook import parse

STATES = {
    "live": {"state": {"layout": "IPY_MODEL_about"}},
    "about": {"state": {}},
    "box": {"state": {"children": ["IPY_MODEL_live", "IPY_MODEL_box"]}},
    "gone": {"state": {}},
}


def notebook(views, states):
    """A notebook whose outputs show these models, with the states of those."""
    data = [{VIEW: {"model_id": id}, "image/png": "still", "text/plain": id} for id in views]
    outputs = [{"output_type": "display_data", "metadata": {}, "data": one} for one in data]
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": "1", "execution_count": 1, "outputs": outputs}
    text = {"cell_type": "markdown", "id": "b", "metadata": {}, "source": "2"}
    widgets = {STATE: {"version_major": 2, "version_minor": 0, "state": {id: STATES[id] for id in states}}}
    return {"cells": [cell, text], "metadata": {"widgets": widgets}, "nbformat": 4, "nbformat_minor": 5}


def saved(folder, now, before=None):
    """The notebook as it is written, where another was written before."""
    if before is not None:
        (folder / "a b.ipynb").write_text(json.dumps(before), encoding="utf-8")
    model = {"type": "notebook", "content": now}
    before_saving(path="/a b.ipynb", model=model, contents_manager=SimpleNamespace(root_dir=str(folder)))
    return model["content"]


def ids(notebook):
    """Models whose state is saved, and those of which a view is."""
    found = notebook["metadata"].get("widgets", {}).get(STATE, {}).get("state", {})
    data = [output["data"] for output in notebook["cells"][0]["outputs"]]
    return set(found), [one[VIEW]["model_id"] for one in data if VIEW in one]


def test_what_is_shown_is_kept_with_what_it_refers_to_and_nothing_else(tmp_path):
    assert ids(saved(tmp_path, notebook(["live"], STATES))) == ({"live", "about"}, ["live"])
    assert ids(saved(tmp_path, notebook(["box"], STATES))) == ({"box", "live", "about"}, ["box"])


def test_an_explorer_without_its_kernel_is_kept_as_it_was_saved_before(tmp_path):
    before = notebook(["live"], ["live", "about"])
    assert ids(saved(tmp_path, notebook(["live"], []), before)) == ({"live", "about"}, ["live"])
    no_state = notebook(["live"], [])
    del no_state["metadata"]["widgets"]
    assert ids(saved(tmp_path, no_state, before)) == ({"live", "about"}, ["live"])


def test_where_no_state_is_known_the_still_picture_is_left(tmp_path):
    now = saved(tmp_path, notebook(["live"], []), {"cells": "no notebook"})
    assert ids(now) == (set(), [])
    assert now["cells"][0]["outputs"][0]["data"] == {"image/png": "still", "text/plain": "live"}
    assert "widgets" not in now["metadata"]


def test_cleared_outputs_leave_no_state(tmp_path):
    cleared = notebook([], STATES)
    cleared["metadata"]["widgets"]["other"] = 1
    assert saved(tmp_path, cleared, notebook(["live"], STATES))["metadata"] == {"widgets": {"other": 1}}


@pytest.mark.parametrize("widgets", [{"dragged": 3}, [], None, {STATE: 1}, {STATE: {"state": [1]}}])
def test_odd_metadata_does_no_harm(tmp_path, widgets):
    odd = notebook(["live"], [])
    odd["metadata"]["widgets"] = widgets
    assert ids(saved(tmp_path, notebook(["live"], ["live"]), odd)) == ({"live"}, ["live"])
    assert ids(saved(tmp_path, odd)) in [(set(), []), ({"live"}, ["live"])]


def test_other_files_are_left_alone(tmp_path):
    model = {"type": "file", "content": "text"}
    before_saving(model=model, path="a.txt", contents_manager=SimpleNamespace(root_dir=str(tmp_path)))
    assert model == {"type": "file", "content": "text"}


def test_copies_and_chapters_put_back_have_no_states(tmp_path):
    chapter = notebook(["live"], STATES)
    chapter["metadata"]["kernelspec"] = {"name": "python3"}
    (tmp_path / "chapters").mkdir()
    path = tmp_path / "chapters/01_one.ipynb"
    path.write_text(json.dumps(chapter), encoding="utf-8")
    folders = path.parent, tmp_path / "work"
    workbook.sync(*folders)
    copy = tmp_path / "work/01_one.ipynb"
    assert parse(copy.read_bytes())["metadata"] == {"kernelspec": {"name": "python3"}}
    copy.write_text(json.dumps(chapter), encoding="utf-8")
    path.write_text(json.dumps(chapter | {"cells": chapter["cells"][:1]}), encoding="utf-8")
    workbook.sync(*folders)
    workbook.reset(*folders[::-1], "1")
    for name in ("01_one.new.ipynb", "01_one.ipynb"):
        assert parse((tmp_path / "work" / name).read_bytes())["metadata"] == {"kernelspec": {"name": "python3"}}
