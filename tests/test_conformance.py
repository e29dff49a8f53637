"""Every function that mixes tokens answers the same questions, whatever computes it: a line in `registry_functions`.

What PyTorch's transforms ask (second derivatives, checkpointing, meta tensors) is in `test_transforms`, what only one
function does in the tests of its module.
"""

import contextlib
import inspect
import math
import re

import pytest
import torch
from comparing import all_close, same_slope
from registry_functions import FORMS, FUNCTIONS, INF, exact
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn import ShapeError
from smalearn.testing import assert_close, random_tensors, relative_rms

pytestmark = pytest.mark.usefixtures("fresh_memory_is_not_a_number")
DECAY = {"log_a", "A"}
KINDS = {"mild": 37, "strong": 19, "resets": 33, "nothing": 1}  # with a length for each: of one token, primes, others


def each(having=lambda form: True, among=FORMS):
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=form.marks) for name, form in among.items() if having(form)]
    )


every_form = each()
every_state = each(lambda form: "initial_state" in form.axes)
every_gate = each(lambda form: DECAY & {*form.axes})
every_reach = each(lambda form: form.reach)


def outputs(function, given):
    """Y, and the state where it is a tensor."""
    results = function(*given.values())
    results = results if isinstance(results, tuple) else (results,)
    return [x for x in results if isinstance(x, torch.Tensor)]


def with_gradients(function, given, which, cotangent=random_tensors):
    """Some outputs, and what they pass to the operands."""
    leaves = {name: None if x is None else x.detach().requires_grad_() for name, x in given.items()}
    results = outputs(function, leaves)
    found = [results[k] for k in which if results[k].requires_grad]
    back = [x.to(y) for x, y in zip(cotangent([y.shape for y in found], 7), found, strict=True)]
    present = [x for x in leaves.values() if x is not None]
    return found, torch.autograd.grad(found, present, back, materialize_grads=True, allow_unused=True)


def time(form, name):
    """The axis of an operand that counts tokens."""
    return next(k for k, axis in enumerate(form.axes[name]) if axis in "ts")


def check(form, given, cotangent=random_tensors, which=None):
    """Outputs and gradients are those of the loop in float64."""
    wide = {name: None if x is None else x.double() for name, x in given.items()}
    exact = next(x for x in given.values() if x is not None).dtype == torch.float64
    which = range(len(outputs(form.loop, wide))) if which is None else which
    truth, slopes = with_gradients(form.loop, wide, which, cotangent)
    if not form.differentiable:
        all_close(outputs(form.function, given), outputs(form.loop, wide), 2e-6)
        return
    found, grads = with_gradients(form.function, given, which, cotangent)
    all_close(found, truth, 1e-11 if exact else 2e-6)
    for name, ours, theirs in zip([n for n, x in given.items() if x is not None], grads, slopes, strict=True):
        if name == "A":  # the loop's is of the logarithm of a decay that may be 0
            theirs = torch.where(theirs.isfinite(), theirs, ours)
        same_slope(ours, theirs, 1e-11 if exact else 4e-6, 1e-14 if exact else 1e-6)


@every_form
def test_values_and_gradients_are_the_loops(name):
    form = FORMS[name]
    for kind, length in KINDS.items():
        check(form, form.operands(length, (), kind))


@every_form
def test_leading_axes(name):
    form = FORMS[name]
    for leading in ((3,), (0,), (2, 2), (2, 0)):
        check(form, form.operands(7, leading, "resets"))


@every_form
def test_leading_axes_broadcast(name):
    """An operand is shared by all heads, or one alone has heads."""
    form = FORMS[name]
    given = form.operands(7, (2, 2), "resets")
    for shared in given:
        check(form, given | {shared: given[shared][:, :1]})
        check(form, {name: x if name == shared else x[:1, :1] for name, x in given.items()})


@every_form
def test_no_tokens(name):
    form = FORMS[name]
    given = form.operands(0, (2,))
    Y, *state = outputs(form.function, given)
    assert Y.shape[:2] == (2, 0) or Y.shape[-2] == 0
    if "initial_state" in given:
        assert torch.equal(state[0].to(form.dtype), given["initial_state"])


@every_form
def test_what_is_left_out(name):
    """No decay is one of 1, no state one of zeros."""
    form = FORMS[name]
    given = form.operands(13)
    for left_out in ("log_a", "initial_state"):
        parameters = inspect.signature(form.function).parameters
        if left_out in given and left_out in parameters and parameters[left_out].default is None:
            check(form, given | {left_out: None})
            zeros = given | {left_out: 0 * given[left_out]}
            all_close(
                outputs(form.function, given | {left_out: None}),
                outputs(form.function, zeros),
                1e-6 if form.dtype == torch.float32 else 1e-12,
            )


