"""What readers answered is judged as it is stored, and nothing that they were told is false."""

import json
from collections import Counter

import pytest
from attempts import FILE, judged

ROWS = json.loads(FILE.read_text(encoding="utf-8"))


def test_hardly_any_sentence_is_obscure_and_none_is_false():
    verdicts = Counter(row["verdict"] for row in ROWS if row["said"])
    assert set(verdicts) <= {"true", "obscure", "false"}
    assert not verdicts["false"]
    assert verdicts["obscure"] <= 0.02 * verdicts.total()


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS[::20], ids=lambda row: f"{row['id']} {row['label']}")
def test_an_attempt_is_told_what_is_stored(row):
    outcome, said = judged(row)
    assert (outcome == "passed", said) == (row["kind"] == "right", row["said"])
