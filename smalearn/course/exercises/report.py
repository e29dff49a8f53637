"""Say a result in text: the same on every machine, at most a page wide, in a notebook or on any console."""

import math
import sys
import textwrap
from collections.abc import Callable, Mapping

import torch

from smalearn.course.exercises.compare import KINDS, kind, sentence_case
from smalearn.course.exercises.judge import Result

MIME = "application/vnd.smalearn.check+json"
WIDTH = 100
PANEL = 46  # two of them, and what stands between them, make a page
ROWS, COLUMNS = 6, 6
COUNTED = {"prove": "instances hold", "break": "counterexamples hold", "open": "goals reached"}
WRITTEN_OUT = 12  # entries of an argument that is shown in full


def render(result: Result) -> str:
    """Say the result of a check as text."""
    exercise, seed = result.exercise, result.seed
    head = f"{exercise.id} {exercise.title}"
    if result.outcome == "not started" and result.problem:
        lines = _wrap(f"○ {exercise.id}: {result.problem.sentence}")
    elif result.outcome == "not started":
        lines = [f"○ {exercise.id} not started; later cells use the reference solution"]
    elif result.outcome == "passed":
        lines = [f"✓ {head}: {tally(result)}"]
    elif result.outcome == "not as asked":
        lines = [f"◐ {head}: all {result.cases} cases are right, but not found as asked (seed {seed})"]
        lines += [line for detour in result.detours for line in _wrap(f"→ {sentence_case(detour)}", "  ")]
    elif result.case is None:
        lines = _wrap(f"✗ {head}: {result.problem.sentence}")
        lines += [part for line in result.problem.lines for part in _wrap(line, "    ")]
        if result.problem.target is not None and exercise.kind != "predict":
            lines += [f"    {line}" for line in side_by_side(result.problem.target, result.problem.answer)]
        lines += [line for text in [result.misconception] if text for line in _wrap(f"→ {sentence_case(text)}", "  ")]
    else:
        lines = [f"✗ {head}: {tally(result)}", *_failure(result)]
    if result.outcome in ("failed", "error", "timeout"):
        name = exercise.solution.__name__
        lines.append(f"  {name} is our solution from here on; to have yours back, run its cell.")
    if result.printed:
        lines += ["  Your code printed:", *(f"  | {line}".rstrip() for line in result.printed)]
    return "\n".join(lines)


def tally(result: Result) -> str:
    """How many cases are right, in the words of the exercise's kind."""
    kind = result.exercise.kind
    if kind == "predict":
        return "as you predicted" if result.outcome == "passed" else ""
    count = f"{result.cases}" if result.outcome == "passed" else f"{result.passed} of {result.cases}"
    return f"{count} {COUNTED.get(kind, 'cases passed')} (seed {result.seed})"


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def _failure(result: Result) -> list[str]:
    """Describe a failing case: its arguments, what is wrong, the two values, the misconception."""
    problem = result.problem
    first = "Smallest failing case:" if result.smallest else "Of the failing cases:"
    intro = "In case" if result.outcome == "timeout" else first
    lines = [f"  {intro} {result.case} of {result.cases}"]
    for line in arguments(result):
        lines += _wrap(line, "    ")
    lines += _wrap(problem.sentence, "  ")
    if problem.target is not None:
        lines += [f"    {line}" for line in side_by_side(problem.target, problem.answer)]
    lines += [part for line in problem.lines for part in _wrap(line, "    ")]
    if reason := result.misconception or result.sign:
        lines += _wrap(f"→ {sentence_case(reason)}", "  ")
    return lines


def arguments(result: Result) -> list[str]:
    """The arguments of the failing case, but for an object of which only the type could be told."""
    lines = ((argument(name, value), f"{name} = {type(value).__name__}") for name, value in result.arguments.items())
    return [line for line, bare in lines if line != bare]


def argument(name: str, value: object) -> str:
    """Write an argument as a line that can be pasted; where that would be long, say what it is."""
    text = _describe(value)
    line = f"{name} {text[len('Tensor ') :]}" if text.startswith("Tensor of ") else f"{name} = {text}"
    scattered = isinstance(value, torch.Tensor) and not value.is_contiguous()
    return f"{line}  # strides {value.stride()}" if scattered else line


def _describe(value: object) -> str:
    """Write a value as Python would; a big tensor, or an object, by its type and shape."""
    if isinstance(value, torch.Tensor) and 0 < value.numel() <= WRITTEN_OUT:
        dtype = "" if value.dtype in (torch.int64, torch.bool) else f", dtype={value.dtype}"
        return f"torch.tensor({_entries(value.tolist())}{dtype})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        inside = ", ".join(map(_describe, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if value is None or (kind(value) in KINDS and not isinstance(value, torch.Tensor)):
        return textwrap.shorten(repr(value), 60, placeholder=" …")
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    unusual = isinstance(value, torch.Tensor) and value.dtype != torch.float64
    return f"{type(value).__name__}{shape}" + (f", {value.dtype}" if unusual else "")


def _entries(value: object) -> str:
    """Write a tensor's entries in nested brackets, with six digits each: what is computed from them agrees to four."""
    if isinstance(value, list):
        return f"[{', '.join(map(_entries, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f"{value:.6g}" if isinstance(value, float | complex) else repr(value)


