"""Other places make the same table; a place that is not there says so in a sentence."""

import json
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import ModuleType
from typing import ClassVar

import pytest

from smalearn.lab.executors import executor
from smalearn.lab.experiments import jobs
from smalearn.lab.experiments.jobs import run_jobs
from smalearn.lab.experiments.recall import SMOKE, main, run, table

PEER = "needs a peer: {} of the extra `{}`".format


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds."""
    path = tmp_path_factory.mktemp("alone") / "recall.json"
    assert main(["-o", str(path), "--smoke", "--workers", "0"]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


def without_seconds(runs):
    return {name: {key: value for key, value in run.items() if key != "seconds"} for name, run in runs.items()}


@pytest.fixture
def cluster():
    """Two workers of Dask, processes of this machine."""
    distributed = pytest.importorskip("distributed", reason=PEER("distributed", "dask"))
    options = {"processes": True, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"


@pytest.mark.full
def test_a_dask_cluster_of_two_workers_makes_the_table_of_one_process(tmp_path, capsys, alone, cluster):
    path = tmp_path / "recall.json"
    assert main(["-o", str(path), "--smoke", "--on", cluster]) == 0
    result = json.loads(path.read_text(encoding="utf-8"))
    assert without_seconds(result["runs"]) == without_seconds(alone["runs"])
    assert capsys.readouterr().out.splitlines()[-10:] == table(result).splitlines()
    lines = zip(table(result).splitlines(), table(alone).splitlines(), strict=True)
    assert all(there.rpartition("  ")[0] == here.rpartition("  ")[0] for there, here in lines)  # behind it, the seconds
    removed = dict(list(result["runs"].items())[::2])
    path.write_text(json.dumps(result | {"runs": removed}), encoding="utf-8")
    assert main(["-o", str(path), "--smoke", "--on", cluster]) == 0  # goes on where it was
    again = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert without_seconds(again) == without_seconds(alone["runs"])
    assert {name: again[name] for name in removed} == removed


def test_a_worker_of_dask_has_one_thread(tmp_path):
    distributed = pytest.importorskip("distributed", reason=PEER("distributed", "dask"))
    options = {"processes": False, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, protocol="tcp", **options) as cluster:
        place = f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
        with pytest.raises(ValueError, match=r"--on dask needs workers of one thread, .*: --nthreads 1"):
            executor(place, 2, tmp_path).__enter__()


@pytest.mark.full
def test_jobs_of_submitit_make_the_records_of_one_process(tmp_path, alone, monkeypatch):
    submitit = pytest.importorskip("submitit", reason=PEER("submitit", "slurm"))
    auto, clusters = submitit.AutoExecutor, []

    def local(folder, cluster):
        clusters.append(cluster)
        return auto(folder, cluster="local")

    monkeypatch.setattr(submitit, "AutoExecutor", local)
    few = {name: {key: alone["runs"][name][key] for key in ("mixer", "state", "lr", "seed")} for name in NAMES}
    work = {name: job | {"setting": vars(SMOKE["2 pairs"])} for name, job in few.items()}
    with executor("slurm", 2, tmp_path / "logs") as pool:
        result = run_jobs(tmp_path / "run.json", "python -m example", {}, work, run, pool)
    assert clusters == ["slurm"]
    wanted = {name: alone["runs"][name] for name in NAMES}
    assert without_seconds(result["runs"]) == without_seconds(wanted)


NAMES = ["2 pairs, Mamba-1, N = 2, lr 0.008, seed 0", "2 pairs, Mamba-2, N = 2, lr 0.008, seed 0"]


class Job:
    """A job of submitit, as far as it matters here."""

    def __init__(self, function, args, kwargs):
        self.cancelled, self.outcome = False, Future()
        if function is not None:
            self.outcome.set_result(function(*args, **kwargs))

    def result(self):
        return self.outcome.result()

    def done(self):
        return self.outcome.done()

    def cancel(self):
        self.cancelled = True
        self.outcome.set_exception(RuntimeError("cancelled"))


class Jobs:
    """An executor of submitit, which is no executor of the standard library."""

    made: ClassVar[list] = []

    def __init__(self, folder, cluster):
        self.made.clear()

    def update_parameters(self, **parameters):
        self.parameters = parameters

    def submit(self, function, *args, **kwargs):
        self.made.append(Job(function, args, kwargs))
        return self.made[-1]


def test_what_was_submitted_ends_with_an_error_of_ours(tmp_path, monkeypatch):
    """Stand-ins: what a job of Slurm is, is up to submitit."""
    submitit = ModuleType("submitit")
    submitit.AutoExecutor = Jobs
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    with executor("slurm", 2, tmp_path) as pool:
        assert pool.submit(max, 2, 3, key=abs).result() == 3
        assert pool.jobs.parameters["cpus_per_task"] == 1

    def interrupted():
        with executor("slurm", 2, tmp_path) as pool:
            assert pool.submit(max, 2, 3).result() == 3
            pool.submit(None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [job.cancelled for job in Jobs.made] == [False, True]


def test_a_job_that_slurm_refuses_is_one_line(tmp_path, capsys, monkeypatch):
    class Refused(Jobs):
        def submit(self, function, *args, **kwargs):
            raise RuntimeError("sbatch: error: invalid partition\nand a command, for three lines")

    submitit = ModuleType("submitit")
    submitit.AutoExecutor = Refused
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", "slurm"]) == 1
    assert capsys.readouterr().err == "recall: --on slurm: sbatch: error: invalid partition\n"


class Pool(ThreadPoolExecutor):
    def bootup(self):
        """Begin; an executor of mpi4py has this."""


def test_mpi_is_the_executor_of_mpi4py(tmp_path, monkeypatch):
    """A stand-in: a real one needs an MPI library."""
    package, futures = ModuleType("mpi4py"), ModuleType("mpi4py.futures")
    futures.MPIPoolExecutor = Pool
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.futures", futures)
    with executor("mpi", 2, tmp_path) as pool:
        assert isinstance(pool, Pool)
        assert pool.submit(abs, -3).result() == 3


@pytest.mark.parametrize(
    ("place", "module", "library"),
    [
        ("dask://host:8786", "distributed", "dask.distributed"),
        ("slurm", "submitit", "submitit"),
        ("mpi", "mpi4py.futures", "mpi4py"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path, capsys, monkeypatch, place, module, library):
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", place]) == 1
    extra = place.partition(":")[0]
    message = f'recall: --on {extra} needs {library}; run: python -m pip install -e ".[{extra}]"\n'
    assert capsys.readouterr().err == message


def test_a_cluster_that_is_not_there(tmp_path, capsys, monkeypatch):
    pytest.importorskip("submitit", reason=PEER("submitit", "slurm"))
    pytest.importorskip("distributed", reason=PEER("distributed", "dask"))
    monkeypatch.setenv("PATH", "")
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", "slurm"]) == 1
    assert capsys.readouterr().err.startswith('recall: --on slurm: Could not detect "srun"')

    class Client:
        def __init__(self, address):
            raise TimeoutError(f"Timed out trying to connect to {address}")

    monkeypatch.setattr(sys.modules["distributed"], "Client", Client)
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", "dask://h:1"]) == 1
    assert capsys.readouterr().err == "recall: --on dask: Timed out trying to connect to tcp://h:1\n"


@pytest.mark.parametrize("place", ["", "here", "dask", "dask://", "local://x", "slurm://x", "mpi://", "DASK://h:1"])
def test_a_place_that_is_none(tmp_path, capsys, place):
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", place]) == 1
    message = f"recall: --on must be local, dask://HOST:PORT, slurm or mpi, got {place}\n"
    assert capsys.readouterr().err == message


class Here(Executor):
    """Runs what is submitted at once; what is submitted last, ends first."""

    def submit(self, function, /, *args):
        future = Future()
        future.set_result(function(*args))
        return future


def cubed(base):
    return {"cube": base**3}


def test_a_run_on_another_machine_says_so(tmp_path, monkeypatch):
    path, work = tmp_path / "run.json", {"a": {"base": 2}}
    run_jobs(path, "python -m example", {}, work, cubed, Here())
    assert json.loads(path.read_text(encoding="utf-8"))["runs"] == {"a": {"cube": 8}}
    elsewhere = jobs.machine() | {"cpu": "another one"}
    monkeypatch.setattr(jobs, "machine", lambda: elsewhere)
    result = run_jobs(path, "python -m example", {}, work | {"b": {"base": 3}}, cubed, Here())
    assert result["runs"] == {"a": {"cube": 8}, "b": {"cube": 27, "machine": elsewhere}}
    assert result["machine"]["cpu"] != "another one"
