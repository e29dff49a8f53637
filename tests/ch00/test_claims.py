"""The claims of chapter 00: the sources' letters mean what the notation table says."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from oracles_mixing import decays, pairs, ssm, under
from registry_weights import train

import smalearn
from smalearn import ShapeError
from smalearn.contractions import contract, orders
from smalearn.sma import QUADRATIC, sma_orders, sma_quadratic
from smalearn.testing import assert_close, random_tensors

ROOT = Path(__file__).parents[2]
PACKAGE = Path(smalearn.__file__).parent
SSM = {f"smalearn.{name}" for name in ("ssm", "ssd", "semiseparable", "kernels")}
ROUTE = ("contractions", "features", "kernel_attention", "linear_attention", "masks", "sma")
SOURCES = {"Mamba-2 paper": "000", "SMA post": "001", "the note": "002", "structured-matrix paper": "003"}
SOURCES |= {"SSD posts": "004"}
ATTENTION = {f"smalearn.{name}" for name in ROUTE}

# The course's letter, and what the sources write in its place.
LETTERS = [
    ("T", {"000": "T", "001": "T", "002": "N", "003": "T", "004": "T"}),
    ("S", {"000": "S", "002": "N", "004": "S"}),
    ("N", {"000": "N", "001": "n", "002": "d_k", "003": "r", "004": "N"}),
    ("P", {"000": "P", "002": "d_v", "003": "r", "004": "P"}),
    ("D", {"003": "D"}),
    ("H", {"003": "H"}),
    ("C", {"004": "c"}),
    ("l", {"004": "l"}),
    ("r_l", {"003": "r_l"}),
    ("p_l", {"003": "p_l"}),
    ("Q K V", {"000": "Q K V", "001": "C B X", "002": "Q K V", "003": "Q K V", "004": "C B X"}),
    ("L", {"000": "L", "001": "L", "002": "M", "003": "M", "004": "L"}),
    ("a_t", {"004": "a_t"}),
    ("a b c d s", {"003": "a b c d s"}),
]


def notation_table():
    """The rows of the table in chapter 00: column -> the letters that stand there."""
    notebook = json.loads((ROOT / "chapters/00_start_here.ipynb").read_text(encoding="utf-8"))
    (cell,) = (cell for cell in notebook["cells"] if cell.get("id") == "notation")
    lines = [line for line in "".join(cell["source"]).splitlines() if line.startswith("|")]
    header, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in lines)
    names = [SOURCES.get(name, name) for name in header]
    return [{name: set(re.findall(r"\w+", part)) for name, part in zip(names, row, strict=True)} for row in rows]


@pytest.mark.parametrize(("letters", "sources"), LETTERS, ids=[letters for letters, _ in LETTERS])
def test_the_table_translates(letters, sources):
    rows = [row for row in notation_table() if set(letters.split()) <= row["course"]]
    found = any(all(set(theirs.split()) <= row[source] for source, theirs in sources.items()) for row in rows)
    assert found, f"no row has {letters} with {sources}; those of {letters} are {rows}"


def shapes(path):
    """The axes of every shape `(..., T, N)` in the docstrings of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            for axes in re.findall(r"\(\.\.\., ([^()*]+)\)", ast.get_docstring(node) or ""):
                yield re.findall(r"\b[A-Z]\b", axes)  # sizes such as 2D or chunk_len stand for themselves


def test_docstrings_use_the_letters_of_the_table():
    known = set.union(*(row["course"] for row in notation_table()))
    used = {axis for path in PACKAGE.rglob("*.py") for axes in shapes(path) for axis in axes}
    assert {"T", "S", "N", "P"} <= used <= known


@pytest.mark.claim("000:notation", "smalearn.sma.sma_quadratic")
def test_rows_are_time():
    Q, K, V, L = random_tensors([(5, 3), (7, 3), (7, 2), (5, 7)])  # (T, N), (S, N), (S, P), (T, S)
    Y = sma_quadratic(Q, K, V, L)
    assert_close(Y, under(L, Q, K, V))


