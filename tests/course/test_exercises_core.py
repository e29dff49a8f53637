"""An exercise and the registry: what is refused, what is drawn and shown, and what `verify` finds in faulty ones."""

import dataclasses
import doctest
import functools
import math
import subprocess
import sys

import pytest
import torch
from demos import CAUSAL, DEMOS, NO_MASK, PLAIN, causal_cases, causal_product, unmasked

from smalearn.course.exercises import commands, compare, core, hint, judge, register, registry, solution, verify
from smalearn.course.exercises.run import run


def described(text):
    """A solution with another docstring."""

    def product(Q, K, V):
        return causal_product(Q, K, V)

    product.__doc__ = text
    return product


@pytest.mark.parametrize("exercise", DEMOS.values(), ids=DEMOS)
def test_demo_exercises_are_sound(exercise):
    assert verify(exercise) == []


def test_label():
    assert CAUSAL.label == "●●○ · 5 min · about 1 line"
    assert PLAIN.label == "●●○ · 5 min · about 2 lines"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "1. 2"}, "Exercise '1. 2': id must be letters and digits joined by dots"),
        ({"id": 1.2}, "id must be"),
        ({"title": " "}, "title must be a non-empty string"),
        ({"claim": ""}, "claim must be a non-empty string"),
        ({"oracle": 3}, "oracle must be callable, got int"),
        ({"cases": []}, "cases must be callable, got list"),
        ({"solution": "tril"}, "solution must be a function written with `def`, got 'tril'"),
        ({"solution": lambda Q, K, V: Q}, "solution must be a function written with `def`, got <function <lambda>"),
        ({"solution": described("Multiply.\n\nHint: one")}, "must have at least 2 paragraphs"),
        ({"solution": described("Hint: one\n\nHint: two")}, "the solution's docstring must say what to write"),
        ({"solution": described(None)}, "must have at least 2 paragraphs"),
        ({"wrong": dict(list(CAUSAL.wrong.items())[:2])}, "wrong must have at least 3 answers, got {"),
        ({"wrong": (1, 2, 3)}, "wrong must have at least 3 answers"),
        ({"wrong": CAUSAL.wrong | {"new": 3}}, "wrong must map sentences to functions or edits, got 'new': int"),
        ({"wrong": CAUSAL.wrong | {" ": unmasked}}, "wrong must map sentences to functions or edits, got ' ': func"),
        ({"minutes": 0}, "minutes must be a positive integer, got 0"),
        ({"minutes": True}, "minutes must be"),
        ({"level": 4}, "level must be 1, 2 or 3, got 4"),
        ({"tolerance": 0.0}, "tolerance must lie between 0 and 1"),
    ],
)
def test_exercise_says_what_is_wrong_with_it(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CAUSAL, **change)


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


@pytest.mark.parametrize("cases", [[(1,), 2], [(1,), 2, (3,)]])
def test_cases_are_drawn_again_for_the_same_seed(cases):
    assert compare.same(CAUSAL.draw(3), CAUSAL.draw(3))
    assert not compare.same(CAUSAL.draw(3), CAUSAL.draw(4))
    with pytest.raises(ValueError, match=r"cases must yield at least 3 tuples of arguments, got \['tuple', 'int'"):
        dataclasses.replace(CAUSAL, cases=lambda randn: cases).draw()


@pytest.fixture
def empty_registry(monkeypatch):
    monkeypatch.setattr(core, "_registry", {})
    monkeypatch.setattr(core.pkgutil, "iter_modules", lambda path: [])


def test_registry_keeps_order_and_identity(empty_registry):
    for id in ("10.1", "quiz.1", "2.10", "2.9", "2.b", "2.a"):
        assert register(dataclasses.replace(CAUSAL, id=id)).id == id
    assert list(registry()) == ["2.a", "2.b", "2.9", "2.10", "10.1", "quiz.1"], "openers stand before what they open"
    assert [id for id, one in registry().items() if one.opener] == ["2.a", "2.b"]
    again = register(dataclasses.replace(CAUSAL, id="2.9", minutes=9))
    assert registry()["2.9"] is again
    with pytest.raises(ValueError, match=r"register: id '2.9' of 'other' is taken by 'causal attention'"):
        register(dataclasses.replace(CAUSAL, id="2.9", title="other"))
    registry().clear()
    assert len(registry()) == 6


@pytest.mark.full
def test_what_is_imported_when():
    """The chapters on first use; and to measure a way no compiler, which would take seconds."""
    code = (
        "import sys, smalearn.course.exercises as e; "
        "chapters = lambda: [m for m in sys.modules if '.course.ch' in m]; "
        "assert not chapters(); assert '0.1' in e.registry(); assert chapters(); "
        "way = e.registry()['3.1']; assert e.evaluate(way, way.solution).outcome == 'passed'; "
        "assert not {'IPython', 'matplotlib', 'pytest', 'torch._dynamo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", [hint, solution, lambda id: commands.check(id, print)])
def test_unknown_ids_name_their_neighbours(empty_registry, command):
    for id in ("1.1", "1.2", "2.1"):
        register(dataclasses.replace(CAUSAL, id=id))
    name = getattr(command, "__name__", "check").replace("<lambda>", "check")
    with pytest.raises(ValueError, match=rf"{name}: exercise '1.3' is unknown; the nearest ids are 1\.\d, 1\.\d"):
        command("1.3")
    with pytest.raises(ValueError, match=rf"{name}: exercise must be an id such as '1.2' or an Exercise, got float"):
        command(1.2)


# --------------------------------------------------------------------------------------------- what `verify` finds


def _faulty(**changes):
    return verify(dataclasses.replace(CAUSAL, **changes), seeds=[0])


def test_verify_finds_faulty_cases():
    grown = iter(range(1, 1000))
    unstable = _faulty(cases=lambda randn: ((torch.ones(next(grown), 2).double(),) * 3 for _ in range(3)))
    assert "seed 0: the cases differ from one drawing to the next: draw from the given generator alone" in unstable
    backwards = _faulty(cases=lambda randn: reversed(list(causal_cases(randn))))
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

    def with_wrong(function):
        return _faulty(wrong=CAUSAL.wrong | {"new": function})

    assert with_wrong(causal_product) == ["seed 0: wrong answer 'new' is right on every case"]
    assert f"seed 0: wrong answer 'new' is taken for {NO_MASK!r}" in with_wrong(unmasked)
    assert with_wrong(half) == []
    monkeypatch.setattr(judge, "LIMIT", 0.1)
    assert with_wrong(endless) == ["seed 0: wrong answer 'new' does not return in time"]


def test_docstring_examples(fresh_kernel):
    found = doctest.testmod(commands)
    assert found.attempted
    assert not found.failed
