"""Parts shared by structured matrices over time (masks, semiseparable matrices) and over features (weights).

What is written as for a tensor (`M @ x`, `M.mT`, `2 * M`), the check of an operand, the dtypes of all arithmetic, and
the tables that show a matrix, or the costs of a contraction, in a notebook.
"""

import html
from collections.abc import Iterable, Mapping

import torch

from smalearn._checks import ShapeError, check_tensor


class Structured:
    """A matrix held by fewer numbers than it has entries, which is multiplied like a tensor.

    A subclass has `shape` (..., T, S), `dense()`, and the products `matmul(x)` and `transpose_matmul(y)`.
    """

    shape: tuple[int, ...]

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        """M x: `matmul` for x (..., S, columns), (..., T) for a vector x (S,)."""
        if not isinstance(x, torch.Tensor):
            return NotImplemented
        return self.matmul(x[:, None])[..., 0] if x.ndim == 1 else self.matmul(x)

    @property
    def mT(self) -> "Structured":
        """M^T (..., S, T), a view that multiplies as fast as M."""
        return self._view(1, True)

    def __mul__(self, factor: float | torch.Tensor) -> "Structured":
        """c·M for a real number c or a tensor () that holds one, a view that multiplies as fast as M."""
        if isinstance(factor, torch.Tensor) and (factor.ndim or factor.is_complex()):
            return NotImplemented
        if not isinstance(factor, torch.Tensor | float | int):
            return NotImplemented
        return self._view(factor, False)

    def __rmul__(self, factor: float | torch.Tensor) -> "Structured":
        """The same as M·c."""
        return Structured.__mul__(self, factor)

    def _view(self, factor: float | torch.Tensor, transposed: bool) -> "Structured":
        return View(self, factor, transposed)


class View(Structured):
    """c·M or c·M^T of a structured matrix M, by its own products; made by `c * M` and `M.mT`."""

    def __init__(self, matrix: Structured, factor: float | torch.Tensor = 1, transposed: bool = False):
        self.matrix, self.factor, self.transposed = matrix, factor, transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., T, S), the last two exchanged if transposed."""
        *leading, target, source = self.matrix.shape
        return (*leading, source, target) if self.transposed else (*leading, target, source)

    def dense(self, *args, **settings) -> torch.Tensor:
        """The matrix itself; arguments and errors are those of `dense` of M."""
        M = self.matrix.dense(*args, **settings)
        return self._scaled(M.mT if self.transposed else M)

    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """The product with x (..., S, columns); result, errors and cost are those of the product of M or of M^T."""
        return self._scaled(self.matrix.transpose_matmul(x) if self.transposed else self.matrix.matmul(x))

    def transpose_matmul(self, y: torch.Tensor) -> torch.Tensor:
        """The product of the transpose with y (..., T, columns); see `matmul`."""
        return self._scaled(self.matrix.matmul(y) if self.transposed else self.matrix.transpose_matmul(y))

    def _scaled(self, x):
        return x if self._unscaled() else self.factor * x

    def _unscaled(self):
        """Whether the factor is just the 1 of M^T."""
        return isinstance(self.factor, int) and self.factor == 1

    def _view(self, factor, transposed):
        return type(self)(self.matrix, self.factor * factor, self.transposed != transposed)

    def __repr__(self) -> str:
        scale = "" if self._unscaled() else f"{self.factor} * "
        return f"{scale}{self.matrix!r}{'.mT' if self.transposed else ''}"


def check_operand(where: str, what: str, shape: tuple[int, ...], x: torch.Tensor, axis: str, size: int) -> None:
    """Check the operand x (..., size, columns) of a product with a matrix of this shape, which is called `what`.

    `axis` is the letter of the operand's axis -2.
    """
    check_tensor(where, "the operand", x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: operand needs axes (..., {axis}, columns), got shape {tuple(x.shape)}")
    if x.shape[-2] != size:
        raise ShapeError(f"{where}: axis {axis} is {size} in {what} but {x.shape[-2]} in the operand")
    leading, batch = tuple(shape[:-2]), tuple(x.shape[:-2])
    if any(a != b and 1 not in (a, b) for a, b in zip(reversed(leading), reversed(batch), strict=False)):
        raise ShapeError(f"{where}: leading axes {leading} of {what} do not broadcast with {batch} of the operand")


def widen(like: torch.Tensor, *tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """The tensors (not `like` itself) in the dtype of all arithmetic: that of `like`, float32 for half precision."""
    wide = torch.promote_types(like.dtype, torch.float32) if like.is_floating_point() else like.dtype
    return [None if x is None else x.to(wide) for x in tensors]


def match_operand(x: torch.Tensor, *parameters: torch.Tensor) -> list[torch.Tensor]:
    """Parameters of a mask for its product with x: on its device, in the first one's dtype or in that of x if wider."""
    dtype = torch.promote_types(parameters[0].dtype, (x.real if x.is_complex() else x).dtype)
    return [parameter.to(x.device, dtype) for parameter in parameters]


def html_table(rows: Mapping[str, str]) -> str:
    """A table of two columns, a name and its value, that takes its colours from the page."""
    body = (f"<tr>{html_cell('th', name)}{html_cell('td', value)}</tr>" for name, value in rows.items())
    return "\n".join(["<table>", "<tbody>", *body, "</tbody>", "</table>"])


class Table:
    """What prints as a table of costs: text, and HTML that takes its colours from the page."""

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        """The header, then one row each: two cells of words, three of numbers."""
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = self._rows()
        name, steps, *numbers = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(
            "  ".join([row[0].ljust(name), row[1].ljust(steps), *map(str.rjust, row[2:], numbers)]) for row in rows
        )

    def _repr_html_(self) -> str:
        header, *body = self._rows()
        lines = ['<div style="overflow-x: auto">', "<table>", "<thead>", _html_row(header, "th"), "</thead>", "<tbody>"]
        return "\n".join([*lines, *(_html_row(row, "td") for row in body), "</tbody>", "</table>", "</div>"])


def _html_row(row: Iterable[str], tag: str) -> str:
    """One row of a table, words to the left and numbers to the right."""
    sides = ("left", "left", "right", "right", "right")
    cells = (html_cell(tag, cell, side, "; white-space: nowrap") for cell, side in zip(row, sides, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def html_cell(tag: str, text: str, side: str = "left", style: str = "") -> str:
    """A cell, th or td, whose text goes to this side."""
    return f'<{tag} style="text-align: {side}{style}">{html.escape(text)}</{tag}>'
