"""Sphinx extension: formulas leave as LaTeX, and KaTeX sets them in the reader's browser (static/site.js)."""

from html import escape

__all__ = ["setup"]


def setup(app):
    """Register the writer of formulas."""
    from docutils import nodes

    def inline(writer, node):
        writer.body.append(f'<span class="formula">{escape(node.astext())}</span>')
        raise nodes.SkipNode

    def display(writer, node):
        identity = "".join(f' id="{name}"' for name in node["ids"][:1])
        number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
        writer.body.append(f'<div class="formula"{identity}>{escape(node.astext())}</div>{number}')
        raise nodes.SkipNode

    app.add_html_math_renderer("katex", inline_renderers=(inline, None), block_renderers=(display, None))
    app.config.html_math_renderer = "katex"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
