"""What readers answered is judged as it is stored, and nothing that they were told is false."""

import json
import re
from collections import Counter

import pytest
from attempts import FILE, judged

from smalearn.course.exercises import explain, registry

ROWS = json.loads(FILE.read_text(encoding="utf-8"))


def form(row):
    """What a reader was told but for code and numbers; where that is nothing, the chapter."""
    return re.sub(r"`[^`]*`|[^ ]*\d[^ ]*", "", row["said"]) or row["id"].partition(".")[0]


# Of each form one row; what an exercise lists is asked by `verify`.
FIRST = {form(row): row for row in reversed(ROWS) if row["said"] not in registry()[row["id"]].wrong}
OTHERS = [pytest.param(row, marks=pytest.mark.full) for row in ROWS[::20] if row not in FIRST.values()]


def test_hardly_any_sentence_is_obscure_and_none_is_false():
    verdicts = Counter(row["verdict"] for row in ROWS if row["said"])
    assert set(verdicts) <= {"true", "obscure", "false"}
    assert not verdicts["false"]
    assert verdicts["obscure"] <= 0.02 * verdicts.total()


@pytest.mark.parametrize("row", [*FIRST.values(), *OTHERS], ids=lambda row: f"{row['id']} {row['label']}")
def test_an_attempt_is_told_what_is_stored(row, monkeypatch):
    monkeypatch.setattr(explain, "SECONDS", 60.0)  # a busy machine says no less
    outcome, said = judged(row)
    assert (outcome == "passed", said) == (not row["said"], row["said"])
