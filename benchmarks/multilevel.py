"""The benchmark `multilevel`: multi-level attention beside standard attention, and beside its scores in full."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.contest import contest, judge, ratio
from benchmarks.implementation import Implementation, compare, memory
from benchmarks.problem import Problem, way
from benchmarks.report import at_least, at_most, record
from smalearn.course.timing import seconds
from smalearn.fast import executed_macs, multilevel_attention
from smalearn.multilevel import KeyCache, batched_scores, halving_blocks, key_numbers, parse_ranks, score_macs

EQUAL, PAPER = ALLOCATIONS = ("8|8|8|8|8|8|8|8", "32|8|6|4|4|4|4|2")
"""Eight equal levels, and the paper's: 64 columns each."""
STANDARD, LOOP = "scaled_dot_product_attention", "all levels in full"
LENGTHS = tuple(2**k for k in range(10, 15))
PROBLEM = Problem(heads=4, head_dim=64, state=64, decay=None, shared=False)
SHARES = {(EQUAL, False): 0.78, (EQUAL, True): 0.70, (PAPER, False): 0.90, (PAPER, True): 0.86}
LOOPS = {1024: 3, 4096: 10}
"""Lengths at which all levels in full are to be slower by these factors; they are not computed at larger ones."""
PATIENCE = 30.0  # seconds for all samples of one implementation, if three samples take no longer
ROWS = 256


def level_loop(Q, K, V, ranks, block_lens):
    """Attention as published: batched products for the blocks of a level, (T, T) scores for every level, a softmax."""
    S = batched_scores(Q, K, ranks, block_lens)
    future = torch.ones(S.shape[-2:], dtype=torch.bool).triu(1)
    return S.masked_fill(future, -math.inf).softmax(-1) @ V


def definition(ranks: Sequence[int], V: torch.Tensor, _, K: torch.Tensor, Q: torch.Tensor) -> torch.Tensor:
    """Causal multi-level attention, some rows of the scores at a time; its backward computes them again."""
    ends = [(first, min(first + ROWS, V.shape[-2])) for first in range(0, V.shape[-2], ROWS)]
    parts = [(first, Q[..., first:end, :], K[..., :end, :], V[..., :end, :]) for first, end in ends]
    rows = partial(_rows, ranks, halving_blocks(V.shape[-2], len(ranks)))
    return torch.cat([checkpoint(rows, *part, use_reentrant=False) for part in parts], -2)


