"""Build a folder of pages from the course's folder, by Sphinx with myst-nb and furo."""

import base64
import io
import re
import shutil
import tempfile
import warnings
from pathlib import Path

from smalearn import __version__
from smalearn._files import install
from smalearn.course import progress
from smalearn.course.site import explorers, home, reference
from smalearn.course.site.concordance import page as concordance
from smalearn.course.site.pages import COLAB, chapter, colab
from smalearn.course.workbook import notebook

__all__ = ["build"]

STATIC = Path(__file__).parent / "static"
LETTERS = """document.fonts.add(
  new FontFace("formulas", Uint8Array.from(atob("{}"), (letter) => letter.charCodeAt(0))),
);
"""


def build(course: Path, output: Path, repository: str | None = None) -> int:
    """Write the site, say on stderr how far it is, and return how many pages there are.

    What an earlier build left in `output` is replaced. `repository` is "owner/name" on GitHub, whose branch gh-pages
    shall hold the site, for the buttons that open a chapter in Colab or Binder.
    """
    try:
        import math_core  # noqa: F401 # Sphinx loads what needs it
        from sphinx.application import Sphinx
        from sphinx.errors import SphinxError
        from sphinx.util.docutils import docutils_namespace
    except ImportError as error:
        raise ImportError(f"site: {error.name} is not installed; run: {install('site')}") from error
    if not (chapters := notebook.chapters(course / "chapters")):
        raise ValueError(f"site: there are no chapters in {course / 'chapters'}")
    if repository is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"site: repository must be owner/name, got {repository!r}")
    if output.is_file():
        raise ValueError(f"site: {output} is a file; give a new or empty folder")
    if output.exists() and any(output.iterdir()) and not (output / "objects.inv").exists():
        raise ValueError(f"site: {output} has files that are not a site; give a new or empty folder")
    progress.try_to_write(next(folder for folder in (output, *output.parents) if folder.is_dir()))
    progress.part("chapters and explorers")
    with tempfile.TemporaryDirectory() as temporary:
        source, log = Path(temporary) / "source", io.StringIO()
        _sources(course, chapters, source, repository)
        places = source, None, Path(temporary) / "html", Path(temporary) / "doctrees"
        try:
            with docutils_namespace(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of one library's about another's
                app = Sphinx(
                    *places, "html", _configuration(source, repository), io.StringIO(), log, warningiserror=True
                )
                _tell(app)
                app.build()
        except (SphinxError, ValueError) as error:
            raise ValueError(f"site: {error}") from error
        finally:
            progress.step("")
        if app.statuscode:
            raise ValueError("site: " + re.sub(r"\x1b\[[\d;]*m", "", log.getvalue()).strip())
        _sitemap(places[2], app.config.smalearn_address)
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(places[2], output, ignore=shutil.ignore_patterns(".buildinfo", "_sources", "*.map"))
    return len(list(output.rglob("*.html")))


def _tell(app):
    """Have Sphinx say when it begins to read and to write pages, and which it is at."""
    app.connect("env-before-read-docs", lambda *_: progress.part("reading pages"))
    app.connect("source-read", lambda app, name, _: progress.step(name))
    app.connect("env-check-consistency", lambda *_: progress.part("writing pages"))
    app.connect("html-page-context", lambda app, name, *_: progress.step(name))


def _sources(course, chapters, source, repository):
    """Write Sphinx's sources: a notebook for each chapter, the other pages, scripts of the explorers, downloads."""
    shutil.copytree(STATIC, source / "static")
    places = {path: path.relative_to(course / "chapters").as_posix() for path in chapters}
    used = set()
    for path, place in places.items():
        shown, names = chapter(path, repository, place)
        used |= names
        files = {place: notebook.dump(shown), f"extra/notebooks/{place}": path.read_bytes()}
        if repository:
            files[f"extra/{COLAB}/{place}"] = notebook.dump(colab(path, repository))
        for name, data in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            notebook.write(source / name, data)
    pages = {"claims": concordance(course)} | reference.pages()
    for name in home.PAGES:
        pages[name], names = home.page(name, course, places, repository)
        used |= names
    pages["index"] += _order(places.values())
    for name, text in pages.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / f"{name}.md").write_text(text, encoding="utf-8")
    _static(source / "static", used, home.stills(places))


