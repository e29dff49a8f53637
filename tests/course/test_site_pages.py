"""The pages of the site, and the table of claims, as far as they can be judged without a browser."""

import base64
import contextlib
import html
import importlib
import inspect
import io
import json
import pkgutil
import re
import shutil
import struct
import tomllib
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement

import smalearn
from smalearn.course import cli, progress, site
from smalearn.course.exercises import registry
from smalearn.course.site import explorers, home, pages, reference, slides
from smalearn.course.site.concordance import page as concordance
from smalearn.course.site.formulas import mathml, together
from smalearn.course.site.latex import inline, latex
from smalearn.course.widgets import StateExplorer
from smalearn.course.workbook import notebook

ROOT = Path(__file__).parents[2]
CHAPTERS = notebook.chapters(ROOT / "chapters")
APPENDIX = next(path for path in CHAPTERS if path.stem.startswith("A_"))


def course(folder, chapter=CHAPTERS[3]):
    """A course of one chapter, whose links to others are taken out."""
    for name in ("chapters", "tests", "assets"):
        (folder / name).mkdir()
    alone = re.sub(r"\[([^\[\]]+)\]\(\w+\.ipynb\)", r"\1", chapter.read_text(encoding="utf-8"))
    (folder / "chapters" / chapter.name).write_text(alone, encoding="utf-8")
    for path in (*ROOT.glob("tests/*/claims.toml"), ROOT / "start.py"):
        (folder / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, folder / path.relative_to(ROOT))
    row = f"| 03 | [One](chapters/{chapter.name}) | 3 | a line & more |"
    (folder / "README.md").write_text(f"# A course\n\n{row}\n", encoding="utf-8")
    return folder


# Pages


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_help_follows_the_check_of_every_exercise(path):
    chapter, _ = pages.chapter(path)
    cells = [(cell.get("id"), "".join(cell["source"])) for cell in chapter["cells"]]
    for id, own in notebook.exercises(notebook.read(path)).items():
        exercise, check = registry()[id], own[-1]["id"]
        place = [name for name, _ in cells].index(f"help-{check}")
        assert cells[place - 1][0] == (check.removesuffix("-check") if exercise.opener else check)
        text = cells[place][1]
        assert text.count("<summary>Hint") == len(exercise.hints)
        assert f"def {exercise.solution.__name__}(" in text.partition("<summary>Solution")[2]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_explorers_are_made_from_the_setup_and_their_cell(path):
    chapter, names = pages.chapter(path)
    source = notebook.read(path)
    assert names == {name for cell in source["cells"] if (name := explorers.shown(cell))}
    shown = [
        cell for cell in chapter["cells"] if explorers.shown(cell) is None and "explorer" in str(cell.get("outputs"))
    ]
    for cell in shown:
        (output,) = [output for output in cell["outputs"] if "text/html" in output.get("data", {})]
        state = output["data"]["text/html"].partition('<script type="application/json">')[2].partition("</script>")[0]
        assert json.loads(state.replace("<\\/", "</"))
        assert 'alt=""' not in output["data"]["text/html"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"must end in the explorer, got 'x = 1'"),
        ("unknown(3)", r"more than the setup: NameError: name 'unkn"),
    ],
)
def test_an_explorer_cell_that_says_too_little(source, message):
    with pytest.raises(ValueError, match=message):
        explorers.made([], source)


def test_the_readme_counts_what_there_is():
    readme, landing = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "smalearn/course/site/text/index.md")
    )
    (hours,) = re.findall(r"About (\d+) hours in all", readme)
    assert re.findall(r"about (\d+) hours", landing) == [hours]
    wrong = sum(claim.nature == "error" for claim in site.claims(ROOT))
    assert f"{wrong} corrections" in readme


def test_a_script_and_a_state_cannot_end_their_element():
    assert "</" not in explorers.script("MaskExplorer")
    explorer = StateExplorer("one </script> two </script> one", query="one")
    text = explorers.html(explorer, "", 'a "picture"')
    state = text.partition('<script type="application/json">')[2].partition("</script>")[0]
    assert "</script>" in json.loads(state)["_words"]
    assert 'alt="a &quot;picture&quot;"' in text


