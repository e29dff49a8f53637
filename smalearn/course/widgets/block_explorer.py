"""A block of the matrix of a state space model as threads through a waist of N numbers: its rank, and the bound N."""

from __future__ import annotations

import base64

import torch
import traitlets

from smalearn.course.widgets.base import Choice, Explorer, Size, module
from smalearn.data import zen_of_python
from smalearn.kernel_attention import softmax_weights
from smalearn.ssm import Semiseparable
from smalearn.testing import TOLERANCE, random_tensors

__all__ = ["BlockExplorer"]

KINDS = ["scalar", "diagonal", "general", "delta", "softmax"]
MAX_LENGTH, MAX_STATE, SEEDS = 32, 6, 4
WORDS = " ".join(zen_of_python().lower().splitlines()[2:]).replace(".", "").split()[:MAX_LENGTH]
CUT = TOLERANCE[torch.float64]


class BlockExplorer(Explorer):
    """The matrix M[t, s] = C_t^T A_t ... A_(s+1) B_s of a state space model, and a block of it as an hourglass.

    The words of a text name the steps; A, B and C are drawn at random. Each entry of the block is a thread from a word
    s to a word t. No block on or below the diagonal has a rank above N, however large it is: all its threads pass
    through the N numbers of the state. Above the diagonal M is 0 by convention; every step by which a block reaches
    there leads a word around this waist, and may add one to the rank. Causal softmax attention with N features, for
    comparison, has no waist, and blocks of full rank. The cut is dragged, or moved by arrow keys, and so is the block
    in M, which is resized by its corners, or by Shift and arrow keys. The threads of a word light up where one points
    at it.

    Args:
        kind: of A, "scalar", "diagonal", "general" or "delta" (the delta rule's I - β k k^T); or "softmax" for softmax
            attention of queries C and keys B.
        state: size N, from 1 to 6.
        length: T, from 1 to 32.
        seed: of A, B and C, from 0 to 3.
        block: (top, bottom, left, right), for M[top:bottom, left:right]; the lower left quarter if None. It is
            moved, and shrunk where it must be, if T becomes too small for it.

    Raises:
        ValueError: the block is not within M or is empty, or another argument is not one of the above.

    Cost: the numbers of all seeds go to the browser once, 38 kB. At every move there one singular value decomposition.

    Source: Dao and Gu 2024, "Transformers are SSMs", Definition 3.1 and section 3.2.

    Example:
        >>> explorer = BlockExplorer(state=3, block=(10, 24, 0, 11))
        >>> explorer.rank, explorer.bound
        (3, 3)
        >>> explorer.block = (10, 24, 0, 24)
        >>> explorer.rank, explorer.bound
        (14, 14)
    """

    _esm = module(
        "singular_values.js",
        "numbers.js",
        "hourglass.js",
        "block_explorer.js",
        KINDS=KINDS,
        MAX_LENGTH=MAX_LENGTH,
        MAX_STATE=MAX_STATE,
        SEEDS=SEEDS,
        WORDS=WORDS,
    )
    _draws = traitlets.List().tag(sync=True)
    _cut = traitlets.Float(CUT).tag(sync=True)
    kind = Choice(KINDS).tag(sync=True)
    state = Size(3, MAX_STATE).tag(sync=True)
    length = Size(24, MAX_LENGTH).tag(sync=True)
    seed = Choice(list(range(SEEDS))).tag(sync=True)
    block = traitlets.TraitType().tag(sync=True)

    def __init__(
        self,
        kind: str = "diagonal",
        state: int = 3,
        length: int = 24,
        seed: int = 0,
        block: tuple[int, int, int, int] | None = None,
    ) -> None:
        sizes = {"kind": kind, "state": state, "length": length, "seed": seed}
        super().__init__(_draws=[_packed(seed) for seed in range(SEEDS)], **sizes)
        self.block = _own_block(length) if block is None else block

    @traitlets.default("block")
    def _some_block(self) -> list[int]:
        return _own_block(self.length)

    @traitlets.validate("block")
    def _valid_block(self, proposal: dict) -> list[int]:
        block = proposal["value"]
        edges = list(block) if isinstance(block, list | tuple) else []
        if len(edges) == 4 and all(type(edge) is int for edge in edges):
            (top, bottom), (left, right) = edges[:2], edges[2:]
            if 0 <= top < bottom <= self.length and 0 <= left < right <= self.length:
                return edges
        expected = f"(top, bottom, left, right), each pair rising from 0 to {self.length}"
        raise ValueError(f"BlockExplorer: block, expected {expected}, got {block!r}")

    @traitlets.observe("length")
    def _fit_block(self, change: dict) -> None:
        if max(self.block) > self.length:
            self.block = [edge for pair in (self.block[:2], self.block[2:]) for edge in _fitted(pair, self.length)]

    @property
    def matrix(self) -> torch.Tensor:
        """M (T, T), float64."""
        A, B, C = _generators(self.kind, self.state, self.length, self.seed)
        if self.kind == "softmax":
            return softmax_weights(C, B, torch.ones(len(C), len(C), dtype=C.dtype).tril())
        return Semiseparable(A, B, C).dense()

    @property
    def singular_values(self) -> torch.Tensor:
        """Singular values of the block, the largest first, (min(rows, columns),) float64."""
        top, bottom, left, right = self.block
        return torch.linalg.svdvals(self.matrix[top:bottom, left:right])

    @property
    def cut(self) -> float:
        """The size at and below which singular values count as 0: 1e-12 ‖M‖ (Frobenius), as in `block_ranks`."""
        return CUT * torch.linalg.matrix_norm(self.matrix).item()

    @property
    def rank(self) -> int:
        """Number of singular values of the block above `cut`."""
        return int((self.singular_values > self.cut).sum())

    @property
    def bound(self) -> int:
        """The rank that the block can have.

        It is at most the number of rows, and of columns, that are not 0 by convention; if a state makes the block, also
        at most N and the number of steps by which the block reaches above the diagonal.
        """
        top, bottom, left, right = self.block
        top, right = max(top, left), min(right, bottom)
        sizes = [bottom - top, right - left]
        if self.kind != "softmax":
            sizes.append(self.state + max(0, right - top - 1))
        return max(0, min(sizes))

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        names = ["kind", "state", "length", "seed", "block"]
        return f"BlockExplorer({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _own_block(length: int) -> list[int]:
    """All that the second half of the text can know of the first."""
    return [length // 2, length, 0, max(1, length // 2)]


def _fitted(pair: list[int], length: int) -> list[int]:
    """Move an interval, and shrink it where it must be, until it ends at the length at the latest."""
    size = min(pair[1] - pair[0], length)
    start = min(pair[0], length - size)
    return [start, start + size]


def _draw(seed: int) -> torch.Tensor:
    """All numbers of a seed, (T, 6 + 6 + 1 + 6 + 36): B, C, a scalar, a diagonal and a full A; float32 as float64.

    Decays are from 0.8 to 1. A full A is 0.95 times a small rotation, so that no corner of it shrinks much more.
    """
    N = MAX_STATE
    B, C, G = random_tensors([(MAX_LENGTH, N), (MAX_LENGTH, N), (MAX_LENGTH, N, N)], seed)
    decays = 0.8 + 0.2 * torch.rand(MAX_LENGTH, N + 1, generator=torch.Generator().manual_seed(seed)).double()
    rotation = 0.95 * torch.linalg.matrix_exp(0.15 * (G - G.mT))
    return torch.cat([B, C, decays, rotation.flatten(1)], 1).float().double()


def _packed(seed: int) -> str:
    """The numbers as the browser gets them: float32, row by row, in base64."""
    return base64.b64encode(_draw(seed).numpy().astype("<f4").tobytes()).decode("ascii")


def _generators(kind: str, state: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and C, float64: the first N states and T steps of a draw."""
    N = MAX_STATE
    B, C, a, diagonal, full = _draw(seed)[:length].split([N, N, 1, N, N * N], 1)
    B, C = B[:, :state], C[:, :state]
    if kind == "delta":
        k = B / B.norm(dim=1, keepdim=True)
        beta = a / 2  # from 0.4 to 0.5: far corners stay above rounding
        return torch.eye(state, dtype=B.dtype) - beta[..., None] * k[:, :, None] * k[:, None, :], beta * k, C
    A = {"diagonal": diagonal[:, :state], "general": full.unflatten(1, (N, N))[:, :state, :state]}
    return A.get(kind, a[:, 0]), B, C
