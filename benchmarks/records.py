"""Records of times: every CPU and every GPU has a folder of its own, so that none overwrites those of another."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from smalearn.data import recorded, recorded_cpus


def cpu_name(machine: Mapping) -> str:
    """A CPU as a reader knows it, with its widest vectors: "AMD EPYC, AVX512"."""
    words = re.sub(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|\d+-Core|@.*", " ", machine["cpu"])
    return f"{' '.join(words.split())}, {machine['instructions']}"


def cpu_folder(machine: Mapping) -> str:
    """The name of its folder: "amd-epyc-avx512"."""
    return _folder(cpu_name(machine))


def _folder(name):
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


def place_of(output: Path, name: str, machine: Mapping | None, gpu: str | None = None) -> Path:
    """Return the file of a result: the output, or in a folder of results the one of this CPU (machine) or GPU.

    A file with times of another CPU or GPU is refused; clouds give several CPUs one name.
    """
    folder = f"cpu/{cpu_folder(machine)}" if machine else f"gpu/{_folder(gpu)}" if gpu else None
    if output.is_dir() and folder:
        output = output / folder / f"{name.replace('-', '_')}.json"
    elif output.is_dir() or not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent} for the result, or {output} is no file")
    if output.is_file() and folder:
        there = json.loads(output.read_text(encoding="utf-8"))
        if other := _other_cpu(there["machine"], machine) if machine else _other_gpu(there, gpu):
            raise ValueError(f"{output} holds times of {other}: name another file")
    return output


def _other_cpu(there, machine):
    """The CPU of a record if it is another one."""
    if any(there.get(fact, machine[fact]) != machine[fact] for fact in ("cpu", "instructions", "model")):
        return f"{cpu_name(there)}, {there.get('model')}"
    return None


def _other_gpu(there, gpu):
    """The device of a record if it is another one."""
    name = there.get("device", {}).get("name", "no GPU")
    return name if name != gpu else None


def beside(name: str) -> dict[str, dict[str, float | None]]:
    """What was measured for each target of a benchmark on every CPU that is recorded, by the names of the CPUs."""
    found, file = {}, name.replace("-", "_")
    for one in (recorded(file, cpu) for cpu in recorded_cpus(file)):
        shown = f"{cpu_name(one['machine'])}, {one['machine']['date'][:10]}"
        found[shown] = {row["what"]: row["measured"] for row in one["targets"]}
    return found


def write(file: Path, result: Mapping) -> None:
    """Replace a file by a result, all at once."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    new.replace(file)
