"""Sparse masks of zeros and ones: banded, dilated, block-diagonal (Mamba-2 paper, section 4.1.4).

None of them is causal by itself: causality is composed with `CausalMask`, never implied.
"""

from abc import abstractmethod

import torch

from smalearn._checks import check_count, check_shapes, check_type
from smalearn.masks.base import RULES, Mask
from smalearn.masks.causal import CausalMask


class SparseMask(Mask):
    """A mask of zeros and ones with few ones in a row; a subclass says where they are.

    The product adds, for every row, the source rows under its ones: nnz(L) additions a column.
    """

    @abstractmethod
    def nonzeros(self, device: torch.device | str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the ones.

        Args:
            device: of the result.

        Returns:
            (rows, columns), two int64 tensors of length nnz(L), sorted by row, then by column.
            Cost: O(T + S + nnz(L)).
        """

    def dense(self, dtype=None, device=None):
        """The matrix of zeros and ones, (T, S)."""
        L = torch.zeros(self.shape, dtype=self._dense_dtype(dtype), device=device)
        L[self.nonzeros(device)] = 1
        return L

    def _product(self, x):
        rows, columns = self._nonzeros_for(x)
        return _gather_add(x, columns, rows, self.shape[0])

    def _transpose_product(self, y):
        rows, columns = self._nonzeros_for(y)
        return _gather_add(y, rows, columns, self.shape[1])

    def _nonzeros_for(self, x):
        """The ones on the device of x: their number, which shapes need, is not known on meta."""
        return (index.to(x.device) for index in self.nonzeros("cpu" if x.is_meta else x.device))

    def cost(self, columns: int = 1) -> int:
        """One addition for each one of the mask and each column: nnz(L)·columns."""
        return len(self.nonzeros()[0]) * columns


class DilatedMask(SparseMask):
    """L[t, s] = 1 if |t - s| ≤ window·dilation and dilation divides t - s.

    Args:
        target: length T ≥ 0.
        source: length S ≥ 0.
        window: number of neighbours on either side, ≥ 0; a row has at most 2·window + 1 ones.
        dilation: distance between neighbours, ≥ 1; 1 gives the banded mask.

    Raises:
        ValueError: an argument is not an integer of that range.
    """

    shown = ("window", "dilation")

    def __init__(self, target: int, source: int, window: int, dilation: int):
        name = type(self).__name__
        self.shape = (check_count(name, "target", target, 0), check_count(name, "source", source, 0))
        self.window, self.dilation = check_count(name, "window", window, 0), check_count(name, "dilation", dilation)

    def nonzeros(self, device=None):
        """The (row, column) pairs on the 2·window + 1 diagonals."""
        target, source = self.shape
        offsets = torch.arange(-self.window, self.window + 1, device=device) * self.dilation
        columns = torch.arange(target, device=device)[:, None] + offsets
        inside = (columns >= 0) & (columns < source)
        return inside.nonzero()[:, 0], columns[inside]


class BandedMask(DilatedMask):
    """L[t, s] = 1 if |t - s| ≤ window: the sliding window.

    Arguments and errors are those of `DilatedMask` without dilation, which is 1.
    """

    shown = ("window",)

    def __init__(self, target: int, source: int, window: int):
        super().__init__(target, source, window, dilation=1)


class BlockDiagonalMask(SparseMask):
    """L[t, s] = 1 if t and s lie in the same of `blocks` equal blocks: (t·blocks) // T == (s·blocks) // S.

    Args:
        target: length T, a multiple of blocks.
        source: length S, a multiple of blocks.
        blocks: number of blocks on the diagonal, ≥ 1, each (T / blocks, S / blocks).

    Raises:
        ValueError: an argument is not an integer of that range, or blocks does not divide a length.
    """

    shown = ("blocks",)

    def __init__(self, target: int, source: int, blocks: int):
        name = "BlockDiagonalMask"
        self.shape = (check_count(name, "target", target, 0), check_count(name, "source", source, 0))
        self.blocks = check_count(name, "blocks", blocks)
        for argument, length in (("target", target), ("source", source)):
            if length % blocks:
                raise ValueError(f"{name}: {argument} must be a multiple of blocks = {blocks}, got {length}")

    def nonzeros(self, device=None):
        """The (row, column) pairs of every block."""
        target, source = (length // self.blocks for length in self.shape)
        block, row, column = torch.meshgrid(
            *(torch.arange(size, device=device) for size in (self.blocks, target, source)), indexing="ij"
        )
        return (block * target + row).ravel(), (block * source + column).ravel()


class IntersectionMask(SparseMask):
    """The ones of a sparse mask that another mask of zeros and ones has too, such as a causal sliding window.

    Made by `BandedMask(T, T, window) * CausalMask(T)`.

    Args:
        sparse: (T, S) mask whose ones are listed.
        other: (T, S) sparse mask, or the causal mask.

    Raises:
        ShapeError: the shapes differ.
        TypeError: an argument is not such a mask.
    """

    def __init__(self, sparse: SparseMask, other: Mask):
        check_type("IntersectionMask", "sparse", sparse, SparseMask)
        check_type("IntersectionMask", "other", other, SparseMask, CausalMask)
        check_shapes("IntersectionMask", {"sparse": (sparse, "ts"), "other": (other, "ts")})
        self.sparse, self.other, self.shape = sparse, other, sparse.shape

    def nonzeros(self, device=None):
        """The (row, column) pairs of both."""
        rows, columns = self.sparse.nonzeros(device)
        if isinstance(self.other, SparseMask):
            other_rows, other_columns = self.other.nonzeros(device)
            kept = torch.isin(rows * self.shape[1] + columns, other_rows * self.shape[1] + other_columns)
        else:
            kept = columns <= rows
        return rows[kept], columns[kept]

    def __repr__(self) -> str:
        return f"{self.sparse!r} * {self.other!r}"


def _gather_add(x: torch.Tensor, take: torch.Tensor, put: torch.Tensor, length: int) -> torch.Tensor:
    """Y of the given length with y[put] += x[take] along axis -2."""
    y = x.new_zeros(*x.shape[:-2], length, x.shape[-1])
    return y.index_add(-2, put, x.index_select(-2, take))


RULES += [(SparseMask, SparseMask, IntersectionMask), (SparseMask, CausalMask, IntersectionMask)]
