"""JupyterLab as the course opens it: what is seen of it on a terminal, from the start to the end."""

import asyncio
import contextlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tornado.websocket import websocket_connect
from traitlets import TraitError

from smalearn.course import server

ROOT = Path(__file__).parents[2]
RUN = "import sys; from smalearn.course.server import open_lab; sys.exit(open_lab(sys.argv[1:], log=False))"
ALONE = f"{server.ROOT}: it listens on this machine alone (change that with --ip).\n"
STOP = "To stop     save your notebooks, then press Ctrl-C here\n"
REASON = "smalearn lab: JupyterLab did not start; the reason stands above, and --log shows more\n"
FOR_ROOT = ALONE if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
SIGNALS = [] if os.name == "nt" else [signal.SIGINT, signal.SIGTERM]  # Windows has other ways to send them


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a space and an umlaut, and nobody's settings."""
    folder = tmp_path / "mein kürs"
    folder.mkdir()
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_TOKEN", "JUPYTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return folder


@contextlib.contextmanager
def start(home, *options):
    """JupyterLab in a process of its own, with all that it says in its stdout."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, "-c", RUN, "--no-browser", *options]
    with subprocess.Popen(command, cwd=home, env=environment, encoding="utf-8", **pipes) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def until(process, last):
    """What the process prints, to this line."""
    said = ""
    while not said.endswith(last):
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


def ask(address, path):
    """Ask the server at this address for something."""
    request = urllib.request.Request(address.replace("/lab?", path + "?"), b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"{}")


async def compute(address, code):
    """What a new kernel there prints."""
    path = f"/api/kernels/{ask(address, '/api/kernels')['id']}/channels"
    request = {"header": {"msg_id": "1", "msg_type": "execute_request", "session": "1"}, "channel": "shell"}
    request |= {"parent_header": {}, "metadata": {}, "content": {"code": code, "silent": False}}
    socket = await websocket_connect(address.replace("http:", "ws:").replace("/lab?", path + "?"))
    await socket.write_message(json.dumps(request))
    while (message := json.loads(await asyncio.wait_for(socket.read_message(), 60)))["msg_type"] != "stream":
        pass
    socket.close()
    while await asyncio.wait_for(socket.read_message(), 60):  # to its end, else it is left open
        pass
    return message["content"]["text"]


def test_the_kernel_is_described_as_jupyterlab_does():
    about = server.kernel()
    assert about["kernelspec"] == {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    assert about["language_info"]["version"] == platform.python_version()
    assert json.loads(json.dumps(about)) == about


# The real one


@pytest.mark.parametrize(
    "stop", [*SIGNALS[:1], *(pytest.param(stop, marks=pytest.mark.full) for stop in [*SIGNALS[1:], "/api/shutdown"])]
)
def test_three_lines_then_stopped(home, stop):
    with start(home, "--port=0") as process:
        line, folder, _ = until(process, STOP).removeprefix(FOR_ROOT).splitlines()
        address = re.fullmatch(r"JupyterLab  (http://localhost:\d+/lab\?token=\w{48})", line).group(1)
        assert folder == f"Folder      {home}"
        address = address.replace("localhost", "127.0.0.1")
        assert asyncio.run(compute(address, "print(6 * 7)")) == "42\n"
        if stop in SIGNALS:
            process.send_signal(stop)
            time.sleep(0.02)
            process.send_signal(signal.SIGINT)  # who presses Ctrl-C twice does not cut the end short
        else:
            ask(address, stop)
        assert process.stdout.read() == "\nStopped.\n"
    assert process.returncode == 0
    left = [path.name for path in (home.parent / "jupyter_runtime_dir").glob("*-*")]
    assert not left, "of the server and its kernel"


@pytest.mark.full
def test_a_taken_port_is_the_reason_that_is_shown(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with start(home, f"--port={port}", "--ServerApp.port_retries=0", "--ip=127.0.0.1") as process:
            said = process.stdout.read()
    wanted = f"JupyterLab: ERROR: the Jupyter server could not be started because port {port} is not available.\n"
    assert said.endswith(wanted + REASON)
    assert said.count("\n") == 2 + bool(FOR_ROOT)
    assert process.returncode == 1


@pytest.mark.full
def test_what_has_no_effect_is_said_once_and_an_address_for_everybody_is_one_line(home):
    options = ["--port=0", "--ip=0.0.0.0", "--prot=9999", "--ServerApp.dance=3", "--IdentityProvider.token=secret"]
    with start(home, *options) as process:
        *warnings, line, _, _ = until(process, STOP).splitlines()
        found = r"JupyterLab  (http://127\.0\.0\.1:\d+/lab\?token=\.\.\.) \(elsewhere: with this machine's name\)"
        address = re.fullmatch(found, line).group(1)
        ask(address.replace("...", "secret"), "/api/shutdown")
    assert warnings == [f"{server.ROOT}."] * bool(FOR_ROOT) + [
        "JupyterLab: Unrecognized alias: 'prot', it will have no effect.",
        "JupyterLab: Config option `dance` not recognized by `CourseServer`.",
    ]


# What it asks JupyterLab for


@pytest.mark.parametrize("lab", [server.LabApp, server.CourseLab])
def test_a_port_is_one_that_there_is(lab):
    for port in (-1, 65_536, 99_999):
        with pytest.raises(TraitError, match=f"'port'.* {port} "):
            lab.serverapp_class(port=port)
    assert [lab.serverapp_class(port=port).port for port in (0, 65_535)] == [0, 65_535]


@pytest.fixture
def launched(monkeypatch):
    """Which JupyterLab was launched, and its options; nobody is root."""
    launched = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    for lab in (server.LabApp, server.CourseLab):
        monkeypatch.setattr(lab, "launch_instance", lambda options, lab=lab: launched.append((lab, options)))
    return launched


@pytest.mark.parametrize(
    ("options", "log", "lab"),
    [
        ([], False, server.CourseLab),
        (["--logo=3", "--port", "9"], False, server.CourseLab),
        ([], True, server.LabApp),
        (["--debug"], False, server.LabApp),
        (["--log-level=INFO"], False, server.LabApp),
        (["--ServerApp.log_level", "INFO"], False, server.LabApp),
    ],
)
def test_its_log_is_shown_to_who_asks_for_it(launched, options, log, lab, capsys):
    assert server.open_lab(options, log) == 0
    assert launched == [(lab, options)]
    assert capsys.readouterr().out == ("\nStopped.\n" if lab is server.CourseLab else "")


@pytest.mark.parametrize(
    ("options", "added", "said"),
    [
        (["--port=9"], ["--allow-root", "--ip=localhost"], ALONE),
        (["--ip=0.0.0.0"], ["--allow-root"], f"{server.ROOT}.\n"),
        (["--ip", "0.0.0.0"], ["--allow-root"], f"{server.ROOT}.\n"),
        (["--ServerApp.ip=*"], ["--allow-root"], f"{server.ROOT}.\n"),
    ],
)
@pytest.mark.parametrize("log", [True, False])
def test_root_is_served_and_told(launched, monkeypatch, options, added, said, log, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    assert server.open_lab(options, log) == 0
    assert launched == [(server.LabApp if log else server.CourseLab, options + added)]
    assert capsys.readouterr().out.startswith(said)


def test_a_system_without_root_is_served(launched, monkeypatch):
    monkeypatch.delattr(os, "geteuid")
    assert server.open_lab([], log=False) == 0
    assert launched == [(server.CourseLab, [])]


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        (SystemExit(0), 0, ""),
        (SystemExit(1), 1, REASON),
        (OSError("no such street"), 1, "smalearn lab: JupyterLab did not start: no such street\n"),
    ],
)
def test_an_end_before_the_start_is_explained(launched, monkeypatch, end, status, said, capsys):
    def fail(options):
        raise end

    monkeypatch.setattr(server.CourseLab, "launch_instance", fail)
    assert server.open_lab([], log=False) == status
    assert capsys.readouterr() == ("", said)


# What of its log is shown
