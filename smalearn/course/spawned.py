"""Fresh processes that Ctrl-C does not reach: who started them alone hears it, and ends them.

A terminal sends Ctrl-C to all processes of a command. One that is just loading PyTorch, or that waits for work, would
answer with a traceback.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

__all__ = ["SPAWN", "killed_by_ctrl_c"]


class _Unheard(SpawnProcess):
    """A process that does not hear Ctrl-C; on Windows from where its modules are loaded."""

    def start(self):
        """Start it with the signal blocked, which it inherits; a Ctrl-C meanwhile comes when it has started."""
        if not hasattr(signal, "pthread_sigmask"):
            return super().start()
        resource_tracker.ensure_running()  # or else it starts with the process, and unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self):
        """Do what it is there for."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        super().run()


class _Context(SpawnContext):
    Process = _Unheard


SPAWN = _Context()
"""For `multiprocessing` and `concurrent.futures`: the context that makes such processes."""


@contextlib.contextmanager
def killed_by_ctrl_c() -> Iterator[None]:
    """Kill all processes that this one has started if Ctrl-C comes, or else each would finish its run."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.kill()
        raise
