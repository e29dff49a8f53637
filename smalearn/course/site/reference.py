"""Sphinx extension and its page: autodoc reads the signatures, napoleon the sections of the docstrings."""

import pkgutil
import re

import smalearn

__all__ = ["SETTINGS", "page", "setup"]

WORKSHOP = {"course", "lab"}
TRANSFORMS = """## PyTorch's transforms

| | readable forms, masks, weights | `fast`, `tiled_attention` | `models` |
|---|---|---|---|
| `torch.compile`, `torch.export` | yes | as one operation | yes |
| `torch.func.vmap`, gradients by sample | yes | one call; its gradients scan forward once more | yes |
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
    "napoleon_use_ivar": True,
    "napoleon_use_rtype": False,
    "python_maximum_signature_line_length": 75,
    "python_use_unqualified_type_names": True,
}


def page() -> str:
    """Write Markdown: a section for each room and module of the mathematics, an entry for each public name in it."""
    names = [module.name for module in pkgutil.iter_modules(smalearn.__path__)]
    rooms = [f"smalearn.{name}" for name in names if name not in WORKSHOP and not name.startswith("_")]
    sections = [f"## {room}\n\n```{{eval-rst}}\n.. automodule:: {room}\n```\n" for room in rooms]
    introduction = "# Reference\n\nEvery public function, by module. Shapes are written `(..., T, N)`.\n"
    return "\n".join([introduction, TRANSFORMS, *sections])


def setup(app):
    """Register autodoc, napoleon, and what makes our docstrings reStructuredText before napoleon reads them."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.connect("autodoc-process-docstring", _restructured, priority=400)
    app.connect("autodoc-process-signature", _readable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _readable(app, what, name, value, options, signature, annotation):
    """Change a signature into one that Sphinx can parse: one with "..." for a default that is a function."""
    return re.sub(r"<function (?:[^<>]|<\w+>)*>", "...", signature or "") or None, annotation


def _restructured(app, what, name, value, options, lines):
    """Escape what is markup to Sphinx alone, such as |x| and log_; keep an indented block, a formula, as it stands."""
    prose, *sections = re.split(r"^(?=[A-Z][a-z]+:(?: |$))", "\n".join(lines), flags=re.MULTILINE)
    formula = ".. code-block:: text\n\n"
    blocks = [formula + text if text.startswith("    ") else _escaped(text) for text in re.split(r"\n\s*\n", prose)]
    sections = [text if text.startswith("Example:") else _escaped(text) for text in sections]
    lines[:] = "\n\n".join([*blocks, *sections]).split("\n")


def _escaped(text):
    """Escape a text so that no character outside of code begins markup."""
    code = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_|])", r"\\\1", part) for part in code)
