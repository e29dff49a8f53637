"""The Python half of the explorers: what a script is told, which still picture stands for it, and the state."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from smalearn.course import widgets
from smalearn.course.site import explorers
from smalearn.course.widgets import (
    BlockExplorer,
    ChunkExplorer,
    ContractionMap,
    DualityExplorer,
    FeatureExplorer,
    KernelTracer,
    MaskExplorer,
    ScoreExplorer,
    StateExplorer,
    WeightExplorer,
    base,
)
from smalearn.course.workbook import notebook
from smalearn.data import ten_words
from smalearn.sma import sma_orders

WIDGET = "application/vnd.jupyter.widget-view+json"
STATES = [
    (BlockExplorer, {"kind": "general", "length": 32}),
    (ChunkExplorer, {}),
    (ChunkExplorer, {"length": 1, "chunk_len": 5}),
    (ChunkExplorer, {"length": 2**17, "decay": 0}),
    (ContractionMap, {}),
    (DualityExplorer, {}),
    (DualityExplorer, {"text": "to be", "chunk": 16}),
    (FeatureExplorer, {"map": "Fourier", "norm": 3}),
    (KernelTracer, {}),
    (MaskExplorer, {}),
    (ScoreExplorer, {}),
    (ScoreExplorer, {"ranks": "6|2|2|2|2|2", "leaf": 1}),
    (StateExplorer, {}),
    (WeightExplorer, {"family": "multi-level", "dim": 32, "blocks": 32}),
]
EXPLORERS = list(dict.fromkeys(explorer for explorer, _ in STATES))


def test_the_states_have_every_explorer():
    assert [explorer.__name__ for explorer in EXPLORERS] == widgets.__all__


def test_orders_are_those_of_the_state():
    explorer = ContractionMap(target=5, features=3, head_dim=2, scan=False)
    assert explorer.orders == sma_orders(5, 5, 3, 2)
    explorer.source, explorer.scan = 7, True
    assert explorer.orders == sma_orders(5, 7, 3, 2, scan=True)


@pytest.mark.parametrize(("explorer", "state"), STATES)
def test_display_has_the_live_picture_and_a_small_still_one(explorer, state):
    shown = explorer(**state)
    data, _ = shown._repr_mimebundle_()
    still = base64.b64decode(data["image/png"], validate=True)
    assert data["text/plain"] == repr(shown)
    assert data[WIDGET]["model_id"] == shown.model_id
    assert still.startswith(b"\x89PNG\r\n")
    assert len(still) < 130_000
    assert len(str(shown.get_state())) < 500_000


def chapters():
    """The explorers of the chapters, as their cells make them."""
    for path in notebook.chapters(Path(__file__).parents[2] / "chapters"):
        cells = notebook.read(path)["cells"]
        setup = [cell["source"] for cell in cells if "setup" in cell["metadata"].get("tags", [])]
        yield from (explorers.made(setup, cell["source"]) for cell in cells if explorers.shown(cell))


def test_every_state_that_a_chapter_shows_has_a_still_picture():
    """If not: python assets/stills.py."""
    shown = list(chapters())
    first = {explorer().still() for explorer in EXPLORERS}
    expected = {still for explorer in shown if (still := explorer.still()) not in first}
    assert len(shown) > 10
    assert {path.name for path in base.STILLS.iterdir()} == {
        *(path.name for path in expected),
        *(f"{name}.png" for name in widgets.__all__),
    }


def test_still_picture_is_that_of_the_state_or_else_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "STILLS", tmp_path)
    explorer = StateExplorer(gates=0.5)
    (tmp_path / "StateExplorer.png").write_bytes(b"first")
    assert explorer.png() == b"first"
    explorer.still().write_bytes(b"own")
    assert explorer.png() == StateExplorer(gates=0.5).png() == b"own"
    others = [StateExplorer(gates=0.25), StateExplorer("a b a", gates=[0.5] * 3), StateExplorer(gates=0.5, time=3)]
    others.append(StateExplorer("a b a", keys=[[1]] * 3, gates=0.5))
    others += [KernelTracer(40, step=3), KernelTracer(41, step=3), MaskExplorer("a b"), MaskExplorer("a b", seed=1)]
    for other in others:
        (tmp_path / f"{type(other).__name__}.png").write_bytes(b"first")
    assert {other.png() for other in others} == {b"first"}
    assert len({other.still() for other in others}) == len(others)


def test_scripts_share_one_scope_and_what_python_tells_them(tmp_path, monkeypatch):
    files = {
        "share.js": "export const none = 0;",
        "reopen.js": "",
        "base.js": 'import { none } from "./share.js";\nexport const one = none + 1;',
        "two.js": 'import { one } from "./base.js";\nexport const two = one + 1;',
        "good.js": 'import { one } from "./base.js";\nimport { two } from "./two.js";\n\nexport default two + LIMIT;',
        "late.js": 'import { three } from "./three.js";\nexport default 1;',
        "long.js": 'import {\n  one,\n} from "./base.js";\nexport default 1;',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    monkeypatch.setattr(base, "FOLDER", tmp_path)
    assert base.module("two.js", "good.js", LIMIT=1e-10, NAMES=["décay"]) == (
        'const LIMIT = 1e-10;\nconst NAMES = ["décay"];\n'
        "export const none = 0;\n\nexport const one = none + 1;\nexport const two = one + 1;\n\n"
        "export default two + LIMIT;\n"
    )
    expected = r"expected imports of one line from \['share\.js', 'reopen\.js', 'base\.js'\], got 'import \{"
    for name in ("late.js", "long.js", "good.js"):
        with pytest.raises(ValueError, match=rf"^module: {name}, {expected}"):
            base.module(name)


DECLARED = re.compile(r"^(?:export )?(?:const|let|function|class) (\w+|\[[^\]]+\])", re.MULTILINE)


@pytest.mark.parametrize("name", widgets.__all__)
def test_what_shares_a_scope_declares_no_name_twice(name):
    names = re.findall(r"\w+", " ".join(DECLARED.findall(explorers.script(name))))
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))


def test_words_that_name_key_and_value():
    explorer = StateExplorer("Ann:tea Ben:milk Ann:cocoa", beta=1)
    assert (explorer.query, explorer._columns, explorer._rows) == ("Ann", ["Ann", "Ben"], ["tea", "milk", "cocoa"])
    assert explorer.state.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert explorer.weights.tolist() == [0, 0, 1]
    explorer.beta = None
    assert explorer.readout.tolist() == [1, 0, 1]
    assert repr(StateExplorer("a:b", beta=0.5)) == "StateExplorer(1 words, query='a', time=1, beta=0.5)"


@pytest.mark.parametrize(
    ("text", "query"),
    [("simple is better than complex. complex is better than complicated.", "than"), ("a b", "a"), ("a b a", "a")],
)
def test_query_at_first_is_the_last_word_that_comes_back(text, query):
    assert StateExplorer(text).query == query


def test_state_of_words_is_a_table_of_what_followed():
    explorer = StateExplorer("to be or not to be", query="to")
    assert explorer._rows == explorer._columns == ["to", "be", "or", "not"]
    assert explorer.state.tolist() == [[0, 0, 0, 1], [2, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert explorer.readout.tolist() == [0, 2, 0, 0]
    explorer.gates = [1, 1, 1, 0, 1, 0.5]
    assert explorer.readout.tolist() == [0, 0.5, 0, 0]
    explorer.gates, explorer.time = np.float32(0.5), 5
    assert explorer.gates == [0.5] * 6
    assert explorer.weights.tolist() == pytest.approx([0.0625, 0, 0, 0, 1])


def test_keys_given_alone_keep_the_words_as_values():
    explorer = StateExplorer("a b a", keys=[[1, 2], [0, 1], [1, 2]])
    assert (explorer._columns, explorer._rows) == (["n = 0", "n = 1"], ["a", "b"])
    assert explorer.state.tolist() == [[0, 1], [1, 2]]


def test_words_at_first_are_the_ten_of_the_course():
    assert StateExplorer()._words == ten_words()[0]