@every_form
def test_gradients_of_one_output(name):
    """Of the sum of an output, a gradient of stride 0; the other output has none."""
    form = FORMS[name]
    given = form.operands(11, (2,), "resets")
    wide = {key: x.double() for key, x in given.items()}
    for which in range(len(outputs(form.loop, wide))):
        check(form, given, lambda shapes, seed: [torch.ones(()).expand(shape) for shape in shapes], [which])


@every_form
def test_single_precision(name):
    """Gradients of strong decays keep their digits, too, which a difference of large sums would lose."""
    form = FORMS[name]
    for kind in ("mild", "strong", "resets") if DECAY & {*form.axes} else ("mild",):
        check(form, form.operands(70, (2,), kind, torch.float32))


@every_form
def test_lower_precision(name):
    """Computed in float32 and rounded once; with strong decays, after which a sum of all would have no digits."""
    form = FORMS[name]
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        if form.dtype == torch.float32 and dtype == torch.bfloat16:
            continue  # the emulator of a GPU has none
        given = form.operands(70, (), "strong", dtype)
        truth = outputs(form.loop, {key: x.double() for key, x in given.items()})
        for number, (ours, theirs) in enumerate(zip(outputs(form.function, given), truth, strict=False)):
            assert ours.dtype == (torch.float32 if number else dtype)
            rounded = ours.dtype != torch.float32 or form.dtype == torch.float32  # a GPU multiplies what is rounded
            assert_close(ours, theirs, max(2e-6, torch.finfo(dtype).eps) if rounded else 2e-6)


@every_state
def test_two_parts_are_the_whole(name):
    form = FORMS[name]
    given = form.operands(37, (2,), "resets")
    whole, last = form.function(*given.values())
    for split in (0, 1, 8, 20, 37):
        parts, state = [], given["initial_state"]
        for part in (slice(None, split), slice(split, None)):
            some = {
                key: x[(slice(None), *[slice(None)] * form.axes[key].index("t"), part)]
                for key, x in given.items()
                if "t" in form.axes[key]
            }
            Y, state = form.function(*some.values(), state)
            parts.append(Y)
        tolerance = 1e-6 if form.dtype == torch.float32 else 1e-12
        assert_close(torch.cat(parts, -2), whole, tolerance)
        assert_close(state, last, tolerance)


@every_gate
@pytest.mark.parametrize("reset", [-INF, -1e4])
def test_a_reset_forgets_to_the_last_bit(name, reset):
    form, at = FORMS[name], 17
    given = form.operands(40)
    for gate in DECAY & {*given}:
        given[gate][at] = reset if gate == "log_a" else 0.0
    before = {key: x.clone() for key, x in given.items()}
    for key in {*given} - DECAY - {"beta"}:
        before[key][: None if key == "initial_state" else at] *= -0.3
    (Y, *state), (other, *end) = (outputs(form.function, x) for x in (given, before))
    assert torch.equal(Y[at:], other[at:])
    assert not torch.equal(Y[:at], other[:at])
    if "initial_state" in given:
        assert all(map(torch.equal, state, end))


@every_gate
@pytest.mark.parametrize("reset", [-INF, -1e4, -1e3])
def test_float32_keeps_its_digits_after_a_reset(name, reset):
    """A sum of log decays that holds the reset would have lost those of what follows."""
    form, at = FORMS[name], (20, 50, 60)
    given = form.operands(80, dtype=torch.float32)
    for gate in DECAY & {*given}:
        given[gate] = 0.05 * given[gate]
        given[gate][[*at]] = reset if gate == "log_a" else 0.0
    Y = outputs(form.function, given)[0]
    truth = outputs(form.loop, {key: x.double() for key, x in given.items()})[0]
    for start in at:
        assert relative_rms(Y[start : start + 10], truth[start : start + 10]) < 1e-6


class LargestExponent(TorchDispatchMode):
    """Records the largest number that any exponential is taken of."""

    largest = -INF

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.exp, torch.ops.aten.exp_, torch.ops.aten.exp2):
            self.largest = max([self.largest, *args[0].flatten().tolist()])
        return func(*args, **kwargs or {})


@every_gate
def test_no_exponential_of_a_positive_number(name):
    form = FORMS[name]
    given = form.operands(40, (), "resets")
    if form.differentiable and "slot" not in name:  # these end in a softmax
        with LargestExponent() as mode:
            with_gradients(form.function, given, [0])
        assert mode.largest <= 0


