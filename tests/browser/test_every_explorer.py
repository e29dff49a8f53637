"""What every explorer does alike. By default: it shows itself without a complaint and answers a touch of a control.

What each of them draws, says and hears is tested in a file of its own, with `--full`.
"""

import json
import re
from pathlib import Path

import ipywidgets
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from views import CHANGE, PICTURES, SHOWN, WRITTEN, drawn, headline

from smalearn.course import widgets
from smalearn.fast import tile as tl


@pytest.mark.parametrize("name", widgets.__all__)
def test_it_shows_itself_and_answers_a_touch(mount, name):
    page = drawn(mount(getattr(widgets, name)()))
    shown = page.locator("#first").inner_html()
    assert page.locator("#first canvas, #first svg").count()
    for control in page.locator("#first").locator("input, select, button").all():
        if control.is_visible() and control.is_enabled():
            control.evaluate(CHANGE)
            if drawn(page).locator("#first").inner_html() != shown and page.evaluate("'saved' in window"):
                return
    pytest.fail("no control changed what is shown and what Python knows")


HEARD = """(part) => {
  const heard = [];
  const hear = ({ target }) => heard.push(!target.hasAttribute("data-lm-suppress-shortcuts"))
  document.addEventListener("keydown", hear, { capture: true });
  for (const pressed of [{}, { ctrlKey: true }, { metaKey: true }, { shiftKey: true }]) {
    part.dispatchEvent(new KeyboardEvent("keydown", { key: "s", bubbles: true, ...pressed }));
  }
  document.removeEventListener("keydown", hear, { capture: true });
  return heard;
}"""


@pytest.mark.parametrize("name", widgets.__all__)
def test_plain_keys_are_not_those_of_the_notebook_but_shortcuts_are(mount, name):
    controls = mount(getattr(widgets, name)()).locator("input, select, button, canvas, summary")
    assert controls.count() > 3
    for part in controls.all():
        assert part.evaluate(HEARD) == [False, True, True, False]


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_sentence_a_read_out_and_what_to_do_stand_above(mount, name):
    page = drawn(mount(getattr(widgets, name)()))
    head = page.locator("#first .head p")
    title, headline, hint = head.all_inner_texts()
    assert min(len(title), len(headline), len(hint)) > 15
    assert page.get_by_role("figure", name=title, exact=True).count() == 1
    assert [size.evaluate("(line) => parseFloat(getComputedStyle(line).fontSize)") for size in head.all()] == [
        16,
        20,
        14,
    ]


TOUCHED = """(shares) => [...document.querySelectorAll("#first canvas[tabindex]")].map((canvas) => {
  if (!canvas.clientWidth) return [0, 0];
  const { left, top, width, height } = canvas.getBoundingClientRect();
  for (const [x, y] of shares) {
    const place = { clientX: left + x * width, clientY: top + y * height, bubbles: true };
    for (const event of ["pointermove", "click"]) {
      canvas.dispatchEvent(new PointerEvent(event, { ...place, pointerType: "mouse" }));
    }
  }
  return [width, height];
})"""
SHARES = [[0.105, 0.3], [0.415, 0.43], [0.23, 0.72], [0.334, 0.61]]


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_page_of_larger_text_is_the_same_page_enlarged(mount, page, name):
    """Text, canvas text as well, is as large as the reader asks for, and a pointer still finds what it points at."""
    page.add_init_script(WRITTEN)
    seen = []
    for zoom in (1, 1.5):
        page.set_viewport_size({"width": int(1000 * zoom), "height": int(800 * zoom)})
        drawn(mount(getattr(widgets, name)()))
        page.evaluate("(zoom) => (document.documentElement.style.fontSize = `${100 * zoom}%`)", zoom)
        page.evaluate("sizes.length = 0")
        boxes = drawn(page).evaluate(TOUCHED, SHARES)
        state = {trait: page.evaluate(f"model.get('{trait}')") for trait in getattr(widgets, name)().chosen()}
        lengths = [*np.ravel(boxes), page.evaluate(SMALLEST), drawn(page).evaluate("Math.min(...sizes)")]
        seen.append((re.findall(r"\d+\.?\d*", json.dumps(state)), np.array(lengths) / zoom))
    (numbers, lengths), (same, larger) = seen
    np.testing.assert_allclose(larger, lengths, atol=1)
    np.testing.assert_allclose(np.array(same, float), np.array(numbers, float), atol=0.02)  # half a pixel of a bar
    page.set_viewport_size({"width": 390, "height": 800})
    assert drawn(page).evaluate("document.documentElement.scrollWidth") <= 390


