"""Where the texts of a sequence begin, and so which tokens before it a token knows.

A `reset` (..., T) is True at the first token of a text: everything before it is forgotten there. It packs several texts
into one row, and pads a row on its left: the padding is then a text of its own, whose outputs nobody asks for.
"""

from collections.abc import Sequence

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_tensor


def check_reset(function: str, reset: torch.Tensor | None, leading: Sequence[int], like: torch.Tensor, axis: int = -2):
    """Check that a reset, unless it is None, is boolean and (..., T), with these leading axes or fewer.

    T is the size of the axis `axis` of the tokens `like`, on whose device it has to be.
    """
    if reset is None:
        return
    check_tensor(function, "reset", reset)
    if reset.dtype != torch.bool:
        raise ValueError(f"{function}: reset must be torch.bool, True where a text begins, got {reset.dtype}")
    if reset.device != like.device:
        raise ValueError(f"{function}: reset is on {reset.device}, expected {like.device}")
    got, expected = tuple(reset.shape), (*leading, like.shape[axis])
    if got[-1:] != expected[-1:] or not _fits(got, expected):
        raise ShapeError(f"{function}: reset has shape {got}, expected {expected}")


def _fits(shape, whole):
    """Whether a shape broadcasts to a whole one."""
    try:
        return broadcast_shapes(shape, whole) == whole
    except ValueError:
        return False


def text_starts(reset: torch.Tensor, past: int = 0, since: torch.Tensor | None = None) -> torch.Tensor:
    """Number of the token at which the text of each token begins, of the token before them first: (..., 1 + T) int64.

    `reset` (..., T) is True where a text begins; `past` tokens come before, and the text of the last of these begins at
    number `since` (...), 0 if None.

    >>> text_starts(torch.tensor([False, False, True, False, True]))
    tensor([0, 0, 0, 2, 2, 4])
    """
    numbers = torch.arange(past, past + reset.shape[-1], device=reset.device)
    before = numbers.new_zeros(()) if since is None else since
    here = torch.where(reset, numbers, before[..., None])
    return torch.cat([before[..., None].expand(*here.shape[:-1], 1), here], -1).cummax(-1).values


def more_starts(
    reset: torch.Tensor | None, sizes: Sequence[int], past: int, since: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Where the texts of tokens of these sizes (..., T) begin, and that of the last (...); None if all is one text.

    All other arguments are those of `text_starts`.
    """
    if reset is None:
        return since if since is None else since[..., None].expand(*sizes), since
    starts = text_starts(reset, past, since).expand(*sizes[:-1], -1)
    return starts[..., 1:], starts[..., -1].clone()  # a view would keep those of all tokens
