"""Chapter 01 as a learner meets it: JupyterLab on a copy of the chapters, real keys, real clicks."""

from pathlib import Path

import pytest
from playwright.sync_api import expect
from views import watched

from smalearn.course import server, workbook

ROOT = Path(__file__).parents[2]
CHAPTER = "01_one_contraction.ipynb"
RIGHT = """def crossover(features, head_dim):
    return 3 * features * head_dim // (features + head_dim + 1) + 1"""
WRONG = """def crossover(features, head_dim):
    return 2 * features * head_dim // (features + head_dim) + 1"""
NOTEBOOK = "window.jupyterapp.shell.currentWidget.content"
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
RUN = "window.jupyterapp.commands.execute('notebook:run-cell')"


@pytest.fixture(scope="module")
def chapter(lab, browser):
    """The chapter, open and run from top to bottom, for all tests of this file."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")
    page = watched(context.new_page())
    page.set_default_timeout(30_000)
    lab.open(page, CHAPTER)
    page.finished = page.evaluate(RUN_ALL)
    yield page
    context.close()


def show(page, cell_id):
    """Scroll to a cell, make it the active one, and return it."""
    page.evaluate(
        f"""async (id) => {{
            const notebook = {NOTEBOOK};
            notebook.activeCellIndex = notebook.widgets.findIndex((cell) => cell.model.id === id);
            await notebook.scrollToItem(notebook.activeCellIndex, "center");
        }}""",
        cell_id,
    )
    cell = page.locator(".jp-Notebook .jp-Cell.jp-mod-active")
    expect(cell).to_have_count(1)
    return cell


def answer(page, cell_id, text):
    """Type over a cell's source with the keyboard and run it."""
    cell = show(page, cell_id)
    cell.locator(".cm-content").click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)
    page.evaluate(RUN)
    page.keyboard.press("Escape")


def run(page, cell_id, text):
    """Run a cell with this text and return its output."""
    answer(page, cell_id, text)
    return show(page, cell_id).locator(".jp-OutputArea").first


def check(page):
    """Run the check of exercise 1.5."""
    return run(page, "ex-1-5-check", 'crossover = check("1.5", crossover)')


def test_run_all_reaches_the_end_without_an_error(chapter):
    assert chapter.finished is not False
    counts = chapter.evaluate(f"{NOTEBOOK}.widgets.map((cell) => cell.model.executionCount).filter((n) => n != null)")
    assert counts == list(range(1, len(counts) + 1))
    assert len(counts) > 30
    kinds = chapter.evaluate(
        f"{NOTEBOOK}.widgets.flatMap((cell) => cell.model.sharedModel.outputs ?? []).map((o) => o.output_type)"
    )
    assert "error" not in kinds


def test_a_wrong_answer_hears_its_misconception_and_a_right_one_a_tick(chapter):
    expect(show(chapter, "ex-1-5-check").locator(".jp-OutputArea").first).to_contain_text("○ 1.5 not started")
    answer(chapter, "ex-1-5-stub", WRONG)
    said = check(chapter)
    expect(said).to_contain_text("✗ 1.5 When does the linear order win?")
    expect(said).to_contain_text("attention WITHOUT a mask")
    expect(said.locator(".smalearn-card td.off").first).to_be_visible()
    answer(chapter, "ex-1-5-stub", RIGHT)
    said = check(chapter)
    expect(said).to_contain_text("✓ 1.5 When does the linear order win?")
    expect(said).to_contain_text("10 cases passed")


def test_hint_and_solution(chapter):
    said = run(chapter, "ex-1-5-check-help", 'hint("1.5")')
    expect(said).to_contain_text("With a running sum, each step of (15) takes T·N·P")
    said = run(chapter, "ex-1-5-check-help", 'solution("1.5")')
    expect(said).to_contain_text("def crossover(features, head_dim):")
    assert said.locator(".highlight span").count() > 5  # coloured, not plain


def test_buttons_of_a_card_do_what_it_says_to_call_and_are_not_saved(lab, page):
    lab.write("card.ipynb", 'from smalearn.course import check\n_ = check("0.1", lambda V: V.cumsum(0))')
    lab.open(page, "card.ipynb")
    lab.run_all(page)
    card = page.locator(".smalearn-card").first
    for name, said in {"hint": "Hint 1 of", "case": "torch.tensor([[", "solution": "def running_mean(V):"}.items():
        card.get_by_role("button", name=name).click()
        expect(card).to_contain_text(said)
    saved = lab.save(page)
    (output,) = saved["cells"][0]["outputs"]
    assert not [kind for kind in [*output["data"], *saved["metadata"]] if "widget" in kind]
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    lab.open(page, "card.ipynb")
    expect(card).to_contain_text('hint("0.1")')
    expect(card.get_by_role("button")).to_have_count(0)


def test_pictures_follow_the_theme(chapter):
    image = show(chapter, "four-picture").locator(".jp-RenderedImage img")
    for theme, filter in [("JupyterLab Dark", "invert(0.93) hue-rotate(180deg)"), ("JupyterLab Light", "none")]:
        chapter.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{theme}'}})")
        expect(image).to_have_css("filter", filter)


def test_a_copy_is_not_changed_by_opening_it(lab, page):
    workbook.sync(ROOT / "chapters", lab.folder / "copies", server.kernel())
    lab.open(page, "copies/00_start_here.ipynb")
    page.wait_for_timeout(2000)  # the kernel is idle; what it says of itself may still be on its way
    assert page.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty") is False
    names = page.locator(".jp-DirListing-itemText")
    cut = names.filter(has_text=".ipynb").evaluate_all(
        "(names) => names.filter((name) => name.scrollWidth > name.clientWidth).map((name) => name.textContent)"
    )
    assert not cut


@pytest.mark.parametrize("height", [720, 900])
def test_the_first_picture_is_seen_whole_when_it_has_been_run(lab, page, height):
    page.set_viewport_size({"width": 1440, "height": height})
    lab.open(page, "00_start_here.ipynb")
    show(page, "title")
    setup, live = (page.locator(".jp-Notebook .jp-CodeCell").nth(number) for number in (0, 1))
    for _ in range(3):
        page.keyboard.press("Shift+Enter")
    expect(live.locator(".smalearn canvas")).to_have_count(2, timeout=60_000)  # torch is imported first
    expect(live.locator(".smalearn")).to_be_in_viewport(ratio=0.998)  # pages are scrolled by whole pixels
    expect(setup.locator(".jp-OutputArea-child")).to_be_hidden()  # the style of dark pages shows nothing


def test_nothing_left_the_machine_and_no_error_was_logged(chapter):
    hosts = {url.split("/")[2].rsplit(":", 1)[0] for url in chapter.asked if url.startswith(("http", "ws"))}
    assert hosts <= {"127.0.0.1", "localhost"}
    assert not chapter.errors, chapter.errors


def test_errors_of_a_page_are_kept_but_for_one_of_the_notebooks_own(lab, browser):
    page = watched(browser.new_page())
    lab.open(page, CHAPTER)
    page.evaluate(
        f"""() => {{
            const {{ layout, widgets }} = {NOTEBOOK};
            const text = widgets.findLast((cell) => cell.model.type === "markdown");
            text.node.remove();
            setTimeout(() => layout.detachWidget(widgets.length - 1, text));
            setTimeout(() => document.body.removeChild(document.createElement("p")));
        }}"""
    )
    page.wait_for_timeout(500)
    page.close()
    assert len(page.errors) == 1
