"""Every picture: drawn where it is asked for, readable, quiet; what it refuses; colours that every reader can tell."""

import contextlib
import io
import re
from itertools import combinations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from matplotlib_inline.config import InlineBackend
from traitlets.config import Configurable

from smalearn import ShapeError, masks
from smalearn.course import plots
from smalearn.course.plots.flow import flow
from smalearn.course.plots.kernels import Design, Level, Span, hierarchy, offsets, roofline, timeline
from smalearn.course.plots.matrices import side_by_side
from smalearn.course.plots.results import times
from smalearn.course.plots.trees import block_tree
from smalearn.course.plots.weights import fits, gallery, inclusion, train_path
from smalearn.course.widgets.base import FOLDER
from smalearn.data import recorded
from smalearn.fast.tile import Event
from smalearn.testing import random_tensors

matplotlib.use("Agg")

ATTENTION = "TN, SN, SP, TS -> TP"
SIZES = {"T": 128, "S": 64, "N": 16, "P": 8}
LEVELS = [Level("registers", 256 * 1024, None), Level("cache", 50 * 2**20, 5.5e12), Level("memory", 80 * 2**30, 3e12)]
DESIGNS = {"starved": Design(10, 10, "matrix"), "busy": Design(10_000, 10, "vector")}
ROOFS = {"matrix": 1000.0, "vector": 100.0}
ROWS = {"a": [Span("read", 0, 2), Span("write", 2, 5)], "b": [Span("read", 1, 2)], "c": []}
BOXES = {"x": (0, 0), "conv": (2, 0), "y": (4, 1)}
ARROWS = [("x", "conv", "(T, D)"), ("conv", "y", "")]
TILE = Event((0, 0, 0), "load", "x", np.array([[0, 1, -1], [4, 5, -1], [-1, -1, -1]]), 16, 0)
FAMILIES = [("Monarch", "train"), ("train", "union"), ("low rank", "union"), ("Kronecker", "Monarch")]
CURVES = {
    f"algorithm {k}": ([32, 64, 256], [c * T**p for T in (32, 64, 256)])
    for k, (c, p) in enumerate([(1, 2), (60, 1), (64, 1)])
}
CONTEST = {
    "problem": "T = 16384, 24 heads, P = 64, N = 128: forward + backward",
    "speedups": {"fast.ssd": {}, "ssd_chunked": {}},
    "contestants": {
        "fast.ssd": {"seconds": [0.028, 0.027, 0.030, 0.029, 0.9]},
        "ssd_chunked": {"seconds": [0.05, 0.05, 0.06]},
        "textbook": {"seconds": [0.1, 0.2, 0.1]},
        "transformers mamba2_chunk_scan": {"seconds": [0.0435] * 3},
        "wrong": {"error": 1.0, "tolerated": False},
        "peer": {"absent": "ModuleNotFoundError"},
    },
}
SHORT = CONTEST | {"contestants": {"fast.ssd": {"seconds": [0.0024]}, "peer": {"seconds": [0.0021]}}}
LONG = CONTEST | {"contestants": CONTEST["contestants"] | {"slow": {"seconds": [20.3]}}}


@pytest.fixture(autouse=True)
def style():
    """The course's style, no figure before and none after."""
    assert not plt.get_fignums()
    with matplotlib.rc_context():
        plots.use_style()
        yield
        plt.close("all")


def zen():
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return "".join(this.d.get(character, character) for character in this.s)


def decay(length):
    gap = torch.arange(length)[:, None] - torch.arange(length)
    return torch.where(gap >= 0, 0.8 ** gap.clamp(min=0), 0)


def repeated_words(words):
    """Causal attention to the positions after the same word: what a real passage looks like."""
    words = [word.strip(".,!*-").lower() for word in words]
    before = torch.tensor([[s > 0 and words[s - 1] == words[t] for s in range(len(words))] for t in range(len(words))])
    scores = 5.0 * before + 3.0 * before.roll((1, 1), (0, 1))
    return torch.softmax(scores.masked_fill(torch.ones(len(words), len(words)).triu(1).bool(), -torch.inf), -1)


