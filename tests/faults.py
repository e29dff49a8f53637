"""How much the tests see: faults drawn at random, each a function and an edit of one of its lines.

    python tests/faults.py                what is killed now, beside what was at the first run
    python tests/faults.py --draw 80 7    draw 80 faults with seed 7 into faults.json, before anything is cut

A fault is killed when default tests that know its function, or those of its room, fail on the last commit with it.
Functions are found by their names, so that a fault survives moves; one whose line is gone is told apart. Interrupted,
the same command goes on.
"""

import argparse
import ast
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from test_architecture import imports, room

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "faults.json"
LIMIT = 900  # seconds for the tests of one fault: an endless loop is killed by it
SWAPS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
SWAPS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And}
SWAPS |= {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
SWAPS |= {ast.Pow: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr}


def changed(node: ast.AST) -> ast.AST | None:
    """Return a node with a mistake in it that somebody might make; None where there is none for its kind."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]) | ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            swapped = SWAPS[type(op)]()
            new.op, new.ops = swapped, [swapped]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            new = operand
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(value)):
            new.value = value + 1
        case ast.Constant(value=float(value)):
            new.value = 2 * value
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
        case ast.Call(keywords=[*_, ast.keyword(arg=str())]):
            new.keywords.pop()
        case ast.Call(args=[ast.Name() as first, ast.Name() as second, *_]):
            new.args[:2] = [second, first]
        case ast.Return(value=ast.expr()):
            new.value = ast.Constant(None)
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.AugAssign():
            new = ast.Pass()
        case _:
            return None
    return new


def sites(function: ast.AST) -> list[ast.AST]:
    """List the nodes of a function's body that can be changed and stand on one line, out of texts and annotations."""
    found, queue = [], list(function.body)
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.JoinedStr, ast.AnnAssign)):
            continue
        queue += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.arguments)]
        if hasattr(node, "lineno") and node.lineno == node.end_lineno and changed(node):
            found.append(node)
    return found


def functions(tree: ast.AST, inside: str = ""):
    """Yield the outermost functions and the methods of a module, with their names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield inside + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{inside}{node.name}.")


def package_files(root: Path) -> list[Path]:
    """List the files of which faults are drawn."""
    return [path for name in ("smalearn", "benchmarks", "experiments") for path in sorted((root / name).rglob("*.py"))]


def room_of(path: Path, root: Path) -> str:
    """Name the room of a file: a name of the tables in CONTRIBUTING, or its folder."""
    names = list(path.relative_to(root).with_suffix("").parts)
    return (room(names[1:]) if names[0] == "smalearn" else names[0]) or "smalearn"


def draw(count: int, seed: int) -> list[dict]:
    """Draw faults: from each room as many as its share of lines, at least one; lines of a room alike."""
    rooms, chance = {}, random.Random(seed)
    for path in package_files(ROOT):
        text = path.read_text(encoding="utf-8")
        for name, node in functions(ast.parse(text)):
            found = [(path, name, node, site, text.splitlines()) for site in sites(node)]
            rooms.setdefault(room_of(path, ROOT), []).extend(found)
    total = sum(map(len, rooms.values()))
    shares = {name: max(1, round(count * len(found) / total)) for name, found in rooms.items() if found}
    while sum(shares.values()) > count:
        shares[max(shares, key=shares.get)] -= 1
    return [as_fault(*drawn) for name in sorted(shares) for drawn in chance.sample(rooms[name], shares[name])]


def as_fault(path, name, function, site, lines) -> dict:
    """Put a fault into words that survive moves: its function, the line as it is and as it becomes."""
    line = lines[site.lineno - 1]
    text = line.encode()
    new = ast.unparse(ast.fix_missing_locations(changed(site)))
    new = new if isinstance(site, ast.stmt) else f"({new})"
    becomes = text[: site.col_offset] + new.encode() + text[site.end_col_offset :]
    same = [k for k in range(function.lineno - 1, function.end_lineno) if lines[k].strip() == line.strip()]
    fault = {"room": room_of(path, ROOT), "module": path.stem, "function": name, "line": line.strip()}
    return fault | {"becomes": becomes.decode().strip(), "nth": same.index(site.lineno - 1)}


def places(fault: dict, root: Path) -> list[tuple[Path, int]]:
    """Find the file and the line of a fault; of several, those in a module of its name come first."""
    found = []
    for path in sorted(package_files(root), key=lambda path: path.stem != fault["module"]):
        text = path.read_text(encoding="utf-8")
        if fault["function"].rpartition(".")[2] not in text:
            continue
        for name, node in functions(ast.parse(text)):
            lines = [k for k, line in enumerate(text.splitlines()) if node.lineno - 1 <= k < node.end_lineno]
            same = [k for k in lines if text.splitlines()[k].strip() == fault["line"]]
            if name == fault["function"] and len(same) > fault["nth"]:
                found.append((path, same[fault["nth"]]))
    return found


def concerned(path: Path, root: Path, function: str) -> list[str]:
    """List test files: those that know a function or import its module, or else those of its room or of its users.

    The conformance suite is one of them if its registry has a function of the module.
    """
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    word = re.compile(rf"\b{re.escape(function.split('.')[0])}\b")
    tests = {test: test.read_text(encoding="utf-8") for test in sorted((root / "tests").rglob("test_*.py"))}
    asked = root / "tests" / "test_conformance.py"  # knows what its registry has
    registry = (root / "tests" / "registry_functions.py").read_text(encoding="utf-8")
    tests[asked] += registry
    of_room = [test for test, text in tests.items() if room_of(path, root) in rooms_imported(text)]
    known = [test for test in of_room if word.search(tests[test]) or f"{module} import" in tests[test]]
    named = [test for test in of_room if room_of(path, root).rpartition(".")[2] in test.stem]
    users = {room_of(user, root) for user in package_files(root) if f"{module} import" in user.read_text("utf-8")}
    of_users = [test for test, text in tests.items() if users & rooms_imported(text)]
    beside = [re.escape(name) for name, _ in functions(ast.parse(path.read_text(encoding="utf-8")))]
    found = {
        *(known or named or of_room or of_users),
        *([asked] if re.search(rf"\b({'|'.join(beside)})\b", registry) else []),
    }
    return [str(test.relative_to(root)) for test in sorted(found, key=lambda test: (path.stem not in test.stem, test))]


def rooms_imported(text: str) -> set[str]:
    """Name the rooms from which a module imports."""
    names = [parts for _, parts in imports(ast.parse(text))]
    return {room(name[1:]) if name[0] == "smalearn" else name[0] for name in names if len(name) > 1}


def run(fault: dict) -> str:
    """Say what becomes of a fault in the last commit: "gone", "alive", or the first test that fails."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(root)], check=True)
        found = places(fault, root)
        if not found:
            return "gone"
        path, number = found[0]
        lines = path.read_text(encoding="utf-8").split("\n")
        lines[number] = lines[number].replace(fault["line"], fault["becomes"])
        path.write_text("\n".join(lines), encoding="utf-8")
        return tested(root, concerned(path, root, fault["function"]))