def _static(folder, used, stills):
    """Write what pages load: scripts of the explorers, the pictures of the cards, and the letters of formulas.

    A font that a style sheet names comes after the text is seen, which then moves; one that a script holds is there.
    """
    letters = base64.b64encode((folder / "formulas.woff2").read_bytes()).decode("ascii")
    (folder / "formulas.js").write_text(LETTERS.format(letters), encoding="utf-8")
    for name in used:
        (folder / f"{name}.js").write_text(explorers.script(name), encoding="utf-8")
    (folder / "stills").mkdir()
    for name, picture in stills.items():
        (folder / "stills" / f"{name}.png").write_bytes(picture)


def _order(places):
    """Write the order of the pages, which the column on the left shows."""
    chapters = ["ten_minutes", *(place.removesuffix(".ipynb") for place in places)]
    parts = {"Chapters": chapters, "To look things up": ["oral", "claims", "reference"]}
    trees = (
        "\n".join([f"```{{toctree}}\n:hidden:\n:caption: {name}\n", *pages, "```"]) for name, pages in parts.items()
    )
    return "\n\n" + "\n\n".join(trees) + "\n"


def _configuration(source, repository):
    """Return the settings that conf.py would hold."""
    return {
        "project": "smalearn",
        "release": __version__,
        "html_title": "",  # head.py writes the titles
        "smalearn_address": "https://{}.github.io/{}".format(*repository.split("/")) if repository else "",
        "extensions": ["myst_nb", *(f"smalearn.course.site.{name}" for name in ("formulas", "head", "reference"))],
        "nb_execution_mode": "off",
        "myst_enable_extensions": ["amsmath", "attrs_block", "dollarmath"],
        "myst_heading_anchors": 3,
        "suppress_warnings": ["mystnb.unknown_mime_type"],
        "html_theme": "furo",
        "html_search_scorer": str(source / "static" / "scorer.js"),
        "html_show_search_summary": False,  # it would fetch pages, which a folder's page may not
        "html_show_sourcelink": False,
        "html_show_copyright": False,
        "html_use_index": False,
        "html_copy_source": False,
        "html_static_path": [str(source / "static")],
        "html_extra_path": [str(source / "extra")],
        "html_css_files": ["formulas.css", "site.css"],
        "exclude_patterns": ["static", "extra"],
        "html_logo": str(source / "static" / "mark.svg"),
        "html_favicon": str(source / "static" / "mark.svg"),
        "html_theme_options": {
            **_source(repository),
            "light_css_variables": _colours("#a34400"),
            "dark_css_variables": _colours("#ffae66"),
        },
        "pygments_style": "a11y-high-contrast-light",
        **reference.SETTINGS,
    }


def _source(repository):
    """Return the theme's settings for the buttons that show and edit the source of a chapter."""
    if not repository:
        return {}
    address = f"https://github.com/{repository}"
    return {"source_repository": address, "source_branch": "main", "source_directory": "chapters"}


def _sitemap(folder, address):
    """Write the addresses of the pages, for search engines."""
    if not address:
        return
    pages = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.html")) if path.name != "404.html")
    (folder / "sitemap.txt").write_text("".join(f"{address}/{page}\n" for page in pages), encoding="utf-8")


def _colours(own):
    """Return the theme's settings for one colour of our own; the column on the left has that of the text."""
    brand = {f"color-brand-{part}": own for part in ("primary", "content", "visited")}
    return brand | {"color-sidebar-link-text--top-level": "var(--color-foreground-secondary)"}
