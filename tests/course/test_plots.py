"""The arrays and texts behind every picture, the errors, and that each picture can be read."""

import contextlib
import io
import subprocess
import sys
from itertools import combinations

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.text import Text

from smalearn import ShapeError, masks
from smalearn.contractions import orders
from smalearn.course import plots
from smalearn.course.plots.matrices import side_by_side
from smalearn.testing import random_tensors

matplotlib.use("Agg")

ATTENTION = "TN, SN, SP, TS -> TP"
SIZES = {"T": 128, "S": 64, "N": 16, "P": 8}
ALL_ORDERS = orders(ATTENTION, SIZES, names="QKVL")


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


def causal_weights(length):
    (scores,) = random_tensors([(length, length)])
    return torch.softmax(3 * scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf), -1)


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


LENGTHS = [32, 64, 128, 256]
CURVES = {
    f"algorithm {k}": (LENGTHS, [c * T**p for T in LENGTHS]) for k, (c, p) in enumerate([(1, 2), (60, 1), (64, 1)])
}
PICTURES = {
    "causal": lambda ax: plots.mask(masks.CausalMask(16), ax),
    "decay": lambda ax: plots.mask(decay(16), ax, scale="log"),
    "banded": lambda ax: plots.mask(masks.BandedMask(16, 16, 2), ax),
    "scores": lambda ax: plots.heatmap(mixed_scores(), ax, title="scores"),
    "words": lambda ax: plots.words(repeated_words(zen().split()), zen(), ax, title="attention", scale="log"),
    "masked words": lambda ax: plots.words(repeated_words(zen().split()).log(), zen(), ax),
    "contraction": lambda ax: plots.contraction(ATTENTION, SIZES, ax, names="QKVL", title="masked attention"),
    "hadamard": lambda ax: plots.contraction("TS, TS -> TS", SIZES, ax),
    "order tree": lambda ax: plots.order_tree(ALL_ORDERS[-1], ax),
    "costs": lambda ax: plots.costs(CURVES, ax, title="cost", slopes=[1, 2]),
    "order costs": lambda ax: plots.order_costs(ALL_ORDERS, ax, highlight=["((QK)L)V"]),
}
every_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)


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


@every_picture
def test_a_picture_makes_one_figure_or_none(draw):
    draw(None)
    assert len(plt.get_fignums()) == 1
    _, (left, right) = plt.subplots(1, 2)
    assert draw(right) is right
    assert len(plt.get_fignums()) == 2
    assert not left.has_data()


@every_picture
def test_text_is_large_enough_and_inside_the_figure(draw):
    figure = draw(None).figure
    assert min(text.get_fontsize() for text in texts(figure)) >= 9
    for box in boxes(figure.axes[0].texts):
        assert figure.bbox.padded(2).contains(*box.min)
        assert figure.bbox.padded(2).contains(*box.max)


@every_picture
@pytest.mark.parametrize("tight", [False, True])
def test_image_is_small_white_and_opaque(draw, tight, tmp_path):
    figure = draw(None).figure
    width, height = figure.get_size_inches()
    assert 3 <= width <= 7
    assert height <= 7
    # "tight" is what Jupyter's inline backend asks for
    figure.savefig(tmp_path / "picture.png", bbox_inches="tight" if tight else None)
    assert (tmp_path / "picture.png").stat().st_size < 100_000
    pixels = plt.imread(tmp_path / "picture.png")
    assert (pixels[..., 3] == 1).all()
    assert (pixels[0, 0] == 1).all()


def test_inline_rendering():
    from IPython.core.pylabtools import print_figure

    assert print_figure(plots.mask(masks.CausalMask(8)).figure, "png").startswith(b"\x89PNG")


def test_matplotlib_is_imported_by_pictures_only():
    code = (
        "import sys; from smalearn.course import plots; assert 'matplotlib' not in sys.modules; "
        "plots.attends([[1.0]], 'a', 0)"
    )
    subprocess.run([sys.executable, "-c", code + "; assert 'matplotlib' not in sys.modules"], check=True)


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
def test_exact_zero_has_no_colour_of_the_scale(scale):
    ax = plots.heatmap([[0.0, 1.0], [1e-9, 0.5]], scale=scale)
    zero = ax.get_facecolor()[:3]
    shades = [ax.images[0].cmap(x)[:3] for x in np.linspace(0, 1, 65)]
    assert min(difference(zero, shade, "normal") for shade in shades) > 8
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())
    column, row = ax.transData.transform((0, 0)).astype(int)
    np.testing.assert_allclose(pixels[pixels.shape[0] - row, column, :3] / 255, zero, atol=0.01)


