"""Submission's process, seen from the grader: started, asked, and ended whatever it does."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from smalearn.course.grading import wire

__all__ = ["Child", "Lost"]

START = 120.0  # seconds for Python and torch to start, however busy the machine is
INTRUDES = "it writes to the grader's channel"
GRACE = 5.0  # seconds beyond a submission's own limit before its process is ended from outside


class Lost(Exception):  # noqa: N818 - it reports a submission, not a fault of the program
    """Error: the process ended, or had to be ended; the text says why."""


class Child:
    """Process that runs one notebook, until `close` ends it.

    Args:
        task: what `smalearn.course.grading.child.Session` takes, and `memory`, in bytes, and `seconds`.

    Raises:
        Lost: it does not start.
    """

    def __init__(self, task: dict):
        self._folder = tempfile.TemporaryDirectory(prefix="smalearn-", ignore_cleanup_errors=True)
        (Path(self._folder.name) / "task.pickle").write_bytes(pickle.dumps(task))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "smalearn.course.grading.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env=_environment(),
            start_new_session=True,
        )
        self._frames = queue.Queue(maxsize=4)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._next(START, "")
        except Lost as lost:
            self.close()
            raise Lost(f"it does not start: {lost}") from None

    def _read(self) -> None:
        """Put every frame into the queue, from a thread of its own: no system waits for a pipe with a limit."""
        with self._process.stdout as stream:
            try:
                while frame := wire.read(stream):
                    self._frames.put(frame)
                end = Lost("its process ended")
            except (wire.WireError, OSError):
                end = Lost(INTRUDES)
        self._frames.put(end)

    def ask(self, request: str, seconds: float) -> tuple[dict, bytes]:
        """Send a request and return the frame that answers it.

        Args:
            request: one line; so short that a pipe takes it whole, even if nobody reads it.
            seconds: after which the process counts as lost.

        Raises:
            Lost: no answer.
        """
        if not self._frames.empty():
            raise Lost(INTRUDES)
        try:
            self._process.stdin.write(f"{request}\n".encode("ascii"))
            self._process.stdin.flush()
        except OSError:
            raise Lost("its process ended") from None
        return self._next(seconds, request)

    def _next(self, seconds: float, request: str) -> tuple[dict, bytes]:
        try:
            frame = self._frames.get(timeout=seconds)
        except queue.Empty:
            raise Lost(f"stopped after {seconds:.0f} s") from None
        if isinstance(frame, Lost):
            raise frame
        if frame[0].get("to") != request:
            raise Lost(INTRUDES)
        return frame

    def close(self) -> None:
        """End the process, and with it (not on Windows) those that it started and that did not leave its session."""
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
                self._frames.get(timeout=0.01)  # makes room for what the reader still holds
        self._folder.cleanup()


def _environment() -> dict[str, str]:
    """Copy our environment, with one thread, no windows and no GPU: notebooks run side by side, alike everywhere."""
    threads = dict.fromkeys(["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "1")
    return os.environ | threads | {"MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"}
