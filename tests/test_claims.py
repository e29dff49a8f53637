"""Every claim of the sources has a test or is planned; `claims_plugin` finds tests that say nothing.

The sources:

000  Dao and Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
       Space Duality" (the Mamba-2 paper), section 4, as it was retold: a slip may be the retelling's
  001  Paltorp 2025, "Structured Masked Attention and its relation to semiseparable matrices and state-space models"
       (a post)
  002  "Linear Attention" (a note without author)
  003  Kuang, Amsel, Lotfi, Qiu, Potapczynski and Wilson 2025, "Customizing the Inductive Biases of Softmax Attention
       using Structured Matrices"
  004  Gu and Dao 2024, "State Space Duality (Mamba-2)": a draft of parts I (the model) and II (the theory) and of the
       listing of the chunked algorithm; the published posts (parts I to III) are named where they differ from it
  005  the delta rule: Schlag, Irie and Schmidhuber 2021; Yang, Wang, Zhang, Shen and Kim 2024 (DeltaNet); Yang, Kautz
       and Hatamizadeh 2024 (Gated DeltaNet); Grazzi et al. 2024 (negative eigenvalues); Siems et al. 2025
       (DeltaProduct); Kimi Team 2025 (Kimi Linear); von Oswald et al. 2025 (MesaNet)
  006  Lahoti et al. 2026 (Mamba-3)
  007  Guo et al. 2025 (Log-linear attention); Hwang et al. 2024 (Hydra)
  008  today's layers: Peng et al. 2025 (RWKV-7); Hu et al. 2025 (Comba); Gated DeltaNet-2, 2026; Yang et al. 2025
       (PaTH); Lin et al. 2025 (FoX); DeepSeek-AI 2024 (MLA)
  009  serving a state, as vLLM does or discusses it in 2026: its page on automatic prefix caching; RFC 49232
       (ReplaySSM); RFC 55196 (states of few bits)

A claim has
  id         the source's number and a short name
  kind       definition, equation, theorem, remark, algorithm, system, cost, table, figure or experiment
  source     where it stands
  statement  what is claimed, in the course's letters
  check      what its tests demand
  chapter    which chapter derives it; tests marked with @pytest.mark.claim("<id>", "<dotted name of the function that
             the claim is about>") hold it, one of them in the chapter's folder
  where      id of the cell there that derives it
  verdict    of an experiment: reproduced in small (the whole claim, at least five seeds), in part (of the claim, or by
             fewer seeds), not reproduced, opposite in small, or another task
  erratum    what is wrong or missing in the source, and the correction (optional)
  class      of an erratum: error (of the text, and of its published version where there is one), gap (something
             needed is not said), draft (only in a draft, the published text has it right), code differs (text and
             published code disagree), remark (the course's own)
  planned    true until the claim has its tests; tests/test_claims.py holds every other claim to have one

Terms in `check`
  r64     relative root-mean-square error at most 1e-12 in float64, on random data, shapes compared first
  r32     the same at most 1e-5 in float32
  exact   equality of integers, booleans, shapes, counts or strings
  slope   fitted exponent of a counted or measured cost against one size in log-log coordinates
  MACs    multiply-accumulate operations, counted by formula and by an instrumented contraction
  scaled  the source's experiment is too large for a laptop: the check names the small experiment, `verdict` says what
          came of it
  device  measured on a GPU and recorded

Sizes: T target, S source, N feature or state, P head dimension, H heads, D embedding, r and r_l ranks, p_l blocks,
L levels (in claims of 003), Q chunk length (in costs of chunked algorithms). Time indices start at 0.
"""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from cells import cells
from claims_plugin import resolve

TESTS = Path(__file__).parent
LISTS = sorted(TESTS.glob("ch*/claims.toml"))
CLAIMS = [claim for path in LISTS for claim in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]]
COUNTS = {"00": 6, "01": 22, "02": 13, "03": 29, "04": 21, "05": 28}
COUNTS |= {"06": 23, "07": 17, "08": 21, "09": 19, "10": 32, "11": 24, "12": 5, "A": 24, "B": 6}
KINDS = {"definition", "equation", "theorem", "remark", "algorithm", "system", "cost", "table", "figure", "experiment"}
REQUIRED = {"id", "kind", "source", "statement", "check", "chapter", "where"}
OPTIONAL = {"erratum", "class", "verdict", "planned"}
CLASSES = {"error", "gap", "draft", "code differs", "remark"}
VERDICTS = {"reproduced in small", "in part", "not reproduced", "opposite in small", "another task"}