def test_style_is_found_in_a_wheel_too(monkeypatch):
    from smalearn.course.plots import style

    monkeypatch.setattr(style, "STYLES", [style.STYLES[1].with_name("absent"), *style.STYLES])
    matplotlib.rcParams["axes.titlelocation"] = "center"
    plots.use_style()
    assert matplotlib.rcParams["axes.titlelocation"] == "left"
    assert style.STYLES[1].parent.parent.name == "smalearn"


def test_a_notebook_hears_of_dark_pages_and_a_program_does_not(monkeypatch, capsys):
    import IPython

    plots.use_style()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(IPython, "get_ipython", lambda: object())
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    plots.use_style()
    assert 'data-jp-theme-light="false"' in shown[0].data


# Matrices


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_heatmap_shows_the_matrix(dtype):
    M = torch.tensor([[0, 1, 0], [1, 1, 0]]).to(dtype)
    ax = plots.heatmap(M)
    shown = ax.images[0].get_array()
    np.testing.assert_array_equal(shown.filled(0), M.to(torch.float64).numpy())
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), M.numpy() == 0 if dtype != torch.bfloat16 else ~M.bool())
    assert ax.get_xlim() == (-0.5, 2.5)
    assert ax.get_ylim() == (1.5, -0.5)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_aspect()) == ("source s", "target t", 1)


def test_heatmap_takes_a_tensor_with_gradient_and_leaves_it_alone():
    (M,) = random_tensors([(4, 5)], grad=True)
    before = M.detach().clone()
    plots.heatmap(M)
    assert torch.equal(M, before)


def test_colour_limits():
    def limits(M, **scale):
        norm = plots.heatmap(M, **scale).images[0].norm
        return norm.vmin, norm.vmax

    assert limits([[0.25, 2.0]]) == (0, 2)
    assert limits([[-3.0, 2.0]]) == (-3, 3)
    assert limits([[-3.0, -2.0]]) == (-3, 3)
    assert limits([[-1.0, torch.inf, torch.nan]]) == (-1, 1)
    assert limits([[0.0, 0.0]]) == (0, 1)
    assert limits([[0.0, 1e-8, 1.0]], scale="log") == (1e-8, 1)
    assert limits([[0.0, 5.0]], scale="log") == (0.5, 5)
    assert limits([[1e-320, 1.0]], scale="log") == (1e-300, 1)
    assert limits([[1e-320, 1e-310]], scale="log") == (1e-300, 1e-280)
    assert isinstance(plots.heatmap([[1.0, 2.0]], scale="log").images[0].norm, LogNorm)


