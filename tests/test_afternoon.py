"""The afternoon: right from top to bottom, with answers that are not ours, and what one takes home is one's own."""

import afternoon
import pytest

from smalearn.course.exercises import registry


@pytest.mark.full
def test_the_road_ends_with_a_model_of_ones_own(tmp_path):
    assert afternoon.outcomes(afternoon.walk(tmp_path)) == dict.fromkeys(afternoon.ANSWERS, "passed")
    assert afternoon.borrowed(tmp_path / "work/my_mamba2.py") == []
    assert len(afternoon.write_alone(tmp_path / "work").rstrip("\n")) == len("ROMEO:") + 40


def test_a_function_of_ours_is_noticed_under_other_names(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(registry()["6.3"].code.replace("entering", "enters").replace("hand_over", "pass_on"), "utf-8")
    assert afternoon.borrowed(file) == ["pass_on"]
