"""The benchmark `multilevel`: multi-level attention beside standard attention, and beside its scores in full."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from smalearn.fast import executed_macs, multilevel_attention
from smalearn.lab.bench.parts import judged, target_lines
from smalearn.lab.bench.problem import judge
from smalearn.lab.bench.timing import grown_bytes, interleaved, machine, one_thread, process, seconds
from smalearn.multilevel import KeyCache, batched_scores, halving_blocks, key_numbers, parse_ranks, score_macs
from smalearn.testing import random_tensors

__all__ = ["ALLOCATIONS", "benchmark", "contest", "decode", "memory", "oracle", "table", "targets"]

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
        lengths: T of the contests.
        heads: of the contests; decoding has four times as many.
        context: length of the text that is decoded.
        rounds: samples of each time, fewer for T > 2048.

    Returns:
        What is written as JSON: `command`, `machine`, `rounds`, `heads`, `contests`, `memory`, `decode`, `targets`.
    """
    result = {"command": "smalearn bench multilevel", "machine": machine(), "rounds": rounds, "heads": heads}
    with one_thread():
        torch.empty(31 * 2**20, dtype=torch.uint8)  # the C library keeps blocks of sizes up to the largest one freed
        result["contests"] = [
            contest(length, heads, backward, max(min(rounds, 5), min(rounds, rounds * 2048 // length)))
            for length in lengths
            for backward in (False, True)
        ]
        result["memory"] = [memory(max(LOOPS), heads, backward) for backward in (False, True)]
        result["decode"] = decode(context, 4 * heads, rounds)
    result["load_at_the_end"] = machine()["load"]
    return result | {"targets": targets(result)}


def form(name: str, length: int) -> Form:
    """One contestant, by the name under which it is reported."""
    if name == STANDARD:
        return lambda Q, K, V: F.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=1.0)
    ranks, block_lens = _levels(EQUAL if name == LOOP else name, length)
    attention = level_loop if name == LOOP else multilevel_attention
    return lambda Q, K, V: attention(Q, K, V, ranks, block_lens)


def level_loop(Q, K, V, ranks, block_lens):
    """As published: batched products for the blocks of a level, (T, T) scores for every level, and then a softmax."""
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


def contest(length: int, heads: int, backward: bool, rounds: int) -> dict[str, object]:
    """Standard attention, both allocations, and at some lengths all levels in full, in interleaved rounds.

    Returns:
        `length`, `backward`; for each contestant its `errors` against float64, of the first head; of those within
        tolerance `seconds`; and `ratios`: the least time of a contestant over the least of standard attention, and
        the same with medians.
    """
    *operands, dY = inputs = _inputs(length, heads)
    found, turns = {"length": length, "backward": backward, "errors": {}}, {}
    for name in (STANDARD, *ALLOCATIONS, *[LOOP] * (length in LOOPS)):
        job = _job(form(name, length), operands, dY if backward else None)
        ranks, block_lens = _levels(EQUAL if name == LOOP else name, length)
        expected = oracle(*(x[:, :1] for x in inputs), ranks, block_lens)[: 4 if backward else 1]
        found["errors"][name], passed = judge([x[:, :1] for x in job()], expected)
        if passed:
            turns[name] = lambda job=job: seconds(job)
    found["seconds"] = interleaved(turns, rounds, {LOOP: max(1, length // 1024)})
    found["ratios"] = {
        name: [least(samples) / least(found["seconds"][STANDARD]) for least in (min, statistics.median)]
        for name, samples in found["seconds"].items()
        if name != STANDARD and STANDARD in found["seconds"]
    }
    return found


def memory(length: int, heads: int, backward: bool) -> dict[str, object]:
    """By how much a fresh process grows, for each contestant and all levels in full.

    Returns:
        `length`, `backward`, and for each contestant its `bytes`, None where the system does not say.
    """
    found = {}
    for name in (STANDARD, *ALLOCATIONS, LOOP):
        with process() as fresh:
            found[name] = fresh.submit(grown_by, name, length, heads, backward).result()
    return {"length": length, "backward": backward, "bytes": found}


def grown_by(name: str, length: int, heads: int, backward: bool) -> int | None:
    """In a fresh process: growth of the peak by one contestant."""
    with one_thread():
        *operands, dY = _inputs(length, heads)
        short = [x[..., :128, :] for x in (*operands, dY)]
        _job(form(name, 128), short[:3], short[3])()  # libraries load
        return grown_bytes(_job(form(name, length), operands, dY if backward else None))


def decode(context: int, heads: int, rounds: int) -> dict[str, object]:
    """The last steps of decoding a text, equal levels from their cache beside standard attention on a full one.

    Returns:
        `context`, `heads`; the `error` of both at their first step, and whether it is `tolerated`; `key_bytes` of the
        cache, beside `expected_bytes` by the formula, `full_bytes` of all keys, and `value_bytes`. If it is
        tolerated, `seconds` of each step, and `ratio`, the least time from the cache over the least of the other.
    """
    ranks, block_lens = _levels(EQUAL, context)
    Q, K, V, _ = _inputs(context, heads)
    start = context - rounds
    cache = KeyCache((1, heads), ranks, block_lens, FEATURES).append(K[..., :start, :], V[..., :start, :])
    found = {
        "context": context,
        "heads": heads,
        "key_bytes": cache.key_bytes,
        "expected_bytes": 4 * heads * key_numbers(context, ranks, block_lens),
        "full_bytes": 4 * K.numel(),
        "value_bytes": cache.value_bytes,
    }
    steps = {EQUAL: _steps_from_cache(cache, Q, K, V, start), STANDARD: _steps_of_all(Q, K, V, start)}
    wide = [x.double() for x in (Q[..., start : start + 1, :], K[..., : start + 1, :], V[..., : start + 1, :])]
    answers, expected = [], []
    for name, step in steps.items():
        answers.append(step())
        expected.append(_last_row(*wide, *_levels(name, context)))
    found["error"], found["tolerated"] = judge(answers, expected)
    if not found["tolerated"]:
        return found
    turns = {name: lambda step=step: seconds(step) for name, step in steps.items()}
    found["seconds"] = interleaved(turns, rounds - 1)
    ours, standard = (min(found["seconds"][name]) for name in (EQUAL, STANDARD))
    return found | {"ratio": ours / standard}


def _steps_from_cache(cache, Q, K, V, position):
    """What decodes one token more with every call."""

    def step():
        nonlocal cache, position
        Y, cache = cache.read(*(x[..., position : position + 1, :] for x in (Q, K, V)))
        position += 1
        return Y

    return step


def _steps_of_all(Q, K, V, position):
    """The same with all keys at hand, where nothing need be stored."""

    def step():
        nonlocal position
        position += 1
        past = (x[..., :position, :] for x in (K, V))
        return F.scaled_dot_product_attention(Q[..., position - 1 : position, :], *past, scale=1.0)

    return step


def _last_row(q, K, V, ranks, block_lens):
    """Attention of the last token, level by level."""
    tokens = torch.arange(K.shape[-2])
    levels = zip(q.split(ranks, -1), K.split(ranks, -1), block_lens, strict=True)
    S = sum((q_l @ K_l.mT) * (tokens // size == tokens[-1] // size) for q_l, K_l, size in levels)
    return S.softmax(-1) @ V


def _levels(name, length):
    """Ranks and block lengths of a contestant; standard attention has one level."""
    ranks = (FEATURES,) if name == STANDARD else parse_ranks(name)
    return ranks, halving_blocks(length, len(ranks))


def _inputs(length, heads):
    """Scaled Q, K, V and dY, (1, heads, T, 64)."""
    Q, K, V, dY = random_tensors([(1, heads, length, FEATURES)] * 4, dtype=torch.float32)
    return Q / FEATURES**0.5, K, V, dY


def _job(run, operands, dY):
    """What is timed: Y alone, or with the gradients of the operands for dY."""

    def forward():
        with torch.no_grad():
            return [run(*operands)]

    def both():
        leaves = [x.detach().requires_grad_() for x in operands]
        Y = run(*leaves)
        return [Y.detach(), *torch.autograd.grad(Y, leaves, dY)]

    return forward if dY is None else both


def targets(result: Mapping) -> list[dict[str, object]]:
    """What is aimed at and what was measured: `what`, `target`, `measured` (None if nothing was), `met`."""
    rows = []
    for part in result["contests"]:
        where = f"T = {part['length']}, {_way(part)}"
        for name in ALLOCATIONS:
            ratio = part["ratios"].get(name, [None])[0]
            rows.append((f"{where}: time of {name} over standard, at most", SHARES[name, part["backward"]], ratio, -1))
        if part["length"] in LOOPS:
            ours, loop = (part["ratios"].get(name) for name in (EQUAL, LOOP))
            slower = loop[0] / ours[0] if ours and loop else None
            rows.append((f"{where}: times as fast as {LOOP}, at least", LOOPS[part["length"]], slower, 1))
    for part in result["memory"]:
        ours, loop = (part["bytes"][name] for name in (EQUAL, LOOP))
        share = None if ours is None else ours / loop
        rows.append((f"T = {part['length']}, {_way(part)}: memory over that of {LOOP}, at most", 1 / 8, share, -1))
    part = result["decode"]
    rows.append((f"a step at T = {part['context']} over standard, at most", 0.75, part.get("ratio"), -1))
    rows.append(("bytes of keys beside the formula's, at most", 0, abs(part["key_bytes"] - part["expected_bytes"]), -1))
    return judged(rows)


def table(result: Mapping) -> str:
    """A result of `benchmark` for a terminal."""
    lines = [f"{key}: {value}" for key, value in result["machine"].items()]
    for part in result["contests"]:
        lines += ["", f"T = {part['length']}, {_way(part)}, {result['heads']} heads"]
        for name, error in part["errors"].items():
            start = f"  {name:28} error {error:.0e}"
            if name not in part["seconds"]:
                lines.append(f"{start}   not reported")
                continue
            least, median = (1e3 * of(part["seconds"][name]) for of in (min, statistics.median))
            ratio = f"   {part['ratios'][name][0]:.2f} of standard" if name in part["ratios"] else ""
            lines.append(f"{start}   least {least:.2f} ms, median {median:.2f} ms{ratio}{_macs(name, part['length'])}")
    for part in result["memory"]:
        shown = [f"{name} {_mebibytes(size)}" for name, size in part["bytes"].items()]
        lines += ["", f"Memory of {_way(part)}, T = {part['length']}: {', '.join(shown)}"]
    return "\n".join([*lines, "", *_decode_lines(result["decode"]), "", *target_lines(result["targets"])])


def _decode_lines(part):
    """What a step takes, and what is stored for it."""
    times = [f"{name} {1e3 * min(one):.2f} ms" for name, one in part.get("seconds", {}).items()]
    yield f"Decoding at T = {part['context']}, {part['heads']} heads: {', '.join(times) or 'not reported'}"
    sizes = ("keys", part["key_bytes"]), ("by the formula", part["expected_bytes"]), ("all keys", part["full_bytes"])
    yield "  " + ", ".join(f"{name} {_mebibytes(size)}" for name, size in (*sizes, ("values", part["value_bytes"])))


def _macs(name, length):
    """Multiply-adds of the scores over those of standard attention: needed, and executed."""
    if name not in ALLOCATIONS:
        return ""
    whole = FEATURES * length * (length + 1) / 2
    needed, executed = (count(length, *_levels(name, length)) / whole for count in (score_macs, executed_macs))
    return f"   scores {needed:.3f} of its multiply-adds, {executed:.3f} with padding"


def _mebibytes(size):
    """Bytes for a reader."""
    return "unknown" if size is None else f"{size / 2**20:.1f} MiB"


def _way(part):
    """What is measured."""
    return "forward + backward" if part["backward"] else "forward"
