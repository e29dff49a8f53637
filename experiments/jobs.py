"""Many small runs, one file: each is written when it is done, so that an experiment can be stopped and resumed."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, as_completed
from pathlib import Path

import torch

from smalearn.course.executors import Lost
from smalearn.course.timing import machine
from smalearn.train import write_atomically

__all__ = ["run_jobs"]

KIND = ("cpu", "system", "python", "torch")
"""Facts of a machine in which those of one kind agree."""


def run_jobs(
    path: str | os.PathLike,
    command: str,
    settings: Mapping[str, object],
    jobs: Mapping[str, Mapping[str, object]],
    work: Callable[..., Mapping[str, object]],
    executor: Executor | None = None,
) -> dict[str, object]:
    """Run the jobs that are not yet in the file, each on one thread, so that its numbers do not depend on the others.

    Interrupted, it leaves the file with what was done; the same call does the rest.

    Args:
        path: JSON file, which may exist if it is one of the same command and settings.
        command: what the reader types to get this file.
        settings: all that the results depend on besides the job, as JSON can hold it.
        jobs: for each name, the arguments of one run.
        work: a module's function: takes a job's arguments, returns what JSON can hold.
        executor: runs them, in processes of one thread each; this process if None.

    Returns:
        The file's content: `command`, `machine`, `settings` and `runs`, by the names of the jobs and in their order. A
        run on a machine of another kind has a `machine` of its own.

    Raises:
        ValueError: the file is of another command or other settings, or not JSON; or its folder does not exist.
        Lost: runs were lost on a cluster; it names them, and all others are in the file.
    """
    path = Path(path)
    result = _begin(path, {"command": command, "machine": machine(), "settings": json.loads(json.dumps(settings))})
    left = {name: job for name, job in jobs.items() if name not in result["runs"]}
    for name, record, where in _finished(left, work, executor):
        own = {} if all(where[key] == result["machine"].get(key) for key in KIND) else {"machine": where}
        runs = result["runs"] | {name: dict(record) | own}
        result["runs"] = {name: runs[name] for name in jobs if name in runs} | runs
        _write(path, json.dumps(result, indent=1) + "\n")
        print(f"{len(result['runs'])}/{len(jobs)}  {name}", flush=True)
    return result


def _finished(jobs: Mapping, work: Callable, executor: Executor | None) -> Iterator[tuple]:
    """Yield name, record and machine of each job as it ends; what a cluster lost is named at once, and raised last."""
    if executor is None:
        for name, job in jobs.items():
            yield name, work(**job), machine()
        return
    futures = {executor.submit(_on_one_thread, work, job): name for name, job in jobs.items()}
    lost = []
    for future in as_completed(futures):
        try:
            record = future.result()
        except Lost as error:
            lost.append(futures[future])
            print(f"lost: {lost[-1]}: {error}", flush=True)
            continue
        yield futures[future], *record
    if lost:
        raise Lost(f"{len(lost)} of {len(jobs)} runs were lost; the same command runs them again: {'; '.join(lost)}")


def _on_one_thread(work, job):
    """The record, and where it was made."""
    torch.set_num_threads(1)
    return work(**job), machine()


def _write(path, content):
    """Replace the file at once."""
    write_atomically(path, lambda file: file.write(content.encode()))


def _begin(path, header):
    """Content of the file, or the beginning of a new one."""
    if not path.parent.is_dir():
        raise ValueError(f"run_jobs: there is no folder {path.parent} for the result")
    if not path.exists():
        return header | {"runs": {}}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        same = all(held[key] == header[key] for key in ("command", "settings"))
        held["runs"], held["machine"] = dict(held["runs"]), dict(held["machine"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"run_jobs: {path} is not a result ({type(error).__name__}); give another file") from error
    if not same:
        raise ValueError(f"run_jobs: {path} is of another command or other settings; give another file, or remove it")
    return held
