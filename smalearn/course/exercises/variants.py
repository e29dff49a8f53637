"""What the right program gives with one thing changed: a term left out, an index one too far, two steps exchanged.

A wrong answer that no list knows is compared with these. What is said of it is true whatever its code looks like: it is
what comes out of ours with that change.
"""

import ast
import copy
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

import torch

from smalearn.course.exercises.compare import alike, elements
from smalearn.course.exercises.limit import Stopwatch
from smalearn.course.exercises.run import SECONDS
from smalearn.course.exercises.run import answers as answers_of

__all__ = ["variant", "variants"]

WITHOUT = {
    "abs": "an absolute value",
    "cat": "one of the parts",
    "clamp": "a bound",
    "cumsum": "a running sum",
    "cumprod": "a running product",
    "diff": "a difference",
    "exp": "an exponential",
    "exp2": "a power of 2",
    "flip": "a reversal",
    "log": "a logarithm",
    "log2": "a logarithm",
    "mean": "a mean",
    "prod": "a product",
    "relu": "a ReLU",
    "sign": "a sign",
    "softmax": "a softmax",
    "sqrt": "a root",
    "square": "a square",
    "tril": "a mask",
    "triu": "a mask",
}
IN_PLACE_OF = {"exp2": "exp", "exp": "exp2", "tril": "triu", "triu": "tril", "min": "max", "max": "min", "sum": "mean"}
IN_PLACE_OF |= {"cumsum": "sum", "floor": "ceil", "ceil": "floor", "log": "log2", "log2": "log"}
AXES = {"amax", "cat", "cumprod", "cumsum", "flip", "mean", "prod", "repeat_interleave", "softmax", "stack", "sum"}
AXES |= {"unflatten"}
STEPS = ((1, "one too far"), (-1, "one too short"))


def variant(exercise: object, cases: Sequence[tuple], targets: Sequence, answers: Sequence) -> str | None:
    """Say which change of the solution, or of the oracle, gives the answers of a wrong attempt; of several name two."""
    if any(answer is None or isinstance(answer, str) for answer in answers) or not all(map(_finite, answers)):
        return None
    near = exercise.tolerance
    wrong = [k for k, pair in enumerate(zip(answers, targets, strict=True)) if not alike(*pair, near)]
    order = sorted(range(len(cases)), key=lambda k: (k not in wrong, elements(cases[k])))  # most fail on the first
    stopwatch, found = Stopwatch(), {}  # the order of a dict is that of finding
    for sentence, function in variants(exercise):
        if stopwatch() > SECONDS or len(found) == 2:
            break
        if sentence not in found and all(_gives(function, cases[k], answers[k], near) for k in order):
            found[sentence] = True
    return f"this is what comes out {', or '.join(found)}" if found else None


def _finite(answer):
    """Whether an answer has no NaN and no infinity: programs that fail agree by accident."""
    return bool(answer.isfinite().all()) if isinstance(answer, torch.Tensor) else True


def _gives(function, case, answer, near):
    given = answers_of(function, [case])
    return bool(given) and alike(given[0], answer, near)


def variants(exercise: object) -> Iterator[tuple[str, Callable]]:
    """Yield sentences and the changed functions, of the solution first."""
    for function in filter(None, (exercise.solution, exercise.oracle)):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, SyntaxError, TypeError):  # not written in a file, or a lambda in the middle of a call
            continue
        if isinstance(tree.body[0], ast.FunctionDef):
            made = _of(function, tree, _called(tree.body[0], exercise.solution))
            yield from made if function is exercise.solution else filter(_names_something, made)


def _names_something(variant):
    """Whether a sentence names an argument or a function: the oracle's own quotients nobody has seen."""
    return bool(re.search(r"\(|in the place of", variant[0]))


