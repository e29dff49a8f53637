"""The exercises of chapter 09 about log-linear attention: the level of a pair, and the counter."""

import math

import torch

from smalearn.course.exercises.core import exercise


def level(t, s):
    """The level, an integer, at which a binary tree over time joins tokens t and s.

    Blocks of level ℓ have 2^ℓ tokens: 0 … 2^ℓ − 1, then 2^ℓ … 2·2^ℓ − 1, and so on. The answer is the smallest ℓ whose
    blocks have both tokens in one.

    Hint: The block of token t at level ℓ has the number t // 2^ℓ.

    Hint: Halve both until they are equal, and count. Or look at the bits in which they differ, `t ^ s`.

    Insight: The highest bit in which t and s differ says at which level they meet: one instruction.
    """
    return (t ^ s).bit_length()


def _meet(t, s):
    """Halve both until they are the same block."""
    level = 0
    while t != s:
        t, s, level = t // 2, s // 2, level + 1
    return level


exercise(
    "9.5",
    "Where two tokens meet",
    claim="007:level",
    level=1,
    minutes=6,
    cases=lambda randn: [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 3),
        (5, 4),
        (7, 0),
        (12, 8),
        (100, 37),
        (1024, 1023),
        (3, 9),
        (8, 15),
    ],
    oracle=_meet,
    wrong={
        "this is the size of the DISTANCE: 4 and 3 are neighbours, but meet only in the block of eight": "^ → -",
        "this counts from the block of two: a token meets itself at level 0": "length() → length() - 1",
        "this is one too many: a token meets itself at level 0": "length() → length() + 1",
        "this counts the bits that differ: what counts is the highest of them": "bit_length → bit_count",
        "this is the lowest bit that differs: what counts is the highest": "(t ^ s) → ((t ^ s) & -(t ^ s))",
        "this is the size of the larger one: with 0 as the other that is right": "(t ^ s) → max(t, s)",
        "this is right where s ≤ t: "
        "two tokens meet at one level, whichever comes first": "length() → length() * (s <= t)",
        "this is the distance of the two: "
        "how many blocks are doubled until both are in one?": "(t ^ s).bit_length() → abs(t - s)",
        "t & s has the bits that both have: what counts is where they differ, t ^ s": "^ → &",
        "this is the size of the DISTANCE, which has no logarithm where s comes later": lambda t, s: (
            int(math.log2(t - s)) + 1 if t != s else 0
        ),
        "this is the level of t and t − 1, whatever s is": "(t ^ s) → (t != s) * (t & -t)",
        "you count tokens from 1, so that the first block is one short: the first is token 0": "t ^ s → t + 1 ^ s + 1",
        "you never answer 0: a token meets itself at level 0": "t ^ s → t ^ s | 1",
        "this is log₂ of t ^ s and 1, not rounded down: a level is a whole number": lambda t, s: (
            math.log2(t ^ s) + 1 if t != s else 0
        ),
        "you stop where their blocks are side by side: they must be ONE block": lambda t, s: next(
            level for level in range(64) if abs((t >> level) - (s >> level)) <= 1
        ),
        "t ^ s has a 1 where they differ: the place of the highest counts, `.bit_length()`": ".bit_length() → ",
        "this is a length, 2^level": "return → return 1 <<",
        "this sees only where t has a 1 and s has none: it is right where t is the later one": "^ s → & ~s",
        "this is one too small where t ^ s is a power of two: its bits are counted, `.bit_length()`": lambda t, s: (
            math.ceil(math.log2(t ^ s)) if t != s else 0
        ),
        "this is 1 for all pairs that are not equal": lambda t, s: int(t != s),
    },
)(level)


