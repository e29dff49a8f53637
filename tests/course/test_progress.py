"""What long commands say on their way, and that a real Ctrl-C ends them in one sentence, with what is done kept."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from benchmarks.implementation import alone
from smalearn.course import progress

WAIT = 20
"""Seconds within which a command ends that is stopped, on a machine that does much else."""
SHELL = """
import fcntl, signal, subprocess, sys, termios

fcntl.ioctl(2, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda *_: None)
process = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)  # to the end of all that write there
sys.stdout.buffer.write(process.stdout)
sys.exit(process.returncode)
"""
INTERRUPT = """
import os, signal, sys, time

def interrupt():
    if __name__ == "__mp_main__":  # a process that the command has started, and that must not hear it
        signal.raise_signal(signal.SIGINT)
    print("now", file=sys.stderr, flush=True)
    if not hasattr(os, "killpg"):
        signal.raise_signal(signal.SIGINT)
    time.sleep(600)
"""
BENCHMARK = """
from smalearn.course import cli
import benchmarks as bench
from benchmarks.contest import contest, unchecked

def measure(finish):
    finish(contest("the first", {"sum": lambda: unchecked(lambda: sum(range(9)))}, 3, []))
    finish(contest("the second", {"stop": lambda: unchecked(interrupt)}, 3, []))

bench.BENCHMARKS["masks"] = lambda keep: bench.report.record("masks", 3, measure, list, keep)
sys.exit(cli.main(["bench", "masks", *sys.argv[1:]]))
"""
EXPERIMENT = """
from dataclasses import dataclass
from experiments.command import Experiment

@dataclass
class Setting:
    size: int = 1

def run(number):
    if number == 1:
        while not os.path.exists(sys.argv[1]):  # until the first run is kept
            time.sleep(0.1)
        interrupt()
    return {"number": number}

if __name__ == "__main__":
    setting, jobs = {"one": Setting()}, {f"run {number}": {"number": number} for number in range(2)}
    trial = Experiment("trial", "A trial.", setting, setting, run, str, jobs=lambda *_: jobs)
    sys.exit(trial(["-o", sys.argv[1], "--workers", "2" if hasattr(os, "openpty") else "0"]))
"""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_part_is_a_line_and_a_step_is_redrawn(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "11")
    progress.part("a part")
    progress.step("round 1 of 12345")
    progress.step("")
    blank = f"\r{'':10}\r"
    assert sys.stderr.getvalue() == f"{blank}a part\n\rround 1 of\r{blank}"


def test_without_a_terminal_steps_are_silent(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress.part("a part")
    progress.step("round 1")
    assert sys.stderr.getvalue() == "a part\n"


def at_a_terminal(command, moment, **options):
    """Status, stdout and stderr of a command, where Ctrl-C is pressed as soon as it has written `moment`."""
    terminal, other_end = os.openpty()
    streams = {"stdin": other_end, "stdout": subprocess.PIPE, "stderr": other_end}
    shell = subprocess.Popen([sys.executable, "-c", SHELL, *command], start_new_session=True, **streams, **options)
    os.close(other_end)
    limit, written = threading.Timer(WAIT, os.killpg, [shell.pid, signal.SIGKILL]), b""
    with contextlib.suppress(OSError):  # Linux says so that nobody writes any more
        while more := os.read(terminal, 4096):
            written += more
            if moment in written and not limit.ident:
                limit.start()
                os.write(terminal, b"\x03")
    out, _ = shell.communicate()
    limit.cancel()
    os.close(terminal)
    written = re.sub(r"\r[^\r\n]*\r", "", written.decode().replace("\r\n", "\n"))  # a line that counts leaves nothing
    return shell.returncode, out.decode(), written


def stopped(tmp_path, code, *arguments, moment=b"now"):
    """Stdout and stderr of a script that gets a Ctrl-C, and leaves nothing running."""
    script = tmp_path / "script.py"
    script.write_text(INTERRUPT + code, encoding="utf-8")
    command = [sys.executable, str(script), *map(str, arguments)]
    options = {"env": os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, "cwd": tmp_path}
    if hasattr(os, "openpty"):
        status, out, err = at_a_terminal(command, moment, **options)
    else:
        process = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, **options)
        status, out, err = process.returncode, process.stdout, process.stderr
    assert status == 130, err
    assert "Traceback" not in err
    return out, err


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.full
def test_a_stopped_benchmark_keeps_what_it_has(tmp_path, kept):
    file = tmp_path / "times.json"
    out, err = stopped(tmp_path, BENCHMARK, *["-o", file] * kept)
    first, second, *_, last = err.splitlines()
    assert (first, second) == ("the first", "the second")
    where = f" and in {tmp_path / 'times.stopped.json'}" if kept else ""
    assert last == f"Stopped: finished parts stand above{where}."
    assert "the first\n  sum " in out
    assert not file.exists()
    if kept:
        (part,) = json.loads((tmp_path / "times.stopped.json").read_text(encoding="utf-8"))["finished"]
        assert part["problem"] == "the first"


@pytest.mark.full
def test_a_stopped_experiment_keeps_its_runs_and_waits_for_none(tmp_path):
    """One of its two processes has nothing to do."""
    file = tmp_path / "trial.json"
    out, err = stopped(tmp_path, EXPERIMENT, file)
    assert out == ""
    assert err.startswith("1/2  run 0\n")
    assert err.endswith(f"\ntrial: stopped; the same command goes on with {file}\n")
    assert json.loads(file.read_text(encoding="utf-8"))["runs"] == {"run 0": {"number": 0}}


@pytest.mark.full
def test_where_no_signal_can_be_blocked_a_process_ignores_it():
    assert alone(signal.getsignal, signal.SIGINT) == signal.SIG_IGN
