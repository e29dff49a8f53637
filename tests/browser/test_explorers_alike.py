"""What explorers do alike with other traits or places: pictures that follow, keys, fingers, other random numbers."""

import pytest
from views import SHOWN, WRITTEN, change, drags, drawn

from smalearn.course import widgets
from smalearn.course.widgets.chunk_explorer import PARTS

OPEN = "for (const part of document.querySelectorAll('details')) part.open = true"
FOLLOWED = [  # an explorer, its state, what is changed one after the other, and which of its pictures move
    ("BlockExplorer", {}, [({"kind": "general"}, "11"), ({"state": 5}, "11"), ({"length": 30}, "11")]),
    ("BlockExplorer", {}, [({"seed": 2}, "11"), ({"block": [9, 20, 2, 12]}, "11")]),
    ("ChunkExplorer", {"length": 16}, [({"chunk_len": 4}, "11"), ({"length": 20}, "11"), ({"length": 4000}, "11")]),
    ("ChunkExplorer", {}, [({"state": 3}, "11"), ({"head_dim": 100}, "01"), ({"decay": 0.5}, "10")]),
    ("ChunkExplorer", {}, [({"seed": 2}, "10"), ({"part": PARTS[2]}, "10")]),
    ("ContractionMap", {"scan": False}, [({"target": 64}, "1"), ({"features": 5}, "1"), ({"head_dim": 9}, "1")]),
    ("ContractionMap", {"scan": False}, [({"source": 30}, "1"), ({"scan": True}, "1")]),
    ("FeatureExplorer", {}, [({"map": "Fourier"}, "11"), ({"features": 32}, "11"), ({"norm": 2.5}, "11")]),
    ("FeatureExplorer", {}, [({"seed": 3}, "11"), ({"row": 5}, "11")]),
    ("KernelTracer", {"step": 3}, [*(({"step": step}, "1") for step in (0, 4, 5, 6, 9, 10, 28, 29, 112))]),
    ("KernelTracer", {"step": 3}, [({"design": "one walk without masks"}, "1"), ({"design": "four steps"}, "1")]),
    ("MaskExplorer", {"scores": "random"}, [({"target": 6}, "0110"), ({"split": 3}, "0101")]),
    ("MaskExplorer", {"text": "a b c a b c"}, [({"scale": "log"}, "0110"), ({"decays": [0.5, 0] * 3}, "1111")]),
    ("ScoreExplorer", {"length": 20}, [({"ranks": [4, 4, 2, 6]}, "011"), ({"ranks": [4, 4, 8]}, "111")]),
    ("ScoreExplorer", {"length": 20}, [({"leaf": 1}, "111"), ({"length": 24}, "111"), ({"seed": 2}, "010")]),
    ("ScoreExplorer", {"length": 20, "pair": (15, 3)}, [({"pair": [15, 4]}, "110"), ({"pair": [16, 4]}, "111")]),
    ("StateExplorer", {}, [({"query": "is"}, "11"), ({"time": 6}, "11"), ({"gates": [0.5] * 10}, "11")]),
]


@pytest.mark.parametrize(("name", "state", "changes"), FOLLOWED)
def test_pictures_follow_every_trait(mount, name, state, changes):
    page = mount(getattr(widgets, name)(**state))
    page.evaluate(OPEN)
    before = drawn(page).evaluate(SHOWN)
    for new, moves in changes:
        after = change(page, **new).evaluate(SHOWN)
        assert "".join(str(int(one != other)) for one, other in zip(after, before, strict=True)) == moves, new
        before = after


