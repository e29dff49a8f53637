"""Input checks shared by every public function: one error class and one form of message.

torch is imported when a check needs it, so that `import smalearn` and `smalearn doctor` work where it is missing.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations


class ShapeError(ValueError):
    """A tensor has the wrong number of axes, or two operands disagree about the size of an axis."""


def check_shapes(function: str, operands: Mapping[str, tuple[object, str]]) -> dict[str, int]:
    """Check that operands have the named trailing axes, agree on their sizes, and broadcast over leading axes.

    Args:
        function: name of the public function, which opens every message.
        operands: for each argument's name, the tensor (or structured matrix, which has `shape` and `dense`) and its
            trailing axes, one lower-case letter each: `{"Q": (Q, "tn"), "K": (K, "sn")}`.

    Returns:
        The size of each axis letter.

    Raises:
        ShapeError: naming function, argument, axis, expected and got.
        TypeError: an operand is not a tensor.
    """
    import torch

    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    leading: tuple[int, ...] = ()
    for name, (tensor, axes) in operands.items():
        if not (isinstance(tensor, torch.Tensor) or hasattr(tensor, "dense")):
            raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
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
            leading = broadcast_shapes(leading, shape[:split])
        except ValueError:
            got = f"leading axes {shape[:split]} of {name} do not broadcast with {leading} before it"
            raise ShapeError(f"{function}: {got}{_missing_axes(operands)}") from None
    return sizes


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which all of these broadcast.

    In plain Python: torch's own function loads a computer algebra system at its first call, half a second.

    Raises:
        ValueError: two shapes do not broadcast.
    """
    joint: list[int] = []  # the last axis first
    for shape in shapes:
        joint += [1] * (len(shape) - len(joint))
        for axis, size in enumerate(reversed(shape)):
            if joint[axis] == 1:
                joint[axis] = size
            elif size not in (1, joint[axis]):
                raise ValueError(f"broadcast_shapes: {', '.join(map(str, map(tuple, shapes)))} do not broadcast")
    return tuple(reversed(joint))


def _missing_axes(operands):
    """The remedy, as the end of a message, if one operand lacks axes of size 1 and there is one place for them."""
    leading = [(name, tuple(x.shape)[: len(x.shape) - len(axes)], axes) for name, (x, axes) in operands.items()]
    for name, shape, axes in leading:
        for _, other, _ in leading:
            if len(shape) < len(other) and not _fit(shape, other):
                fitting = [longer for longer in _lengthened(shape, len(other)) if _fit(longer, other)]
                if len(fitting) == 1:
                    expected = ", ".join([*map(str, fitting[0]), *axes.upper()])
                    return f"; give {name} an axis of size 1: ({expected})"
    return ""


def _fit(*shapes):
    """Whether shapes broadcast."""
    try:
        broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _lengthened(shape: tuple[int, ...], length: int) -> Iterator[tuple[int, ...]]:
    """All shapes of this length that a shape becomes by axes of size 1."""
    for places in combinations(range(length), len(shape)):
        sizes = iter(shape)
        yield tuple(next(sizes) if axis in places else 1 for axis in range(length))


def check_tensor(function: str, name: str, tensor: object) -> None:
    """Check that an argument is a tensor whose entries stand in memory as they are: not sparse, nested or quantised."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
    if torch.compiler.is_compiling():  # its tensors are dense
        return
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantised" if tensor.is_quantized else f"{tensor.layout}"
        raise ValueError(f"{function}: {name} must be an ordinary dense tensor, got a {kind} one")


def check_values(function: str, name: str, tensor: object) -> None:
    """Check that a tensor has values, which one on PyTorch's device "meta" has not; ValueError if it has none."""
    if tensor.is_meta:
        raise ValueError(f"{function}: {name} must have values, got a tensor on meta")


def check_finite(function: str, name: str, tensor: object) -> None:
    """Check that a tensor, if it is on a CPU, has only finite numbers; ValueError if not."""
    if tensor.device.type == "cpu" and not holds(tensor.isfinite()):
        raise ValueError(f"{function}: {name} must be finite, got infinite numbers or NaN")