def mixed_scores():
    (M,) = random_tensors([(16, 16)])
    M[3, 2], M[0, 5], M[7, 7], M[9] = torch.nan, -torch.inf, torch.inf, 0
    return M


PICTURES = {
    "causal": lambda ax: plots.mask(masks.CausalMask(16), ax),
    "decay": lambda ax: plots.mask(decay(16), ax, scale="log"),
    "scores": lambda ax: plots.heatmap(mixed_scores(), ax, title="scores"),
    "words": lambda ax: plots.words(repeated_words(zen().split()), zen(), ax, title="attention", scale="log"),
    "masked words": lambda ax: plots.words(repeated_words(zen().split()).log(), zen(), ax),
    "outlined": lambda ax: plots.outlined(decay(6), {"future": ((3, 6), (0, 3))}, ax, title="M"),
    "spectra": lambda ax: plots.spectra({"rank 1": torch.ones(4, 4), "rank 4": torch.eye(4)}, ax, title="ranks"),
    "decades": lambda ax: plots.decades(CURVES, ax, title="growth"),
    "contraction": lambda ax: plots.contraction(ATTENTION, SIZES, ax, names="QKVL", title="masked attention"),
    "hadamard": lambda ax: plots.contraction("TS, TS -> TS", SIZES, ax),
    "costs": lambda ax: plots.costs(CURVES, ax, title="cost", slopes=[1, 2]),
    "four steps": lambda ax: plots.four_steps(5, ax, title="M"),
    "venn": lambda ax: plots.venn(["S6", "SSD"], ["SSD", "softmax"], ("recurrences", "attention"), ax, both="both"),
    "flow": lambda ax: flow(BOXES, ARROWS, ax, mixing=["conv"], title="a layer"),
    "hierarchy": lambda ax: hierarchy(LEVELS, ax, title="memory"),
    "roofline": lambda ax: roofline(DESIGNS, 10.0, ROOFS, ax, title="t"),
    "offsets": lambda ax: offsets(TILE, ax),
    "timeline": lambda ax: timeline(ROWS, ax, title="who waits"),
    "times": lambda ax: times(CONTEST, ax),
    "short times": lambda ax: times(SHORT, ax),
    "long times": lambda ax: times(LONG, ax),
    "tree": lambda ax: block_tree(8, (8, 4, 2), [(3, 4)], ax),
    "train": lambda ax: train_path((2, 3, 3, 2), 4, 2, ax),
    "inclusion": lambda ax: inclusion(FAMILIES, ax, title="families"),
    "fits": lambda ax: fits({"low rank": ([0.25, 0.5], [0.8, 0.6])}, ax, title="noise"),
}
SMALLEST = {"offsets": 7, "train": 8}  # points; else 9


@pytest.mark.parametrize("title", ["", " "])
@pytest.mark.parametrize("plot", [plots.heatmap, plots.mask, lambda M, **title: plots.words(M, "a b", **title)])
def test_an_empty_title_is_refused_before_anything_is_drawn(plot, title):
    with pytest.raises(ValueError, match=f"title, expected .*, got {title!r}"):
        plot(torch.ones(2, 2), title=title)
    assert not plt.get_fignums()


def texts(figure):
    """All texts that are drawn."""
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


def boxes(artists):
    # of an annotation the text alone, without its leader
    return [
        Text.get_window_extent(artist) if isinstance(artist, Text) else artist.get_window_extent() for artist in artists
    ]


def overlaps(artists):
    return [(a, b) for a, b in combinations(boxes(artists), 2) if a.shrunk(0.95, 0.9).overlaps(b.shrunk(0.95, 0.9))]


# Every picture


