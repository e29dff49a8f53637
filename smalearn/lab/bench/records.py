"""Records of times: every CPU has a folder of its own, so that none overwrites those of another."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from smalearn.data import recorded, recorded_cpus

__all__ = ["beside", "cpu_folder", "cpu_name", "place_of"]


def cpu_name(machine: Mapping) -> str:
    """A CPU as a reader knows it, with its widest vectors: "AMD EPYC, AVX512"."""
    words = re.sub(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|\d+-Core|@.*", " ", machine["cpu"])
    return f"{' '.join(words.split())}, {machine['instructions']}"


def cpu_folder(machine: Mapping) -> str:
    """The name of its folder: "amd-epyc-avx512"."""
    return re.sub(r"[^a-z0-9]+", "-", cpu_name(machine).lower())


def place_of(output: Path, name: str, machine: Mapping | None) -> Path:
    """The file in which a result is kept.

    Args:
        output: a folder of results, in which every CPU has its own; or the file itself.
        name: of the benchmark.
        machine: what `timing.machine` returns; None for times of a device, which need a file.

    Raises:
        ValueError: the folder is missing, or the file holds times of another CPU: clouds give several models one name.
    """
    if output.is_dir() and machine:
        output = output / "cpu" / cpu_folder(machine) / f"{name.replace('-', '_')}.json"
    elif output.is_dir() or not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent} for the result, or {output} is no file")
    if output.is_file() and machine:
        there = json.loads(output.read_text(encoding="utf-8"))["machine"]
        if any(there.get(fact, machine[fact]) != machine[fact] for fact in ("cpu", "instructions", "model")):
            raise ValueError(f"{output} holds times of {cpu_name(there)}, {there.get('model')}: name another file")
    return output


def beside(name: str) -> dict[str, dict[str, float | None]]:
    """What was measured for each target of a benchmark on every CPU that is recorded, by the names of the CPUs."""
    found, file = {}, name.replace("-", "_")
    for one in (recorded(file, cpu) for cpu in recorded_cpus(file)):
        shown = f"{cpu_name(one['machine'])}, {one['machine']['date'][:10]}"
        found[shown] = {row["what"]: row["measured"] for row in one["targets"]}
    return found