class Mark(NamedTuple):
    """A claim marker on a test function."""

    file: str
    test: str
    claim: str
    function: str


def claim_marks(folder):
    """All claim markers in the tests of a folder, read from their source: no choice of tests hides one."""
    marks = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        on_tests = [(test.name, node) for test in tests for node in test.decorator_list if is_mark(node)]
        marks += [
            Mark(f"{path.parent.name}/{path.name}", name, *map(ast.literal_eval, node.args)) for name, node in on_tests
        ]
        if len(on_tests) < sum(map(is_mark, ast.walk(tree))):
            raise ValueError(f"{path.name}: a claim marker belongs on a test function of the module, and nowhere else")
    return marks


def is_mark(node):
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "claim"


def claim_problems(claims):
    """What is wrong with the list of claims itself."""
    for id, count in Counter(claim["id"] for claim in claims).items():
        if count > 1:
            yield f"{id}: listed {count} times"
    for claim in claims:
        missing, extra = REQUIRED - claim.keys(), claim.keys() - REQUIRED - OPTIONAL
        if missing or extra:
            yield f"{claim['id']}: fields missing {sorted(missing)}, unknown {sorted(extra)}"
            continue
        if claim.get("planned", True) is not True:
            yield f"{claim['id']}: planned is true or absent"
        texts = {field: text for field, text in claim.items() if field != "planned"}
        if not all(isinstance(text, str) and text.strip() for text in texts.values()):
            yield f"{claim['id']}: an empty field"
        if ("erratum" in claim) != ("class" in claim) or claim.get("class", "error") not in CLASSES:
            yield f"{claim['id']}: an erratum has a class, one of {sorted(CLASSES)}"
        if (claim["kind"] == "experiment" and "verdict" not in claim) or claim.get("verdict") not in {None, *VERDICTS}:
            yield f"{claim['id']}: an experiment has a verdict, one of {sorted(VERDICTS)}"
        if not re.fullmatch(r"00[0-9]:[\w.-]+", claim["id"]) or claim["id"][:3] != claim["source"][:3]:
            yield f"{claim['id']}: the id begins with its source"
        if claim["kind"] not in KINDS:
            yield f"{claim['id']}: unknown kind {claim['kind']}"
        if claim["chapter"] not in COUNTS:
            yield f"{claim['id']}: unknown chapter {claim['chapter']}"


def mark_problems(claims, marks):
    """Where claims and markers do not fit together."""
    listed, marked = {claim["id"]: claim for claim in claims}, {mark.claim for mark in marks}
    homes = {id: f"ch{claim['chapter']}" for id, claim in listed.items()}
    settled = {mark.claim for mark in marks if mark.file.startswith(homes.get(mark.claim, "-") + "/")}
    for id, claim in listed.items():
        if id not in marked and not claim.get("planned"):
            yield f"{id}: no test"
        if id in marked and claim.get("planned"):
            yield f"{id}: has a test, remove planned"
    for mark in marks:
        if mark.claim not in listed:
            yield f"{mark.test}: claim {mark.claim} is not listed"
        elif mark.claim not in settled:
            yield f"{mark.test}: claim {mark.claim} belongs to {homes[mark.claim]}, not to {mark.file} alone"
        try:
            resolve(mark.function)
        except (ImportError, AttributeError, ValueError) as error:
            yield f"{mark.test}: {error}"
    for mark, count in Counter(marks).items():
        if count > 1:
            yield f"{mark.test}: claim {mark.claim} on {mark.function} is marked {count} times"


def test_the_list_is_well_formed():
    assert list(claim_problems(CLAIMS)) == []


def test_every_claim_says_in_which_cell_it_is_derived():
    lost = {claim["id"]: claim["where"] for claim in CLAIMS if claim["where"] not in cells(claim["chapter"])}
    assert not lost


def test_no_claim_is_lost():
    assert Counter(claim["chapter"] for claim in CLAIMS) == COUNTS
    assert sum(COUNTS.values()) == 290


