"""Claims: what the sources claim, where the course derives it, which test holds it, and how exactly."""

import ast
import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smalearn.course.workbook import notebook

__all__ = ["CLASSES", "SOURCES", "Claim", "claims", "files", "held", "named", "table"]

SOURCES = {
    "000": ("The Mamba-2 paper", "Dao and Gu 2024, *Transformers are SSMs*, section 4"),
    "001": ("Structured masked attention, a post", "Paltorp 2025, *Structured Masked Attention*"),
    "002": ("Linear attention, a note", "*Linear Attention*, without an author"),
    "003": ("Structured scores", "Kuang and others 2025, *Customizing the Inductive Biases of Softmax Attention*"),
    "004": ("The Mamba-2 posts, a draft", "Gu and Dao 2024, *State Space Duality (Mamba-2)*, with their listing"),
    "005": ("The delta rule", "Schlag and others 2021, Yang and others 2024, and what followed"),
    "006": ("Mamba-3", "Lahoti and others 2026"),
    "007": ("Log-linear attention and two directions", "Guo and others 2025, Hwang and others 2024"),
    "008": ("Today's layers", "RWKV-7, Comba, Gated DeltaNet-2, PaTH, FoX and the attention of DeepSeek-V2"),
    "009": ("Serving a state", "vLLM's page on prefix caching, its discussions of replay and of few bits"),
}
"""For each number the name of a source, and the source."""
CLASSES = {
    "error": "Correction",
    "gap": "Not said there",
    "draft": "In the draft only",
    "code differs": "Text and published code differ",
    "remark": "Remark",
}


@dataclass(frozen=True)
class Claim:
    """Claim of a source, and what the course makes of it."""

    id: str  # the source's number and a short name, "000:eq10"
    source: str  # where it stands
    statement: str
    check: str  # what its tests demand
    chapter: str  # number of the one that derives it, or letter of an appendix
    where: str  # id of the cell there that derives it; "" until the chapter has it
    section: str  # heading above that cell
    verdict: str  # of an experiment, "reproduced in small" say; "" for what is none
    erratum: str  # what is wrong or missing in the source
    nature: str  # of the erratum: a key of the table above
    tests: tuple[str, ...]  # names; none while it is planned
    functions: tuple[str, ...]  # what these tests are about, by dotted name
    residual: float | None  # the largest relative error that they met when last recorded, if they measure one


def claims(course: Path) -> list[Claim]:
    """Read all claims, in the order of the chapters: each has its own in `tests/ch06/claims.toml` and so on."""
    listed = [
        entry
        for path in sorted((course / "tests").glob("ch*/claims.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]
    ]
    if not listed:
        raise ValueError(f"claims: there is no file ch*/claims.toml in {course / 'tests'}; give the course's folder")
    marks, recorded = _marks(course / "tests"), course / "assets" / "results" / "claims.json"
    residuals = json.loads(recorded.read_text(encoding="utf-8"))["residuals"] if recorded.exists() else {}
    sections = {number: _sections(file) for number, file in files(course).items()}
    return [_claim(entry, marks.get(entry["id"], []), residuals, sections) for entry in listed]


def _claim(entry, marks, residuals, sections):
    """Join an entry of the list with what the tests and chapters say about it."""
    tests, functions = (tuple(dict.fromkeys(part)) for part in zip(*marks, strict=True)) if marks else ((), ())
    fields = {name: entry[name] for name in ("id", "source", "statement", "check", "chapter", "where")}
    return Claim(
        **fields,
        section=sections.get(entry["chapter"], {}).get(entry["where"], ""),
        verdict=entry.get("verdict", ""),
        erratum=entry.get("erratum", ""),
        nature=entry.get("class", ""),
        tests=tests,
        functions=functions,
        residual=residuals.get(entry["id"]),
    )


def files(course):
    """Map the number, or letter, of every chapter to its file."""
    return {file.stem.partition("_")[0]: file for file in notebook.chapters(course / "chapters")}


def _marks(folder):
    """Map each claim to (test, function) of its markers in the tests, read from their source."""
    marks = {}
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for test in ast.parse(text).body if "mark.claim" in text else ():
            for node in getattr(test, "decorator_list", []):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.claim"):
                    claim, function = map(ast.literal_eval, node.args)
                    marks.setdefault(claim, []).append((test.name, function))
    return marks


def _sections(path):
    """Map the id of each cell of a chapter to the heading above it."""
    title, sections = "", {}
    for cell in (notebook.read(path) or {"cells": []})["cells"]:
        if cell["cell_type"] == "markdown":
            headings = [line for line in cell["source"].splitlines() if line.startswith("#")]
            title = headings[-1].lstrip("# ") if headings else title
        sections[cell.get("id", "")] = title
    return sections


def table(listed: Sequence[Claim], pattern: str = "") -> str:
    """Write claims for a terminal: those with the pattern in their id, statement, function or test."""
    if not pattern:
        return _summary(listed)
    lines = []
    for claim in listed:
        text = " ".join([claim.id, claim.statement, *claim.functions, *claim.tests])
        if pattern.lower() in text.lower():
            lines += [f"{claim.id}  ({claim.source})", f"  {claim.statement}"]
            lines += [f"  {_place(claim)}; {held(claim)}", f"  tested: {claim.check}"]
            lines += [f"  {function}: {', '.join(claim.tests)}" for function in claim.functions[:1]]
            lines += [f"  {CLASSES.get(claim.nature, '').lower()}: {claim.erratum}"] * bool(claim.erratum)
    return "\n".join(lines) or f"no claim has {pattern!r} in it"


def _summary(listed):
    """Count claims by source, experiments by verdict, and corrections by class."""
    lines = [
        f"{len(listed)} claims of {len(SOURCES)} sources; `smalearn claims PATTERN` shows those with a word in them"
    ]
    for number, (name, title) in SOURCES.items():
        count = sum(claim.id.startswith(number) for claim in listed)
        lines.append(f"  {number}  {count:3}  {name}: {title.replace('*', '')}")
    for heading, counted in (
        ("experiments", Counter(claim.verdict for claim in listed)),
        ("notes on the sources", Counter(claim.nature for claim in listed)),
    ):
        lines.append(f"{heading}: " + ", ".join(f"{count} {name}" for name, count in counted.most_common() if name))
    return "\n".join(lines)


def _place(claim):
    """Say where the course derives a claim."""
    if not claim.where:
        return f"not yet in {named(claim)}"
    return f"{named(claim)}, {claim.section}"


def named(claim):
    """Name the chapter and its number, or the appendix and its letter."""
    return f"{'chapter' if claim.chapter.isdigit() else 'appendix'} {claim.chapter}"


def held(claim):
    """Say how exactly its tests hold a claim; of an experiment, what came of it."""
    if not claim.tests:
        return "not yet tested"
    if claim.verdict:
        return claim.verdict
    if claim.residual is None:
        return "tested"
    return f"error {claim.residual:.0e}" if claim.residual else "exact"
