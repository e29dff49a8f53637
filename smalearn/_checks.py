"""Input checks shared by every public function: one error class and one form of message.

torch is imported when a check needs it, so that `import smalearn` and `smalearn doctor` work where it is missing.
"""

from collections.abc import Mapping

__all__ = ["ShapeError", "check_count", "check_dtypes", "check_shapes"]


class ShapeError(ValueError):
    """A tensor has the wrong number of axes, or two operands disagree about the size of an axis."""


def check_shapes(function: str, operands: Mapping[str, tuple[object, str]]) -> dict[str, int]:
    """Check that operands have the named trailing axes, agree on their sizes, and broadcast over leading axes.

    Args:
        function: name of the public function, which opens every message.
        operands: for each argument's name, the tensor (or anything with a `shape`, such as a mask) and its trailing
            axes, one lower-case letter each: `{"Q": (Q, "tn"), "K": (K, "sn")}`.

    Returns:
        The size of each axis letter.

    Raises:
        ShapeError: naming function, argument, axis, expected and got.
    """
    import torch

    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    leading: tuple[int, ...] = ()
    for name, (tensor, axes) in operands.items():
        shape = tuple(tensor.shape)
        if len(shape) < len(axes):
            wanted = ", ".join(axes.upper())
            raise ShapeError(f"{function}: {name} needs trailing axes ({wanted}), got shape {shape}")
        split = len(shape) - len(axes)
        for axis, size in zip(axes, shape[split:], strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ShapeError(f"{function}: axis '{axis}' is {sizes[axis]} in {first[axis]} but {size} in {name}")
            first.setdefault(axis, name)
        try:
            leading = torch.broadcast_shapes(leading, shape[:split])
        except RuntimeError:
            raise ShapeError(
                f"{function}: leading axes {shape[:split]} of {name} do not broadcast with {tuple(leading)} before it"
            ) from None
    return sizes


def check_dtypes(function: str, tensors: Mapping[str, object]) -> None:
    """Check that tensors share one floating (or complex) dtype and one device.

    Raises:
        TypeError: an argument is no tensor.
        ValueError: naming function, argument, expected and got.
    """
    import torch

    first, reference = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(f"{function}: {name} must have a floating dtype, got {tensor.dtype}")
        if tensor.dtype != reference.dtype:
            raise ValueError(f"{function}: {name} is {tensor.dtype} but {first} is {reference.dtype}")
        if tensor.device != reference.device:
            raise ValueError(f"{function}: {name} is on {tensor.device} but {first} is on {reference.device}")


def check_count(function: str, argument: str, value: int, least: int = 1) -> int:
    """Check that an argument is an integer of at least `least`.

    Returns:
        The value.

    Raises:
        ValueError: naming function, argument, expected and got.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{function}: {argument} must be an integer ≥ {least}, got {value!r}")
    return value
