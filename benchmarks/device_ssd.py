"""The benchmark `ssd --device`: state space duality on a device, forward and backward, its memory, and decoding."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.contest import CannotRunError, best, judge, ratio
from benchmarks.device import (
    TOLERANCE,
    WAYS,
    compete,
    floor,
    judged,
    measure,
    measure_beside,
    peaks,
    record,
    sample,
    sets,
    unchecked,
)
from benchmarks.device_peers import GLA, LAYERS, SSD, STEPS
from benchmarks.implementation import Implementation
from benchmarks.problem import Problem
from benchmarks.report import at_least, at_most
from smalearn.course import progress

_problem = partial(Problem, views=True, backward=True)
SIZES, GROWTH = (
    tuple(
        _problem(batch=batch, heads=heads, length=length, head_dim=64, state=128, dtype=torch.bfloat16, device="cuda")
        for batch, heads, length in sizes
    )
    for sizes in (
        ((8, 24, 2048), (8, 80, 2048), (8, 80, 8192), (1, 128, 65536), (1, 24, 65536)),
        [(2**18 // length, 24, length) for length in (1024, 4096, 16384, 65536, 262144)],
    )
)
"""Sizes of models, and as many tokens in ever longer sequences: of those the forward alone."""
TINY = (_problem(batch=2, heads=2, length=40, head_dim=16, state=16),)
CHUNK_LEN = 64  # of the floor: with fewer tokens the products of a chunk do not fill matrix units
STEPS_AT_ONCE = {"cuda": 20, "cpu": 2}
BATCHES = {"cuda": (1, 8, 64), "cpu": (1, 2)}
OURS, MAMBA, STEP = SSD[0].name, SSD[1].name, STEPS[0].name
GROWING = [one for one in SSD if one.name in (OURS, MAMBA) or "attention" in one.name]
LARGE, FEW = tuple(problem.title for problem in SIZES[1:3]), SIZES[4].title


def benchmark(
    device: str = "cuda", problems: Sequence[Problem] | None = None, rounds: int = 15, keep: Callable | None = None
) -> dict[str, object]:
    """Run all parts, the usual sizes first and fla last: minutes on a GPU, seconds on a CPU."""
    growth = GROWTH if device == "cuda" and problems is None else ()
    sizes = problems or (SIZES if device == "cuda" else TINY)
    larger = sizes[1:3] or sizes

    def parts(rates, finish):
        bounds = {one: floor(work(one), rates) for one in (*sizes, *growth)}
        contests = [finish(part) for one in sizes for part in measure(one, SSD, bounds[one], rounds)]
        peaks_of = [finish(memory(one, SSD)) for one in larger]
        ways = (True, False) if device == "cuda" else (False,)
        few = [replace(sizes[0], batch=batch) for batch in BATCHES[device]]
        steps = [finish(decode(one, STEPS, rounds, rates, captured)) for captured in ways for one in few]
        for one in growth:
            contests += map(finish, measure(one, GROWING, {"forward": bounds[one]["forward"]}, rounds))
        contests += [finish(part) for one in larger for part in measure(one, LAYERS, bounds[one], rounds)]
        for peer, one in itertools.product(GLA, sizes):
            contests += map(finish, measure_beside(one, SSD[0], peer, bounds[one], rounds))
        peaks_of += [finish(memory(one, GLA)) for one in larger if GLA[0].takes(one)]
        return {"contests": contests, "memory": peaks_of, "decode": steps}

    return record("ssd", device, rounds, parts, targets, keep)


def memory(problem: Problem, implementations: Sequence[Implementation]) -> dict[str, object]:
    """The memory of forward and backward of those that are right."""
    title = f"Memory, {problem.title}, {implementations[0].name}"
    progress.part(title)
    unit = problem.batch * problem.length * problem.heads * problem.head_dim * problem.dtype.itemsize
    taking = [one for one in implementations if one.takes(problem) and _is_right(one, problem)]
    return {"problem": title, "unit": unit, "bytes": peaks(problem, taking)}


def _is_right(one, problem):
    """Tell whether its gradients are."""
    try:
        return judged(one, problem, backward=True)[1]
    except CannotRunError:
        return False


def decode(
    problem: Problem,
    implementations: Sequence[Implementation],
    rounds: int,
    rates: Mapping[str, float],
    captured: bool = False,
) -> dict[str, object]:
    """Steps of decoding, the state in float32 and overwritten; the floor is the state, read and written once.

    If captured, the steps are one CUDA graph, as decoders launch them: Python takes longer than the GPU.
    """
    size = 4 * problem.batch * problem.heads * problem.head_dim * problem.state
    count = max(STEPS_AT_ONCE[problem.device], sets(problem.device, size) if captured else 0)

    def enter(one):
        run, arguments = one.load(), one.arguments(*_one_token(problem))
        wide = [x.double() for x in arguments]
        expected, answer = one.exact(*wide), run(*arguments)
        more = range(1, sets(problem.device, sum(x.nbytes for x in arguments)))
        steps = itertools.cycle([arguments, *(one.arguments(*_one_token(problem)) for _ in more)])
        verdict = judge([answer, arguments[-1]], [expected, wide[-1]], TOLERANCE[problem.dtype])

        def several():
            for _ in range(count):
                run(*next(steps))

        return *verdict, partial(sample, problem.device, _graph_of(several) if captured else several)

    taking = {one.name: partial(enter, one) for one in implementations if one.takes(problem)}
    entrants = {"floor": partial(unchecked, count * 2 * size / rates["copy"])} | taking
    name = f"{count} steps of decoding, batch {problem.batch}, {problem.heads} heads"
    bases = ["floor", *(one.name for one in implementations if one.base)]
    part = compete(f"{name}, {'a CUDA graph' if captured else 'from Python'}", entrants, rounds, bases)
    return part | {"batch": problem.batch, "steps": count, "captured": captured}


def _graph_of(launches):
    """What launches the same once more, in one go."""
    launches()  # what is compiled and allocated first must not be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    return lambda keeps=launches: graph.replay()  # what it launches holds the tensors that the graph reads


def _one_token(problem):
    """Operands x (batch, heads, P), log_a (batch, heads), B, C (batch, 1, N), state (batch, heads, P, N) in float32."""
    (X, log_a, B, C), _ = replace(problem, length=1).inputs()
    state = torch.ones(problem.batch, problem.heads, problem.head_dim, problem.state, device=problem.device)
    return X[..., 0, :].contiguous(), log_a[..., 0], B[..., 0, :], C[..., 0, :], state


def work(problem: Problem) -> dict[str, tuple[float, float]]:
    """Bytes and flops of each way that no program can do without, if it works in chunks of 64.

    Operands are read once and results are written once, log_a in float32. For each token and head with Q = 64, the
    forward has 2·Q·P + 4·N·P flops and 2·Q·N more for each group of heads; the backward, which must compute
    states and scores again, 4·Q·P + 10·N·P and 6·Q·N.
    """
    tokens = problem.batch * problem.length
    rows, P, N = tokens * problem.heads, problem.head_dim, problem.state
    item = problem.dtype.itemsize
    decays, values, maps = 4 * rows, item * rows * P, item * 2 * tokens * N
    forward = decays + 2 * values + maps, 2 * CHUNK_LEN * (rows * P + tokens * N) + 4 * rows * N * P
    backward = 2 * decays + 3 * values + 2 * maps, CHUNK_LEN * (4 * rows * P + 6 * tokens * N) + 10 * rows * N * P
    return dict(zip(WAYS, [forward, backward], strict=True))


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on an H200."""
    parts, rows = {part["problem"]: part for part in result["contests"] if OURS in part["speedups"]}, []
    peaks = {part["problem"]: part["bytes"] for part in result["memory"]}
    bounds = [(problem, *bound) for problem in LARGE for bound in (("forward", 2.5), ("backward", 2.0))]
    for problem, way, least in [*bounds, (FEW, "forward", 2.0)]:
        faster = ratio(parts.get(f"{problem}, {way}", {"speedups": {}}), OURS, MAMBA)
        rows.append(at_least(f"{problem}, {way}: times as fast as mamba_ssm", least, faster))
    for problem in LARGE:
        slower = ratio(parts.get(f"{problem}, forward", {"speedups": {}}), "floor", OURS)
        rows.append(at_least(f"{problem}, forward: fraction of the floor", 0.4, slower and 1 / slower))
        ours, mamba = (peaks.get(f"Memory, {problem}, {OURS}", {}).get(name, {}).get("peak") for name in (OURS, MAMBA))
        rows.append(at_most(f"{problem}: peak memory over that of mamba_ssm", 0.5, ours and mamba and ours / mamba))
    for part in filter(lambda part: part["captured"], result["decode"]):
        what = f"a step of decoding, batch {part['batch']}"
        rows.append(at_least(f"{what}: times as fast as the best", 1.0, best(part, STEP)))
        if part["batch"] == max(BATCHES["cuda"]):
            rows.append(at_most(f"{what}: times what its bytes take", 1.2, ratio(part, "floor", STEP)))
    return rows
