"""Submission's process, seen from the grader: started, asked, and ended whatever it does."""

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref

from smalearn.course.grading import wire
from smalearn.course.grading.sandbox import LONGEST, PATIENCE, Sandbox, last_words

__all__ = ["Child", "Lost", "end_all"]

INTRUDES = "it writes to the grader's channel"
GRACE = 5.0  # seconds beyond a submission's own limit before its process is ended from outside

_running = weakref.WeakSet()
_users = itertools.count(1_000_001)  # one for each process, so that limits count for it alone


class Lost(Exception):  # noqa: N818 - it reports a submission, not a fault of the program
    """Error: the process ended, or had to be ended; the text says why."""


class Child:
    """Process that runs one notebook, until `close` ends it; where it does not start, `Lost` says why."""

    def __init__(self, task: dict, sandbox: Sandbox):
        self._folder = tempfile.TemporaryDirectory(prefix="smalearn-", ignore_cleanup_errors=True)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - what it says before it runs anything of the submission
        self._process = subprocess.Popen(
            [*sandbox.prefix, sys.executable, "-P", "-m", "smalearn.course.grading.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._folder.name,
            env=sandbox.environment,
            start_new_session=True,
        )
        _running.add(self)
        self._lines = queue.Queue(maxsize=4)
        self._asked = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._send(task | {"user": next(_users) if sandbox.prefix else None})
            self._next(PATIENCE)
            self._errors.truncate(0)  # it has started: what it warned of is not why it ends
        except Lost as lost:
            self.close()
            raise Lost(f"it does not start: {lost}") from None

    def _read(self) -> None:
        """Put every line into the queue, from a thread of its own: no system waits for a pipe with a limit."""
        with self._process.stdout as stream:
            while line := stream.readline(wire.LIMIT):
                self._lines.put(line)
        self._lines.put(None)

    def ask(self, request: dict, seconds: float) -> dict:
        """Send a request, so short that a pipe takes it whole, and return the answer; `Lost` where there is none."""
        if not self._lines.empty():
            raise Lost(self._end() if self._lines.get() is None else INTRUDES)
        self._asked += 1
        self._send(request)
        return self._next(seconds)

    def _send(self, message: dict) -> None:
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Lost(self._end()) from None

    def _next(self, seconds: float) -> dict:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise Lost(f"stopped after {seconds:.0f} s") from None
        if line is None:
            raise Lost(self._end())
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise Lost(INTRUDES) from None
        if isinstance(message, dict) and "ended" in message:
            raise Lost(f"its process ended: {message['ended']}"[:LONGEST])
        if not isinstance(message, dict) or message.get("to") != self._asked:
            raise Lost(INTRUDES)
        return message

    def _end(self) -> str:
        """Say that the process ended, and as far as that can be known why: the last line that it wrote, or a signal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._errors.seek(0)
        said = last_words(self._errors.read().decode("utf-8", "replace"))
        code = self._process.returncode or 0
        number = -code if code < 0 else code - 128  # bwrap, like a shell, adds 128 to a signal
        if not said and number in set(signal.Signals):
            said = signal.Signals(number).name
        return f"its process ended: {said}" if said else "its process ended"

    def close(self) -> None:
        """End the process, and what it started: all of it in a sandbox, else what has not left its session."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        until = time.monotonic() + 1
        while self._reader.is_alive() and time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                self._lines.get(timeout=0.01)  # makes room for what the reader still holds
        self._errors.close()
        self._folder.cleanup()
        _running.discard(self)


def end_all() -> None:
    """End every process that runs now: who waits for an answer gets `Lost`."""
    for child in list(_running):
        with contextlib.suppress(OSError):
            child._process.kill()
