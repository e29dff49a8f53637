"""The score explorer on a bare page: no kernel, no JupyterLab."""

import random
import re
from itertools import pairwise

import pytest
import torch
from views import change, drags, drawn, headline, heard, words

from smalearn.course.widgets import ScoreExplorer
from smalearn.course.widgets.score_explorer import PRESETS, block_lengths
from smalearn.testing import assert_close

CELLS = "[...document.querySelectorAll('tbody tr:not([hidden])')].map((row) => [...row.cells].map((c) => c.innerText))"
STATES = """(states) => states.map((state) => {
  Object.entries(state).forEach((entry) => model.set(...entry));
  const found = script.read({ get: model.get });
  return { ...found, weights: found.scores.map((row) => row.map((_, j) => script.weight(row, j))) };
})"""


def title(page):
    """d(i, j) as the description has it: which pair, and how many levels it shares."""
    found = re.match(r"Words (\d+) “\S+” and (\d+) “\S+” share (\d|all|the only) ", words(page))
    return [int(found[1]), int(found[2]), found[3]]


def states(count=60):
    """Seeded states of all sizes, with the presets first."""
    chance = random.Random(0)
    fixed = [[int(rank) for rank in preset.split("|")] for preset in PRESETS]
    for number in range(count):
        levels = chance.randint(1, 6)
        ranks = [chance.randint(0, 16 // levels) for _ in range(levels)]
        ranks[chance.randrange(levels)] += not any(ranks)
        length = chance.choice([1, 2, 37, 64, chance.randint(1, 64)])
        i = chance.randrange(length)
        yield {
            "ranks": fixed[number] if number < len(fixed) else ranks,
            "length": length,
            "leaf": chance.choice([0, 0, 1, chance.randint(1, 32)]),
            "seed": chance.randrange(4),
            "pair": [i, chance.randint(0, i)],
        }


def triangle(rows, size):
    """Rows that end on the diagonal as a matrix with zeros above it."""
    M = torch.zeros(size, size, dtype=torch.float64)
    for i, row in enumerate(rows):
        assert len(row) == i + 1
        M[i, : i + 1] = torch.tensor(row, dtype=torch.float64)
    return M


def test_script_computes_levels_scores_and_costs_of_python(mount):
    page = mount(ScoreExplorer())
    several = list(states())
    for state, found in zip(several, page.evaluate(STATES, several), strict=True):
        explorer = ScoreExplorer(**state)
        T, r = explorer.length, sum(explorer.ranks)
        assert found["lens"] == list(explorer.block_lens)
        assert torch.equal(triangle(found["levels"], T), explorer.levels.double().tril())
        assert_close(triangle(found["scores"], T), explorer.scores.tril())
        assert_close(triangle(found["standard"], T), (explorer.vectors @ explorer.vectors.mT / r**0.5).tril())
        assert_close(triangle(found["weights"], T), explorer.weights)
        assert found["macs"] == explorer.level_macs
        assert (sum(found["keys"]), found["room"]) == (explorer.kept, explorer.room)
        assert (found["T"], found["r"], found["t"]) == (T, r, state["pair"][0] + 1)


def test_script_computes_blocks_pairs_and_kept_keys(mount):
    page = mount(ScoreExplorer())
    sizes = [[T, L, leaf] for T in (1, 2, 5, 31, 64) for L in range(1, 7) for leaf in (0, 1, 3, 32)]
    found = page.evaluate("(all) => all.map((sizes) => script.blockLens(...sizes))", sizes)
    assert found == [list(block_lengths(*size)) for size in sizes]
    sizes = [[T, b] for T in (1, 7, 64) for b in (1, 3, 8, 64)]
    pairs = [sum(i // b == j // b for i in range(T) for j in range(i + 1)) for T, b in sizes]
    kept = [sum((T - 1) // b == j // b for j in range(T)) for T, b in sizes]
    count = "(all) => all.map(([T, b]) => [script.pairs(T, b), script.kept(T, b)])"
    assert page.evaluate(count, sizes) == [list(both) for both in zip(pairs, kept, strict=True)]


@pytest.mark.parametrize(
    ("ranks", "levels", "expected"),
    [
        ([16], 4, [8, 4, 2, 2]),
        ([8, 4, 2, 2], 6, [8, 4, 2, 1, 1, 0]),
        ([8, 4, 2, 2], 2, [8, 8]),
        ([3, 0], 3, [3, 0, 0]),
        ([1, 2, 3], 1, [6]),
        ([5, 4], 2, [5, 4]),
    ],
    ids=str,
)
def test_another_number_of_levels_keeps_all_columns(mount, ranks, levels, expected):
    page = mount(ScoreExplorer(ranks))
    assert page.evaluate("([ranks, L]) => script.split(ranks, L)", [ranks, levels]) == expected
    page.get_by_role("slider", name="L, levels").fill(str(levels))
    assert page.evaluate("model.get('ranks')") == expected


def test_table_shows_what_the_levels_cost(mount):
    explorer = ScoreExplorer("8|4|4", length=48, pair=(40, 3))
    page = mount(explorer)
    *levels, total, standard = page.evaluate(CELLS)
    assert len(levels) == 3
    pairs = [48 * 49 // 2, 2 * 24 * 25 // 2, 4 * 12 * 13 // 2]
    for number, (row, rank) in enumerate(zip(levels, [8, 4, 4], strict=True)):
        keys = [41, 17, 5][number]
        assert row[:2] == [str(number + 1), str([48, 24, 12][number])]
        assert [cell.strip() for cell in row[3:]] == [f"{pairs[number] * rank:,}", str(keys * rank)]
    share, kept = explorer.macs / explorer.standard_macs, explorer.kept / (41 * 16)
    assert total[1:] == ["", "16", f"{explorer.macs:,}", f"{explorer.kept}"]
    assert headline(page) == f"{100 * share:.0f} % of the multiply-adds, {100 * kept:.0f} % of the keys after 41 tokens"
    assert [cell.strip() for cell in standard] == ["standard", "48", "16", f"{explorer.standard_macs:,}", "656"]
    bars = page.evaluate(
        "[...document.querySelectorAll('td div')].map((bar) => [bar.style.width, bar.style.background])"
    )
    assert [width for width, _ in bars] == ["100%", "50%", "50%"]
    shares = [float(re.search(r" ([\d.]+)%,", look)[1]) for _, look in bars]
    assert shares == pytest.approx([100 * count / pairs[0] for count in pairs], rel=1e-3)


def test_description_says_what_a_pair_shares_and_what_is_kept(mount):
    page = mount(ScoreExplorer("4|4|4|4", pair=(61, 37)))
    assert words(page) == (
        "Words 61 “to” and 37 “to” share 2 of 4 levels, blocks of 32: 8 of 16 columns, score 1.77, weight 0.06; "
        "all 16 would say 3.3, weight 0.23. All scores take 15,872 multiply-adds, 0.477 × standard attention's. "
        "After 62 tokens 448 of 992 key numbers are kept, with room for 480."
    )
    for new, text in [
        ({"pair": [61, 61]}, "share all levels: 16 of 16 columns, score "),
        ({"pair": [61, 0]}, "share 1 of 4 levels, blocks of 64: 4 of 16 columns, score "),
        ({"ranks": [16]}, "share the only level: 16 of 16 columns, score "),
        ({"leaf": 2}, "After 62 tokens 992 of 992 key numbers are kept, with room for 1,024."),
        ({"ranks": [8, 0, 8]}, "share 1 of 3 levels, blocks of 64: 8 of 16 columns, score "),
        ({"length": 10}, "Words 9 “implicit.” and 0 “beautiful” share "),
    ]:
        heard(change(page, **new), text)


def test_controls_tell_python(mount):
    page = mount(ScoreExplorer())
    split = page.get_by_role("combobox", name="split")
    for preset in PRESETS:
        split.select_option(preset)
        assert page.evaluate("saved.ranks.join('|')") == preset
    split.select_option("your own")
    assert drawn(page).evaluate("saved.ranks.join('|')") == PRESETS[-1]
    assert split.input_value() == PRESETS[-1]
    step = page.get_by_role("slider", name="t, tokens so far")
    change(page, length=20, leaf=0, pair=[9, 5])
    step.focus()
    for key, pair in [("ArrowRight", [10, 5]), ("Home", [0, 0]), ("End", [19, 0])]:
        page.keyboard.press(key)
        assert page.evaluate("saved.pair") == pair
    change(page, ranks=[3, 2])
    assert split.input_value() == "your own"
    assert page.get_by_role("slider", name="b, finest block").get_attribute("aria-valuetext") == "halving"


def test_columns_of_a_level_are_typed_and_stay_within_sixteen(mount):
    page = mount(ScoreExplorer("8|4|2"))
    fields = page.get_by_role("spinbutton")
    assert fields.count() == 3
    for number, text, ranks in [
        (0, "5", [5, 4, 2]),
        (2, "99", [5, 4, 7]),
        (1, "-3", [5, 0, 7]),
        (1, "2.9", [5, 2, 7]),
        (0, "", [0, 2, 7]),
        (1, "0", [0, 0, 7]),
        (2, "0", [0, 0, 1]),
    ]:
        fields.nth(number).fill(text)
        fields.nth(number).press("Enter")
        assert page.evaluate("saved.ranks") == ranks
        assert [field.input_value() for field in drawn(page).get_by_role("spinbutton").all()] == list(map(str, ranks))
    fields.nth(1).focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("saved.ranks") == [0, 1, 1]
    assert drawn(page).get_by_role("spinbutton").nth(2).get_attribute("max") == "15"
    assert fields.nth(1).get_attribute("aria-label") == "columns of level 2"


def place(page, number, pair):
    """The middle of a pair's cell, in pixels of a canvas."""
    T, height = page.evaluate("model.get('length')"), page.locator("canvas").nth(number).bounding_box()["height"]
    cell = (height - 24) / T
    i, j = pair
    return {"x": 2 + (j + 0.5) * cell, "y": 22 + (i + 0.5) * cell}


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("number", [0, 1])
def test_pairs_are_looked_at_by_pointing_and_chosen_by_a_click(mount, width, number):
    page = mount(ScoreExplorer(length=40, pair=(30, 2)))
    page.set_viewport_size({"width": width, "height": 800})
    canvas = drawn(page).locator("canvas").nth(number)
    explorer = ScoreExplorer(length=40)
    for i, j in [(25, 3), (39, 0), (17, 17), (24, 16)]:
        canvas.hover(position=place(page, number, (i, j)))
        page.wait_for_timeout(400)
        d = int(explorer.levels[i, j])
        assert title(page) == [i, j, "all" if d == 4 else str(d)]
        assert page.evaluate("model.get('pair')") == [30, 2]  # not chosen yet
    assert "After 31 tokens " in words(page)  # the step stays the chosen one
    canvas.hover(position=place(page, number, (3, 20)))
    page.wait_for_timeout(400)
    assert title(page)[:2] == [30, 2]
    canvas.click(position=place(page, number, (20, 7)))
    assert page.evaluate("saved.pair") == [20, 7]
    canvas.click(position=place(page, number, (3, 20)))
    assert page.evaluate("saved.pair") == [20, 7]


def test_the_step_is_dragged_over_the_cache(mount):
    page = mount(ScoreExplorer(pair=(9, 9)))
    box = page.locator("canvas").nth(2).bounding_box()
    wide, visited = box["width"] - 56, []
    page.mouse.move(box["x"] + 48 + wide * 10 / 64, box["y"] + 120)
    page.mouse.down()
    for t in range(10, 60, 7):
        page.mouse.move(box["x"] + 48 + wide * t / 64, box["y"] + 120)
        visited.append(drawn(page).evaluate("saved.pair[0]") + 1)
    page.mouse.move(box["x"] + 2000, box["y"] + 120)
    page.mouse.up()
    assert visited == list(range(10, 60, 7))
    assert page.evaluate("saved.pair") == [63, 9]


def test_a_finger_drags_the_step_and_scrolls_elsewhere(mount):
    page = drawn(mount(ScoreExplorer(pair=(31, 0))))
    middle = 48 + (page.locator("canvas").nth(2).bounding_box()["width"] - 56) / 2
    assert [drags(page, 2, x, 100) for x in (middle, middle + 60)] == [True, False]
    assert not any(drags(page, number, 100, 100) for number in (0, 1))


def test_one_token_is_one(mount):
    page = drawn(mount(ScoreExplorer(pair=(0, 0))))
    for text in (headline(page), words(page)):
        assert "fter 1 token" in text
        assert "1 tokens" not in text


def test_the_level_of_a_pair_is_the_lightness_of_its_cell(mount):
    """Read back from the canvas: darker for every level more, lighter in the dark."""
    page = mount(ScoreExplorer("4|4|4|4", length=16, pair=(15, 15)))
    read = """([x, y]) => {
      const canvas = document.querySelector("canvas"), scale = canvas.width / canvas.clientWidth;
      const [r, g, b] = canvas.getContext("2d").getImageData(x * scale, y * scale, 1, 1).data;
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    }"""
    cells = [(9, 1), (5, 3), (7, 4), (3, 3)]  # d = 1, 2, 3, 4, beside the numbers
    explorer = ScoreExplorer("4|4|4|4", length=16)
    assert [int(explorer.levels[pair]) for pair in cells] == [1, 2, 3, 4]
    for scheme, sign in [("light", -1), ("dark", 1)]:
        page.emulate_media(color_scheme=scheme)
        at = [place(drawn(page), 0, pair) for pair in cells]
        shades = [sign * page.evaluate(read, [point["x"] - 5, point["y"] - 5]) for point in at]
        assert all(after - before > 10 for before, after in pairwise(shades)), shades