def key(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []


def test_key_names_the_greys_and_a_single_value():
    assert key(plots.heatmap([[1.0, 2.5]])) == []
    assert key(plots.heatmap([[0.0, 2.0]])) == ["2", "0"]
    assert key(plots.heatmap([[0.0, 1.5, 2.0]])) == ["0"]
    assert key(plots.heatmap([[0.0, 1.0, 3.0]])) == ["3", "1", "0"]
    assert key(plots.heatmap([[0.0, torch.nan]])) == ["0", "not finite"]
    assert key(plots.heatmap([[1.0, -torch.inf, 2.5]])) == ["not finite"]


def test_colour_bar_only_for_several_values():
    assert len(plots.mask(masks.CausalMask(4)).child_axes) == 0
    (bar,) = plots.mask(decay(4)).child_axes
    assert bar.get_ylim() == (0, 1)


def test_entries_that_are_not_finite_are_marked_in_their_place():
    M = mixed_scores()
    ax = plots.heatmap(M)
    marked = ~np.ma.getmaskarray(ax.images[1].get_array())
    np.testing.assert_array_equal(marked, ~torch.isfinite(M).numpy())
    np.testing.assert_array_equal(ax.images[1].get_array().compressed(), 1)
    shades = [ax.get_facecolor(), ax.images[1].cmap(0.0)]
    assert shades == [patch.get_facecolor() for patch in ax.get_legend().get_patches()]
    assert difference(*(shade[:3] for shade in shades), "normal") > 20


def test_labels_stand_at_their_rows_and_columns():
    ax = plots.heatmap(torch.ones(2, 3), row_labels=["a", "b"], column_labels="xyz")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y", "z"]
    assert list(ax.get_xticks()) == [0, 1, 2]


def test_positions_are_whole_numbers():
    ax = plots.heatmap(torch.ones(3, 2))
    assert all(float(place).is_integer() for place in [*ax.get_xticks(), *ax.get_yticks()])


def test_oblong_matrices_fill_the_axes():
    assert plots.heatmap(torch.ones(4, 64)).get_aspect() == "auto"


def test_mask_shows_dense_and_names_the_class():
    for L in (masks.CausalMask(5), masks.BlockDiagonalMask(6, 6, 2), masks.BandedMask(4, 6, 1)):
        ax = plots.mask(L)
        np.testing.assert_array_equal(ax.images[0].get_array().filled(0), L.dense(torch.float64).float().double())
        assert ax.get_title(loc="left") == type(L).__name__
    assert plots.mask(torch.ones(2, 2)).get_title(loc="left") == ""
    assert plots.mask(masks.CausalMask(5), title="L").get_title(loc="left") == "L"


def test_matrix_errors():
    with pytest.raises(ShapeError, match=r"heatmap: M needs axes \(T, S\), both at least 1, got shape \(2, 3, 4\)"):
        plots.heatmap(torch.ones(2, 3, 4))
    with pytest.raises(ShapeError, match=r"mask: M needs axes .* got shape \(0, 4\)"):
        plots.mask(torch.ones(0, 4))
    with pytest.raises(ValueError, match=r"mask: M must be real, got complex numbers; pass M.real or abs\(M\)"):
        plots.mask(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(ShapeError, match="heatmap: axis S is 3 in M but there are 2 labels"):
        plots.heatmap(torch.ones(2, 3), column_labels="ab")
    with pytest.raises(ShapeError, match="heatmap: axis T is 2 in M but there are 3 labels"):
        plots.heatmap(torch.ones(2, 3), row_labels="abc")
    with pytest.raises(ValueError, match="heatmap: scale must be 'linear' or 'log', got 'cubic'"):
        plots.heatmap(torch.ones(2, 3), scale="cubic")
    with pytest.raises(ValueError, match=r"heatmap: scale='log' needs entries ≥ 0, got -0.5; pass abs\(M\)"):
        plots.heatmap([[1.0, -0.5]], scale="log")
    assert not plt.get_fignums()


# Passages


def tick_labels(axis):
    return dict(zip(axis.get_ticklocs(), (label.get_text() for label in axis.get_ticklabels()), strict=True))


def test_matrices_side_by_side_have_one_scale_and_may_show_their_numbers():
    Z = torch.tensor([[3.0, 0, 0], [0, 1, 0]])
    figure = side_by_side({"Z": Z, "H": Z.cumsum(0) * 2}, xlabel="n", ylabel="t", numbers=True)
    left, right = figure.axes
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0, 6)
    assert [text.get_text() for text in left.texts] == ["3", "0", "0", "0", "1", "0"]
    assert [text.get_color() for text in right.texts][:2] == ["white", "black"]  # readable on dark and on light
    assert (right.get_xlabel(), right.get_ylabel(), right.get_title(loc="left")) == ("n", "t", "H")
    assert not left.get_legend()
    assert not left.child_axes
    *_, bar = side_by_side({"nothing": torch.zeros(2, 2)}, xlabel="n", ylabel="t").axes
    assert bar.get_ylabel() == "grey: exactly 0"
    with pytest.raises(ShapeError, match="side_by_side: matrices, expected at least one, got none"):
        side_by_side({}, xlabel="n", ylabel="t")


def test_few_words_are_all_labelled():
    ax = plots.words(causal_weights(5), "to be or not\nto!")
    assert tick_labels(ax.xaxis) == tick_labels(ax.yaxis) == dict(enumerate(["to", "be", "or", "not", "to!"]))


@pytest.mark.parametrize("lines", [True, False])
def test_many_words_are_labelled_where_they_stand_and_apart(lines):
    passage = zen() if lines else zen().split()
    ax = plots.words(causal_weights(144), passage)
    ax.figure.draw_without_rendering()
    for axis in (ax.xaxis, ax.yaxis):
        labels = tick_labels(axis)
        assert 12 <= len(labels) <= 40
        assert not overlaps(axis.get_ticklabels())
        for place, label in labels.items():
            assert label.split()[0].rstrip("…") == zen().split()[int(place)]
    assert ("Simple is better…" in tick_labels(ax.yaxis).values()) is lines


def test_a_long_word_is_cut():
    labels = tick_labels(plots.words([[1.0]], ["x" * 40]).yaxis)
    assert labels == {0: "x" * 16 + "…"}


def test_attends_lists_the_largest_first_and_ties_by_position():
    M = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0], [0.301, 0.304, 0.395, 0.0001], [0.004, 0, 0, 0]])
    text = plots.attends(M, "a bb ccc d", range(4), top=2)
    assert text == (
        "a 0    <-  1.00 a 0\n"
        "bb 1   <-  0.75 bb 1   0.25 a 0\n"
        "ccc 2  <-  0.40 ccc 2   0.30 a 0\n"  # 0.304 is larger, but prints the same as the earlier 0.301
        "d 3    <-  nothing"
    )
    assert plots.attends(M, ["a", "bb", "ccc", "d"], np.int64(-3)) == "bb 1  <-  0.75 bb 1   0.25 a 0"


