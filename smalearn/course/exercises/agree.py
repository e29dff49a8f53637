"""Whether numbers, tensors and tuples of them agree, and whether their agreement says anything."""

import contextlib
import numbers
from contextvars import ContextVar

import torch

from smalearn.testing import relative_rms

__all__ = ["CLOSE", "equal", "has_content", "informative", "numeric", "same", "up_to"]

CLOSE = 1e-7
_near = ContextVar("near", default=CLOSE)  # relative error up to which answers are the same


@contextlib.contextmanager
def up_to(near):
    """Let answers agree up to a relative error, at least that of short computations."""
    token = _near.set(max(near, CLOSE))
    try:
        yield
    finally:
        _near.reset(token)


def numeric(pair):
    """Answer and target as tensors of float64, or complex128; None if they are no numbers or no tensors."""
    made = []
    for value in pair:
        if isinstance(value, bool) or not isinstance(value, torch.Tensor | numbers.Number):
            return None
        real = not value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, numbers.Real)
        made.append(torch.as_tensor(value, dtype=torch.float64 if real else torch.complex128))
    return tuple(made)


def same(answer, target, near=None):
    """Whether two tensors agree, infinities and NaNs included."""
    near = _near.get() if near is None else near
    if answer.shape != target.shape or answer.dtype != target.dtype:
        return False
    finite = torch.isfinite(target)
    if not torch.equal(torch.isfinite(answer), finite) or not torch.equal(
        answer[~finite].nan_to_num(nan=0.5), target[~finite].nan_to_num(nan=0.5)
    ):
        return False
    answer, target = answer[finite], target[finite]
    if not target.any():
        return not answer.numel() or bool(answer.abs().max() <= near)
    return relative_rms(answer, target) <= near


def has_content(target):
    """Whether a tensor has four different numbers, so that agreement is no accident."""
    return target.numel() >= 4 and len(target.unique()) >= 4


def equal(answer, other, near=None):
    """Whether two answers of any kind are the same."""
    if isinstance(other, tuple | list):
        alike = isinstance(answer, tuple | list) and len(answer) == len(other)
        return alike and all(equal(*pair, near) for pair in zip(answer, other, strict=True))
    pair = numeric((answer, other))
    return same(*pair, near) if pair else type(answer) is type(other) and answer == other


def informative(target):
    """Whether an answer, or an item of it, has content."""
    if isinstance(target, tuple | list):
        return any(map(informative, target))
    pair = numeric((target, target))
    return pair is not None and has_content(pair[0])
