"""JupyterLab as the course opens it: three lines in place of its log, and Ctrl-C ends it without a question."""

import logging
import os
import re
import signal
import sys
from collections.abc import Sequence

import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelspec import KERNEL_NAME, get_kernel_dict
from jupyter_server.serverapp import ServerApp
from jupyterlab.labapp import LabApp
from traitlets.config import Config

__all__ = ["kernel", "open_lab"]

ROOT = "You are root, and so is whoever reaches JupyterLab's port"
EVERYWHERE = ("", "0.0.0.0", "::")

ServerApp.port.min, ServerApp.port.max = 0, 65_535  # else it takes any number, and announces what nobody can reach


class OnceEach(logging.Filter):
    """Filter that lets a complaint pass once, and nothing that `start_app` logs: our lines have the address."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the record is shown."""
        message = record.getMessage()
        new = message not in self.messages and record.funcName != "start_app"
        self.messages.add(message)
        return new


QUIET = {
    "Application": {
        "log_level": logging.WARNING,
        "log_format": "JupyterLab: %(message)s",
        "logging_config": {"filters": {"once": {"()": OnceEach}}, "handlers": {"console": {"filters": ["once"]}}},
    },
    # Else each kernel warns on the terminal that its connection, which stays on this machine, is not encrypted.
    "KernelManager": {"transport_encryption": "auto" if zmq.has("curve") else "disabled"},
}


class CourseServer(ServerApp):
    """Server that complains while it starts, then prints its address, and is silent unless something breaks."""

    def init_signal(self) -> None:
        """Leave Ctrl-C as it is until there is a loop that it can stop."""

    def start_app(self) -> None:
        """Open the browser, and announce the server once it answers."""
        for app in (self, self.starter_app):
            app.log_level = logging.ERROR
        super().start_app()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        self.io_loop.add_callback(self._announce)  # it waits behind the one that binds the port

    def _announce(self) -> None:
        """Print the three lines."""
        everywhere = self.ip in EVERYWHERE and not self.custom_display_url
        address = self.local_url if everywhere else self.public_url
        hint = " (elsewhere: with this machine's name)" if everywhere else ""
        print(f"JupyterLab  {address}{hint}", f"Folder      {self.root_dir}", sep="\n")
        print("To stop     save your notebooks, then press Ctrl-C here", flush=True)

    def _end(self, *signalled: object) -> None:
        """Shut down the kernels and stop; a second Ctrl-C, as JupyterLab teaches it, does not cut that short."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.stop(from_signal=True)


class CourseLab(LabApp):
    """JupyterLab on the course's server."""

    serverapp_class = CourseServer

    @classmethod
    def get_extension_package(cls) -> str:
        """Name JupyterLab's package; without this method it would be looked for in ours."""
        return "jupyterlab"

    @classmethod
    def make_serverapp(cls, **options: object) -> ServerApp:
        """Make the server, quiet unless the user's own settings say otherwise."""
        return super().make_serverapp(config=Config(QUIET), **options)


def kernel() -> dict[str, object]:
    """Describe the kernel of this Python, as JupyterLab writes it into the metadata of a notebook that it opens."""
    spec = get_kernel_dict()
    about = {"name": KERNEL_NAME, "display_name": spec["display_name"], "language": spec["language"]}
    return {"kernelspec": about, "language_info": dict(IPythonKernel.language_info)}


def open_lab(options: Sequence[str], log: bool) -> int:
    """Run JupyterLab in the current folder until it is stopped; options about its log show it, as `log` does."""
    log = log or _has(options, r"debug|log-level|\w+\.log_level")
    try:
        (LabApp if log else CourseLab).launch_instance(_for_root(options))
    except OSError as error:  # an address that is not this machine's
        return _fail(f": {error}")
    except SystemExit as end:
        return _fail("; the reason stands above, and --log shows more") if end.code else 0  # 0: it printed its help
    if not log:
        print("\nStopped.", flush=True)  # the terminal has written ^C
    return 0


def _for_root(options: Sequence[str]) -> list[str]:
    """Add the options that root needs, and print a line about them."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return list(options)
    if _has(options, r"ip|\w+\.ip"):
        print(f"{ROOT}.", flush=True)
        return [*options, "--allow-root"]
    print(f"{ROOT}: it listens on this machine alone (change that with --ip).", flush=True)
    return [*options, "--allow-root", "--ip=localhost"]


def _has(options: Sequence[str], names: str) -> bool:
    """Say whether one of the options has a name of this pattern."""
    return any(re.match(rf"--({names})(=|$)", option) for option in options)


def _fail(reason: str) -> int:
    """Print one line on stderr; return the exit status of a failure."""
    print(f"smalearn lab: JupyterLab did not start{reason}", file=sys.stderr)
    return 1
