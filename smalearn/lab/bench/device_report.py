"""What follows from the samples of the benchmark `ssd --device`: speedups, targets, and the table for a terminal."""

import statistics
from collections.abc import Iterator, Mapping

from smalearn.lab.bench.device_contestants import LAYER, OURS
from smalearn.lab.bench.device_problem import WAYS
from smalearn.lab.bench.parts import judged, target_lines

__all__ = ["speedups", "table", "targets"]

MAMBA = "mamba_ssm mamba_chunk_scan_combined"
WIDTH = 36
LARGE = ("b8 h80 p64 n128 T2048 bfloat16", "b8 h80 p64 n128 T8192 bfloat16")
FEW = "b1 h24 p64 n128 T65536 bfloat16"


def speedups(entries: Mapping[str, Mapping]) -> dict[str, dict[str, float]]:
    """For each peer that was timed, and each way, its median over that of ours; a whole layer's over that of ours."""
    medians = {name: _medians(entry) for name, entry in entries.items() if "seconds" in entry}
    ours, layer = medians.pop(OURS, None), medians.pop(LAYER, None)
    pairs = [(name, one, layer if name.endswith("whole layer") else ours) for name, one in medians.items()]
    return {name: {way: one[way] / mine[way] for way in WAYS} for name, one, mine in pairs if mine}


def _medians(entry):
    return {way: statistics.median(samples) for way, samples in entry["seconds"].items()}


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at on an H200, and what was measured: `what`, `target`, `measured` (None if nothing was), `met`."""
    contests, rows = {part["problem"]: part for part in result["contests"]}, []
    for problem, way, least in [(one, way, {"forward": 2.5}.get(way, 2.0)) for one in LARGE for way in WAYS[:2]] + [
        (FEW, "forward", 2.0)
    ]:
        measured = contests.get(problem, {}).get("speedups", {}).get(MAMBA, {}).get(way)
        rows.append((f"{problem}, {way}: times as fast as mamba_ssm, at least", least, measured, 1))
    for problem in LARGE:
        part = contests.get(problem, {"contestants": {}})
        entries = part["contestants"]
        seconds = entries.get(OURS, {}).get("seconds")
        share = part["floor"]["forward"] / statistics.median(seconds["forward"]) if seconds else None
        rows.append((f"{problem}, forward: fraction of the floor, at least", 0.4, share, 1))
        peaks = [entries.get(name, {}).get("peak") for name in (OURS, MAMBA)]
        share = peaks[0] / peaks[1] if all(peaks) else None
        rows.append((f"{problem}: peak memory over that of mamba_ssm, at most", 0.5, share, -1))
    for part in result["decode"]:
        times = {
            name: statistics.median(one["seconds"]) for name, one in part["contestants"].items() if "seconds" in one
        }
        ours = times.pop("ssd_step_triton_", None)
        ratio = min(times.values()) / ours if ours and times else None
        rows.append((f"a step of decoding, batch {part['batch']}: times as fast as the best, at least", 1.0, ratio, 1))
    return judged(rows)


def table(result: Mapping) -> str:
    """A result of `device.benchmark` for a terminal."""
    lines = [result["note"]] if result["note"] else []
    lines += [f"{key}: {value}" for key, value in (result["machine"] | result["device"]).items()]
    rates = result["rates"]
    lines.append(f"measured: copy {rates['copy'] / 1e12:.3g} TB/s, product {rates['gemm'] / 1e12:.3g} TFLOP/s")
    if result["tuned"]:
        lines += ["", "Lines for TABLE in kernels/configs.py", *(f"  {one['line']}" for one in result["tuned"])]
    for part in result["contests"]:
        lines += ["", part["problem"], *_contest_lines(part)]
    for part in result["decode"]:
        lines += ["", f"{part['steps']} steps of decoding, batch {part['batch']}", *_step_lines(part)]
    if result["targets"]:
        lines += ["", *target_lines(result["targets"])]
    return "\n".join([*lines, result["note"]] if result["note"] else lines)


def _contest_lines(part: Mapping) -> Iterator[str]:
    """One line for each contestant: median and fraction of the floor of each way, memory, and who is faster."""
    yield f"  {'':{WIDTH}}" + "".join(f"{f'{way} ms (floor)':>22}" for way in WAYS) + "   peak MiB   error"
    yield f"  {'floor':{WIDTH}}" + "".join(f"{1e3 * part['floor'][way]:15.3f}       " for way in WAYS)
    for name, entry in part["contestants"].items():
        if "seconds" not in entry:
            yield f"  {name:{WIDTH}}{_why(entry)}"
            continue
        medians = _medians(entry)
        times = "".join(f"{1e3 * medians[way]:15.3f} ({part['floor'][way] / medians[way]:4.0%})" for way in WAYS)
        memory = "unknown" if entry["peak"] is None else f"{entry['peak'] / 2**20:.0f}"
        faster = part["speedups"].get(name, {}).values()
        ratios = f"   ours are faster by {', '.join(f'{ratio:.2f}' for ratio in faster)}" if faster else ""
        yield f"  {name:{WIDTH}}{times}{memory:>11}   {entry['error']:.0e}{ratios}"


def _step_lines(part: Mapping) -> Iterator[str]:
    """One line for each contestant."""
    for name, entry in part["contestants"].items():
        if "seconds" in entry:
            yield f"  {name:{WIDTH}}{1e3 * statistics.median(entry['seconds']):15.3f} ms   error {entry['error']:.0e}"
        else:
            yield f"  {name:{WIDTH}}{_why(entry)}"


def _why(entry):
    """Why there is no time."""
    return f"absent: {entry['absent']}" if "absent" in entry else f"not reported: error {entry['error']:.0e}"