def test_colab_keeps_its_pytorch():
    chapter = pages.colab(CHAPTERS[1], "owner/name")
    assert "colab" not in pages.chapter(CHAPTERS[0])[0]["cells"][1]["source"], "there is no repository"
    first, *others = chapter["cells"]
    assert others == notebook.blank(notebook.read(CHAPTERS[1]))["cells"]
    assert "--no-deps git+https://github.com/owner/name" in first["source"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {Requirement(text).name for text in project["dependencies"] + project["optional-dependencies"]["lab"]}
    there = {"torch", "numpy", "matplotlib", "ipywidgets", "jupyterlab"}  # JupyterLab is not there, and not needed
    assert needed - there == set(pages.COLAB_LACKS)
    nbformat.validate(nbformat.from_dict(chapter | {"nbformat": 4, "nbformat_minor": 5}))


def test_the_devcontainer_installs_the_lab_and_opens_a_copy():
    """What the command says, JupyterLab's version, is of no interest: on its way chapters are copied."""
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert container["postCreateCommand"] == "python start.py --version"
    (first,) = container["customizations"]["codespaces"]["openFiles"]
    assert (ROOT / first.replace("work", "chapters")).is_file()


# The reference


class Sample:
    """One line with |x|, log_ and `a_b*`.

        y = x*_|z|

    Args:
        log_a: of |x|.

    Cost: 2 * T.

    Example:
        >>> log_a = 1
    """


def test_docstrings_become_restructured_text_that_means_the_same():
    lines = inspect.getdoc(Sample).split("\n")
    reference._restructured(None, "class", "Sample", Sample, None, lines)
    assert "\n".join(lines) == (
        "One line with \\|x\\|, log\\_ and `a_b*`.\n\n"
        ".. code-block:: text\n\n    y = x*_|z|\n\n\n\n"
        "Args:\n    log\\_a: of \\|x\\|.\n\n\n\n"
        "Cost: 2 \\* T.\n\n\n\n"
        "Example:\n    >>> log_a = 1"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The site of a course of one chapter and the appendix, which is in a repository."""
    folder = course(tmp_path_factory.mktemp("small"))
    (folder / "chapters/appendix").mkdir()
    shutil.copy(APPENDIX, folder / "chapters/appendix")
    with contextlib.redirect_stderr(Terminal()) as terminal:
        site.build(folder, folder / "out", "owner/name")
    said = f"chapters and explorers\n.*reading pages\n.*\rreference/ssd .*writing pages\n.*\r{CHAPTERS[3].stem} "
    assert re.search(said + r".*\r +\r\Z", terminal.getvalue(), re.DOTALL)
    return folder / "out"


@pytest.mark.full
def test_a_link_that_is_shared_says_what_it_leads_to(small):
    page = (small / "index.html").read_text(encoding="utf-8")
    assert "<title>Attention and Mamba-2 are one matrix · smalearn</title>" in page
    tags = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)">', page))
    assert tags["og:title"] == "Attention and Mamba-2 are one matrix"
    assert tags["og:description"] == tags["description"]
    assert tags["description"].startswith("Multiply it in one order")
    assert tags["og:image"] == "https://owner.github.io/name/_static/card.png"
    header = (small / "_static/card.png").read_bytes()[16:24]
    assert struct.unpack(">II", header) == (1200, 630)
    for path in [small / "ten_minutes.html", small / f"{CHAPTERS[3].stem}.html", small / "reference/masks.html"]:
        page = path.read_text(encoding="utf-8")
        assert re.search("<title>.+ · smalearn</title>", page)
        assert all(f'"{name}"' in page for name in ("og:title", "og:description", "og:image", "description"))
    assert "<title>Search - smalearn</title>" in (small / "search.html").read_text(encoding="utf-8")


@pytest.mark.full
def test_reference_has_every_public_name_with_its_members(small):
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (small / "reference").glob("*.html")}
    for room in [*(room.name for room in pkgutil.iter_modules(smalearn.__path__)), "fast.distributed"]:
        if not room.startswith("_") and room not in ("course",):
            module, text = importlib.import_module(f"smalearn.{room}"), pages.pop(room)
            assert f'id="module-{module.__name__}"' in text
            for name in module.__all__:
                value = getattr(module, name)
                if inspect.isroutine(value) or inspect.isclass(value):
                    assert f'id="{module.__name__}.{name}"' in text, name
            words = re.sub(r"<[^>]+>", "", text)
            assert " at 0x" not in words  # no address of an object
            assert "collections.abc" not in words
            assert "(self" not in words
    for room, member in (("weights", "LowRank.random"), ("contractions", "Order.macs"), ("weights", "Weight.bilinear")):
        text = (small / f"reference/{room}.html").read_text(encoding="utf-8")
        assert f'id="smalearn.{room}.{member}"' in text
    assert not pages
    assert 'href="reference/masks.html"' in (small / "reference.html").read_text(encoding="utf-8")


@pytest.mark.full
def test_constants_and_formulas_of_the_reference_are_set(small):
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (small / "reference").glob("*.html")}
    words = {name: " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split()) for name, text in pages.items()}
    for sentence in ("(13): scores, mask, values.", "(15): outer products, mask, queries."):
        assert f"Name of the order {sentence}" in words["sma"]
    assert "Losses of outputs and targets by their names: the first for tokens, the others" in words["train"]
    typed = re.findall(
        r'id="([\w.]+)">(?:(?!<dt class="sig).)*?>Type<span class="colon">', "".join(pages.values()), re.S
    )
    assert not typed
    assert "<mi>H</mi><mi>t</mi></msub></mtd><mtd" in pages["linear_attention"]


@pytest.mark.parametrize(
    ("block", "formula"),
    [
        ("    y_t = H_t q_t", "y_{t} &= H_{t} q_{t}"),
        ("    H' = exp(log_a_t) ∘ H_(t-1)", r"H' &= \operatorname{exp}(\log a_{t}) \circ  H_{t-1}"),
        ("    A = X W_in^T + √P · e_last   one of them", r"W_{\text{in}}^{\top } + \sqrt{P} \cdot  e_{\text{last}}"),
        ("    A = b   one of them", r"A &= b &&\text{one of them}"),
        ("    x = 1\n    [a; b] = 2", r"x &= 1\\{}[a; b] &= 2"),
        ("    w_{s ≤ t} ← 0 where s > t", r"w_{s \le  t} &\leftarrow 0 \text{ where } s > t"),
    ],
)
def test_a_formula_becomes_latex(block, formula):
    assert formula in latex(block)


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("Masked: (L ∘ (Q K^T)) V, with a causal L.", ["(L ∘ (Q K^T)) V"]),
        ("a state S_t = alpha_t S_(t-1) (see 002), for j <= t", ["S_t = alpha_t S_(t-1)", "j <= t"]),
        ("the rank (of K^T) and a K^T = sum of all", ["K^T", "K^T"]),
        ("a run of run_in_process, 1 = one, e.g. SSM = S and Q, K, V", []),
    ],
)
def test_formulas_are_found_in_prose(text, formulas):
    parts = inline(text)
    assert "".join(part for part, _ in parts) == text
    assert [part for part, formula in parts if formula] == formulas


@pytest.mark.parametrize(
    "line", ["x = 1 @ 2", "a   b", "x = unknown(y)", "x = y_[1]", "x = 1   with `code`", "x = a^(b?)"]
)
def test_what_is_no_formula_stays(line):
    assert latex(f"    {line}") is None
    assert latex(f"    x = 1\n    {line}") is None


# Formulas


def letters():
    """The letters of our font, from the style sheet."""
    style = (ROOT / "smalearn/course/site/static/formulas.css").read_text(encoding="utf-8")
    for first, _, last in re.findall(r"U\+([0-9a-f]+)(-([0-9a-f]+))?", style):
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


@pytest.mark.parametrize(
    "path", [*CHAPTERS, *(ROOT / "smalearn/course/site/text").glob("*.md")], ids=lambda path: path.stem
)
def test_every_formula_is_set_in_our_letters(path):
    cells = notebook.read(path)["cells"] if path.suffix == ".ipynb" else [{"source": path.read_text(encoding="utf-8")}]
    texts = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") != "code"]
    refused, missing, ours = [], set(), set(letters())
    for code, block, within in re.findall(slides.MATH, "\n\n".join(texts)):
        if code:
            continue
        try:
            made = mathml(block or within, bool(block))
        except ValueError as error:
            refused.append(str(error))
            continue
        missing |= set(html.unescape(re.sub("<[^>]+>", "", made))) - ours
    assert not refused
    assert not missing, "cut them out of the font too, as formulas.css says"


def test_a_formula_that_cannot_be_set_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"unknwn.* in the formula x \\unknwn"):
        mathml(r"x \unknwn", False)
    shown = mathml(r"x' = \Big(y\Big) \tag{1-SS}", True)
    assert shown.endswith('</math><span class="eqno">(1-SS)</span></div>')
    assert '<mo class="prime">' in shown
    assert shown.count('<mo class="big"') == 2
    kept = together(mathml("x", False) + "). And " + mathml("y", False) + " and")
    assert kept.count("<span") == 1
    assert "</math>).</span> And <math>" in kept


# The pages that greet


@pytest.mark.full
def test_the_landing_page_and_the_short_path_lead_on(small):
    text = (small / "index.html").read_text(encoding="utf-8")
    assert f'href="{CHAPTERS[3].stem}.html">Start reading' in text
    assert "git clone https://github.com/owner/name smalearn" in text
    assert "git+https://github.com/owner/name" in html.unescape(re.sub(r"<[^>]+>", "", text))
    assert 'data-explorer="DualityExplorer"' in text
    assert "a line &amp; more" in text
    assert (small / "_static/stills" / f"{CHAPTERS[3].stem}.png").read_bytes().startswith(b"\x89PNG")
    assert "<!-- " not in text.partition("<article")[2].partition("</article")[0]
    text = (small / "ten_minutes.html").read_text(encoding="utf-8")
    shown = ["MaskExplorer", "StateExplorer", "ContractionMap", "DualityExplorer"]
    assert re.findall(r'data-explorer="(\w+)"', text) == shown
    assert text.count('class="eqno"') == 2
    assert all((small / f"_static/{name}.js").is_file() for name in shown)


@pytest.mark.full
def test_a_repository_gives_chapters_their_source_a_map_and_a_page_for_what_is_missing(small):
    chapter = (small / f"{CHAPTERS[3].stem}.html").read_text(encoding="utf-8")
    for way in ("blob", "edit"):
        assert f"https://github.com/owner/name/{way}/main/chapters/{CHAPTERS[3].name}" in chapter
    assert 'rel="edit"' not in (small / "claims.html").read_text(encoding="utf-8"), "which is made"
    lines = (small / "sitemap.txt").read_text(encoding="utf-8").splitlines()
    pages = {path.relative_to(small).as_posix() for path in small.rglob("*.html")}
    assert {line.removeprefix("https://owner.github.io/name/") for line in lines} == pages - {"404.html"}
    lost = (small / "404.html").read_text(encoding="utf-8")
    assert lost.index('<base href="https://owner.github.io/name/">') < lost.index("href=", lost.index("<base") + 10)


def test_without_a_repository_or_a_chapter_there_is_no_link(tmp_path):
    folder = course(tmp_path)
    text, _ = home.page("index", folder, {CHAPTERS[3]: CHAPTERS[3].name})
    assert "In the course's folder:" in text
    assert "git clone" not in text
    text, _ = home.page("ten_minutes", folder, {CHAPTERS[6]: CHAPTERS[6].name})
    assert f"[Chapter 06]({CHAPTERS[6].name})" in text
    assert "and\nchapter 12 makes" in text


def test_no_two_cards_have_the_same_explorer():
    stills = home.stills(CHAPTERS)
    assert stills.keys() == {path.stem for path in CHAPTERS}
    assert len(set(stills.values())) == len(CHAPTERS)
    explorer = base64.b64encode(stills[CHAPTERS[4].stem]).decode()
    shown = [cell for cell in notebook.read(CHAPTERS[4])["cells"] if explorers.shown(cell)]
    assert explorer in "".join(shown[0]["outputs"][0]["data"]["image/png"])


# Building


@pytest.fixture
def short_reference(monkeypatch):
    """One room alone: the others make a build three times as long."""
    rooms = {room.name for room in pkgutil.iter_modules(smalearn.__path__)}
    monkeypatch.setattr(reference, "WORKSHOP", rooms - {"ssd"})


@pytest.mark.full
@pytest.mark.usefixtures("short_reference")
def test_it_builds_from_the_command_line_and_again(tmp_path, monkeypatch, capsys):
    (tmp_path / "course").mkdir()
    monkeypatch.chdir(course(tmp_path / "course"))
    for _ in range(2):
        assert cli.main(["site", "-o", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert out.count(" pages; open ") == 2
    assert err == 2 * "chapters and explorers\nreading pages\nwriting pages\n"
    assert (tmp_path / "out" / f"{CHAPTERS[3].stem}.html").exists()


@pytest.mark.full
def test_the_appendix_has_a_page_in_its_folder(small):
    place = f"appendix/{APPENDIX.name}"
    page = small / place.replace("ipynb", "html")
    text = page.read_text(encoding="utf-8")
    assert f"/blob/gh-pages/{pages.COLAB}/{place}" in text
    assert f"urlpath=lab/tree/chapters/{place}" in text
    for link in ("_static/WeightExplorer.js", f"notebooks/{place}"):
        assert f'"../{link}"' in text
        assert (page.parent / ".." / link).is_file()
    assert (small / pages.COLAB / place).is_file()
    for name in ("index", "claims"):
        assert place.replace("ipynb", "html") in (small / f"{name}.html").read_text(encoding="utf-8")


@pytest.fixture
def letter(tmp_path):
    """The reader's own, which nothing replaces."""
    path = tmp_path / "letter.txt"
    path.write_text("mine", encoding="utf-8")
    yield path
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(
    ("root", "place", "repository", "message"),
    [
        (ROOT, ".", None, r"site: .* has files that are not a site"),
        (ROOT, "letter.txt", None, r"letter\.txt is a file; give a new or empty folder"),
        (Path(), "out", None, r"site: there are no chapters in"),
        *((ROOT, "out", name, "site: repository must be owner/name, got '") for name in ("", "smalearn")),
        *((ROOT, "out", name, "repository must") for name in ("https://github.com/owner/name", "owner/na me")),
    ],
)
def test_a_site_that_cannot_be_is_refused(tmp_path, letter, root, place, repository, message):
    with pytest.raises(ValueError, match=message):
        site.build(tmp_path / root, tmp_path / place, repository)
    assert [*tmp_path.iterdir()] == [letter]


def test_a_place_that_cannot_be_written_is_found_first(tmp_path, monkeypatch, capsys):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(progress.tempfile, "TemporaryFile", refuse)
    assert cli.main(["site", "-o", str(tmp_path / "new/out")]) == 1
    said = rf"smalearn site: nothing can be written to .*{tmp_path.name} \(Permission denied\)\n"
    assert re.fullmatch(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[nowhere](nothing.ipynb)", r"03_linear_attention.*nothing\.ipynb"),
        (r"$x\unknwn$", r"in the formula x\\unknwn"),
    ],
)
@pytest.mark.usefixtures("short_reference")
def test_a_faulty_page_is_named(tmp_path, text, named):
    folder = course(tmp_path)
    (path,) = (folder / "chapters").glob("*.ipynb")
    chapter = notebook.read(path)
    chapter["cells"][0]["source"] += f"\n\n{text}"
    notebook.write(path, notebook.dump(chapter))
    with pytest.raises(ValueError, match=f"(?s)site: .*{named}"):
        site.build(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_notebook(tmp_path):
    (tmp_path / "broken.ipynb").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"site: .*broken\.ipynb is not a notebook"):
        pages.chapter(tmp_path / "broken.ipynb")


def test_what_was_recorded_is_shown(tmp_path):
    found = site.claims(course(tmp_path))
    assert {claim.residual for claim in found} == {None}
    assert "largest relative error" not in concordance(tmp_path)
    (tmp_path / "assets/results").mkdir(exist_ok=True)
    recorded = tmp_path / "assets/results/claims.json"
    recorded.write_text(json.dumps({"residuals": {"000:eq10": 3.2e-16}}), encoding="utf-8")
    found = {claim.id: claim.residual for claim in site.claims(tmp_path)}
    assert found.pop("000:eq10") == 3.2e-16
    assert set(found.values()) == {None}
    assert "largest relative error" in concordance(tmp_path)