def _called(definition, solution):
    """The learner's name of each argument: the oracle may call it otherwise."""
    ours = [argument.arg for argument in definition.args.args]
    theirs = list(inspect.signature(solution).parameters)
    return dict(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else {}


def _of(function, tree, names):
    definition = tree.body[0]
    definition.decorator_list = [x for x in definition.decorator_list if "exercise" not in ast.unparse(x)]
    seen = {ast.unparse(tree)}
    for old, new in IN_PLACE_OF.items():  # everywhere at once
        code = re.sub(rf"\b{old}\(", f"{new}(", ast.unparse(tree))
        if code not in seen and (made := _compiled(function, code)):
            seen.add(code)
            yield f"with {new} in the place of {old}", made
    for place in range(len(list(ast.walk(definition)))):
        for number in itertools.count():
            changed = copy.deepcopy(tree)
            found = _changed(changed.body[0], place, number, names)
            if found is None:
                break
            code = ast.unparse(ast.fix_missing_locations(changed))
            if found and code not in seen:
                seen.add(code)
                if made := _compiled(function, code):
                    yield found, made


def _compiled(function, code):
    scope = dict(function.__globals__)
    try:
        exec(compile(code, f"<variant of {function.__name__}>", "exec"), scope)
    except SyntaxError:
        return None
    return scope[function.__name__]


def _changed(definition, place, number, names):
    """Make change `number` at node `place` of a tree: what it is, "" if it is none, None if there are no more."""
    nodes = list(ast.walk(definition))
    parents = {child: (node, field) for node in nodes for field, child in _children(node)}
    node = nodes[place]
    options = list(_options(node, names, parents))
    if number >= len(options):
        return None
    sentence, new = options[number]
    if callable(new):
        new()
    elif node in parents:
        _replace(*parents[node], node, new)
    else:
        return ""
    return sentence


def _children(node):
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def _replace(parent, field, old, new):
    value = getattr(parent, field)
    if isinstance(value, list):
        value[value.index(old)] = new
    else:
        setattr(parent, field, new)


def _options(node, names, parents) -> Iterator[tuple[str, object]]:
    """The changes at one node: a sentence, and what takes its place or a function that changes it."""
    if isinstance(node, ast.BinOp):
        yield from _of_operation(node, names)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = node.operand
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.FloorDiv) and isinstance(inner.left, ast.UnaryOp):
            yield "if a quotient is rounded down, not up", ast.BinOp(inner.left.operand, ast.FloorDiv(), inner.right)
        yield f"if a sign is turned round{_with(inner, names)}", inner
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}.get(type(node.ops[0]))
        if swapped:
            words = "lets equality in" if swapped in (ast.LtE, ast.GtE) else "keeps equality out"
            yield f"if a comparison {words}", ast.Compare(node.left, [swapped()], node.comparators)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Subscript):
        yield from _of_index(node)
    elif isinstance(node, ast.Attribute) and node.attr in ("mT", "T"):
        yield "without a transposition", node.value
    elif isinstance(node, ast.Constant) and type(node.value) is int and _is_axis(node, parents):
        yield from (("along another axis", ast.Constant(node.value + step)) for step, _ in STEPS)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        yield from (
            (f"with {words} a number", ast.Constant(node.value * by)) for by, words in ((2, "twice"), (0.5, "half"))
        )
    elif isinstance(node, ast.AugAssign):
        yield (
            "if a value is replaced, not added to",
            lambda: _replace(*parents[node], node, ast.Assign([node.target], node.value)),
        )
    if isinstance(node, ast.For | ast.FunctionDef):
        yield from _of_steps(node)


def _is_axis(node, parents):
    """Whether a number names an axis of a tensor."""
    parent = parents[node][0]
    if isinstance(parent, ast.UnaryOp) and parent in parents:
        parent = parents[parent][0]
    if isinstance(parent, ast.keyword):
        return parent.arg in ("dim", "axis")
    return isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr in AXES


def _of_operation(node, names):
    left, right, kind = node.left, node.right, type(node.op)
    if kind is ast.Sub:
        yield f"if a difference is turned round{_with(node, names)}", ast.BinOp(right, ast.Sub(), left)
        yield f"with a plus for a minus{_with(node, names)}", ast.BinOp(left, ast.Add(), right)
        yield f"without what is subtracted{_with(right, names)}", left
    elif kind is ast.Add:
        yield f"with a minus for a plus{_with(node, names)}", ast.BinOp(left, ast.Sub(), right)
        yield f"without a term{_with(right, names)}", left
        yield f"without a term{_with(left, names)}", right
    elif kind in (ast.Mult, ast.MatMult):
        if kind is ast.MatMult:
            yield "with the factors of a product exchanged", ast.BinOp(right, node.op, left)
            yield "with a product entry by entry", ast.BinOp(left, ast.Mult(), right)
        else:
            for twice in (left, right):
                yield f"with a factor that counts twice{_with(twice, names)}", ast.BinOp(node, ast.Mult(), twice)
        yield f"without a factor{_with(right, names)}", left
        yield f"without a factor{_with(left, names)}", right
    elif kind is ast.Div:
        if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add | ast.Sub):
            yield "with a bracket missing", ast.BinOp(left.left, left.op, ast.BinOp(left.right, node.op, right))
        yield f"without a division{_with(right, names)}", left
        yield f"if a quotient is a product{_with(right, names)}", ast.BinOp(left, ast.Mult(), right)
    elif kind is ast.FloorDiv:
        up = ast.UnaryOp(ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub(), left), ast.FloorDiv(), right))
        yield "if a quotient is rounded up, not down", up
    elif kind is ast.Pow:
        yield f"without a power{_with(right, names)}", left


