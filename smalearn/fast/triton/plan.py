"""How SSD is cut into programs: their grids, their constants, and segments where sequences are many or heads few."""

import functools
import itertools
from collections.abc import Sequence

import torch

from smalearn.fast.triton.configs import config, padded
from smalearn.masks.decay import decay_matrix

__all__ = ["Plan", "architecture", "segments"]

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
        self.pieces = (self.chunks * groups * heads, self.batch)
        self.groups = (self.chunks, groups, self.batch)
        self.numbers = (length, heads, self.segments)
        self._device, self._dtype = X.device, X.dtype

    @functools.cached_property
    def scan(self) -> dict[str, object]:
        """Constants of the scans."""
        return self._constants(0) | ({"borders": self.borders} if self.segments > 1 else {})

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
        return {"chunks": self._chunks()} if self.segments > 1 else {}

    @functools.cached_property
    def borders(self) -> torch.Tensor:
        """Where segments begin, and the end."""
        return _sent([*itertools.chain(*self._starts), self.length], torch.int32, self._device)

    @functools.cached_property
    def firsts(self) -> torch.Tensor:
        """The first segment of every sequence."""
        return _sent([0, *self._ends[:-1]], torch.int64, self._device)

    @functools.cached_property
    def lasts(self) -> torch.Tensor:
        """The last segment of every sequence."""
        return _sent([end - 1 for end in self._ends], torch.int64, self._device)

    def _cut(self, device, borders, programs):
        """Segments: where each begins, the first and the last of each sequence, and the tokens of the longest."""
        self.sequences, chunks = len(borders) - 1, -(-self.length // self.chunk_len)
        each = segments(programs * self.sequences, chunks // self.sequences, _processors(device))
        self.span = max(1, -(-chunks // (each * self.sequences))) * self.chunk_len if each > 1 else self.length or 1
        self._starts = [range(start, max(end, start + 1), self.span) for start, end in itertools.pairwise(borders)]
        self._ends = list(itertools.accumulate(map(len, self._starts)))
        self.segments, self.cut = self._ends[-1], self._ends[-1] > self.sequences

    def _chunks(self):
        """The tokens where chunks begin and their segments end, (chunks, 2)."""
        starts, ends = self.borders[:-1].contiguous(), self.borders[1:]
        numbers = torch.arange(self.chunks, device=starts.device)
        first = starts // self.chunk_len + torch.arange(self.segments, device=starts.device)
        segment = torch.searchsorted(first, numbers, right=True) - 1
        begins = starts[segment] + (numbers - first[segment]) * self.chunk_len
        return torch.stack([begins.int(), ends[segment]], 1)

    def new_states(self, X: torch.Tensor) -> torch.Tensor:
        """Memory for a state of every segment, (b·segments, g, r, P, N) in float32."""
        groups, heads, head_dim = X.shape[1], X.shape[2], X.shape[4]
        return X.new_empty(self.batch * self.segments, groups, heads, head_dim, self.state, dtype=torch.float32)

    def states_of_chunks(self, X: torch.Tensor) -> torch.Tensor:
        """Memory for the state before every chunk, (b, g, r, chunks·N, P)."""
        return X.new_empty(*X.shape[:3], self.chunks * self.state, X.shape[4])

    def by_sequence(self, states: torch.Tensor | None) -> torch.Tensor | None:
        """States of all sequences, (b, g, r, sequences·P, N), as programs take them, (b·sequences, g, r, P, N)."""
        return None if states is None else states.unflatten(3, (self.sequences, -1)).movedim(3, 1).flatten(0, 1)

    def joined(self, states: torch.Tensor, back: bool = False) -> torch.Tensor:
        """Inverse of `by_sequence`, of the last segment of every sequence; with `back` of its first."""
        states = states.unflatten(0, (self.batch, self.segments))
        states = states.index_select(1, self.firsts if back else self.lasts) if self.cut else states
        return states.movedim(1, 3).flatten(3, 4)

    def follow(
        self, added: torch.Tensor, log_a: torch.Tensor, outer: torch.Tensor | None, back: bool = False
    ) -> torch.Tensor:
        """The state before every segment, H_(s+1) = exp(Σ of log_a in s) H_s + added_s: the same recurrence once more.

        Args:
            added: (b·segments, g, r, P, N), what every segment adds.
            log_a: (b, g, r, T, 1).
            outer: (b·sequences, g, r, P, N), the state before the first segment of every sequence; zeros if None.
            back: whether to go from the last segment to the first, as gradients do.

        Returns:
            Shape of added.
        """
        ends, step = (self.lasts, -1) if back else (self.firsts, 1)
        totals, added = self._totals(log_a), self._split(added)
        outer = torch.zeros_like(added.index_select(3, ends)) if outer is None else self._split(outer).float()
        totals = totals.roll(step, 3).index_fill(3, ends, -torch.inf)  # no state passes from sequence to sequence
        added = added.roll(step, 3).index_copy(3, ends, outer).flatten(4)
        totals, added = (totals.flip(3), added.flip(3)) if back else (totals, added)
        before = decay_matrix(totals) @ added
        before = before.flip(3) if back else before
        return before.movedim(3, 1).unflatten(4, (-1, self.state)).flatten(0, 1)

    def _split(self, states):
        """States (b·k, g, r, P, N) as (b, g, r, k, P, N)."""
        return states.unflatten(0, (self.batch, -1)).movedim(1, 3)

    def _totals(self, log_a):
        """Sums of log_a (b, g, r, T, 1) over every segment, (b, g, r, segments)."""
        tokens = self.borders[:-1, None] + torch.arange(self.span, device=log_a.device)
        inside = tokens < self.borders[1:, None]
        return torch.where(inside, log_a[..., tokens.clamp(max=self.length - 1), 0].float(), 0).sum(-1)


def _sent(numbers, dtype, device):
    """Copy integers to the device asynchronously."""
    numbers = torch.tensor(numbers, dtype=dtype)
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers


def segments(programs: int, chunks: int, processors: int) -> int:
    """Choose into how many segments to cut a scan, so that there are two programs for each processor.

    Args:
        programs: number of programs without segments.
        chunks: number of chunks of a scan.
        processors: of the GPU; 0 where there is none.

    Returns:
        At least 1; no segment is shorter than 8 chunks.
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
