"""What long commands say on their way, and that a real Ctrl-C ends them in one sentence, with what is done kept."""

import io
import json
import os
import subprocess
import sys

import pytest

from smalearn.lab import progress

INTERRUPT = """
import os, signal, sys, time

def interrupt():
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGINT)  # as a terminal does it: all processes of the command get it
    else:
        signal.raise_signal(signal.SIGINT)
    time.sleep(600)
"""
BENCHMARK = """
from smalearn.course import cli
from smalearn.lab import bench
from smalearn.lab.bench.contest import contest, unchecked

def benchmark():
    contest("the first", {"sum": lambda: unchecked(lambda: sum(range(9)))}, 3, [])
    contest("the second", {"stop": lambda: unchecked(interrupt)}, 3, [])

bench.BENCHMARKS["masks"] = benchmark
sys.exit(cli.main(["bench", "masks", *sys.argv[1:]]))
"""
EXPERIMENT = """
from dataclasses import dataclass
from smalearn.lab.experiments.command import Experiment

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
    setting, jobs = {"one": Setting()}, {f"run {number}": {"number": number} for number in range(9)}
    trial = Experiment("trial", "A trial.", setting, setting, run, str, jobs=lambda *_: jobs)
    sys.exit(trial(["-o", sys.argv[1], "--workers", "1" if hasattr(os, "killpg") else "0"]))
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


def stopped(tmp_path, code, *arguments):
    """The output of a script that gets a Ctrl-C, in a session of its own."""
    script = tmp_path / "script.py"
    script.write_text(INTERRUPT + code, encoding="utf-8")
    command = [sys.executable, str(script), *map(str, arguments)]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        command, start_new_session=True, capture_output=True, encoding="utf-8", env=own, timeout=300, cwd=tmp_path
    )
    assert process.returncode == 130
    assert "Traceback" not in process.stderr
    return process


@pytest.mark.parametrize("kept", [True, False])
def test_a_stopped_benchmark_keeps_what_it_has(tmp_path, kept):
    file = tmp_path / "times.json"
    process = stopped(tmp_path, BENCHMARK, *["-o", file] * kept)
    first, second, *_, last = process.stderr.splitlines()
    assert (first, second) == ("the first", "the second")
    where = f" and in {tmp_path / 'times.stopped.json'}" if kept else ""
    assert last == f"Stopped: finished parts stand above{where}."
    assert "the first\n  sum " in process.stdout
    assert not file.exists()
    if kept:
        (part,) = json.loads((tmp_path / "times.stopped.json").read_text(encoding="utf-8"))["finished"]
        assert part["problem"] == "the first"


def test_a_stopped_experiment_keeps_its_runs_and_waits_for_none(tmp_path):
    file = tmp_path / "trial.json"
    process = stopped(tmp_path, EXPERIMENT, file)
    assert process.stdout == ""
    assert process.stderr.startswith("1/9  run 0\n")
    assert process.stderr.endswith(f"\ntrial: stopped; the same command goes on with {file}\n")
    assert json.loads(file.read_text(encoding="utf-8"))["runs"] == {"run 0": {"number": 0}}
