"""How SSD is cut into programs: their grids, their constants, and segments where sequences are many or heads few."""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from smalearn.fast.triton.configs import config, padded

SHORTEST = 8
"""Chunks of a segment: with fewer, a second scan costs more than it gains."""


class Plan:
    """Grids and constants of the launches for one pair of X (b, g, r, T, P) and B (b, g, 1, T, N).

    Every sequence is one segment, or several where programs are few.

    Attributes:
        sequences: that lie end to end in T.
        segments: number of segments.
        cut: whether there are more of them than sequences.
        chunks: number of chunks, and of those numbers that stay free, one at each border at most.
        scans: grid of the scans over time.
        carries: grid of what goes from segment to segment.
        pieces: grid of the backward of chunks, head by head.
        groups: the same, group by group.
        numbers: length, heads of a group, and segments.
    """

    def __init__(self, X: torch.Tensor, B: torch.Tensor, borders: Sequence[int] | None = None):
        self.batch, groups, heads, length, head_dim = X.shape
        self._head_dim, self._configs = head_dim, config(architecture(X.device), head_dim, B.shape[-1], X.dtype)
        scan = self._configs[0]
        tiles = -(-head_dim // scan.tile)
        self.state, self.chunk_len, self.length = B.shape[-1], scan.chunk_len, length
        self._cut(X.device, [0, length] if borders is None else borders, tiles * groups * heads * self.batch)
        self.chunks = -(-length // scan.chunk_len) + self.segments - 1
        self.scans = (tiles, groups * heads, self.batch * self.segments)
        self.carries = (tiles, groups * heads, self.batch * self.sequences)
        self.pieces = (self.chunks * groups * heads, self.batch)
        self.groups = (self.chunks, groups, self.batch)
        self.numbers = (length, heads, self.segments)
        self._device, self._dtype = X.device, X.dtype

    @functools.cached_property
    def scan(self) -> dict[str, object]:
        """Constants of the scans."""
        return self._constants(0) | ({"borders": self.places.borders} if self.segments > 1 else {})

    @functools.cached_property
    def inputs(self) -> dict[str, object]:
        """Constants of the backward of chunks, head by head."""
        return self._constants(1) | self._where

    @functools.cached_property
    def maps(self) -> dict[str, object]:
        """The same, group by group."""
        return self._constants(2) | self._where

    @functools.cached_property
    def sums(self) -> dict[str, object]:
        """Arguments of `ssd.sums_of`."""
        return {"chunk_len": self.chunk_len} | self._where

    def _constants(self, which):
        """What any program is compiled for."""
        config = self._configs[which]
        return {
            "sizes": (self._head_dim, self.state, config.chunk_len, config.tile, padded(self.state)),
            "precision": "ieee" if self._dtype == torch.float32 else "tf32",
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        }

    @functools.cached_property
    def _where(self):
        """Where chunks lie, if it is not simply one after the other."""
        return {"chunks": self.places.chunks} if self.segments > 1 else {}

    @functools.cached_property
    def places(self) -> "Places":
        """Where segments and chunks lie, on the device."""
        cuda = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device).cuda_stream if cuda else None
        return _places(tuple(self._starts), self.length, self.chunk_len, self._device, stream)

    def _cut(self, device, borders, programs):
        """Segments: where each begins, the first and the last of each sequence, and the tokens of the longest."""
        self.sequences, chunks = len(borders) - 1, -(-self.length // self.chunk_len)
        each = segments(programs * self.sequences, chunks // self.sequences, _processors(device))
        self.span = max(1, -(-chunks // (each * self.sequences))) * self.chunk_len if each > 1 else self.length or 1
        self._starts = [range(start, max(end, start + 1), self.span) for start, end in itertools.pairwise(borders)]
        self.segments = sum(map(len, self._starts))
        self.cut = self.segments > self.sequences

    def new_states(self, X: torch.Tensor) -> torch.Tensor:
        """Memory for a state of every segment, (b·segments, g, r, P, N) in float32."""
        groups, heads, head_dim = X.shape[1], X.shape[2], X.shape[4]
        return X.new_empty(self.batch * self.segments, groups, heads, head_dim, self.state, dtype=torch.float32)

    def new_totals(self, X: torch.Tensor) -> torch.Tensor:
        """Memory for a sum of log decays of every segment, (b·segments, g, r, tiles of P, 1) in float32."""
        return X.new_empty(self.batch * self.segments, *X.shape[1:3], self.scans[0], 1, dtype=torch.float32)

    def states_of_chunks(self, X: torch.Tensor) -> torch.Tensor:
        """Memory for the state before every chunk, (b, g, r, chunks·N, P)."""
        return X.new_empty(*X.shape[:3], self.chunks * self.state, X.shape[4])

    def by_sequence(self, states: torch.Tensor | None) -> torch.Tensor | None:
        """States of all sequences, (b, g, r, sequences·P, N), as programs take them, (b·sequences, g, r, P, N)."""
        return None if states is None else states.unflatten(3, (self.sequences, -1)).movedim(3, 1).flatten(0, 1)

    def joined(self, states: torch.Tensor, back: bool = False) -> torch.Tensor:
        """Inverse of `by_sequence`, of the last segment of every sequence; with `back` of its first."""
        states, ends = states.unflatten(0, (self.batch, self.segments)), self.places.ends if self.cut else None
        if self.cut:
            states = states.index_select(1, ends[:-1] if back else ends[1:] - 1)
        return states.movedim(1, 3).flatten(3, 4)


class Places(NamedTuple):
    """Where segments and chunks lie."""

    borders: torch.Tensor  # (segments + 1) tokens where segments begin, and the end
    ends: torch.Tensor  # (sequences + 1) the first segment of every sequence, and the number of all
    chunks: torch.Tensor  # (chunks, 2) tokens where chunks begin and their segments end


@functools.lru_cache(maxsize=64)
def _places(starts: tuple[range, ...], length: int, chunk_len: int, device: torch.device, stream: int | None) -> Places:
    """The places of segments that begin at these tokens, in lists by sequence; once for all calls on a stream.

    A chunk has the number that `programs.py` gives it; where there is no chunk of a number, it begins where another
    does.
    """
    borders = torch.tensor([*itertools.chain(*starts), length], dtype=torch.int32)
    ends = torch.tensor([0, *itertools.accumulate(map(len, starts))], dtype=torch.int32)
    first = borders[:-1] // chunk_len + torch.arange(len(borders) - 1)
    numbers = torch.arange(-(-length // chunk_len) + len(borders) - 2)
    segment = torch.searchsorted(first, numbers, right=True) - 1
    begins = borders[segment] + (numbers - first[segment]) * chunk_len
    chunks = torch.stack([begins.int(), borders[segment + 1]], 1)
    return Places(*(x.to(device, non_blocking=True) for x in (borders, ends, chunks)))


def segments(programs: int, chunks: int, processors: int) -> int:
    """Choose into how many segments to cut a scan: then there are two programs for each processor of the GPU, if any.

    At least 1; none is shorter than 8 chunks.
    """
    return max(1, min(2 * processors // max(programs, 1), chunks // SHORTEST))


@functools.cache
def architecture(device: torch.device) -> str:
    """Name a GPU's architecture, such as "sm90"; "cpu" where there is none."""
    if device.type != "cuda":
        return device.type
    return "sm{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def _processors(device):
    """Number of multiprocessors, 0 where there is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