def count(states, block, length):
    """The states (bits, P, N) after one more block of a single token, block (P, N).

    states[b] is the sum of a block of 2^b tokens if bit b of length, the number of tokens so far, is 1, and zeros if it
    is 0. Where two blocks of one size meet, they become one of the next size. There is always room, and the old states
    stay as they are.

    Hint: Count up in binary: 0111 + 1 is 1000. The ones at the end go to zero, and the first 0 becomes a 1.

    Hint: While bit b of length is 1, add states[b] to the block, set states[b] to zero, and go on with b + 1. Then the
    block's place is states[b].

    Hint: `length >> b & 1` is bit b. Work on `states.clone()`: the old states belong to the caller.

    Insight: A merge every other token, a second one every fourth: one addition per token on average, however long the
    text.
    """
    states, b = states.clone(), 0
    while length >> b & 1:
        block = block + states[b]
        states[b] = 0
        b += 1
    states[b] = block
    return states


def _counted(states, block, length):
    """As lists: one addition after the other."""
    rows, bit = [row.clone() for row in states], 0
    while length >> bit & 1:
        block, rows[bit], bit = block + rows[bit], torch.zeros_like(block), bit + 1
    rows[bit] = block
    return torch.stack(rows)


def _count_cases(randn):
    for length, levels in [(0, 2), (1, 3), (2, 3), (3, 4), (6, 4), (7, 5), (11, 5)]:
        there = torch.tensor([length >> bit & 1 for bit in range(levels)]).bool()[:, None, None]
        yield torch.where(there, randn(levels, 2, 3), 0), randn(2, 3), length
    yield torch.zeros(3, 2, 3, dtype=torch.float64), randn(2, 3), 1  # one token, which has written nothing


exercise(
    "9.6",
    "A counter of states",
    claim="007:counter",
    level=2,
    minutes=12,
    cases=_count_cases,
    oracle=_counted,
    wrong={
        "states that were merged are still there: set them to zero": "states[b] = 0 → pass",
        "you carry once: while "
        "the next bit is 1, go on": "while → if ; states[b] = block → states[b] = states[b] + block",
        "you carry once, and overwrite what stands in the next place: `while` the bit is 1, not `if`": "while → if",
        "nothing carries: two blocks of one "
        "size become one of the next": "length >> b & 1 → False ; states[b] = block → states[b] = states[b] + block",
        "what the merged states held is lost: add it to the new block": "block = block + states[b] → pass",
        "all states go into one: only those below "
        "the first 0 bit are merged": "return states → states[-1], states[:-1] = states.sum(0), 0\n    return states",
        "the block stands in the right place alone: the "
        "states below it are neither added nor set to zero": "block = block + states[b] → pass ; states[b] = 0 → pass",
        "you take means of two states: they are sums": "block + states[b] → (block + states[b]) / 2",
        "the place is that of the first 0 bit of length, "
        "not the number of its ones": "length >> b & 1 → b < length.bit_count()",
        "the place is that of the first 0 bit of length: "
        "yours is above its highest 1": "length >> b & 1 → b < length.bit_length()",
        "you merge above the first 0 bit, too: the "
        "carry ends there": "states[b] = block → block, states[:] = block + states.sum(0), 0\n    states[b] = block",
        "you begin with the highest bit: the new block meets the smallest, bit 0": (
            "states.clone() → states.flip(0) ; length >> b → length >> (len(states) - 1 - b) ; "
            "return states → return states.flip(0)"
        ),
        "a state that is all 0 may be a sum, too: "
        "the bits of length say which states are there": "length >> b & 1 → states[b].any()",
        "the place is that of the first 0 bit of length: "
        "yours is that of its first 1": "length >> b & 1 → b < (length & -length).bit_length() - 1",
        "the place is that of the first 0 bit of length: "
        "yours is above its first 1": "length >> b & 1 → b < (length & -length).bit_length()",
        "the block is one place too low: merged "
        "states go into the place of the first 0 bit itself": "states[b] = block → states[max(b - 1, 0)] = block",
        "you carry by the bits of length + 1: those "
        "of length say what is there": "length >> → length + 1 >> ; states[b] = block → states[b] = states[b] + block",
    },
)(count)
