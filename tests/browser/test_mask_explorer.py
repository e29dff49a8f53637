"""The mask explorer on a bare page: no kernel, no JupyterLab."""

import random
import re

import pytest
import torch
from views import SHOWN, change, drags, drawn, headline, heard, words

from smalearn.course.widgets import MaskExplorer
from smalearn.course.widgets.mask_explorer import FAMILIES

FORMULAS = """(cases) => cases.map((p) => {
  const L = script.makeMask(p.family, p);
  const imaginary = L.imaginary && [...L.imaginary];
  const [G, H] = ["words", "random"].map((kind) => [...script.makeScores(kind, p)]);
  return { real: [...L.real], imaginary, cost: L.cost, dense: script.denseCost(L), ranks: script.blockRanks(L), G, H };
})"""
RANKS = """(cases) => cases.map(([A, m, n]) => script.rank(Float64Array.from(A), m, n, 1e-10))"""
STATE = ["gamma", "growth", "decays", "alpha", "rank", "window", "dilation", "blocks"]
TEXT = "a b c d e. f g h a b c! d"
T = 12


@pytest.fixture
def mount(mount):
    """Shown with what is folded at first."""

    def show(explorer):
        page = mount(explorer)
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        return drawn(page)

    return show


def test_three_pictures_at_first_and_a_headline(mount):
    page = mount(MaskExplorer(TEXT))
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = false")
    shown = [part.get_attribute("aria-label") for part in page.locator("canvas").all() if part.is_visible()]
    assert [label.split(";")[0] for label in shown] == ["Decays", "L, G and M"]
    assert headline(page) == "Rank 1 off the diagonal: a product with L is 12.5 times cheaper than a dense one"
    title = "Forgetting is cheap: whatever the decays, one scan computes the product with L"
    assert page.locator(".title").inner_text() == title
    assert page.locator(".hint").inner_text().startswith("Drag a decay to 0: everything before it is forgotten.")
    for family in FAMILIES:
        assert len(change(page, family=family).locator(".title").inner_text()) > 30
    page.locator("summary").click()
    assert canvas(drawn(page), re.compile("^Ranks")).is_visible()


def slider(page, name):
    return page.get_by_role("slider", name=name)


def canvas(page, name):
    return page.get_by_role("application", name=name)


def matrices(page):
    """Left, top and side of L, G and M on their canvas."""
    width = canvas(page, re.compile("^L, G and M")).bounding_box()["width"]
    boxes = page.evaluate("(width) => script.layOutMatrices(model.get('_words'), width).boxes", width)
    return [(box["x"], box["y"], box["long"]) for box in boxes]


def random_explorers(family, lengths):
    """Explorers of random parameters; some decays are 0 and 1."""
    chance = random.Random(family)
    for length in lengths:
        explorer = MaskExplorer(" ".join(chance.choices("abc", k=length)), seed=length, family=family)
        explorer.gamma = chance.choice([0, 1, chance.random()])
        explorer.decays = [chance.choice([0, 1, *[chance.random()] * 3]) for _ in range(length)]
        explorer.alpha = [chance.uniform(-1, 1) for _ in range(chance.choice([length, 2 * length - 1]))]
        explorer.rank = chance.randint(1, min(8, length))
        explorer.growth = round(2 * chance.random(), 2)
        explorer.window, explorer.dilation = chance.randrange(length), chance.randrange(1, length)
        explorer.blocks = chance.choice([blocks for blocks in range(1, length + 1) if length % blocks == 0])
        yield explorer


