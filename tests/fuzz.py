"""Calls of all public functions with arguments of wrong types and values: each returns, or says what is wrong.

    python tests/fuzz.py 50000 [seed]                 # prints the calls that did neither, with their arguments
    python tests/fuzz.py 2000 0 sma_linear rope       # of these functions only

A call passes if it returns no NaN for finite arguments, or raises an error whose message begins with the name of the
function. Most arguments fit the call, so that the odd one is met by what is behind the first check too.
"""

import importlib
import inspect
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass

import torch
from registry_fuzz import ARGUMENTS, LEVELS, METHODS, NUMBER, ORDINARY, OWN, Draw, is_dense, of, one_of

ROOMS = (
    "contractions kernel_attention linear_attention masks sma ssm ssd weights scores multilevel fast models data train"
)
OUTSIDE = {  # these read or write files, or call what they are given
    *("load_series", "load_text", "recorded", "recorded_cpus", "trained"),
    *("train", "accuracy", "mean_loss", "write_atomically"),
    *("Cache", "DeltaModel", "RecurrentModel"),
}
RECORDS = {  # these hold what they are given; what reads them checks it
    *("Gates", "Keys", "Level", "Logits", "ModelCache", "Order", "Orders", "Record", "RecurrentCache"),
    *("ScanCost", "Series", "Source", "Step", "Text"),
}
CLASSMETHODS = ("random", "from_dense", "exp")
STRIDE = 101  # neighbours in the list are alike
EXPECTED = (ValueError, TypeError, NotImplementedError, RuntimeError)
PUBLIC = {name for room in ROOMS.split() for name in importlib.import_module(f"smalearn.{room}").__all__}
PUBLIC |= {"tiled_attention", "score_factors", "normed_factors"}  # of modules, not of their rooms


@dataclass(frozen=True)
class Target:
    """A function to call: its name in messages, a function of a `Draw` that gives it, and arguments by name."""

    name: str
    get: object
    own: dict


def targets() -> list[Target]:
    """Everything that is called."""
    found = []
    for room in ROOMS.split():
        module = importlib.import_module(f"smalearn.{room}")
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or name in OUTSIDE | RECORDS:
                continue
            found.append(Target(name, lambda d, thing=thing: thing, OWN.get(name, {})))
            for method in CLASSMETHODS:
                if isinstance(thing, type) and isinstance(vars(thing).get(method), classmethod):
                    own = {"M": of("nn", ()), "shape": one_of((4, 4)), "levels": one_of(LEVELS), "n": one_of(4)}
                    found.append(Target(f"{name}.{method}", lambda d, t=thing, m=method: getattr(t, m), own))
    for name, (make, own) in METHODS.items():
        method = name.partition(".")[2]
        found.append(Target(name, lambda d, make=make, method=method: getattr(make(d), method), own))
    return found


def arguments(target: Target, function, draw: Draw, oddness: float) -> tuple[list, dict]:
    """Arguments of a call: most fit, each with a chance to be odd."""
    positional, named = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD or name == "device":
            continue
        if name == "cache" and hasattr(getattr(function, "__self__", None), "start"):
            good = lambda d: function.__self__.start(*d.leading)  # noqa: E731
        else:
            good = (
                target.own.get(name) or ARGUMENTS.get(name) or (NUMBER if "int" in str(parameter.annotation) else None)
            )
        if name == "seed":
            good = one_of(0, 1)
        if name == "function":  # what `parse_spec` is to call itself
            named[name] = target.name
            continue
        optional = parameter.default is not parameter.empty
        if optional and (good is None or draw.random.random() < 0.5) and draw.random.random() > oddness:
            continue
        value = draw.strange() if good is None else good(draw)
        if draw.random.random() < oddness:
            value = draw.changed(value) if draw.random.random() < 0.5 else draw.strange()
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += value if isinstance(value, tuple | list) else [value]
        else:
            named[name] = value
    return positional, named


