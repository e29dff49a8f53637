"""Process in which a submission runs: it answers requests, and knows neither targets nor verdicts.

Requests are lines on standard input: "setup", "define 3.1" (run the cells), "call 3.1" (run the cells, then the
attempt on every case), "gradient 3.1" (the attempt's gradients on every case), "way 3.1" (what in its way is not as
asked), "reference 3.1" (take our solution from here on). Each gets one frame of `wire` on standard output, which names
the request. Both streams are moved to descriptors of their own first: what the submission prints or
reads touches neither.
"""

import contextlib
import linecache
import os
import pickle
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import smalearn.course.exercises
from smalearn.course.exercises import commands
from smalearn.course.exercises.judge import gradient_of
from smalearn.course.exercises.limit import Expired, within
from smalearn.course.exercises.run import run
from smalearn.course.exercises.way import detours
from smalearn.course.grading.wire import encode, frame

__all__ = ["Session", "main"]

FILE_SIZE = 64 * 2**20  # bytes that a submission may write to one file


class Session:
    """Session of one notebook: its names, and the answers to requests.

    Args:
        task: `setup`, the sources of those cells; `exercises`, id -> `sources`, `name` of the function, `cases`
            (pickled), `seed`, `reference`, our solution (pickled) or None, `gradient`, places of the arguments by which
            it is taken, and `way`, arguments of `detours` (pickled) or None; `limit`, seconds for the calls of an
            attempt, and again for its cells.
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
            place.check, place.hint, place.solution = self._check, _nothing, _nothing

    def _check(self, exercise: object, attempt: object = None, seed: int = 0) -> object:
        """Stand in for `check`: note the attempt, judge nothing."""
        self.attempts[str(getattr(exercise, "id", exercise))] = attempt
        return attempt

    def answer(self, request: str) -> tuple[dict, bytes]:
        """Return the message that answers a request, and its bytes."""
        action, _, id = request.partition(" ")
        if action == "setup":
            return {"error": self._execute(self.task["setup"])}, b""
        task = self.task["exercises"][id]
        if action == "reference":
            if task["reference"]:
                setattr(self.module, task["name"], pickle.loads(task["reference"]))
            return {"error": ""}, b""
        if action in ("gradient", "way"):
            return self._measure(action, task, self._attempt(id))
        if id not in self.attempts:
            vars(self.module).pop(task["name"], None)  # the setup may have a function of this name
        error = self._execute(task["sources"])
        attempt = self._attempt(id)
        if action == "define":
            return {"error": error}, b""
        if not callable(attempt):
            return {"error": error or f"no function {task['name']}"}, b""
        try:
            cases = pickle.loads(task["cases"])
        except (ImportError, AttributeError) as error:
            return {"error": f"its arguments cannot be read in another process: {error}"}, b""
        return encode(run(attempt, cases, task["seed"], self.task["limit"]))

    def _attempt(self, id: str) -> object:
        return self.attempts.get(id, getattr(self.module, self.task["exercises"][id]["name"], None))

    def _measure(self, action: str, task: dict, attempt: Callable) -> tuple[dict, bytes]:
        """Answer a request about an attempt that has been called before."""
        if action == "gradient":
            function = gradient_of(attempt, task["gradient"])
            return encode(run(function, pickle.loads(task["cases"]), task["seed"], self.task["limit"]))
        way, names, cases = pickle.loads(task["way"])
        return {"detours": detours(way, attempt, names, cases)}, b""

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
    """Stand in for `hint` and `solution`."""


def _plain(source: str) -> str:
    """Drop the lines of a cell that only a notebook understands, `%matplotlib inline` or `!ls`."""
    try:
        compile(source, "<cell>", "exec")
    except (SyntaxError, ValueError):
        return re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)
    return source


def _limit(memory: int, seconds: int) -> None:
    """Ask the system to enforce limits, where it can: Linux all of them, macOS no memory, Windows none."""
    try:
        import resource
    except ImportError:
        return
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + memory  # on top of what Python and torch have taken
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, limit in (("RLIMIT_CPU", seconds), ("RLIMIT_FSIZE", FILE_SIZE), ("RLIMIT_CORE", 0)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (limit, limit))


def main() -> None:
    """Serve requests until the input ends."""
    requests, replies = os.fdopen(os.dup(0), encoding="ascii"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open to the end
    task = pickle.loads(Path("task.pickle").read_bytes())
    _limit(task["memory"], task["seconds"])
    session = Session(task)
    replies.write(frame({"to": ""}))
    replies.flush()
    for line in requests:
        request = line.strip()
        message, blob = session.answer(request)
        replies.write(frame(message | {"to": request}, blob))
        replies.flush()


if __name__ == "__main__":
    main()