def side_by_side(target: object, answer: object) -> list[str]:
    """Set target and answer next to each other, with as many digits as it takes to see the difference.

    A big array is shown by its leading corner, or, where that does not reach the largest difference, by the part that
    ends there.
    """
    if not isinstance(target, torch.Tensor):
        texts = plain_pair(target, answer)
        return [f"expected     {texts[0]}", f"your answer  {texts[1]}"]
    *tables, facts = excerpts(target, answer)
    width = max((len(cell) for table in tables for line in table for cell in line), default=0)
    return [*_panels(tables, width), facts]


def plain_pair(target: object, answer: object) -> list[str]:
    """Two numbers, bools or strings with as many digits as it takes to see the difference."""
    texts = [_plain(target), _plain(answer)]
    return texts if texts[0] != texts[1] else [repr(target), repr(answer)]


def excerpts(target: torch.Tensor, answer: torch.Tensor) -> tuple[list[list[str]], list[list[str]], str]:
    """The same part of two tensors of one shape, as tables of texts that fit a page; and facts about the whole."""
    delta = _distance(target, answer)
    index = [int(axis) for axis in torch.unravel_index(delta.argmax(), delta.shape)]
    gap = delta.max().item()
    *_, rows, columns = (1, 1, *target.shape)
    row, column = ([0, 0, *index])[-2:]
    pair = [tensor[tuple(index[:-2])].reshape(rows, columns) for tensor in (target, answer)]
    down, across = _span(row, rows, ROWS), _span(column, columns, COLUMNS)
    spec = _digits([matrix[down, across] for matrix in pair], gap)
    width = max(len(cell) for matrix in pair for line in _cells(matrix[down, across], spec) for cell in line)
    across = _span(column, columns, min(COLUMNS, max(1, (PANEL + 2) // (width + 2))))
    facts = [f"largest difference {gap:.3g} at {index}"] if math.isfinite(gap) else []
    facts.append(f"shape {tuple(target.shape)}, {target.dtype}")
    if pair[0][down, across].numel() < target.numel():
        spans = [f"{span.start}:{span.stop}" for span in (down, across)][-min(target.ndim, 2) :]
        facts.append(f"shown: [{', '.join([*map(str, index[:-2]), *spans])}]")
    return *(_cells(matrix[down, across], spec) for matrix in pair), ", ".join(facts)


def _plain(value: object) -> str:
    """Write a number with ten digits, any other value as Python does; never long."""
    text = f"{value:.10g}" if isinstance(value, float | complex) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _distance(target: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """|target − answer| in float64: 0 where both are the same infinity, infinite where one is NaN."""
    wide = torch.complex128 if target.is_complex() else torch.float64
    delta = (target.to(wide) - answer.to(wide)).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return delta.masked_fill(target == answer, 0.0)


def _span(index: int, length: int, size: int) -> slice:
    """Choose at most `size` places that contain `index`: the first ones if possible."""
    start = max(0, index - size + 1)
    return slice(start, min(start + size, length))


def _digits(matrices: list[torch.Tensor], gap: float) -> str:
    """Choose the format that shows a difference of `gap` between entries: four places, more if it takes more."""
    entries = torch.cat([matrix.flatten() for matrix in matrices]).to(torch.complex128).abs()
    entries = entries[torch.isfinite(entries) & (entries != 0)]
    top = math.floor(math.log10(entries.max().item())) if len(entries) else 0
    last = math.floor(math.log10(gap)) if 0 < gap < math.inf else 0
    places = max(4, 1 - last)
    return f"z.{places}f" if top < 6 and places <= 10 else f".{min(16, max(4, top - last + 1))}e"


def _cells(matrix: torch.Tensor, spec: str) -> list[list[str]]:
    return [[str(value) if isinstance(value, int) else format(value, spec) for value in row] for row in matrix.tolist()]


def _panels(pair: list[list[list[str]]], width: int) -> list[str]:
    """Set two tables side by side under their headings, a bar between them."""
    target, answer = ([" ".join(cell.rjust(width + 1) for cell in row)[1:] for row in table] for table in pair)
    column = max(len("expected"), *map(len, target))
    return [
        f"{'expected':{column}} | your answer",
        *(f"{a:>{column}} | {b}" for a, b in zip(target, answer, strict=True)),
    ]


def record(result: Result) -> dict[str, object]:
    """Return the outcome as the small JSON output from which progress is read."""
    counts = {name: getattr(result, name) for name in ("outcome", "seed", "cases", "passed")}
    named = {"misconception": result.misconception} if result.misconception else {}
    return {"exercise": result.exercise.id, **counts, **named}


def _in_ipython() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return get_ipython() is not None


def show(
    text: str,
    record: Mapping[str, object] | None = None,
    html: str = "",
    alive: Callable[[str], Mapping[str, object]] = lambda html: {},
) -> None:
    """Display a text, in a notebook as a card and with a record; elsewhere print it, whatever the console can write."""
    if _in_ipython():
        from IPython.display import display

        rich = {**alive(html), "text/html": html, MIME: dict(record or {})}
        display({"text/plain": text} | {kind: value for kind, value in rich.items() if value}, raw=True)
        return
    try:
        print(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "replace").decode(encoding))


def show_code(source: str) -> None:
    """Display Python source, highlighted in a notebook."""
    if not _in_ipython():
        show(source)
        return
    from IPython.display import Code, display

    display(Code(source, language="python"))
