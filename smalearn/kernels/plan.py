"""How SSD is cut into programs: their grids, their constants, and segments where heads are few."""

import functools

import torch
import torch.nn.functional as F

from smalearn.kernels.configs import config, padded
from smalearn.masks.decay import decay_matrix

__all__ = ["Plan", "segments"]

SHORTEST = 8
"""Chunks of a segment: with fewer, what a second walk costs is more than what it gains."""


class Plan:
    """Grids and constants of the launches for one pair of X (b, g, r, T, P) and B (b, g, 1, T, N).

    Attributes:
        chunks: number of chunks.
        segments: number of segments of a walk.
        walks: grid of the walks over time.
        pieces: grid of the backward of chunks.
        numbers: length, heads of a group, and segments.
        walk: constants of the walks.
        piece: constants of the backward of chunks.
    """

    def __init__(self, X: torch.Tensor, B: torch.Tensor):
        self.batch, groups, heads, length, head_dim = X.shape
        walk, piece = config(_architecture(X.device), head_dim, B.shape[-1], X.dtype)
        tiles = -(-head_dim // walk.tile)
        self.state, self.chunk_len = B.shape[-1], walk.chunk_len
        self.chunks = -(-length // walk.chunk_len)
        self.segments = segments(tiles * groups * heads * self.batch, self.chunks, _processors(X.device))
        self.walks = (tiles, groups * heads, self.batch * self.segments)
        self.pieces = (self.chunks, groups, self.batch)
        self.numbers = (length, heads, self.segments)
        precision = "ieee" if X.dtype == torch.float32 else "tf32"
        self.walk, self.piece = (
            {
                "sizes": (head_dim, self.state, which.chunk_len, which.tile, padded(self.state)),
                "precision": precision,
                "num_warps": which.num_warps,
                "num_stages": which.num_stages,
            }
            for which in (walk, piece)
        )

    def new_states(self, X: torch.Tensor) -> torch.Tensor:
        """Memory for a state of every segment, (b·segments, g, r, P, N) in float32."""
        groups, heads, head_dim = X.shape[1], X.shape[2], X.shape[4]
        return X.new_empty(self.batch * self.segments, groups, heads, head_dim, self.state, dtype=torch.float32)

    def split(self, states: torch.Tensor) -> torch.Tensor:
        """States of all segments as (b, segments, g, r, P, N)."""
        return states.unflatten(0, (self.batch, self.segments))

    def follow(
        self, added: torch.Tensor, log_a: torch.Tensor, outer: torch.Tensor | None, back: bool = False
    ) -> torch.Tensor:
        """The state before every segment, H_(s+1) = exp(Σ of log_a in s) H_s + added_s: the same recurrence once more.

        Args:
            added: (b·segments, g, r, P, N), what every segment adds.
            log_a: (b, g, r, T, 1).
            outer: (b, g, r, P, N), the state before the first segment; zeros if None.
            back: whether to go from the last segment to the first, as gradients do.

        Returns:
            Shape of added.
        """
        span = -(-self.chunks // self.segments) * self.chunk_len
        padding = (0, self.segments * span - log_a.shape[3])
        totals = F.pad(log_a[..., 0].float(), padding).unflatten(-1, (self.segments, span)).sum(-1)
        added = self.split(added).movedim(1, 3).flatten(4)
        totals, added = (totals.flip(3), added.flip(3)) if back else (totals, added)
        first = torch.zeros_like(added[:, :, :, :1]) if outer is None else outer.flatten(3)[:, :, :, None].float()
        before = decay_matrix(totals.roll(1, 3)) @ torch.cat([first, added[:, :, :, :-1]], 3)
        before = before.flip(3) if back else before
        return before.movedim(3, 1).unflatten(4, (-1, self.state)).flatten(0, 1)


def segments(programs: int, chunks: int, processors: int) -> int:
    """Into how many segments to cut a walk, so that there are two programs for each processor.

    Args:
        programs: number of programs without segments.
        chunks: number of chunks of a walk.
        processors: of the GPU; 0 where there is none.

    Returns:
        At least 1; no segment is shorter than 8 chunks.
    """
    return max(1, min(2 * processors // max(programs, 1), chunks // SHORTEST))


@functools.cache
def _architecture(device):
    """Such as "sm90"; "cpu" where there is none."""
    if device.type != "cuda":
        return device.type
    return "sm{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def _processors(device):
    """Number of multiprocessors, 0 where there is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0
