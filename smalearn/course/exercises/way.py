"""The way to a right answer, measured at two lengths: its largest tensor, its calls of torch, what it leans on.

A tensor counts as made if it shares no memory with what it was made of: views and expanded tensors are free. What is
asked is compared as a power of the length, with half a power of room.
"""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

from smalearn.course.exercises.agree import equal
from smalearn.course.exercises.run import run
from smalearn.fast.jit import in_emulator, sender
from smalearn.fast.lanes import running
from smalearn.fast.tile import constexpr

__all__ = ["Way", "detours"]

LENGTHS = 32, 64
LIMIT = 10.0  # seconds
BUDGET = 16000  # calls: who needs more for 64 tokens has a loop in a loop
BYTES = 64 << 20
OUTSIDE = {"numpy", "tolist", "__array__"}  # what leaves torch cannot be measured
PER_TOKEN, PER_PAIR = 0.25, 24  # calls for each further token from which there is a loop, or a loop in a loop
RUNNING_SUMS = {"cumsum", "cumsum_", "cumprod", "logcumsumexp"}
COPIES = {"cat", "concat", "stack", "clone", "contiguous"}
SUBTRACTIONS = {"sub", "sub_", "subtract", "rsub", "__sub__", "__rsub__", "__isub__", "diff"}
LAUNCH = "smalearn.fast.jit.Kernel.__getitem__"
ROUNDED = 'a GPU uses ten binary digits of float32 in its `tl.dot`, unless it gets `input_precision="ieee"`'
WORDS = {1: "{}", 2: "{}²", 3: "{}³"}


@dataclass(frozen=True, kw_only=True)
class Way:
    """What is asked of the way to the answer.

    Args:
        case: (randn, length) → arguments of that length; all other sizes 2 or 3.
        memory: largest power of the length in the entries of a tensor that is made: 1 forbids (T, T).
        work: the same in the entries that all calls together take in or make, views and copies left out.
        loops: loops over time, one inside the other: 0 forbids one.
        forbids: beginnings of the names of functions, "torch.autograd".
        needs: the same; one must be called.
        once: name of a function of smalearn that must be called once, no more and no less.
        launched: times that a kernel may be launched, at most; 0 forbids none, and asks for none.
        compiled: whether one compilation of a kernel must do for every length.
        matters: argument → two values that must not lead to the same calls.
        differences: whether a running sum may be subtracted from another.
        exact: whether products of float32 on a GPU must not be rounded.
        halves: arguments with which it must also run in half precision.
        axis: letter of the length.
    """

    case: Callable
    memory: int | None = None
    work: int | None = None
    loops: int | None = None
    forbids: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    once: str = ""
    launched: float = 0
    compiled: bool = False
    matters: Mapping[str, tuple] = field(default_factory=dict)
    differences: bool = True
    exact: bool = False
    halves: tuple[str, ...] = ()
    axis: str = "T"


def detours(way: Way, attempt: Callable, names: Sequence[str], cases: Sequence[tuple]) -> list[str]:
    """Say what in an attempt with right answers is not as asked; nothing where it cannot be measured.

    Args:
        way: what is asked.
        attempt: the learner's function.
        names: of its arguments.
        cases: `way.case` at both of `LENGTHS`.
    """
    small, large = (_trace(attempt, case) for case in cases)
    if small.failed or large.failed or small.left or large.left:
        return []
    texts = _as_many_texts(cases)
    said = [*_memory(way, small, large, texts), *_loops(way, small, large, texts)]
    said += [] if said else _work(way, small, large)
    called = small.names if way.forbids or way.needs else []
    said += [f"it calls `{name}`" for name in called if name.startswith(way.forbids)][:1] if way.forbids else []
    if way.needs and not any(name.startswith(way.needs) for name in called):
        said.append(f"it calls no {_asked_for(way.needs[0])}")
    if way.once and (times := small.names.count(way.once)) != 1:
        name = f"`{way.once.rpartition('.')[2]}`"
        said.append(f"it calls {name} {times} times" if times else f"it never calls {name}")
    said += _launches(way, small.names.count(LAUNCH))
    if way.compiled and (constant := _changing_constant(attempt, cases)):
        said.append(f"its `{constant}` is a `tl.constexpr` and changes with the length: each length is compiled anew")
    if small.subtracts and not way.differences:
        said.append("it subtracts running sums")
    if way.exact and _rounded(attempt, cases[1]):
        said.append(ROUNDED)
    if way.halves and (amiss := _in_halves(way, attempt, names, cases[1])):
        said.append(f"with {', '.join(way.halves)} in half precision {amiss}")
    for argument, values in way.matters.items():
        place = list(names).index(argument)
        others = [(*cases[1][:place], value, *cases[1][place + 1 :]) for value in values]
        calls, constants = ([look(attempt, case) for case in others] for look in (_calls, _constants))
        if calls[0] == calls[1] and constants[0] == constants[1]:
            said.append(f"it does the same work whatever {argument} is")
    return said