def readable(ax, smallest=9):
    """All texts are large enough; what stands in the axes and at their left is inside the figure, and apart."""
    figure = ax.figure
    assert min(text.get_fontsize() for text in texts(figure)) >= smallest
    low, high = sorted(ax.get_ylim())
    ticks = [
        text for y, text in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True) if ax.axison and low <= y <= high
    ]
    written = [text for text in [*ax.texts, *ticks] if text.get_text()]
    for box in boxes(written):
        assert figure.bbox.padded(2).contains(*box.min)
        assert figure.bbox.padded(2).contains(*box.max)
    assert not overlaps(written)


@pytest.mark.parametrize("tight", [False, True])  # which Jupyter's inline backend asks for
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_makes_one_figure_or_none_and_can_be_read(name, tight, tmp_path):
    ax = PICTURES[name](None)
    assert len(plt.get_fignums()) == 1
    readable(ax, SMALLEST.get(name, 9))
    width, height = ax.figure.get_size_inches()
    assert 1.5 <= width <= 8.5
    assert height <= 7
    ax.figure.savefig(tmp_path / "picture.png", bbox_inches="tight" if tight else None)
    assert (tmp_path / "picture.png").stat().st_size < 100_000
    pixels = plt.imread(tmp_path / "picture.png")
    assert (pixels[..., 3] == 1).all()
    assert (pixels[0, 0] == 1).all()
    _, (left, right) = plt.subplots(1, 2)
    assert PICTURES[name](right) is right
    assert len(plt.get_fignums()) == 2
    assert not left.has_data()


@pytest.mark.parametrize("name", [pytest.param("linear_attention", marks=pytest.mark.full), "ssd"])
def test_recorded_results_can_be_drawn_and_read(name):
    for contest in recorded(name)["contests"]:
        readable(times(contest))


# What they refuse

