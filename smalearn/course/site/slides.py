"""Chapter as slides: reveal.js by nbconvert, with explorers that move, and nothing loaded from elsewhere.

A heading begins a slide to the right; each further text, with the code and the output below it, one further down.
"""

import re
import shutil
from pathlib import Path

from smalearn._files import install
from smalearn.course.site import explorers
from smalearn.course.site.pages import chapter
from smalearn.course.workbook import notebook

__all__ = ["slides"]

HERE = Path(__file__).parent
TEMPLATE = """
{%- extends 'reveal/index.html.j2' -%}
{%- block html_head_js -%}
<script src="_static/site.js"></script>
{%- endblock -%}
{%- block html_head_js_mathjax -%}<link rel="stylesheet" href="_static/formulas.css">{%- endblock -%}
{%- block footer_js -%}
<script src="reveal/dist/reveal.js"></script>
<script>Reveal.initialize({ hash: true, disableLayout: true, viewDistance: 999, transition: "none" });</script>
{%- endblock -%}
"""
MATH = re.compile(r"(```.*?```|`[^`\n]+`)|\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)


def slides(path: Path, output: Path) -> Path:
    """Write a chapter as slides, and beside it what they load."""
    try:
        import nbformat
        from nbconvert import SlidesExporter

        from smalearn.course.site.formulas import together
    except ImportError as error:
        raise ImportError(f"{error.name} is not installed; run: {install('lab,site')}") from error
    source, used = chapter(path)
    exporter = SlidesExporter(raw_template=TEMPLATE, reveal_url_prefix="reveal", reveal_theme="smalearn")
    data = notebook.dump(source | {"cells": _arranged(source), "nbformat": 4, "nbformat_minor": 5})
    made = nbformat.reads(data.decode("utf-8"), as_version=4)
    page, _ = exporter.from_notebook_node(made, {"metadata": {"name": path.stem}})
    for name, target in (("static", "_static"), ("reveal", "reveal")):
        shutil.copytree(HERE / name, output / target, dirs_exist_ok=True)
    for name in used:
        (output / "_static" / f"{name}.js").write_text(explorers.script(name), encoding="utf-8")
    notebook.write(output / f"{path.stem}.html", together(page).encode("utf-8"))
    return output / f"{path.stem}.html"


def _arranged(source: notebook.Notebook) -> list[dict]:
    """Mark where slides begin; leave out what a class does not look at: set-up, checks, hints, solutions."""
    checks = {cells[-1]["id"] for cells in notebook.exercises(source).values()}
    shown, before = [], ""
    for cell in source["cells"]:
        is_text, id = cell["cell_type"] == "markdown", str(cell["id"])
        if id == "buttons" or id.startswith("help-") or id in checks or "setup" in cell["metadata"].get("tags", []):
            continue
        if is_text:
            cell = cell | {"source": MATH.sub(_formula, cell["source"])}
        is_heading = is_text and re.match(r"##? ", cell["source"])
        kind = "slide" if is_heading or not shown else "subslide" if is_text and before == "code" else "-"
        shown.append(cell | {"metadata": cell["metadata"] | {"slideshow": {"slide_type": kind}}})
        before = cell["cell_type"]
    return shown


def _formula(match: re.Match) -> str:
    """Write a formula as HTML that Markdown leaves alone; code stays as it is."""
    from smalearn.course.site.formulas import mathml

    code, display, inline = match.groups()
    if code:
        return code
    if display:
        return f"\n\n{mathml(display, True)}\n\n"
    return re.sub(r"[*_`\[\]\\|]", lambda sign: f"&#{ord(sign[0])};", mathml(inline, False))
