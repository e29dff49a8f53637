"""Process in which a submission runs: it answers requests, and knows neither solutions nor targets nor verdicts.

The first line on standard input is the task, as JSON; the others are requests: `setup` (read all cells and run those
that are tagged so), `call` (run what an exercise needs, in an order, then the attempt on every case), `gradient` and
`way` (of an attempt that was called), `define` (run what it needs), `reference` (take our solution from here on; it
comes with the request, after the attempt). Each gets a line on standard output that names the request. Both streams are
moved to descriptors of their own first: what the submission prints or reads touches neither.
"""

import ast
import asyncio
import contextlib
import inspect
import json
import linecache
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import smalearn.course.exercises
from smalearn.course.exercises import commands
from smalearn.course.exercises.gradients import as_trained, gradient_of
from smalearn.course.exercises.limit import Expired, Stopwatch, within
from smalearn.course.exercises.run import Run, run
from smalearn.course.exercises.way import measure
from smalearn.course.grading.ipython import Quiet, Shell
from smalearn.course.grading.needed import Notebook, Statement
from smalearn.course.grading.wire import decoded, pack

__all__ = ["Session", "main"]

FILE_SIZE = 64 * 2**20  # bytes that a submission may write to one file, where no sandbox limits all of them together
PROCESSES = 64
HELPERS = 20  # functions of other cells that are sent to be compared with our solution


class Session:
    """Session of one notebook: its names, and the answers to requests. `_Grader` and `_part` make the task."""

    def __init__(self, task: dict):
        self.task = task
        self.module = types.ModuleType("__main__")
        self.notebook = Notebook(task.get("cells", []))
        self.attempts = {}  # what the cells hand to `check`
        self.plans = {}  # exercise id -> the orders of its statements that were tried
        self.given = set()  # functions of exercises that were graded
        self.last = {}  # name -> the statement that gave it its value
        # Without it a dataclass or a pickle of the cells would look for its module, "__main__", and meet this program.
        sys.modules["__main__"] = self.module
        # Cells import these by name, so that there is no other place to stand in for them.
        for place in (smalearn.course.exercises, commands):
            place.check, place.hint, place.solution, place.case = self._check, _nothing, _nothing, _nothing
        self.shell = Shell(vars(self.module))
        self._dress(self.notebook.cells)

    def _dress(self, cells: list[dict]) -> None:
        """Give the notebook the names that are there before its first cell runs."""
        sources = {cell["count"]: cell["source"] for cell in cells if isinstance(cell["count"], int)}
        inputs = [sources.get(number, "") for number in range(min(max(sources, default=0), len(cells) * 1000) + 1)]
        names = {"display": Quiet(), "get_ipython": lambda: self.shell, "In": inputs, "Out": {}, "input": _asks}
        vars(self.module).update(names | dict.fromkeys(("_", "__", "___"), ""))
        if any("IPython" in cell["source"] for cell in cells):
            import IPython.core.getipython

            IPython.get_ipython = IPython.core.getipython.get_ipython = names["get_ipython"]

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where `await` in a cell waits."""
        return asyncio.new_event_loop()

    def _check(self, exercise: object, attempt: object = None, seed: int = 0) -> object:
        """Stand in for `check`: note the attempt, judge nothing."""
        self.attempts[str(getattr(exercise, "id", exercise))] = attempt
        return attempt

    def answer(self, request: dict) -> dict:
        """Return what answers a request."""
        action, id = request["do"], request.get("id")
        if action == "setup":
            errors = self._read()
            return {"error": next(iter(errors + self._execute(self.notebook.setup())), "")}
        if action == "reference":
            exec(request["source"], vars(place := types.ModuleType("ours")))
            vars(self.module)[request["name"]] = vars(place)[request["name"]]
            self.given.add(request["name"])
            return {}
        task = self.task["exercises"][id]
        if action == "gradient":
            return {"calls": self._run(gradient_of(self._attempt(id), task["gradient"]), task, as_trained)}
        if action == "way":
            way, names, cases, welcome = decoded(task["way"])
            calls, detours = measure(way, self._attempt(id), names, cases, welcome)
            return {"calls": pack(Run(calls, ())), "detours": detours}
        return self._call(id, task, request["order"], action == "define")

    def _call(self, id: str, task: dict, order: str, quietly: bool) -> dict:
        """Run what an exercise needs, in one of the orders, and unless `quietly` its attempt on every case."""
        name = task["name"]
        self.given.discard(name)
        plan = self.notebook.plan(id, name, order, self.given)
        if plan in self.plans.setdefault(id, []):
            return {"same": True}
        self.plans[id].append(plan)
        self.attempts.pop(id, None)
        for names in (vars(self.module), self.last):  # another order, or the setup, may have left one
            names.pop(name, None)
        errors = self._errors(id) + self._execute(plan, id, order)
        attempt = self._attempt(id)
        self.given.add(name)
        if quietly:
            return {}
        said = {"left": [text[:100] for text in self.shell.left[:3]], "error": next(iter(errors), "")}
        said["helpers"] = [ast.unparse(one.node) for one in plan if one.later and self._owner(one.cell) != id][:HELPERS]
        if not callable(attempt):
            return said | {"error": said["error"] or f"no function {name}"}
        try:
            return said | {"calls": self._run(attempt, task)}
        except (ImportError, AttributeError) as problem:
            return said | {"error": f"its arguments cannot be read in another process: {problem}"}

    def _attempt(self, id: str) -> object:
        return self.attempts.get(id, getattr(self.module, self.task["exercises"][id]["name"], None))

    def _run(self, function: Callable, task: dict, choose: Callable = list) -> list[dict]:
        return pack(run(function, choose(decoded(task["cases"])), task["seed"], self.task["limit"]))

    def _errors(self, id: str | None) -> list[str]:
        """Why cells cannot be read: those of an exercise, or of the setup."""
        return [text for place, text in self.notebook.errors.items() if self._owner(place) == id]

    def _owner(self, place: int) -> str | None:
        """Whose a cell is: an exercise's id, None for the setup, "" for nobody."""
        cell = self.notebook.cells[place]
        return cell["id"] or (None if cell["setup"] else "")

    def _read(self) -> list[str]:
        """Read all cells, whatever is in them; return why those of the setup cannot be read."""

        def steps() -> Iterator[None]:
            for place in range(len(self.notebook.cells)):
                try:
                    source = self.notebook.read(place)
                    # By this name `inspect.getsource` finds the lines.
                    linecache.cache[f"<cell {place}>"] = len(source), None, source.splitlines(True), f"<cell {place}>"
                except Exception as error:
                    self.notebook.errors[place] = _line(error)
                yield

        within(self.task["limit"], steps(), sys.stderr)
        return self._errors(None)

    def _execute(self, statements: Sequence[Statement], id: str | None = None, order: str = "") -> list[str]:
        """Run statements, each in nearly all that is left of the limit, of other cells in less; return errors."""
        stopwatch, limit, own, others = Stopwatch(), self.task["limit"], [], []
        for statement in statements:
            mine = self._owner(statement.cell) == id
            left = limit - stopwatch() - (0 if mine else limit / 10)
            if left <= 0 and mine:
                own.append(f"stopped after {limit:g} s")
                break
            if left <= 0 or (not mine and self._fresh(statement)):
                continue
            seconds, errors = (0.9 * left, own) if mine else (left if order != "all" else min(left, limit / 10), others)
            if not within(seconds, self._steps(statement, errors), sys.stderr):
                errors.append(f"stopped after {seconds:.2g} s")
        return own + others

    def _fresh(self, statement: Statement) -> bool:
        """Whether all that a statement binds still has the value that it gave."""
        return (
            bool(statement.binds)
            and not statement.checks
            and all(self.last.get(name) is statement for name in statement.binds)
        )

    def _steps(self, statement: Statement, errors: list[str]) -> Iterator[None]:
        """Run a statement, as the only step."""
        self.last |= dict.fromkeys(statement.binds | statement.edits, statement)
        try:
            value = eval(statement.code, vars(self.module))
            if inspect.iscoroutine(value) and statement.code.co_flags & inspect.CO_COROUTINE:
                value = self.loop.run_until_complete(value)
            if statement.shown and value is not None:
                self._show(value, self.notebook.cells[statement.cell]["count"])
        except Expired:
            raise
        except BaseException as error:  # SystemExit too
            self.last |= dict.fromkeys(statement.binds)
            errors.append(_line(error))
        yield

    def _show(self, value: object, count: int | None) -> None:
        """Keep the value of a cell under the names that IPython gives it."""
        names = vars(self.module)
        names |= {"_": value, "__": names["_"], "___": names["__"], f"_{count}": value}
        names["Out"][count] = value


