"""Concordance: what the sources claim, where the course derives it, which test holds it, and how exactly."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.workbook import notebook

__all__ = ["Claim", "claims", "page", "table"]

SOURCES = {
    "000": "Dao and Gu 2024, *Transformers are SSMs* (the Mamba-2 paper), section 4",
    "001": "Paltorp 2025, *Structured Masked Attention* (a post)",
    "002": "*Linear Attention* (a note)",
    "003": "Kuang and others 2025, *Customizing the Inductive Biases of Softmax Attention*",
    "004": "Gu and Dao 2024, *State Space Duality (Mamba-2)* (a post and its listing)",
}


@dataclass(frozen=True)
class Claim:
    """Claim of a source, and what the course makes of it.

    Args:
        id: the source's number and a short name, "000:eq10".
        source: where it stands.
        statement: what is claimed.
        chapter: number of the chapter that derives it, or letter of the appendix.
        section: heading there below which its test, an exercise on it or its function is first named; "" if none is.
        erratum: what is wrong or missing in the source; "" if nothing is.
        tests: names of the tests that pin it; none while it is planned.
        functions: what these tests are about, by dotted name.
        residual: the largest relative error that the tests met when last recorded; None if that has not been
            recorded, or if they measure none.
    """

    id: str
    source: str
    statement: str
    chapter: str
    section: str
    erratum: str
    tests: tuple[str, ...]
    functions: tuple[str, ...]
    residual: float | None


def claims(course: Path) -> list[Claim]:
    """Read all claims, in the order of `tests/claims.toml`.

    Args:
        course: the folder with `chapters/` and `tests/`.

    Raises:
        ValueError: the folder has no list of claims.
    """
    path = course / "tests" / "claims.toml"
    if not path.is_file():
        raise ValueError(f"claims: there is no file {path}; give the course's folder")
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
    marks, recorded = _marks(course / "tests"), course / "assets" / "results" / "claims.json"
    residuals = json.loads(recorded.read_text(encoding="utf-8"))["residuals"] if recorded.exists() else {}
    sections = {number: list(_sections(file)) for number, file in _files(course).items()}
    return [_claim(entry, marks.get(entry["id"], []), residuals, sections) for entry in listed]


def _claim(entry, marks, residuals, sections):
    """Join an entry of the list with what the tests and chapters say about it."""
    tests, functions = (tuple(dict.fromkeys(part)) for part in zip(*marks, strict=True)) if marks else ((), ())
    passages = sections.get(entry["chapter"], [])
    names = [*tests, entry["id"], *(name.rpartition(".")[2] for name in functions)]
    titles = (title for name in names for title, text in passages if re.search(rf"\b{re.escape(name)}\b", text))
    fields = {name: entry[name] for name in ("id", "source", "statement", "chapter")}
    return Claim(
        **fields,
        section=next(titles, ""),
        erratum=entry.get("erratum", ""),
        tests=tests,
        functions=functions,
        residual=residuals.get(entry["id"]),
    )


def _files(course):
    """Map the number, or letter, of every chapter to its file."""
    return {file.stem.partition("_")[0]: file for file in notebook.chapters(course / "chapters")}


def _marks(folder):
    """Map each claim to (test, function) of its markers in the tests, read from their source."""
    marks = {}
    for path in sorted(folder.rglob("*.py")):
        for test in ast.parse(path.read_text(encoding="utf-8")).body:
            for node in getattr(test, "decorator_list", []):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.claim"):
                    claim, function = map(ast.literal_eval, node.args)
                    marks.setdefault(claim, []).append((test.name, function))
    return marks


def _sections(path):
    """Yield heading and text, code included, of each section of a chapter; its imports are not a section."""
    title, text = "", ""
    for cell in (notebook.read(path) or {"cells": []})["cells"]:
        if "setup" in cell["metadata"].get("tags", []):
            continue
        for line in cell["source"].splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("#"):
                yield title, text
                title, text = line.lstrip("# "), ""
            text += line + "\n"
    yield title, text


def table(listed: Sequence[Claim], pattern: str = "") -> str:
    """Write claims for a terminal: those whose id, statement, function or test has the pattern in it.

    Args:
        listed: what `claims` returns.
        pattern: in any case.
    """
    lines = []
    for claim in listed:
        text = " ".join([claim.id, claim.statement, *claim.functions, *claim.tests])
        if pattern.lower() in text.lower():
            lines += [f"{claim.id}  ({claim.source})", f"  {claim.statement}"]
            lines += [f"  {_named(claim)}{f', {claim.section}' * bool(claim.section)}; {_held(claim)}"]
            lines += [f"  {function}: {', '.join(claim.tests)}" for function in claim.functions[:1]]
            lines += [f"  source corrected: {claim.erratum}"] * bool(claim.erratum)
    return "\n".join(lines) or f"no claim has {pattern!r} in it"


def _named(claim):
    """Name the chapter and its number, or the appendix and its letter."""
    return f"{'chapter' if claim.chapter.isdigit() else 'appendix'} {claim.chapter}"


def _held(claim):
    """Say how exactly its tests hold a claim."""
    if not claim.tests:
        return "not yet tested"
    if claim.residual is None:
        return "tested"
    return f"error {claim.residual:.0e}" if claim.residual else "exact"


def page(course: Path) -> str:
    """Write Markdown: an entry for each claim, source by source."""
    listed = claims(course)
    folder = course / "chapters"
    places = {number: file.relative_to(folder).as_posix() for number, file in _files(course).items()}
    parts = ["# Concordance", _introduction(listed)]
    for number, title in SOURCES.items():
        parts += [f"## {number}", title]
        for claim in listed:
            if claim.id.startswith(number):
                parts += _entry(claim, places)
    return "\n\n".join(parts) + "\n"


def _introduction(listed):
    """Say how many claims there are, and what an entry tells."""
    pinned, wrong = sum(bool(claim.tests) for claim in listed), sum(bool(claim.erratum) for claim in listed)
    error = (
        " The error is the largest relative error that the tests of a claim met when it was last recorded; where there "
        "is none, they count, compare structures or hold a bound."
    )
    return (
        f"What the five sources claim, and what the course makes of it: {len(listed)} claims, {pinned} of them pinned "
        f"by tests that fail when the function is wrong by a thousandth, and {wrong} corrections."
    ) + error * any(claim.residual is not None for claim in listed)


def _entry(claim, places) -> Iterator[str]:
    """Yield paragraphs: what is claimed and corrected, and where it is derived and tested."""
    yield f"### {claim.id}"
    yield f"{_prose(claim.statement)} *({_prose(claim.source)})*"
    if claim.erratum:
        yield f"> **Correction.** {_prose(claim.erratum)}"
    name = _named(claim)
    is_written = claim.chapter in places
    place = f"[{name[0].upper()}{name[1:]}]({places[claim.chapter]})" if is_written else "Not yet in a chapter"
    parts = [place + (f", {_prose(claim.section)}" if claim.section else "")]
    parts += [", ".join(f"`{name}`" for name in claim.functions + claim.tests)] * bool(claim.tests)
    yield " · ".join([*parts, _held(claim)] if _held(claim) != "tested" else parts)


def _prose(text) -> str:
    """Escape a text so that no character in it begins markup."""
    for sign in "\\|*_<>[]$`#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())
