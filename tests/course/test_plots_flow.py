"""Programs as pictures: boxes stand where they are put, arrows carry their labels."""

import matplotlib as mpl
import pytest

mpl.use("Agg")

from smalearn.course.plots.flow import flow


def test_every_box_and_every_arrow_is_drawn_once():
    boxes = {"x": (0, 0), "conv": (2, 0), "y": (4, 1)}
    ax = flow(boxes, [("x", "conv", "(T, D)"), ("conv", "y", "")], mixing=["conv"], title="a layer")
    texts = [text for text in ax.texts if text.get_text()]
    assert sorted(text.get_text() for text in texts) == ["(T, D)", "conv", "x", "y"]
    assert {text.get_text(): text.get_position() for text in texts if text.get_text() in boxes} == boxes
    assert sum(getattr(text, "arrow_patch", None) is not None for text in ax.texts) == 2
    colours = {text.get_text(): text.get_bbox_patch().get_facecolor() for text in texts if text.get_text() in boxes}
    assert colours["x"] == colours["y"] != colours["conv"]


def test_an_arrow_to_nowhere_is_refused():
    with pytest.raises(ValueError, match="expected a box for 'W', got x"):
        flow({"x": (0, 0)}, [("x", "W", "")])
    with pytest.raises(ValueError, match="at least one"):
        flow({}, [])