def _rows(ranks, block_lens, first, Q, K, V):
    """Attention of consecutive tokens, from the first on, to those of K and V."""
    row = torch.arange(first, first + Q.shape[-2], device=Q.device)[:, None]
    column = torch.arange(K.shape[-2], device=Q.device)
    levels = zip(Q.split(ranks, -1), K.split(ranks, -1), block_lens, strict=True)
    S = sum((q @ k.mT) * (row // size == column // size) for q, k, size in levels)
    return S.masked_fill(row < column, -math.inf).softmax(-1) @ V


def standard() -> Callable:
    """PyTorch's attention, of (V, _, K, Q)."""
    return lambda V, _, K, Q: F.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=1.0)


def with_levels(attention: Callable, ranks: Sequence[int]) -> Callable:
    """Attention of (Q, K, V, ranks, block lengths) with these ranks and halved blocks, of (V, _, K, Q)."""
    return lambda V, _, K, Q: attention(Q, K, V, ranks, halving_blocks(V.shape[-2], len(ranks)))


def _attention(name: str, load: Callable, ranks: Sequence[int], **options: object) -> Implementation:
    return Implementation(name, load, exact=partial(definition, ranks), heads=1, **options)


def _ours(name: str) -> Implementation:
    ranks = parse_ranks(name)
    return _attention(name, partial(with_levels, multilevel_attention, ranks), ranks)


_EIGHT = parse_ranks(EQUAL)
ATTENTIONS = (
    _attention(STANDARD, standard, [PROBLEM.state], base=True),
    *map(_ours, ALLOCATIONS),
    _attention(LOOP, partial(with_levels, level_loop, _EIGHT), _EIGHT, longest=max(LOOPS)),
)


def benchmark(
    lengths: Sequence[int] = LENGTHS,
    heads: int = 4,
    context: int = 16384,
    rounds: int = 31,
    keep: Callable | None = None,
) -> dict[str, object]:
    """Run all parts, about ten minutes at the usual sizes: float32, causal, one thread."""
    problem = replace(PROBLEM, heads=heads)
    both = [replace(problem, length=length, backward=way) for length in lengths for way in (False, True)]
    longest = replace(problem, length=max(LOOPS))

    def measure(finish):
        return {
            "contests": [finish(_with_costs(part)) for part in compare(both, ATTENTIONS, rounds, PATIENCE, min)],
            "memory": [finish(memory(replace(longest, backward=way), ATTENTIONS)) for way in (False, True)],
            "decode": finish(decode(replace(problem, heads=4 * heads, length=context), rounds)),
        }

    return record("multilevel", rounds, measure, targets, keep)


def _with_costs(part):
    """A comparison with the multiply-adds of scores over those of standard attention."""
    length = part["sizes"]["length"]
    whole = PROBLEM.state * length * (length + 1) / 2
    for name in ALLOCATIONS:
        levels = length, (ranks := parse_ranks(name)), halving_blocks(length, len(ranks))
        costs = {"multiply-adds of scores": score_macs(*levels), "with padding": executed_macs(*levels)}
        part["contestants"][name] |= {key: count / whole for key, count in costs.items()}
    return part


def decode(problem: Problem, rounds: int) -> dict[str, object]:
    """The last steps of decoding a sequence: equal levels with their cache, standard attention with a full one."""
    (V, _, K, Q), _ = problem.inputs()
    context, start, levels = problem.length, problem.length - rounds - 2, halving_blocks(problem.length, len(_EIGHT))
    cache = KeyCache((1, problem.heads), _EIGHT, levels, problem.state).append(K[..., :start, :], V[..., :start, :])
    sizes = {
        "context": context,
        "heads": problem.heads,
        "key_bytes": cache.key_bytes,
        "expected_bytes": 4 * problem.heads * key_numbers(context, _EIGHT, levels),
        "full_bytes": 4 * K.numel(),
        "value_bytes": cache.value_bytes,
    }
    first = [x.double() for x in (Q[..., start : start + 1, :], K[..., : start + 1, :], V[..., : start + 1, :])]

    def enter(steps, ranks):
        expected = _rows(ranks, halving_blocks(context, len(ranks)), start, *first)
        error, tolerated = judge([next(steps)], [expected])
        return error, tolerated, partial(seconds, partial(next, steps))

    steps = {
        STANDARD: partial(enter, steps_with_all(Q, K, V, start), [problem.state]),
        EQUAL: partial(enter, steps_with_cache(cache, Q, K, V, start), _EIGHT),
    }
    name = f"decoding at T = {context}, {problem.heads} heads"
    return contest(name, steps, rounds, [STANDARD], statistic=min) | sizes


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


def targets(result: Mapping) -> list[dict[str, object]]:
    """Bounds on times and bytes over those of standard attention and of all levels in full."""
    rows = []
    for part in result["contests"]:
        length, backward = part["sizes"]["length"], part["sizes"]["backward"]
        where = f"T = {length}, {way(backward)}"
        times = {name: ratio(part, STANDARD, name) for name in (*ALLOCATIONS, LOOP)}
        for name in ALLOCATIONS:
            share = SHARES[name, backward]
            rows.append(at_most(f"{where}: time of {name} over standard", share, times[name]))
        if length in LOOPS:
            slower = times[LOOP] and times[EQUAL] and times[LOOP] / times[EQUAL]
            rows.append(at_least(f"{where}: times as fast as {LOOP}", LOOPS[length], slower))
    for part in result["memory"]:
        ours, loop = (part["bytes"][name]["peak"] for name in (EQUAL, LOOP))
        what = f"T = {part['length']}, {way(part['backward'])}: memory over that of {LOOP}"
        rows.append(at_most(what, 1 / 8, ours and ours / loop))
    part = result["decode"]
    rows.append(at_most(f"a step at T = {part['context']} over standard", 0.75, ratio(part, STANDARD, EQUAL)))
    rows.append(at_most("bytes of keys beside the formula's", 0, abs(part["key_bytes"] - part["expected_bytes"])))
    return rows
