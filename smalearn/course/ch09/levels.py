"""The exercises of chapter 09 about log-linear attention: the level of a pair, and the counter."""

import math

import torch

from smalearn.course.exercises.core import exercise

# ---------------------------------------------------------------------------------------------- 9.5 where they meet


def _meet(t, s):
    """Halve both until they are the same block."""
    level = 0
    while t != s:
        t, s, level = t // 2, s // 2, level + 1
    return level


@exercise(
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
        "this is the size of the DISTANCE: 4 and 3 are neighbours, but meet only in the block of eight": lambda t, s: (
            t - s
        ).bit_length(),
        "this counts from the block of two: a token meets itself at level 0": lambda t, s: (t ^ s).bit_length() - 1,
        "this is one too many: a token meets itself at level 0": lambda t, s: (t ^ s).bit_length() + 1,
        "this counts the bits that differ: what counts is the highest of them": lambda t, s: (t ^ s).bit_count(),
        "this is the lowest bit that differs: what counts is the highest": lambda t, s: (
            (t ^ s) & -(t ^ s)
        ).bit_length(),
        "this is the size of the larger one: with 0 as the other that is right": lambda t, s: max(t, s).bit_length(),
        "this is the size of t: with s = 0 that is right": lambda t, s: t.bit_length(),
        "this is right where s ≤ t: two tokens meet at one level, whichever comes first": lambda t, s: (
            _meet(t, s) if s <= t else 0
        ),
        "this is the distance of the two: how many blocks are doubled until both are in one?": lambda t, s: abs(t - s),
        "t & s has the bits that both have: what counts is where they differ, t ^ s": lambda t, s: (t & s).bit_length(),
        "this is the size of the DISTANCE, which has no logarithm where s comes later": lambda t, s: (
            int(math.log2(t - s)) + 1 if t != s else 0
        ),
        "this is the level of t and t − 1, whatever s is": lambda t, s: (t & -t).bit_length() if t != s else 0,
        "you count tokens from 1, so that the first block is one short: the first is token 0": lambda t, s: _meet(
            t + 1, s + 1
        ),
        "you never answer 0: a token meets itself at level 0": lambda t, s: max(1, _meet(t, s)),
        "this is log₂ of t ^ s and 1, not rounded down: a level is a whole number": lambda t, s: (
            math.log2(t ^ s) + 1 if t != s else 0
        ),
        "this is 0 for all pairs: two tokens share a block of level 0 only if they are the same": lambda t, s: 0,
        "you stop where their blocks are side by side: they must be ONE block": lambda t, s: next(
            level for level in range(64) if abs((t >> level) - (s >> level)) <= 1
        ),
        "t ^ s has a 1 where they differ: the place of the highest counts, `.bit_length()`": lambda t, s: t ^ s,
        "this is a length, 2^level": lambda t, s: 1 << _meet(t, s),
        "this sees only where t has a 1 and s has none: it is right where t is the later one": lambda t, s: (
            t & ~s
        ).bit_length(),
        "this is one too small where t ^ s is a power of two: its bits are counted, `.bit_length()`": lambda t, s: (
            math.ceil(math.log2(t ^ s)) if t != s else 0
        ),
        "this is 1 for all pairs that are not equal": lambda t, s: int(t != s),
    },
)
def level(t, s):
    """The level, an integer, at which a binary tree over time joins tokens t and s.

    Blocks of level ℓ have 2^ℓ tokens: 0 … 2^ℓ − 1, then 2^ℓ … 2·2^ℓ − 1, and so on. The answer is the smallest ℓ whose
    blocks have both tokens in one.

    Hint: The block of token t at level ℓ has the number t // 2^ℓ.

    Hint: Halve both until they are equal, and count. Or look at the bits in which they differ, `t ^ s`.

    Insight: The highest bit in which t and s differ says at which level they meet: one instruction.
    """
    return (t ^ s).bit_length()


# --------------------------------------------------------------------------------------------- 9.6 a binary counter


def _counted(states, block, length):
    """As lists: one addition after the other."""
    rows, bit = [row.clone() for row in states], 0
    while length >> bit & 1:
        block, rows[bit], bit = block + rows[bit], torch.zeros_like(block), bit + 1
    rows[bit] = block
    return torch.stack(rows)


def _kept(states, block, length):
    """Merged, but what was merged is still there."""
    right = _counted(states, block, length)
    return right + torch.where(right.flatten(1).any(1)[:, None, None], 0, states)


def _carried(states, block, length, carries):
    """A carry that stops after so many bits."""
    new = states.clone()
    for bit in range(len(states)):
        if not length >> bit & 1 or bit == carries:
            new[bit] = new[bit] + block
            return new
        block, new[bit] = block + new[bit], 0
    return new


def _overwritten(states, block, length):
    new = states.clone()
    bit = (length ^ (length + 1)).bit_length() - 1
    new[:bit], new[bit] = 0, block
    return new


