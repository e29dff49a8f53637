"""The exercise engine: every sentence that a learner can meet, the time limit, and what an attempt must not disturb."""

import _thread
import dataclasses
import doctest
import functools
import importlib
import inspect
import io
import itertools
import json
import math
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
import torch

from smalearn.course.exercises import (
    CheckFailed,
    Exercise,
    check,
    commands,
    compare,
    core,
    evaluate,
    hint,
    judge,
    limit,
    register,
    registry,
    report,
    solution,
    verify,
)
from smalearn.course.exercises.compare import sentence_case
from smalearn.course.exercises.run import PRINTED_LINES, _Printed, run

# ------------------------------------------------------------------------------------------------- demo exercises


class Steps:
    """A causal matrix as a structured mask would hold it: an object with a shape and a tensor."""

    def __init__(self, rows):
        self.rows = rows
        self.shape = (len(rows), len(rows))

    def dense(self):
        return (self.rows[:, None] >= self.rows).double()


def causal_product(Q, K, V):
    """Masked attention without softmax.

    Hint: Which scores may row t see?

    Hint: `tril` zeroes what lies above
    the diagonal.
    """
    return (Q @ K.mT).tril() @ V


def _causal_cases(randn):
    for length in (1, 2, 4, 9):
        yield tuple(randn(length, size) for size in (2, 2, 3))


def _causal_loop(Q, K, V):
    return torch.stack([sum((Q[t] @ K[s]) * V[s] for s in range(t + 1)) for t in range(len(Q))])


NO_MASK = "the causal mask is missing: this is the unmasked product Q(KᵀV)"


def unmasked(Q, K, V):
    return Q @ (K.mT @ V)


CAUSAL = Exercise(
    id="demo.1",
    title="causal attention",
    claim="000:eq10",
    level=2,
    minutes=5,
    cases=_causal_cases,
    oracle=_causal_loop,
    solution=causal_product,
    wrong={
        NO_MASK: unmasked,
        "this keeps the future and hides the past": lambda Q, K, V: (Q @ K.mT).triu() @ V,
        "each row sees itself alone, no past": lambda Q, K, V: (Q * K).sum(-1, keepdim=True) * V,
    },
)


def describe(spec, sizes, shift, flag):
    """The number of axes, their letters, their volume, and the flag turned round.

    Hint: Count.

    Hint: Sort.
    """
    letters = "".join(sorted(set(spec) & set(sizes)))
    return len(letters), letters, math.prod(sizes[letter] for letter in letters) * shift, not flag


def _describe_cases(randn):
    yield "t", {"t": 1}, 1.5, True
    yield "ts", {"t": 2, "s": 3}, 0.0, False
    yield "tsn", {"t": 2, "s": 3, "n": 5}, 1.5, True


PLAIN = dataclasses.replace(
    CAUSAL,
    id="demo.2",
    title="plain values",
    oracle=lambda spec, sizes, shift, flag: (
        len(spec),
        "".join(sorted(spec)),
        functools.reduce(lambda product, letter: product * sizes[letter], spec, 1) * shift,
        not flag,
    ),
    cases=_describe_cases,
    solution=describe,
    wrong={
        "sort the letters": lambda s, z, h, f: (len(s), s, describe(s, z, h, f)[2], not f),
        "you added sizes": lambda s, z, h, f: (len(s), "".join(sorted(s)), sum(z.values()) * h, not f),
        "you stop at two axes": lambda s, z, h, f: (min(len(s), 2), *describe(s, z, h, f)[1:]),
    },
)


def masked_sum(mask, log, initial_state):
    """Rows of sums under a mask, the logarithm of the mask, and the last row.

    Hint: Multiply.

    Hint: Add.
    """
    rows = mask.dense() @ log + initial_state
    return rows, mask.dense().log(), {"last": rows[-1]}["last"]


def _state_cases(randn):
    for length in (1, 3, 8):
        log = randn(length, 2)
        yield Steps(torch.arange(length)), log, torch.zeros(2, dtype=torch.float64)


STATE = dataclasses.replace(
    CAUSAL,
    id="demo.3",
    title="sums and a state",
    oracle=lambda mask, log, initial_state: (
        log.cumsum(0) + initial_state,
        torch.stack([torch.where(torch.arange(len(log)) <= t, 0.0, -math.inf) for t in range(len(log))]).double(),
        log.sum(0) + initial_state,
    ),
    cases=_state_cases,
    solution=masked_sum,
    wrong={
        "do not divide": lambda m, x, s: (x.cumsum(0) / len(x) + s, m.dense().log(), x.sum(0) + s),
        "this is the first row": lambda m, x, s: (x.cumsum(0) + s, m.dense().log(), x[0] + s),
        "rows must add up": lambda m, x, s: (x + s, m.dense().log(), x.sum(0) + s),
    },
)

DEMOS = {exercise.id: exercise for exercise in (CAUSAL, PLAIN, STATE)}


def said(exercise, attempt, **options):
    """The text of a check, whose lines are never wider than a page."""
    text = report.render(evaluate(exercise, attempt, **options))
    assert max(map(len, text.split("\n"))) <= 104
    return text


def described(text):
    """A solution with another docstring."""

    def product(Q, K, V):
        return causal_product(Q, K, V)

    product.__doc__ = text
    return product


def by(exercise, change):
    """An attempt that spoils the solution's answer."""
    return lambda *arguments: change(exercise.solution(*arguments))


# ------------------------------------------------------------------------------------------------ the exercise object


@pytest.mark.parametrize("exercise", DEMOS.values(), ids=DEMOS)
def test_demo_exercises_are_sound(exercise):
    assert verify(exercise) == []


def test_label():
    assert CAUSAL.label == "●●○ · 5 min · about 1 line"
    assert PLAIN.label == "●●○ · 5 min · about 2 lines"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "1. 2"}, r"Exercise '1. 2': id must be letters and digits joined by dots, such as '1.2'"),
        ({"id": 1.2}, r"Exercise 1.2: id must be"),
        ({"title": " "}, r"Exercise 'demo.1': title must be a non-empty string, got ' '"),
        ({"claim": ""}, r"claim must be a non-empty string, got ''"),
        ({"oracle": 3}, r"oracle must be callable, got int"),
        ({"cases": []}, r"cases must be callable, got list"),
        ({"solution": "tril"}, r"solution must be a function written with `def`, got 'tril'"),
        ({"solution": lambda Q, K, V: Q}, r"solution must be a function written with `def`, got <function <lambda>"),
        ({"solution": described("Multiply.\n\nHint: one")}, r"docstring must have at least 2 paragraphs 'Hint: ...'"),
        ({"solution": described("Hint: one\n\nHint: two")}, r"the solution's docstring must say what to write"),
        ({"solution": described(None)}, r"docstring must have at least 2 paragraphs"),
        ({"wrong": dict(list(CAUSAL.wrong.items())[:2])}, r"wrong must have at least 3 answers, got {"),
        ({"wrong": (1, 2, 3)}, r"wrong must have at least 3 answers, got \(1, 2, 3\)"),
        ({"wrong": CAUSAL.wrong | {"new": 3}}, r"wrong must map sentences to functions or edits, got 'new': int"),
        (
            {"wrong": CAUSAL.wrong | {" ": unmasked}},
            r"wrong must map sentences to functions or edits, got ' ': function",
        ),
        ({"minutes": 0}, r"minutes must be a positive integer, got 0"),
        ({"minutes": True}, r"minutes must be a positive integer, got True"),
        ({"level": 4}, r"level must be 1, 2 or 3, got 4"),
        ({"tolerance": 0.0}, r"tolerance must lie between 0 and 1, got 0.0"),
    ],
)
def test_exercise_says_what_is_wrong_with_it(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CAUSAL, **change)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda Y: torch.nested.nested_tensor([Y, Y]), "expected a tensor, got a nested tensor"),
        (lambda Y: torch.quantize_per_tensor(Y.float(), 0.1, 0, torch.qint8), "expected a tensor, got a quantised ten"),
        (lambda Y: Y.to("meta"), "got a tensor on the device meta, which has no entries"),
        (lambda Y: Y.to(torch.float8_e4m3fn), "Wrong dtype: expected torch.float64, got torch.float8_e4m3fn"),
    ],
)
def test_unusual_tensors_are_named(spoil, said):
    assert said in " ".join(report.render(evaluate(CAUSAL, by(CAUSAL, spoil))).split())


def test_objects_that_raise_whatever_they_are_asked():
    class Angry:
        def __call__(self, Q, K, V):
            return causal_product(Q, K, V)

        def __getattr__(self, name):
            raise RuntimeError(name)

    assert evaluate(CAUSAL, Angry()).outcome == "passed"
    assert check(CAUSAL, attempt := Angry()) is attempt
    assert "got an object of type Angry" in report.render(evaluate(CAUSAL, lambda *_: Angry()))


