"""Results from the samples of the benchmark `ssd --device`: floor, speedups, targets and table."""

from collections.abc import Iterator, Mapping

from smalearn.lab.bench.device_peers import LAYER, OURS, STEPS
from smalearn.lab.bench.problem import Problem
from smalearn.lab.bench.report import at_least, at_most, medians, milliseconds, outcome

__all__ = ["WAYS", "floor", "sections", "speedups", "targets", "title", "work"]

WAYS = ("forward", "backward", "both")
CHUNK_LEN = 64  # of the floor: with fewer tokens the products of a chunk do not fill matrix units
MAMBA = "mamba_ssm mamba_chunk_scan_combined"
LARGE = ("b8 h80 p64 n128 T2048 bfloat16", "b8 h80 p64 n128 T8192 bfloat16")
FEW = "b1 h24 p64 n128 T65536 bfloat16"


def title(problem: Problem) -> str:
    """A problem on a device in short."""
    sizes = f"b{problem.batch} h{problem.heads} p{problem.head_dim} n{problem.state} T{problem.length}"
    return f"{sizes} {str(problem.dtype).removeprefix('torch.')}"


def work(problem: Problem) -> dict[str, tuple[float, float]]:
    """Bytes and flops of each way that no program can do without, if it works in chunks of 64.

    Operands are read once and results are written once, log_a in float32. For each token and head with Q = 64, the
    forward has 2·Q·P + 4·N·P flops and 2·Q·N more for each group of heads; the backward, which must compute
    states and scores again, 4·Q·P + 10·N·P and 6·Q·N.

    Args:
        problem: its sizes.

    Returns:
        For each of `WAYS` (bytes, flops).
    """
    tokens = problem.batch * problem.length
    rows, P, N = tokens * problem.heads, problem.head_dim, problem.state
    item = problem.dtype.itemsize
    decays, values, maps = 4 * rows, item * rows * P, item * 2 * tokens * N
    forward = decays + 2 * values + maps, 2 * CHUNK_LEN * (rows * P + tokens * N) + 4 * rows * N * P
    backward = 2 * decays + 3 * values + 2 * maps, CHUNK_LEN * (4 * rows * P + 6 * tokens * N) + 10 * rows * N * P
    return dict(zip(WAYS, [forward, backward, tuple(map(sum, zip(forward, backward, strict=True)))], strict=True))


def floor(problem: Problem, rates: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each way takes at least: those of its bytes, or those of its flops.

    Args:
        problem: its sizes.
        rates: `copy` in bytes and `gemm` in flops a second, as measured.

    Returns:
        For each of `WAYS` the larger of the two.
    """
    return {way: max(size / rates["copy"], flops / rates["gemm"]) for way, (size, flops) in work(problem).items()}


def speedups(entries: Mapping[str, Mapping]) -> dict[str, dict[str, float]]:
    """Median of each timed peer over that of ours, for each way; a whole layer's over that of our whole layer."""
    middle = {name: medians(entry["seconds"]) for name, entry in entries.items() if "seconds" in entry}
    ours, layer = middle.pop(OURS, None), middle.pop(LAYER, None)
    pairs = [(name, peer, layer if name.endswith("whole layer") else ours) for name, peer in middle.items()]
    return {name: {way: peer[way] / base[way] for way in WAYS} for name, peer, base in pairs if base}


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on an H200."""
    parts, rows = {part["problem"]: part for part in result["contests"]}, []
    bounds = [(problem, *bound) for problem in LARGE for bound in (("forward", 2.5), ("backward", 2.0))]
    for problem, way, least in [*bounds, (FEW, "forward", 2.0)]:
        measured = parts.get(problem, {}).get("speedups", {}).get(MAMBA, {}).get(way)
        rows.append(at_least(f"{problem}, {way}: times as fast as mamba_ssm", least, measured))
    for problem in LARGE:
        part = parts.get(problem, {"contestants": {}})
        ours, mamba = (part["contestants"].get(name, {}) for name in (OURS, MAMBA))
        share = part["floor"]["forward"] / medians(ours["seconds"])["forward"] if "seconds" in ours else None
        rows.append(at_least(f"{problem}, forward: fraction of the floor", 0.4, share))
        share = ours["peak"] / mamba["peak"] if ours.get("peak") and mamba.get("peak") else None
        rows.append(at_most(f"{problem}: peak memory over that of mamba_ssm", 0.5, share))
    for part in result["decode"]:
        times = medians({name: one["seconds"] for name, one in part["contestants"].items() if "seconds" in one})
        ours = times.pop(STEPS[0].name, None)
        ratio = min(times.values()) / ours if ours and times else None
        rows.append(at_least(f"a step of decoding, batch {part['batch']}: times as fast as the best", 1.0, ratio))
    return rows


def sections(result: Mapping) -> Iterator[tuple[str, list]]:
    """Titles and rows for `render`."""
    if result["note"]:
        yield result["note"], []
    rates = result["rates"]
    yield f"measured: copy {rates['copy'] / 1e12:.3g} TB/s, product {rates['gemm'] / 1e12:.3g} TFLOP/s", []
    if result["tuned"]:
        yield "Lines for TABLE in fast/triton/configs.py", [(one["line"],) for one in result["tuned"]]
    for part in result["contests"]:
        yield part["problem"], _comparison_rows(part)
    for part in result["decode"]:
        yield f"{part['steps']} steps of decoding, batch {part['batch']}", _step_rows(part)
    if result["note"]:
        yield result["note"], []


def _comparison_rows(part):
    """Each implementation's medians and their fractions of the floor, memory, error, and who is faster."""
    yield "", *(f"{way} ms (floor)" for way in WAYS), "peak MiB", "error"
    yield "floor", *(f"{1e3 * part['floor'][way]:.3f}" for way in WAYS)
    for name, entry in part["contestants"].items():
        if "seconds" not in entry:
            yield name, outcome(entry)
            continue
        times = [f"{1e3 * one:.3f} ({part['floor'][way] / one:.0%})" for way, one in medians(entry["seconds"]).items()]
        memory = "unknown" if entry["peak"] is None else f"{entry['peak'] / 2**20:.0f}"
        ratios = [f"{ratio:.2f}" for ratio in part["speedups"].get(name, {}).values()]
        faster = [f"ours are faster by {', '.join(ratios)}"] * bool(ratios)
        yield name, *times, memory, f"{entry['error']:.0e}", *faster


def _step_rows(part):
    for name, entry in part["contestants"].items():
        cells = (
            (milliseconds(entry["seconds"]), f"error {entry['error']:.0e}") if "seconds" in entry else (outcome(entry),)
        )
        yield name, *cells
