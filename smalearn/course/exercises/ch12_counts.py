"""The exercise of chapter 12 on bytes: what a walk moves, and what the tile machine has recorded of it."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.fast import tile
from smalearn.fast.triton import launch, programs
from smalearn.fast.triton.checks import strided
from smalearn.fast.triton.configs import padded

CHUNK = 16  # of the recorded walks; what they move does not depend on it

# ------------------------------------------------------------------------------------------ 12.1 the bytes of a walk


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


def _recorded_bytes(length, heads, head_dim, state, tile):
    return sum(event.bytes for event in recorded_walk(length, heads, head_dim, state, tile))


def _bytes_cases(randn):
    yield 0, 1, 16, 16, 16
    yield 1, 1, 16, 16, 16
    yield 16, 1, 16, 16, 16
    yield 33, 1, 16, 16, 16
    yield 16, 1, 32, 16, 16
    yield 16, 3, 16, 5, 16
    yield 40, 2, 40, 20, 16


def _counted(name):
    """The count with the misconception of this name."""

    def count(length, heads, head_dim, state, tile):
        tiles, chunks = -(-head_dim // tile), -(-length // CHUNK)
        rows = chunks * CHUNK if name == "whole chunks" else length
        columns = {"all of x": tiles * head_dim, "whole tiles": tiles * tile}.get(name, head_dim)
        readers = heads * (1 if name == "tiles share" else tiles)
        decays = {"no decays": 0, "decays once": heads}.get(name, readers)
        maps = 2 * state * {"heads share": tiles, "maps once": 1}.get(name, readers)
        kept = heads * state * (tiles * tile if name == "whole tiles" else head_dim)
        times = {"states in memory": 1 + 2 * max(chunks - 1, 0), "first state": 2}.get(name, 1)
        read = tiles * columns if name == "x for all" else columns
        return 4 * (rows * (heads * (read + columns) + decays + maps) + times * kept)

    return count


@exercise(
    "12.1",
    "The bytes of a walk",
    claim="004:kernel-traffic",
    level=2,
    minutes=10,
    cases=_bytes_cases,
    oracle=_recorded_bytes,
    wrong={
        "B, C and the decays are counted once for a head, but every tile of P is a program of its own and "
        "reads them again": _counted("tiles share"),
        "B and C are counted once for all heads: they are shared in memory, but every program fetches them "
        "for itself": _counted("heads share"),
        "B and C are counted once for the whole launch: they are shared in memory, but every program fetches them "
        "for itself": _counted("maps once"),
        "the decays are counted once for a head: every program, one for each tile, reads them": _counted("decays once"),
        "the first state is zero and is not read": _counted("first state"),
        "every tile of a head reads all columns of x: it needs its own alone": _counted("x for all"),
        "every tile of a head reads and writes all columns of x and y: it has columns of its own, and leaves "
        "the others alone": _counted("all of x"),
        "the decays are missing: one number a token, which every program reads": _counted("no decays"),
        "you count the columns after the last one of P too: they are masked, and what is masked is not moved": _counted(
            "whole tiles"
        ),
        "you count the rows after the last token too: they are masked, and what is masked is not moved": _counted(
            "whole chunks"
        ),
        "you write the state after every chunk and read it back: it stays on the chip, and is written once, "
        "at the end": _counted("states in memory"),
    },
)
def walk_bytes(length, heads, head_dim, state, tile):
    """Bytes that a walk moves, in float32.

    Count the bytes that one launch of walks moves between the programs and memory, in float32.

    Hint: There is one program for each head and each tile of P columns. Which operands does it read, and which parts of
    them? What does it write, and when?

    Hint: x and y: each entry once, whoever has that tile. log_a, B and C: whole, once for each tile of each head. The
    state: written once, at the end.

    Hint: `-(-head_dim // tile)` tiles; `length · (2 · head_dim + tiles · (2 · state + 1)) + head_dim · state` numbers
    for each head, four bytes each. What is masked is not moved.

    Insight: Divide the arithmetic by these bytes: the quotient says whether a kernel waits for memory or for its units.
    """
    tiles = -(-head_dim // tile)
    tokens = length * (2 * head_dim + tiles * (2 * state + 1))
    return 4 * heads * (tokens + head_dim * state)