def test_what_an_attempt_sets_is_as_it_was():
    before = torch.get_default_device(), torch.get_num_threads(), sys.getrecursionlimit()

    def attempt(Q, K, V):
        torch.set_default_device("meta")
        torch.set_num_threads(before[1] + 1)
        sys.setrecursionlimit(5000)
        return causal_product(Q, K, V)

    assert evaluate(CAUSAL, attempt).outcome == "passed"
    assert (torch.get_default_device(), torch.get_num_threads(), sys.getrecursionlimit()) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # time may be over in a destructor
def test_a_recursion_without_end_ends():
    def attempt(Q, K, V):
        sys.setrecursionlimit(200_000)

        def again(n):
            return again(n + 1) + 1

        return again(0)

    assert evaluate(CAUSAL, attempt, limit=0.5).outcome in ("timeout", "error")


def test_a_number_may_be_a_tensor_without_axes():
    assert evaluate(PLAIN, by(PLAIN, lambda a: (torch.tensor(a[0]), *a[1:]))).outcome == "passed"
    assert evaluate(PLAIN, by(PLAIN, lambda a: (np.int64(a[0]), *a[1:]))).outcome == "passed"


def test_the_code_of_a_solution_has_no_decorator_and_no_hints():
    assert CAUSAL.hints == ["Which scores may row t see?", "`tril` zeroes what lies above the diagonal."]
    first = registry()["0.1"].code
    assert first.startswith('def running_mean(V):\n    """Attention with equal weights')
    assert "Hint" not in first
    assert first.endswith("return V.cumsum(0) / count[:, None]")
    exec(first, vars(torch) | {"torch": torch})  # complete, and Python


def test_a_decorated_function_is_an_exercise_and_stays_a_function(monkeypatch):
    monkeypatch.setattr(core, "_registry", {})
    fields = {name: getattr(CAUSAL, name) for name in ("claim", "level", "minutes", "cases", "oracle", "wrong")}
    assert core.exercise("demo.1", "causal attention", **fields)(causal_product) is causal_product
    assert core._registry == {"demo.1": CAUSAL}


def test_cases_are_drawn_again_for_the_same_seed():
    assert compare.same(CAUSAL.draw(3), CAUSAL.draw(3))
    assert not compare.same(CAUSAL.draw(3), CAUSAL.draw(4))
    few = dataclasses.replace(CAUSAL, cases=lambda randn: [(1,), 2])
    with pytest.raises(ValueError, match=r"cases must yield at least 3 tuples of arguments, got \['tuple', 'int'\]"):
        few.draw()
    loose = dataclasses.replace(CAUSAL, cases=lambda randn: [(1,), 2, (3,)])
    with pytest.raises(ValueError, match=r"at least 3 tuples"):
        loose.draw()


# ----------------------------------------------------------------------------------------------------- the registry


@pytest.fixture
def empty_registry(monkeypatch):
    monkeypatch.setattr(core, "_registry", {})
    monkeypatch.setattr(core.pkgutil, "iter_modules", lambda path: [])


def test_registry_keeps_order_and_identity(empty_registry):
    for id in ("10.1", "quiz.1", "2.10", "2.9"):
        assert register(dataclasses.replace(CAUSAL, id=id)).id == id
    assert list(registry()) == ["2.9", "2.10", "10.1", "quiz.1"]
    again = register(dataclasses.replace(CAUSAL, id="2.9", minutes=9))
    assert registry()["2.9"] is again
    with pytest.raises(ValueError, match=r"register: id '2.9' of 'other' is taken by 'causal attention'"):
        register(dataclasses.replace(CAUSAL, id="2.9", title="other"))
    registry().clear()
    assert len(registry()) == 4


def test_registry_imports_chapters_on_first_use():
    code = (
        "import sys, smalearn.course.exercises as e; "
        "chapters = lambda: [m for m in sys.modules if '.course.ch' in m]; "
        "assert not chapters(); assert '0.1' in e.registry(); assert chapters(); "
        "assert not {'IPython', 'matplotlib', 'pytest'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", [hint, solution, lambda id: check(id, print)])
def test_unknown_ids_name_their_neighbours(empty_registry, command):
    for id in ("1.1", "1.2", "2.1"):
        register(dataclasses.replace(CAUSAL, id=id))
    name = getattr(command, "__name__", "check").replace("<lambda>", "check")
    with pytest.raises(ValueError, match=rf"{name}: exercise '1.3' is unknown; the nearest ids are 1\.\d, 1\.\d"):
        command("1.3")
    with pytest.raises(ValueError, match=rf"{name}: exercise must be an id such as '1.2' or an Exercise, got float"):
        command(1.2)


# --------------------------------------------------------------------------------------- what a learner is told


def test_passing_text():
    assert said(CAUSAL, causal_product) == "✓ demo.1 causal attention: 4 cases passed (seed 0)"
    assert said(PLAIN, describe, seed=7) == "✓ demo.2 plain values: 3 cases passed (seed 7)"


def test_not_started_text():
    def stub(Q, K, V):
        """The docstring."""
        raise NotImplementedError("your turn")

    expected = "○ demo.1 not started; later cells use the reference solution"
    assert said(CAUSAL, stub) == expected
    assert said(CAUSAL, torch.no_grad()(stub)) == expected


def test_not_implemented_elsewhere_is_an_error():
    def partly(Q, K, V):
        if len(Q) > 1:
            raise NotImplementedError
        return causal_product(Q, K, V)

    def helped(Q, K, V):
        return partly(K.repeat(2, 1), K, V)

    def inside_torch(Q, K, V):
        return torch.empty(2, device="meta").numpy(force=True)

    assert "1 of 4 cases passed" in said(CAUSAL, partly)
    assert "line 3 of partly: raise NotImplementedError\n    NotImplementedError" in said(CAUSAL, partly)
    assert "line 2 of helped: return partly(K.repeat(2, 1), K, V)\n    line 3 of partly" in said(CAUSAL, helped)
    assert "NotImplementedError: Cannot copy out of meta tensor" in said(CAUSAL, inside_torch)


def test_misconception_text():
    assert said(CAUSAL, lambda Q, K, V: Q @ K.mT @ V) == textwrap.dedent(
        """\
        ✗ demo.1 causal attention: 1 of 4 cases passed (seed 0)
          Smallest failing case: 2 of 4
            Q = torch.tensor([[0.838026, -0.719258], [-0.403344, -0.596635]], dtype=torch.float64)
            K = torch.tensor([[0.182036, -0.856675], [1.1006, -1.07119]], dtype=torch.float64)
            V = torch.tensor([[0.122701, -0.566317, 0.373115], [-0.891995, -1.50911, 0.370394]],
              dtype=torch.float64)
          Wrong values
            expected                  | your answer
             0.0943  -0.4353   0.2868 | -1.4156  -2.9900   0.9138
            -0.1204  -0.5424   0.2356 | -0.1204  -0.5424   0.2356
            largest difference 2.55 at [0, 1], shape (2, 3), torch.float64
          → The causal mask is missing: this is the unmasked product Q(KᵀV)
          causal_product is our solution from here on; to have yours back, run its cell."""
    )


def test_every_known_wrong_answer_is_recognised_and_a_new_mistake_is_not():
    for exercise in DEMOS.values():
        for sentence, function in exercise.wrong.items():
            assert evaluate(exercise, function, seed=5).misconception == sentence
    other = evaluate(CAUSAL, by(CAUSAL, torch.tanh))
    assert other.outcome == "failed"
    assert other.misconception is None
    assert other.sign == "where Q is halved the right answer is halved, yours is not"
    assert "→ Where Q is halved" in report.render(other)


def test_misconception_must_hold_in_all_cases():
    def sometimes(Q, K, V):
        return Q @ K.mT @ V if len(Q) == 4 else 2 * causal_product(Q, K, V)

    assert evaluate(CAUSAL, sometimes).misconception is None

    def otherwise_wrong(Q, K, V):  # also where the known answer is right: it comes from something else
        return Q @ K.mT @ V if len(Q) > 1 else 0 * V

    assert evaluate(CAUSAL, otherwise_wrong).misconception is None

    def partly(Q, K, V):
        return Q @ K.mT @ V if len(Q) < 9 else Q[99]

    assert evaluate(CAUSAL, partly).outcome == "failed"
    assert evaluate(CAUSAL, partly).misconception is None


