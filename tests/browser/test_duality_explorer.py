"""The duality explorer on a bare page: no kernel, no JupyterLab."""

import re

import pytest
import torch
from views import PICTURES, READ, change, drawn, headline, heard, words

from smalearn.course.widgets import DualityExplorer
from smalearn.ssd import ssd_chunked
from smalearn.testing import assert_close

TEXTS = [
    DualityExplorer().text,
    "to be or not to be that is the question",
    "a",
    "é é 日本語 🙂 \ud83d \ufeff x " + "w" * 90,
    " ".join("abcdefghijklmnop"),
]
SHOWN = "[...document.querySelectorAll('.numbers span:first-child')].map((value) => value.textContent)"


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_script_computes_the_chunked_algorithm_of_python(mount, text):
    explorer = DualityExplorer(text)
    states = [{"text": explorer.text, "chunk": chunk} for chunk in range(1, 17)]
    for state, found in zip(states, mount(explorer).evaluate(READ, states), strict=True):
        explorer.chunk = state["chunk"]
        X, log_a, B, C = explorer.sequences
        assert_close(tensor(found["inside"]), explorer.inside)
        assert_close(tensor(found["inside"]) + tensor(found["outside"]), explorer.reading)
        for start, H in zip(range(0, len(X), explorer.chunk), found["states"], strict=True):
            assert_close(tensor(H), ssd_chunked(X[:start], log_a[:start], B[:start], C[:start])[1])
        assert found["macs"] == pytest.approx(explorer.macs, rel=1e-14)
        assert [found["kept"], found["steps"]] == [explorer.kept, explorer.steps]
        assert found["apart"] < 1e-14


def test_numbers_below_are_those_of_python(mount):
    explorer = DualityExplorer()
    page = mount(explorer)
    for chunk in (15, 8, 5, 4, 3, 2, 1):
        explorer.chunk = chunk
        macs, kept, steps, apart = change(page, chunk=chunk).evaluate(SHOWN)
        assert macs == f"{explorer.macs + 1e-9:,.0f}"
        assert kept == f"{explorer.kept:,}{', growing' if chunk == 15 else ''}"
        assert steps == str(explorer.steps)
        assert apart == "0" if chunk == 15 else re.fullmatch("[1-9] · 10⁻¹[⁵⁶⁷]", apart)
        share = 100 * (1 - explorer.inside.sum() / explorer.reading.sum())
        name = {15: "attention", 1: "recurrence"}.get(chunk, "chunks")
        assert headline(page) == f"c = {chunk}, {name}: {share:.0f} % comes out of a state, every answer stays"


def test_the_slider_goes_from_attention_to_the_recurrence(mount):
    page = mount(DualityExplorer())
    slider = page.get_by_role("slider", name="c, chunk length")
    slider.focus()
    seen = []
    page.keyboard.press("Home")
    for _ in range(8):
        said = drawn(page).evaluate("document.activeElement.getAttribute('aria-valuetext')")
        seen.append((page.evaluate("saved.chunk"), said))
        page.keyboard.press("ArrowRight")
    between = [(chunk, f"{chunk}, chunks") for chunk in (8, 5, 4, 3, 2)]
    assert seen == [(15, "15, attention"), *between, *2 * [(1, "1, recurrence")]]
    change(page, chunk=7)
    assert slider.get_attribute("aria-valuetext") == "7, chunks"
    assert page.evaluate("model.get('chunk')") == 7  # though the slider has no such place


BARS = """() => {
  const canvas = document.querySelector("canvas"), { width, height } = canvas;
  const wide = Math.floor(0.48 * width); // right of the matrix
  const { data } = canvas.getContext("2d").getImageData(width - wide, 0, wide, height);
  const colour = (name) => {
    const hex = getComputedStyle(document.querySelector(".smalearn")).getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join();
  };
  const [blue, orange] = ["--first-strong", "--second-strong"].map(colour), counts = { blue: 0, orange: 0 };
  const ends = Array(height).fill(0);
  for (let y = 0, i = 0; y < height; y++) for (let x = 0; x < wide; x++, i += 4) {
    const own = data.slice(i, i + 3).join();
    if (own === blue) counts.blue++;
    if (own === orange) counts.orange++;
    if (own === blue || own === orange) ends[y] = x;
  }
  return { ...counts, ends };
}"""


