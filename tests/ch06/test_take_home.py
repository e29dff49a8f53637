"""The file that a learner takes home from chapter 06: short, without smalearn, right by itself."""

import pytest
import torch
from cells import answered, cells, run_cell

from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close, random_tensors

IMPORTS = "from smalearn.ssd import ssd_recurrent\nfrom smalearn.testing import random_tensors"


@pytest.fixture
def take_home(tmp_path, monkeypatch, capsys):
    """Runs the chapter as far as the file needs it, these exercises solved: what that says, and the file's text."""
    monkeypatch.chdir(tmp_path)

    def run(*solved):
        space, chapter = {"__name__": "__main__"}, cells("06")
        run_cell(IMPORTS, space)
        run_cell(chapter["setup"].source, space)
        for id in ("6.1", "6.2", "6.3", "6.4", "6.5"):
            stub, check = (chapter[f"ex-{id.replace('.', '-')}-{part}"].source for part in ("stub", "check"))
            run_cell(answered("06", id) if id in solved else stub, space)
            run_cell(check, space)
        capsys.readouterr()
        run_cell(chapter["take-home-about"].source, space)
        run_cell(chapter["take-home-run"].source, space)
        file = tmp_path / "my_ssd.py"
        return capsys.readouterr().out, file.read_text(encoding="utf-8") if file.exists() else None

    return run


def test_the_file_is_short_and_right_by_itself(take_home):
    said, text = take_home("6.1", "6.2", "6.3", "6.4", "6.5")
    assert said.startswith("✓ my_ssd.py")
    assert len(text.splitlines()) <= 80
    assert "smalearn" not in text
    mine = {}
    exec(text, mine)
    X, B, C, state, z = random_tensors([(3, 7, 2), (1, 7, 4), (1, 7, 4), (3, 2, 4), (3, 7)], seed=1)
    log_a = -z.abs()
    log_a[1, 3] = -torch.inf
    for found, expected in zip(
        mine["ssd_in_chunks"](X, log_a, B, C, state, 3), ssd_recurrent(X, log_a, B, C, state), strict=True
    ):
        assert_close(found, expected)


def test_it_says_what_is_missing(take_home):
    said, text = take_home("6.1", "6.3", "6.4")
    assert "6.2, 6.5" in said
    assert text is None