def test_a_known_answer_that_agrees_with_the_attempt_in_one_case_alone_is_not_named():
    def only_long(Q, K, V):
        return Q @ K.mT @ V if len(Q) == 9 else causal_product(Q, K, V)

    both = dataclasses.replace(CAUSAL, wrong={"only long": only_long} | CAUSAL.wrong)
    assert evaluate(both, unmasked).misconception == NO_MASK
    assert evaluate(both, only_long).misconception == "only long"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("this is", "This is"),
        ("a row", "A row"),
        ("exp(0) = 1", "exp(0) = 1"),
        ("q·k is", "q·k is"),
        ("t ≤ s", "t ≤ s"),
        ("a_j is", "a_j is"),
        ("K is", "K is"),
        ("√N is", "√N is"),
    ],
)
def test_a_misconception_begins_with_a_capital_unless_with_a_name(message, shown):
    assert sentence_case(message) == shown


def test_known_answers_may_raise_or_be_no_numbers():
    def raising(Q, K, V):
        raise RuntimeError("expected (T, N)")

    def other(Q, K, V):
        raise RuntimeError("expected (T, P)")

    def divided(Q, K, V):
        return causal_product(Q, K, V) / (Q @ K.mT).triu().tril(-1)[:, :1]

    wrong = {"raised": raising, "divided by 0": divided, NO_MASK: unmasked}
    exercise = dataclasses.replace(CAUSAL, wrong=wrong)
    assert verify(exercise, seeds=[0]) == []
    assert evaluate(exercise, raising).misconception == "raised"
    assert evaluate(exercise, other).misconception is None
    assert evaluate(exercise, by(exercise, lambda Y: Y / 0)).misconception == "divided by 0"
    assert evaluate(exercise, by(exercise, lambda Y: Y * torch.nan)).misconception is None
    assert evaluate(exercise, unmasked).misconception == NO_MASK


def test_two_known_answers_that_are_near_each_other_are_told_apart():
    """One is nearly right: it is recognised only from as near as a hundredth of that."""
    wrong = {f"{factor}": by(CAUSAL, lambda Y, factor=factor: factor * Y) for factor in (1 + 1e-6, 1 + 2e-6, 1.001)}
    exercise = dataclasses.replace(CAUSAL, wrong=wrong)
    assert verify(exercise, seeds=[0]) == []
    assert evaluate(exercise, by(CAUSAL, lambda Y: (1 + 1e-6 + 1e-9) * Y)).misconception == "1.000001"
    assert evaluate(exercise, by(CAUSAL, lambda Y: (1 + 1.5e-6) * Y)).misconception is None


SENTENCES = {
    "none": (CAUSAL, lambda Y: None, "The answer is None: did you forget `return`?"),
    "number": (CAUSAL, lambda Y: 3, "Wrong type: expected a tensor, got a number"),
    "bool": (CAUSAL, lambda Y: True, "Wrong type: expected a tensor, got a bool"),
    "list": (CAUSAL, list, "Wrong type: expected a tensor, got a list: `torch.stack(...)` makes a tensor of it"),
    "tuple": (CAUSAL, tuple, "Wrong type: expected a tensor, got a tuple: `torch.stack(...)` makes a tensor of it"),
    "numbers": (
        CAUSAL,
        lambda Y: Y.tolist(),
        "Wrong type: expected a tensor, got a list: `torch.tensor(...)` makes a tensor of it",
    ),
    "empty list": (CAUSAL, lambda Y: [], "Wrong type: expected a tensor, got a list\n"),
    "array": (
        CAUSAL,
        lambda Y: Y.numpy(),
        "Wrong type: expected a tensor, got a NumPy array: `torch.from_numpy(...)` makes a tensor of it",
    ),
    "set": (CAUSAL, lambda Y: {1, 2}, "Wrong type: expected a tensor, got a set\n"),
    "dict": (CAUSAL, lambda Y: {1: 2}, "Wrong type: expected a tensor, got a dict\n"),
    "object": (CAUSAL, lambda Y: (row for row in Y), "Wrong type: expected a tensor, got an object of type generator"),
    "dtype": (
        CAUSAL,
        lambda Y: Y.float(),
        "The values are right, but in float32: make your tensors with `dtype=Q.dtype`\n",
    ),
    "half": (
        CAUSAL,
        lambda Y: Y.half(),
        "The values are right, but in float16: make your tensors with `dtype=Q.dtype`",
    ),
    "dtype and values": (
        CAUSAL,
        lambda Y: Y.float() * 1.001,
        "Wrong dtype: expected torch.float64, got torch.float32: does a tensor that you make lack `dtype=`?",
    ),
    "complex": (CAUSAL, lambda Y: Y + 0j, "The values are right, but in complex128: take `.real`, or use `irfft`"),
    "integers": (CAUSAL, lambda Y: Y.long(), "Wrong dtype: expected torch.float64, got torch.int64\n"),
    "shape": (CAUSAL, lambda Y: Y[:, :2], "Wrong shape: expected (1, 3), got (1, 2)\n"),
    "broadcast": (CAUSAL, lambda Y: Y[0], "Wrong shape: expected (1, 3), got (3,)\n"),
    "transpose": (CAUSAL, lambda Y: Y.mT, "Wrong shape: expected (1, 3), got (3, 1): that is the transpose"),
    "nan": (
        CAUSAL,
        lambda Y: Y.index_fill(1, torch.tensor([2]), math.nan),
        "Not finite: 1 of 3 entries are NaN or infinite, the first is nan at [0, 2]",
    ),
    "inf": (CAUSAL, lambda Y: Y / 0, "Not finite: 3 of 3 entries are NaN or infinite, the first is "),
    "values": (CAUSAL, lambda Y: Y + 1, "Wrong values\n"),
    "nothing": (PLAIN, lambda a: None, "The answer is None: did you forget `return`?"),
    "bare": (PLAIN, lambda a: a[0], "Wrong type: expected a tuple, got a number"),
    "short": (PLAIN, lambda a: a[:3], "Wrong length: expected a tuple of 4, got 3"),
    "count": (PLAIN, lambda a: (a[0] + 1, *a[1:]), "In item 0 of the answer: wrong answer"),
    "float count": (PLAIN, lambda a: (a[0] + 1e-12, *a[1:]), "In item 0 of the answer: wrong answer"),
    "missing": (PLAIN, lambda a: (None, *a[1:]), "In item 0 of the answer: wrong type: expected a number, got None"),
    "several": (
        PLAIN,
        lambda a: (torch.ones(2), *a[1:]),
        "In item 0 of the answer: wrong type: expected a number, got a tensor\n",
    ),
    "list of letters": (
        PLAIN,
        lambda a: (a[0], list(a[1]), *a[2:]),
        'In item 1 of the answer: wrong type: expected a string, got a list: `"".join(...)` makes a string\n',
    ),
    "letters": (PLAIN, lambda a: (a[0], "x", *a[2:]), "In item 1 of the answer: wrong answer"),
    "volume": (PLAIN, lambda a: (*a[:2], a[2] * 1.001, a[3]), "In item 2 of the answer: wrong answer"),
    "zero": (PLAIN, lambda a: (*a[:2], a[2] or 1e-6, a[3]), "In item 2 of the answer: wrong answer"),
    "nan number": (PLAIN, lambda a: (*a[:2], math.nan, a[3]), "In item 2 of the answer: not finite: the answer is nan"),
    "inf number": (PLAIN, lambda a: (*a[:2], math.inf, a[3]), "In item 2 of the answer: not finite: the answer is inf"),
    "flag": (PLAIN, lambda a: (*a[:3], not a[3]), "In item 3 of the answer: wrong answer"),
    "flag as number": (PLAIN, lambda a: (*a[:3], int(a[3])), "In item 3 of the answer: wrong type: expected a bool"),
    "dtype of an item": (
        STATE,
        lambda a: (*a[:2], a[2].float()),
        "In item 2 of the answer: the values are right, but in float32: make your tensors with\n    `dtype=log.dtype`",
    ),
    "state": (STATE, lambda a: (*a[:2], 2 * a[2]), "In item 2 of the answer: wrong values"),
    "lost -inf": (STATE, lambda a: (a[0], a[1].clamp(min=-1e9), a[2]), "In item 1 of the answer: wrong values"),
    "moved -inf": (STATE, lambda a: (a[0], a[1].mT, a[2]), "In item 1 of the answer: not finite: 3 of 9 entries"),
}


