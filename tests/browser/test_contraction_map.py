"""The contraction map on a bare page: no kernel, no JupyterLab."""

import random
from itertools import pairwise, product

import pytest
from views import change, drags, drawn, headline, words

from smalearn.course.widgets import ContractionMap
from smalearn.course.widgets.contraction_map import formulas
from smalearn.sma import LINEAR, QUADRATIC, sma_orders

TRAITS = ["target", "source", "features", "head_dim", "scan"]
PICTURE = "document.querySelector('#first canvas').toDataURL()"
FILLS = ["first", "second", "other-0", "other-1", "other-2", "other-3"]
PROBE = """(places) => {
  const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
  const ratio = canvas.width / canvas.clientWidth, pen = canvas.getContext("2d");
  const pixels = places.map(([x, y]) => [...pen.getImageData(x * ratio, y * ratio, 1, 1).data.slice(0, 3)]);
  return places.map(([x, y], i) => {
    canvas.dispatchEvent(new MouseEvent("click", { clientX: box.left + x, clientY: box.top + y }));
    return [model.get("target"), model.get("features"), pixels[i]];
  });
}"""
COLOUR = """(name) => {
  const text = getComputedStyle(document.querySelector(".smalearn")).getPropertyValue(`--${name}`).trim();
  return [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
}"""
ROWS = """() => [...document.querySelectorAll("#first tbody tr")].map(
  (row) => [...row.cells].map((cell) => cell.firstChild.textContent))"""


def dense(**state):
    """A map whose mask is a dense matrix, unless the state says otherwise."""
    return ContractionMap(**{"scan": False} | state)


def state(page, *names):
    return [page.evaluate("(name) => model.get(name)", name) for name in names]


def orders(page):
    target, source, features, head_dim, scan = state(page, *TRAITS)
    return sma_orders(target, target if source is None else source, features, head_dim, scan=scan)


def sizes(count):
    chance = random.Random(1)
    corners = [(1, 1, 1, 1), (65536, 65536, 512, 512), (1, 65536, 1, 512), (65536, 1, 512, 1), (48, 48, 16, 64)]
    return corners + [tuple(round(2 ** chance.uniform(0, top)) for top in (16, 16, 9, 9)) for _ in range(count)]


@pytest.mark.parametrize("scan", [False, True])
def test_script_computes_the_costs_of_python(mount, scan):
    page, cases = mount(dense()), sizes(200)
    found = page.evaluate(
        """([cases, kind]) => cases.map(([T, S, N, P]) =>
          script.costs(model.get("_orders"), { T, S, N, P }, kind).map((o) => [o.name, o.macs, o.peakElements]))""",
        [cases, "scan" if scan else "dense"],
    )
    for case, rows in zip(cases, found, strict=True):
        assert rows == [[order.name, order.macs, order.peak_elements] for order in sma_orders(*case, scan=scan)]