def close(found, expected):
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected.ravel(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("family", FAMILIES)
def test_script_computes_the_masks_scores_ranks_and_costs_of_python(mount, family):
    explorers = list(random_explorers(family, [*range(2, 20), 31, 33, 48, 64]))
    cases = [
        {name: getattr(explorer, name) for name in ["family", *STATE]}
        | {name[1:]: getattr(explorer, name) for name in ("_Q", "_K", "_U", "_V", "_words")}
        | {"T": len(explorer._words)}
        for explorer in explorers
    ]
    found = mount(MaskExplorer()).evaluate(FORMULAS, cases)
    for explorer, script in zip(explorers, found, strict=True):
        L = explorer.L
        close(script["real"], L.real)
        if L.is_complex():
            close(script["imaginary"], L.imag)
        else:
            assert script["imaginary"] is None
        assert script["ranks"] == explorer.ranks
        assert (script["cost"], script["dense"]) == (explorer.cost, explorer.dense_cost)
        for scores, G in (("words", script["G"]), ("random", script["H"])):
            explorer.scores = scores
            close(G, explorer.G)


@pytest.mark.parametrize("last", [1e-6, 1e-9, 3e-10, 3e-11, 1e-13, 0])
def test_rank_counts_singular_values_above_the_tolerance(mount, last):
    """Random matrices whose singular values are known, from easy ones to those close to the tolerance of 1e-10."""
    seed = torch.Generator().manual_seed(0)
    cases, expected = [], []
    for m, n in [(1, 1), (2, 1), (5, 5), (9, 4), (32, 32), (40, 17)]:
        left, right = (torch.linalg.qr(torch.randn(size, n, generator=seed, dtype=torch.float64))[0] for size in (m, n))
        values = torch.logspace(0, -3, n, dtype=torch.float64)
        values[n - n // 2 :] = last
        cases.append([(1e-5 * left * values @ right.mT).ravel().tolist(), m, n])
        expected.append(int((values > 1e-10).sum()))
    zero = [[0.0] * 12, 4, 3]
    assert mount(MaskExplorer()).evaluate(RANKS, [*cases, zero]) == [*expected, 0]


def test_tiny_numbers_have_a_rank(mount):
    page = mount(MaskExplorer(TEXT, family="decay", gamma=1e-200))
    assert "The block L[6:, :6] has rank 1" in words(page)


def test_a_stroke_is_a_straight_line(mount):
    page = mount(MaskExplorer())
    stroke = "([from, to]) => script.stroke([9, 9, 9, 9, 9], from, to)"
    assert page.evaluate(stroke, [[1, 0], [3, 1]]) == [9, 0, 0.5, 1, 9]
    assert page.evaluate(stroke, [[3, 1], [1, 0]]) == [9, 0, 0.5, 1, 9]
    assert page.evaluate(stroke, [[2, 1], [2, 0.5]]) == [9, 9, 0.5, 9, 9]
    assert page.evaluate(stroke, [[0, 0], [4, 1]]) == [0, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_chosen_and_says_what_python_says(mount, family):
    page = mount(MaskExplorer(TEXT, family="causal" if family != "causal" else "decay"))
    page.get_by_role("combobox", name="L, family").select_option(family)
    assert page.evaluate("saved.family") == family
    explorer = MaskExplorer(TEXT, family=family)
    says = f"has rank {explorer.ranks[5]}; over all k, the largest rank is {max(explorer.ranks)}. "
    says += f"One column costs {explorer.cost:,} operations"
    page.wait_for_function("(says) => document.querySelector('[aria-live]').textContent.includes(says)", arg=says)
    assert f"{explorer.dense_cost:,} by a dense product. Row 11 of M, “d”, weighs word" in words(page)
    cells = page.locator("#first td").all_inner_texts()
    assert [cells[0], cells[2]] == [f"{explorer.cost:,}", f"{explorer.dense_cost:,}"]
    dearer = max(explorer.cost, explorer.dense_cost) / min(explorer.cost, explorer.dense_cost)
    assert max(float(cells[i].removesuffix(" ×")) for i in (1, 3)) == pytest.approx(dearer, rel=5e-3)
    assert page.get_by_text("The pictures show real parts").is_visible() == (family == "Fourier")


CONTROLS = {
    "causal": [],
    "decay": ["γ, decay"],
    "1-semiseparable": ["a, all decays", "Decays"],
    "Toeplitz": ["α"],
    "Fourier": [],
    "low rank": ["R, rank"],
    "banded": ["w, window"],
    "dilated": ["w, window", "d, dilation"],
    "block diagonal": ["p, blocks"],
    "log-linear": ["γ, decay", "w, weight of a level"],
}
ALWAYS = ["t, row", "k, split", "L, G and M", "Row t", "Ranks"]


def test_every_family_shows_its_own_controls(mount):
    page = mount(MaskExplorer(TEXT))
    parts = page.locator("#first input[type=range], #first canvas")
    for family, own in CONTROLS.items():
        change(page, family=family)
        names = [part.get_attribute("aria-label") for part in parts.all() if part.is_visible()]
        assert len(names) == len(own + ALWAYS), (family, names)
        assert all(any(name.startswith(start) for name in names) for start in own + ALWAYS), (family, names)


@pytest.mark.parametrize(
    ("family", "name", "value", "trait", "expected", "says"),
    [
        ("decay", "γ, decay", "35", "gamma", 0.35, "0.35"),
        ("1-semiseparable", "a, all decays", "7", "decays", [0.07] * T, "0.07"),
        ("low rank", "R, rank", "5", "rank", 5, "5"),
        ("banded", "w, window", "0", "window", 0, "0"),
        ("dilated", "w, window", "11", "window", 11, "11"),
        ("dilated", "d, dilation", "3", "dilation", 3, "3"),
        ("block diagonal", "p, blocks", "2", "blocks", 3, "3"),
        ("log-linear", "γ, decay", "50", "gamma", 0.5, "0.5"),
        ("log-linear", "w, weight of a level", "150", "growth", 1.5, "1.5^level"),
        ("causal", "t, row", "0", "target", 0, "0"),
        ("causal", "k, split", "11", "split", 11, "11"),
    ],
)
def test_sliders_tell_python(mount, family, name, value, trait, expected, says):
    page = mount(MaskExplorer(TEXT, family=family))
    slider(page, name).fill(value)
    assert page.evaluate(f"saved.{trait}") == expected
    assert drawn(page).evaluate(SHOWN)
    assert slider(page, name).get_attribute("aria-valuetext") == says
    MaskExplorer(TEXT, family=family, **{trait: page.evaluate(f"saved.{trait}")})  # Python takes what is sent


def test_sliders_follow_python(mount):
    page = mount(MaskExplorer(TEXT, family="block diagonal"))
    assert slider(page, "p, blocks").get_attribute("aria-valuetext") == "6"
    change(page, blocks=12, target=2, split=3)
    assert [slider(page, name).input_value() for name in ("p, blocks", "t, row", "k, split")] == ["5", "2", "3"]
    change(page, family="1-semiseparable", scale="log", scores="random")
    assert slider(page, "a, all decays").get_attribute("aria-valuetext") == "mixed"
    assert page.get_by_role("checkbox", name="logarithmic colours").is_checked()
    assert page.get_by_role("combobox", name="G, scores").input_value() == "random"


def test_scores_and_scale_tell_python(mount):
    page = mount(MaskExplorer(TEXT))
    page.get_by_role("combobox", name="G, scores").select_option("random")
    page.get_by_role("checkbox", name="logarithmic colours").check()
    assert page.evaluate("[saved.scores, saved.scale]") == ["random", "log"]
    page.get_by_role("checkbox", name="logarithmic colours").uncheck()
    assert page.evaluate("saved.scale") == "linear"


def drag(page, picture, *places):
    """Drag from the first place on a canvas to the others."""
    box = picture.bounding_box()
    for number, (x, y) in enumerate(places):
        page.mouse.move(box["x"] + x, box["y"] + y)
        if not number:
            page.mouse.down()
    page.mouse.up()


def test_decays_are_drawn(mount):
    page = drawn(mount(MaskExplorer(TEXT, decays=1)))
    strip = canvas(page, re.compile("^Decays"))
    column = (strip.bounding_box()["width"] - 8) / T
    drag(page, strip, (4 + 2.5 * column, 20), (4 + 6.5 * column, 104))
    assert page.evaluate("saved.decays") == [1, 1, 1, 0.75, 0.5, 0.25, 0, 1, 1, 1, 1, 1]
    drag(page, strip, (4 + 9.5 * column, 62))  # a new stroke is not joined to the last one
    assert page.evaluate("saved.decays") == [1, 1, 1, 0.75, 0.5, 0.25, 0, 1, 1, 0.5, 1, 1]


@pytest.mark.parametrize("family", ["1-semiseparable", "Toeplitz"])
def test_the_knob_of_the_lowest_number_is_whole(mount, family):
    """Also while it is held: its ring ends above the last row of the canvas."""
    page = drawn(mount(MaskExplorer(TEXT, family=family, decays=0, alpha=[-1] * (2 * T - 1))))
    strip = canvas(page, re.compile("^Decays|^α"))
    strip.hover(position={"x": strip.bounding_box()["width"] / 2, "y": 104})
    rows = """(up) => {
      const canvas = [...document.querySelectorAll("canvas")].find((one) => one.clientWidth);
      const { width, height } = canvas;
      return canvas.getContext("2d").getImageData(0, height - up, width, 1).data.some(Boolean);
    }"""
    drawn(page)
    assert [page.evaluate(rows, up) for up in (1, 4)] == [False, True]


def test_the_tolerance_of_a_rank_is_said(mount):
    assert mount(MaskExplorer(TEXT)).get_by_text("Singular values above 10⁻¹⁰ times the largest").count() == 1
    assert MaskExplorer._esm.count("10⁻¹⁰") == 0  # it is written from the number that counts


def test_toeplitz_coefficients_are_drawn(mount):
    page = drawn(mount(MaskExplorer(TEXT, family="Toeplitz", alpha=[0] * T)))
    strip = canvas(page, re.compile("^α"))
    column = (strip.bounding_box()["width"] - 8) / (2 * T - 1)
    drag(page, strip, (4 + 9.5 * column, 20), (4 + 13.5 * column, 106))
    alpha = page.evaluate("saved.alpha")
    assert alpha == [0] * 9 + [1, 0.5, 0, -0.5, -1] + [0] * 9
    assert MaskExplorer(TEXT, family="Toeplitz", alpha=alpha).alpha == alpha


@pytest.mark.parametrize(
    ("family", "trait", "first", "low"), [("1-semiseparable", "decays", T // 2, 0), ("Toeplitz", "alpha", T - 1, -1)]
)
def test_arrow_keys_draw_too(mount, family, trait, first, low):
    page = drawn(mount(MaskExplorer(TEXT, family=family, decays=0.5, alpha=[0.5] * (2 * T - 1))))
    canvas(page, re.compile("^Decays|^α")).focus()
    for key, place, value in [("Up", first, 0.55), ("Down", first, 0.5), ("Down", first, 0.45)]:
        page.keyboard.press(f"Arrow{key}")
        assert page.evaluate(f"saved.{trait}")[place] == value
    page.keyboard.press("ArrowRight")
    for _ in range(32):
        page.keyboard.press("ArrowDown")
    drawn_values = page.evaluate(f"saved.{trait}")
    assert drawn_values[first : first + 3] == [0.45, low, 0.5]


def test_a_row_is_looked_at_by_pointing_and_chosen_by_a_click(mount):
    page = drawn(mount(MaskExplorer(TEXT)))
    picture = canvas(page, re.compile("^L, G and M"))
    box = picture.bounding_box()
    (x, y, side), _, (last, *_) = matrices(page)
    pictures = page.evaluate(SHOWN)
    page.mouse.move(box["x"] + x + 3, box["y"] + y + 3.5 * side / T)
    heard(page, "Row 3 of M, “d”, weighs")
    assert page.evaluate("model.get('target')") == 11  # Python is not told of a look
    assert page.evaluate(SHOWN)[2] != pictures[2]
    page.mouse.move(box["x"] + x + side + 13, box["y"] + y + 10)  # between two matrices
    assert drawn(page).evaluate(SHOWN) == pictures
    page.mouse.move(box["x"] + x - 10, box["y"] + y + 3.5 * side / T)  # on a word
    assert drawn(page).evaluate(SHOWN) != pictures
    page.mouse.move(box["x"] + x, box["y"] - 5)
    assert drawn(page).evaluate(SHOWN) == pictures
    picture.click(position={"x": last + 3, "y": y + 7.5 * side / T})
    assert page.evaluate("saved.target") == 7
    picture.click(position={"x": 5, "y": 5})  # on a title
    assert page.evaluate("saved.target") == 7


def test_a_finger_drags_the_row_and_scrolls_elsewhere(mount):
    page = drawn(mount(MaskExplorer(TEXT, target=6)))
    (x, y, side), *_ = matrices(page)
    assert [drags(page, 2, x + 10, y + side * share) for share in (0.1, 0.5, 0.9)] == [False, True, False]
    change(page, split=1)
    assert [drags(page, 4, x, 60) for x in (60, 300)] == [True, False]
    assert not drags(page, 0, 30, 118)  # below the bars of decays
    assert not drags(page, 3, 100, 60)


def test_the_split_is_chosen_on_the_curve_of_ranks(mount):
    page = drawn(mount(MaskExplorer(TEXT)))
    curve = canvas(page, re.compile("^Ranks"))
    column = (curve.bounding_box()["width"] - 28) / (T - 1)
    drag(page, curve, (24 + 0.5 * column, 60), (24 + 8.5 * column, 60))
    assert page.evaluate("saved.split") == 9
    for x, split in [(0, 1), (24 + 11 * column, 11), (24 + 3.5 * column, 4)]:
        curve.click(position={"x": x, "y": 60})
        assert page.evaluate("saved.split") == split
    curve.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("saved.split") == 5


def test_zero_is_dotted_a_negative_number_has_a_stroke_and_the_largest_is_strong(mount):
    page = drawn(mount(MaskExplorer(TEXT, family="Toeplitz", alpha=[0.0] * (T - 1) + [1.0, -1.0] + [0.0] * (T - 2))))
    pixels = """(boxes) => {
      const canvas = document.querySelectorAll("canvas")[2], pen = canvas.getContext("2d"), ratio = devicePixelRatio;
      const hex = (bytes) => "#" + [...bytes].map((x) => x.toString(16).padStart(2, "0")).join("");
      return boxes.map((box) => {
        const { data } = pen.getImageData(...box.map((x) => x * ratio));
        return [...new Set(Array.from({ length: data.length / 4 }, (_, i) => hex(data.slice(4 * i, 4 * i + 3))))];
      });
    }"""
    (x, y, side), *_ = matrices(page)
    cell = side / T
    places = [(3, 3), (8, 7), (10, 2)]
    boxes = [(x + (s + 0.2) * cell, y + (t + 0.2) * cell, 0.6 * cell, 0.6 * cell) for t, s in places]
    one, minus_one, zero = page.evaluate(pixels, boxes)
    assert one == ["#0072b2"]
    assert "#b34e00" in minus_one
    assert len(minus_one) > 1
    assert "#ffffff" in zero
    assert len(zero) > 1
