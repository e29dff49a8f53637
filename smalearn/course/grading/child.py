"""Process in which a submission runs: it answers requests, and knows neither solutions nor targets nor verdicts.

The first line on standard input is the task, as JSON; the others are requests: `call` (run an exercise's cells, then
the attempt on every case), `gradient` and `way` (of an attempt that was called), `define` (run the cells), `reference`
(take our solution from here on; it comes with the request, after the attempt). Each gets a line on standard output that
names the request. Both streams are moved to descriptors of their own first: what the submission prints or reads touches
neither.
"""

import contextlib
import json
import linecache
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import smalearn.course.exercises
from smalearn.course.exercises import commands
from smalearn.course.exercises.gradients import as_trained, gradient_of
from smalearn.course.exercises.limit import Expired, within
from smalearn.course.exercises.run import Run, run
from smalearn.course.exercises.way import measure
from smalearn.course.grading.wire import decoded, pack

__all__ = ["Session", "main"]

FILE_SIZE = 64 * 2**20  # bytes that a submission may write to one file, where no sandbox limits all of them together
PROCESSES = 64


class Session:
    """Session of one notebook: its names, and the answers to requests.

    Args:
        task: `setup`, the sources of those cells; `exercises`, id -> `sources`, `name` of the function, `cases`
            (`coded`), `seed`, `gradient`, places of the arguments by which it is taken, and `way`, arguments of
            `measure` (`coded`) or None; `limit`, seconds for the calls of an attempt, and again for its cells.
    """

    def __init__(self, task: dict):
        self.task = task
        self.module = types.ModuleType("__main__")
        self.attempts = {}  # what the cells hand to `check`
        self.cells = 0  # that were compiled
        # Without it a dataclass or a pickle of the cells would look for its module, "__main__", and meet this program.
        sys.modules["__main__"] = self.module
        # Cells import these by name, so that there is no other place to stand in for them.
        for place in (smalearn.course.exercises, commands):
            place.check, place.hint, place.solution, place.case = self._check, _nothing, _nothing, _nothing

    def _check(self, exercise: object, attempt: object = None, seed: int = 0) -> object:
        """Stand in for `check`: note the attempt, judge nothing."""
        self.attempts[str(getattr(exercise, "id", exercise))] = attempt
        return attempt

    def answer(self, request: dict) -> dict:
        """Return what answers a request."""
        action, id = request["do"], request.get("id")
        if action == "setup":
            return {"error": self._execute(self.task["setup"])}
        if action == "reference":
            exec(request["source"], vars(place := types.ModuleType("ours")))
            vars(self.module)[request["name"]] = vars(place)[request["name"]]
            return {}
        task = self.task["exercises"][id]
        if action == "gradient":
            return {"calls": self._run(gradient_of(self._attempt(id), task["gradient"]), task, as_trained)}
        if action == "way":
            way, names, cases = decoded(task["way"])
            calls, detours = measure(way, self._attempt(id), names, cases)
            return {"calls": pack(Run(calls, ())), "detours": detours}
        if id not in self.attempts:
            vars(self.module).pop(task["name"], None)  # the setup may have a function of this name
        error = self._execute(task["sources"])
        attempt = self._attempt(id)
        if action == "define":
            return {"error": error}
        if not callable(attempt):
            return {"error": error or f"no function {task['name']}"}
        try:
            return {"calls": self._run(attempt, task)}
        except (ImportError, AttributeError) as problem:
            return {"error": f"its arguments cannot be read in another process: {problem}"}

    def _attempt(self, id: str) -> object:
        return self.attempts.get(id, getattr(self.module, self.task["exercises"][id]["name"], None))

    def _run(self, function: Callable, task: dict, choose: Callable = list) -> list[dict]:
        return pack(run(function, choose(decoded(task["cases"])), task["seed"], self.task["limit"]))

    def _execute(self, sources: list[str]) -> str:
        """Run cells one after the other, whatever they do; return the first error, or an empty string."""
        errors = []

        def steps() -> Iterator[None]:
            for source in sources:
                try:
                    exec(self._compile(_plain(source)), vars(self.module))
                except Expired:
                    raise
                except BaseException as error:  # SystemExit too
                    errors.append(traceback.format_exception_only(error)[-1].strip()[:200])
                yield

        limit = self.task["limit"]
        if len(within(limit, steps(), sys.stderr)) < len(sources) and not errors:
            errors.append(f"stopped after {limit:g} s")
        return (errors or [""])[0]

    def _compile(self, source: str) -> types.CodeType:
        """Compile a cell under a name by which `inspect.getsource` finds its lines."""
        self.cells += 1
        name = f"<cell {self.cells}>"
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        return compile(source, name, "exec")


def _nothing(*args: object, **kwargs: object) -> None:
    """Stand in for `hint`, `solution` and `case`."""


def _plain(source: str) -> str:
    """Drop the lines of a cell that only a notebook understands, `%matplotlib inline` or `!ls`."""
    try:
        compile(source, "<cell>", "exec")
    except (SyntaxError, ValueError):
        return re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)
    return source


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
    session = Session(task)
    print(json.dumps({"to": 0}), file=replies, flush=True)
    for number, line in enumerate(requests, start=1):
        reply = session.answer(json.loads(line)) | {"to": number}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
