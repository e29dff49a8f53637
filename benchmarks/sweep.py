"""Benchmarks on other machines: each is a job, and what it compares still shares one machine and its rounds."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path

import benchmarks as bench
from benchmarks import records
from smalearn.course import progress
from smalearn.course.executors import executor

__all__ = ["sweep"]

PROGRAM = "import sys; from smalearn.course.cli import main; sys.exit(main())"


def sweep(names: Sequence[str], folder: Path, place: str, options: Sequence[str] = ()) -> int:
    """Run benchmarks elsewhere, print each result as it comes, and keep it with its CPU or GPU.

    Args:
        names: of the benchmarks.
        folder: of results, an existing one, in which every CPU and every GPU has its own.
        place: of `executor`: "dask://HOST:PORT", "slurm" or "mpi".
        options: of `smalearn bench`, the same for all.

    Returns:
        Exit status: 1 if a benchmark failed, which costs none of the others.

    Raises:
        ValueError: there is no such place.
        ImportError: the library of the place is missing.
        OSError: nothing can be written to the folder.
    """
    progress.try_to_write(folder)
    failed = 0
    with executor(place, 1, folder / "slurm") as pool:
        jobs = {pool.submit(_measured, PROGRAM, name, tuple(options)): name for name in names}
        for job in as_completed(jobs):
            try:
                result = job.result()
                print(bench.table(result), flush=True)  # it is not lost where it cannot be kept
                print(_kept(result, jobs[job], folder), flush=True)
            except Exception as error:  # whatever happened there
                failed = 1
                print(f"smalearn bench: {jobs[job]}: {error}", file=sys.stderr, flush=True)
    return failed


def _measured(program, name, options):
    """The result of one benchmark, by the command in a process of its own: a worker's may start no others."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-c", program, "bench", name, *options, "-o", str(file)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8")
        if ended.returncode:
            last = ended.stderr.strip().splitlines()[-1:]
            raise RuntimeError("".join(last).removeprefix("smalearn bench: ") or f"status {ended.returncode}")
        return json.loads(file.read_text(encoding="utf-8"))


def _kept(result, name, folder):
    """Keep a result, and return its file."""
    gpu = result.get("device", {}).get("name")
    file = records.place_of(folder, name, None if "device" in result else result["machine"], gpu)
    file.parent.mkdir(parents=True, exist_ok=True)
    records.write(file, result)
    return file
