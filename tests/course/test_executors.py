"""Other places make the same table; a place that is not there says so in a sentence."""

import json
import signal
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed, wait
from functools import partial
from subprocess import CompletedProcess
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from experiments import jobs
from experiments.jobs import run_jobs
from experiments.recall import main, table
from smalearn.course import executors
from smalearn.course.executors import Lost, executor

PEER = "needs a peer: {} of the extra `{}`".format


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds."""
    path = tmp_path_factory.mktemp("alone") / "recall.json"
    assert main(["-o", str(path), "--smoke", "--workers", "0"]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


def without_seconds(runs):
    return {name: {key: value for key, value in run.items() if key != "seconds"} for name, run in runs.items()}


@pytest.mark.full
def test_a_dask_cluster_of_two_workers_makes_the_table_of_one_process(tmp_path, capsys, alone, cluster):
    path = tmp_path / "recall.json"
    assert main(["-o", str(path), "--smoke", "--on", cluster]) == 0
    result = json.loads(path.read_text(encoding="utf-8"))
    assert without_seconds(result["runs"]) == without_seconds(alone["runs"])
    assert capsys.readouterr().out.endswith(table(result) + "\n")
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
def test_jobs_of_submitit_bring_their_records(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit", reason=PEER("submitit", "slurm"))
    auto = submitit.AutoExecutor
    monkeypatch.setattr(submitit, "AutoExecutor", lambda folder, cluster: auto(folder, cluster="local"))
    work = {"a": {"cube": 8}, "b": {"cube": 27}}
    with executor("slurm", 2, tmp_path / "logs") as pool:
        assert run_jobs(tmp_path / "run.json", "python -m example", {}, work, dict, pool)["runs"] == work


class Job:
    """A job of submitit, as far as it matters here; one without a function never brings a result."""

    def __init__(self, folder, function, args, kwargs):
        self.job_id, self.cancelled, self.call = str(len(Jobs.made)), False, (function, args, kwargs)
        self.paths = SimpleNamespace(result_pickle=folder / f"{self.job_id}_result.pkl")
        if function is not None:
            self.paths.result_pickle.touch()

    def result(self):
        function, args, kwargs = self.call
        return function(*args, **kwargs)

    def cancel(self, check):
        self.cancelled = True


class Jobs:
    """An executor of submitit, which is no executor of the standard library."""

    made: ClassVar[list] = []

    def __init__(self, folder, cluster):
        self.folder = folder
        self.made.clear()

    def update_parameters(self, **parameters):
        self.parameters = parameters

    def submit(self, function, *args, **kwargs):
        self.made.append(Job(self.folder, function, args, kwargs))
        return self.made[-1]


@pytest.fixture
def slurm(monkeypatch):
    """Stand-ins for submitit and for Slurm's programs; what they say of jobs, by id: lines of squeue, ways to fail."""
    submitit = ModuleType("submitit")
    submitit.AutoExecutor = Jobs
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    monkeypatch.setattr(executors, "POLL", 0.01)
    monkeypatch.setattr(executors, "PATIENCE", 0.02)
    monkeypatch.setattr(jobs, "as_completed", partial(as_completed, timeout=20))  # what is never settled is an error
    said = SimpleNamespace(queue="", error="")

    def program(command, **options):
        shown = "JobId=0 JobState=FAILED ExitCode=137:0" if command[0] == "scontrol" else said.queue
        return CompletedProcess(command, bool(said.error), "" if said.error else shown, said.error)

    monkeypatch.setattr(executors.subprocess, "run", program)
    return said


@pytest.mark.usefixtures("fresh_kernel")  # Ctrl-C interrupts, also where pytest runs in the background
def test_what_was_submitted_ends_with_an_error_of_ours(tmp_path, slurm):
    with executor("slurm", 2, tmp_path) as pool:
        assert pool.submit(max, 2, 3, key=abs).result(timeout=20) == 3
        assert pool.jobs.parameters["cpus_per_task"] == 1
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 1, 0).result(timeout=20)

    def interrupted(how):
        with executor("slurm", 2, tmp_path) as pool:
            assert pool.submit(max, 2, 3).result(timeout=20) == 3
            slurm.queue = "1 PENDING\n"
            pool.submit(None)
            how()

    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        with pytest.raises(error):
            interrupted(lambda number=number: signal.raise_signal(number))
        assert [job.cancelled for job in Jobs.made] == [False, True]


@pytest.mark.parametrize(
    ("queue", "error", "how"),
    [
        ("0 FAILED\n1 COMPLETED\n", "", "job 0 ended without a result: FAILED, exit code 137:0"),
        ("0 CANCELLED\n", "", "job 0 ended without a result: CANCELLED"),
        ("1 COMPLETED\n", "", "job 0 ended without a result: FORGOTTEN"),
        ("", "slurm_load_jobs error: Invalid job id specified", "job 0 ended without a result: FORGOTTEN"),
    ],
)
def test_a_run_that_slurm_lost_is_named_and_the_others_go_on(tmp_path, capsys, slurm, queue, error, how):
    slurm.queue, slurm.error = queue, error
    path, work = tmp_path / "run.json", {"a": {"base": 2}, "b": {"base": 3}}
    with executor("slurm", 2, tmp_path) as pool:
        submit = pool.jobs.submit
        pool.jobs.submit = lambda function, *args: submit(None if args[1] == work["a"] else function, *args)
        with pytest.raises(Lost, match=r"1 of 2 runs were lost; .*: a$"):
            run_jobs(path, "python -m example", {}, work, cubed, pool)
    assert how in capsys.readouterr().out
    assert json.loads(path.read_text(encoding="utf-8"))["runs"] == {"b": {"cube": 27}}
    assert run_jobs(path, "python -m example", {}, work, cubed)["runs"] == {"a": {"cube": 8}, "b": {"cube": 27}}


def test_a_slurm_that_does_not_answer_for_a_while_has_lost_nothing(tmp_path, slurm):
    slurm.error = "slurm_load_jobs error: Unable to contact slurm controller"
    with executor("slurm", 2, tmp_path) as pool:
        future = pool.submit(None)
        assert not wait([future], timeout=0.2).done
        slurm.error, slurm.queue = "", "0 RUNNING\n"
        assert not wait([future], timeout=0.2).done
        Jobs.made[0].call = max, (2, 3), {}
        Jobs.made[0].paths.result_pickle.touch()
        assert future.result(timeout=30) == 3


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
    assert f'--on {extra} needs {library}; run: python -m pip install -e ".[{extra}]"' in capsys.readouterr().err


def test_a_cluster_that_is_not_there(tmp_path, capsys, monkeypatch):
    pytest.importorskip("submitit", reason=PEER("submitit", "slurm"))
    pytest.importorskip("distributed", reason=PEER("distributed", "dask"))
    monkeypatch.setenv("PATH", "")
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", "slurm"]) == 1
    assert capsys.readouterr().err.startswith('recall: --on slurm: Could not detect "srun"')

    def client(address):
        raise TimeoutError(f"Timed out trying to connect to {address}")

    monkeypatch.setattr(sys.modules["distributed"], "Client", client)
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", "dask://h:1"]) == 1
    assert capsys.readouterr().err == "recall: --on dask: Timed out trying to connect to tcp://h:1\n"


@pytest.mark.parametrize("place", ["", "dask://", "slurm://x"])
def test_a_place_that_is_none(tmp_path, capsys, place):
    assert main(["-o", str(tmp_path / "run.json"), "--smoke", "--on", place]) == 1
    assert capsys.readouterr().err.startswith("recall: --on must be local, dask://HOST:PORT, slurm or mpi")


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
