"""The site as a reader has it: a folder of files, opened without a server and without a network."""

import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from views import drawn

from smalearn.course.site import build
from smalearn.course.workbook.notebook import chapters

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "chapters"
CHAPTERS = [path.relative_to(FOLDER).with_suffix("").as_posix() for path in chapters(FOLDER)]
ROOMS = ["reference/linear_attention", "reference/ssm"]
PAGES = ["index", "ten_minutes", *CHAPTERS, "claims", "reference", *ROOMS]
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole course, built once."""
    folder = tmp_path_factory.mktemp("site") / "the site"
    build(ROOT, folder, repository="owner/name")
    return folder


@pytest.fixture
def reader(page, site):
    """`reader("claims")`: the page of that name, when explorers live."""

    def read(name):
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_function("[...document.querySelectorAll('.explorer')].every((e) => 'live' in e.dataset)")
        return page

    return read


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_whole_and_fits_every_screen(reader, name):
    page = reader(name)  # which asks no other host for anything, and writes no error
    assert page.locator("img:not([alt]), img[alt='']:not(.cards img)").count() == 0  # a card's title says it
    assert page.locator(".output.stderr, .output.traceback").count() == 0
    for width in (1100, 1024, 360):  # beside one column, on a small screen, on a telephone
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_code_is_copied_and_the_keyboard_finds_the_search(reader, page):
    page.add_init_script("navigator.clipboard.writeText = async (text) => { window.copied = text; };")
    block = reader(CHAPTERS[3]).locator("article div.highlight").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    expect(block.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("copied") == block.locator("pre").inner_text()
    page.keyboard.press("Control+k")
    expect(page.locator(".sidebar-search")).to_be_focused()


def test_a_chapter_is_read_without_a_script(browser, site):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((site / f"{CHAPTERS[4]}.html").as_uri())
    formulas = page.locator("math:visible")
    assert formulas.count() > 100
    assert all(formula.bounding_box()["width"] > 5 for formula in formulas.all()[:100])
    assert page.locator(".eqno").first.inner_text() == "(1-SS)"
    assert page.locator(".explorer > img").first.is_visible(), "the still picture"
    page.context.close()


def test_a_full_stop_stays_with_its_formula(reader, page):
    page = reader(CHAPTERS[3])
    apart = """([...document.querySelectorAll("article p math")].filter((math) => {
      const next = math.nextSibling;
      if (!next || !/^[.,;:!?)]/.test(next.nodeValue)) return false;
      const first = document.createRange();
      first.setStart(next, 0);
      first.setEnd(next, 1);
      return first.getBoundingClientRect().top > math.getBoundingClientRect().bottom;
    }).map((math) => math.textContent))"""
    for width in range(360, 700, 20):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate(apart) == []


SHIFTS = """window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.parametrize(
    ("name", "width"), [(name, width) for name in ("index", "ten_minutes") for width in (390, 1440)]
)
def test_text_does_not_move_while_a_page_comes_to_life(reader, page, name, width):
    page.set_viewport_size({"width": width, "height": 900})
    page.add_init_script(SHIFTS)
    drawn(reader(name))
    assert page.evaluate("shifts") < 0.02  # of 0.1, which counts as good


@pytest.mark.parametrize(
    ("name", "scheme"),
    [(name, "light") for name in ("index", "ten_minutes", CHAPTERS[4], CHAPTERS[7], "claims", "reference/masks")]
    + [(name, "dark") for name in ("index", CHAPTERS[4], "claims")],
)
def test_nothing_stands_in_the_way_of_a_screen_reader(reader, page, name, scheme):
    page.emulate_media(color_scheme=scheme)
    found = Axe().run(reader(name), options={"resultTypes": ["violations"], "preload": False}).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert not [(one["id"], [node["html"][:200] for node in one["nodes"][:3]]) for one in serious]


def test_a_chapter_weighs_less_than_two_megabytes(page, site):
    loaded = []
    page.on("response", lambda response: loaded.append(response.url))
    for name in CHAPTERS:
        loaded.clear()
        page.goto((site / f"{name}.html").as_uri(), wait_until="networkidle")
        for image in page.locator("img[loading=lazy]").all():
            image.scroll_into_view_if_needed()
        files = {url.split("?")[0] for url in loaded if url.startswith("file:")}
        images = page.evaluate("[...document.images].map((image) => image.src.split('?')[0])")
        paths = [Path(page.evaluate("decodeURI", url).removeprefix("file://")) for url in files | set(images)]
        assert sum(path.stat().st_size for path in paths if path.is_file()) < 2 * MEGABYTE, name


