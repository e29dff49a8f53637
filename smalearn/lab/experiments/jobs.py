"""Many small runs, one file: each is written when it is done, so that an experiment can be stopped and resumed."""

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from smalearn.lab.bench.timing import machine
from smalearn.train import write_atomically

__all__ = ["run_jobs"]


def run_jobs(
    path: str | os.PathLike,
    command: str,
    settings: Mapping[str, object],
    jobs: Mapping[str, Mapping[str, object]],
    work: Callable[..., Mapping[str, object]],
    workers: int = 2,
) -> dict[str, object]:
    """Run the jobs that are not yet in the file, each on one thread, so that its numbers do not depend on the others.

    Interrupted, it leaves the file with what was done; the same call does the rest.

    Args:
        path: JSON file, which may exist if it is one of the same command and settings.
        command: what the reader types to get this file.
        settings: all that the results depend on besides the job, as JSON can hold it.
        jobs: for each name, the arguments of one run.
        work: a module's function: takes a job's arguments, returns what JSON can hold.
        workers: processes at a time; 0 is this process.

    Returns:
        The file's content: `command`, `machine`, `settings` and `runs`, by the names of the jobs and in their order.

    Raises:
        ValueError: the file is of another command or other settings, or not JSON; or its folder does not exist.
    """
    path = Path(path)
    result = _begin(path, {"command": command, "machine": machine(), "settings": json.loads(json.dumps(settings))})
    left = {name: job for name, job in jobs.items() if name not in result["runs"]}

    def keep(name, record):
        runs = result["runs"] | {name: dict(record)}
        result["runs"] = {name: runs[name] for name in jobs if name in runs} | runs
        content = json.dumps(result, indent=1) + "\n"
        write_atomically(path, lambda file: file.write(content.encode()))
        print(f"{len(result['runs'])}/{len(jobs)}  {name}", flush=True)

    if not workers:
        for name, job in left.items():
            keep(name, work(**job))
        return result
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(work, **job): name for name, job in left.items()}
        try:
            for future in as_completed(futures):
                keep(futures[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return result


def _begin(path, header):
    """Content of the file, or the beginning of a new one."""
    if not path.parent.is_dir():
        raise ValueError(f"run_jobs: there is no folder {path.parent} for the result")
    if not path.exists():
        return header | {"runs": {}}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        same = all(held[key] == header[key] for key in ("command", "settings"))
        held["runs"] = dict(held["runs"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"run_jobs: {path} is not a result ({type(error).__name__}); give another file") from error
    if not same:
        raise ValueError(f"run_jobs: {path} is of another command or other settings; give another file, or remove it")
    return held
