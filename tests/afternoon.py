"""Walk the afternoon as a learner does, with answers that are not ours: python tests/afternoon.py.

The notebook of `smalearn afternoon`, its stubs filled with the answers below, runs from top to bottom in a fresh
kernel. Then `my_mamba2.py`, which it leaves, is read, and runs where the package cannot be imported.
"""

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import torch
from nbclient import NotebookClient

from smalearn.course.exercises import registry
from smalearn.course.exercises.report import MIME
from smalearn.course.workbook import notebook as notebooks
from smalearn.course.workbook import road
from smalearn.data import trained
from smalearn.models import Mamba2, load
from smalearn.testing import random_tensors

ROOT = Path(__file__).parents[1]
ANSWERS = {
    "1.1": """
def weight_on_the_future():
    return 3 / 4
""",
    "1.2": """
def causal_weights(Q, K):
    past = torch.arange(len(Q))[:, None] >= torch.arange(len(K))
    G = torch.where(past, Q @ K.mT, -torch.inf)
    W = (G - G.amax(1, keepdim=True)).exp()
    return W / W.sum(1, keepdim=True)
""",
    "3.1": """
def running_attention(Q, K, V):
    H = torch.einsum("tp,tn->tpn", V, K).cumsum(0)
    return torch.einsum("tpn,tn->tp", H, Q)
""",
    "4.1": """
def decay_scan(x, gamma):
    y = x.clone()
    for t in range(1, len(x)):
        y[t] += gamma * y[t - 1]
    return y
""",
    "5.1": """
def matrix_of(A, B, C):
    M = torch.zeros(len(A), len(A), dtype=A.dtype)
    for s in range(len(A)):
        h = B[s]
        M[s, s] = C[s] @ h
        for t in range(s + 1, len(A)):
            h = A[t] @ h
            M[t, s] = C[t] @ h
    return M
""",
    "6.1": """
def decay_mask(log_a):
    a = log_a.exp()
    rows, row = [], torch.zeros_like(a)
    for t, unit in enumerate(torch.eye(a.shape[-1], dtype=a.dtype)):
        row = a[..., t, None] * row + unit
        rows.append(row)
    return torch.stack(rows, -2)
""",
    "6.2": """
def chunk_states(X, log_a, B):
    later = log_a.roll(-1, -1).index_fill(-1, torch.tensor(log_a.shape[-1] - 1), 0)
    weight = later.flip(-1).cumsum(-1).flip(-1).exp()
    return torch.einsum("...s,...sp,...sn->...pn", weight, X, B)
""",
    "6.3": """
def hand_over(decay, updates, state):
    entering = torch.zeros_like(updates)
    for chunk in range(decay.shape[-1]):
        entering[..., chunk, :, :] = state
        state = updates[..., chunk, :, :] + decay[..., chunk, None, None] * state
    return entering, state
""",
    "6.4": """
def read_states(C, log_a, entering):
    C = C * log_a.cumsum(-1).exp().unsqueeze(-1)
    return torch.einsum("...cn,...pn->...cp", C, entering)
""",
    "6.5": """
def ssd_in_chunks(X, log_a, B, C, state, chunk_len):
    T, pad = X.shape[-2], torch.nn.functional.pad
    X, B, C = (pad(x, (0, 0, 0, -T % chunk_len)).unflatten(-2, (-1, chunk_len)) for x in (X, B, C))
    log_a = pad(log_a, (0, -T % chunk_len)).unflatten(-1, (-1, chunk_len))
    entering, state = hand_over(log_a.sum(-1).exp(), chunk_states(X, log_a, B), state)
    Y = torch.einsum("...ts,...tn,...sn,...sp->...tp", decay_mask(log_a), C, B, X)
    return (Y + read_states(C, log_a, entering)).flatten(-3, -2)[..., :T, :], state
""",
    "7.1": """
def steps(tokens):
    return 30.0 * tokens.clamp(max=1)
""",
    "7.2": """
def convolve(x, weight, window):
    seen = torch.cat([window, x])
    rows = torch.nn.functional.conv1d(seen.T, weight.T[:, None], groups=x.shape[1]).T
    return rows, seen[len(x) :]
""",
    "7.3": """
def block_step(X, dt, A_log, B, C, D, state):
    state = torch.exp(-dt * A_log.exp())[:, None, None] * state
    state = state + torch.einsum("h,hp,n->hpn", dt, X, B)
    return state @ C + D.unsqueeze(1) * X, state
""",
    "7.6": """
def layer(x, weights):
    heads, inner = weights["D"].numel(), weights["norm"].numel()
    wide = torch.nn.functional.linear(x, weights["W_in"].T)
    seen, _ = convolve(wide[:, inner:-heads], weights["taps"], torch.zeros_like(weights["taps"][1:]))
    seen = torch.nn.functional.silu(seen + weights["bias"])
    X = seen[:, :inner].reshape(len(x), heads, -1).transpose(0, 1)
    B, C = seen[None, :, inner:].chunk(2, -1)
    dt = torch.nn.functional.softplus(wide[:, -heads:] + weights["dt_bias"]).T.unsqueeze(-1)
    log_a = -dt.squeeze(-1) * weights["A_log"].exp()[:, None]
    start = X.new_zeros(heads, X.shape[-1], B.shape[-1])
    Y = ssd_in_chunks(X * dt, log_a, B, C, start, 32)[0] + weights["D"].view(-1, 1, 1) * X
    Y = Y.transpose(0, 1).reshape(len(x), -1) * torch.nn.functional.silu(wide[:, :inner])
    return torch.nn.functional.rms_norm(Y, [inner], weights["norm"], 1e-5) @ weights["W_out"]
""",
}

