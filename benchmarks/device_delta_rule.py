"""The benchmark `delta-rule --device`: the gated delta rule on a device, forward."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from benchmarks.contest import ratio
from benchmarks.device import floor, measure, measure_beside, record, where
from benchmarks.implementation import Implementation
from benchmarks.peers import corrected, delta_operands, fla, ours
from benchmarks.problem import Problem
from benchmarks.report import at_least
from smalearn.fast.triton import delta_rule_tiles, delta_rule_triton
from smalearn.linear_attention import delta_rule_chunked

_problem = partial(Problem, shared=False, views=True)
PROBLEMS = tuple(
    _problem(batch=batch, heads=16, length=length, head_dim=size, state=size, dtype=torch.bfloat16, device="cuda")
    for batch, length, size in ((8, 2048, 128), (1, 16384, 128), (8, 2048, 64))
)
TINY = (_problem(batch=2, heads=2, length=40, head_dim=16, state=16),)
CHUNK_LEN = 16  # of the floor: the shortest that any of them takes


def _program(Q, K, V, beta, log_a):
    run = delta_rule_tiles if where(V.device.type) == "tile machine" else delta_rule_triton
    return run(Q, K, V, beta, log_a)


def _fla():
    """Of (batch, T, heads, ...), with keys of norm 1."""
    run = fla("ops.gated_delta_rule").chunk_gated_delta_rule
    return lambda Q, K, V, beta, log_a: run(Q, K, V, g=log_a, beta=beta, scale=1.0, output_final_state=True)[0]


_rule = partial(Implementation, arguments=delta_operands, exact=corrected)
DELTA_RULE = (
    _rule("delta_rule_triton", partial(ours, _program), base=True, at_length=ours(delta_rule_chunked)),
    _rule("delta_rule_chunked", partial(ours, delta_rule_chunked)),
)
FLA = _rule("fla chunk_gated_delta_rule", _fla, time_first=True, anywhere=False, most=2**31)
OURS, BESIDE = DELTA_RULE[0].name, f", beside {FLA.name}"


def benchmark(
    device: str = "cuda", problems: Sequence[Problem] | None = None, rounds: int = 15, keep: Callable | None = None
) -> dict[str, object]:
    """Run all parts, fla last, whose first call takes minutes."""
    sizes = problems or (PROBLEMS if device == "cuda" else TINY)

    def parts(rates, finish):
        bounds = {one: floor(work(one), rates) for one in sizes}
        contests = [finish(part) for one in sizes for part in measure(one, DELTA_RULE, bounds[one], rounds)]
        for one in sizes:
            contests += map(finish, measure_beside(one, DELTA_RULE[0], FLA, bounds[one], rounds))
        return {"contests": contests}

    return record("delta-rule", device, rounds, parts, targets, keep)


def work(problem: Problem) -> dict[str, tuple[float, float]]:
    """Bytes and flops that no program can do without, if it works in chunks of 16.

    Operands are read once and results are written once, log_a in float32. For each token and head with C = 16, there
    are 2·2·C·N flops of K K^T and Q K^T, 2·2·C·P of T and of the scores with values, and 3·2·N·P of keys and queries
    with the state and of what is written to it. What gives T itself is not counted, and no state.
    """
    rows, P, N = problem.batch * problem.length * problem.heads, problem.head_dim, problem.state
    size = problem.dtype.itemsize * rows * (2 * N + 2 * P + 1) + 4 * rows
    return {"forward": (size, rows * (4 * CHUNK_LEN * (N + P) + 6 * N * P))}


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds beside the peer."""
    parts = {part["problem"].removesuffix(BESIDE): part for part in result["contests"] if BESIDE in part["problem"]}
    return [at_least(f"{what}: times as fast as fla", 1.0, ratio(part, OURS, FLA.name)) for what, part in parts.items()]
