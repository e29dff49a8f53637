"""What an attempt does on its way: its calls of torch, and the tensors and products that are made inside of them."""

import functools
import sys
from collections.abc import Callable, Set

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn.course.exercises.run import run

LIMIT = 10.0  # seconds
BUDGET = 16000  # calls: who needs more for 64 tokens has a loop in a loop
BYTES = 64 << 20
OUTSIDE = {"numpy", "tolist", "__array__"}  # what leaves torch cannot be measured
RUNNING_SUMS = {"cumsum", "cumsum_", "cumprod", "logcumsumexp"}
COPIES = {"cat", "concat", "stack", "clone", "contiguous"}
SUBTRACTIONS = {"sub", "sub_", "subtract", "rsub", "__sub__", "__rsub__", "__isub__", "diff"}
PRODUCTS = {"mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm"}  # what all others end in

_full_name = functools.cache(resolve_name)  # it changes the filters of warnings each time, which takes long


class _Stop(BaseException):
    """Error that ends a measurement; not an Exception, so that attempts let it through."""


class Trace(TorchFunctionMode):
    """Record of the calls of torch under it.

    `call` is what the attempt returned, None where time was over; `calls` and `names` are what it calls. `largest` and
    `shape` are of the largest tensor, made by a call or inside one, `within`; `products` has for each product of
    matrices over how many numbers it sums.
    """

    def __init__(self):
        super().__init__()
        self.sums, self.subtracts, self.products = [], False, []
        self.calls, self.names, self.largest, self.shape, self.within, self.work = [], [], 0, (), "", 0
        self.over = self.heavy = self.left = False
        self.call = None
        self.inside = _Inside(self)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        listener = sys.getprofile()
        with _Profiled(None):
            return self._called(listener, func, args, kwargs or {})

    def _called(self, listener, func, args, kwargs):
        name = getattr(func, "__name__", "")
        self.left |= name in OUTSIDE and (args[0].is_floating_point() or args[0].is_complex())  # not borders, indices
        self.inside.name, largest = name, self.largest
        with _Profiled(listener):
            out = func(*args, **kwargs)
        self.inside.name = ""
        made = _tensors(out)
        if not made and name not in ("__setitem__", "item"):
            return out
        self.names.append(_full_name(func) or name)
        self.calls.append((name, tuple(tuple(x.shape) for x in made)))
        operands = _tensors(args, kwargs)
        given = {_memory_of(x)[0] for x in operands}
        if name not in COPIES and any(_memory_of(x)[0] not in given for x in made):
            self.work += max(x.numel() for x in (*operands, *made))
        self.subtracts |= name in SUBTRACTIONS and not given.isdisjoint(_memory_of(x)[0] for x in self.sums)
        self.sums += made if name in RUNNING_SUMS else []  # kept, so that nothing else gets their memory
        self.see(made, given, least=largest)
        self.over |= len(self.calls) > BUDGET
        if self.over or self.heavy:
            raise _Stop
        return out

    def see(self, made: list[torch.Tensor], given: Set, least: int, within: str = "") -> None:
        """Note the largest of the tensors that share no memory with what is given, if it passes `least`."""
        for x in made:
            place, entries = _memory_of(x)
            if place not in given and entries > least and entries >= self.largest:
                self.largest, self.shape, self.within = entries, tuple(x.shape), within
                self.heavy |= entries * x.element_size() > BYTES


class _Inside(TorchDispatchMode):
    """Record of what the calls of torch are made of: `torch.einsum` of three tensors makes one that nobody gets."""

    def __init__(self, trace):
        super().__init__()
        self.trace, self.name = trace, ""

    @classmethod
    def _should_skip_dynamo(cls):
        """Let torch not wrap the method below: that would import its compiler at the first call, for seconds."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with _Profiled(None):
            out = func(*args, **(kwargs or {}))
            operands = _tensors(args, kwargs)
            if func.__name__.partition(".")[0] in PRODUCTS:
                self.trace.products.append(operands[-2].shape[-1])
            self.trace.see(_tensors(out), {_memory_of(x)[0] for x in operands}, self.trace.largest, self.name)
            return out


class _Profiled:
    """While it lasts a profiler listens; with None nobody does, which saves most of the time of a measurement."""

    def __init__(self, profiler):
        self.profiler, self.before = profiler, None

    def __enter__(self):
        self.before = sys.getprofile()
        sys.setprofile(self.profiler)

    def __exit__(self, *_):
        sys.setprofile(self.before)


def _tensors(*values):
    """The tensors in values, and in containers of them; torch's own way is slow, and there are thousands of calls."""
    found = []
    for x in values:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, tuple | list):
            found += _tensors(*x)
        elif isinstance(x, dict):
            found += _tensors(*x.values())
    return found


def _memory_of(x):
    """What tells a tensor's memory from others', and the number of its entries; inside vmap there is none to ask."""
    try:
        storage = x.untyped_storage()
        return storage._cdata, storage.nbytes() // x.element_size()
    except NotImplementedError:
        return id(x), x.numel()


def trace(attempt: Callable, case: tuple) -> Trace:
    """Run an attempt once and record its calls of torch, and the functions written in Python that it calls itself."""
    found = Trace()

    def watched(*arguments):
        with torch.backends.opt_einsum.flags(enabled=False), found, found.inside:  # the same order on every machine
            try:
                with _Profiled(_listener(found.names, {type(x).__module__ for x in arguments})):
                    return attempt(*arguments)
            except _Stop:
                return None

    found.call = next(iter(run(watched, [case], 0, LIMIT).calls), None)
    return found


def _listener(names, given):
    """A profiler that collects the functions of torch and smalearn that the learner's own code calls, and autograd."""

    def seen(frame, event, argument):
        if event != "call":
            return
        module, caller = frame.f_globals.get("__name__", ""), frame.f_back
        if not _of_library(module) or module in given or module == "torch.autograd.grad_mode":
            return
        if caller and caller.f_globals is globals():  # what the measurement needs
            return
        if module == "torch.autograd.graph":  # the engine, whoever started it
            names.append("torch.autograd")
        elif not caller or not _of_library(caller.f_globals.get("__name__", "")):
            names.append(f"{module}.{frame.f_code.co_qualname}")

    return seen


def _of_library(module):
    """Say whether a module is part of torch or smalearn, and no solution, which stands in for a learner's own code."""
    own = module.startswith(("smalearn.course.exercises", "smalearn.course.ch"))
    return module.partition(".")[0] in ("torch", "smalearn") and not own