@pytest.mark.parametrize(("exercise", "change", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_sentence(exercise, change, sentence):
    text = said(exercise, by(exercise, change))
    assert f"\n  {sentence}" in text
    assert text.startswith(f"✗ {exercise.id} {exercise.title}: ")
    assert text.endswith("is our solution from here on; to have yours back, run its cell.")
    assert evaluate(exercise, by(exercise, change)).outcome == "failed"


RIGHT = {
    "parameter": (CAUSAL, lambda Y: torch.nn.Parameter(Y)),
    "graph": (CAUSAL, lambda Y: (Y.requires_grad_() * 1).mT.contiguous().mT),
    "sparse": (CAUSAL, lambda Y: Y.to_sparse()),
    "rounding": (CAUSAL, lambda Y: Y * (1 + 1e-12)),
    "list": (PLAIN, list),
    "numpy": (PLAIN, lambda a: (np.int64(a[0]), np.str_(a[1]), np.float64(a[2]), np.bool_(a[3]))),
    "float count": (PLAIN, lambda a: (float(a[0]), *a[1:])),
    "rounded zero": (PLAIN, lambda a: (*a[:2], a[2] * (1 + 1e-12) + 1e-13, a[3])),
}


@pytest.mark.parametrize(("exercise", "change"), RIGHT.values(), ids=RIGHT)
def test_right_in_another_dress(exercise, change):
    assert evaluate(exercise, by(exercise, change)).outcome == "passed"


def test_frozen_answers_hold_no_graph():
    answer = (torch.ones(2, requires_grad=True) * 2, "a")
    frozen = compare.freeze([answer])
    assert isinstance(frozen, list)
    assert not frozen[0][0].requires_grad
    assert frozen[0][1] == "a"


def test_tensor_subclass_passes():
    class Named(torch.Tensor):
        pass

    assert evaluate(CAUSAL, by(CAUSAL, lambda Y: Y.as_subclass(Named))).outcome == "passed"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_zero_target_is_compared_absolutely(dtype):
    zero = torch.zeros(2, 3, dtype=dtype)
    assert compare.difference(zero + 1e-12, zero, 1e-9) is None
    assert compare.difference(zero + 1e-6, zero, 1e-9).in_form
    assert compare.difference(zero[:0], zero[:0], 1e-9) is None


def test_integer_and_bool_tensors_must_be_equal():
    count = torch.tensor([[10**12, 3]])
    assert compare.difference(count, count.clone(), 1e-3) is None
    assert compare.difference(count + 1, count, 1e-3).sentence == "Wrong values"
    flags = torch.tensor([[True, False], [False, False]])
    assert compare.difference(flags, flags.clone(), 1e-3) is None
    assert compare.difference(~flags, flags, 1e-3).sentence == "Wrong values"
    upper = torch.tensor([[1, 2], [3, 4]])
    assert compare.difference(upper.mT, upper, 1e-3).sentence == "Wrong values: they are right after a transpose"


def test_not_callable():
    text = said(CAUSAL, torch.ones(2))
    assert text == (
        '✗ demo.1 causal attention: check needs the function itself, got a tensor: write check("demo.1",\n'
        "  causal_product)\n"
        "  causal_product is our solution from here on; to have yours back, run its cell."
    )
    assert evaluate(CAUSAL, None).outcome == "error"
    assert "got None" in said(CAUSAL, None)


def test_wrong_parameters():
    text = said(CAUSAL, lambda Q, K: Q)
    assert "wrong parameters: expected causal_product(Q, K, V), got (Q, K)\n" in text
    assert "got (Q, K, V, scale)" in said(CAUSAL, lambda Q, K, V, scale: Q)
    assert evaluate(CAUSAL, lambda Q, K: Q).outcome == "error"
    assert evaluate(CAUSAL, lambda *QKV, scale=1: causal_product(*QKV)).outcome == "passed"


def test_type_error_inside_the_body_is_an_exception():
    def helper(Q):
        return Q

    def mistaken(Q, K, V):
        return helper(Q, K)

    assert re.search(
        r"line 2 of mistaken: return helper\(Q, K\)\n    TypeError: .*takes 1 positional", said(CAUSAL, mistaken)
    )


def test_functions_without_a_signature_are_tried():
    assert "Wrong type: expected a tensor, got a number" in said(CAUSAL, lambda *a: max(1, 2))
    assert "TypeError" in said(CAUSAL, max) or "RuntimeError" in said(CAUSAL, max)
    assert evaluate(CAUSAL, torch.addmm).outcome in ("error", "failed")


class Module(torch.nn.Module):
    def forward(self, Q, K, V):
        return causal_product(Q, K, V)


def test_any_callable_may_be_an_attempt():
    assert evaluate(CAUSAL, Module()).outcome == "passed"
    assert evaluate(CAUSAL, functools.partial(causal_product)).outcome == "passed"
    assert evaluate(CAUSAL, torch.no_grad()(causal_product)).outcome == "passed"


def test_exception_text():
    def attention(Q, K, V):
        scores = [Q[t] @ K.mT for t in range(len(Q))]
        return torch.stack(scores) @ helper(V)

    def helper(V):
        V.attribute = object()
        raise KeyError(f"no column in {object()!r}")

    assert said(CAUSAL, attention) == textwrap.dedent(
        """\
        ✗ demo.1 causal attention: 0 of 4 cases passed (seed 0)
          Smallest failing case: 1 of 4
            Q = torch.tensor([[1.541, -0.293429]], dtype=torch.float64)
            K = torch.tensor([[-2.17879, 0.568431]], dtype=torch.float64)
            V = torch.tensor([[-1.08452, -1.3986, 0.403347]], dtype=torch.float64)
          Your code raised an exception
            line 3 of attention: return torch.stack(scores) @ helper(V)
            line 3 of helper: raise KeyError(f"no column in {object()!r}")
            KeyError: 'no column in <object object at 0x…>'
          causal_product is our solution from here on; to have yours back, run its cell."""
    )
    assert evaluate(CAUSAL, attention).outcome == "error"


def test_frames_of_libraries_are_left_out():
    def inside(Q, K, V):
        return [V.missing[row] for row in range(2)]

    def deeper(Q, K, V):
        return torch.nn.Linear(3, 3)(Q)

    assert re.search(r"exception\n    line 2 of inside: .*\n    AttributeError", said(CAUSAL, inside))
    assert re.search(r"exception\n    line 2 of deeper: .*\n    RuntimeError", said(CAUSAL, deeper))
    assert re.search(r"exception\n    line 2 of forget: .*\n    IndexError", said(CAUSAL, torch.no_grad()(forget)))


def forget(Q, K, V):
    return [Q[row] for row in (0, 10**6)]


def test_long_and_deep_exceptions_are_cut():
    def deep(Q, K, V):
        return deep(Q, K, V)

    def long(Q, K, V):
        raise ValueError("word " * 10_000)

    def many(Q, K, V):
        raise ValueError("line\n" * 50)

    def leave(Q, K, V):
        sys.exit("done")

    assert said(CAUSAL, deep).count("line 2 of deep: return deep(Q, K, V)\n") == 1
    assert "RecursionError: maximum recursion depth exceeded" in said(CAUSAL, deep)
    assert "\n    …\n" in said(CAUSAL, long)
    assert said(CAUSAL, long).count("\n") < 20
    assert said(CAUSAL, many).count("line\n") == 10
    assert "\n    …\n" in said(CAUSAL, many)
    assert "SystemExit: done" in said(CAUSAL, leave)


def test_smallest_failing_case_is_shown():
    backwards = dataclasses.replace(CAUSAL, cases=lambda randn: reversed(list(_causal_cases(randn))))
    result = evaluate(backwards, unmasked)
    assert (result.case, result.cases, result.passed) == (3, 4, 1)
    assert list(result.arguments) == ["Q", "K", "V"]
    held = evaluate(STATE, by(STATE, lambda a: (*a[:2], a[2] + 1)))
    assert held.case == 1
    arguments = report.render(held).split("\n")[2:5]
    assert [line.split(" = ")[0] for line in arguments] == ["    mask", "    log", "    initial_state"]
    assert arguments[0] == "    mask = Steps of shape (1, 1)"
    assert arguments[2] == "    initial_state = torch.tensor([0, 0], dtype=torch.float64)"


def test_arguments_are_described():
    lines = said(PLAIN, by(PLAIN, lambda a: a[:1])).split("\n")
    assert lines[1:4] == ["  Smallest failing case: 1 of 3", "    spec = 't'", "    sizes = {'t': 1}"]
    assert lines[4:6] == ["    shift = 1.5", "    flag = True"]
    assert report.argument("V", torch.ones(13, 1).double()) == "V of shape (13, 1)"
    assert report.argument("V", torch.ones(0, 3).double()) == "V of shape (0, 3)"
    assert report.argument("V", torch.ones(13)) == "V of shape (13,), torch.float32"
    assert report.argument("K", torch.ones(2, dtype=torch.int64)) == "K = torch.tensor([1, 1])"
    both = [torch.ones(13).double(), (1, None), (2,)]
    assert report.argument("both", both) == "both = [Tensor of shape (13,), (1, None), (2,)]"
    assert report.argument("how", object()) == "how = object"
    assert report.argument("how", {1}) == "how = set"
    assert report.argument("spec", "word " * 40) == "spec = " + "'" + "word " * 11 + "…"


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([[1.5, -math.inf], [0.0, 1e-30]], dtype=torch.float64),
        torch.tensor([1.0, 2.0]),
        torch.tensor(3),
        torch.tensor([[True], [False]]),
        torch.tensor([1 - 2j, 0.5j]),
        torch.arange(12.0).half().reshape(3, 1, 4),
        [torch.ones(1), {"t": (2, "a")}],
    ],
)
def test_small_arguments_can_be_pasted(value):
    namespace = {"torch": torch}
    exec(report.argument("value", value), namespace)
    assert compare.same(value, namespace["value"])