def check_no_nan(function: str, name: str, tensor: object) -> None:
    """Check that a tensor, if it is on a CPU, has no NaN, which would make a decay NaN; ValueError with its place."""
    if tensor.device.type == "cpu" and not holds(tensor == tensor):
        place = (tensor != tensor).nonzero()[0].tolist()
        raise ValueError(f"{function}: {name} must have no NaN, for decays are made from it; got one at {place}")


def check_dtypes(function: str, tensors: Mapping[str, object], real: bool = False) -> None:
    """Check that tensors are dense, and share one floating (or complex) dtype and one device.

    Under `torch.autocast` dtypes may differ: PyTorch's products cast them. With `real` none may be complex. Numbers of
    less than 16 bits, or complex ones of 16, are for storage: PyTorch computes nothing with them on a CPU.
    """
    import torch

    first, reference = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        check_tensor(function, name, tensor)
        least = 8 if tensor.is_complex() else 2
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() < least:
            raise ValueError(f"{function}: {name} must have a floating dtype, got {tensor.dtype}")
        if real and tensor.is_complex():
            raise ValueError(f"{function}: {name} must be real, got {tensor.dtype}")
        if tensor.dtype != reference.dtype and not _is_cast(torch, tensor):
            raise ValueError(f"{function}: {name} is {tensor.dtype} but {first} is {reference.dtype}")
        if tensor.device != reference.device:
            raise ValueError(f"{function}: {name} is on {tensor.device} but {first} is on {reference.device}")


def _is_cast(torch, tensor):
    """Whether PyTorch casts such a tensor before it multiplies."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


def check_count(function: str, argument: str, value: int, least: int = 1) -> int:
    """Check and return an integer of at least `least`, no larger than a size can be; or a `torch.SymInt`."""
    if isinstance(value, bool) or not (isinstance(value, int) or _is_symbol(value)) or value < least:
        raise ValueError(f"{function}: {argument} must be an integer ≥ {least}, got {brief(value)}")
    if value > sys.maxsize:
        raise ValueError(f"{function}: {argument} must be an integer below 2^63, got {brief(value)}")
    return value


def _is_symbol(value):
    """Whether a value is an integer of a program that PyTorch traces for more than one."""
    torch = sys.modules.get("torch")  # without it there is none
    return torch is not None and isinstance(value, torch.SymInt)


def brief(value):
    """A value as a message shows it: in one short line, a tensor or another large thing by its type."""
    shown = repr(value) if isinstance(value, int | float | str) else type(value).__name__
    return shown if len(shown) < 50 else type(value).__name__


def check_counts(function, argument, values, least=1, count=None):
    """Check a list of integers of at least `least`, so many of them if `count` says; return them as a tuple."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{function}: {argument} must be a list of integers, got {type(values).__name__}")
    if count is not None and len(values) != count:
        raise ValueError(f"{function}: {argument} must be a list of {count} integers, got {len(values)}")
    return tuple(check_count(function, f"{argument}[{i}]", value, least) for i, value in enumerate(values))


def check_number(function: str, argument: str, value: object) -> float:
    """Check and return a real number; of integers only those of 64 bits, for PyTorch multiplies others with nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{function}: {argument} must be a number, got {type(value).__name__}")
    if isinstance(value, int) and abs(value) > sys.maxsize:
        raise ValueError(f"{function}: {argument} must be a float where it is as large as 2^63, got {brief(value)}")
    return value


def check_eps(function: str, eps: float) -> float:
    """Check and return the number that keeps a norm from 0; ValueError if negative or not finite."""
    if not 0 <= check_number(function, "eps", eps) < math.inf:
        raise ValueError(f"{function}: eps must be ≥ 0 and finite, got {eps}")
    return eps


def check_type(function: str, argument: str, value: object, *kinds: type) -> None:
    """Check that an argument is of one of these types; TypeError if not."""
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{function}: {argument} must be a {expected}, got {type(value).__name__}")


def check_pair(function: str, argument: str, value: object, first: str, second: str) -> tuple[object, object]:
    """Check and return a tuple (or list) of two things, called so; what they are is checked elsewhere."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        got = f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__
        raise TypeError(f"{function}: {argument} must be a pair ({first}, {second}), got {got}")
    return tuple(value)


