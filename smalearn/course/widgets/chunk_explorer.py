"""The blocks of M = L ∘ C B^T under the chunked algorithm: which of its four steps computes what, and at which cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import traitlets

from smalearn.course.widgets.base import INK, PALETTE, Choice, Explorer, Size, module
from smalearn.masks import SemiseparableMask
from smalearn.masks.decay import join_chunks, since_start, split_chunks, until_end
from smalearn.testing import random_tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PARTS", "ChunkExplorer", "best_chunk_len", "chunked_macs"]

PARTS = ["inside a chunk", "inputs to states", "states across chunks", "states to outputs", "off the diagonal"]
LIMITS = {"length": 2**17, "chunk_len": 2**17, "state": 512, "head_dim": 512}
SHOWN, SHOWN_STATE, SEEDS = 24, 4, 4  # steps and features that are drawn
FILLS = [PALETTE[name] for name in ("first-strong", "other-0", "other-3", "second-strong", "dim")]  # of the parts


def chunked_macs(length: int, chunk_len: int, state: int, head_dim: int) -> list[float]:
    """Multiply-adds of the four steps of the chunked algorithm, as `linear_attention_chunked` counts them.

    Their sum is T·c·(N + P) + 2·T·N·P + (T/c)·N·P, with c the length of a chunk, not above T.

    Args:
        length: T.
        chunk_len: c; a longer one counts as T.
        state: N.
        head_dim: P.

    Returns:
        Of the outputs inside chunks, from inputs to states, of the states across chunks, from states to outputs.

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

    Args:
        length: T.
        state: N.
        head_dim: P.

    Returns:
        c, from 1 to T; the smaller of two that cost the same.

    Example:
        >>> best_chunk_len(4096, 64, 64)
        6
    """
    root = math.isqrt(state * head_dim // (state + head_dim))
    candidates = {min(max(1, Q), length) for Q in (root, root + 1)}
    return min(sorted(candidates), key=lambda Q: sum(chunked_macs(length, Q, state, head_dim)))


class ChunkExplorer(Explorer):
    """The matrix of a scalar state space model cut into chunks, the four steps that multiply by it, and their cost.

    A block on the diagonal is what happens inside a chunk, computed as attention, quadratic in its length. Every other
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

    def draw(self, figure: Figure) -> None:
        """Draw M and the factors of its blocks, and the cost over the length of a chunk.

        Args:
            figure: an empty figure.
        """
        figure.set_size_inches(8.4, 4.6)
        wide, narrow = self.matrix.shape[0], self.factors[0].shape[1]
        grid = figure.add_gridspec(2, 3, width_ratios=[narrow, wide, 0.8 * wide], height_ratios=[narrow, wide])
        left, centre, right = self.factors
        chunk = torch.arange(wide) // self.chunk_len
        inside = chunk[:, None] == chunk
        corner, above, aside, main = (figure.add_subplot(grid[i, j]) for i in (0, 1) for j in (0, 1))
        _shade(corner, [(centre, 2)], "3")
        _shade(above, [(right.mT, 1)], f"2 {PARTS[1]}")
        _shade(aside, [(left, 3)], "")
        _shade(main, [(self.matrix * inside, 0), (self.matrix * ~inside, 4)], "")
        for edge in range(self.chunk_len, wide, self.chunk_len):
            main.axhline(edge - 0.5, color=INK, linewidth=0.8)
            main.axvline(edge - 0.5, color=INK, linewidth=0.8)
        size = f"{wide} steps, {narrow} features, c = {self.chunk_len:,}"
        main.set_xlabel(f"blue: 1 inside a chunk; grey: product of 4, 3 and 2\n{size}")
        aside.set_ylabel(f"4 {PARTS[3]}")
        self._draw_costs(figure.add_subplot(grid[:, 2]))

    def _draw_costs(self, axes: Axes) -> None:
        """Draw the costs of the steps over the length of a chunk, the fewest, and those of the state."""
        lengths = np.unique(np.geomspace(1, self.length, 200).round().astype(int))
        costs = np.array([chunked_macs(self.length, int(Q), self.state, self.head_dim) for Q in lengths])
        axes.plot(lengths, costs.sum(1), color=INK, linewidth=2.5, label="all four")
        for number, dash in enumerate(["-", "--", ":"]):
            name = "2 and 4 inputs to states to outputs" if number == 1 else f"{number + 1} {PARTS[number]}"
            axes.plot(lengths, costs[:, number] * (1 + (number == 1)), dash, label=name)
        axes.plot(min(self.chunk_len, self.length), sum(self.costs), "o", color=INK, mfc="white", markersize=12)
        axes.plot(self.best, sum(chunked_macs(self.length, self.best, self.state, self.head_dim)), "o", color=INK)
        axes.set(xlabel="c, length of a chunk", ylabel="multiply-adds", yscale="log")
        axes.set_xscale("log", base=2)
        title = f"T = {self.length:,}, N = {self.state}, P = {self.head_dim}: fewest at c = {self.best}"
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=8)

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        names = ["chunk_len", "length", "state", "head_dim", "decay", "seed", "part"]
        return f"ChunkExplorer({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _draw(seed: int) -> dict[str, list]:
    """The numbers of a seed: B and C (24, 4), u (24,)."""
    B, C = random_tensors([(SHOWN, SHOWN_STATE)] * 2, seed)
    u = 0.5 + torch.rand(SHOWN, generator=torch.Generator().manual_seed(seed)).double()
    return {"B": B.tolist(), "C": C.tolist(), "u": u.tolist()}


def _shade(axes: Axes, layers: list[tuple[torch.Tensor, int]], title: str) -> None:
    """Draw matrices in the colours of their parts, the fuller the larger an entry; 0 is white."""
    from matplotlib.colors import to_rgb

    picture = 1.0
    for M, part in layers:
        full = (M.abs() / M.abs().max().clamp(min=1e-300)).sqrt().numpy()[..., None]
        picture = picture - full * (1 - np.array(to_rgb(FILLS[part])))
    axes.imshow(picture, aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[], title=title)
