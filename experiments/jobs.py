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

    Interrupted, it leaves the file with what was done; the same call does the rest. A file of another command or other
    settings, which are all that the results depend on besides the job, is refused. The `runs` are in the order of the
    jobs; one on a machine of another kind has a `machine` of its own. What a cluster lost is raised last, as `Lost`.
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
