"""Formulas as MathML, which browsers draw without a script; and the Sphinx extension that writes them so."""

import re

from math_core import LatexError, LatexToMathML

__all__ = ["mathml", "setup", "together"]

CONVERTER = LatexToMathML(fancy_error=False)
TAG = re.compile(r"\\tag\{([^{}]*)\}")
BIG = re.compile(r'<mo minsize="(\S+)" maxsize="\1">')  # Chromium leaves as much room as the widest bracket needs
END = re.compile(r"(<math>(?:(?!<math).)*?</math>)([.,;:!?)”’]+)", re.DOTALL)


def mathml(latex: str, display: bool) -> str:
    r"""Translate a formula; one in a line of its own has its number, a \tag, to the right of it.

    Raises:
        ValueError: a command is unknown, or a brace is missing.
    """
    try:
        made = CONVERTER.convert_with_local_state(TAG.sub("", latex), displaystyle=display)
    except LatexError as error:
        raise ValueError(f"{error} in the formula {latex}") from error
    made = made.replace("<mo>′</mo>", '<mo class="prime">′</mo>')
    made = BIG.sub(r'<mo class="big" stretchy="false" style="font-size: \1">', made)
    if not display:
        return made
    number = "".join(f'<span class="eqno">({tag})</span>' for tag in TAG.findall(latex))
    return f'<div class="formula">{made}{number}</div>'


def together(page: str) -> str:
    """Keep the full stop behind a formula from beginning a line."""
    return END.sub(r'<span class="together">\1\2</span>', page)


def setup(app):
    """Register the writer of formulas."""
    from docutils import nodes

    def write(writer, node):
        writer.body.append(mathml(node.astext(), isinstance(node, nodes.math_block)))
        raise nodes.SkipNode

    def finish(app, name, template, context, doctree):
        context["body"] = together(context.get("body") or "")

    app.add_html_math_renderer("mathml", inline_renderers=(write, None), block_renderers=(write, None))
    app.config.html_math_renderer = "mathml"
    app.connect("html-page-context", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
