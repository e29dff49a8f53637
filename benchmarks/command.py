"""The command `smalearn bench`: what is refused at once, what is printed, what is kept."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import benchmarks as bench
from benchmarks import device, records
from smalearn.course import progress, timing


def measure(names: Sequence[str], output: Path | None = None, on: str | None = None) -> int:
    """Run benchmarks, print their results and keep them; return the exit status, 130 if one was stopped by Ctrl-C.

    While one runs, the finished parts are kept in a file *.stopped.json: they are left of one that is killed.
    """
    for name in names:
        _check(name, on)
    if output and len(names) > 1 and not output.is_dir():
        raise ValueError(f"-o must be a folder for several benchmarks, got {output}")
    return next((status for name in names if (status := _measure(name, output, on))), 0)


def _measure(name, output, on):
    file = output and records.place_of(output, name, None if on else timing.machine(), on and device.gpu_name(on))
    keep = partial(records.write, file.with_suffix(".stopped.json")) if file else None
    if file:
        _try_to_write(file)
    result = bench.run(name, on, keep)
    progress.step("")
    is_whole = "finished" not in result
    if file and is_whole:
        records.write(file, result)
        file.with_suffix(".stopped.json").unlink(missing_ok=True)
    print(bench.table(result))
    if not is_whole:
        where = f" and in {file.with_suffix('.stopped.json')}" if file else ""
        print(f"\nStopped: finished parts stand above{where}.", file=sys.stderr)
    return 0 if is_whole else 130


def _check(name, on):
    """Refuse what cannot be measured."""
    if name not in bench.BENCHMARKS:
        raise ValueError(f"there is no benchmark {name!r}, only {', '.join(bench.BENCHMARKS)}")
    if on and name not in bench.DEVICE_BENCHMARKS:
        raise ValueError(f"--device is for {', '.join(bench.DEVICE_BENCHMARKS)}, not for {name}")
    if on and (reason := device.can_run(on)):
        raise ValueError(reason)


def _try_to_write(file):
    """Make its folder and write into it, so that what cannot be kept is known before it takes minutes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    progress.try_to_write(file.parent)
    if file.exists():
        file.open("a").close()
