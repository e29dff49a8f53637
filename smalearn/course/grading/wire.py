"""Answers of a submission as bytes and back: JSON and raw numbers, nothing that the reader would have to run.

A frame is two lengths, a JSON text, and the bytes of the tensors that the text names. `read` and `decode` believe
nothing: what is not a frame, or too large, is a `WireError`.
"""

import json
import math
import numbers
import struct
from typing import BinaryIO

import numpy as np
import torch

from smalearn.course.exercises.run import Call, Run

__all__ = ["LIMIT", "WireError", "decode", "encode", "frame", "read"]

LIMIT = 64 * 2**20  # bytes of one frame
HEAD = struct.Struct(">QQ")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, RuntimeError)


class WireError(ValueError):
    """Error: what was read is not a frame, or not answers."""


def frame(message: dict, blob: bytes = b"") -> bytes:
    """Pack a message, and the bytes that it describes, for the wire."""
    text = json.dumps(message).encode()
    return HEAD.pack(len(text), len(blob)) + text + blob


def read(stream: BinaryIO) -> tuple[dict, bytes] | None:
    """Read the next frame of a stream; None at its end.

    Raises:
        WireError: something else stands there.
    """
    head = stream.read(HEAD.size)
    if not head:
        return None
    if len(head) < HEAD.size or sum(HEAD.unpack(head)) > LIMIT:
        raise WireError("no frame")
    text, blob = (stream.read(length) for length in HEAD.unpack(head))
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("no JSON") from None
    if not isinstance(message, dict) or len(blob) < HEAD.unpack(head)[1]:
        raise WireError("no message")
    return message, blob


def encode(run: Run) -> tuple[dict, bytes]:
    """Pack the calls of an attempt as a message and its bytes; answers that are too large become errors."""
    calls, blobs = [], []
    for call in run.calls:
        own_blobs, error = [], list(call.error)
        try:
            answer = _tree(call.answer, own_blobs)
            size = sum(map(len, [json.dumps(answer), *blobs, *own_blobs]))
        except MALFORMED as problem:
            answer, own_blobs, error, size = None, [], [f"the answer cannot be sent: {problem}"[:200]], 0
        if size > LIMIT // 2:
            answer, own_blobs, error = None, [], ["the answers are too large to be sent"]
        blobs += own_blobs
        calls.append({"answer": answer, "error": error, "stub": call.stub, "modified": list(call.modified)})
    return {"calls": calls}, b"".join(blobs)


def _tree(value: object, blobs: list[bytes]) -> list:
    """Turn a value into JSON, and append the bytes of its tensors to `blobs`."""
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES.values():
        value = value.resolve_conj().resolve_neg().contiguous()
        if value.nbytes > LIMIT // 2:
            raise ValueError(f"a tensor of {value.nbytes} bytes is too large")
        blobs.append(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
    if isinstance(value, tuple | list):
        return ["list" if isinstance(value, list) else "tuple", [_tree(item, blobs) for item in value]]
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


def decode(message: dict, blob: bytes, cases: list[tuple]) -> Run:
    """Unpack the calls of a frame, made of plain tensors, numbers and strings.

    Args:
        message: and `blob`, what `read` returned.
        blob: the bytes of the tensors.
        cases: of the exercise; there may be fewer calls.

    Raises:
        WireError: the frame does not hold answers to these cases.
    """
    try:
        unread, calls = memoryview(blob), []
        for entry, case in zip(message["calls"], cases, strict=False):
            modified = tuple(index for index in range(len(case)) if index in entry["modified"])
            value, unread = (None, unread) if entry["error"] else _value(entry["answer"], unread)
            calls.append(Call(value, tuple(map(str, entry["error"])), entry["stub"] is True, modified))
    except WireError:
        raise
    except MALFORMED as error:
        raise WireError(f"no answers: {type(error).__name__}") from None
    return Run(calls, ())


def _value(tree: list, unread: memoryview) -> tuple[object, memoryview]:
    """Build the value that a tree describes; return it, and the bytes that it leaves."""
    match tree:
        case ["tensor", str(name), [*shape]] if all(type(size) is int and size >= 0 for size in shape):
            return _tensor(DTYPES[name], shape, unread)
        case ["tuple" | "list" as kind, [*items]]:
            values = []
            for item in items:
                value, unread = _value(item, unread)
                values.append(value)
            return (values if kind == "list" else tuple(values)), unread
        case ["bool", bool(value)] | ["int", int(value)] | ["float", float(value)] | ["str", str(value)]:
            return value, unread
        case ["complex", float(real), float(imaginary)]:
            return complex(real, imaginary), unread
        case ["none"]:
            return None, unread
        case ["object", str(name)]:
            return type("".join(filter(str.isidentifier, name[:40])) or "unknown", (), {})(), unread
    raise WireError("no value")


def _tensor(dtype: torch.dtype, shape: list[int], unread: memoryview) -> tuple[torch.Tensor, memoryview]:
    size = math.prod(shape) * dtype.itemsize
    if size > len(unread):
        raise WireError("too few bytes")
    raw = torch.tensor([], dtype=torch.uint8)
    if size:
        raw = torch.frombuffer(bytearray(unread[:size]), dtype=torch.uint8)
    values = raw != 0 if dtype is torch.bool else raw.view(dtype)
    return values.reshape(shape), unread[size:]