def test_passage_errors():
    with pytest.raises(ShapeError, match=r"words: M must be \(3, 3\) for 3 words, got \(2, 2\)"):
        plots.words(torch.ones(2, 2), "a b c")
    with pytest.raises(ShapeError, match=r"attends: M must be \(2, 2\) for 2 words, got \(2, 3\)"):
        plots.attends(torch.ones(2, 3), "a b", 0)
    with pytest.raises(ValueError, match="attends: M must be real"):
        plots.attends(torch.ones(2, 2, dtype=torch.complex64), "a b", 0)
    for target in (2, -3):
        with pytest.raises(ValueError, match=f"attends: targets, expected positions from 0 to 1, got {target}"):
            plots.attends(torch.ones(2, 2), "a b", [0, target])


# Networks


def wires(ax):
    """Axis letter -> the end points of its wires, and its dot (or None)."""
    found = {}
    for line in ax.lines:
        ends, dots = found.setdefault(line.get_label(), ([], []))
        points = [tuple(np.round(point, 6)) for point in line.get_xydata()]
        if len(points) == 1:
            dots.append(points[0])
        else:
            ends += [points[0], points[-1]]
    return {letter: (set(ends), *dots) for letter, (ends, dots) in found.items()}


def node_places(ax):
    return [tuple(np.round(nodes.get_offsets()[0], 6)) for nodes in ax.collections]


def test_contraction_of_masked_attention():
    ax = plots.contraction(ATTENTION, SIZES, names="QKVL")
    Q, K, V, L = node_places(ax)
    drawn = wires(ax)
    assert set(drawn) == set("TNSP")
    assert drawn["N"] == ({Q, K},)
    ends, dot = drawn["S"]
    assert ends == {K, V, L, dot}
    ends, dot = drawn["T"]
    (loose,) = ends - {Q, L, dot}
    assert ends >= {Q, L, dot}
    assert loose[0] < min(Q[0], L[0])
    (ends,) = drawn["P"]
    (loose,) = ends - {V}
    assert loose[0] > V[0]
    shown = {text.get_text() for text in ax.texts}
    assert shown == {"T = 128", "S = 64", "N = 16", "P = 8", "Q", "K", "V", "L"}


@pytest.mark.parametrize(
    "spec",
    [
        "TN, SN -> TS",
        "TN, SN, SP -> TP",
        ATTENTION,
        "TS, TS -> TS",
        "TN, TN -> ",
        "TN, SP -> TNSP",
        "TS -> T",
        "T, ->T",
    ],
)
def test_every_axis_has_its_ends_and_texts_stand_apart(spec):
    terms, output = spec.replace(" ", "").split("->")
    ax = plots.contraction(spec, SIZES)
    nodes = node_places(ax)
    for letter, (ends, *dot) in wires(ax).items():
        members = {node for node, term in zip(nodes, terms.split(","), strict=True) if letter in term}
        assert members <= ends
        assert len(ends - members - set(dot)) == (letter in output)
        assert bool(dot) == (len(members) + (letter in output) != 2)
    ax.figure.draw_without_rendering()
    assert not overlaps(ax.texts)
    sized = [text for text in ax.texts if " = " in text.get_text()]
    named = {text.get_text()[0]: box.shrunk(0.9, 0.7) for text, box in zip(sized, boxes(sized), strict=True)}
    for line in ax.lines:
        points = line.get_xydata()
        along = points if len(points) > 2 else np.linspace(points[0], points[-1], 50)
        # only a wire between two nodes carries its text, on a white ground
        assert named[line.get_label()].count_contains(ax.transData.transform(along)) == 0 or len(points) > 2
    assert len({line.get_color() for line in ax.lines}) == len(set(terms) - {","})
    for line in ax.lines:
        assert ax.dataLim.padded(0.1).contains(*line.get_xydata().mean(0))