def test_changed_inputs_are_named():
    def scale(Q, K, V):
        Q /= 2
        V *= 2
        return causal_product(Q, K, V)

    def damage(Q, K, V):
        K.zero_()
        return causal_product(Q, K, V)

    def grow(mask, log, initial_state):
        mask.cache = mask.dense()
        log.unsqueeze_(0)
        return STATE.oracle(mask, log[0], initial_state)

    def reach_in(mask, log, initial_state):
        answer = masked_sum(mask, log, initial_state)
        mask.rows.neg_()
        return answer

    assert "\n  Your code changes its input Q and V in place: work on a copy\n" in said(CAUSAL, scale)
    assert re.search(r"Wrong values\n(.*\n)+    Your code changes its input K in place", said(CAUSAL, damage))
    assert "changes its input log in place" in said(STATE, grow)
    assert "changes its input mask in place" in said(STATE, reach_in)
    assert evaluate(CAUSAL, scale).outcome == "failed"


def test_changed_containers_are_named():
    def pop(spec, sizes, shift, flag):
        answer = describe(spec, sizes, shift, flag)
        sizes.clear()
        return answer

    assert "changes its input sizes in place" in said(PLAIN, pop)


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        (torch.tensor([math.nan, 1]), torch.tensor([math.nan, 1]), True),
        (torch.tensor([math.nan, 1]), torch.tensor([1.0, 1]), False),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(2), torch.ones(1), False),
        ([1, (2.0, "a")], [1, (2.0, "a")], True),
        ([1, (2.0, "a")], [1, (2.5, "a")], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
        (object(), object(), True),
        (1, True, False),
        (int, int, True),
        (None, None, True),
    ],
)
def test_same(before, after, equal):
    assert compare.same(before, after) is equal


# ------------------------------------------------------------------------------------------- values side by side


def panel(target, answer):
    lines = report.side_by_side(target, answer)
    assert max(map(len, lines)) <= report.WIDTH - 4
    return lines


def test_small_differences_get_the_digits_that_show_them():
    assert panel(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.5]])) == [
        "expected       | your answer",
        "1.0000  2.0000 | 1.0000  2.5000",
        "largest difference 0.5 at [0, 1], shape (1, 2), torch.float32",
    ]
    one = torch.ones(1, dtype=torch.float64)
    assert panel(one, one + 2e-8)[1] == "1.000000000 | 1.000000020"
    assert panel(one, one + 2e-13)[1] == "1.00000000000000e+00 | 1.00000000000020e+00"
    assert panel(2e30 * one, 2.0001e30 * one)[1] == "2.000000e+30 | 2.000100e+30"
    small = panel(2e-30 * one[0], -3e-30 * one[0])
    assert small[1:] == [" 2.0000e-30 | -3.0000e-30", "largest difference 5e-30 at [], shape (), torch.float64"]


def test_rounding_never_shows_a_negative_zero():
    assert panel(torch.tensor([-1e-9]), torch.tensor([1.0]))[1] == "  0.0000 | 1.0000"


def test_integers_bools_and_complex_numbers():
    assert panel(torch.tensor([[1, -20]]), torch.tensor([[1, 3]]))[1] == "  1  -20 |   1    3"
    assert panel(torch.tensor([True]), torch.tensor([False]))[1] == "    True | False"
    assert panel(torch.tensor([1j]), torch.tensor([0j]))[1] == "0.0000+1.0000j | 0.0000+0.0000j"


def test_not_finite_entries_are_shown():
    inf = math.inf
    lines = panel(torch.tensor([-inf, 1.0, 2.0]), torch.tensor([-inf, math.nan, 2.0]))
    assert lines[1:] == ["  -inf  1.0000  2.0000 |   -inf     nan  2.0000", "shape (3,), torch.float32"]
    both = panel(torch.tensor([-inf, 1.0]), torch.tensor([-inf, 3.0]))
    assert both[-1] == "largest difference 2 at [1], shape (2,), torch.float32"
    assert panel(torch.tensor([inf]), torch.tensor([inf]) - inf)[1] == "     inf | nan"


def test_big_arrays_are_cut_to_the_corner_or_to_the_difference():
    target = torch.arange(400.0).reshape(20, 20)
    corner = panel(target, target + torch.eye(20))
    assert corner[-1] == "largest difference 1 at [0, 0], shape (20, 20), torch.float32, shown: [0:6, 0:4]"
    assert len(corner) == 8
    far = target.clone()
    far[15, 19] += 100
    assert panel(target, far)[-1].endswith("at [15, 19], shape (20, 20), torch.float32, shown: [10:16, 16:20]")
    assert panel(target, far)[-2].endswith("| 316.0000  317.0000  318.0000  419.0000")
    row = panel(torch.zeros(30), torch.ones(30))
    assert row[-1].endswith("shown: [0:6]")
    wide = panel(torch.zeros(2, 9, dtype=torch.complex128), torch.full((2, 9), 1e-12 + 1j, dtype=torch.complex128))
    assert wide[-1].endswith("shown: [0:2, 0:3]")


def test_leading_axes_are_named():
    target = torch.zeros(2, 3, 2, 2)
    answer = target.clone()
    answer[1, 2, 0, 1] = 1
    assert panel(target, answer) == [
        "expected       | your answer",
        "0.0000  0.0000 | 0.0000  1.0000",
        "0.0000  0.0000 | 0.0000  0.0000",
        "largest difference 1 at [1, 2, 0, 1], shape (2, 3, 2, 2), torch.float32, shown: [1, 2, 0:2, 0:2]",
    ]


def test_plain_values_side_by_side():
    assert report.side_by_side(12, 13) == ["expected     12", "your answer  13"]
    assert report.side_by_side(0.1, 1 / 3) == ["expected     0.1", "your answer  0.3333333333"]
    assert report.side_by_side(1.0, 1 + 1e-14) == ["expected     1.0", "your answer  1.00000000000001"]
    assert report.side_by_side("ts->t", "ts->s") == ["expected     'ts->t'", "your answer  'ts->s'"]
    assert report.side_by_side("a" * 300, "b")[0] == "expected     '" + "a" * 78 + "…"


# ------------------------------------------------------------------------------------- the attempt disturbs nobody


def test_prints_are_shown_up_to_a_limit():
    def chatty(Q, K, V):
        print("length", len(Q))
        print("no newline", end="")
        print()
        return causal_product(Q, K, V)

    lines = ["  | length 1", "  | no newline", "  | length 2", "  | no newline"]
    assert said(CAUSAL, chatty).split("\n")[1:6] == ["  Your code printed:", *lines]

    def flood(Q, K, V):
        for number in range(10):
            print(number)
        return Q

    text = said(CAUSAL, flood)
    assert text.endswith("\n  | 9\n  | … (20 more lines)")
    assert text.count("\n  | ") == PRINTED_LINES + 1


@pytest.mark.parametrize(("lines", "last"), [(19, "18"), (20, "19"), (21, "… (1 more line)"), (22, "… (2 more lines)")])
def test_printed_lines_are_counted(lines, last):
    def attempt():
        sys.stdout.write("\n".join(map(str, range(lines))))

    printed = run(attempt, [()], 0, 10.0).printed
    assert printed[-1] == last
    assert len(printed) == min(lines, PRINTED_LINES + 1)


def test_prints_take_no_memory():
    def flood():
        for _ in range(3000):
            print("x" * 1000, end="")
        for _ in range(3000):
            print("y" * 1000)

    capture = _Printed()
    capture.write("x" * 10**6 + "\n" + "y" * 10**6)
    for _ in range(1000):
        capture.write("z" * 50)
    assert sum(map(len, capture.kept)) < 300
    printed = run(flood, [()], 0, 20.0).printed
    assert printed[0] == "x" * 90 + "…"
    assert printed[1] == "y" * 90 + "…"
    assert printed[-1] == "… (2980 more lines)"


def test_random_state_and_settings_are_restored():
    torch.manual_seed(3)
    expected = torch.rand(3)
    seen = []

    def wild(Q, K, V):
        seen.append((torch.rand(1).item(), torch.get_default_dtype(), torch.is_grad_enabled()))
        torch.manual_seed(99)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        raise ValueError

    torch.manual_seed(3)
    evaluate(CAUSAL, wild)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert len(set(seen)) == 1
    evaluate(CAUSAL, wild)  # torch's own state is another one by now
    assert len(set(seen)) == 1
    evaluate(CAUSAL, wild, seed=1)
    assert len(set(seen)) == 2