def seeded(function: str, seed: int, dtype: object = None) -> object:
    """A `torch.Generator`, the same for the same seed of 64 bits; checks the dtype of what will be drawn as well."""
    import torch

    if dtype is not None:
        check_type(function, "dtype", dtype, torch.dtype)
        if not dtype.is_floating_point or dtype.itemsize < 2:
            raise ValueError(f"{function}: dtype must be a floating one of 16 bits or more, got {dtype}")

    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise ValueError(f"{function}: seed must be an integer of 64 bits, got {brief(seed)}")
    return torch.Generator().manual_seed(seed)


def check_float32_or(function: str, name: str, tensor: object, first: str, reference: object) -> None:
    """Check that a tensor is float32 or like `reference`, called `first`, and on its device; ValueError if not."""
    import torch

    if tensor.dtype not in (reference.dtype, torch.float32):
        allowed = " or ".join(dict.fromkeys([str(reference.dtype), "torch.float32"]))
        raise ValueError(f"{function}: {name} is {tensor.dtype}, expected {allowed}")
    if tensor.device != reference.device:
        raise ValueError(f"{function}: {name} is on {tensor.device} but {first} is on {reference.device}")


def check_log_a(function: str, log_a: object, first: str, reference: object) -> None:
    """Check log_a as `check_float32_or` does, that it is real and, on a CPU, its sign; ValueError if not."""
    check_float32_or(function, "log_a", log_a, first, reference)
    if log_a.is_complex():
        raise ValueError(f"{function}: log_a must be real, got {log_a.dtype}")
    if log_a.device.type == "cpu":
        check_signs(function, log_a)


def check_signs(function: str, log_a: object) -> None:
    """Check that no log decay is positive or NaN; ValueError if one is. On a GPU this would wait for all else."""
    # Detached: nothing to save for a backward. max: thirty times as fast as a comparison of all, and it keeps a NaN.
    if log_a.numel() and not holds(log_a.detach().max() <= 0):
        place = (~(log_a <= 0)).nonzero()[0].tolist()
        got = f"{log_a[tuple(place)].item():.3g}" + f" at {place}" * bool(place)
        raise ValueError(f"{function}: log_a must be ≤ 0, the log of a decay in [0, 1], got {got}")


def holds(condition: object) -> bool:
    """Whether a condition holds everywhere, as far as a tensor has values.

    It has none while PyTorch traces or batches a call (`torch.compile`, `torch.export`, `torch.func.vmap`).
    """
    import torch

    if torch.compiler.is_compiling():
        return True
    try:
        return bool(condition.all())
    except RuntimeError:  # says PyTorch of a tensor without values
        return True


def check_operands(function: str, operands: Mapping[str, tuple], wide: Mapping[str, tuple], real: bool = False) -> dict:
    """Check tensors with their trailing axes: `operands` of one dtype, and `wide` ones, of that or float32, or None.

    Axes that depend on what the tensors are, a function returns when all are known to be tensors. log_a is checked as
    `check_log_a` does. It returns the size of each axis letter.
    """
    check_dtypes(function, {name: x for name, (x, _) in operands.items()}, real)
    wide = {name: pair for name, pair in wide.items() if pair[0] is not None}
    for name, (x, _) in wide.items():
        check_dtypes(function, {name: x}, real)
    every = {name: (x, axes() if callable(axes) else axes) for name, (x, axes) in {**operands, **wide}.items()}
    sizes, (first, (reference, _)) = check_shapes(function, every), next(iter(operands.items()))
    for name, (x, _) in wide.items():
        if name == "log_a":
            check_log_a(function, x, first, reference)
        else:
            check_float32_or(function, name, x, first, reference)
    return sizes


def check_ssd(function, X, log_a, B, C, state, time="t"):
    """Check the operands of state space duality: X (..., T, P), log_a (..., T), B and C (..., T, N), state (..., P, N).

    log_a and the state may be None. `time` is the letter of the time axis: empty for a single step, whose x, log_a and
    state have no time, and are all there.
    """
    first, state_name = ("X", "initial_state") if time else ("x", "state")
    for name, x in {} if time else {"log_a": log_a, state_name: state}.items():
        check_tensor(function, name, x)
    operands = {first: (X, time + "p"), "B": (B, time + "n"), "C": (C, time + "n")}
    check_operands(function, operands, {"log_a": (log_a, time), state_name: (state, "pn")})
