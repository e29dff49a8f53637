"""Where the runs of an experiment take place: on this computer, or on a cluster that somebody else's program manages.

Each place is a `concurrent.futures.Executor`, and this is all that an experiment knows of it, a class that is graded,
or a sweep of benchmarks, each of which is one job: what it compares runs on one machine, in the same rounds.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from smalearn.lab.spawned import SPAWN

__all__ = ["PLACES", "Submitted", "executor"]


@contextmanager
def executor(place: str, workers: int, logs: Path) -> Iterator[Executor | None]:
    """An executor for the time of a `with`; what has not begun when that ends by an error is given up.

    Args:
        place: "local"; "dask://HOST:PORT", a scheduler of dask.distributed; "slurm", through submitit, with a
            partition, an account and a time limit as sbatch reads them (`SBATCH_PARTITION`, `SBATCH_ACCOUNT`,
            `SBATCH_TIMELIMIT`); or "mpi", the ranks of `mpiexec -n 9 python -m mpi4py.futures -m MODULE`.
        workers: processes of "local"; with 0 there is no executor, and the caller works by itself.
        logs: folder for what Slurm's jobs read and write, which all nodes see.

    Yields:
        The executor, or None.

    Raises:
        ValueError: there is no such place, no scheduler of Dask, no Slurm or no MPI; or a worker of Dask runs several
            jobs in one process.
        ImportError: the library of the place is missing.
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
    with _ended(Submitted(jobs)) as pool:
        yield pool


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
        raise ImportError(f'--on {place} needs {library}; run: python -m pip install -e ".[{place}]"') from error
    except (OSError, RuntimeError) as error:
        raise ValueError(f"--on {place}: {str(error).splitlines()[0]}") from error


PLACES = {"local": _local, "dask": _dask, "slurm": _slurm, "mpi": _mpi}
"""By name, a context that takes address, workers and logs, and yields the executor."""


class Submitted(Executor):
    """An executor of submitit, with the futures of the standard library: for each job a thread waits.

    Args:
        jobs: the `submitit.Executor`.
    """

    def __init__(self, jobs: object):
        self.jobs, self.submitted, self.threads = jobs, [], ThreadPoolExecutor(max_workers=1000)

    def submit(self, function: Callable, /, *args: object, **kwargs: object) -> Future:
        """Submit a job.

        Args:
            function: importable on all nodes.
            *args: its arguments.
            **kwargs: its arguments by name.

        Returns:
            Its future.

        Raises:
            ValueError: Slurm refuses the job.
        """
        with _opening("slurm", "submitit"):
            self.submitted.append(self.jobs.submit(function, *args, **kwargs))
        return self.threads.submit(self.submitted[-1].result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all.

        Args:
            wait: for the jobs.
            cancel_futures: end those that have not finished.
        """
        for job in self.submitted if cancel_futures else ():
            if not job.done():
                job.cancel()
        self.threads.shutdown(wait, cancel_futures=cancel_futures)