ONES, COMPLEX = torch.ones(2, 3), torch.ones(2, 2, dtype=torch.complex64)
Q = torch.ones(7, 3)
CAUSAL = {"causal": masks.CausalMask(7)}
REFUSED = [
    (lambda: plots.heatmap(torch.ones(2, 3, 4)), ShapeError, r"heatmap: M needs axes .* got shape \(2, 3, 4\)"),
    (lambda: plots.mask(torch.ones(0, 4)), ShapeError, "mask: M needs axes"),
    (lambda: plots.mask(COMPLEX), ValueError, "mask: M must be real"),
    (lambda: plots.heatmap(ONES, column_labels="ab"), ShapeError, "heatmap: axis S is 3 in M but there are 2 labels"),
    (lambda: plots.heatmap(ONES, row_labels="abc"), ShapeError, "heatmap: axis T is 2"),
    (lambda: plots.heatmap(ONES, scale="cubic"), ValueError, "heatmap: scale must be"),
    (lambda: plots.heatmap([[1.0, -0.5]], scale="log"), ValueError, "heatmap: scale='log' needs entries ≥ 0"),
    (lambda: side_by_side({}, xlabel="n", ylabel="t"), ShapeError, "side_by_side: matrices"),
    (lambda: plots.words(torch.ones(2, 2), "a b c"), ShapeError, r"words: M must be \(3, 3\)"),
    (lambda: plots.attends(ONES, "a b", 0), ShapeError, "attends: M must be"),
    (lambda: plots.attends(COMPLEX, "a b", 0), ValueError, "attends: M must be real"),
    (lambda: plots.attends(torch.ones(2, 2), "a b", [0, 2]), ValueError, "attends: targets, .* got 2"),
    (lambda: plots.attends(torch.ones(2, 2), "a b", -3), ValueError, "attends: targets, .* got -3"),
    (lambda: plots.contraction("TN, SN -> TS", names="QKV"), ValueError, "contraction: names, expected 2"),
    (lambda: plots.contraction("TN, SN -> TS", {"T": 2, "N": 3}), ValueError, "contraction: sizes, .* axis 'S'"),
    (lambda: plots.contraction("TN, SN"), ValueError, "contraction: spec"),
    (lambda: plots.costs({}), ValueError, "costs: curves"),
    (lambda: plots.costs({"a": ([1, 2], [3])}), ShapeError, "costs: curve 'a'"),
    (lambda: plots.costs({"a": ([], [])}), ShapeError, "costs: curve 'a'"),
    *((lambda x=x: plots.costs({"a": ([1, 2], [3, x])}), ValueError, f"got {x}") for x in (0, -1, np.inf, np.nan)),
    *((lambda s=s: plots.outlined(decay(6), {"b": s}), ValueError, "outlined: block 'b'")
      for s in (((0, 7), (0, 3)), ((2, 2), (0, 3)), ((0, 3), (-1, 3)))),
    (lambda: plots.decades({"a": ([1, 2], [1, 2, 3])}), ShapeError, "decades: curve 'a'"),
    (lambda: plots.spectra({}), ValueError, "spectra: matrices"),
    (lambda: plots.spectra({"a": torch.full((2, 2), torch.nan)}), ValueError, "spectra: matrix 'a' must be finite"),
    (lambda: plots.spectra({"a": torch.zeros(2, 2)}), ValueError, "spectra: matrix 'a' must be finite"),
    (lambda: plots.four_steps(0), ValueError, "four_steps: chunks"),
    (lambda: flow({"x": (0, 0)}, [("x", "W", "")]), ValueError, "flow: arrows, expected a box for 'W'"),
    (lambda: flow({}, []), ValueError, "flow: boxes"),
    (lambda: times(CONTEST | {"contestants": {"peer": {"absent": "why"}}}), ValueError, "times: contest"),
    (lambda: block_tree(8, (8, 3)), ValueError, "block_tree: each of block_lens"),
    (lambda: block_tree(8, (8, 4), [(1, 8)]), ValueError, "block_tree: tokens .* got 8"),
    (lambda: gallery({}), ValueError, "gallery: matrices"),
    (lambda: gallery({"x": ONES}, ["one", "two"]), ShapeError, "gallery: captions, expected 1"),
    (lambda: gallery({"x": ONES}, axes=[None] * 3), ShapeError, "gallery: axes, expected 1"),
    (lambda: gallery({"x": COMPLEX}), ValueError, "gallery: M must be real"),
    (lambda: train_path((2, 2, 0, 2), 0, 0), ValueError, "train_path: sizes"),
    (lambda: train_path((2, 2, 2, 3), 6, 0), ValueError, "train_path: column .* got 6"),
    (lambda: train_path((2, 2, 2, 3), 0, -1), ValueError, "train_path: row .* got -1"),
    (lambda: inclusion([]), ValueError, "inclusion: edges"),
    (lambda: inclusion([("a", "b"), ("b", "a")]), ValueError, "inclusion: edges, .* circle"),
    (lambda: fits({}), ValueError, "fits: curves"),
    (lambda: fits({"x": ([1, 2], [0.5])}), ShapeError, "fits: 'x' has 2 sizes"),
    *((lambda size=size, error=error: fits({"x": ([size], [error])}), ValueError, "fits: 'x' needs")
      for size, error in ((0, 0.5), (1, -0.5), (1, np.nan))),
    (lambda: plots.structured_attention({}, Q, Q, Q), ValueError, "structured_attention: masks"),
    (lambda: plots.structured_attention(CAUSAL, Q, Q, Q, captions=["", ""]), ShapeError, "captions, expected 1"),
    (lambda: plots.structured_attention({"": masks.CausalMask(8)}, Q, Q, Q), ShapeError, "axis 't' is 7 in Q but 8"),
    (lambda: plots.structured_attention(CAUSAL, Q, Q, Q.double()), ValueError, "structured_attention: V is"),
    (lambda: plots.structured_attention(CAUSAL, Q, Q, Q, [[None] * 2] * 3), ShapeError, r"axes, expected shape \(3, 1"),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "error", "message"), REFUSED)
def test_what_cannot_be_drawn_is_refused_by_function_and_argument_and_leaves_no_figure(draw, error, message):
    with pytest.raises(error, match=message):
        draw()
    assert not plt.get_fignums()


