"""A result as a card in HTML that reads at a glance, on light and dark pages; all that a learner wrote is escaped."""

from collections.abc import Iterator, Sequence
from html import escape

import torch

from smalearn.course.exercises.compare import sentence_case
from smalearn.course.exercises.judge import Result
from smalearn.course.exercises.report import WRITTEN_OUT, arguments, excerpts, plain_pair, tally

__all__ = ["SYMBOLS", "card", "note"]

SYMBOLS = {"passed": "✓", "not as asked": "◐", "not started": "○"}
COLOURS = {"passed": "#2e9e5b", "not as asked": "#d08a00"}  # the edge; text keeps the page's own colour
WRONG = "#d1495b"
NOTE = "#6b8fb3"
STYLE = """
div.smalearn-card { border-left: 4px solid var(--edge); padding: 2px 0 2px 12px; max-width: 50em; line-height: 1.45;
  color: var(--jp-content-font-color1, inherit); font-family: var(--jp-content-font-family, inherit); }
div.smalearn-card h4 { margin: 0; font-size: 1em; font-weight: 600; }
div.smalearn-card h4 b { color: var(--edge); font-size: 1.15em; }
div.smalearn-card h4 span { float: right; opacity: .7; letter-spacing: .15em; font-weight: 400; }
div.smalearn-card p { margin: .35em 0; }
div.smalearn-card .reason { font-weight: 600; }
div.smalearn-card .faint { opacity: .75; font-size: .92em; }
div.smalearn-card .table { display: inline-block; margin: .3em 2em .3em 0; vertical-align: top;
  max-width: 100%; overflow-x: auto; }
div.smalearn-card table { margin: 0; border-collapse: collapse; font-size: .92em; background: none; }
div.smalearn-card caption { text-align: left; white-space: nowrap; opacity: .75; caption-side: top; padding: 0; }
div.smalearn-card td { font-family: var(--jp-code-font-family, monospace); text-align: right; padding: .1em .45em;
  border: 1px solid rgba(128, 128, 128, .35); background: none; }
div.smalearn-card td.off { background: color-mix(in srgb, #d1495b 28%, transparent); font-weight: 600; }
div.smalearn-card .calls { opacity: .75; font-size: .92em; }
div.smalearn-card .calls button { font: inherit; color: inherit; background: none; border: 1px solid currentColor;
  border-radius: 4px; padding: .15em .7em; margin-right: .5em; cursor: pointer; }
div.smalearn-card pre { margin: .3em 0; padding: .3em .6em; white-space: pre-wrap;
  background: rgba(128, 128, 128, .12) !important; }
"""


def card(result: Result, after: Sequence[str], dots: str | None = None, calls: Sequence[str] = ()) -> str:
    """Write a result as HTML, `after` and `calls` below it; `dots` has a mark for each exercise, None elsewhere."""
    if result.outcome == "not started":
        return ""
    edge = COLOURS.get(result.outcome, WRONG)
    line = " · ".join(f"<code>{escape(call)}</code>" for call in calls)
    return (
        f'<div class="smalearn-card" style="--edge: {edge}" role="group" aria-label="{escape(result.exercise.id)}">'
        f"<style>{STYLE}</style>{''.join(_parts(result, after, dots))}"
        f"{line and f'<p class=calls>{line}</p>'}</div>"
    )


def note(paragraphs: Sequence[str]) -> str:
    """Write hints, or what follows a solution, as HTML."""
    lines = "".join(f"<p>{escape(text)}</p>" for text in paragraphs)
    return f'<div class="smalearn-card" style="--edge: {NOTE}"><style>{STYLE}</style>{lines}</div>'


def _parts(result: Result, after: Sequence[str], dots: str | None) -> Iterator[str]:
    exercise, problem = result.exercise, result.problem
    symbol = SYMBOLS.get(result.outcome, "✗")
    yield f"<h4><b>{symbol}</b> {escape(f'{exercise.id} {exercise.title}')} <span>{dots or ''}</span></h4>"
    reason = result.misconception or result.sign
    if result.detours:
        yield "<p>All answers are right, but not found as asked:</p>"
    for text in [reason] if reason else result.detours:
        yield f'<p class="reason">{escape(sentence_case(text))}</p>'
    if problem and not (reason and problem.in_form):
        yield f'<p class="{"" if reason else "reason"}">{escape(problem.sentence)}</p>'
    if result.case is None:
        yield _faint([tally(result)] if tally(result) else [])
    elif lines := arguments(result):
        yield _faint([f"{tally(result)}; {'the smallest' if result.smallest else 'one'} that did not:"])
        small = {name: value for name, value in result.arguments.items() if _is_small(value)}
        yield f"<div>{''.join(_table(name, _rows(value)) for name, value in small.items())}</div>"
        if others := [line for line in lines if line.split()[0] not in small]:
            yield _pre(others)
    else:
        yield _faint([tally(result)])
    if problem and problem.target is not None:
        yield from _tables(problem.target, problem.answer)
    if problem and problem.lines:
        yield _pre(problem.lines)
    if result.printed:
        yield _faint(["your code printed"]) + _pre(result.printed)
    if dots is not None and result.outcome in ("failed", "error", "timeout"):
        name = exercise.solution.__name__
        yield _faint([f"{name} is our solution from here on; to have yours back, run its cell."])
    yield "".join(f"<p>{escape(text)}</p>" for text in after if text)


def _is_small(value: object) -> bool:
    """Whether an argument is written out as a table."""
    return isinstance(value, torch.Tensor) and 0 < value.numel() <= WRITTEN_OUT and 1 <= value.ndim <= 2


def _rows(argument: torch.Tensor) -> list[list[str]]:
    return [[f"{entry:.4g}" for entry in row] for row in argument.reshape(-1, argument.shape[-1]).tolist()]


def _faint(texts: Sequence[str]) -> str:
    return "".join(f'<p class="faint">{escape(text)}</p>' for text in texts)


def _pre(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _tables(target: object, answer: object) -> Iterator[str]:
    """Expected and got beside each other, entries that differ marked."""
    if isinstance(target, torch.Tensor):
        *pair, facts = excerpts(target, answer)
    else:
        pair, facts = [[[text]] for text in plain_pair(target, answer)], ""
    for caption, entries, other in zip(("expected", "your answer"), pair, reversed(pair), strict=True):
        yield _table(caption, entries, other)
    yield _faint([facts] if facts else [])


def _table(caption: str, entries: Sequence[Sequence[str]], other: Sequence[Sequence[str]] | None = None) -> str:
    """One of them, entries that differ from those of the other marked."""
    rows = [
        "".join(f"<td{' class=off' if a != b else ''}>{escape(a)}</td>" for a, b in zip(line, beside, strict=True))
        for line, beside in zip(entries, other or entries, strict=True)
    ]
    table = f"<table><caption>{escape(caption)}</caption><tr>{'</tr><tr>'.join(rows)}</tr></table>"
    return f'<div class="table">{table}</div>'  # JupyterLab decides on the margins of tables themselves
