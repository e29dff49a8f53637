"""Run a function on every case of an exercise, without letting it disturb anybody: captured, limited, explained."""

import contextlib
import copy
import inspect
import io
import linecache
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from smalearn._torch import kept_modes, kept_print_options, set_deterministic
from smalearn.course.exercises.compare import freeze, same
from smalearn.course.exercises.limit import Expired, within

LIBRARIES = {"torch", "numpy", "einops", "smalearn", *sys.stdlib_module_names}
INLINED = {"<listcomp>", "<dictcomp>", "<setcomp>"}  # frames of their own in Python 3.11 only
PRINTED_LINES = 20
SEED = 20_000
EACH = 0.5  # seconds for one try of an explainer: a loop may never end
LINE_WIDTH = 90
MESSAGE_LENGTH, MESSAGE_LINES = 1000, 10
MIXED = "two tensors that meet differ in dtype; does one that you make lack `dtype=`?"
ADVICE = {  # how a message is recognised → what is said below it
    r"'function' object is not subscriptable$": "a kernel has `@triton.jit` above its `def`",
    r"^RuntimeError: .*(same dtype|scalar type)": MIXED,
}


@dataclass(frozen=True)
class Call:
    """Outcome of one call: an answer, or the lines that explain an exception."""

    answer: object = None
    error: tuple[str, ...] = ()
    stub: bool = False  # the function's own body raised NotImplementedError
    modified: tuple[int, ...] = ()  # the arguments edited in place


@dataclass(frozen=True)
class Run:
    """Calls that came back, fewer than the cases if time ran out, and what was printed."""

    calls: list[Call]
    printed: tuple[str, ...]


def answers(function: Callable, cases: list[tuple]) -> list | None:
    """What a function returns in every case; None where it raises or takes too long."""
    calls = run(function, cases, 0, EACH).calls
    complete = len(calls) == len(cases) and not any(call.error for call in calls)
    return [call.answer for call in calls] if complete else None


def run(function: Callable, cases: list[tuple], seed: int, limit: float) -> Run:
    """Call a function on a copy of each case's arguments, for at most `limit` seconds in all.

    Random numbers (Python's and NumPy's too), the default dtype and device, the gradient mode, modes that an
    attempt has entered, the number of threads and the recursion limit are the caller's again after each call; torch is
    seeded before it, and what `torch.empty` gives is NaN. Warnings are not errors. KeyboardInterrupt passes through.
    """
    restore, printed = _snapshot(), _Printed()

    def calls() -> Iterator[Call]:
        for arguments in cases:
            restore()
            torch.default_generator.manual_seed(SEED + seed)  # other numbers than those of the cases
            set_deterministic(True, warn_only=True)  # NaN is what torch.empty gives then, in every run
            yield _call(function, arguments, restore)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = sys.stdout
            with contextlib.redirect_stdout(printed):
                collected = within(limit, calls(), out)
    finally:
        restore()
    return Run(collected, printed.lines())


def _call(function: Callable, arguments: tuple, restore: Callable[[], None]) -> Call:
    copies = copy.deepcopy(arguments)
    try:
        try:
            answer = function(*copies)
        finally:
            restore()
        answer = freeze(answer)
    except (Expired, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: an attempt that calls exit() must not end the notebook
        lines = _own_lines(error, function)
        return Call(error=_explain(error, lines), stub=_is_stub(error, lines))
    modified = tuple(i for i, pair in enumerate(zip(arguments, copies, strict=True)) if not same(*pair))
    return Call(answer, modified=modified)


def _snapshot() -> Callable[[], None]:
    """Make a function that puts global settings of torch and Python back to what they are now."""
    dtype, grad, state = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state()
    device, threads, depth = torch.get_default_device(), torch.get_num_threads(), sys.getrecursionlimit()
    anomaly, checks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    precision = torch.get_float32_matmul_precision()
    numbers, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - learners use it
    exact, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    others = kept_modes(), kept_print_options()

    def restore() -> None:
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)  # None: as it was before it was set
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        set_deterministic(exact, warn_only=warns)
        sys.setrecursionlimit(depth)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(state)
        torch.autograd.set_detect_anomaly(anomaly, checks)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        random.setstate(numbers)
        np.random.set_state(arrays)  # noqa: NPY002
        for other in others:
            other()

    return restore


class _Printed(io.TextIOBase):
    """Standard output for the learner's code: keeps the first lines, counts the rest."""

    def __init__(self):
        self.kept, self.count, self.open = [""], 0, False

    def write(self, text: str) -> int:
        for number, piece in enumerate(text.split("\n")):
            if number:
                self.count += 1
                if self.count < PRINTED_LINES:
                    self.kept.append("")
            if self.count < PRINTED_LINES and len(self.kept[-1]) <= LINE_WIDTH:
                self.kept[-1] += piece[: LINE_WIDTH + 1]
            self.open = bool(piece) or (self.open and not number)
        return len(text)

    def lines(self) -> tuple[str, ...]:
        """Return the first lines, each cut to the width of a page, and how many more there were."""
        total = self.count + self.open
        lines = [line if len(line) <= LINE_WIDTH else line[:LINE_WIDTH] + "…" for line in self.kept[:total]]
        hidden = total - len(lines)
        return (*lines, f"… ({hidden} more line{'s' if hidden > 1 else ''})") if hidden else tuple(lines)


def _own_lines(error: BaseException, function: Callable) -> list[tuple]:
    """List each of the learner's lines that was running, (function, number in it, source), outermost first."""
    home = getattr(inspect.unwrap(function), "__globals__", None) if inspect.isfunction(function) else None
    lines, step = [], error.__traceback__
    while step:
        frame = step.tb_frame
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if (frame.f_globals is home or module not in LIBRARIES) and frame.f_code.co_name not in INLINED:
            code, number = frame.f_code, step.tb_lineno
            source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            lines.append((code.co_name, number - code.co_firstlineno + 1, source))
        step = step.tb_next
    return lines


def _is_stub(error: BaseException, lines: list[tuple]) -> bool:
    """Say whether the called function's own body has `raise NotImplementedError`; torch raises it too."""
    if not isinstance(error, NotImplementedError) or len(lines) != 1:
        return False
    _, _, source = lines[0]
    return "raise NotImplementedError" in source if source else not error.args  # torch says what is not implemented


def _explain(error: BaseException, lines: list[tuple]) -> tuple[str, ...]:
    """Show the learner's own lines, then type and message. No paths and no addresses: they differ from run to run."""
    trace = [f"line {number} of {name}: {source}".rstrip(": ") for name, number, source in lines]
    message = re.sub(r"0x[0-9a-fA-F]{4,}", "0x…", "".join(traceback.format_exception_only(error)).rstrip())
    shown = message[:MESSAGE_LENGTH].split("\n")[:MESSAGE_LINES]
    cut = ["…"] if len("\n".join(shown)) < len(message) else []
    cut += [advice for pattern, advice in ADVICE.items() if re.search(pattern, message)]
    return (*dict.fromkeys(trace), *shown, *cut)
