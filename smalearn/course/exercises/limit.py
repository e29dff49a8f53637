"""A time limit that works on every system, notebooks included, for code on the main thread.

A watching thread asks the interpreter to run the SIGINT handler (`_thread.interrupt_main`), ours for that while, which
raises in the watched code. A call into a library that does not return is cut only when it returns.
"""

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TextIO

PAUSE = 0.5  # seconds between two interrupts
STRIKES = 5  # interrupts before the learner is told that they do not help
STUCK = """The time limit has passed, but this code does not stop: it is inside one long library call, or it catches
every exception. Interrupt or restart the kernel."""


class Expired(BaseException):
    """Error raised inside the watched code; not an Exception, so that `except Exception` lets it through."""


class Stopwatch:
    """Count the seconds that this process has worked: a busy machine costs nobody time, and to wait costs a quarter."""

    def __init__(self):
        self.wall, self.own = time.monotonic(), time.process_time()

    def __call__(self) -> float:
        """Seconds since it was made."""
        wall, own = time.monotonic() - self.wall, time.process_time() - self.own
        return max(min(wall, own), wall / 4)


class _Watch:
    """Thread that watches the clock, and the signal handler that it rings."""

    def __init__(self, seconds: float, out: TextIO):
        self.seconds, self.out = seconds, out
        self.running = False  # the watched code is under way
        self.rung = False  # time is over: from here on signals are ours, not the learner's Ctrl-C
        self.struck = False
        self.done = threading.Event()
        self.previous = signal.signal(signal.SIGINT, self.handle)
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self) -> None:
        """Interrupt at the deadline, then every half second; at the fifth interrupt, tell the learner."""
        stopwatch, wait, strikes = Stopwatch(), self.seconds, 0
        while not self.done.wait(wait):
            left = self.seconds - stopwatch()
            if left > 0:
                wait = max(left, 0.001)
                continue
            wait, strikes = PAUSE, strikes + 1
            self.rung = True
            _thread.interrupt_main()
            if strikes == STRIKES:
                print(STUCK, file=self.out, flush=True)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise in the watched code. In `within` itself nothing is raised, so that it can always clean up."""
        if not self.rung:
            if callable(self.previous):
                self.previous(number, frame)
            return
        if self.running and frame.f_code is not within.__code__ and not _holds(frame):
            self.struck = True
            raise Expired

    def close(self) -> None:
        """Silence the handler, then put the previous one back; an interrupt that came too late finds it silent."""
        self.done.set()
        self.thread.join()
        signal.signal(signal.SIGINT, self.previous)  # runs the handler of a pending signal first: still ours


def _holds(frame: FrameType) -> bool:
    """Say whether what works on top of the watched code must not be cut.

    An exception in an import would leave half of a library behind, an error in every later cell; one in coverage its
    lock locked, which stops every later test of the process; one in the callback of a weak reference, or in a library's
    `__del__`, would be lost.
    """
    while frame.f_code is not within.__code__:
        module = frame.f_globals.get("__name__", "")
        library = module.partition(".")[0] in ("coverage", "importlib", "_weakrefset", "weakref")
        if library or (frame.f_code.co_name == "__del__" and module != "__main__"):
            return True
        frame = frame.f_back
    return False


def within(seconds: float, steps: Iterator, out: TextIO) -> list:
    """Collect what an iterator yields, for at most so many seconds of the process's own work.

    A KeyboardInterrupt from the keyboard (or the notebook's stop button) passes through. Away from the main thread
    (or where a program around Python keeps SIGINT to itself) there is no limit, since nothing can be interrupted.
    Code that cannot be stopped is reported on `out`.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGINT) is None:
        return list(steps)
    watch, collected = _Watch(seconds, out), []
    try:
        watch.running = True
        for item in steps:
            if watch.struck:
                break
            collected.append(item)
    except Expired:
        pass
    finally:
        watch.running = False
        watch.close()
    return collected