ALONE = """
import json, runpy, sys, torch
sys.modules["smalearn"] = None  # an import of it is an error now
mine, folder = runpy.run_path("my_mamba2.py"), sys.argv[1]
x, expected = torch.load("given")
layers = mine["read_model"](folder, torch.float64)[-1]
for (_, weights), y in zip(layers, expected, strict=True):
    torch.testing.assert_close(mine["layer"](x, weights), y, rtol=1e-12, atol=1e-12)
codes = json.load(open(f"{folder}/vocabulary.json", encoding="utf-8"))
prompt = torch.tensor([codes[letter] for letter in "ROMEO:"])
written = mine["write"](mine["read_model"](folder), prompt, 40)
print("".join(list(codes)[code] for code in [*prompt, *written]))
"""


def walk(folder: Path) -> nbformat.NotebookNode:
    """The notebook after a run in `work` of a folder, with these answers in its stubs."""
    work = folder / "work"
    work.mkdir()
    made = notebooks.blank(road.afternoon(ROOT / "chapters"))
    for id, (stub, *_) in notebooks.exercises(made).items():
        stub["source"] = ANSWERS[id].strip()
    walked = nbformat.reads(notebooks.dump(made), as_version=4)
    place = {"metadata": {"path": str(work)}}
    NotebookClient(walked, timeout=300, kernel_name="python3", resources=place).execute()
    return walked


def outcomes(walked: nbformat.NotebookNode) -> dict[str, str]:
    """What each check said: exercise -> "passed" or what else."""
    outputs = (output.get("data", {}) for cell in walked.cells for output in cell.get("outputs", []))
    records = [data[MIME] for data in outputs if MIME in data]
    return {record["exercise"]: record["outcome"] for record in records}


def borrowed(file: Path) -> list[str]:
    """Functions in a file that are the package's, whatever their names and the names in them are."""
    ours = {form for path in (ROOT / "smalearn").rglob("*.py") for _, form in forms(path)}
    return [name for name, form in forms(file) if form in ours]


def forms(path: Path) -> Iterator[tuple[str, str]]:
    """Each function of a file: its name, and its code with all names numbered, without its docstring."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            name, numbers = function.name, {}
            function.name, function.returns, function.decorator_list = "", None, []
            function.body = function.body[ast.get_docstring(function) is not None :]
            for node in ast.walk(function):
                if isinstance(node, ast.Name):
                    node.id = numbers.setdefault(node.id, str(len(numbers)))
                elif isinstance(node, ast.arg):
                    node.arg, node.annotation = numbers.setdefault(node.arg, str(len(numbers))), None
            yield name, ast.dump(function)


def write_alone(work: Path) -> str:
    """What the learner's file writes without the package, if each of its layers is `Mamba2` to 1e-12 in float64."""
    folder, _ = trained("shakespeare")
    mixers = [block.mixer for block in load(folder).double().blocks]
    assert all(isinstance(mixer, Mamba2) for mixer in mixers)
    (x,) = random_tensors([(100, mixers[0].dim)])
    torch.save((x, [mixer(x).detach() for mixer in mixers]), work / "given")
    command = [sys.executable, "-W", "error", "-c", ALONE, folder]
    run = subprocess.run(command, cwd=work, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def minutes() -> str:
    """The minutes of each place, and those that its exercises take by their labels."""
    labels = dict.fromkeys(road.PLACES, 0)
    for id in ANSWERS:
        labels[id.partition(".")[0].zfill(2)] += registry()[id].minutes
    lines = [f"{place}: {whole} minutes, {labels[place]} of exercises" for place, (whole, *_) in road.PLACES.items()]
    return "\n".join([*lines, f"in all {road.hours()}, {sum(labels.values())} minutes of exercises"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        said = outcomes(walk(Path(name)))
        print(*(f"{id} {outcome}" for id, outcome in said.items()), sep="\n")
        print("borrowed:", ", ".join(borrowed(Path(name, "work/my_mamba2.py"))) or "nothing")
        print(write_alone(Path(name, "work")), minutes(), sep="\n")