SLIDE = """(slider, share) => {
  slider.value = Math.round(+slider.min + share * (slider.max - slider.min));
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""
HEAD = "document.querySelector('#first .headline').getBoundingClientRect().height"


@pytest.mark.parametrize("width", [390, 700, 1000])
@pytest.mark.parametrize("name", widgets.__all__)
def test_the_headline_is_as_high_whatever_it_says_and_its_numbers_are_short(mount, page, name, width):
    page.set_viewport_size({"width": width, "height": 800})
    heights = {drawn(mount(getattr(widgets, name)())).evaluate(HEAD)}
    found = []
    for slider in page.locator("#first input[type=range]:visible:enabled").all():
        for share in (0, 0.3, 0.6, 1):
            slider.evaluate(SLIDE, share)
            heights.add(drawn(page).evaluate(HEAD))
            found += re.findall(r"(?<!= )\b[\d,]+", headline(page))  # what is "=" is chosen, not found
    assert len(heights) == 1
    assert not [number for number in found if len(number) > 5]


@pytest.mark.parametrize("name", widgets.__all__)
def test_steps_are_played_to_the_end_and_a_touch_ends_it(mount, name):
    page = drawn(mount(getattr(widgets, name)()))
    page.evaluate("window.setInterval = (step) => ((window.step = step), 1); window.clearInterval = () => {}; null")
    play, seen = page.locator("#first .play"), set()
    play.click()
    drawn(page)
    assert play.inner_text() == "❚❚ Pause"
    for _ in range(200):
        seen.add(drawn(page).locator("#first").inner_html())
        if play.inner_text() != "❚❚ Pause":
            break
        page.evaluate("step()")
    assert play.inner_text().startswith("▶ Play")
    assert len(seen) > 3
    assert page.evaluate("'saved' in window")
    play.click()
    page.locator("#first .title").click()
    assert drawn(page).locator("#first .play").inner_text().startswith("▶ Play")


GIVEN = [
    *((name, {}) for name in widgets.__all__),
    ("DualityExplorer", {"text": "a b 'a' \"b\" \\n \ud83d é", "chunk": 1}),
    ("FeatureExplorer", {"text": "a b 'a' \"b\" a", "map": "Fourier", "norm": 2}),
    ("KernelTracer", {"length": 33, "chunk_len": 32, "state": 3, "head_dim": 17, "heads": 3, "design": "four steps"}),
    ("MaskExplorer", {"text": "to be or not to be", "seed": 3, "scores": "random"}),
    ("ScoreExplorer", {"text": "to be or not to be", "ranks": "2|1"}),
    ("StateExplorer", {"text": "Ann:tea Ben:milk Ann:cocoa", "beta": 0.5}),
    ("StateExplorer", {"text": "a b a", "keys": [[1, 0.1], [0, -1e-9], [1, 0.1]], "gates": 0.9}),
    ("StateExplorer", {"text": "a b a", "values": [[1 / 3], [2], [-3]]}),
]
UNSAID = {"_esm", "_css", "_anywidget_id", *ipywidgets.DOMWidget.class_traits()}


@pytest.mark.parametrize(("name", "state"), GIVEN, ids=str)
def test_the_call_that_is_copied_makes_the_same_explorer(mount, name, state):
    explorer = getattr(widgets, name)
    page = mount(explorer(**state))
    page.locator("#first").locator("input[type=range], select").first.evaluate(CHANGE)
    page.evaluate("Object.assign(navigator.clipboard, { writeText: async (text) => (window.copied = text) }); null")
    page.get_by_role("button", name="Copy code").click()
    page.wait_for_function("window.copied")
    made = eval(page.evaluate("copied"), {name: explorer}).get_state()
    for trait in made.keys() - UNSAID:
        assert json.loads(json.dumps(made[trait])) == page.evaluate(f"model.get('{trait}')"), trait


def recording():
    """A tracer of what was recorded elsewhere, which no call makes."""
    with tl.recording() as events:
        tl.launch(lambda x: tl.load(x + tl.arange(0, 4)), (2,), np.zeros((2, 4)))
    return widgets.KernelTracer.of(events, {"x": (2, 4)})


def test_where_no_call_makes_the_explorer_there_is_none_to_copy(mount):
    page = mount(recording())
    page.evaluate("document.getElementById('second').dataset.explorer = 'X'; show('second'); null")
    for place, buttons in [("#first", ["Save picture"]), ("#second", ["Copy link", "Save picture"])]:
        assert page.locator(f"{place} .tools button").all_inner_texts() == buttons


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_link_restores_the_state_and_a_broken_one_does_no_harm(mount, name):
    page = mount(getattr(widgets, name)())
    traits = list(getattr(widgets, name)().chosen())
    show = "document.getElementById('second').dataset.explorer = 'X'; show('second'); null"
    page.evaluate("Object.assign(navigator.clipboard, { writeText: async (text) => (window.copied = text) }); null")
    before = page.evaluate("(names) => names.map((name) => model.get(name))", traits)
    page.evaluate(show)
    page.locator("#second").locator("input[type=range], select").first.evaluate(CHANGE)
    linked = page.evaluate("(names) => names.map((name) => model.get(name))", traits)
    assert linked != before
    page.locator("#second").get_by_role("button", name="Copy link").click()
    page.wait_for_function("window.copied")
    for end, expected in [("", linked), ("&" + traits[0] + "=[cut", before)]:
        page.evaluate("document.getElementById('second').replaceChildren()")
        page.evaluate("(pairs) => pairs.forEach((pair) => model.set(...pair))", list(zip(traits, before, strict=True)))
        start = page.evaluate("copied").split("#")[1]
        page.evaluate("(hash) => (location.hash = hash)", start if not end else f"explorer=0{end}")
        page.evaluate(show)
        assert page.evaluate("(names) => names.map((name) => model.get(name))", traits) == expected


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_picture_of_the_state_is_saved_under_its_title(mount, page, name):
    page.add_init_script(WRITTEN)
    drawn(mount(getattr(widgets, name)())).evaluate("texts.length = 0")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save picture").click()
    assert download.value.suggested_filename == f"{name}.png"
    data = Path(download.value.path()).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 5000
    head = [page.locator(f"#first .{line}").text_content() for line in ("title", "headline")]
    assert [text for text in page.evaluate("texts") if text in head] == head


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize(
    "name", ["BlockExplorer", "ChunkExplorer", "DualityExplorer", "FeatureExplorer", "KernelTracer", "ScoreExplorer"]
)
def test_it_moves_once_by_itself_until_a_touch_and_python_does_not_hear_of_it(mount, page, name, touched):
    page.emulate_media(reduced_motion="no-preference")
    traits = list(getattr(widgets, name)().chosen())
    look = "(names) => JSON.stringify(names.map((name) => model.get(name)))"
    page.set_viewport_size({"width": 1000, "height": 1100})
    mount(getattr(widgets, name)())
    before = page.evaluate(
        "async (names) => { const r = await (await fetch('state.json')).json(); "
        "return JSON.stringify(names.map((name) => r[name])); }",
        traits,
    )
    page.wait_for_function(f"(args) => ({look})(args[0]) !== args[1]", arg=[traits, before])
    if touched:
        page.locator("#first .title").click()
        assert page.evaluate(look, traits) == before
    page.wait_for_function(f"(args) => ({look})(args[0]) === args[1]", arg=[traits, before])
    assert not page.evaluate("'saved' in window")
    page.wait_for_timeout(400)
    assert page.evaluate(look, traits) == before


@pytest.mark.parametrize("name", widgets.__all__)
@pytest.mark.parametrize("width", [832, 1000])  # a page of the site beside its contents; JupyterLab
def test_it_fits_a_laptop(mount, name, width):
    page = mount(getattr(widgets, name)())
    page.set_viewport_size({"width": width, "height": 900})
    assert drawn(page).locator("#first .smalearn").bounding_box()["height"] < 900


@pytest.mark.parametrize("name", widgets.__all__)
def test_two_views_show_one_state_and_leave_nothing_behind(mount, name):
    explorer = getattr(widgets, name)
    traits = [f"change:{trait}" for trait in explorer.class_own_traits(sync=True) if not trait.startswith("_")]
    page = mount(explorer())
    listeners = page.evaluate("callbacks.map((entry) => entry[0])")
    assert set(listeners) == set(traits)
    page.evaluate("window.removeSecond = show('second'); null")
    assert page.evaluate("callbacks.length") == 2 * len(listeners)
    page.locator("#second").locator("input[type=range], select").first.evaluate(CHANGE)
    drawn(page).wait_for_timeout(500)  # until both have said it
    first, second = (page.locator(place).inner_html() for place in ("#first", "#second"))
    assert first == second
    pictures = page.evaluate(PICTURES.replace("#first ", ""))
    half = len(pictures) // 2
    assert pictures[:half] == pictures[half:]
    page.evaluate("remove()")
    assert page.locator("#first > *").count() == 0
    assert page.evaluate("callbacks.length") == len(listeners)
    page.evaluate("removeSecond()")
    page.evaluate("window.frames = 0; window.requestAnimationFrame = () => (window.frames += 1); null")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 500, "height": 500})
    page.evaluate("document.body.className = 'vscode-dark'")
    assert page.evaluate("[callbacks.length, document.querySelectorAll('canvas, svg').length, frames]") == [0, 0, 0]


@pytest.mark.parametrize("name", widgets.__all__)
def test_pictures_take_the_colours_of_a_dark_page(mount, name):
    page = mount(getattr(widgets, name)())
    light = drawn(page).evaluate(SHOWN)
    page.emulate_media(color_scheme="dark")
    pairs = list(zip(light, drawn(page).evaluate(SHOWN), strict=True))
    assert pairs
    assert all(one != other for one, other in pairs)


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_drag_is_drawn_once_a_frame(mount, name):
    """However many changes come between two frames."""
    frames = drawn(mount(getattr(widgets, name)())).evaluate(
        """() => {
          let frames = 0;
          window.requestAnimationFrame = () => ++frames;
          for (let change = 0; change < 20; change++) callbacks.forEach(([_, told]) => told());
          return frames;
        }"""
    )
    assert frames == 1


@pytest.mark.parametrize("name", widgets.__all__)
def test_text_on_a_picture_is_at_least_nine_points(mount, page, name):
    page.add_init_script(WRITTEN)
    assert min(drawn(mount(getattr(widgets, name)())).evaluate("sizes")) >= 12  # pixels


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", widgets.__all__)
def test_nothing_stands_in_the_way_of_a_screen_reader(mount, name, scheme):
    page = mount(getattr(widgets, name)())
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(drawn(page), options={"resultTypes": ["violations"], "preload": False}).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert not [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in serious]


SIGNED = {"keys": [[(-1) ** (s + n) / (n + 1) for n in range(8)] for s in range(12)], "text": "a b c d e f g h i j k l"}
LONG = {"text": "a b c d incomprehensibilities f g h i j k l m n o p", "norm": 4, "features": 4}
LARGE = {"length": 2**17, "chunk_len": 2**17, "state": 512, "head_dim": 512}
HARD = [
    *((name, {}) for name in widgets.__all__),
    ("BlockExplorer", {"length": 32, "kind": "softmax"}),
    ("BlockExplorer", {"length": 1}),
    ("ChunkExplorer", LARGE),
    ("ChunkExplorer", {"length": 1, "state": 1}),
    ("ContractionMap", {"source": 100, "head_dim": 1}),
    ("DualityExplorer", {"text": "a", "chunk": 1}),
    ("DualityExplorer", {"text": "incomprehensibilities " * 16, "chunk": 1}),
    ("FeatureExplorer", LONG | {"map": "Fourier"}),
    ("FeatureExplorer", {"text": "a b", "map": "1 + elu"}),
    ("KernelTracer", {"length": 64, "state": 32, "head_dim": 32, "heads": 4, "design": "four steps"}),
    ("KernelTracer", {"length": 1, "heads": 1}),
    *(("MaskExplorer", {"family": family, "scale": "log", "scores": "random"}) for family in ("Toeplitz", "Fourier")),
    ("MaskExplorer", {"text": "a a"}),
    ("ScoreExplorer", {"ranks": "6|2|2|2|2|2", "leaf": 1}),
    ("ScoreExplorer", {"length": 1, "ranks": "0|1"}),
    ("ScoreExplorer", {"ranks": "16", "text": "w" * 60}),
    ("StateExplorer", SIGNED | {"values": SIGNED["keys"], "gates": 0.9}),
    ("StateExplorer", {"text": "a"}),
    ("WeightExplorer", {"family": "block tensor train", "dim": 32, "blocks": 32, "rank": 4}),
]
SMALLEST = """Math.min(...[...document.querySelectorAll(".smalearn *")].filter((e) => e.textContent.trim())
  .map((e) => parseFloat(getComputedStyle(e).fontSize)))"""


@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize(("name", "state"), HARD, ids=str)
def test_page_is_readable_at_every_width(mount, name, state, width):
    page = mount(getattr(widgets, name)(**state))
    page.set_viewport_size({"width": width, "height": 700})
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    assert drawn(page).evaluate("document.documentElement.scrollWidth") <= width
    shown = [canvas for canvas in page.locator("canvas[tabindex]").all() if canvas.is_visible()]
    assert shown
    for canvas in shown:
        box = canvas.bounding_box()
        assert box["width"] > (0.9 if width == 360 else 0.4) * width
        assert box["height"] > 30
    for table in page.locator(".scroll").all():
        assert table.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert page.evaluate(SMALLEST) >= 12
    assert not re.search("NaN|undefined|Infinity", page.locator(".smalearn").inner_text())