def _of_call(node):
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    is_method = isinstance(node.func, ast.Attribute) and not (
        isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "math", "np", "F", "tl")
    )
    operand = node.func.value if is_method else node.args[0] if node.args else None
    if name in WITHOUT and operand is not None:
        yield f"without {WITHOUT[name]}", operand
    if name in IN_PLACE_OF:
        other = copy.copy(node.func)
        setattr(other, "attr" if isinstance(other, ast.Attribute) else "id", IN_PLACE_OF[name])
        yield f"with {IN_PLACE_OF[name]} in the place of {name}", ast.Call(other, node.args, node.keywords)
    if name == "range":
        for index, bound in enumerate(node.args):
            for step, words in STEPS:
                arguments = [*node.args[:index], _plus(bound, step), *node.args[index + 1 :]]
                which = "begins" if index == 0 and len(node.args) > 1 else "ends"
                yield f"if a loop {which} {_moved(which, words)}", ast.Call(node.func, arguments, [])


def _moved(which, words):
    if which == "begins":
        return "one later" if words == "one too far" else "one earlier"
    return words


def _of_index(node):
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for place, part in enumerate(parts):
        for sentence, new in _of_part(part):
            index = ast.Tuple([*parts[:place], new, *parts[place + 1 :]], ast.Load()) if len(parts) > 1 else new
            yield sentence, ast.Subscript(node.value, index, node.ctx)


def _of_part(part):
    """Changes of an index, or of a slice."""
    if isinstance(part, ast.Slice):
        for field, which in (("lower", "begins"), ("upper", "ends")):
            bound = getattr(part, field)
            for step, words in STEPS if bound is not None else ():
                changed = {name: getattr(part, name) for name in ("lower", "upper", "step")} | {
                    field: _plus(bound, step)
                }
                yield f"if a slice {which} {_moved(which, words)}", ast.Slice(**changed)
    elif not (isinstance(part, ast.Constant) and type(part.value) is not int):
        for step, words in ((1, "late"), (-1, "early")):
            yield f"with an index that is one {words}", _plus(part, step)


def _of_steps(node):
    """Two steps exchanged."""
    steps = [k for k, step in enumerate(node.body) if isinstance(step, ast.Assign | ast.AugAssign | ast.Expr)]
    for first, second in itertools.combinations(steps, 2):
        yield "with two steps in the other order", lambda body=node.body, i=first, j=second: _exchange(body, i, j)


def _exchange(body, first, second):
    body[first], body[second] = body[second], body[first]


def _plus(bound, step):
    if isinstance(bound, ast.Constant):
        return ast.Constant(bound.value + step) if isinstance(bound.value, int) else bound
    return ast.BinOp(bound, ast.Add() if step > 0 else ast.Sub(), ast.Constant(1))


def _with(node, names):
    """Name the arguments in a part of the program: " (log_a, B)", or its number; nothing where there are none."""
    hidden = [
        x for x in ast.walk(node) if isinstance(x, ast.Attribute | ast.keyword | ast.Slice)
    ]  # x.dtype, dim=, [:n]
    inside = {x for part in hidden if not _is_method(part, node) for x in ast.walk(part)}
    used = {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and x not in inside}
    found = [name for ours, name in names.items() if ours in used]
    if isinstance(node, ast.Constant):
        found = [repr(node.value)]
    return f" ({', '.join(found)})" if found else ""


def _is_method(part, node):
    """Whether an attribute is called, so that what stands before it counts."""
    return any(isinstance(x, ast.Call) and x.func is part for x in ast.walk(node))