def tested(root: Path, tests: list[str]) -> str:
    """Run tests in a tree until one fails; name it."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"over {LIMIT} s"
    if not ended.returncode:
        return "alive"
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split()[1] if failed else "the tests do not start"


def results(faults: list[dict]) -> list[str]:
    """Run all faults, two at a time; what an earlier call found for the same commit is kept."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    kept = Path(tempfile.gettempdir()) / f"faults-{commit}.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}

    def one(fault):
        key = json.dumps([fault[name] for name in ("module", "function", "line", "becomes", "nth")])
        if key not in found:
            found[key] = run(fault)
            kept.write_text(json.dumps(dict(found), indent=1), encoding="utf-8")
            print(f"{found[key]:60} {fault['module']}:{fault['function']}: {fault['becomes']}", flush=True)
        return found[key]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, faults))


def main() -> None:
    """Draw faults, or run those that were drawn; how the first run ends is kept with them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", nargs=2, type=int, metavar=("COUNT", "SEED"), help="draw faults anew, run none")
    args = parser.parse_args()
    if args.draw:
        return keep(draw(*args.draw))
    faults = json.loads(FAULTS.read_text(encoding="utf-8"))
    found = results(faults)
    faults = [{"killed": said != "alive"} | fault for fault, said in zip(faults, found, strict=True)]
    keep(faults)
    lost = [fault for fault, said in zip(faults, found, strict=True) if fault["killed"] and said == "alive"]
    for fault in lost:
        print(f"alive now: {fault['module']}:{fault['function']}: {fault['line']}  ->  {fault['becomes']}")
    gone, killed = found.count("gone"), sum(said not in ("alive", "gone") for said in found)
    first = sum(fault["killed"] for fault in faults)
    print(f"killed {killed} of {len(faults)} ({first} at first); {len(lost)} no longer, {gone} gone with their lines")


def keep(faults: list[dict]) -> None:
    """Write faults.json."""
    FAULTS.write_text(json.dumps(faults, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