def _line(error: BaseException) -> str:
    """Write an error on a line."""
    return traceback.format_exception_only(error)[-1].strip()[:200]


def _asks(*args: object, **kwargs: object) -> None:
    """Stand in for `input`."""
    raise EOFError("it asks with input(), and nobody answers here")


def _nothing(*args: object, **kwargs: object) -> None:
    """Stand in for `hint`, `solution` and `case`."""


def _limit(memory: int, seconds: int, user: int | None) -> None:
    """Become a user without rights, and have the system enforce limits: Linux all, macOS no memory, Windows none."""
    try:
        import resource
    except ImportError:
        return
    limits = {"RLIMIT_CPU": seconds, "RLIMIT_FSIZE": FILE_SIZE, "RLIMIT_CORE": 0}
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limits["RLIMIT_AS"] = pages * resource.getpagesize() + memory  # on top of what Python and torch have taken
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # who ends first if all memory is taken
    if user is not None:
        limits["RLIMIT_NPROC"] = PROCESSES  # of this user, so of this submission
    for name, limit in limits.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (limit, limit))
    if user is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)


def main() -> None:
    """Serve requests until the input ends."""
    requests, replies = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end
    task = json.loads(requests.readline())
    _limit(task["memory"], task["seconds"], task["user"])
    sys.path.insert(0, "")  # files that the notebook writes, as in Jupyter
    sys.dont_write_bytecode = True  # it would be taken for that of a file that is written again in the same second
    session = Session(task)
    print(json.dumps({"to": 0}), file=replies, flush=True)
    for number, line in enumerate(requests, start=1):
        try:
            reply = session.answer(json.loads(line)) | {"to": number}
        except BaseException as error:
            print(json.dumps({"ended": _line(error)}), file=replies, flush=True)
            raise
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
