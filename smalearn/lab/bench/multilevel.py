"""The benchmark `multilevel`: multi-level attention beside standard attention, and beside its scores in full."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from smalearn.fast import executed_macs, multilevel_attention
from smalearn.lab.bench.implementation import alone
from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.report import at_least, at_most, milliseconds, record
from smalearn.lab.bench.timing import grown_bytes, interleaved, one_thread, seconds
from smalearn.multilevel import KeyCache, batched_scores, halving_blocks, key_numbers, parse_ranks, score_macs
from smalearn.testing import random_tensors

__all__ = ["ALLOCATIONS", "benchmark", "compare", "decode", "memory", "oracle", "sections", "targets"]

EQUAL, PAPER = ALLOCATIONS = ("8|8|8|8|8|8|8|8", "32|8|6|4|4|4|4|2")
"""Eight equal levels, and the paper's: 64 columns each."""
STANDARD, LOOP = "scaled_dot_product_attention", "all levels in full"
FEATURES = 64
LENGTHS = tuple(2**k for k in range(10, 15))
SHARES = {(EQUAL, False): 0.78, (EQUAL, True): 0.70, (PAPER, False): 0.90, (PAPER, True): 0.86}
LOOPS = {1024: 3, 4096: 10}
"""Lengths at which all levels are computed in full, and by how many times that is to be slower."""
ROWS = 256

Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def benchmark(
    lengths: Sequence[int] = LENGTHS, heads: int = 4, context: int = 16384, rounds: int = 31
) -> dict[str, object]:
    """Run all parts, about six minutes at the usual sizes: float32, causal, one thread.

    Args:
        lengths: T of the comparison.
        heads: of the comparison; decoding has four times as many.
        context: length of the sequence that is decoded.
        rounds: samples of each time, fewer for T > 2048.

    Returns:
        See `record`, with the parts `heads`, `contests`, `memory`, `decode`.
    """

    def measure():
        fewer = {length: max(min(rounds, 5), min(rounds, rounds * 2048 // length)) for length in lengths}
        ways = [(length, backward) for length in lengths for backward in (False, True)]
        return {
            "heads": heads,
            "contests": [compare(length, heads, backward, fewer[length]) for length, backward in ways],
            "memory": [memory(max(LOOPS), heads, backward) for backward in (False, True)],
            "decode": decode(context, 4 * heads, rounds),
        }

    return record("multilevel", rounds, measure, targets)


def form(name: str, length: int) -> Form:
    """An implementation, by the name under which it is reported."""
    if name == STANDARD:
        return lambda Q, K, V: F.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=1.0)
    ranks, block_lens = _levels(name, length)
    attention = level_loop if name == LOOP else multilevel_attention
    return lambda Q, K, V: attention(Q, K, V, ranks, block_lens)


def level_loop(Q, K, V, ranks, block_lens):
    """Attention as published: batched products for the blocks of a level, (T, T) scores for every level, a softmax."""
    S = batched_scores(Q, K, ranks, block_lens)
    future = torch.ones(S.shape[-2:], dtype=torch.bool).triu(1)
    return S.masked_fill(future, -math.inf).softmax(-1) @ V


def oracle(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, dY: torch.Tensor, ranks: Sequence[int], block_lens: Sequence[int]
) -> list[torch.Tensor]:
    """Y and the gradients of Q, K and V in float64, some rows of the scores at a time.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        dY: (..., T, P) gradient of Y.
        ranks: r_l of every level.
        block_lens: b_l of every level.

    Returns:
        Four tensors in float64.
    """
    Q, K, V, dY = (x.double() for x in (Q, K, V, dY))
    Y, dQ, dK, dV = (torch.zeros_like(x) for x in (dY, Q, K, V))
    for first in range(0, Q.shape[-2], ROWS):
        rows = slice(first, min(first + ROWS, Q.shape[-2]))
        seen = slice(0, rows.stop)
        row, column = torch.arange(rows.start, rows.stop)[:, None], torch.arange(rows.stop)
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (Q[..., rows, :], K[..., seen, :], V[..., seen, :]))
            levels = zip(q.split(ranks, -1), k.split(ranks, -1), block_lens, strict=True)
            S = sum((q_l @ k_l.mT) * (row // size == column // size) for q_l, k_l, size in levels)
            y = S.masked_fill(row < column, -math.inf).softmax(-1) @ v
        Y[..., rows, :] = y.detach()
        dq, dk, dv = torch.autograd.grad(y, (q, k, v), dY[..., rows, :])
        dQ[..., rows, :] = dq
        dK[..., seen, :] += dk
        dV[..., seen, :] += dv
    return [Y, dQ, dK, dV]


def compare(length: int, heads: int, backward: bool, rounds: int) -> dict[str, object]:
    """Standard attention, both allocations, and at some lengths all levels in full, in interleaved rounds.

    Returns:
        `length`, `backward`; for each implementation its `errors` against float64, of the first head; of those within
        tolerance `seconds`; and `ratios`: the least time over the least of standard attention, and the same with
        medians.
    """
    *operands, dY = inputs = _inputs(length, heads)
    result, samplers = {"length": length, "backward": backward, "errors": {}}, {}
    for name in (STANDARD, *ALLOCATIONS, *[LOOP] * (length in LOOPS)):
        run = _run(form(name, length), operands, dY if backward else None)
        expected = oracle(*(x[:, :1] for x in inputs), *_levels(name, length))[: 4 if backward else 1]
        result["errors"][name], passed = judge([x[:, :1] for x in run()], expected)
        if passed:
            samplers[name] = partial(seconds, run)
    times = result["seconds"] = interleaved(samplers, rounds, {LOOP: max(1, length // 1024)})
    result["ratios"] = {
        name: [least(samples) / least(times[STANDARD]) for least in (min, statistics.median)]
        for name, samples in times.items()
        if name != STANDARD and STANDARD in times
    }
    return result


def memory(length: int, heads: int, backward: bool) -> dict[str, object]:
    """Growth of a fresh process by each implementation, and by all levels in full.

    Returns:
        `length`, `backward`, and for each implementation its `bytes`, None where the system does not report it.
    """
    names = (STANDARD, *ALLOCATIONS, LOOP)
    sizes = {name: alone(growth_of, name, length, heads, backward) for name in names}
    return {"length": length, "backward": backward, "bytes": sizes}


def growth_of(name: str, length: int, heads: int, backward: bool) -> int | None:
    """Growth of this process, which is to be fresh, by one implementation."""
    with one_thread():
        *operands, dY = _inputs(length, heads)
        *short, short_dY = (x[..., :128, :] for x in (*operands, dY))
        _run(form(name, 128), short, short_dY)()  # libraries load
        return grown_bytes(_run(form(name, length), operands, dY if backward else None))


def decode(context: int, heads: int, rounds: int) -> dict[str, object]:
    """The last steps of decoding a sequence: equal levels with their cache, standard attention with a full one.

    Returns:
        `context`, `heads`; the `error` of both at their first step, and whether it is `tolerated`; `key_bytes` of the
        cache, `expected_bytes` by the formula, `full_bytes` of all keys, and `value_bytes`. If it is tolerated,
        `seconds` of each step, and `ratio`, the least time with the cache over the least of the other.
    """
    ranks, block_lens = _levels(EQUAL, context)
    Q, K, V, _ = _inputs(context, heads)
    start = context - rounds
    cache = KeyCache((1, heads), ranks, block_lens, FEATURES).append(K[..., :start, :], V[..., :start, :])
    result = {
        "context": context,
        "heads": heads,
        "key_bytes": cache.key_bytes,
        "expected_bytes": 4 * heads * key_numbers(context, ranks, block_lens),
        "full_bytes": 4 * K.numel(),
        "value_bytes": cache.value_bytes,
    }
    steps = {EQUAL: steps_with_cache(cache, Q, K, V, start), STANDARD: steps_with_all(Q, K, V, start)}
    wide = [x.double() for x in (Q[..., start : start + 1, :], K[..., : start + 1, :], V[..., : start + 1, :])]
    expected = [_last_row(*wide, *_levels(name, context)) for name in steps]
    result["error"], result["tolerated"] = judge([next(step) for step in steps.values()], expected)
    if not result["tolerated"]:
        return result
    samplers = {name: partial(seconds, partial(next, step)) for name, step in steps.items()}
    times = result["seconds"] = interleaved(samplers, rounds - 1)
    return result | {"ratio": min(times[EQUAL]) / min(times[STANDARD])}


def steps_with_cache(cache: KeyCache, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, start: int) -> Iterator:
    """Decode one token after the other, from `start` on."""
    for position in range(start, Q.shape[-2]):
        Y, cache = cache.read(*(x[..., position : position + 1, :] for x in (Q, K, V)))
        yield Y


def steps_with_all(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, start: int) -> Iterator:
    """Decode the same tokens with all keys at hand, where nothing needs to be stored."""
    for position in range(start, Q.shape[-2]):
        past = (x[..., : position + 1, :] for x in (K, V))
        yield F.scaled_dot_product_attention(Q[..., position : position + 1, :], *past, scale=1.0)


def _last_row(q, K, V, ranks, block_lens):
    """Attention of the last token, level by level."""
    tokens = torch.arange(K.shape[-2])
    levels = zip(q.split(ranks, -1), K.split(ranks, -1), block_lens, strict=True)
    S = sum((q_l @ K_l.mT) * (tokens // size == tokens[-1] // size) for q_l, K_l, size in levels)
    return S.softmax(-1) @ V


def _levels(name, length):
    """Ranks and block lengths of an implementation; standard attention has one level."""
    ranks = (FEATURES,) if name == STANDARD else parse_ranks(EQUAL if name == LOOP else name)
    return ranks, halving_blocks(length, len(ranks))


def _inputs(length, heads):
    """Scaled Q, K, V and dY, (1, heads, T, 64)."""
    Q, K, V, dY = random_tensors([(1, heads, length, FEATURES)] * 4, dtype=torch.float32)
    return Q / FEATURES**0.5, K, V, dY


def _run(attention, operands, dY):
    """The timed run: Y alone, or with the gradients of the operands for dY."""

    def forward():
        with torch.no_grad():
            return [attention(*operands)]

    def both():
        leaves = [x.detach().requires_grad_() for x in operands]
        Y = attention(*leaves)
        return [Y.detach(), *torch.autograd.grad(Y, leaves, dY)]

    return forward if dY is None else both


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on times and bytes over those of standard attention and of all levels in full."""
    rows = []
    for part in result["contests"]:
        where = f"T = {part['length']}, {_way(part)}"
        for name in ALLOCATIONS:
            ratio = part["ratios"].get(name, [None])[0]
            rows.append(at_most(f"{where}: time of {name} over standard", SHARES[name, part["backward"]], ratio))
        if part["length"] in LOOPS:
            ours, loop = (part["ratios"].get(name) for name in (EQUAL, LOOP))
            slower = loop[0] / ours[0] if ours and loop else None
            rows.append(at_least(f"{where}: times as fast as {LOOP}", LOOPS[part["length"]], slower))
    for part in result["memory"]:
        ours, loop = (part["bytes"][name] for name in (EQUAL, LOOP))
        what = f"T = {part['length']}, {_way(part)}: memory over that of {LOOP}"
        rows.append(at_most(what, 1 / 8, None if ours is None else ours / loop))
    part = result["decode"]
    rows.append(at_most(f"a step at T = {part['context']} over standard", 0.75, part.get("ratio")))
    rows.append(at_most("bytes of keys beside the formula's", 0, abs(part["key_bytes"] - part["expected_bytes"])))
    return rows


def sections(result: Mapping) -> Iterator[tuple[str, list]]:
    """Titles and rows for `render`."""
    for part in result["contests"]:
        yield f"T = {part['length']}, {_way(part)}, {result['heads']} heads", _comparison_rows(part)
    for part in result["memory"]:
        shown = [(name, _mebibytes(size)) for name, size in part["bytes"].items()]
        yield f"Memory of {_way(part)}, T = {part['length']}", shown
    part = result["decode"]
    times = [f"{name} {milliseconds(one, min)}" for name, one in part.get("seconds", {}).items()]
    names = {"key_bytes": "keys", "expected_bytes": "by the formula", "full_bytes": "all keys", "value_bytes": "values"}
    sizes = ", ".join(f"{name} {_mebibytes(part[key])}" for key, name in names.items())
    rows = [(", ".join(times) or "not reported",), (sizes,)]
    yield f"Decoding at T = {part['context']}, {part['heads']} heads", rows


def _comparison_rows(part):
    """Least and median time, and multiply-adds of the scores over those of standard attention."""
    for name, error in part["errors"].items():
        if name not in part["seconds"]:
            yield name, f"error {error:.0e}", "not reported"
            continue
        least, median = (milliseconds(part["seconds"][name], of) for of in (min, statistics.median))
        cells = [name, f"error {error:.0e}", f"least {least}", f"median {median}"]
        if name in part["ratios"]:
            cells.append(f"{part['ratios'][name][0]:.2f} of standard")
        if name in ALLOCATIONS:
            length = part["length"]
            whole = FEATURES * length * (length + 1) / 2
            needed, executed = (count(length, *_levels(name, length)) / whole for count in (score_macs, executed_macs))
            cells.append(f"scores {needed:.3f} of its multiply-adds, {executed:.3f} with padding")
        yield cells


def _mebibytes(size):
    return "unknown" if size is None else f"{size / 2**20:.1f} MiB"


def _way(part):
    """Name of what is timed."""
    return "forward + backward" if part["backward"] else "forward"
