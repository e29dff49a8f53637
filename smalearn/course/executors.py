"""Where the runs of an experiment take place: on this computer, or on a cluster that somebody else's program manages.

Each place is a `concurrent.futures.Executor`, and an experiment, or a class that is graded, knows no more of it.
"""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep

from smalearn._files import install
from smalearn.course.spawned import SPAWN

__all__ = ["PLACES", "Lost", "Submitted", "executor"]

POLL = 5.0  # seconds between two looks at Slurm's queue
PATIENCE = 15.0  # seconds in which the file of a job that has ended may still come over the network
OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "FORGOTTEN", "NODE_FAIL", "OUT_OF_MEMORY"}
OVER |= {"PREEMPTED", "REVOKED", "TIMEOUT"}


@contextmanager
def executor(place: str, workers: int, logs: Path) -> Iterator[Executor | None]:
    """An executor for the time of a `with`; what has not begun when that ends by an error is given up.

    The place is "local", with so many processes, or None for 0; "dask://HOST:PORT", a scheduler of dask.distributed;
    "slurm", through submitit, with a partition, an account and a time limit as sbatch reads them (`SBATCH_PARTITION`,
    `SBATCH_ACCOUNT`, `SBATCH_TIMELIMIT`), and a folder for logs which all nodes see; or "mpi", the ranks of
    `mpiexec -n 9 python -m mpi4py.futures -m MODULE`.
    """
    if not re.fullmatch(r"local|dask://.+|slurm|mpi", place):
        raise ValueError(f"--on must be local, dask://HOST:PORT, slurm or mpi, got {place}")
    name, _, address = place.partition("://")
    with PLACES[name](address, workers, logs) as pool:
        yield pool


@contextmanager
def _local(address, workers, logs):
    """Processes of this computer."""
    if not workers:
        yield None
        return
    with _ended(ProcessPoolExecutor(workers, mp_context=SPAWN)) as pool:
        yield pool


@contextmanager
def _dask(address, workers, logs):
    """The workers of a scheduler."""
    with _opening("dask", "dask.distributed"):
        from distributed import Client

        client = Client(f"tcp://{address}")
    with client:
        if any(threads > 1 for threads in client.nthreads().values()):
            raise ValueError("--on dask needs workers of one thread, as random numbers are the process's: --nthreads 1")
        yield client.get_executor(pure=False)


@contextmanager
def _slurm(address, workers, logs):
    """A job of Slurm for each run."""
    with _opening("slurm", "submitit"):
        import submitit

        jobs = submitit.AutoExecutor(logs, cluster="slurm")
    jobs.update_parameters(name="smalearn", cpus_per_task=1, timeout_min=240)
    with _interruptible(), _ended(Submitted(jobs)) as pool:
        yield pool


@contextmanager
def _interruptible():
    """Have the signals that end a program end it as Ctrl-C does, so that its jobs do not stay in the queue."""

    def stop(number, frame):
        raise SystemExit(128 + number)

    numbers = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _mpi(address, workers, logs):
    """All ranks but the first."""
    with _opening("mpi", "mpi4py"):
        from mpi4py.futures import MPIPoolExecutor

        pool = MPIPoolExecutor()
        pool.bootup()
    with _ended(pool):
        yield pool


@contextmanager
def _ended(pool):
    """Wait for all that was submitted; after an error for nothing."""
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _opening(place, library):
    """Say in a sentence what is missing: a library, with its extra, or what the library looks for."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"--on {place} needs {library}; run: {install(place)}") from error
    except (OSError, RuntimeError) as error:
        raise ValueError(f"--on {place}: {str(error).splitlines()[0]}") from error


PLACES = {"local": _local, "dask": _dask, "slurm": _slurm, "mpi": _mpi}
"""By name, a context that takes address, workers and logs, and yields the executor."""


class Lost(RuntimeError):  # noqa: N818 - it says what happened to the job
    """Error: a job ended without a result, killed or cancelled from outside."""


class Submitted(Executor):
    """An executor of submitit, with the futures of the standard library; one thread looks after all jobs.

    submitit itself asks `sacct` how a job is, which not every cluster has; `squeue` is everywhere.
    """

    def __init__(self, jobs: object):
        self.jobs, self.waiting, self.closed = jobs, {}, Event()
        self.thread = Thread(target=self._look, daemon=True)
        self.thread.start()

    def submit(self, function: Callable, /, *args: object, **kwargs: object) -> Future:
        """Submit a job; its future raises `Lost` where it ends without a result."""
        with _opening("slurm", "submitit"):
            job = self.jobs.submit(function, *args, **kwargs)
        self.waiting[job] = future = Future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and wait for those that are there or cancel them."""
        self.closed.set()
        for job in list(self.waiting) if cancel_futures else ():
            job.cancel(check=False)
        if wait:
            self.thread.join()

    def _look(self):
        """Give each future its result until all have one and no more can come."""
        ended = {}  # when a job was first seen to have ended without one
        while self.waiting or not self.closed.is_set():
            for job in [job for job in list(self.waiting) if job.paths.result_pickle.exists()]:
                _settle(self.waiting.pop(job), job.result)
            states = _states([job.job_id for job in list(self.waiting)])
            for job in [job for job in list(self.waiting) if states.get(job.job_id) in OVER]:
                if monotonic() - ended.setdefault(job, monotonic()) > PATIENCE:
                    self.waiting.pop(job).set_exception(Lost(_why(job, states[job.job_id])))
            if self.closed.wait(POLL) and self.waiting:
                sleep(POLL)


def _settle(future, result):
    """Give a future what the job returned, or what it raised."""
    try:
        future.set_result(result())
    except Exception as error:
        future.set_exception(error)


def _states(ids: list[str]) -> dict[str, str]:
    """Ask for the states of jobs, by id: {} where Slurm does not answer, "FORGOTTEN" where it knows a job no more."""
    if not ids:
        return {}
    command = ["squeue", "--noheader", "--states=all", "--format=%A %T", f"--jobs={','.join(ids)}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if answer.returncode and "Invalid job id" not in answer.stderr:
        return {}
    return dict.fromkeys(ids, "FORGOTTEN") | dict(line.split() for line in answer.stdout.splitlines())


def _why(job, state):
    """Say how a job ended, and with which exit code where Slurm still knows it."""
    shown = subprocess.run(["scontrol", "--oneliner", "show", "job", job.job_id], capture_output=True, text=True)
    code = re.search(r"ExitCode=(\d+:\d+)", shown.stdout)
    return f"Slurm's job {job.job_id} ended without a result: {state}" + (f", exit code {code[1]}" if code else "")