def source(module):
    """The file of a module of the package, or None if it is no module."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imported(module):
    """The modules of the package that a module imports, at its top or later."""
    for node in ast.walk(ast.parse(source(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports are not followed here"
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.startswith("smalearn.") and source(name))


@pytest.mark.claim("000:independent", "smalearn.sma.sma_quadratic")
def test_the_attention_route_reaches_no_state_space_model(monkeypatch):
    reached, todo = set(), {module for module in ATTENTION if source(module)}
    while todo:
        reached |= todo
        todo = {other for module in todo for other in imported(module)} - reached
    assert {"smalearn.contractions", "smalearn.masks.scan", "smalearn._checks"} <= reached
    assert not reached & SSM
    for chapter in (ROOT / "chapters").glob("0[1-4]_*.ipynb"):
        cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert not re.search(r"smalearn(\.| import .*)\b(ssm|ssd|semiseparable|kernels)\b", code), chapter.name
    for name in SSM:
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises
    Q, K, V = random_tensors([(6, 3), (6, 3), (6, 2)])
    Y = sma_quadratic(Q, K, V, torch.ones(6, 6, dtype=torch.float64).tril())
    assert_close(Y, pairs(Q, K, lambda score, t, s: score * (s <= t)) @ V)


@pytest.mark.claim("001:notation", "smalearn.sma.sma_quadratic")
def test_the_two_matrices_of_one_model():
    length, state = 7, 3
    a, b, c = random_tensors([(length,), (length, state), (length, state)])
    eye = torch.eye(state, dtype=torch.float64)
    A = torch.eye(length * state, dtype=torch.float64)
    for i in range(1, length):
        A[i * state : (i + 1) * state, (i - 1) * state : i * state] = -a[i] * eye
    B, C = (torch.block_diag(*rows[:, :, None]) for rows in (b, c))  # B_i and C_i are columns (n, 1)
    M = sma_quadratic(c, b, torch.eye(length, dtype=torch.float64), decays(a))
    assert_close(M, C.mT @ torch.linalg.solve(A, B))


@pytest.mark.claim("002:notation", "smalearn.sma.sma_orders")
@pytest.mark.claim("002:notation", "smalearn.contractions.orders")
def test_costs_of_softmax_and_linear_attention_in_the_courses_letters():
    length, d_k, d_v = 64, 5, 3
    scores, _, values = sma_orders(target=length, source=length, features=d_k, head_dim=d_v).named(QUADRATIC).steps
    assert scores.macs + values.macs == length**2 * d_k + length**2 * d_v
    table = orders("TN, SN, SP -> TP", {"T": length, "S": length, "N": d_k, "P": d_v}, names="QKV")
    assert [step.macs for step in table.named("(KV)Q").steps] == [length * d_k * d_v] * 2


@pytest.mark.claim("004:notation", "smalearn.sma.sma_quadratic")
def test_the_same_tensors_under_two_names():
    a, B, C, X = random_tensors([(7,), (7, 3), (7, 3), (7, 2)])
    assert_close(sma_quadratic(C, B, X, decays(a)), ssm(X, a, B, C)[0])


@pytest.mark.claim("003:notation", "smalearn.contractions.contract")
def test_block_tensor_trains_in_the_letters_of_the_table():
    a, b, c, d, s = 2, 3, 4, 2, 5
    L, R = random_tensors([(b, a, c, s), (c, d, b, s)])
    M = contract("bacs, cdbs -> abcd", L, R).reshape(a * b, c * d)  # m = ab rows, n = cd columns
    assert_close(M, train(a, b, c, d, s).oracle([L, R]))
    with pytest.raises(ShapeError, match="axis 'b'"):
        contract("bacs, cdbs -> abcd", L, R[:, :, :2])


@pytest.mark.claim("003:notation", "smalearn.contractions.contract")
def test_heads_of_dimension_r_fill_the_embedding():
    H, r, batch, length = 2, 3, 2, 4
    D = H * r
    X, W_Q, W_K = random_tensors([(batch, length, D), (H, D, r), (H, D, r)])
    scores = contract("BTD, HDr, HEr, BSE -> BHTS", X, W_Q, W_K, X)
    assert scores.shape == (batch, H, length, length)
    for h in range(H):
        assert_close(scores[:, h], (X @ W_Q[h]) @ (X @ W_K[h]).mT)
    table = [row["course"] for row in notation_table()]
    levels = next(row for row in table if "p_l" in row)
    assert not levels & {"L", "R"}  # the number of a level is never a factor
    assert any({"L", "R"} <= row and "p_l" not in row for row in table)
