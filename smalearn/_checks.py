"""Input checks shared by every public function: one error class and one form of message.

torch is imported when a check needs it, so that `import smalearn` and `smalearn doctor` work where it is missing.
"""

from collections.abc import Mapping

__all__ = [
    "ShapeError",
    "check_count",
    "check_dtypes",
    "check_float32_or",
    "check_log_a",
    "check_shapes",
    "check_signs",
    "check_ssd",
]


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
            expected = ", ".join(axes.upper())
            raise ShapeError(f"{function}: {name} needs trailing axes ({expected}), got shape {shape}")
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
        TypeError: an argument is not a tensor.
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


def check_float32_or(function: str, name: str, tensor: object, first: str, reference: object) -> None:
    """Check that a tensor is float32 or has the dtype of `reference`, called `first`; and that it is on its device.

    Raises:
        ValueError: naming function, argument, expected and got.
    """
    import torch

    if tensor.dtype not in (reference.dtype, torch.float32):
        allowed = " or ".join(dict.fromkeys([str(reference.dtype), "torch.float32"]))
        raise ValueError(f"{function}: {name} is {tensor.dtype}, expected {allowed}")
    if tensor.device != reference.device:
        raise ValueError(f"{function}: {name} is on {tensor.device} but {first} is on {reference.device}")


def check_log_a(function: str, log_a: object, first: str, reference: object) -> None:
    """Check dtype and device of log_a against those of `reference`, called `first`, and its sign where it is on a CPU.

    Raises:
        ValueError: naming function, argument, expected and got.
    """
    check_float32_or(function, "log_a", log_a, first, reference)
    if log_a.device.type == "cpu":
        check_signs(function, log_a)


def check_signs(function: str, log_a: object) -> None:
    """Check that no log decay is positive or NaN; on a GPU this would wait for all that runs there.

    While PyTorch traces or batches a call (`torch.compile`, `torch.export`, `torch.func.vmap`) there are no values to
    check.

    Raises:
        ValueError: naming function, argument, expected and got.
    """
    largest = _largest(log_a)
    if not largest <= 0:
        raise ValueError(f"{function}: log_a must be ≤ 0, the log of a decay in [0, 1], got {largest:.3g}")


def _largest(log_a):
    """The largest log decay; 0 if there are none, or none with a value."""
    import torch

    if torch.compiler.is_compiling() or not log_a.numel():
        return 0.0
    try:
        return float(log_a.detach().max().item())  # detached: nothing to save for a backward
    except RuntimeError:  # says PyTorch of a tensor without values
        return 0.0


def check_ssd(function: str, X: object, log_a: object, B: object, C: object, state: object, time: str = "t") -> None:
    """Check the operands of state space duality: X (..., T, P), log_a (..., T), B and C (..., T, N), state (..., P, N).

    Args:
        function: name of the public function, which opens every message.
        X: inputs.
        log_a: log decay, one per token, or None.
        B: input maps.
        C: output maps.
        state: before the first token, or None.
        time: letter of the time axis; empty for a single step, whose x, log_a and state have no time.

    Raises:
        ShapeError: an axis has two sizes, or leading axes do not broadcast.
        ValueError: a dtype or device differs, or log_a (on a CPU) is positive or NaN.
    """
    first, state_name = ("X", "initial_state") if time else ("x", "state")
    check_dtypes(function, {first: X, "B": B, "C": C})
    operands = {first: (X, time + "p"), "B": (B, time + "n"), "C": (C, time + "n")}
    if log_a is not None:
        check_dtypes(function, {"log_a": log_a})
        operands["log_a"] = (log_a, time)
    if state is not None:
        check_dtypes(function, {state_name: state})
        operands[state_name] = (state, "pn")
    check_shapes(function, operands)
    if state is not None:
        check_float32_or(function, state_name, state, first, X)
    if log_a is not None:
        check_log_a(function, log_a, first, X)
