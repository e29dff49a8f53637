"""Answers on their way between two processes: what arrives is what was sent, and what was forged is refused."""

import base64
import inspect
import json
import math
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import smalearn.course.exercises
from smalearn.course.exercises import AnswerKey, commands, registry
from smalearn.course.exercises.compare import same
from smalearn.course.exercises.run import Call, Run
from smalearn.course.grading import wire
from smalearn.course.grading.child import Session
from smalearn.course.grading.reference import reference

ONE = [((),)]  # a case


def sent(answer):
    """The answer as it arrives, through text."""
    (call,) = wire.unpack(json.loads(json.dumps(wire.pack(Run([Call(answer)], ())))), ONE).calls
    assert not call.error
    return call.answer


@pytest.mark.parametrize("dtype", wire.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 4)])
def test_tensors_arrive_as_they_are(dtype, shape):
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert same(sent(tensor), tensor)
    if len(shape) == 2:
        assert same(sent(tensor.mT), tensor.mT)
        assert same(sent(tensor[:, 1]), tensor[:, 1])


def test_views_that_are_computed_when_read():
    z = torch.tensor([1 + 2j, -3j])
    assert same(sent(z.conj()), z.conj().resolve_conj())
    assert same(sent(z.conj().imag), -z.imag)
    assert same(sent(torch.ones(1).expand(4, 3)), torch.ones(4, 3))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_numbers_without_a_decimal_form(value):
    assert np.float64(sent(value)).tobytes() == np.float64(value).tobytes()
    tensor = torch.tensor([value, 1.0], dtype=torch.float64)
    assert sent(tensor).numpy().tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(10**400), 0.1, 1 - 2j, "tn,sn->ts ✓ \ud800", (), [], (1, [True, ("a", 2.5)], torch.ones(2))],
    ids=lambda value: repr(value)[:10],
)
def test_plain_values_arrive_as_they_are(value):
    assert same(sent(value), value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (Fraction(1, 4), 0.25), (Decimal("0.5"), 0.5)],
)
def test_other_numbers_become_plain_ones(value, plain):
    assert sent(value) == plain
    assert type(sent(value)).__module__ == "builtins"


def test_objects_arrive_as_their_type_alone():
    class Evil(str):
        def __str__(self):
            raise SystemExit

        __eq__ = __reduce__ = __str__

    assert type(sent(Evil("text"))) is str
    assert type(sent({1: 2})).__name__ == "dict"
    assert type(sent(np.ones(2))).__name__ == "ndarray"
    assert type(sent(type("a b\n<", (), {})())).__name__ == "ab"


def test_errors_and_marks_of_a_call_arrive():
    calls = [Call(error=("line 1", "ValueError: no")), Call(error=("x",), stub=True), Call(1, modified=(1,))]
    packed = wire.pack(Run(calls, ()))
    assert wire.unpack(packed, [(1, 2)] * 3).calls == calls
    assert len(wire.unpack(packed, [(1, 2)] * 2).calls) == 2
    assert len(wire.unpack(packed, [(1, 2)] * 9).calls) == 3


def test_answers_that_are_too_large_become_errors(monkeypatch):
    monkeypatch.setattr(wire, "LIMIT", 3000)
    half = torch.ones(90, dtype=torch.float64)
    nested = []
    for _ in range(10_000):
        nested = [nested]
    run = Run([Call(half), Call(torch.ones(9999)), Call(nested), Call(half), Call("x" * 3000)], ())
    packed = wire.pack(run)
    json.dumps(packed)
    errors = [call["error"] for call in packed]
    assert errors[0] == []
    assert errors[1] == ["the answer cannot be sent: a tensor of 39996 bytes is too large"]
    assert errors[2][0].startswith("the answer cannot be sent: maximum recursion depth")
    assert errors[3] == errors[4] == ["the answers are too large to be sent"]
    assert wire.unpack(packed, ONE * 5).calls[4].answer is None
    assert wire.pack(Run([Call(10**5000)], ()))[0]["error"][0].startswith(
        "the answer cannot be sent: Exceeds the limit"
    )


def call(**parts):
    return {"answer": ["none"], "error": [], "stub": False, "modified": []} | parts


def eight(shape, kind="float64", data="A" * 11 + "="):
    """An answer that claims to be a tensor, of eight bytes."""
    return [call(answer=["tensor", kind, shape, data])]


@pytest.mark.parametrize(
    "calls",
    [
        None,
        3,
        [3],
        [{}],
        [call(answer=None)],
        [call(answer=["none", 1])],
        [call(answer=["float", "1"])],
        [call(answer=["int", 1.5])],
        [call(answer=["object", 3])],
        [call(answer=["set", []])],
        [call(answer=["tuple", {"a": 1}])],
        [call(answer=["tensor", "float64", [1]])],
        eight([2]),
        eight([-1]),
        eight([1.0]),
        eight([True]),
        eight([0, 2**64]),
        eight([10**400]),
        eight([1], "load"),
        eight([1], ["float64"]),
        eight([1], data="AAA"),
        eight([1], data=8),
        [call(error=3)],
        [call(modified="x")],
        [call(modified=None)],
    ],
    ids=lambda calls: json.dumps(calls)[2:50],
)
def test_what_are_no_answers_is_refused(calls):
    with pytest.raises(wire.WireError, match=r"^no (answers|value)|^not as many bytes as entries$"):
        wire.unpack(calls, ONE)