def _counting(merge=lambda block, state: block + state, cleared=True, goes_on=lambda length, bit: length >> bit & 1):
    """The loop with another merge, without clearing, or with another end."""

    def wrong(states, block, length):
        states, bit = states.clone(), 0
        while goes_on(length, bit):
            block = merge(block, states[bit].clone())
            states[bit] = 0 if cleared else states[bit]
            bit += 1
        states[bit] = block
        return states

    return wrong


def _counting_states(states, block, length):
    """Only the old states go into the place of the first 0 bit, if there are any below."""
    right, bit = _counted(states, block, length), (length ^ (length + 1)).bit_length() - 1
    right[bit] -= block if bit else 0
    return right


def _placed(place):
    """What is below a place, and the block, go there."""

    def wrong(states, block, length):
        new, bit = states.clone(), place(length)
        new[:bit], new[bit] = 0, block + states[:bit].sum(0)
        return new

    return wrong


def _all_merged(states, block, length):
    """Every state goes into the place of the first 0 bit."""
    new = torch.zeros_like(states)
    new[(length ^ (length + 1)).bit_length() - 1] = block + states.sum(0)
    return new


def _too_low(states, block, length):
    right, bit = _counted(states, block, length), (length ^ (length + 1)).bit_length() - 1
    if bit:
        right[bit - 1], right[bit] = right[bit].clone(), 0
    return right


def _from_the_top(states, block, length):
    """The bits in the opposite order."""
    bits = sum((length >> bit & 1) << (len(states) - 1 - bit) for bit in range(len(states)))
    return _counted(states.flip(0), block, bits).flip(0)


def _by_content(states, block, length):
    """A state that is 0 is taken for none."""
    new, bit = states.clone(), 0
    while new[bit].any():
        block, new[bit], bit = block + new[bit], 0, bit + 1
    new[bit] = block
    return new


def _count_cases(randn):
    for length, levels in [(0, 2), (1, 3), (2, 3), (3, 4), (6, 4), (7, 5), (11, 5)]:
        there = torch.tensor([length >> bit & 1 for bit in range(levels)]).bool()[:, None, None]
        yield torch.where(there, randn(levels, 2, 3), 0), randn(2, 3), length
    yield torch.zeros(3, 2, 3, dtype=torch.float64), randn(2, 3), 1  # one token, which has written nothing


@exercise(
    "9.6",
    "A counter of states",
    claim="007:counter",
    level=2,
    minutes=12,
    cases=_count_cases,
    oracle=_counted,
    wrong={
        "states that were merged are still there: set them to zero": _kept,
        "you carry once: while the next bit is 1, go on": lambda states, block, length: _carried(
            states, block, length, 1
        ),
        "you carry once, and overwrite what stands in the next place: `while` the bit is 1, not `if`": _counting(
            goes_on=lambda length, bit: bit == 0 and length & 1
        ),
        "nothing carries: two blocks of one size become one of the next": lambda states, block, length: _carried(
            states, block, length, 0
        ),
        "what the merged states held is lost: add it to the new block": _overwritten,
        "all states go into one: only those below the first 0 bit are merged": lambda states, block, length: torch.cat(
            [torch.zeros_like(states[:-1]), (states.sum(0) + block)[None]]
        ),
        "the new block stands one place too high": lambda states, block, length: _counted(states, block, length).roll(
            1, 0
        ),
        "nothing is added": lambda states, block, length: states + 0,
        "your block overwrites states[0]: what is there is merged with it": lambda states, block, length: torch.cat(
            [block[None], states[1:]]
        ),
        "the block stands in the right place alone: the states below it are neither added nor set to zero": _counting(
            lambda block, state: block, cleared=False
        ),
        "the new block is lost on the way: what goes on is the state alone": _counting(lambda block, state: state),
        "where states merge, the new block is missing": _counting_states,
        "where states merge, the new block is missing, and the state counts twice": _counting(
            lambda block, state: 2 * state
        ),
        "you take means of two states: they are sums": _counting(lambda block, state: (block + state) / 2),
        "the place is that of the first 0 bit of length, not the number of its ones": _placed(int.bit_count),
        "the place is that of the first 0 bit of length: yours is above its highest 1": _placed(int.bit_length),
        "you merge above the first 0 bit, too: the carry ends there": _all_merged,
        "you begin with the highest bit: the new block meets the smallest, bit 0": _from_the_top,
        "a state that is all 0 may be a sum, too: the bits of length say which states are there": _by_content,
        "the place is that of the first 0 bit of length: yours is that of its first 1": _placed(
            lambda length: max((length & -length).bit_length() - 1, 0)
        ),
        "the place is that of the first 0 bit of length: yours is above its first 1": _placed(
            lambda length: (length & -length).bit_length()
        ),
        "the block is one place too low: merged states go into the place of the first 0 bit itself": _too_low,
        "you carry by the bits of length + 1: those of length say what is there": lambda states, block, length: (
            _carried(states, block, length + 1, 99)
        ),
    },
)
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