def fills_near(T, N, new):
    """The fills of the cheapest orders at sizes that a click may round to T and N; the modes first among equals."""
    names = [entry["name"] for entry in formulas()]
    fills = set()
    for t, n in product({max(1, 17 * T // 20), T, 1 + 6 * T // 5}, {max(1, 17 * N // 20), N, 1 + 6 * N // 5}):
        table = sma_orders(t, new.get("source", t), n, new.get("head_dim", 64), scan=new.get("scan", False))
        best = min(names.index(order.name) for order in table if order.macs == table[0].macs)
        fills.add(["first", "second"][best] if best < 2 else f"other-{best % 4}")
    return fills


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({}, ["first"]),
        ({"scan": True}, ["first", "second"]),
        ({"source": 100, "head_dim": 1}, ["first", "other-0", "other-2", "second"]),
    ],
    ids=str,
)
def test_every_place_of_the_map_has_the_colour_of_its_cheapest_order(mount, new, expected):
    """A click sets T and N: the colour of the place must be that of the order that is cheapest there."""
    page = mount(dense(**new | {"target": 1, "features": 1}))  # the point is out of the way
    colours = {tuple(page.evaluate(COLOUR, fill)): fill for fill in FILLS}
    box = drawn(page).locator("canvas").bounding_box()
    places = list(product(range(60, int(box["width"]) - 20, 17), range(12, int(box["height"]) - 45, 13)))
    found = []
    for T, N, pixel in page.evaluate(PROBE, places):
        near = fills_near(T, N, new)
        if tuple(pixel) in colours and len(near) == 1:  # else there is text, a line or a border
            assert {colours[tuple(pixel)]} == near, (T, N)
            found += near
    assert len(found) > len(places) / 2
    assert sorted(set(found)) == expected


@pytest.mark.parametrize(
    "new", [{}, {"scan": True}, {"target": 7, "source": 12, "features": 1}, {"target": 999}], ids=str
)
def test_table_is_that_of_python(mount, new):
    page = mount(dense())
    table = orders(change(page, **new))
    rows = [[order.name, f"{order.macs:,}", f"{order.peak_elements:,}"] for order in table]
    short = [row for rank, row in enumerate(rows) if rank < 6 or row[0] in (QUADRATIC, LINEAR)]
    assert [[row[0], row[1], row[3]] for row in page.evaluate(ROWS)] == short
    page.get_by_role("button", name="Show all 15 orders").click()
    full = drawn(page).evaluate(ROWS)
    assert [[row[0], row[1], row[3]] for row in full] == rows
    for row, order in zip(full, table, strict=True):
        assert float(row[2].replace(",", "")) == pytest.approx(order.macs / table[0].macs, rel=5e-3)
    page.get_by_role("button", name="Show the cheapest alone").click()
    assert len(drawn(page).evaluate(ROWS)) == len(short)


def test_source_follows_the_target_until_it_is_set_free(mount):
    page = mount(dense(target=40))
    source = page.get_by_role("slider", name="S, source length")
    assert source.is_disabled()
    assert source.get_attribute("aria-valuetext") == "40"
    page.get_by_role("checkbox", name="S = T").uncheck()
    assert drawn(page).evaluate("saved.source") == 40
    source.focus()
    page.keyboard.press("ArrowLeft")
    assert state(page, "source", "target") == [32, 40]
    page.get_by_role("checkbox", name="S = T").check()
    assert page.evaluate("saved.source") is None
    assert drawn(page).get_by_role("slider", name="S, source length").is_disabled()


def test_a_running_sum_is_ticked(mount):
    page = mount(ContractionMap(scan=True))
    page.get_by_role("checkbox", name="multiply by L with a running sum").uncheck()
    assert page.evaluate("saved.scan") is False


def test_description_says_what_is_seen(mount):
    page = mount(dense())
    assert words(page).startswith(
        "At T = 1,024, S = 1,024, N = 64, P = 64, with L as a dense matrix, quadratic (13) is cheapest: "
        "135,266,304 MACs; linear (15) takes 31.8 times as many. Of the two, quadratic (13) is "
        "the cheaper one at every T."
    )
    assert headline(page) == "Quadratic (13) takes 31.8 times fewer multiply-adds than linear (15)"
    before = words(page)
    change(page, scan=True)
    assert words(page) == before  # no word until the state rests
    page.wait_for_function("!document.querySelector('[aria-live]').textContent.includes('dense')")
    assert "linear (15) is cheapest" in words(page)


@pytest.mark.parametrize(("N", "P"), [(64, 64), (5, 9), (512, 512), (9, 9), (2, 100)])
def test_description_says_where_the_modes_change_places(mount, N, P):
    page = mount(dense(features=N, head_dim=P, scan=True))
    tables = {T: sma_orders(T, T, N, P, scan=True) for T in range(1, 999)}
    turn = next(T for T, table in tables.items() if table.named(LINEAR).macs < table.named(QUADRATIC).macs)
    assert f"linear (15) is the cheaper one from T = {turn} on. On the map, at P = {P}, linear (15) wins" in words(page)


def test_description_names_orders_of_equal_cost(mount):
    page = mount(dense(head_dim=1, target=4))
    assert "quadratic (13) is cheapest, together with ((QK)V)L, (QK)(VL): 1,056 MACs" in words(page)


def test_point_is_where_it_was_put(mount):
    page = mount(dense(scan=True))
    fills = [page.evaluate(COLOUR, fill) for fill in FILLS]
    for x, y in [(70, 30), (150, 200), (230, 120), (310, 250), (400, 60)]:
        page.locator("canvas").click(position={"x": x, "y": y})
        (_, _, pixel), *_ = drawn(page).evaluate(PROBE, [(x, y)])
        assert pixel not in fills


SPY = """() => {
  const pen = CanvasRenderingContext2D.prototype, { fillText, moveTo, lineTo, arc } = pen;
  Object.assign(window, { texts: [], lines: [], points: [] });
  const thick = (pen, ...place) => pen.lineWidth === 3 && !place.some(isNaN) && lines.push(place);
  pen.fillText = function (text, x, y) {
    texts.push([String(text), x, y, this.measureText(text).width]);
    fillText.call(this, text, x, y);
  };
  pen.moveTo = function (x, y) { thick(this, x, y); moveTo.call(this, x, y); };
  pen.lineTo = function (x, y) { thick(this, x, y); lineTo.call(this, x, y); };
  pen.arc = function (x, y, ...rest) { points.push([x, y]); arc.call(this, x, y, ...rest); };
}"""


def watched(mount, new):
    """The texts, the thick line and the point, as they are drawn in one frame."""
    page = mount(dense(**new))
    page.evaluate(SPY)
    drawn(page).evaluate("texts.length = lines.length = points.length = 0; model.set('scan', !model.get('scan'))")
    drawn(page).evaluate("texts.length = lines.length = points.length = 0; model.set('scan', !model.get('scan'))")
    return drawn(page).evaluate("[texts, lines, points[0]]")


@pytest.mark.parametrize(
    "new",
    [
        {"features": 16, "scan": True},  # as the chapter opens it
        {"target": 3000, "features": 11, "scan": True},
        {"features": 16},
        {"source": 100, "head_dim": 1, "target": 8, "features": 3},
    ],
    ids=str,
)
def test_point_covers_no_name(mount, new):
    texts, _, (x, y) = watched(mount, new)
    names = {word for entry in formulas() for word in (entry["name"], entry["mode"]) if word}
    shown = [entry for entry in texts if entry[0] in names]
    assert shown
    for name, across, up, width in shown:
        assert abs(x - across) > width / 2 + 10 or abs(y - up) > 6 + 10, name


@pytest.mark.parametrize("new", [{"head_dim": 2}, {"features": 16, "scan": True}], ids=str)
def test_thick_line_stays_where_there_are_sizes(mount, new):
    texts, line, _ = watched(mount, new)
    left, right = (min(x for text, x, y, _ in texts if text == size and x > 40) for size in ("1", "64k"))
    bottom = next(y for text, x, y, _ in texts if text == "1" and x < 40)
    assert len(line) > 20
    for x, y in line:
        assert left - 1 <= x <= right + 1
        assert y <= bottom + 0.5
    assert all(x != further for (x, _), (further, _) in pairwise(line))


def test_point_is_dragged(mount):
    page = mount(dense())
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 200)
    page.mouse.down()
    assert page.evaluate("saved.target") < 16
    visited = []
    for step in range(1, 11):
        page.mouse.move(box["x"] + 100 + 30 * step, box["y"] + 200 - 15 * step)
        visited.append(state(page, "target", "features"))
    page.mouse.move(box["x"] + 5000, box["y"] - 5000)
    assert state(page, "target", "features") == [65536, 512]
    page.mouse.up()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    assert page.evaluate("[saved.target, saved.features]") == [65536, 512]
    assert visited == sorted(visited)
    assert len({target for target, _ in visited}) == 10