def test_contraction_without_names_or_sizes():
    assert [text.get_text() for text in plots.contraction("TN, SN -> TS").texts] == ["T", "N", "S", "TN", "SN"]


def test_contraction_errors():
    with pytest.raises(ValueError, match=r"contraction: names, expected 2 \(TN, SN\), got 3"):
        plots.contraction("TN, SN -> TS", names="QKV")
    with pytest.raises(ValueError, match="contraction: sizes, expected a size for axis 'S', got T, N"):
        plots.contraction("TN, SN -> TS", {"T": 2, "N": 3})
    with pytest.raises(ValueError, match="contraction: spec 'TN, SN', expected '->'"):
        plots.contraction("TN, SN")
    assert not plt.get_fignums()


@pytest.mark.parametrize("order", ALL_ORDERS, ids=lambda order: order.name)
def test_order_tree_shows_each_step_below_its_factors(order):
    ax = plots.order_tree(order)
    leaves, results = ax.texts[:4], ax.texts[4:]
    assert [leaf.get_text() for leaf in leaves] == ["Q\nTN", "K\nSN", "V\nSP", "L\nTS"]
    from_left = sorted(leaves, key=lambda leaf: leaf.get_position()[0])
    assert "".join(leaf.get_text()[0] for leaf in from_left) == order.name.replace("(", "").replace(")", "")
    places = dict(zip("QKVL", leaves, strict=True))
    for step, result in zip(order.steps, results, strict=True):
        axes = step.spec.split("-> ")[1]
        assert result.get_text() == f"{axes}\n{step.output_elements:,} entries\n{step.macs:,} MACs"
        thick = result.get_bbox_patch().get_linewidth() > 1
        assert thick == (step is not order.steps[-1] and step.output_elements == order.peak_elements)
        for factor in step.operands:
            assert result.get_position()[1] < places[factor].get_position()[1]
            ends = [places[factor].get_position(), result.get_position()]
            assert any(np.array_equal(line.get_xydata(), ends) for line in ax.lines)
        places[step.result] = result
    assert len(ax.lines) == 6
    assert ax.get_title(loc="left") == f"{order.name}: {order.macs:,} MACs"
    ax.figure.draw_without_rendering()
    assert not overlaps([text.get_bbox_patch() for text in ax.texts])


def test_a_filmstrip_ends_in_the_output():
    order = ALL_ORDERS[0]
    axes = plots.filmstrip(order, names="GMY")
    assert [ax.get_title(loc="left").split("\n")[0] for ax in axes] == [
        "four tensors",
        *(step.spec for step in order.steps),
    ]
    assert {line.get_label() for line in axes[0].lines} == set("TNSP")
    assert {line.get_label() for line in axes[-1].lines} == set("TP")
    names = [{text.get_text() for text in ax.texts} - set("TNSP") for ax in axes]
    assert [len(found) for found in names] == [4, 3, 2, 1]
    assert names[-1] == {"Y"}


@pytest.mark.full
def test_three_maps_end_near_the_exponential():
    figure = plots.three_maps(1.0, draws=4000)
    for ax in figure.axes:
        *_, total, exact = ax.lines
        middle = np.abs(total.get_xdata()) < 1
        np.testing.assert_allclose(total.get_ydata()[middle], exact.get_ydata()[middle], rtol=0.15, atol=0.05)


def test_the_final_result_is_no_intermediate():
    order = orders("TN, NP, PS -> TS", dict.fromkeys("TNPS", 4))[0]
    thick = [text.get_bbox_patch().get_linewidth() > 1 for text in plots.order_tree(order).texts]
    assert thick == [False, False, False, True, False]


