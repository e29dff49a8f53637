"""Parts shared by structured matrices over time (masks, semiseparable matrices) and over features (weights).

The check of an operand, the dtype of all arithmetic, and the table that shows a matrix in a notebook.
"""

import html
from collections.abc import Mapping

import torch

from smalearn._checks import ShapeError

__all__ = ["check_operand", "html_cell", "html_table", "widen"]


def check_operand(where: str, what: str, shape: tuple[int, ...], x: torch.Tensor, axis: str, size: int) -> None:
    """Check the operand x (..., axis, columns) of a product with a matrix of this shape.

    Args:
        where: class and method, which open every message.
        what: the word for the matrix.
        shape: (..., T, S) of the matrix.
        x: the operand.
        axis: letter of the operand's axis -2.
        size: what that axis must have.

    Raises:
        ShapeError: x has fewer than two axes, its axis -2 has another size, or leading axes do not broadcast.
    """
    if x.ndim < 2:
        raise ShapeError(f"{where}: operand needs axes (..., {axis}, columns), got shape {tuple(x.shape)}")
    if x.shape[-2] != size:
        raise ShapeError(f"{where}: axis {axis} is {size} in {what} but {x.shape[-2]} in the operand")
    leading, batch = tuple(shape[:-2]), tuple(x.shape[:-2])
    if any(a != b and 1 not in (a, b) for a, b in zip(reversed(leading), reversed(batch), strict=False)):
        raise ShapeError(f"{where}: leading axes {leading} of {what} do not broadcast with {batch} of the operand")


def widen(like: torch.Tensor, *tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """The tensors in the dtype of all arithmetic: that of `like`, float32 for half precision."""
    wide = torch.promote_types(like.dtype, torch.float32) if like.is_floating_point() else like.dtype
    return [None if x is None else x.to(wide) for x in tensors]


def html_table(rows: Mapping[str, str]) -> str:
    """A table of two columns, a name and its value, that takes its colours from the page."""
    body = (f"<tr>{html_cell('th', name)}{html_cell('td', value)}</tr>" for name, value in rows.items())
    return "\n".join(["<table>", "<tbody>", *body, "</tbody>", "</table>"])


def html_cell(tag: str, text: str, side: str = "left", style: str = "") -> str:
    """A cell, th or td, whose text goes to this side."""
    return f'<{tag} style="text-align: {side}{style}">{html.escape(text)}</{tag}>'