BLOCK = [("Up", [3, 7, 1, 3]), ("Right", [3, 7, 2, 4]), ("Down", [4, 8, 2, 4]), ("Left", [4, 8, 1, 3])]
WIDER = [("Down", [4, 9, 1, 3]), ("Right", [4, 9, 1, 4]), ("Up", [4, 8, 1, 4]), ("Left", [4, 8, 1, 3])]
ENDS = [("Shift+Left", [4, 8, 0, 1]), ("Left", [4, 8, 0, 1]), ("Down", [8, 12, 0, 1]), ("Up", [0, 4, 0, 1])]
CUT = [("Left", [k, 12, 0, k]) for k in (5, 4, 3, 2, 1, 1)] + [("Right", [2, 12, 0, 2]), ("Down", [2, 12, 0, 2])]
STEPS = [("Right", 4), ("Left", 3), ("Up", 29), ("Up", 57), ("Right", 58), ("Down", 57), ("Down", 29), ("Down", 1)]
ROUND = ["Right", "Up", "Left", "Left", "Down"]
PAIRS = [("Right", [5, 5]), ("Right", [5, 5]), ("Up", [4, 4]), ("Down", [5, 4]), ("Left", [5, 3])]
KEYS = [  # an explorer, its state, number of a canvas, what is read, and what it is after each arrow key
    ("BlockExplorer", {"length": 12, "block": (4, 8, 1, 3)}, 1, "block", BLOCK),
    ("BlockExplorer", {"length": 12, "block": (4, 8, 1, 3)}, 1, "block", [(f"Shift+{key}", new) for key, new in WIDER]),
    *(("BlockExplorer", {"length": 12, "block": end}, 1, "block", [(key, end)]) for key, end in ENDS),
    ("BlockExplorer", {"length": 12}, 0, "block", CUT),
    ("ChunkExplorer", {}, 0, "part", [(key, PARTS[i]) for key, i in [("Right", 1), ("Left", 0), ("Left", 0)]]),
    ("ChunkExplorer", {"part": PARTS[3]}, 0, "part", [("Right", PARTS[4]), ("Right", PARTS[4])]),
    ("ChunkExplorer", {"chunk_len": 5}, 0, "chunk_len", [("Up", 6), ("Down", 5), ("Down", 4)]),
    ("ChunkExplorer", {"chunk_len": 4, "length": 64}, 1, "chunk_len", [("Right", 5), ("Left", 4)]),
    ("ChunkExplorer", {"chunk_len": 40, "length": 1000}, 1, "length", [("Up", 1280), ("Down", 1024)]),
    ("ContractionMap", {}, 0, "target", [("Right", 1280), ("Up", 1280), ("Left", 1024)]),
    ("ContractionMap", {}, 0, "features", [("Right", 64), ("Up", 80), ("Down", 64)]),
    ("ContractionMap", {"target": 1, "features": 512}, 0, "features", [("Left", 512), ("Up", 512)]),
    *(("FeatureExplorer", {"row": 1}, n, "row", [*zip(ROUND, (2, 1, 0, 0, 1), strict=True)]) for n in (0, 1)),
    ("FeatureExplorer", {"row": 14}, 0, "row", [("Right", 14)]),
    ("KernelTracer", {"step": 3}, 0, "step", [*STEPS, ("Down", 0), ("Left", 0), ("Up", 1)]),
    ("KernelTracer", {"step": 90}, 0, "step", [("Up", 112), ("Up", 112)]),
    ("MaskExplorer", {"target": 11, "split": 6}, 2, "target", [("Down", 12), ("Up", 11), ("Left", 11)]),
    ("MaskExplorer", {"target": 11, "split": 6}, 2, "split", [("Left", 5), ("Right", 6), ("Up", 6)]),
    ("MaskExplorer", {"target": 11}, 3, "target", [("Left", 10)]),
    *(("ScoreExplorer", {"length": 12, "pair": (5, 4)}, n, "pair", PAIRS) for n in (0, 1)),
    ("ScoreExplorer", {"length": 12, "pair": (5, 3)}, 2, "pair", [("Right", [6, 3]), ("Left", [5, 3])]),
    ("ScoreExplorer", {"length": 12, "pair": (11, 11)}, 2, "pair", [("Right", [11, 11])]),
    ("StateExplorer", {"time": 9}, 1, "time", [("Right", 10), ("Right", 10), ("Left", 9), ("Down", 9)]),
    ("StateExplorer", {"query": "simple"}, 1, "query", [("Down", "is"), ("Up", "simple"), ("Up", "simple")]),
]


@pytest.mark.parametrize(("name", "state", "canvas", "trait", "moves"), KEYS)
def test_arrow_keys_change_what_python_knows_within_its_borders(mount, name, state, canvas, trait, moves):
    page = drawn(mount(getattr(widgets, name)(**state)))
    page.evaluate(OPEN)
    page.locator("#first canvas").nth(canvas).focus()
    for key, expected in moves:
        page.keyboard.press("+".join([*key.split("+")[:-1], f"Arrow{key.split('+')[-1]}"]))
        assert page.evaluate(f"model.get('{trait}')") == expected, key
        assert page.evaluate(f"'saved' in window ? saved.{trait} : model.get('{trait}')") == expected
        drawn(page)


