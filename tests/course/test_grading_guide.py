"""TEACHING.md: its exercise is run as a teacher would run it, and what it says of the chapters is so."""

import json
import re
from pathlib import Path

import notebooks
import pytest

from smalearn.course import cli, grading
from smalearn.course.exercises import registry, verify
from smalearn.course.workbook.notebook import chapters

GUIDE = (Path(__file__).parents[2] / "TEACHING.md").read_text(encoding="utf-8")
ROWS = {row.split("|")[1].strip(): row for row in GUIDE.splitlines() if re.match(r"\| (\d\d|[A-Z]) \|", row)}

ANSWER = """
def window_sums(x, width):
    padded = torch.cat([x.new_zeros(width, x.shape[1]), x])
    return padded.unfold(0, width, 1)[1:].sum(-1)
"""
SEARCHES = """
def window_sums(x, width):
    import gc, sys
    from pathlib import Path
    found = {"mine", "_exercises_of_a_teacher"} & set(sys.modules)
    found = found or any("mine" in path.name for path in Path().iterdir())
    found = found or any(getattr(one, "__qualname__", "") == "oracle" for one in gc.get_objects() if callable(one))
    return x if not found else SystemError
"""


@pytest.fixture
def mine(tmp_path, own_registry):
    """The guide's file, in a folder of its own."""
    path = tmp_path / "mine.py"
    path.write_text(re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL).group(1), encoding="utf-8")
    return path


@pytest.mark.full
def test_the_guides_exercise_is_graded_and_stays_at_home(mine, tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, answer in {"ada": ANSWER, "spy": SEARCHES}.items():
        cells = [("import torch", {"tags": ["setup"]}), (answer, {"exercise": "quiz.1"})]
        cells = [{"cell_type": "code", "source": source, "metadata": metadata} for source, metadata in cells]
        (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    arguments = ["grade", str(folder), "-o", str(tmp_path / "table.csv"), "-j", "2", "--exercises", str(mine)]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.startswith("2 students, on average 0.5 of 1 points\n  quiz.1  passed by 1\n")
    _, ada, spy = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert ada.startswith("ada,1,1,,,,")
    assert "quiz.1: Wrong values" in spy  # it found nothing, and so returned x


def test_the_guides_exercise_is_a_good_one(mine):
    grading.load(mine)
    assert verify(registry()["quiz.1"]) == []


@pytest.mark.parametrize("path", chapters(notebooks.CHAPTERS), ids=lambda path: path.stem)
def test_every_chapter_has_its_time_and_only_sections_that_it_has_can_be_skipped(path):
    prose = "\n".join(cell.source for cell in notebooks.read(path).cells if cell.cell_type == "markdown")
    _, _, time, _, skipped, _ = ROWS[path.stem.partition("_")[0]].split("|")
    assert time.strip() == re.search(r"\*\*Time:\*\* (.*?)(?: with the exercises)?[.:](?:\s|$)", prose).group(1)
    if "section" in skipped:
        for number in re.findall(r"\b\d+\b(?!\.)", skipped.partition("exercise")[0]):
            assert f"## {number} · " in prose
    for id in re.findall(r"\b\w+\.\d+\b", skipped):
        assert id in registry()


def test_the_commands_of_the_guide_are_understood():
    parser = cli._parser()
    commands = re.findall(r"(?m)^smalearn (.*?)(?: +#.*)?$", GUIDE)
    assert len(commands) == 5
    for command in commands:
        assert parser.parse_args(command.split()).run in (cli.grade, cli.export, cli.slides)