def test_what_is_entered_and_never_left_is_left():
    entered = []

    def wild(Q, K, V):
        for mode in (torch.autocast("cpu", torch.bfloat16), torch.device("meta"), torch.no_grad()):
            entered.append(mode)
            mode.__enter__()
        torch.set_float32_matmul_precision("medium")
        torch.autograd.set_detect_anomaly(True)
        torch.set_printoptions(precision=1)
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        raise ValueError

    evaluate(CAUSAL, wild)
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert torch.ones(1).device.type == "cpu"
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.is_anomaly_enabled()
    assert "1.2346" in repr(torch.tensor(1.23456))
    seven = random.Random(7).random(), np.random.RandomState(7).rand()
    assert (random.random(), np.random.rand()) != seven  # noqa: NPY002


def test_attempt_cannot_reach_what_others_see():
    buffer = torch.zeros(9, 3, dtype=torch.float64)

    def reuse(Q, K, V):
        buffer[: len(Q)] = causal_product(Q, K, V)
        Q.zero_()
        return buffer[: len(Q)]

    result = evaluate(CAUSAL, reuse)
    assert result.problem.sentence == "Your code changes its input Q in place: work on a copy"
    assert compare.elements(result.arguments) == 7
    assert result.arguments["Q"].any()


def test_an_oracle_that_changes_its_inputs_disturbs_no_attempt():
    def careless(Q, K, V):
        answer = _causal_loop(Q, K, V)
        Q.zero_()
        return answer

    assert evaluate(dataclasses.replace(CAUSAL, oracle=careless), causal_product).outcome == "passed"


def test_warnings_are_no_errors():
    def warn(Q, K, V):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return causal_product(Q, K, V)

    assert evaluate(CAUSAL, warn).outcome == "passed"


def test_faults_of_the_exercise_itself_are_raised():
    def broken(Q, K, V):
        raise ZeroDivisionError("the oracle is broken")

    with pytest.raises(ZeroDivisionError, match="the oracle is broken"):
        evaluate(dataclasses.replace(CAUSAL, oracle=broken), causal_product)


# ----------------------------------------------------------------------------------------------- the time limit


def test_endless_loop_is_stopped():
    def endless(Q, K, V):
        while len(Q) > 1:
            print("again")
        return causal_product(Q, K, V)

    before = signal.getsignal(signal.SIGINT)
    began = time.monotonic()
    text = said(CAUSAL, endless, limit=0.2)
    assert time.monotonic() - began < 5
    assert text.startswith(
        "✗ demo.1 causal attention: 1 of 4 cases passed (seed 0)\n"
        "  In case 2 of 4\n"
        "    Q = torch.tensor([[0.838026, -0.719258], [-0.403344, -0.596635]], dtype=torch.float64)\n"
        "    K = torch.tensor([[0.182036, -0.856675], [1.1006, -1.07119]], dtype=torch.float64)\n"
        "    V = torch.tensor([[0.122701, -0.566317, 0.373115], [-0.891995, -1.50911, 0.370394]],\n"
        "      dtype=torch.float64)\n"
        "  Stopped after 0.2 s: is there a loop that never ends?\n"
        "  causal_product is our solution from here on; to have yours back, run its cell.\n"
        "  Your code printed:\n"
        "  | again\n"
    )
    assert signal.getsignal(signal.SIGINT) is before
    result = evaluate(CAUSAL, endless, limit=0.2)
    assert (result.outcome, result.passed, result.misconception) == ("timeout", 1, None)


def swallow_bare(Q, K, V):
    while True:
        try:
            for _ in range(1000):
                torch.relu(Q)
        except:  # noqa: E722
            print("never mind")


def swallow_inside(Q, K, V):
    def step():
        try:
            for _ in range(1000):
                torch.relu(Q)
        except BaseException:
            return 1

    while True:
        try:
            step()
        except Exception:
            continue


@pytest.mark.parametrize("attempt", [swallow_bare, swallow_inside])
def test_loops_that_swallow_every_exception_are_stopped(attempt, monkeypatch):
    monkeypatch.setattr(limit, "PAUSE", 0.05)
    assert evaluate(CAUSAL, attempt, limit=0.1).outcome == "timeout"


def test_a_debuggers_trace_is_put_back(monkeypatch):
    monkeypatch.setattr(limit, "PAUSE", 0.05)
    before = sys.gettrace()

    def trace(frame, event, argument):
        return None

    sys.settrace(trace)
    try:
        outcome, after = evaluate(CAUSAL, swallow_bare, limit=0.1).outcome, sys.gettrace()
    finally:
        sys.settrace(before)
    assert outcome == "timeout"
    assert after is trace


def test_swallowing_once_and_returning_is_still_too_late():
    def stubborn(Q, K, V):
        try:
            while len(Q) == 9:
                pass
        except BaseException:
            print("never mind")
        return causal_product(Q, K, V)

    result = evaluate(CAUSAL, stubborn, limit=0.1)
    assert (result.outcome, result.passed, result.case) == ("timeout", 3, 4)


def test_code_that_cannot_be_stopped_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(limit, "PAUSE", 0.02)

    def library(Q, K, V):
        time.sleep(0.6)

    assert evaluate(CAUSAL, library, limit=0.05).outcome == "timeout"
    assert "this code does not stop" in capsys.readouterr().out


def test_code_that_stops_in_time_is_not_reported(capsys):

    def endless(Q, K, V):
        while True:
            pass

    assert evaluate(CAUSAL, endless, limit=0.05).outcome == "timeout"
    assert capsys.readouterr().out == ""


def test_late_interrupt_is_silent(monkeypatch):
    close = limit._Watch.close

    def ring_first(watch):
        watch.rung = True
        _thread.interrupt_main()
        close(watch)

    monkeypatch.setattr(limit._Watch, "close", ring_first)
    before = signal.getsignal(signal.SIGINT)
    for _ in range(50):
        assert evaluate(CAUSAL, causal_product).outcome == "passed"
    assert signal.getsignal(signal.SIGINT) is before


def test_attempts_that_end_at_the_limit_never_leak_an_interrupt():
    def last(seconds):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        yield seconds

    before, stopped = signal.getsignal(signal.SIGINT), 0
    for step in range(150):
        stopped += not limit.within(0.002, last(0.0001 * step), sys.stdout)
    assert signal.getsignal(signal.SIGINT) is before
    assert 0 < stopped < 150


def test_interrupt_during_the_watch_itself_raises_nothing():
    watch = limit._Watch(60.0, sys.stdout)
    watch.rung = True
    _thread.interrupt_main()
    time.sleep(0.01)  # not running yet: nothing to stop
    watch.running = True
    watch.running = False
    watch.close()
    assert not watch.struck


def test_a_tracer_is_never_interrupted_for_it_may_hold_a_lock():
    space = {"__name__": "coverage.collector", "time": time, "finished": []}
    exec("def trace():\n    time.sleep(0.3)\n    finished.append(True)", space)

    def endless(Q, K, V):
        space["trace"]()
        while True:
            pass

    assert evaluate(CAUSAL, endless, limit=0.1).outcome == "timeout"
    assert space["finished"] == [True]


def test_an_interrupt_is_not_lost_in_the_callback_of_a_weak_reference():
    class Slow(set):
        def discard(self, item):
            time.sleep(0.3)
            super().discard(item)
            finished.append(True)

    finished, kept = [], weakref.WeakSet()
    kept.data = Slow()

    def endless(Q, K, V):
        kept.add(torch.nn.Identity())  # gone at once, which calls back
        while True:
            pass

    assert evaluate(CAUSAL, endless, limit=0.05).outcome == "timeout"
    assert finished == [True]


def test_what_a_library_does_when_an_object_is_gone_is_not_cut():
    """An exception there would be lost: a loop of asyncio is closed by whatever code runs when its turn comes."""
    finished = []

    class Slow:
        def __del__(self):
            time.sleep(0.3)
            finished.append(True)

    def endless(Q, K, V):
        Slow()  # gone at once
        while True:
            pass

    assert evaluate(CAUSAL, endless, limit=0.05).outcome == "timeout"
    assert finished == [True]