def tensors_in(value, depth: int = 0):
    """All tensors of a result, or of arguments; a cache also has room for tokens to come, which holds anything."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, list | tuple | dict) and depth < 4:
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one, depth + 1)
    elif depth < 4 and type(value).__module__.startswith("smalearn") and not hasattr(value, "append"):
        yield from tensors_in(vars(value) if hasattr(value, "__dict__") else (), depth + 1)


def has_nan(value) -> bool:
    """Whether a tensor of it that has values holds a NaN; infinities count too where they go in."""
    return any(x.isnan().any() for x in ordinary(value))


def ordinary(value):
    """The floating tensors of a value that are dense and have values."""
    for x in tensors_in(value):
        if is_dense(x) and x.device.type == "cpu" and (x.dtype in ORDINARY or not x.numel()):
            yield x


def moderate(value) -> bool:
    """Whether all numbers that go in are finite, and far from the ends of their range."""
    plain = list(tensors_in(value))
    return len(plain) == len(list(ordinary(value))) and all(
        not x.numel() or x.abs().max() < 1e4 for x in ordinary(value)
    )


def verdict(error: Exception) -> str | None:
    """None if the error begins with a public name of ours, or is Python's about a signature; else what is wrong."""
    text = str(error)
    name = re.match(r"(\w+)(\.\w+)?: ", text)
    ours = isinstance(error, EXPECTED) and name and name[1] in PUBLIC
    signature = isinstance(error, TypeError) and re.match(
        r"Can't instantiate abstract|.*\(\) (missing|takes|got)", text
    )
    return None if ours or signature else f"{type(error).__name__}: {text[:300]}"


def is_theirs(error: Exception, named: dict) -> bool:
    """Whether a function of Python that was given as one to call (`combine=int`) raised this; it goes through as it is.

    A function in Python shows in the traceback; these do not.
    """
    return isinstance(error, TypeError) and any(
        callable(named.get(name)) and re.search(said, str(error))
        for name in ("combine", "scoring", "value")
        for said in ("object cannot be interpreted as an integer", r"has no len\(\)")
    )


def call(target: Target, seed: int) -> tuple[str, str]:
    """Call a function once: "returned", "refused" or "failed", and what failed."""
    draw = Draw(seed)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            function = target.get(draw)
        except Exception as error:  # half precision, say, of what cannot be made of it
            return "refused", str(error)
        positional, named = arguments(target, function, draw, draw.random.choice([0.0, 0.15, 0.3]))
        shown = ", ".join([*map(brief, positional), *(f"{name}={brief(value)}" for name, value in named.items())])
        fine = moderate((positional, named, getattr(function, "__self__", None)))
        try:
            result = function(*positional, **named)
            if inspect.isgenerator(result):
                result = list(result)
            if fine and has_nan(result):
                return "failed", f"{target.name}({shown})\n    NaN from finite arguments"
            return "returned", ""
        except Exception as error:
            wrong = None if is_theirs(error, named) else verdict(error)
            return ("failed", f"{target.name}({shown})\n    {wrong}") if wrong else ("refused", "")


def brief(value) -> str:
    """A value in few words."""
    if isinstance(value, torch.Tensor):
        shape = "nested" if value.is_nested else tuple(value.shape)
        layout = "" if value.layout is torch.strided else f" {value.layout}"
        return f"<{shape} {str(value.dtype)[6:]}{layout}{' meta' if value.is_meta else ''}>"
    if isinstance(value, list | tuple) and len(value) < 9:
        return f"{type(value).__name__}({', '.join(map(brief, value))})"
    return repr(value)[:80].replace("\n", " ")


def run(calls: int, seed: int = 0, only: tuple[str, ...] = ()) -> tuple[dict[str, Counter], list[str]]:
    """Call functions in turn; per function how its calls ended, and the failures."""
    chosen = [
        target for target in targets() if not only or target.name in only or target.name.partition(".")[0] in only
    ]
    outcomes, failures = {target.name: Counter() for target in chosen}, []
    for i in range(calls):
        target = chosen[i * STRIDE % len(chosen)]
        outcome, what = call(target, seed + i)
        outcomes[target.name][outcome] += 1
        if outcome == "failed":
            failures.append(f"seed {seed + i}: {what}")
    return outcomes, failures


if __name__ == "__main__":
    count, start, *only = [*sys.argv[1:], "0"][: max(2, len(sys.argv) - 1)]
    outcomes, failures = run(int(count), int(start), tuple(only))
    print(*failures, sep="\n")
    total = sum(outcomes.values(), Counter())
    silent = sorted(name for name, counter in outcomes.items() if not counter["returned"])
    print(f"{len(outcomes)} functions, {total}; without a result: {', '.join(silent) or 'none'}")
    sys.exit(bool(failures))
