"""The way to a right answer, measured at two lengths: its largest tensor, its calls of torch, what it leans on.

A tensor counts as made if it shares no memory with what it was made of: views and expanded tensors are free. What is
asked is compared as a power of the length, with half a power of room.
"""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType

import torch

from smalearn.course.exercises.compare import CLOSE, alike
from smalearn.course.exercises.run import Call, run
from smalearn.course.exercises.trace import BUDGET, LIMIT, trace
from smalearn.fast.jit import in_emulator, sender
from smalearn.fast.lanes import running
from smalearn.fast.tile import constexpr

LENGTHS = 32, 64
PER_TOKEN, PER_PAIR = 0.25, 24  # calls for each further token from which there is a loop, or a loop in a loop
LAUNCH = "smalearn.fast.jit.Kernel.__getitem__"
ROUNDED = 'a GPU uses ten binary digits of float32 in its `tl.dot`, unless it gets `input_precision="ieee"`'
TOOLS = ("course", "testing", "data", "fast.tile", "fast.jit", "fast.lanes", "fast.everywhere")  # and our solutions
HELD = 1e-5  # relative error of a state that is kept in float32
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
        products: how many products of matrices it may take, at most, the last of which sums over numbers that do not
            grow: queries times keys; None for any.
        launched: most launches of a kernel, whose products of float32 a GPU must not round; 0 asks for none.
        programs: that a launch must have at the larger length, at least.
        compiled: whether one compilation of a kernel must do for every length.
        matters: argument → two values that must not lead to the same calls, those of a kernel included.
        differences: whether a running sum may be subtracted from another.
        halves: arguments with which it must also run in half precision.
        axis: letter of the length; "T = N" or "T = texts" if another size grows with it.
    """

    case: Callable
    memory: int | None = None
    work: int | None = None
    loops: int | None = None
    forbids: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    once: str = ""
    products: int | None = None
    launched: float = 0
    programs: int = 0
    compiled: bool = False
    matters: Mapping[str, tuple] = field(default_factory=dict)
    differences: bool = True
    halves: tuple[str, ...] = ()
    axis: str = "T"


def measure(
    way: Way | None, attempt: Callable, names: Sequence[str], cases: Sequence[tuple], welcome: Set[str]
) -> tuple[list[Call], list[str]]:
    """Run a right attempt at both lengths; return what it answers, and what of its way is not as asked.

    Whatever the way, it must not take from the library what is not `welcome`.
    """
    said = []  # of the library's own work nothing else is said: its loops are not the learner's
    with contextlib.suppress(Exception):  # an attempt may be any object, which may raise when one looks at it
        said += [f"`{found}` is smalearn's: write it yourself" for found in [taken(attempt, welcome)] if found]
    if not way:
        return [], said
    small, large = traces = [trace(attempt, case) for case in cases]
    if not small.call or not large.call:
        return [], [f"it is not done with {way.axis} = {LENGTHS[1]} in {LIMIT:g} s"]
    calls = []
    for one, case in zip(traces, cases, strict=True):
        if one.over or one.heavy:
            break
        # What fails may fail by being watched.
        calls += run(attempt, [case], 0, LIMIT).calls if one.call.error else [one.call]
    if any(one.left or one.call.error for one in traces):
        return calls, said
    return calls, said or _detours(way, attempt, names, cases, small, large)


def _detours(way, attempt, names, cases, small, large):
    """Say what in an attempt is not as asked, with its traces at both lengths."""
    said = [*_memory(way, small, large), *_loops(way, small, large)]
    said += [] if said else _work(way, small, large)
    said += [*_calls(way, small.names), *_products(way, small, large)]
    if way.launched:
        said += _launches(way, attempt, small.names.count(LAUNCH), cases)
    if small.subtracts and not way.differences:
        said.append("it subtracts running sums")
    if way.halves and (amiss := _in_halves(way, attempt, names, cases[1])):
        said.append(f"with {', '.join(way.halves)} in half precision {amiss}")
    for argument, values in way.matters.items():
        place = list(names).index(argument)
        first, second = (trace(attempt, (*cases[1][:place], value, *cases[1][place + 1 :])) for value in values)
        if (first.calls, first.names) == (second.calls, second.names):
            said.append(f"it does the same work whatever {argument} is")
    return said


def _calls(way, called):
    """What is called that must not be, or not as often, and what is not."""
    if way.forbids:
        yield from [f"it calls `{name}`" for name in called if name.startswith(way.forbids)][:1]
    if way.needs and not any(name.startswith(way.needs) for name in called):
        word = way.needs[0].replace("smalearn.fast.tile.", "tl.")
        yield f"it calls no `{word}`" if word.startswith("tl.") else f"it calls no function of `{word}`"
    if way.once and (times := called.count(way.once)) != 1:
        name = f"`{way.once.rpartition('.')[2]}`"
        yield f"it calls {name} {times} times" if times else f"it never calls {name}"


def _products(way, small, large):
    """What is wrong with the products of matrices: their number, or over what the last one sums."""
    if way.products is None:
        return
    few, many = small.products, large.products
    if len(many) > way.products:
        yield f"it takes {len(many)} products of matrices; {way.products} are enough"
    elif few and many and _power(few[-1], many[-1]) > 0.5:
        sizes = f"{few[-1]} numbers for {way.axis} = {LENGTHS[0]}, {many[-1]} for {LENGTHS[1]}"
        yield f"its last product sums over {sizes}; make queries and keys first, whose length does not grow"


def _launches(way, attempt, times, cases):
    """What is wrong with the launches of kernels: their number, their programs, what they are compiled for."""
    if not times:
        yield "it launches no kernel: `kernel[grid](…)`"
        return
    if times > way.launched:
        yield f"it launches {times} times; one launch is asked, and a loop within the kernel, or programs side by side"
    (first, _), (second, programs) = (_launched(attempt, case) for case in cases)
    if way.compiled and (name := next((name for name in first if first[name] != second.get(name)), "")):
        yield f"its `{name}` is a `tl.constexpr` and changes with the length: each length is compiled anew"
    if programs < way.programs:
        many = "one program" if programs == 1 else f"{programs} programs"
        yield f"it launches {many} where {way.programs} are asked, side by side"
    if _rounded(attempt, cases[1]):
        yield ROUNDED


def _memory(way, small, large):
    power = _power(small.largest, large.largest)
    if way.memory is not None and (large.heavy or power > way.memory + 0.5):
        should = f"it should {f'grow as {_words(way.memory, way.axis[0])}' if way.memory else 'stay as large'}"
        inside = f", made inside `{large.within}`," if large.within else ""
        grows = "passes 64 MB" if large.heavy else f"grows as {_words(power, way.axis[0])}"
        yield f"its largest tensor{inside or ','} {large.shape} for {way.axis} = {LENGTHS[1]}, {grows}; {should}"


def _words(power, axis):
    near = round(power) if abs(power - round(power)) < 0.3 else None
    return WORDS.get(near, f"{{}}^{power:.1f}").format(axis)


def _loops(way, small, large):
    if way.loops is None:
        return
    more = (len(large.calls) - len(small.calls)) / (LENGTHS[1] - LENGTHS[0])
    twice = large.over or (more > PER_PAIR and _power(len(small.calls), len(large.calls)) > 1.5)
    loops = 2 if twice else 0 if more < PER_TOKEN else 1
    if loops > way.loops:
        few, many = (f"more than {BUDGET}" if one.over else len(one.calls) for one in (small, large))
        counts = f"{few} calls of torch for {way.axis} = {LENGTHS[0]}, {many} for {LENGTHS[1]}"
        over = "time" if way.axis == "T" else way.axis.replace(" = ", " or ")
        what = f"a loop over {over}{' inside a loop' if loops == 2 else ''}"
        yield f"it makes {counts}: {what}"


def _work(way, small, large):
    if way.work is not None and (power := _power(small.work, large.work)) > way.work + 0.5:
        handled = f"{small.work} numbers for {way.axis} = {LENGTHS[0]}, {large.work} for {LENGTHS[1]}"
        grows, should = (_words(one, way.axis[0]) for one in (power, way.work))
        yield f"all its calls together handle {handled}: that grows as {grows}; it should grow as {should}"


def _launched(attempt, case):
    """The values of the `tl.constexpr` for which the kernels of an attempt are compiled; most programs of a launch."""
    found, most = {}, 0

    def launch(kernel, grid, *arguments, **constants):
        nonlocal most
        signature = inspect.signature(kernel.__wrapped__)
        given = signature.bind(*arguments, **{n: x for n, x in constants.items() if n in signature.parameters})
        marked = {n for n, parameter in signature.parameters.items() if parameter.annotation is constexpr}
        found.update({n: x for n, x in given.arguments.items() if n in marked})
        most = max(most, math.prod(grid))
        in_emulator(kernel, grid, *arguments, **constants)

    def watched(*arguments):
        before = sender.set(launch)
        try:
            return attempt(*arguments)
        finally:
            sender.reset(before)

    run(watched, [case], 0, LIMIT)
    return found, most


def _rounded(attempt, case):
    """Whether an answer changes where the emulator's `tl.dot` rounds as a GPU's does."""
    answers = []
    try:
        for running.rounds in (False, True):
            answers.append([call.answer for call in run(attempt, [case], 0, LIMIT).calls])
    finally:
        running.rounds = False
    return not alike(*answers, CLOSE)


def _in_halves(way, attempt, names, case):
    """What is amiss with some arguments in half precision: an error, a first output that is not, others that are."""
    found = (_in_half(way, attempt, names, case, dtype) for dtype in (torch.float16, torch.bfloat16))
    return next(filter(None, found), "")


def _in_half(way, attempt, names, case, dtype):
    """The same for one of the two types."""
    narrow = [x.to(dtype) if name in way.halves else x for name, x in zip(names, case, strict=True)]
    calls = run(attempt, [tuple(narrow)], 0, LIMIT).calls
    if not calls:
        return ""
    if calls[0].error:
        return f"it stops: {calls[0].error[-1]}"
    outputs = calls[0].answer if isinstance(calls[0].answer, tuple) else (calls[0].answer,)
    half = str(dtype).removeprefix("torch.")
    first, *others = (str(getattr(x, "dtype", dtype)).removeprefix("torch.") for x in outputs)
    if first != half:
        return f"its output is {first}"
    if half in others:
        return f"the state it returns is {half}, where digits of a sum are lost"
    exact, carried = (_carried(attempt, way, names, case, one) for one in (torch.float32, dtype))
    if exact and carried and not alike(carried, exact, HELD):
        return f"what it carries on has been rounded to {half}, in which digits of a sum are lost"
    return ""


def _carried(attempt, way, names, case, dtype):
    """All outputs but the first where every product is 0: then no digit is lost but by rounding what is carried on."""
    zeros = [(0 * x).to(dtype) if name in way.halves else x for name, x in zip(names, case, strict=True)]
    return [call.answer[1:] for call in run(attempt, [tuple(zeros)], 0, LIMIT).calls if not call.error]


def _power(small, large):
    return math.log(max(large, 1) / max(small, 1), LENGTHS[1] / LENGTHS[0])


def taken(attempt: Callable, welcome: Set[str]) -> str | None:
    """Name the first thing of the library, none of those that are welcome, that an attempt uses; None if there is none.

    An attempt may also be such a thing. A name after a dot, `fast.ssd`, is welcome as ".ssd".
    """
    for value in (attempt, _plain(attempt)):
        if _of_library(value):
            return getattr(value, "__name__", type(value).__name__)
    todo, seen = [attempt], []
    while todo:
        function = _plain(todo.pop())
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.append(function)
        used = dict(_used(function))
        if found := next((name for name, value in used.items() if name not in welcome and _of_library(value)), None):
            return found.strip(".")
        todo += [value for name, value in used.items() if name not in welcome and callable(value)]
    return None


def _plain(value):
    """The function behind a decorator, a partial, or an object that can be called."""
    value = inspect.unwrap(getattr(value, "func", value))
    return value if isinstance(value, FunctionType) else getattr(type(value), "__call__", None)  # noqa: B004


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of other things in a function's code, and in the functions inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)


def _used(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function's code names: globals, what it closes over, and functions of the modules that it names."""
    names = dict.fromkeys(names_in(function.__code__))
    known = function.__globals__ | {name: sys.modules.get(name) for name in names if name.startswith("smalearn")}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: known[name] for name in names if name in known} | {n: c.cell_contents for n, c in cells if _full(c)}
    yield from found.items()
    modules = list(filter(_is_room, found.values()))
    for module in modules:
        for name in names:
            value = getattr(module, name, None)
            if _is_room(value) and value not in modules:
                modules.append(value)
            elif callable(value):
                yield f".{name}", value


def _is_room(value):
    return isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "smalearn"


def _full(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:  # a function that is not defined yet
        return False


def _of_library(value):
    """Whether a value is a function, a class or an object of the library, and none of its tools."""
    home = getattr(value, "__module__", None) or type(value).__module__
    package, _, rest = str(home).partition(".")
    return package == "smalearn" and not isinstance(value, ModuleType) and not rest.startswith(TOOLS)
