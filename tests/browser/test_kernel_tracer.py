"""The kernel tracer on a bare page: no kernel, no JupyterLab."""

import re

import numpy as np
import pytest
import torch
from views import WRITTEN, change, drawn, headline, heard, words

from smalearn.course.ch12.walk import walk
from smalearn.course.widgets import KernelTracer
from smalearn.course.widgets.kernel_designs import DESIGNS, operands, run
from smalearn.course.widgets.kernel_traces import LETTERS
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton

PICTURE = "document.querySelector('#first canvas').toDataURL()"


def table(page):
    rows = page.evaluate(
        "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return {row[0]: row[1:] for row in rows}


def row(totals):
    loaded, stored, macs = totals["loaded"], totals["stored"], totals["macs"]
    ratio = f"{macs / max(loaded + stored, 1):.2f}".rstrip("0").rstrip(".")
    return [f"{loaded:,}", f"{stored:,}", f"{macs:,}", ratio]


def test_table_has_the_totals_of_python(mount):
    explorer = KernelTracer(step=0)
    page = drawn(mount(explorer))
    for design in DESIGNS:
        for step in (0, 1, 19, 57, 112):
            explorer.set_trait("design", design)
            explorer.step = step
            found = table(change(page, design=design, step=step))
            assert found.pop("so far") == row(explorer.totals)
            assert found == {name: row(totals) for name, totals in explorer.costs.items()}
            assert page.locator("tr.mode th").all_inner_texts() == [design]


def test_strays_are_where_memory_is_touched(mount):
    """Every lane of a walk without masks, against the offsets that the tile machine recorded."""
    sizes = (33, 16, 5, 17, 2)
    page, made = drawn(mount(KernelTracer(*sizes, design="one walk without masks"))), operands(*sizes)
    events, _ = run(*DESIGNS["one walk without masks"], made, 16)
    counted = 0
    for step, event in enumerate(events, 1):
        page.evaluate("(step) => model.set('step', step)", step)
        found = page.evaluate("script.read(model).stray")
        if event.kind == "dot":
            assert found == []
            continue
        panels, rows, columns = made[event.operand][1]
        offsets = event.offsets.reshape(len(event.offsets), -1)
        (panel, row), column = divmod(int(offsets[0, 0]) // columns, rows), int(offsets[0, 0]) % columns
        lanes = [(row + i, column + j, int(offset)) for (i, j), offset in np.ndenumerate(offsets)]
        expected = [lane for lane in lanes if lane[0] >= rows or lane[1] >= columns]
        assert [(lane["r"], lane["c"]) for lane in found] == [lane[:2] for lane in expected]
        lands = [np.dot(lane["lands"], [rows * columns, columns, 1]) for lane in found]
        assert lands == [lane[2] for lane in expected]
        assert 0 <= panel < panels
        counted += len(found)
    assert counted > 1000


def test_masked_lanes_are_no_strays(mount):
    page = mount(KernelTracer(33, 16, 5, 17, 2))
    all_steps = "[...Array(90).keys()].flatMap((step) => (model.set('step', step), script.read(model).stray)).length"
    assert page.evaluate(all_steps) == 0


def test_description_says_who_touches_what(mount):
    page = drawn(mount(KernelTracer(step=0)))
    assert words(page) == "Nothing has happened yet: 112 steps of “one walk” follow."
    for new, text in [
        ({"step": 2}, "program (0, 0, 0) loads rows 0 to 15, columns 0 to 7 of B: 512 bytes. A mask switches off 128 "),
        (
            {"step": 5},
            "multiplies on the chip, C Bᵀ: (16 × 16) (16 × 16), 4,096 multiply-adds. On the chip: H, sums of",
        ),
        ({"step": 28}, "stores rows 0 to 7, columns 0 to 15 of last H [0]: 512 bytes."),
        ({"step": 57}, "Step 57 of 112: program (1, 0, 0) loads rows 0 to 15, column 0 of log a [0]: 64 bytes."),
        ({"design": "four steps", "step": 200}, "Step 200 of 256: launch 4 of 4, program (0, 0, 2) "),
        (
            {"design": "one walk without masks", "step": 28},
            "mask it overwrites 128 numbers of another row or head. On",
        ),
        ({"step": 56}, "it overwrites 128 numbers of whatever lies in memory after last H. "),
    ]:
        heard(change(page, **new), text)
    assert headline(page).startswith("Without masks it has read ")
    assert re.search(r"So far [\d.]+ multiply-adds for each byte\.$", words(page))


def test_controls_tell_python(mount):
    page = drawn(mount(KernelTracer(step=0)))
    slider = page.get_by_role("slider", name="Steps, done")
    for button, step in [("Forward", 1), ("Forward", 2), ("Back", 1), ("Back", 0), ("Back", 0)]:
        page.get_by_role("button", name=button).click()
        assert page.evaluate("saved.step") == step
        drawn(page)
    assert (
        page.evaluate("document.activeElement.getAttribute('aria-label')") == "Back"
    )  # keys would be the notebook's elsewhere
    for design, count in [("four steps", 256), ("one walk without masks", 112), ("one walk", 112)]:
        page.get_by_role("combobox", name="Design, of the run").select_option(design)
        assert page.evaluate("saved.design") == design
        drawn(page)
        slider.fill(str(count))
        page.get_by_role("button", name="Forward").click()
        assert page.evaluate("saved.step") == count
    change(page, design="four steps", step=256)
    page.get_by_role("combobox", name="Design, of the run").select_option("one walk")
    assert page.evaluate("[saved.design, saved.step]") == ["one walk", 112]
    assert change(page, step=40).get_by_role("slider").input_value() == "40"


def test_two_clicks_within_a_frame_are_two_steps(mount):
    page = drawn(mount(KernelTracer(step=3)))
    page.evaluate("{ const [, , on] = document.querySelectorAll('button'); on.click(); on.click(); }")
    assert page.evaluate("saved.step") == 5


@pytest.mark.parametrize("end", ["remove()", "Forward"])
def test_playing_ends_with_the_view_and_with_a_step(mount, end):
    page = drawn(mount(KernelTracer(step=10)))
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("model.get('step') === 11")
    if end == "Forward":
        page.get_by_role("button", name=end).click()
    else:
        page.evaluate(end)
    step = page.evaluate("model.get('step')")
    page.wait_for_timeout(800)
    assert page.evaluate("model.get('step')") == step
    assert page.evaluate("callbacks.length") == (0 if end == "remove()" else 4)


def pixels(page, colour):
    """How many pixels of the canvas have a colour of the palette."""
    return page.evaluate(
        """(name) => {
          const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d");
          const probe = document.createElement("canvas").getContext("2d");
          probe.fillStyle = getComputedStyle(document.querySelector(".smalearn")).getPropertyValue(`--${name}`);
          probe.fillRect(0, 0, 1, 1);
          const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
          const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let i = 0; i < data.length; i += 4) {
            count += data[i] === red && data[i + 1] === green && data[i + 2] === blue && data[i + 3] === 255;
          }
          return count;
        }""",
        colour,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_warning_colour_is_for_what_is_not_masked(mount, page, scheme):
    page.emulate_media(color_scheme=scheme)
    drawn(mount(KernelTracer(step=28)))
    assert pixels(page, "second-strong") == 0
    assert pixels(change(page, design="one walk without masks"), "second-strong") > 1000


def test_tiles_meet_in_the_units(mount, page):
    page.add_init_script(WRITTEN)
    drawn(mount(KernelTracer(step=5)))
    assert "Units: C Bᵀ, 4,096 multiply-adds" in page.evaluate("texts")
    page.evaluate("texts.length = 0")
    assert "Units: idle" in change(page, step=4).evaluate("texts")
    products = "script.read(model).steps.filter(({ kind }) => kind === 2).slice(0, 4)"
    found = page.evaluate(f"{products}.map((step) => script.factors(script.read(model), step))")
    names = [["C", "Bᵀ"], ["C", "H"], ["M", "X"], ["Bᵀ", "f X"]]
    assert found == [[[left, 16, 16], [right, 16, 16], ["product", 16, 16]] for left, right in names]
    chip = [["H", 16, 16], ["sums of log a", 16, 2], ["B", 16, 16], ["X", 16, 16], ["added H", 16, 16]]
    for name, slot in [("Bᵀ", 2), ("f X", 3), ("last H", 0), ("added H", 4), ("log a", 1), ("Y", -1)]:
        assert page.evaluate("(parts) => script.slotOf(...parts)", [chip, name]) == slot


FRAMES = """window.frames = [];
const stroke = CanvasRenderingContext2D.prototype.strokeRect;
CanvasRenderingContext2D.prototype.strokeRect = function (...box) {
  if (this.lineWidth === 2.5) frames.push(box.slice(2));
  return stroke.apply(this, box);
};"""


@pytest.mark.parametrize(("step", "boxes"), [(0, []), (5, [[40, 40], [40, 40]])])
def test_a_product_frames_its_tiles_on_the_chip(mount, page, step, boxes):
    page.add_init_script(FRAMES)
    assert drawn(mount(KernelTracer(step=step))).evaluate("frames.slice(-2)") == boxes


def walked_events(sizes, design):
    made = operands(*sizes)
    return run(*DESIGNS[design], made, sizes[1])[0], made


@pytest.mark.parametrize("design", ["one walk", "one walk without masks"])
def test_accesses_of_a_cell_are_those_that_were_recorded(mount, design):
    """Also where a tile without a mask lands in other rows."""
    sizes = (17, 16, 2, 1, 1)
    events, made = walked_events(sizes, design)
    page = mount(KernelTracer(*sizes, design=design))
    names = page.evaluate("script.read(model).operands.map(({ name }) => name)")
    found = page.evaluate(
        """() => {
          const one = script.read(model);
          return one.operands.map(({ rows, columns }, what) => Array.from({ length: rows * columns }, (_, i) => {
            const [row, column] = [Math.floor(i / columns), i % columns];
            return script.accesses(one, { what, panel: 0, row, column });
          }));
        }"""
    )
    for name, cells in zip(names, found, strict=True):
        operand = next(key for key in made if LETTERS.get(key, key) == name)
        touched = [(step, event.offsets) for step, event in enumerate(events, 1) if event.operand == operand]
        for place, steps in enumerate(cells):
            assert steps == [step for step, offsets in touched if (offsets == place).any()], (name, place)


def test_the_bar_of_bytes_is_dragged(mount):
    explorer = KernelTracer(step=3)
    page = drawn(mount(explorer))
    box = page.locator("canvas").bounding_box()
    moved = np.cumsum([0, *(step[11] for step in explorer._traces[0]["steps"])])
    long = box["width"] - 32
    page.mouse.move(box["x"] + 16, box["y"] + 23)
    page.mouse.down()
    for share in (0.1, 0.35, 0.8, 1.2, -0.2):
        page.mouse.move(box["x"] + 16 + share * long, box["y"] + 160)  # over a tensor, and past the ends
        bytes = min(max(share, 0), 1) * moved[-1]
        assert page.evaluate("saved.step") == int((moved <= bytes + 1e-6).sum()) - 1
    page.mouse.up()
    cursor = "document.querySelector('canvas').style.cursor"
    for x, y, look in [(60, 23, "ew-resize"), (15, 150, "pointer"), (60, 60, "default")]:
        page.mouse.move(box["x"] + x, box["y"] + y)
        assert page.evaluate(cursor) == look


def test_a_cell_is_looked_at_by_pointing_and_a_click_goes_to_its_first_access(mount, page):
    page.add_init_script(WRITTEN)
    drawn(mount(KernelTracer(step=112)))
    canvas = page.locator("canvas")
    before = page.evaluate(PICTURE)
    canvas.hover(position={"x": 15, "y": 115})
    said = [text for text in drawn(page).evaluate("texts") if "×, written" in text]
    assert said[-1] == "row 10, column 0 of log a [0]: read 2 ×, written 0 ×"
    assert page.evaluate(PICTURE) != before
    assert not page.evaluate("'saved' in window")
    page.get_by_role("button", name="Save").hover()
    assert drawn(page).evaluate(PICTURE) == before
    canvas.click(position={"x": 15, "y": 115})
    assert page.evaluate("saved.step") == 1
    canvas.click(position={"x": 200, "y": 60})  # on none
    assert page.evaluate("saved.step") == 1


def test_nothing_is_drawn_beyond_the_canvas(mount):
    """The tallest chip and the last line of tensors leave the last pixel row empty."""
    for new in [{}, {"length": 64, "chunk_len": 64, "state": 32, "heads": 4, "design": "four steps"}]:
        page = mount(KernelTracer(**new))
        page.set_viewport_size({"width": 360, "height": 700})
        drawn(page)
        edges = """() => {
          const canvas = document.querySelector("canvas"), { width, height } = canvas;
          const pen = canvas.getContext("2d");
          const parts = [pen.getImageData(0, height - 1, width, 1), pen.getImageData(width - 1, 0, 1, height)];
          return parts.some(({ data }) => data.some(Boolean));
        }"""
        for step in range(0, 90, 6):
            assert change(page, step=step).evaluate(edges) is False


def race(run=walk, step=0):
    X, B, C, H = torch.ones(40, 16), torch.ones(40, 16), torch.ones(40, 16), torch.zeros(16, 16)
    return KernelTracer.race(run, (X, -torch.ones(40), B, C, H, 16), step=step)


def test_the_space_bar_plays_and_stops(mount):
    page = drawn(mount(race()))
    page.locator("canvas").focus()
    page.keyboard.press("Space")
    page.wait_for_function("model.get('step') >= 2")
    page.keyboard.press("Space")
    assert drawn(page).get_by_role("button", name="Play").count() == 1


def test_two_programs_race(mount):
    explorer = race(step=12)
    page = drawn(mount(explorer))
    lanes = page.evaluate("script.read(model).lanes.map(({ name, now }) => [name, now])")
    assert lanes == [["your walk", 12], ["four steps", 12]]
    assert headline(page) == "“your walk” has 17 steps to go, “four steps” has 52 steps to go"
    assert headline(change(page, step=40)) == "“your walk” is done, “four steps” has 24 steps to go"
    explorer.step = 12
    assert list(table(change(page, step=12))) == list(explorer.costs)
    assert table(page)["your walk"] == row(explorer.totals)
    assert page.get_by_role("combobox").count() == 0  # a race has no choice of designs
    page.get_by_role("slider", name="Steps, done").press("End")
    assert page.evaluate("saved.step") == max(len(trace["steps"]) for trace in explorer._traces)
    assert (
        headline(drawn(page)) == "“your walk” moved 12.4 thousand bytes, “four steps” 37 thousand, 2.97 times as many"
    )
    assert table(page) == {name: row(totals) for name, totals in explorer.costs.items()}


def test_tensors_fill_the_width(mount):
    page = mount(KernelTracer(40, 16, 16, 16, 1))
    ends = """(width) => script.layOutAll(script.read(model), width).places.map(({ span, cell, panels, places }) => {
      const ends = places.map(([x], k) => x + script.cellOf(panels[k].operand, cell)[0] * panels[k].operand.width);
      return (Math.max(...ends) - span[0]) / span[1];
    })"""
    assert min(drawn(page).evaluate(ends, page.locator("canvas").bounding_box()["width"])) > 0.8


@pytest.mark.parametrize("width", [380, 1000])
def test_a_race_fits_the_window(mount, width):
    page = mount(race(step=20))
    page.set_viewport_size({"width": width, "height": 900})
    assert drawn(page).evaluate("document.documentElement.scrollWidth") <= width
    if width == 1000:
        assert page.locator(".smalearn").bounding_box()["height"] <= 900


def test_where_a_program_fails_is_said(mount):
    def careless(X, log2_a, B, C, initial, chunk_len):
        return walk(X[:32], log2_a, B, C, initial, chunk_len), reading(X)

    page = drawn(mount(race(careless)))
    change(page, step=len(race(careless)._traces[0]["steps"]))
    assert headline(page).startswith("“your walk” fails, “four steps” has ")
    heard(page, "Here it ends: over, program (0, 0, 0): load of x at offset 640, expected 0 to 639")


@triton.jit
def over(x, rows: tl.constexpr):
    tl.load(x + (tl.arange(0, rows) + 32)[:, None] * 16 + tl.arange(0, 16)[None, :])


def reading(X):
    over[(1,)](X, rows=16)
