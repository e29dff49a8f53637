"""Sphinx extension and its page: autodoc reads the signatures, napoleon the sections of the docstrings."""

import importlib
import pkgutil
import re

import smalearn
from smalearn.course.site.latex import latex

__all__ = ["SETTINGS", "pages", "rooms", "setup"]

WORKSHOP = {"course"}
PARTS = ["fast.distributed"]
"""Modules that are imported by names of their own, and not from their room."""
INTRODUCTION = """# Reference

Every public function, by module. Shapes are written `(..., T, N)`.

| `smalearn.` | |
|---|---|"""
TRANSFORMS = """## PyTorch's transforms

| | readable forms, masks, weights | `fast`, `tiled_attention` | `models` |
|---|---|---|---|
| `torch.compile`, `torch.export` | yes | as one operation | yes |
| export for a varying length | without a loop or doubling | yes; delta rules not by feature | where `varies` is true |
| `torch.utils.checkpoint` | yes | yes | yes |
| `torch.func.vmap`, gradients by sample, in batches | yes | one call; its gradients scan forward once more | yes |
| second derivatives | yes | those of the readable form | not `SoftmaxAttention` on a CPU |
| autocast, meta tensors | yes | yes | yes |
| forward mode (`jvp`) | yes | refused, with the form to use | where all parts have it |

Every public function of arrays, every mixer and every weight is tested so in `tests/test_transforms.py`.
"""
SETTINGS = {
    "autodoc_default_options": {"members": True},  # those that `__all__` names
    "autodoc_preserve_defaults": True,
    "autodoc_typehints_format": "short",
    "default_role": "code",  # `x` is code in our docstrings
    "napoleon_attr_annotations": False,
    "napoleon_custom_sections": ["Cost", "Source"],
    "napoleon_numpy_docstring": False,
    "napoleon_use_ivar": True,
    "napoleon_use_rtype": False,
    "python_maximum_signature_line_length": 75,
    "python_use_unqualified_type_names": True,
}


def rooms() -> list[str]:
    """Name the rooms of the mathematics, each a page."""
    names = sorted([*(module.name for module in pkgutil.iter_modules(smalearn.__path__)), *PARTS])
    return [name for name in names if name.partition(".")[0] not in WORKSHOP and not name.startswith("_")]


def pages() -> dict[str, str]:
    """Write Markdown: a page for each room of the mathematics, with every public name in it, and a list of them."""
    lines = {room: _first_line(room) for room in rooms()}
    rows = [f"| [{room}](reference/{room}.md) | {line} |" for room, line in lines.items()]
    order = "\n".join(["```{toctree}", ":hidden:", "", *(f"reference/{room}" for room in lines), "```"])
    pages = {"reference": "\n".join([INTRODUCTION, *rows, "", TRANSFORMS, order, ""])}
    for room in lines:
        pages[f"reference/{room}"] = f"# {room}\n\n```{{eval-rst}}\n.. automodule:: smalearn.{room}\n```\n"
    return pages


def _first_line(room):
    """Read what a room is, from the first line of its docstring."""
    return importlib.import_module(f"smalearn.{room}").__doc__.partition("\n")[0].rstrip(".")


def setup(app):
    """Register autodoc, napoleon, and what makes our docstrings reStructuredText before napoleon reads them."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("autodoc-process-docstring", _restructured, priority=400)
    app.connect("autodoc-process-signature", _readable)
    app.connect("html-page-context", _listed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _readable(app, what, name, value, options, signature, annotation):
    """Change a signature into one that Sphinx can parse: one with "..." for a default that is a function."""
    return re.sub(r"<function (?:[^<>]|<\w+>)*>", "...", signature or "") or None, annotation


def _listed(app, page, template, context, doctree):
    """Change the list of parameters, terms without a name to a screen reader, into plain boxes."""
    parts = re.split(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>', context.get("body", ""))
    for place in range(1, len(parts), 2):
        boxes = parts[place].replace("<dd>", "<div>").replace("</dd>", "</div>")
        parts[place] = f'<div class="parameters">\n{boxes}</div>'
    context["body"] = "".join(parts)


def _restructured(app, what, name, value, options, lines):
    """Escape what is markup to Sphinx alone, such as |x| and log_; set an indented block as a formula."""
    prose, *sections = re.split(r"^(?=[A-Z][a-z]+:(?: |$))", "\n".join(lines), flags=re.MULTILINE)
    blocks = [_set(text) if text.startswith("    ") else _escaped(text) for text in re.split(r"\n\s*\n", prose)]
    sections = [text if text.startswith("Example:") else _escaped(text) for text in sections]
    if what in ("attribute", "data", "property"):
        blocks[0] = f": {blocks[0]}"  # no type: else napoleon takes what stands before a colon for it
    lines[:] = "\n\n".join([*blocks, *sections]).split("\n")


def _set(block):
    """Set an indented block as a formula, or else as it stands."""
    if formula := latex(block):
        return f".. math::\n\n    {formula}"
    return f".. code-block:: text\n\n{block}"


def _escaped(text):
    """Escape a text so that no character outside of code begins markup."""
    code = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_|])", r"\\\1", part) for part in code)
