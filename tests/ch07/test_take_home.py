"""The file that a learner takes home from chapter 07: short, without smalearn, and it writes."""

import inspect
import sys
from pathlib import Path

import pytest
import torch
from cells import answered, cells, run_cell

from smalearn.data import trained
from smalearn.masks.decay import split_chunks
from smalearn.models import generate, load
from smalearn.testing import assert_close

SHAKESPEARE, _ = trained("shakespeare")
GIVEN = ["read-model", "layer-run", "layer-step", "model-scores", "model-write", "write-run"]


@pytest.fixture
def take_home(tmp_path, monkeypatch, capsys):
    """Runs the chapter as far as the file needs it, these exercises solved: what that says, and the file's text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_ssd", raising=False)

    def run(*solved):
        if "6.5" in solved:
            own = [answered("06", f"6.{number}").split("\n\n\n")[-1] for number in range(1, 6)]
            given = ["import torch", "import torch.nn.functional as F", inspect.getsource(split_chunks)]
            Path("my_ssd.py").write_text("\n\n\n".join([*given, *own]), encoding="utf-8")
        space, chapter = {"__name__": "__main__"}, cells("07")
        for name in ("setup", "own-ssd"):
            run_cell(chapter[name].source, space)
        for id in ("7.2", "7.3", "7.6"):
            name = f"ex-{id.replace('.', '-')}"
            run_cell(answered("07", id) if id in solved else chapter[f"{name}-stub"].source, space)
            run_cell(chapter[f"{name}-check"].source, space)
        for name in GIVEN:
            run_cell(chapter[name].source, space)
        capsys.readouterr()
        run_cell(chapter["take-run"].source, space)
        file = Path("my_mamba2.py")
        return capsys.readouterr().out, file.read_text(encoding="utf-8") if file.exists() else None

    yield run
    sys.modules.pop("my_ssd", None)


def test_the_file_is_short_and_a_whole_language_model(take_home):
    said, text = take_home("6.5", "7.2", "7.3", "7.6")
    assert said.startswith("✓ my_mamba2.py")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 150
    assert "smalearn" not in text
    mine, ours = {}, load(SHAKESPEARE).double()
    exec(text, mine)
    model = mine["read_model"](SHAKESPEARE, torch.float64)
    prompt = torch.arange(20) % 13
    assert_close(mine["logits"](prompt, model), ours(prompt).detach(), 1e-12)
    written = mine["write"](model, prompt, 30, temperature=1e-9)
    assert torch.equal(written, generate(ours, prompt, 30)[0])


def test_it_says_what_is_missing(take_home):
    said, text = take_home("6.5", "7.2", "7.6")
    assert "7.3" in said
    assert text is None


def test_without_chapter_06_the_file_would_hold_a_function_of_ours(take_home):
    said, text = take_home("7.2", "7.3", "7.6")
    assert said.startswith("✗")
    assert "ssd_in_chunks" in said
    assert "run the last cells of chapter 06" in said
    assert text is None
