"""The blocks of M = L ∘ C B^T under the chunked algorithm: which of its four steps computes what, and at which cost."""

from __future__ import annotations

import math

import torch
import traitlets

from smalearn.course.widgets.base import Choice, Explorer, Size, module
from smalearn.masks import SemiseparableMask
from smalearn.masks.decay import join_chunks, since_start, split_chunks, until_end
from smalearn.testing import random_tensors

__all__ = ["PARTS", "ChunkExplorer", "best_chunk_len", "chunked_macs"]

PARTS = ["within chunks", "write", "pass on", "read", "off the diagonal"]
LIMITS = {"length": 2**17, "chunk_len": 2**17, "state": 512, "head_dim": 512}
SHOWN, SHOWN_STATE, SEEDS = 24, 4, 4  # steps and features that are drawn


def chunked_macs(length: int, chunk_len: int, state: int, head_dim: int) -> list[float]:
    """Multiply-adds of the four steps of the chunked algorithm, as `linear_attention_chunked` counts them.

    Their sum is T·c·(N + P) + 2·T·N·P + (T/c)·N·P, with c the length of a chunk, not above T.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 6.

    Example:
        >>> chunked_macs(256, 64, 16, 16)
        [524288.0, 65536.0, 1024.0, 65536.0]
    """
    T, Q, N, P = length, min(chunk_len, length), state, head_dim
    return [float(T * Q * (N + P)), float(T * N * P), T / Q * N * P, float(T * N * P)]


def best_chunk_len(length: int, state: int, head_dim: int) -> int:
    """Find the chunk length with the fewest multiply-adds: a neighbour of sqrt(N·P / (N + P)) for any T that allows it.

    A machine is often faster with longer chunks, because their matrix products are larger.

    Example:
        >>> best_chunk_len(4096, 64, 64)
        6
    """
    root = math.isqrt(state * head_dim // (state + head_dim))
    candidates = {min(max(1, Q), length) for Q in (root, root + 1)}
    return min(sorted(candidates), key=lambda Q: sum(chunked_macs(length, Q, state, head_dim)))


class ChunkExplorer(Explorer):
    """The matrix of a scalar state space model cut into chunks, the four steps that multiply by it, and their cost.

    A block on the diagonal is what happens within a chunk, computed as attention, quadratic in its length. Every other
    block is a product of three thin factors: what the inputs of a chunk leave in its state (right factor), how that
    state decays until another chunk begins (centre), and what the outputs there read from it (left factor). A part is
    chosen by a click or by arrow keys; pointing at it is enough to look.

    What is drawn are the first 24 steps and 4 features, of numbers drawn at random with B and C standard normal and
    a_t = decay^u_t, u_t from 0.5 to 1.5. The costs are those of all T steps and N features.

    Args:
        chunk_len: c, from 1 to 2^17; one of at least T is a single chunk.
        length: T, from 1 to 2^17.
        state: N, from 1 to 512.
        head_dim: P, from 1 to 512.
        decay: from 0 to 1.
        seed: of B, C and u, from 0 to 3.
        part: one of `PARTS`.

    Raises:
        ValueError: an argument is not one of the above.

    Source: Dao and Gu 2024, "Transformers are SSMs", section 6 and Figure 5.

    Example:
        >>> explorer = ChunkExplorer(chunk_len=64, length=4096)
        >>> round(sum(explorer.costs) / sum(chunked_macs(4096, explorer.best, 64, 64)), 1)
        1.7
    """

    _esm = module("chunk_explorer.js", LIMITS=LIMITS, SHOWN=SHOWN, SHOWN_STATE=SHOWN_STATE)
    _draws = traitlets.List().tag(sync=True)
    _parts = traitlets.List(PARTS).tag(sync=True)
    chunk_len = Size(6, LIMITS["chunk_len"]).tag(sync=True)
    length = Size(4096, LIMITS["length"]).tag(sync=True)
    state = Size(64, LIMITS["state"]).tag(sync=True)
    head_dim = Size(64, LIMITS["head_dim"]).tag(sync=True)
    decay = traitlets.TraitType(0.9).tag(sync=True)
    seed = Choice(list(range(SEEDS))).tag(sync=True)
    part = Choice(PARTS).tag(sync=True)

    @traitlets.default("_draws")
    def _numbers(self) -> list[dict[str, list]]:
        return [_draw(seed) for seed in range(SEEDS)]

    @traitlets.validate("decay")
    def _valid_decay(self, proposal: dict) -> float:
        decay = proposal["value"]
        if isinstance(decay, int | float) and not isinstance(decay, bool) and 0 <= decay <= 1:
            return decay
        raise ValueError(f"ChunkExplorer: decay, expected a number from 0 to 1, got {decay!r}")

    @property
    def costs(self) -> list[float]:
        """Multiply-adds of the four steps, in the order of `PARTS`."""
        return chunked_macs(self.length, self.chunk_len, self.state, self.head_dim)

    @property
    def best(self) -> int:
        """The chunk length with the fewest multiply-adds."""
        return best_chunk_len(self.length, self.state, self.head_dim)

    @property
    def matrix(self) -> torch.Tensor:
        """M (T, T), float64, of the steps that are drawn, at most 24."""
        log_a, B, C = self._generators()
        return SemiseparableMask(log_a).dense(torch.float64) * (C @ B.mT)

    @property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The factors of the blocks below the diagonal, float64: block (i, j) is left_i · centre[i, j] · right_j^T.

        Of T steps that are drawn, in chunks of which the last may be shorter: left (T, N), C_t decayed since the
        beginning of its chunk; centre (chunks, chunks), the decay across the chunks between, 0 for i ≤ j; right (T, N),
        B_s decayed until the end of its chunk.
        """
        log_a, B, C = self._generators()
        chunks = split_chunks(log_a[:, None], self.chunk_len)
        read, write = (join_chunks(decay(chunks).exp(), len(B)) for decay in (since_start, until_end))
        between = SemiseparableMask(chunks.sum((-2, -1))).dense(torch.float64)
        return C * read, torch.cat([torch.zeros_like(between[:1]), between[:-1]]).tril(-1), B * write

    def _generators(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """log_a (T,), B and C (T, N), float64, of the steps and features that are drawn."""
        steps, features = min(self.length, SHOWN), min(self.state, SHOWN_STATE)
        draw = self._draws[self.seed]
        u, B, C = (torch.tensor(draw[name], dtype=torch.float64)[:steps] for name in ("u", "B", "C"))
        return u * torch.tensor(self.decay, dtype=torch.float64).log(), B[:, :features], C[:, :features]

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        names = ["chunk_len", "length", "state", "head_dim", "decay", "seed", "part"]
        return f"ChunkExplorer({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _draw(seed: int) -> dict[str, list]:
    """The numbers of a seed: B and C (24, 4), u (24,)."""
    B, C = random_tensors([(SHOWN, SHOWN_STATE)] * 2, seed)
    u = 0.5 + torch.rand(SHOWN, generator=torch.Generator().manual_seed(seed)).double()
    return {"B": B.tolist(), "C": C.tolist(), "u": u.tolist()}