TRAIN = {"family": "block tensor train", "dim": 16, "blocks": 4, "rank": 1}
SLIDERS = [  # an explorer, its state, the label of a slider, its trait, and what it is after each key
    ("BlockExplorer", {}, "N, state size", "state", [("ArrowRight", 4), ("ArrowLeft", 3), ("End", 6), ("Home", 1)]),
    ("ChunkExplorer", {}, "c, chunk length", "chunk_len", [("ArrowRight", 7), ("Home", 1), ("End", 2**17)]),
    ("ChunkExplorer", {"length": 64}, "T, length", "length", [("ArrowRight", 80), ("Home", 1), ("End", 2**17)]),
    ("ChunkExplorer", {}, "N, state size", "state", [("ArrowRight", 80), ("Home", 1), ("End", 512)]),
    ("ChunkExplorer", {}, "P, head dimension", "head_dim", [("ArrowRight", 80), ("Home", 1), ("End", 512)]),
    ("ChunkExplorer", {}, "a, decay", "decay", [("ArrowRight", 0.91), ("Home", 0.01), ("End", 1)]),
    ("ContractionMap", {}, "T, target length", "target", [("ArrowRight", 1280), ("Home", 1), ("End", 65536)]),
    ("ContractionMap", {}, "N, features", "features", [("ArrowRight", 80), ("Home", 1), ("End", 512)]),
    ("ContractionMap", {}, "P, head dimension", "head_dim", [("ArrowRight", 80), ("Home", 1), ("End", 512)]),
    ("FeatureExplorer", {"features": 64}, "F, features", "features", [("ArrowRight", 128), ("Home", 4), ("End", 512)]),
    ("FeatureExplorer", {"norm": 1.5}, "|q| = |k|, norm", "norm", [("ArrowRight", 1.75), ("Home", 0.25), ("End", 4)]),
    ("KernelTracer", {"step": 3}, "Steps, done", "step", [("ArrowRight", 4), ("Home", 0), ("End", 112)]),
    ("ScoreExplorer", {}, "T, tokens", "length", [("ArrowLeft", 63), ("Home", 1), ("End", 64)]),
    ("ScoreExplorer", {}, "b, finest block", "leaf", [("ArrowRight", 1), ("Home", 0), ("End", 32)]),
    ("WeightExplorer", TRAIN, "p, blocks", "blocks", [("ArrowLeft", 2), ("End", 16)]),
    ("WeightExplorer", TRAIN, "r, rank", "rank", [("ArrowRight", 2)]),
    ("WeightExplorer", TRAIN, "D, features", "dim", [("Home", 8), ("End", 32)]),
]


@pytest.mark.parametrize(("name", "state", "label", "trait", "moves"), SLIDERS)
def test_sliders_tell_python_and_a_screen_reader(mount, name, state, label, trait, moves):
    page = mount(getattr(widgets, name)(**state))
    slider = page.get_by_role("slider", name=label, exact=True)
    slider.focus()
    for key, expected in moves:
        page.keyboard.press(key)
        assert page.evaluate(f"saved.{trait}") == expected
        drawn(page)
    assert slider.get_attribute("aria-valuetext") == f"{expected:,}"


@pytest.mark.parametrize("name", ["BlockExplorer", "ChunkExplorer", "FeatureExplorer", "ScoreExplorer"])
def test_other_numbers_are_drawn_from_four_seeds(mount, name):
    page = mount(getattr(widgets, name)())
    for seed in (1, 2, 3, 0):
        page.get_by_role("button", name="Draw other").click()
        assert page.evaluate("saved.seed") == seed
        assert drawn(page).get_by_role("button", name=f"(seed {seed})").is_visible()


FINGERS = [  # an explorer, its state, number of a canvas, and whether a finger at a place drags something, or scrolls
    ("DualityExplorer", {}, 0, {(150, 200): False}),
    *(("FeatureExplorer", {}, number, {(9, 50): False}) for number in (0, 1)),
    ("KernelTracer", {}, 0, {(200, 23): True, (200, 120): False, (200, 300): False}),
    ("StateExplorer", {}, 0, {(30, 25): True, (30, 80): False, (30, 150): False}),
    ("StateExplorer", {"gates": [0] * 10}, 0, {(30, 25): False, (30, 90): True, (30, 112): False}),  # words are below
]


@pytest.mark.parametrize(("name", "state", "canvas", "places"), FINGERS)
def test_a_finger_drags_what_can_be_dragged_and_scrolls_elsewhere(mount, name, state, canvas, places):
    page = drawn(mount(getattr(widgets, name)(**state)))
    assert {place: drags(page, canvas, *place) for place in places} == places


NAMED = [  # an explorer, its state, and what stands along the edges of its pictures
    ("BlockExplorer", {"state": 2}, ["output t", "input s", "past", "future", "2 numbers", "beautiful", "cut"]),
    ("BlockExplorer", {"kind": "softmax"}, ["no waist"]),
    ("ChunkExplorer", {}, ["multiply-adds", "c, from recurrent (1) to quadratic (T)", "inside", "in + out", "across"]),
    ("MaskExplorer", {}, ["target t", "source s"]),
    ("MaskExplorer", {"text": "to be or not to be", "decays": 0.5, "target": 5}, ["to", "or", "not", "2", "0.13"]),
]


@pytest.mark.parametrize(("name", "state", "texts"), NAMED)
def test_pictures_name_their_edges(mount, page, name, state, texts):
    page.add_init_script(WRITTEN)
    assert set(texts) <= set(drawn(mount(getattr(widgets, name)(**state))).evaluate("texts"))
