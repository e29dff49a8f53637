"""What a submission's process and the grader tell each other, as JSON.

To the process go objects of ours (`coded`). What comes back is nothing that the reader would have to run, and `unpack`
believes nothing: what does not describe answers is a `WireError`.
"""

import base64
import json
import math
import numbers
import pickle

import numpy as np
import torch

from smalearn.course.exercises.run import Call, Run

__all__ = ["LIMIT", "WireError", "coded", "decoded", "pack", "unpack"]

LIMIT = 64 * 2**20  # bytes of one line
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, RuntimeError)


class WireError(ValueError):
    """Error: what was read does not describe answers."""


def coded(value: object) -> str:
    """Write objects of ours as text, for the process of a submission; nothing that comes back is read so."""
    return base64.b64encode(pickle.dumps(value)).decode()


def decoded(text: str) -> object:
    """Read what `coded` wrote."""
    return pickle.loads(base64.b64decode(text))


def pack(run: Run) -> list[dict]:
    """Describe the calls of an attempt; answers that are too large together become errors."""
    calls, room = [], LIMIT // 2
    for call in run.calls:
        entry = {"answer": None, "error": list(call.error), "stub": call.stub, "modified": list(call.modified)}
        try:
            answer = [] if call.error else _tree(call.answer)
            room -= len(json.dumps(answer))
            entry["answer"] = answer
        except MALFORMED as problem:
            entry["error"] = [f"the answer cannot be sent: {problem}"[:200]]
        if room < 0:
            entry |= {"answer": None, "error": ["the answers are too large to be sent"]}
        calls.append(entry)
    return calls


def _tree(value: object) -> list:
    """Turn a value into JSON."""
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES.values():
        value = value.resolve_conj().resolve_neg().contiguous()
        if value.nbytes > LIMIT // 4:
            raise ValueError(f"a tensor of {value.nbytes} bytes is too large")
        raw = value.reshape(-1).view(torch.uint8).numpy().tobytes()
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), base64.b64encode(raw).decode()]
    if isinstance(value, tuple | list):
        return ["list" if isinstance(value, list) else "tuple", [_tree(item) for item in value]]
    if isinstance(value, bool | np.bool_):
        return ["bool", bool(value)]
    if isinstance(value, numbers.Integral):
        return ["int", int(value)]
    if isinstance(value, numbers.Number):
        number = complex(value)
        return ["float", number.real] if isinstance(value, numbers.Real) else ["complex", number.real, number.imag]
    if isinstance(value, str):
        return ["str", str.__str__(value)]
    return ["none"] if value is None else ["object", type(value).__name__]


def unpack(calls: object, cases: list[tuple]) -> Run:
    """Build the calls that JSON of `pack`, or of a submission, describes, of plain tensors, numbers and strings."""
    try:
        return Run([_call(entry, case) for entry, case in zip(calls, cases, strict=False)], ())
    except WireError:
        raise
    except MALFORMED as error:
        raise WireError(f"no answers: {type(error).__name__}") from None


def _call(entry: dict, case: tuple) -> Call:
    modified = tuple(index for index in range(len(case)) if index in entry["modified"])
    value = None if entry["error"] else _value(entry["answer"])
    return Call(value, tuple(map(str, entry["error"])), entry["stub"] is True, modified)


def _value(tree: list) -> object:
    """Build the value that a tree describes."""
    match tree:
        case ["tensor", str(name), [*shape], str(text)] if all(type(size) is int and size >= 0 for size in shape):
            return _tensor(DTYPES[name], shape, base64.b64decode(text))
        case ["tuple" | "list" as kind, [*items]]:
            return (list if kind == "list" else tuple)(map(_value, items))
        case ["bool", bool(value)] | ["int", int(value)] | ["float", float(value)] | ["str", str(value)]:
            return value
        case ["complex", float(real), float(imaginary)]:
            return complex(real, imaginary)
        case ["none"]:
            return None
        case ["object", str(name)]:
            return type("".join(filter(str.isidentifier, name[:40])) or "unknown", (), {})()
    raise WireError("no value")


def _tensor(dtype: torch.dtype, shape: list[int], raw: bytes) -> torch.Tensor:
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise WireError("not as many bytes as entries")
    values = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.tensor([], dtype=torch.uint8)
    return (values != 0 if dtype is torch.bool else values.view(dtype)).reshape(shape)