def test_only_the_work_of_this_process_counts(monkeypatch):
    wall = itertools.count(100)
    monkeypatch.setattr(limit.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(limit.time, "process_time", lambda: 7.5)
    stopwatch = limit.Stopwatch()
    assert [stopwatch(), stopwatch()] == [0.25, 0.5]  # a quarter of the time in which it waits
    monkeypatch.setattr(limit.time, "process_time", lambda: 9.0)
    assert stopwatch() == 1.5
    monkeypatch.setattr(limit.time, "process_time", lambda: 70.0)
    assert stopwatch() == 4  # several threads do not make it faster than the clock


def test_the_learners_own_interrupt_passes_through(capsys):
    def stopped(Q, K, V):
        signal.raise_signal(signal.SIGINT)
        return Q

    before, out = signal.getsignal(signal.SIGINT), sys.stdout
    with pytest.raises(KeyboardInterrupt):
        check(CAUSAL, stopped)
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.stdout is out
    assert capsys.readouterr().out == ""


def test_ignored_interrupts_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:

        def stopped(Q, K, V):
            signal.raise_signal(signal.SIGINT)
            return causal_product(Q, K, V)

        assert evaluate(CAUSAL, stopped).outcome == "passed"
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert evaluate(CAUSAL, swallow_bare, limit=0.05).outcome == "timeout"
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_limit_away_from_the_main_thread():
    def slow(Q, K, V):
        time.sleep(0.03)
        return causal_product(Q, K, V)

    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(evaluate(CAUSAL, slow, limit=0.01).outcome))
    thread.start()
    thread.join()
    assert outcomes == ["passed"]


def test_no_limit_where_the_host_program_owns_the_signal(monkeypatch):
    monkeypatch.setattr(limit.signal, "getsignal", lambda number: None)
    assert limit.within(0.0, iter([1, 2]), sys.stdout) == [1, 2]


def test_an_import_is_not_cut(tmp_path, monkeypatch):
    """Half of a library in `sys.modules` would be an error in every later cell."""
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nwhole = True\n"
    (tmp_path / "imported_slowly.py").write_text(busy, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    limit.within(0.05, map(importlib.import_module, ["imported_slowly"]), sys.stdout)
    assert sys.modules.pop("imported_slowly").whole


# ---------------------------------------------------------------------------------------------------- the commands


@pytest.fixture(autouse=True)
def fresh_kernel(monkeypatch):
    """No attempt and no hint is remembered; Ctrl-C interrupts, also where pytest runs in the background."""
    monkeypatch.setattr(commands, "_session", commands._Session())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def is_copy(function):
    """Whether it is a copy of the reference, not the reference itself."""
    return function is not causal_product and inspect.unwrap(function) is causal_product


def test_check_returns_attempt_or_reference(capsys):
    def mine(Q, K, V):
        return causal_product(Q, K, V)

    assert check(CAUSAL, mine) is mine
    first, second = capsys.readouterr().out.splitlines()
    assert first == "✓ demo.1 causal attention: 4 cases passed (seed 0)"
    assert re.fullmatch(r"  yours 1 line, [\d.e-]+ ms; ours 1 line, [\d.e-]+ ms", second)
    returned = check(CAUSAL, unmasked, seed=2)
    assert "(seed 2)" in capsys.readouterr().out
    assert is_copy(returned)
    assert returned.__name__ == "causal_product"
    Q, K, V = CAUSAL.draw()[-1]
    assert torch.equal(returned(Q, K=K, V=V), causal_product(Q, K, V))
    assert is_copy(check(CAUSAL, None))
    assert check(CAUSAL, causal_product) is causal_product


def stub(Q, K, V):
    raise NotImplementedError


@pytest.mark.parametrize("attempt", [stub, unmasked, None], ids=["stub", "wrong", "none"])
def test_check_twice_says_the_same_twice(attempt, capsys):
    attention = check(CAUSAL, attempt)
    first = capsys.readouterr().out
    for _ in range(2):
        attention = check(CAUSAL, attention)
        assert is_copy(attention)
        assert capsys.readouterr().out == first
    assert "✓" not in first


def test_a_handed_back_solution_is_ours_in_every_dress(capsys):
    attention = check(CAUSAL, stub)
    check(CAUSAL, torch.no_grad()(attention))
    assert "✓" not in capsys.readouterr().out
    assert evaluate(CAUSAL, attention).outcome == "passed"
    other = dataclasses.replace(CAUSAL, id="demo.9", title="other")
    assert check(other, attention) is attention  # for another exercise it is an answer like any other
    assert "✓ demo.9" in capsys.readouterr().out


def test_another_attempt_after_a_handed_back_solution_counts(capsys):
    def mine(Q, K, V):
        return causal_product(Q, K, V)

    attention = check(CAUSAL, stub)
    assert check(CAUSAL, mine) is mine
    assert check(CAUSAL, attention) is mine
    assert capsys.readouterr().out.count("✓") == 2


def test_an_attempt_that_calls_itself_never_calls_ours(capsys):
    namespace = {}
    exec("def attention(Q, K, V):\n    return attention(Q, K, V)", namespace)
    for _ in range(2):
        namespace["attention"] = check(CAUSAL, namespace["attention"])
        assert "RecursionError" in capsys.readouterr().out


def test_another_seed_or_a_changed_exercise_is_judged_anew(capsys):
    attention = check(CAUSAL, unmasked)
    attention = check(CAUSAL, attention, seed=3)
    assert capsys.readouterr().out.count("4 cases passed (seed 3)") == 1
    changed = dataclasses.replace(CAUSAL, oracle=unmasked)
    assert check(changed, attention) is unmasked
    assert "✓ demo.1" in capsys.readouterr().out


def test_our_solution_without_an_attempt_is_not_started(monkeypatch, capsys):
    attention = check(CAUSAL, stub)
    commands._session.attempts.clear()
    capsys.readouterr()
    assert is_copy(check(CAUSAL, attention))
    out = capsys.readouterr().out
    assert (
        "○ demo.1: this is our solution, which an earlier check handed back; run the cell with your function\n  first\n"
        in out
    )
    assert commands._session.attempts == {}
    record = report.record(commands._judge(CAUSAL, attention, 0)[1])
    assert record == {"exercise": "demo.1", "outcome": "not started", "seed": 0, "cases": 4, "passed": 0}
    monkeypatch.setenv("SMALEARN_STRICT", "1")
    with pytest.raises(CheckFailed, match="this is our solution"):
        check(CAUSAL, attention)


def test_check_without_an_attempt_says_what_to_write():
    message = r'check: attempt is missing; write causal_product = check\("demo.1", causal_product\)$'
    with pytest.raises(ValueError, match=message):
        check(CAUSAL)


def test_check_finds_registered_exercises(empty_registry, capsys):
    register(dataclasses.replace(CAUSAL, id="9.9"))
    assert check("9.9", causal_product) is causal_product
    assert capsys.readouterr().out.startswith("✓ 9.9 ")


def test_strict_mode_raises_after_printing(monkeypatch, capsys):
    monkeypatch.setenv("SMALEARN_STRICT", "1")
    assert check(CAUSAL, causal_product) is causal_product
    with pytest.raises(CheckFailed, match=r"demo\.1 not started"):
        check(CAUSAL, stub)
    assert capsys.readouterr().out.endswith("○ demo.1 not started; later cells use the reference solution\n")
    with pytest.raises(CheckFailed, match="The causal mask is missing"):
        check(CAUSAL, unmasked)
    monkeypatch.setenv("SMALEARN_STRICT", "0")
    assert is_copy(check(CAUSAL, stub))


def test_a_hint_comes_at_once_and_the_next_after_another_wrong_attempt(capsys):
    def shown():
        capsys.readouterr()
        assert hint(CAUSAL) is None
        return capsys.readouterr().out

    first, second = (f"Hint {number} of 2: {text}\n" for number, text in enumerate(CAUSAL.hints, 1))
    wait = "The next one comes after another attempt.\n"
    assert shown() == shown() == first + wait
    check(CAUSAL, stub)
    check(CAUSAL, causal_product)
    assert shown() == first + wait
    check(CAUSAL, unmasked)
    last = first + second + 'There are no more: solution("demo.1") shows one way to write it.\n'
    assert shown() == shown() == last
    check(CAUSAL, unmasked)
    assert shown() == last
    hint(PLAIN)
    assert capsys.readouterr().out.startswith("Hint 1 of 2")


def test_a_case_to_look_at(capsys):
    assert commands.case(CAUSAL) is None
    assert "There is no case of demo.1 to look at: you have not checked an attempt yet." in capsys.readouterr().out
    check(CAUSAL, unmasked)
    arguments, expected, got = commands.case(CAUSAL)
    assert torch.allclose(causal_product(**arguments), expected)  # the last digit depends on where they lie
    assert torch.allclose(unmasked(**arguments), got)
    arguments["Q"].zero_()
    assert commands.case(CAUSAL).arguments["Q"].any()
    check(CAUSAL, lambda Q, K, V: Q[99])
    assert commands.case(CAUSAL).got is None
    check(CAUSAL, causal_product)
    assert commands.case(CAUSAL) is None
    assert "your last attempt got no case wrong." in capsys.readouterr().out


def test_what_follows_a_tick(capsys):
    first, second = registry()["1.1"], registry()["1.2"]
    check(second, second.solution)
    assert "· 1 of 6 in this chapter · next: 1.1 What leaks" in " ".join(capsys.readouterr().out.split())
    check(first, lambda: first.solution())
    told = " ".join(capsys.readouterr().out.split())
    assert "2 of 6 in this chapter · next: 1.3" in told
    assert first.insight in told


def test_solution_shows_its_source(capsys):
    assert solution(CAUSAL) is None
    assert capsys.readouterr().out == (
        "Our solution:\n"
        'def causal_product(Q, K, V):\n    """Masked attention without softmax."""\n    return (Q @ K.mT).tril() @ V\n'
    )


def test_a_solution_ends_in_its_insight(capsys):
    solution("1.1")
    *_, last = capsys.readouterr().out.splitlines()
    assert registry()["1.1"].insight.endswith(last)


def test_solution_without_source(capsys):
    namespace = {}
    exec("def typed(Q, K, V):\n    return (Q @ K.mT).tril() @ V", namespace)
    namespace["typed"].__doc__ = causal_product.__doc__
    exercise = dataclasses.replace(CAUSAL, solution=namespace["typed"])
    solution(exercise)
    assert "The source of demo.1 cannot be read" in capsys.readouterr().out
    assert verify(exercise, seeds=[0]) == ["the solution's source cannot be read: write it in a file or a cell"]


def test_consoles_without_a_tick_survive(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="cp1252", newline="\n"))
    check(CAUSAL, causal_product)
    sys.stdout.flush()
    assert raw.getvalue().startswith(b"? demo.1 causal attention: 4 cases passed (seed 0)\n")