def test_claims_beside_the_answers_mean_nothing():
    forged = call(modified=[-1, 99, True], stub=1) | {"outcome": "passed", "points": 9}
    assert wire.unpack([forged], ONE).calls == [Call(None)]
    (found,) = wire.unpack(eight([3], "bool", "AAH/"), ONE).calls
    assert found.answer.tolist() == [False, True, True]
    assert torch.equal(found.answer, torch.tensor([False, True, True]))
    assert wire.unpack(eight([1]), ONE).calls[0].answer.tolist() == [0.0]


# --------------------------------------------------------------------------------------- the session that answers them


@pytest.fixture
def session(monkeypatch):
    """Makes sessions in this process, and runs their setup; what they put in place of ours is put back."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for place in (smalearn.course.exercises, commands):
        for name in ("check", "hint", "solution", "case"):
            monkeypatch.setattr(place, name, getattr(place, name))

    def make(*sources, setup=("import torch",), limit=5.0):
        key = AnswerKey(registry()["3.1"], 1)
        part = {"name": "running_attention", "cases": wire.coded(key.cases), "seed": 1}
        made = [(source, None, True) for source in setup] + [(source, "3.1", False) for source in sources]
        cells = [{"source": source, "id": id, "setup": tag, "count": None, "right": []} for source, id, tag in made]
        one = Session({"cells": cells, "exercises": {"3.1": part}, "limit": limit})
        one.said = one.answer({"do": "setup"})
        return one

    return make


CALL = {"do": "call", "id": "3.1", "order": "run"}
RIGHT = "def running_attention(Q, K, V):\n    return (Q @ K.mT).tril() @ V"


def outcome(session):
    """The outcome of 3.1, judged as the grader does."""
    key = AnswerKey(registry()["3.1"], 1)
    return key.judge(wire.unpack(session.answer(CALL)["calls"], key.cases)).outcome


def test_a_session_runs_the_cells_and_calls_the_function(session):
    one = session(RIGHT)
    assert one.said == {"error": ""}
    assert outcome(one) == "passed"


def test_what_is_handed_to_check_is_the_attempt(session):
    source = RIGHT.replace("running_attention", "mine") + "\n"
    one = session(
        source, 'from smalearn.course.exercises import check\nmine = check("3.1", mine)\nmine(*[torch.ones(1, 1)] * 3)'
    )
    assert outcome(one) == "passed"


def test_a_function_of_that_name_from_the_setup_is_the_attempt_where_there_is_no_other(session):
    for source, expected in [("", "passed"), ("def running_attention(Q, K, V):\n    return V", "failed")]:
        one = session(source, setup=["import torch", RIGHT])
        assert outcome(one) == expected


def test_another_order_is_run_if_it_differs(session):
    one = session(RIGHT)
    assert "calls" in one.answer(CALL)
    assert one.answer(CALL | {"order": "page"}) == {"same": True}
    assert "calls" in one.answer(CALL | {"order": "all"})  # with the setup


def test_the_reference_takes_the_place_of_an_attempt(session):
    one = session("running_attention = 3")
    assert one.answer(CALL)["error"] == "no function running_attention"
    exercise = registry()["3.1"]
    request = {"do": "reference", "id": "3.1", "name": "running_attention", "source": reference(exercise)}
    assert one.answer(request) == {}
    case = exercise.draw()[1]
    assert torch.equal(one.module.running_attention(*case), exercise.solution(*case))


def test_define_runs_the_cells_and_calls_nothing(session):
    one = session("def running_attention(Q, K, V):\n    raise SystemExit\nx = 1")
    assert one.answer(CALL | {"do": "define"}) == {}
    assert callable(one.module.running_attention)
    assert one.module.x == 1


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("%matplotlib inline\n!ls\nif 1:\n    %time 3\ny = 2", ""),
        ("y = 2\ndef f(:", "SyntaxError: invalid syntax"),
        ("y = 2\nraise SystemExit(3)", "SystemExit: 3"),
        ("y = 2\nraise KeyboardInterrupt", "KeyboardInterrupt"),
        ("y = 2\nassert 1 == 2, 'a' * 999", "AssertionError: " + "a" * 184),
        ("y = 2\nwhile True: pass", "stopped after 0.27 s"),
    ],
    ids=["magic", "syntax", "exit", "interrupt", "long", "loop"],
)
def test_the_setup_goes_on_after_an_error(session, source, error):
    one = session(setup=[source, "z = 3"], limit=0.3)
    assert one.said["error"] == error
    assert one.module.z == 3


def test_a_function_knows_its_source_as_in_a_notebook(session):
    one = session(RIGHT, setup=["import inspect", "def f():\n    return 3"])
    assert inspect.getsource(one.module.f) == "def f():\n    return 3"


def test_arguments_that_cannot_be_read_are_named(session):
    one = session(RIGHT)
    one.task["exercises"]["3.1"]["cases"] = base64.b64encode(b"cnowhere\nThing\n.").decode()
    expected = "its arguments cannot be read in another process: No module named 'nowhere'"
    assert one.answer(CALL)["error"] == expected


def test_hints_and_solutions_show_nothing(session):
    line = "from smalearn.course.exercises import case, hint, solution"
    one = session(setup=[f"{line}\nassert hint('3.1') is solution('3.1') is case('3.1') is None"])
    assert one.said == {"error": ""}
