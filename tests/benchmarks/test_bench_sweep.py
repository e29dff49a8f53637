"""Benchmarks on other machines: each result comes with its CPU or GPU, and one that fails costs none of the others."""

import json
import sys

import pytest

from benchmarks import sweep
from benchmarks.records import cpu_folder
from smalearn.course.cli import main
from smalearn.course.timing import machine

PROGRAM = """
import json, sys
from smalearn.course.timing import machine
command, name, *options, _, file = sys.argv[1:]
assert command == "bench"
if name == "weights":
    sys.exit("smalearn bench: the weights are gone")
result = {"command": f"smalearn bench {name}", "machine": machine(), "contests": [], "targets": []}
if options:
    assert options == ["--device", "cuda"]
    result["device"] = {"name": "NVIDIA H200"}
open(file, "w").write(json.dumps(result))
"""


@pytest.fixture
def place(monkeypatch):
    """A worker of Dask, which as in every cluster is a process that may start no others by itself."""
    distributed = pytest.importorskip("distributed", reason="needs a peer: distributed of the extra `dask`")
    monkeypatch.setattr(sweep, "PROGRAM", PROGRAM)
    options = {"processes": True, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster:
        yield f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"


@pytest.mark.full
def test_results_are_kept_by_machine(tmp_path, capsys, place):
    assert main(["bench", "masks", "weights", "ssd", "--on", place, "-o", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err == "smalearn bench: weights: the weights are gone\n"
    for name in ("masks", "ssd"):
        file = tmp_path / "cpu" / cpu_folder(machine()) / f"{name}.json"
        assert json.loads(file.read_text(encoding="utf-8"))["command"] == f"smalearn bench {name}"
        assert f"\n{file}\n" in said.out
    (tmp_path / "cpu" / cpu_folder(machine()) / "masks.json").write_text(
        '{"machine": {"cpu": "X", "instructions": "Y"}}'
    )
    assert main(["bench", "masks", "--on", place, "-o", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "holds times of X, Y" in said.err
    assert said.out.startswith(f"cpu: {machine()['cpu']}")  # shown all the same
    assert main(["bench", "ssd", "--device", "cuda", "--on", place, "-o", str(tmp_path)]) == 0
    assert (tmp_path / "gpu" / "nvidia-h200" / "ssd.json").exists()


@pytest.mark.full
def test_the_program_is_the_command_itself():
    with pytest.raises(RuntimeError, match=r"^there is no benchmark 'none', only bilinear, .*weights$"):
        sweep._measured(sweep.PROGRAM, "none", ())
    with pytest.raises(RuntimeError, match=r"^status 3$"):
        sweep._measured("import sys; sys.exit(3)", "masks", ())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["masks", "none", "--on", "slurm"], "there is no benchmark 'none', only"),
        (["masks", "--on", "slurm"], "-o must be a folder for --on, got None"),
        (["masks", "--on", "slurm", "-o", "here.json"], "-o must be a folder for --on, got here.json"),
        (["masks", "ssd", "-o", "here.json"], "-o must be a folder for several benchmarks, got here.json"),
        (["masks", "--on", "here", "-o", "."], "--on must be local, dask://HOST:PORT, slurm or mpi, got here"),
    ],
)
def test_what_is_refused_before_anything_runs(capsys, arguments, message):
    assert main(["bench", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"smalearn bench: {message}")


def test_a_library_that_is_missing_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["bench", "masks", "--on", "slurm", "-o", str(tmp_path)]) == 1
    assert '--on slurm needs submitit; run: python -m pip install -e ".[slurm]"' in capsys.readouterr().err
