"""What every explorer refuses, naming the argument and changing nothing, and the line in which it says its state."""

import math
import re

import numpy as np
import pytest

from smalearn.course import widgets
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
)

EDGES = [(0, 25, 0, 4), (0, 4, -1, 4), [4, 4, 0, 4], [0, 4, 5, 4], (0, 4, 0), (0, 4, 0, 4.0), (0, 4, 0, True), "0404"]
RANKS = ["", "8|x", "8|-1", "9|8", "0|0", [1] * 7, [], [4, 2.0], [4, True], 8, None]
REFUSED = {  # of which argument or trait which values; `given` with others than those at first
    BlockExplorer: {
        "kind": ["dense", None],
        "state": [0, 7, True],
        "length": [0, 33],
        "seed": [4, False],
        "block": [*EDGES, None],
    },
    ChunkExplorer: {
        "chunk_len": [0, -1],
        "length": [2**17 + 1],
        "state": [513],
        "head_dim": [1.0],
        "seed": [4],
        "part": ["diagonal"],
        "decay": [1.1, -0.1, math.nan, True, None],
    },
    ContractionMap: {"target": [0, None], "source": [65537], "features": [2.0], "head_dim": [True]},
    DualityExplorer: {"text": [" ", "a " * 17, 3], "chunk": [0, 17, 2.0, True, None]},
    FeatureExplorer: {
        "text": ["one", "a " * 17],
        "map": ["cosFormer", None],
        "features": [48, 64.0, None],
        "seed": [4, True, None],
        "norm": [0.2, 5, math.nan, "1", True, None],
        "row": [15, -1, 1.0, False],
    },
    KernelTracer: {
        "length": [0, 65],
        "chunk_len": [8, 16.0],
        "state": [33],
        "head_dim": [True],
        "heads": [5, "2"],
        "design": ["two", None],
        "step": [113, -1, True, "3", None],
    },
    MaskExplorer: {
        "text": ["one", "a " * 65, 3],
        "seed": ["x", 1.0, True, None],
        "family": ["toeplitz", None],
        "scores": [None],
        "scale": ["loud"],
        "gamma": [1.5, math.nan, [0.5, 0.5], "much", True, None],
        "growth": [2.5],
        "decays": [[1.0] * 63, -0.5],
        "alpha": [[1.0] * 65, 1.0, -2, [0.5] * 63 + [2], ["a"] * 64],
        "rank": [9],
        "window": [-1],
        "dilation": [0],
        "blocks": [5, 65],
        "target": [64, 1.0],
        "split": [True, 0],
    },
    ScoreExplorer: {
        "ranks": RANKS,
        "length": [0, 65, 4.0],
        "leaf": [33, -1, None, True],
        "seed": [4],
        "pair": [(3, 4), [4, -1], [4, 2.0], [4], 4, None],
        "text": [" ", "a " * 65, 3],
    },
    StateExplorer: {
        "text": [" ", "a " * 13, "a b c d e f g h i"],
        "keys": [[[1], [1]], [1.0], [[1]] * 9 + [[1, 2]]],
        "values": [[[1] * 9] * 10, [[np.inf]] * 10],
        "gates": [[1, 1], 1.5, [-1] * 10, "none", None],
        "query": ["never", None],
        "time": [11, True, None],
        "beta": [2.1, "1"],
    },
    WeightExplorer: {"family": ["dense"], "dim": [12], "blocks": [3, True], "rank": [5, None]},
}
GIVEN = [
    (MaskExplorer, {"text": "a b"}, "rank", 3),
    (ScoreExplorer, {"text": "a b c"}, "length", 4),
    (ScoreExplorer, {"length": 8}, "pair", (8, 4)),
    (KernelTracer, {"design": "four steps"}, "step", 257),
]


def test_every_explorer_is_asked():
    assert [explorer.__name__ for explorer in REFUSED] == widgets.__all__


@pytest.mark.parametrize(
    ("explorer", "given", "name", "value"),
    [*((one, {}, name, value) for one in REFUSED for name in REFUSED[one] for value in REFUSED[one][name]), *GIVEN],
)
def test_what_is_no_state_is_refused_and_changes_nothing(explorer, given, name, value):
    refused = f"^{explorer.__name__}: {name}, expected .*got "
    shown = explorer(**given)
    if value is not None or name not in shown.chosen():  # None is often the default, which stands for another value
        with pytest.raises(ValueError, match=refused):
            explorer(**given | {name: value})
    if name in shown.chosen():
        before = shown.get_state()
        with pytest.raises(ValueError, match=refused):
            shown.set_trait(name, value)
        assert shown.get_state() == before


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: BlockExplorer(state=7), "BlockExplorer: state, expected an int from 1 to 6, got 7"),
        (lambda: BlockExplorer(seed=4), "BlockExplorer: seed, expected one of 0, 1, 2, 3, got 4"),
        (lambda: MaskExplorer(blocks=5), "MaskExplorer: blocks, expected a divisor of 64 words, got 5"),
        (lambda: StateExplorer(gates=[1, 1]), "StateExplorer: gates, expected one or 10, got shape (2,)"),
    ],
)
def test_it_says_what_is_expected(made, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        made()


TRACED = "KernelTracer(length=40, chunk_len=16, state=8, head_dim=20, heads=2, design="


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (
            BlockExplorer("scalar", block=(1, 3, 0, 2)),
            "BlockExplorer(kind='scalar', state=3, length=24, seed=0, block=[1, 3, 0, 2])",
        ),
        (
            ChunkExplorer(chunk_len=64),
            "ChunkExplorer(chunk_len=64, length=4096, state=64, head_dim=64, decay=0.9, seed=0, part='within chunks')",
        ),
        (ContractionMap(source=9), "ContractionMap(features=64, head_dim=64, scan=True, source=9, target=1024)"),
        (DualityExplorer(" to  be ", chunk=1), "DualityExplorer(2 words, chunk=1)"),
        (FeatureExplorer(norm=4), "FeatureExplorer(15 words, map='hyperbolic', features=512, norm=4, seed=0, row=13)"),
        (KernelTracer(), f"{TRACED}'one walk', step=56)"),
        (KernelTracer(design="four steps"), f"{TRACED}'four steps', step=128)"),
        (ScoreExplorer("4|4", leaf=3, pair=(9, 1)), "ScoreExplorer('4|4', length=64, leaf=3, seed=0, pair=[9, 1])"),
        (StateExplorer(gates=0.1, time=3), "StateExplorer(10 words, query='than', time=3)"),
        (StateExplorer("a:b", beta=0.5), "StateExplorer(1 words, query='a', time=1, beta=0.5)"),
        (WeightExplorer(), "WeightExplorer(family='block tensor train', dim=16, blocks=4, rank=1)"),
        *(
            (
                MaskExplorer("a b c d e f", **state),
                f"MaskExplorer(6 words, {text}, scores='words', target=5, split=3, scale='linear')",
            )
            for state, text in [
                ({}, "1-semiseparable"),
                ({"family": "decay", "gamma": 0.5}, "decay, gamma=0.5"),
                ({"family": "low rank"}, "low rank, rank=2"),
                ({"family": "banded"}, "banded, window=4"),
                ({"family": "dilated", "dilation": 3}, "dilated, window=4, dilation=3"),
                ({"family": "block diagonal"}, "block diagonal, blocks=6"),
                ({"family": "log-linear"}, "log-linear, gamma=0.9, growth=1.4"),
            ]
        ),
    ],
)
def test_text_is_one_short_line(shown, text):
    assert repr(shown) == text
