"""Judge what readers answered, and count: python tests/course/attempts.py [--write] [ids …].

`attempts.json` has answers of people who read the chapters and nothing else: wrong, right, and right but not as asked.
Each stands with what it was told, and a verdict on that: "true" (and the learner can find it), "obscure", "false", or
"" as long as nobody has judged it. `--write` stores what is said now; a sentence that has changed loses its verdict.
"""

import contextlib
import io
import json
import linecache
import sys
from collections import Counter
from pathlib import Path

import torch

from smalearn.course.exercises import evaluate, registry

FILE = Path(__file__).with_name("attempts.json")
IMPORTS = """import itertools, math
import numpy as np
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch.nn import functional
from smalearn import fast
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton
"""


def main(words: list[str]) -> int:
    """Judge the attempts at some exercises, or at all; return how many are judged wrongly."""
    torch.set_num_threads(1)
    ids = {word for word in words if word != "--write"}
    rows, counts = json.loads(FILE.read_text(encoding="utf-8")), Counter()
    for row in rows:
        if not ids or row["id"] in ids:
            outcome, said = judged(row)
            if said != row["said"]:
                row |= {"said": said, "verdict": ""}
            counts.update(_counted(row, outcome))
    if "--write" in words:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(dict(counts))
    return counts["accepted"] + counts["refused"] + counts["false"]


def judged(row: dict) -> tuple[str, str]:
    """Return the outcome of an attempt, and the reason that is told."""
    exercise, file = registry()[row["id"]], f"<attempt at {row['id']}>"
    source = IMPORTS + row["source"]
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"__name__": "attempt"}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(source, file, "exec"), scope)
        result = evaluate(exercise, scope[exercise.solution.__name__])
    said = result.misconception or result.sign or "; ".join(result.detours)
    return result.outcome, said or (result.problem.sentence if result.problem else "")


def _counted(row, outcome):
    """What to count of an attempt."""
    kind, passed = row["kind"], outcome == "passed"
    yield {"wrong": "wrong", "right": "right", "detour": "not as asked"}[kind]
    if kind == "wrong" and passed:
        yield "accepted"
        print(f"accepted: {row['id']} {row['label']}")
    if kind == "right" and not passed:
        yield "refused"
        print(f"refused: {row['id']} {row['label']}: {row['said']}")
    if kind == "detour" and not passed:
        yield "noticed"
    if row["said"]:
        yield row["verdict"] or "without a verdict"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