# Costs


def test_costs_draws_the_numbers_and_the_slopes():
    ax = plots.costs({"a": ([1, 10], [4, 40]), "b": ([10, 100], [2, 3])}, slopes=[2])
    a, b, guide = ax.lines
    np.testing.assert_array_equal(a.get_xydata(), [[1, 4], [10, 40]])
    np.testing.assert_array_equal(b.get_xydata(), [[10, 2], [100, 3]])
    np.testing.assert_allclose(guide.get_xydata(), [[1, 1], [100, 1e4]])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert {"2", "64"} <= {text.get_text() for text in texts(ax.figure)}
    named = {text.get_text(): tuple(text.xy) for text in ax.texts}
    assert named == {"a": (10, 40), "b": (100, 3), "slope 2": (100, 1e4)}


def test_cost_curves_differ_without_colour_and_their_names_stand_apart():
    close = {f"curve {k}": ([1, 10, 100], [2, 20 + k, 200 + k]) for k in range(7)}
    ax = plots.costs(close)
    assert len({(line.get_linestyle(), line.get_marker()) for line in ax.lines}) == 7
    assert len({line.get_color() for line in ax.lines}) == 7
    ax.figure.draw_without_rendering()
    assert not overlaps(ax.texts)
    heights = [box.y0 for box in boxes(ax.texts)]
    assert heights == sorted(heights)


def test_costs_names_only_its_own_lines():
    ax = plots.costs({"a": ([1, 2], [3, 4])})
    plots.costs({"b": ([1, 2], [5, 6])}, ax)
    assert [text.get_text() for text in ax.texts] == ["a", "b"]


def test_order_costs_bars():
    ax = plots.order_costs(ALL_ORDERS, highlight=["((KV)L)Q", "((QK)L)V"])
    names = [order.name for order in ALL_ORDERS]
    assert len(ax.patches) == 15
    assert [bar.get_width() for bar in ax.patches] == [order.macs for order in ALL_ORDERS]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert [text.get_text() for text in ax.texts] == [f"{order.macs:,}" for order in ALL_ORDERS]
    assert ax.get_xscale() == "log"
    low, high = ax.get_xlim()
    assert low == 1e5  # the cheapest takes 204,800
    assert plots.order_costs(orders("TN, SN -> TS", {"T": 3, "S": 5, "N": 1})).get_xlim()[0] == 1
    assert high >= ALL_ORDERS[-1].macs
    heights = [bar.get_window_extent().y0 for bar in ax.patches]
    assert heights == sorted(heights, reverse=True)
    shown = {name: bar.get_facecolor() for name, bar in zip(names, ax.patches, strict=True)}
    assert len(set(shown.values())) == 3
    assert sorted(shown, key=lambda name: list(shown.values()).count(shown[name]))[:2] == ["((QK)L)V", "((KV)L)Q"]
    bold = [label.get_text() for label in ax.get_yticklabels() if label.get_fontweight() == "bold"]
    assert bold == ["((QK)L)V", "((KV)L)Q"]


def test_cost_errors():
    with pytest.raises(ValueError, match="costs: curves, expected at least one, got none"):
        plots.costs({})
    with pytest.raises(ShapeError, match=r"costs: curve 'a' needs one cost a size, got shapes \(2,\) and \(1,\)"):
        plots.costs({"a": ([1, 2], [3])})
    with pytest.raises(ShapeError, match="costs: curve 'a' needs one cost a size"):
        plots.costs({"a": ([], [])})
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(
            ValueError, match=f"costs: curve 'a' needs finite numbers above 0 on a log scale, got {wrong}"
        ):
            plots.costs({"a": ([1, 2], [3, wrong])})
    with pytest.raises(ValueError, match="order_costs: orders, expected at least one, got none"):
        plots.order_costs([])
    with pytest.raises(ValueError, match=r"order_costs: highlight, expected some of \(\(QK\)L\)V, .*, got 'QK'"):
        plots.order_costs(ALL_ORDERS, highlight=["QK"])
    assert not plt.get_fignums()


def test_a_colour_bar_of_counts_has_whole_ticks():
    ax = plots.heatmap([[1, 0, 4], [3, 2, 5]])
    ax.figure.draw_without_rendering()
    (bar,) = ax.child_axes
    assert all(tick == round(tick) for tick in bar.get_yticks())