def _calls(attempt, case):
    return _trace(attempt, case).calls


def _asked_for(name):
    word = name.replace("smalearn.fast.tile.", "tl.")
    return f"`{word}`" if word.startswith("tl.") else f"function of `{word}`"


def _launches(way, times):
    if way.launched and not times:
        yield "it launches no kernel: `kernel[grid](…)`"
    elif way.launched and times > way.launched:
        yield f"it launches {times} times; one launch is asked, and a loop within the kernel, or programs side by side"


def _memory(way, small, large, texts):
    power = _power(small.largest, large.largest)
    if way.memory is not None and (large.heavy or power > way.memory + 0.5):
        should = f"it should {f'grow as {_words(way.memory, way.axis)}' if way.memory else 'stay as large'}"
        if large.heavy:
            grows = "passes 64 MB"
        elif texts:
            grows = f"grows as {_words(power - 2, way.axis)} times its arguments"
            should = "it should grow as they do"
        else:
            grows = f"grows as {_words(power, way.axis)}"
        sized = f"{LENGTHS[1]} texts of {LENGTHS[1]} tokens" if texts else f"{way.axis} = {LENGTHS[1]}"
        yield f"its largest tensor, {large.shape} for {sized}, {grows}; {should}"


def _as_many_texts(cases):
    """Whether the arguments grow with the square of the length: there are as many texts as tokens."""
    return _power(*(max(x.numel() for x in case if isinstance(x, torch.Tensor)) for case in cases)) > 1.5


def _words(power, axis):
    return WORDS.get(round(power), f"{{}}^{power:.1f}").format(axis)


def _loops(way, small, large, texts):
    if way.loops is None:
        return
    more = (len(large.calls) - len(small.calls)) / (LENGTHS[1] - LENGTHS[0])
    twice = large.over or (more > PER_PAIR and _power(len(small.calls), len(large.calls)) > 1.5)
    loops = 2 if twice else 0 if more < PER_TOKEN else 1
    if loops > way.loops:
        few, many = (f"more than {BUDGET}" if one.over else len(one.calls) for one in (small, large))
        counts = f"{few} calls of torch for {way.axis} = {LENGTHS[0]}, {many} for {LENGTHS[1]}"
        over = "texts or tokens" if texts else "time" if way.axis == "T" else way.axis
        what = f"a loop over {over}{' inside a loop' if loops == 2 else ''}"
        yield f"it makes {counts}: {what}"


def _work(way, small, large):
    if way.work is not None and (power := _power(small.work, large.work)) > way.work + 0.5:
        handled = f"{small.work} numbers for {way.axis} = {LENGTHS[0]}, {large.work} for {LENGTHS[1]}"
        grows, should = (_words(one, way.axis) for one in (power, way.work))
        yield f"all its calls together handle {handled}: that grows as {grows}; it should grow as {should}"


def _changing_constant(attempt, cases):
    """The name of a `tl.constexpr` that differs between two cases."""
    first, second = (_constants(attempt, case) for case in cases)
    return next((name for name in first if first[name] != second.get(name)), "")


def _constants(attempt, case):
    """What the kernels of an attempt are compiled for: the values of their `tl.constexpr`."""
    found = {}

    def launch(kernel, grid, *arguments, **constants):
        signature = inspect.signature(kernel.__wrapped__)
        given = signature.bind(*arguments, **{n: x for n, x in constants.items() if n in signature.parameters})
        marked = {n for n, parameter in signature.parameters.items() if parameter.annotation is constexpr}
        found.update({n: x for n, x in given.arguments.items() if n in marked})
        in_emulator(kernel, grid, *arguments, **constants)

    def watched(*arguments):
        before = sender.set(launch)
        try:
            return attempt(*arguments)
        finally:
            sender.reset(before)

    run(watched, [case], 0, LIMIT)
    return found