def test_a_finger_drags_the_point_and_scrolls_elsewhere(mount):
    page = mount(dense())
    page.locator("canvas").click(position={"x": 200, "y": 100})
    drawn(page)
    assert [drags(page, 0, *place) for place in [(205, 104), (300, 200)]] == [True, False]


def contrast(page, ink, ground):
    """The contrast ratio of WCAG 2."""

    def luminance(name):
        channels = [value / 255 for value in page.evaluate(COLOUR, name)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(weight * c for weight, c in zip([0.2126, 0.7152, 0.0722], linear, strict=True))

    low, high = sorted([luminance(ink), luminance(ground)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(mount, scheme):
    page = mount(dense())
    page.emulate_media(color_scheme=scheme)
    assert drawn(page).locator(".smalearn[data-dark]").count() == (scheme == "dark")
    assert min(contrast(page, "ink", ground) for ground in ["paper", "raised", *FILLS]) > 4.5
    assert min(contrast(page, "dim", ground) for ground in ["paper", "raised"]) > 4.5
    assert contrast(page, "focus", "paper") > 3


MARKS = [  # where a host says that it is dark, and that it is light
    ("body", "data-jp-theme-light", "false", "true"),
    ("body", "data-theme", "dark", "light"),
    ("documentElement", "data-theme", "dark", "light"),
    ("documentElement", "theme", "dark", "light"),  # Colab
    ("documentElement", "class", "dark", "light"),  # MyST
    ("body", "class", "quarto-dark", "quarto-light"),
    ("body", "class", "vscode-dark", "vscode-light"),
    ("body", "class", "vscode-high-contrast", "vscode-high-contrast-light vscode-high-contrast"),
]


def test_picture_is_redrawn_when_the_page_changes_its_theme(mount):
    page = mount(dense())
    light = drawn(page).evaluate(PICTURE)
    page.emulate_media(color_scheme="dark")
    dark = drawn(page).evaluate(PICTURE)
    assert dark != light
    for place, name, *values in MARKS:
        for value, other, picture in zip(values, ["light", "dark"], [dark, light], strict=True):
            page.emulate_media(color_scheme=other)  # which counts less than what the page says
            page.evaluate("([place, ...mark]) => document[place].setAttribute(...mark)", [place, name, value])
            assert drawn(page).evaluate(PICTURE) == picture, value
        page.evaluate("([place, name]) => document[place].removeAttribute(name)", [place, name])
        assert drawn(page).evaluate(PICTURE) == dark  # as the reader prefers


def test_focus_can_be_seen(mount):
    page = mount(dense(source=9))
    stops = []
    for _ in range(8):
        page.keyboard.press("Tab")
        stops.append(
            page.evaluate(
                "[document.activeElement.tagName, parseFloat(getComputedStyle(document.activeElement).outlineWidth)]"
            )
        )
    assert [tag for tag, _ in stops] == ["INPUT"] * 4 + ["BUTTON", "INPUT", "INPUT", "CANVAS"]
    assert min(width for _, width in stops) >= 2


def test_a_hidden_view_is_drawn_when_it_appears(mount):
    page = mount(dense())
    shown = drawn(page).evaluate(PICTURE)
    page.evaluate("remove(); document.getElementById('first').style.display = 'none'; show('first'); null")
    assert drawn(page).evaluate(PICTURE) != shown
    page.evaluate("document.getElementById('first').style.display = ''")
    assert drawn(page).evaluate(PICTURE) == shown


def test_a_view_hidden_for_a_moment_is_up_to_date_after_it(mount):
    """As while JupyterLab changes its theme: no resize tells that the view is back."""
    page = mount(dense())
    light = drawn(page).evaluate(PICTURE)
    page.evaluate(
        """() => new Promise((done) => {
          const { style } = document.getElementById("first");
          requestAnimationFrame(() => (style.display = "none"));
          document.body.dataset.jpThemeLight = "false";
          Promise.resolve().then(() => requestAnimationFrame(() => { style.display = ""; done(); }));
        })"""
    )
    assert drawn(page).evaluate(PICTURE) != light


def test_picture_is_sharp_at_every_zoom(mount):
    page = mount(dense(scan=True))
    probe = """(canvas) => [canvas.width / canvas.clientWidth,
      ...canvas.getContext("2d").getImageData(0.8 * canvas.width, 0.5 * canvas.height, 1, 1).data.slice(0, 3)]"""
    assert drawn(page).locator("canvas").evaluate(probe) == [1, *page.evaluate(COLOUR, "second")]
    metrics = {"width": 1000, "height": 800, "deviceScaleFactor": 2, "mobile": False}
    page.context.new_cdp_session(page).send("Emulation.setDeviceMetricsOverride", metrics)
    page.evaluate("dispatchEvent(new Event('resize'))")  # a real zoom sends it, this one does not
    assert drawn(page).locator("canvas").evaluate(probe) == [2, *page.evaluate(COLOUR, "second")]
