"""The exercise of chapter 12 on bytes: what a walk moves, and what the Triton emulator has recorded of it."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.fast import tile
from smalearn.fast.triton import launch, programs
from smalearn.fast.triton.checks import strided
from smalearn.fast.triton.configs import padded

__all__ = ["recorded_walk"]


def moved_numbers():
    """How many numbers a walk moves for each token: one head, P = 64 in one tile, N = 128, the last state aside.

    Hint: It reads the token's x, its decay, its B and its C, and it writes its y.

    Hint: x and y have P numbers each, B and C have N each, and log a is one.

    Too little: Add up all that a program reads for a token, x, B, C and the decay, and what it writes.

    Too much: A number of a token crosses once, and the state stays on the chip.

    Insight: Two thirds of them are B and C, which other heads read too: what a cache is good for.
    """
    return 2 * 64 + 2 * 128 + 1


def walk_bytes(length, heads, head_dim, state, tile):
    """Bytes that one launch of walks moves, in float32: heads of one sequence, a program for each `tile` columns of P.

    A program reads its columns of x, and all of log_a, B and C; it writes its columns of y, and of the last state.
    """
    tiles = -(-head_dim // tile)
    tokens = length * (2 * head_dim + tiles * (2 * state + 1))
    return 4 * heads * (tokens + head_dim * state)


def _moved():
    return (walk_bytes(2, 1, 64, 128, 64) - walk_bytes(1, 1, 64, 128, 64)) // 4


exercise(
    "12.1",
    "The traffic of a walk",
    claim="004:kernel-traffic",
    kind="predict",
    level=1,
    minutes=4,
    oracle=_moved,
    wrong={
        "the decay is missing: one number a token": lambda: 384,
        "B and C are shared in memory, but every program fetches them for itself: they count whole": lambda: 140,
        "y is missing: a walk writes it": lambda: 321,
        "y and the decay are missing": lambda: 320,
        "that is towards memory, with B and C shared by 128 heads: here each program fetches its own": lambda: 131,
        "B and C are missing: a program reads both": lambda: 129,
        "C is missing: it reads the state": lambda: 257,
        "a decay for each feature is too much: here it is one number for a token and head": lambda: 512,
        "one number too many: beside x, B, C and y there is one log decay; Δ is in it, and in x": lambda: 386,
        "the state stays on the chip: it is not written for each token": lambda: 385 + 64 * 128,
        "these are bytes of numbers of two bytes each: the question is how many numbers": lambda: 2 * 385,
        "B and C are counted twice: each of them crosses once, though B is used twice": lambda: 2 * 64 + 4 * 128 + 1,
        "the state is neither read nor written for each token: it stays on the chip": lambda: 385 + 2 * 64 * 128,
        "these are bytes: the question is how many numbers": lambda: 4 * 385,
    },
)(moved_numbers)


CHUNK = 16  # of the recorded walks; what they move does not depend on it


def recorded_walk(length, heads, head_dim, state, tile_width):
    """The events of the library's forward program on zeros, one group of heads."""
    x, y = torch.zeros(2, 1, 1, heads, length, head_dim)
    log_a, (b, c) = torch.zeros(1, 1, heads, length, 1), torch.zeros(2, 1, 1, 1, length, state)
    final = torch.zeros(1, 1, heads, state, head_dim)
    operands = map(strided, (x, log_a, b, c, y, None, final, None))
    sizes = head_dim, state, CHUNK, tile_width, padded(state)
    grid = (-(-head_dim // tile_width), heads, 1)
    constants = {"sizes": sizes, "precision": "ieee", "num_warps": 1, "num_stages": 1}
    with tile.recording() as events:
        launch.on_tiles(programs.ssd_forward, grid, *operands, length, heads, 1, **constants)
    return events