def test_an_explorer_answers_without_a_kernel(reader):
    page = reader(next(name for name in CHAPTERS if name.startswith("04")))
    before = page.locator(".explorer [aria-live=polite]").first.inner_text()
    page.locator(".explorer select").first.select_option("Toeplitz")
    expect(page.locator(".explorer [aria-live=polite]").first).not_to_have_text(before)


def test_help_is_folded(reader):
    page = reader(CHAPTERS[1])
    solution = page.locator("details", has_text="Solution").first
    code = solution.locator("pre")
    assert not code.is_visible()
    solution.locator("summary").click()
    assert code.is_visible()
    assert page.locator("details").count() >= 3 * page.get_by_text("Solution", exact=True).count()


def test_pages_are_found_and_lead_on(reader, page):
    reader(CHAPTERS[0])
    page.get_by_placeholder("Search").fill("semiseparable")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li").first).to_contain_text(" · ")  # a chapter
    expect(page.locator("#search-results .search-summary")).to_contain_text("finished")  # results come one by one
    names = page.locator("#search-results li").all_inner_texts()
    lists = [place for place, name in enumerate(names) if not name[:2].isdigit() and name[:1] not in ("A", "B")]
    assert min(lists) > 3  # every chapter comes before the concordance and the reference
    assert lists == list(range(min(lists), len(names)))
    reader(CHAPTERS[0])
    page.locator(".related-pages .next-page").click()
    expect(page.locator("h1")).to_contain_text("01")
    page.locator(".related-pages .prev-page").click()
    expect(page.locator("h1")).to_contain_text("00")


def test_dark_and_light(reader, page):
    page.emulate_media(color_scheme="dark")
    reader(CHAPTERS[4])
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) != dark


def test_a_picture_is_dark_on_a_dark_page(reader, page):
    page.emulate_media(color_scheme="dark")
    reader(CHAPTERS[4])
    shown = "getComputedStyle(document.querySelector('div.cell_output img')).filter"
    assert "invert" in page.evaluate(shown)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(shown) == "none"


@pytest.mark.parametrize("width", [1440, 1024])
def test_code_fits(reader, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    reader(CHAPTERS[4])
    wide = "[...document.querySelectorAll('div.cell_input pre')].filter((e) => e.scrollWidth > e.clientWidth)"
    assert page.evaluate(f"{wide}.map((e) => e.textContent)") == []


def test_the_concordance_is_folded_filtered_and_linked(reader, page, site):
    reader("claims")
    claims = page.locator(".claim:visible")
    assert claims.count() == 0  # each source is folded
    every = page.locator(".claim").count()
    page.get_by_role("checkbox").check()
    corrected = claims.count()
    assert 0 < corrected == claims.filter(has=page.locator(".correction")).count() < every
    expect(page.get_by_role("status")).to_have_text(f"{corrected} of {every} claims")
    page.get_by_role("checkbox").uncheck()
    page.get_by_role("searchbox", name="Filter").fill("semiseparable RANK")
    texts = [text.lower() for text in claims.all_inner_texts()]
    assert texts
    assert all("semiseparable" in text and "rank" in text for text in texts)
    assert page.locator("h2:visible").count() < page.locator("h2").count()
    link = claims.filter(has_text="1-semiseparable").locator("a[href*='reference/']").first
    assert page.locator(".claim math").count() > 300
    assert (site / link.get_attribute("href").partition("#")[0]).is_file()


def test_the_site_is_light(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 25 * MEGABYTE


def test_a_chapter_can_be_taken_away(reader, site):
    page = reader(CHAPTERS[2])
    links = {link.inner_text(): link.get_attribute("href") for link in page.locator(".buttons a").all()}
    name = f"{CHAPTERS[2]}.ipynb"
    assert (site / links["Download this notebook"]).read_bytes() == (ROOT / "chapters" / name).read_bytes()
    branch, _, colab = links["Open in Colab"].partition("/github/owner/name/blob/")[2].partition("/")
    assert branch == "gh-pages"
    assert '"colab"' in (site / colab).read_text(encoding="utf-8")
    assert links["Open in Binder"].endswith(f"/gh/owner/name/main?urlpath=lab/tree/chapters/{name}")
    assert links["Ask a question"] == f"https://github.com/owner/name/issues/new?title={name}:+"


def test_it_can_be_moved(page, site, tmp_path):
    shutil.copytree(site, tmp_path / "später")
    page.goto((tmp_path / "später" / f"{CHAPTERS[4]}.html").as_uri())
    page.wait_for_selector(".explorer[data-live]")