def test_bars_change_their_colours_and_not_their_length(mount):
    page = drawn(mount(DualityExplorer(chunk=15)))
    seen = [page.evaluate(BARS)] + [change(page, chunk=chunk).evaluate(BARS) for chunk in (8, 5, 1)]
    for name, order in [
        ("blue", sorted(seen, key=lambda one: -one["blue"])),
        ("orange", sorted(seen, key=lambda one: one["orange"])),
    ]:
        assert order == seen, name
    assert seen[0]["orange"] == 0
    for one in seen[1:]:
        assert all(abs(end - first) < 5 for end, first in zip(one["ends"], seen[0]["ends"], strict=True))


def typed(page, text):
    page.get_by_role("textbox", name="Your words").fill(text)
    return drawn(page).evaluate("[model.get('text'), model.get('chunk')]")


def test_a_sentence_of_ones_own_is_read_as_it_is_written(mount):
    page = mount(DualityExplorer(chunk=4))
    assert typed(page, "  the cat\u00a0sees\x85the dog ") == ["the cat sees the dog", 4]
    explorer = DualityExplorer(page.evaluate("saved.text"))
    assert explorer.text == "the cat sees the dog"
    most = ["the", "cat", "sees", "dog"][explorer.reading[3].argmax()]
    heard(page, f"“the”, word 3, reads “{most}” most.")
    assert typed(page, "   ") == ["the cat sees the dog", 4]  # nothing to read: the last sentence stays
    page.get_by_role("textbox").blur()
    assert drawn(page).get_by_role("textbox").input_value() == "the cat sees the dog"
    many = [f"w{i}" for i in range(20)]
    assert typed(page, " ".join(many)) == [" ".join(many[:16]), 4]
    assert page.get_by_text("the first 16 of 20 words").is_visible()
    assert page.get_by_role("textbox").input_value() == " ".join(many)
    change(page, chunk=16)
    assert typed(page, "a b a") == ["a b a", 3]  # attention stays attention
    assert typed(page, "a b a b") == ["a b a b", 4]
    heard(page, "100 % comes from pairs")


def test_words_are_looked_at_by_pointing_and_chosen_by_a_click_or_keys(mount):
    page = mount(DualityExplorer())
    canvas = drawn(page).locator("canvas")
    box = canvas.bounding_box()
    row = lambda t: {"x": 120, "y": box["height"] - 4 - 27 * (15 - t) + 13}  # noqa: E731
    assert words(page).startswith("“than”, word 13, reads “implicit.” most. Of all that it reads, ")
    canvas.hover(position=row(8))
    heard(page, "“than”, word 8, reads “ugly.” most")
    page.get_by_role("button", name="Play").hover()
    heard(page, "“than”, word 13")
    canvas.click(position=row(6))
    page.get_by_role("button", name="Play").hover()
    heard(page, "“is”, word 6, reads “better” most")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    heard(page, "“better”, word 7, reads “than” most")
    for key, chunk in [("Right", 4), ("Right", 3), ("Left", 4)]:
        page.keyboard.press(f"Arrow{key}")
        assert page.evaluate("saved.chunk") == chunk
    change(page, text="a b")
    heard(page, "“b”, word 1")  # of fewer words the last


def test_a_change_is_seen_on_its_way_and_comes_to_rest(mount, page):
    page.emulate_media(reduced_motion="no-preference")
    page.add_init_script("(window.smalearnSeen = { has: () => true })")
    mount(DualityExplorer(chunk=15))
    first = drawn(page).evaluate(PICTURES)
    page.evaluate("model.set('chunk', 3)")
    between = drawn(page).evaluate(PICTURES)
    page.wait_for_timeout(2000)
    rest = page.evaluate(PICTURES)
    assert len({*first, *between, *rest}) == 3
    assert drawn(page).evaluate(PICTURES) == rest
    page.emulate_media(reduced_motion="reduce")
    assert change(page, chunk=15).evaluate(PICTURES) == first
    assert change(page, chunk=3).evaluate(PICTURES) == rest
