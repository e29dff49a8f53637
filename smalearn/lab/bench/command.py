"""The command `smalearn bench`: what is refused at once, what is printed, what is kept."""

import json
import sys
from pathlib import Path

from smalearn.lab import bench, progress
from smalearn.lab.bench import device, records, timing

__all__ = ["measure"]


def measure(name: str, output: Path | None = None, on: str | None = None, tuning: bool = False) -> int:
    """Run a benchmark and print its result; stopped by Ctrl-C, that of the parts it has finished.

    Args:
        name: of the benchmark.
        output: a file for the result with all samples as JSON, or a folder of results in which every CPU has its own.
        on: of "ssd", where our GPU programs run; None for the CPU's form.
        tuning: of "ssd", whether to look for better configurations of them first.

    Returns:
        Exit status: 130 if it was stopped.

    Raises:
        ValueError: there is no such benchmark, it knows no devices, or the result cannot be kept where it should be.
        OSError: nothing can be written there.
    """
    if name not in bench.BENCHMARKS:
        raise ValueError(f"there is no benchmark {name!r}, only {', '.join(bench.BENCHMARKS)}")
    file = output and records.place_of(output, name, None if on else timing.machine())
    if (on or tuning) and (name != "ssd" or not on):
        raise ValueError("--device and --tune are for: smalearn bench ssd --device cuda [--tune]")
    if on and (reason := device.can_run(on)):
        raise ValueError(reason)
    if file:
        _try_to_write(file)
    result = bench.run(name, on, tuning)
    progress.step("")
    is_whole = "finished" not in result
    if file:
        file = file if is_whole else file.with_suffix(".stopped.json")
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(bench.table(result))
    if not is_whole:
        print(f"\nStopped: finished parts stand above{f' and in {file}' if file else ''}.", file=sys.stderr)
    return 0 if is_whole else 130


def _try_to_write(file):
    """Make its folder and write into it, so that what cannot be kept is known before it takes minutes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    progress.try_to_write(file.parent)
    if file.exists():
        file.open("a").close()
