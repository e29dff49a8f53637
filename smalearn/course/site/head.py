"""Head of a page: its title, and what is seen of it where somebody shares a link to it."""

import re
import textwrap
from html import escape, unescape

__all__ = ["setup"]


def setup(app) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_config_value("smalearn_address", "", "html")
    app.connect("html-page-context", _complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _complete(app, name, template, context, doctree):
    """Give a page its title, its lines of meta-data, and the scripts by which nothing moves once it is seen."""
    context["docstitle"] = context["docstitle"] or ("smalearn" if name == "search" else "")
    title = _text(context.get("title") or "smalearn")
    scripts = ["formulas.js"] if "<math" in (context.get("body") or "") else []
    picture = context["pathto"]("_static/card.png", 1)
    if address := app.config.smalearn_address:
        picture = f"{address}/_static/card.png"
    if context.get("page_source_suffix") != ".ipynb":
        context["page_source_suffix"] = ""  # which is made, and has no source to show or edit
    lines = {"og:type": "website", "og:site_name": "smalearn", "og:title": title, "og:image": picture}
    lines |= {"og:image:width": "1200", "og:image:height": "630", "twitter:card": "summary_large_image"}
    tags = [f'<script src="{context["pathto"](f"_static/{file}", 1)}"></script>' for file in [*scripts, "site.js"]]
    if words := _summary(context.get("body") or ""):
        lines["og:description"] = words
        tags.append(f'<meta name="description" content="{escape(words)}">')
    if name == "404" and app.config.smalearn_address:
        tags.insert(0, f'<base href="{app.config.smalearn_address}/">')  # it stands for pages of any folder
    tags += [f'<meta property="{key}" content="{escape(value)}">' for key, value in lines.items()]
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)
    context["title"] = f"{title} · smalearn" if title != "smalearn" else title


def _summary(body):
    """Take the first paragraph of a page that says something and needs no formula, cut to what is shown of it."""
    for attributes, inside in re.findall(r"<p\b([^>]*)>(.*?)</p>", body, re.DOTALL):
        if len(words := _text(inside)) > 60 and "<math" not in inside and "buttons" not in attributes:
            return textwrap.shorten(words, 200, placeholder=" …")
    return ""


def _text(html):
    """Leave out the tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())