# Style

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, vision):
    """CIE L*a*b* (D65) of a colour as seen with one kind of vision."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = np.cbrt(np.maximum(to_xyz @ seen / to_xyz.sum(1), 1e-9))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(a, b, vision):
    return np.linalg.norm(lab(a, vision) - lab(b, vision))


@pytest.mark.parametrize("vision", VISION)
def test_colours_differ_for_every_reader(vision):
    cycle = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    assert len(cycle) == len(set(cycle)) == 7
    assert min(difference(a, b, vision) for a, b in combinations(cycle, 2)) > 15
    assert min(difference(a, b, vision) for a, b in combinations(cycle[:5], 2)) > 20
    assert min(difference(colour, "white", vision) for colour in cycle) > 30


@pytest.mark.parametrize("vision", VISION)
def test_colour_maps_keep_their_order_for_every_reader(vision):
    positive, signed = (plots.heatmap(M).images[0].cmap for M in ([[1.0, 2.0]], [[-1.0, 2.0]]))
    lightness = [lab(positive(x)[:3], vision)[0] for x in np.linspace(0, 1, 9)]
    assert (np.diff(lightness) < 0).all()
    middle = [lab(signed(x)[:3], vision)[0] for x in np.linspace(0, 1, 9)]
    assert np.argmax(middle) == 4
    assert min(difference(signed(x)[:3], signed(1 - x)[:3], vision) for x in (0.0, 0.15, 0.3)) > 15


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_exact_zero_is_dotted_and_a_small_number_is_not(scale):
    ax = plots.heatmap([[0.0, 1.0], [1e-9, 0.5]], scale=scale)
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())[::-1]

    def seen(s, t):
        """The colours of a cell, away from its rim."""
        (left, low), (right, high) = (ax.transData.transform((s + d, t - d)).astype(int) for d in (-0.4, 0.4))
        return np.unique(pixels[low:high, left:right].reshape(-1, 4), axis=0)

    assert len(seen(0, 1)) == len(seen(1, 0)) == 1
    zero = [colour[:3] / 255 for colour in seen(0, 0)]
    assert max(difference(one, "white", "normal") for one in zero) > 8
    assert min(difference(one, "white", "normal") for one in zero) == 0


def test_a_negative_number_has_a_stroke_and_an_explorer_has_the_same_colours():
    ax = plots.heatmap([[1.0, -1.0], [0.0, -2.0]])
    assert ax.collections[0].get_offsets().tolist() == [[1, 0], [1, 1]]
    css = (FOLDER / "base.css").read_text(encoding="utf-8").split("}")[0]
    stops = [re.search(rf"--{name}: (#\w+);", css)[1] for name in ("second-strong", "second", "first", "first-strong")]
    ramp = ax.images[0].cmap
    assert [to_hex(ramp(x)) for x in (0.0, 0.25, 0.5, 0.75, 1.0)] == [*stops[:2], "#ffffff", *stops[2:]]


def test_a_notebook_hears_of_dark_pages_and_a_program_does_not(monkeypatch, capsys):
    import IPython

    plots.use_style()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    plots.use_style()
    assert 'data-jp-theme-light="false"' in shown[0].data


@pytest.mark.filterwarnings("ignore:InlineBackend._figure_formats_changed:DeprecationWarning")  # is its own
@pytest.mark.parametrize("live", [False, True])
def test_pictures_are_sharp_in_jupyterlab_and_small_where_they_are_stored(monkeypatch, live):
    import IPython

    monkeypatch.setattr(IPython, "get_ipython", Configurable)
    monkeypatch.setattr("IPython.display.display", lambda shown: None)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    if live:
        monkeypatch.setenv("JPY_SESSION_NAME", "03.ipynb")
    InlineBackend.clear_instance()
    plots.use_style()
    assert InlineBackend.instance().figure_formats == {"retina" if live else "png"}
    InlineBackend.clear_instance()