def _rounded(attempt, case):
    """Whether an answer changes where the emulator's `tl.dot` rounds as a GPU's does."""
    answers = []
    try:
        for running.rounds in (False, True):
            answers.append([call.answer for call in run(attempt, [case], 0, LIMIT).calls])
    finally:
        running.rounds = False
    return not equal(*answers)


def _in_halves(way, attempt, names, case):
    """What is amiss with some arguments in half precision: an error, a first output that is not, others that are."""
    narrow = [x.half() if name in way.halves else x for name, x in zip(names, case, strict=True)]
    calls = run(attempt, [tuple(narrow)], 0, LIMIT).calls
    if not calls:
        return ""
    if calls[0].error:
        return f"it stops: {calls[0].error[-1]}"
    outputs = calls[0].answer if isinstance(calls[0].answer, tuple) else (calls[0].answer,)
    first, *others = (str(getattr(x, "dtype", "torch.float16")).removeprefix("torch.") for x in outputs)
    if first != "float16":
        return f"its output is {first}"
    if "float16" in others:
        return "the state it returns is float16, where digits of a sum are lost"
    if any(torch.equal(x, x.half().to(x.dtype)) for x in outputs[1:]):
        return "what it carries on has been rounded to float16, in which digits of a sum are lost"
    return ""


def _power(small, large):
    return math.log(max(large, 1) / max(small, 1), LENGTHS[1] / LENGTHS[0])


class _Stop(BaseException):
    """Error that ends a measurement; not an Exception, so that attempts let it through."""


class _Trace(TorchFunctionMode):
    """Record of the calls of torch under it."""

    def __init__(self):
        super().__init__()
        self.sums, self.subtracts = [], False
        self.calls, self.names, self.largest, self.shape, self.work = [], [], 0, (), 0
        self.over = self.heavy = self.left = self.failed = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        self.left |= name in OUTSIDE and (args[0].is_floating_point() or args[0].is_complex())  # not borders, indices
        out = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if not made and name not in ("__setitem__", "item"):
            return out
        self.names.append(resolve_name(func) or name)
        self.calls.append((name, tuple(tuple(x.shape) for x in made)))
        operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        given = {_memory_of(x)[0] for x in operands}
        if name not in COPIES and any(_memory_of(x)[0] not in given for x in made):
            self.work += max(x.numel() for x in (*operands, *made))
        self.subtracts |= name in SUBTRACTIONS and not given.isdisjoint(_memory_of(x)[0] for x in self.sums)
        self.sums += made if name in RUNNING_SUMS else []  # kept, so that nothing else gets their memory
        for x in made:
            place, entries = _memory_of(x)
            if place not in given and entries > self.largest:
                self.largest, self.shape = entries, tuple(x.shape)
                self.heavy |= entries * x.element_size() > BYTES
        self.over |= len(self.calls) > BUDGET
        if self.over or self.heavy:
            raise _Stop
        return out


def _memory_of(x):
    """What tells a tensor's memory from others', and the number of its entries; inside vmap there is none to ask."""
    try:
        storage = x.untyped_storage()
        return storage._cdata, storage.nbytes() // x.element_size()
    except NotImplementedError:
        return id(x), x.numel()


def _trace(attempt, case):
    """Run an attempt once and record its calls of torch, and the functions written in Python that it calls itself."""
    trace = _Trace()

    def watched(*arguments):
        with trace:
            before = sys.getprofile()
            sys.setprofile(_listener(trace.names, {type(x).__module__ for x in arguments}))
            try:
                return attempt(*arguments)
            except _Stop:
                return None
            finally:
                sys.setprofile(before)

    calls = run(watched, [case], 0, LIMIT).calls
    trace.failed = not calls or bool(calls[0].error)
    return trace


def _listener(names, given):
    """A profiler that collects the functions of torch and smalearn that the learner's own code calls, and autograd."""

    def seen(frame, event, argument):
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not _of_library(module) or module in given or module == "torch.autograd.grad_mode":
            return
        if module == "torch.autograd.graph":  # the engine, whoever started it
            names.append("torch.autograd")
        elif not frame.f_back or not _of_library(frame.f_back.f_globals.get("__name__", "")):
            names.append(f"{module}.{frame.f_code.co_qualname}")

    return seen


def _of_library(module):
    return module.partition(".")[0] in ("torch", "smalearn") and not module.startswith("smalearn.course.exercises")