@every_reach
def test_the_future_does_not_matter_to_the_last_bit(name):
    form, at = FORMS[name], 17
    given = form.operands(40)
    Y = outputs(form.function, given)[0]
    for key in {*given} - {"initial_state", "bias"}:
        later = given | {key: given[key].clone()}
        later[key].narrow(time(form, key), at, 40 - at).mul_(0.3)
        changed = outputs(form.function, later)[0]
        axis = changed.ndim - 2
        assert torch.equal(changed.narrow(axis, 0, at), Y.narrow(axis, 0, at))
        assert not torch.equal(changed, Y)


@every_reach
@pytest.mark.parametrize("value", [math.nan, INF])
def test_what_a_number_that_is_none_reaches(name, value):
    """One at a token reaches no output before it, or as few as the docstring says."""
    form = FORMS[name]
    given = form.operands(110)
    time = -2
    Y = outputs(form.function, given)[0]
    for key in {"K", "V", "B", "X", "x"} & {*given}:
        for at in (75, 101):
            poisoned = given | {key: given[key].clone()}
            poisoned[key][..., at, 0] = value
            found, first = outputs(form.function, poisoned)[0], form.reach(at)
            assert_close(found.narrow(time, 0, first), Y.narrow(time, 0, first))
            if value != value:
                assert not found.narrow(time, at, 1).isfinite().all()


@every_reach
def test_the_docstring_says_what_it_reaches(name):
    """A finite number too may overflow in a product, and reach as far."""
    form = FORMS[name]
    contract = " ".join(said(form).__doc__.split())
    assert form.reach is exact or "NaN" in contract
    assert form.reach is exact or "reaches no earlier output" not in contract
    given, reached = form.operands(110), []
    for key in {"K", "V", "B", "X", "x"} & {*given}:
        large = given | {key: given[key].clone()}
        large[key][..., 75, 0] = torch.finfo(torch.float64).max
        Y = outputs(form.function, large)[0]
        assert Y.narrow(-2, 0, form.reach(75)).isfinite().all()
        reached.append(not Y.narrow(-2, 0, 75).isfinite().all())
    assert any(reached) <= ("overflow" in contract)


@every_form
def test_inputs_stay_and_two_runs_agree(name):
    """Inputs whose rows do not lie one after the other, too."""
    form = FORMS[name]
    given = {key: x.mT.contiguous().mT if x.ndim > 1 else x for key, x in form.operands(19, (2,), "resets").items()}
    before = {key: x.clone() for key, x in given.items()}
    first, second = (with_gradients(form.function, given, [0]) for _ in range(2))
    assert all(map(torch.equal, first[0] + [*first[1]], second[0] + [*second[1]]))
    assert all(torch.equal(given[key], before[key]) for key in given)
    check(form, given)


def own(name):
    """The name under which a function's messages begin."""
    return name.partition(" ")[0].rpartition(".")[2]


def said(form):
    """The function whose docstring holds for a form."""
    return form.says or getattr(form.function, "func", form.function)


CALLED = {  # those whose operands are arguments as they are, and that take decays and not their products
    name: form
    for name, form in (FUNCTIONS | FORMS).items()
    if getattr(getattr(form.function, "func", form.function), "__name__", "") == own(name)
    and not name.startswith("masks.")
    and not name.endswith("by token")
}


@each(among=CALLED)
def test_what_does_not_fit_is_refused_by_function_and_argument(name):
    form = CALLED[name]
    given = form.operands(8)
    form.function(*given.values())
    for key in given:
        for bad, error in misfits(form, key, given[key]):
            with pytest.raises(error, match=rf"^{own(name)}: .*\b{key.strip('_')}\b"):
                form.function(*(given | {key: bad}).values())
        many = {other: x.expand(2 + (key == other), *x.shape) for other, x in given.items()}
        with pytest.raises(ShapeError, match=f"^{own(name)}: ") if len(given) > 1 else contextlib.nullcontext():
            form.function(*many.values())


def misfits(form, key, x):
    """What is no such argument, with the error that it should be."""
    others = "".join(axes for other, axes in form.axes.items() if other != key)
    shapes = [x.narrow(k, 1, x.shape[k] - 1) for k, axis in enumerate(form.axes[key]) if axis in others and axis != "h"]
    values = [x.tolist(), "x", x.to(torch.int64), x.to_sparse()]
    if others and not re.search(rf"{key}: .*any floating dtype, any device", said(form).__doc__):
        values += [x.to("meta"), x.half()]
    values += [-x, x * math.nan] if key == "log_a" else [x - 3, x + 3, x * math.nan] if key == "beta" else []
    return [*((bad, ShapeError) for bad in shapes), *((bad, (TypeError, ValueError)) for bad in values)]