def test_every_claim_has_a_test_or_is_planned():
    assert list(mark_problems(CLAIMS, claim_marks(TESTS))) == []


GOOD = {"id": "000:a", "kind": "remark", "source": "000, Eq. 1", "statement": "s", "check": "c", "chapter": "00"}
GOOD |= {"where": "a"}


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ([GOOD, GOOD], "listed 2 times"),
        ([GOOD | {"id": "001:a"}], "begins with its source"),
        ([GOOD | {"id": "000:a b"}], "begins with its source"),
        ([GOOD | {"kind": "hope"}], "unknown kind hope"),
        ([GOOD | {"chapter": "20"}], "unknown chapter 20"),
        ([GOOD | {"check": " "}], "an empty field"),
        ([GOOD | {"planned": False}], "planned is true or absent"),
        ([GOOD | {"erratum": "e"}], "an erratum has a class"),
        ([GOOD | {"class": "error"}], "an erratum has a class"),
        ([GOOD | {"erratum": "e", "class": "typo"}], "an erratum has a class"),
        ([GOOD | {"kind": "experiment"}], "an experiment has a verdict"),
        ([GOOD | {"verdict": "tested"}], "an experiment has a verdict"),
        ([{"id": "000:a", "eratum": "e"}], r"missing \['chapter', .*unknown \['eratum'\]"),
    ],
)
def test_faults_of_the_list_are_found(claims, problem):
    assert not list(claim_problems([GOOD, GOOD | {"id": "000:b", "planned": True, "erratum": "e", "class": "gap"}]))
    (found,) = claim_problems(claims)
    assert re.search(problem, found)


MARK = Mark("ch00/test_claims.py", "test_a", "000:a", "smalearn.contractions.contract")


@pytest.mark.parametrize(
    ("claim", "marks", "problem"),
    [
        (GOOD, [], "000:a: no test"),
        (GOOD | {"planned": True}, [MARK], "remove planned"),
        (GOOD, [MARK, MARK._replace(claim="000:z")], "000:z is not listed"),
        (GOOD, [MARK._replace(file="ch01/test_claims.py")], "belongs to ch00, not to ch01/test_claims.py"),
        (GOOD, [MARK._replace(file="tests/test_sma.py")], "belongs to ch00"),
        (GOOD, [MARK, MARK], "marked 2 times"),
        (GOOD, [MARK._replace(function="smalearn.nothing.contract")], "no attribute 'nothing'"),
        (GOOD, [MARK._replace(function="smalearn.contractions.none")], "expected a function or method, got NoneType"),
        (GOOD, [MARK._replace(function="smalearn.contractions.Order")], "expected a function or method, got type"),
        (GOOD, [MARK._replace(function="smalearn.contractions.Order.macs")], "got property"),
        (GOOD, [MARK._replace(function="smalearn.sma.contract")], "is defined, smalearn.contractions.contract"),
    ],
)
def test_claims_and_markers_that_do_not_fit_are_found(claim, marks, problem):
    assert not list(mark_problems([GOOD, GOOD | {"id": "000:b", "planned": True}], [MARK]))
    assert not list(mark_problems([GOOD], [MARK._replace(function="smalearn.contractions.Order.run")]))
    assert not list(mark_problems([GOOD], [MARK, MARK._replace(file="tests/test_sma.py")]))
    problems = list(mark_problems([claim], marks))
    assert any(re.search(problem, found) for found in problems), problems


def test_markers_are_read_from_the_source(tmp_path):
    (tmp_path / "ch00").mkdir()
    file = tmp_path / "ch00/test_claims.py"
    file.write_text(
        "@pytest.mark.claim('000:a', 'm.f')\n@pytest.mark.claim('000:b', 'm.f')\ndef test_a(): pass\n", encoding="utf-8"
    )
    assert claim_marks(tmp_path) == [
        Mark("ch00/test_claims.py", "test_a", claim, "m.f") for claim in ("000:a", "000:b")
    ]
    for stray in ("def helper(): pass", "class Box: pass", "class TestBox:\n    def test_a(self): pass"):
        file.write_text(f"@pytest.mark.claim('000:a', 'm.f')\n{stray}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"test_claims.py: a claim marker belongs on a test function"):
            claim_marks(tmp_path)
