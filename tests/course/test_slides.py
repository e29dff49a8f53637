"""Slides: what they show and leave out, and that they load nothing from elsewhere."""

import re
import shutil
import sys

import notebooks
import pytest

from smalearn.course import cli
from smalearn.course.site.slides import MATH, _formula, slides
from smalearn.course.workbook.notebook import chapters

FOUR = next(path for path in chapters(notebooks.CHAPTERS) if path.name.startswith("04"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a chapter that has explorers, formulas and exercises."""
    return slides(FOUR, tmp_path_factory.mktemp("slides"))


def test_nothing_is_loaded_from_elsewhere_and_all_that_is_loaded_is_there(made):
    page = made.read_text(encoding="utf-8")
    loaded = re.findall(r'<(?:script|link|img)[^>]*? (?:src|href)="([^"]+)"', page)
    assert {"reveal/dist/reveal.js", "_static/formulas.css", "_static/site.js", "_static/MaskExplorer.js"} <= set(
        loaded
    )
    for place in loaded:
        assert place.startswith("data:") or (made.parent / place).is_file(), place
    styles = [(made.parent / place).read_text(encoding="utf-8") for place in loaded if place.endswith(".css")]
    assert not any(re.search(r"url\([\"']?https?:|@import", style) for style in styles)


def test_a_heading_begins_a_slide_and_what_a_class_does_not_look_at_is_left_out(made):
    page = made.read_text(encoding="utf-8")
    headings = [cell for cell in notebooks.read(FOUR).cells if re.match(r"##? ", cell.source)]
    assert page.count("<section") > 2 * len(headings) > 10
    for text in ("plots.use_style()", "# hint(", "check(", "<summary>Solution", "Download this notebook"):
        assert text not in page
    assert page.count('class="explorer"') == 2
    assert page.count("<math") > 50
    assert not re.search(r"<math[^>]*>(?:(?!</math>).)*<(em|strong|a|code)\\b", page, re.DOTALL)


def test_formulas_are_set_and_code_is_left_alone():
    text = "A $x_1 * \\lVert y\\rVert$ costs `$5`:\n\n$$\na < b_1\n$$\n\n```\n$HOME $x$\n```"
    found = MATH.sub(_formula, text)
    assert "<math><msub><mi>x</mi><mn>1</mn></msub>" in found
    assert not re.search(r"[*|]", found.partition("costs")[0]), "Markdown would read it"
    assert '<div class="formula"><math display="block"><mi>a</mi><mo>&lt;</mo><msub>' in found
    assert "`$5`" in found
    assert "$HOME $x$" in found


def test_the_command_writes_chapters_beside_each_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(notebooks.CHAPTERS.parent)
    assert cli.main(["slides", "0", "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out/00_start_here.html'}\n"
    assert cli.main(["slides", "77", "-o", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("smalearn slides: no chapter '77'; there are 00_start_here, ")


def test_without_nbconvert_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbconvert", None)
    with pytest.raises(ImportError, match=r"nbconvert is not installed; run: python -m pip install"):
        slides(FOUR, tmp_path)


def test_other_slides_in_the_folder_stay(made, tmp_path):
    shutil.copytree(made.parent, tmp_path / "slides")
    slides(chapters(notebooks.CHAPTERS)[0], tmp_path / "slides")
    assert (tmp_path / "slides" / made.name).is_file()