def test_record():
    assert "misconception" not in report.record(evaluate(CAUSAL, by(CAUSAL, torch.neg)))
    record = report.record(evaluate(CAUSAL, unmasked, seed=4))
    counts = {"seed": 4, "cases": 4, "passed": 1}
    assert record == {"exercise": "demo.1", "outcome": "failed", **counts, "misconception": NO_MASK}
    assert json.loads(json.dumps(record)) == record


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """An IPython shell whose displays are collected."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.display_pub = CapturingDisplayPublisher()
    shell.user_ns.update(CAUSAL=CAUSAL, check=check, hint=hint, solution=solution)
    yield shell
    InteractiveShell.clear_instance()


def displayed(shell, cell):
    shell.display_pub.outputs.clear()
    shell.run_cell(cell).raise_error()
    return [output["data"] for output in shell.display_pub.outputs]


def test_displays_inside_ipython(shell, capsys):
    stub = "def attention(Q, K, V):\n    raise NotImplementedError\nattention = check(CAUSAL, attention);"
    assert displayed(shell, stub) == [
        {
            "text/plain": "○ demo.1 not started; later cells use the reference solution",
            report.MIME: {"exercise": "demo.1", "outcome": "not started", "seed": 0, "cases": 4, "passed": 0},
        }
    ]
    assert is_copy(shell.user_ns["attention"])
    mistake = (
        "def attention(Q, K, V):\n    size = len(Q)\n    return Q @ V[size]\nattention = check(CAUSAL, attention);"
    )
    (data,) = displayed(shell, mistake)
    assert "    line 3 of attention: return Q @ V[size]\n    IndexError: index 1 is out of bounds" in data["text/plain"]
    assert data[report.MIME]["outcome"] == "error"
    (shown,) = displayed(shell, "hint(CAUSAL)")
    lines = ["Hint 1 of 2: Which scores may row t see?", "The next one comes after another attempt."]
    assert shown["text/plain"] == "\n".join(lines)
    assert all(f"<p>{line}</p>" in shown["text/html"] for line in lines)
    heading, data = displayed(shell, "solution(CAUSAL)")
    assert heading == {"text/plain": "Our solution:"}
    assert data["text/plain"].startswith("def causal_product(Q, K, V):")
    assert "highlight" in data["text/html"]
    assert capsys.readouterr().out == ""


KERNEL_CELLS = [
    """
import sys, torch
from smalearn.course.exercises import check, evaluate, registry
first = registry()["0.1"]
""",
    """
def running_mean(V):
    for row in V:
        row.missing
    return V
running_mean = check("0.1", running_mean)
""",
    """
def running_mean(V):
    while True:
        try:
            V.sum()
        except:
            pass
evaluate(first, running_mean, limit=0.2).outcome
""",
]


@pytest.mark.full
def test_inside_a_notebook_kernel():
    nbformat = importlib.import_module("nbformat.v4")
    nbclient = importlib.import_module("nbclient")
    notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell(cell.strip()) for cell in KERNEL_CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    _, checked, stopped = (cell.outputs for cell in notebook.cells)
    assert [output.output_type for output in checked] == ["display_data"]
    text = checked[0].data["text/plain"]
    assert "    line 3 of running_mean: row.missing\n    AttributeError: 'Tensor' object has no" in text
    assert checked[0].data[report.MIME]["outcome"] == "error"
    assert stopped[0].data["text/plain"] == "'timeout'"


# --------------------------------------------------------------------------------------------- faulty exercises


def _faulty(**changes):
    return verify(dataclasses.replace(CAUSAL, **changes), seeds=[0])


def _with_wrong(function):
    return _faulty(wrong=CAUSAL.wrong | {"new": function})


def test_verify_finds_faulty_cases():
    grown = iter(range(1, 1000))
    unstable = _faulty(cases=lambda randn: ((torch.ones(next(grown), 2).double(),) * 3 for _ in range(3)))
    assert "seed 0: the cases differ from one drawing to the next: draw from the given generator alone" in unstable
    backwards = _faulty(cases=lambda randn: reversed(list(_causal_cases(randn))))
    assert backwards == ["seed 0: the first case is not the smallest"]


@pytest.mark.parametrize("answer", [{"a": 1}, math.nan, torch.tensor([math.nan]), (1, None)])
def test_verify_finds_oracles_that_cannot_be_compared(answer):
    problem = "seed 0: the oracle must return tensors, numbers, bools, strings or tuples of these, and no NaN"
    assert problem in _faulty(oracle=lambda Q, K, V: answer)


def test_verify_finds_faulty_solutions():
    @functools.wraps(causal_product)
    def wrong(Q, K, V):
        return Q @ K.mT @ V

    @functools.wraps(causal_product)
    def changing(Q, K, V):
        return causal_product(Q.mul_(1.0).add_(0.0), K.neg_(), -V)

    assert _faulty(solution=wrong) == ["seed 0: the solution has the outcome 'failed': Wrong values"]
    assert "Your code changes its input K in place" in _faulty(solution=changing)[0]


def test_verify_needs_a_stub_that_is_recognised(monkeypatch):
    monkeypatch.setattr(judge, "run", lambda function, *_: run(lambda *a: causal_product(*a), *_))
    assert "seed 0: an empty stub is not 'not started'" in verify(CAUSAL, seeds=[0])


def test_verify_finds_faulty_wrong_answers(monkeypatch):
    def endless(Q, K, V):
        while len(Q) > 1:
            pass
        return causal_product(Q, K, V)

    def half(Q, K, V):
        return Q @ K.mT @ V if len(Q) == 9 else causal_product(Q, K, V)

    assert _with_wrong(causal_product) == ["seed 0: wrong answer 'new' is right on every case"]
    assert f"seed 0: wrong answer 'new' is taken for {NO_MASK!r}" in _with_wrong(unmasked)
    assert _with_wrong(half) == []
    monkeypatch.setattr(judge, "LIMIT", 0.1)
    assert _with_wrong(endless) == ["seed 0: wrong answer 'new' does not return in time"]


@pytest.mark.parametrize("module", [core, commands, judge, report])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("target", [1.5, 3, 1 + 2j])
def test_a_whole_number_that_no_float_holds_is_a_wrong_answer(target):
    found = compare.difference(10**400, target, 1e-9)
    assert (found.sentence, found.in_form) == ("Wrong answer", True)
    assert compare.difference(10**400, 10**400, 1e-9) is None


def test_an_answer_key_judges_what_was_run_elsewhere():
    key = judge.AnswerKey(CAUSAL, 3)
    for function in (causal_product, unmasked, lambda Q, K, V: None):
        here, there = evaluate(CAUSAL, function, 3), key.judge(run(function, key.cases, 3, 5.0))
        assert (there.outcome, there.seed, there.passed) == (here.outcome, 3, here.passed)
        assert there.misconception is here.misconception
    assert key.judge(run(causal_product, key.cases[:2], 3, 5.0), 5.0).outcome == "timeout"
