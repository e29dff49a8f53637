"""What a learner is told: each sentence once, the failing case, and the values side by side."""

import dataclasses
import json
import math
import textwrap

import numpy as np
import pytest
import torch
from demos import CAUSAL, NO_MASK, PLAIN, STATE, by, causal_cases, said, unmasked

from smalearn.course.exercises import AnswerKey, compare, evaluate, report
from smalearn.course.exercises.compare import sentence_case
from smalearn.course.exercises.run import run


def test_not_started_text():
    def stub(Q, K, V):
        """The docstring."""
        raise NotImplementedError("your turn")

    expected = "○ demo.1 not started; later cells use the reference solution"
    assert said(CAUSAL, stub) == expected
    assert said(CAUSAL, torch.no_grad()(stub)) == expected


def test_failing_text():
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


@pytest.mark.parametrize(
    ("message", "shown"),
    [("this is", "This is"), ("a row", "A row"), ("K is", "K is")]
    + [(text, text) for text in ("exp(0) = 1", "q·k is", "t ≤ s", "a_j is", "√N is")],
)
def test_a_misconception_begins_with_a_capital_unless_with_a_name(message, shown):
    assert sentence_case(message) == shown


def of(place, change):
    """Change one item of a tuple."""
    return lambda a: (*a[:place], change(a[place]), *a[place + 1 :])


NO_ENTRIES = "Your code raised an exception\n    TypeError: the answer is nested, quantised or on the device meta"
TENSOR = "Wrong type: expected a tensor, got "
FIRST, SECOND, THIRD, FOURTH = (f"In item {place} of the answer: " for place in range(4))
SENTENCES = [
    (CAUSAL, lambda Y: None, "The answer is None: did you forget `return`?"),
    (CAUSAL, lambda Y: 3, f"{TENSOR}a number"),
    (CAUSAL, lambda Y: True, f"{TENSOR}a bool"),
    (CAUSAL, list, f"{TENSOR}a list: `torch.stack(...)` makes a tensor of it"),
    (CAUSAL, lambda Y: [], f"{TENSOR}a list\n"),
    (CAUSAL, lambda Y: Y.tolist(), f"{TENSOR}a list: `torch.tensor(...)` makes a tensor of it"),
    (CAUSAL, lambda Y: Y.numpy(), f"{TENSOR}a NumPy array: `torch.from_numpy(...)` makes a tensor of it"),
    (CAUSAL, lambda Y: {1, 2}, f"{TENSOR}a set\n"),
    (CAUSAL, lambda Y: torch.nested.nested_tensor([Y, Y]), NO_ENTRIES),
    (CAUSAL, lambda Y: torch.quantize_per_tensor(Y.float(), 0.1, 0, torch.qint8), NO_ENTRIES),
    (CAUSAL, lambda Y: Y.to("meta"), NO_ENTRIES),
    (CAUSAL, lambda Y: Y.float(), "The values are right, but in float32\n  → Is there a `.float()`, or a tensor"),
    (CAUSAL, lambda Y: Y.float() * 1.001, "Wrong dtype: expected torch.float64, got torch.float32: does a tensor that"),
    (CAUSAL, lambda Y: Y + 0j, "The values are right, but in complex128: take `.real`, or use `irfft`"),
    (CAUSAL, lambda Y: Y.to(torch.float8_e4m3fn), "Wrong dtype: expected torch.float64, got torch.float8_e4m3fn"),
    (CAUSAL, lambda Y: Y[0], "Wrong shape: expected (1, 3), got (3,)\n"),
    (CAUSAL, lambda Y: Y.mT, "Wrong shape: expected (1, 3), got (3, 1): that is the transpose"),
    (CAUSAL, lambda Y: Y + torch.tensor([0, 0, math.nan]), "Not finite: 1 of 3 entries are NaN or infinite, the first"),
    (CAUSAL, lambda Y: Y / 0, "Not finite: 3 of 3 entries are NaN or infinite, the first is "),
    (PLAIN, lambda a: a[0], "Wrong type: expected a tuple, got a number"),
    (PLAIN, lambda a: a[:3], "Wrong length: expected a tuple of 4, got 3"),
    (PLAIN, of(0, lambda n: n + 1e-12), f"{FIRST}wrong answer"),
    (PLAIN, of(0, lambda n: torch.ones(2)), f"{FIRST}wrong type: expected a number, got a tensor\n"),
    (PLAIN, of(1, list), f'{SECOND}wrong type: expected a string, got a list: `"".join(...)` makes a string\n'),
    (PLAIN, of(2, lambda x: x or 1e-6), f"{THIRD}wrong answer"),
    (PLAIN, of(2, lambda x: math.nan), f"{THIRD}not finite: the answer is nan"),
    (PLAIN, of(3, lambda flag: not flag), f"{FOURTH}wrong answer"),
    (PLAIN, of(3, int), f"{FOURTH}wrong type: expected a bool"),
    (STATE, of(2, torch.Tensor.float), f"{THIRD}the values are right, but in float32\n  → Is there a"),
    (STATE, of(1, lambda x: x.clamp(min=-1e9)), f"{SECOND}wrong values"),
    (STATE, of(1, lambda x: x.mT), f"{SECOND}not finite: 3 of 9 entries"),
]


@pytest.mark.parametrize(("exercise", "change", "sentence"), SENTENCES)
def test_sentence(exercise, change, sentence):
    key = AnswerKey(exercise)
    result = key.judge(run(by(exercise, change), key.cases, 0, 5.0))  # evaluate looks for a misconception, too
    text = report.render(result)
    assert result.outcome == ("error" if sentence == NO_ENTRIES else "failed")
    assert f"\n  {sentence}" in text
    assert text.startswith(f"✗ {exercise.id} {exercise.title}: ")
    assert text.endswith("is our solution from here on; to have yours back, run its cell.")


class Named(torch.Tensor):
    """A subclass."""


@pytest.mark.parametrize(
    ("exercise", "change"),
    [
        (CAUSAL, lambda Y: (Y.requires_grad_() * 1).mT.contiguous().mT),
        (CAUSAL, torch.Tensor.to_sparse),
        (CAUSAL, lambda Y: Y.as_subclass(Named)),
        (CAUSAL, lambda Y: Y * (1 + 1e-12)),
        (PLAIN, list),
        (PLAIN, lambda a: (np.int64(a[0]), np.str_(a[1]), np.float64(a[2]), np.bool_(a[3]))),
        (PLAIN, of(0, float)),
        (PLAIN, of(0, torch.tensor)),
        (PLAIN, of(2, lambda x: x * (1 + 1e-12) + 1e-13)),
    ],
)
def test_right_in_another_dress(exercise, change):
    assert evaluate(exercise, by(exercise, change)).outcome == "passed"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
def test_zero_target_is_compared_absolutely(dtype):
    zero = torch.zeros(2, 3, dtype=dtype)
    assert compare.difference(zero + 1e-12, zero, 1e-9) is None
    assert compare.difference(zero + 1e-6, zero, 1e-9).in_form
    assert compare.difference(zero[:0], zero[:0], 1e-9) is None


def test_integer_and_bool_tensors_must_be_equal():
    count, flags = torch.tensor([[10**12, 3]]), torch.tensor([[True, False], [False, False]])
    assert compare.difference(count, count.clone(), 1e-3) is compare.difference(flags, flags.clone(), 1e-3) is None
    assert compare.difference(count + 1, count, 1e-3).sentence == "Wrong values"
    assert compare.difference(~flags, flags, 1e-3).sentence == "Wrong values"
    upper = torch.tensor([[1, 2], [3, 4]])
    assert compare.difference(upper.mT, upper, 1e-3).sentence == "Wrong values: they are right after a transpose"


@pytest.mark.parametrize("target", [1.5, 3, 1 + 2j])
def test_a_whole_number_that_no_float_holds_is_a_wrong_answer(target):
    found = compare.difference(10**400, target, 1e-9)
    assert (found.sentence, found.in_form) == ("Wrong answer", True)
    assert compare.difference(10**400, 10**400, 1e-9) is None


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        (torch.tensor([math.nan, 1]), torch.tensor([math.nan, 1]), True),
        (torch.tensor([math.nan, 1]), torch.tensor([1.0, 1]), False),
        (torch.ones(2), torch.ones(2).double(), False),
        ([1, (2.0, "a")], [1, (2.0, "a")], True),
        ([1, (2.0, "a")], [1, (2.5, "a")], False),
        ([1], [1, 2], False),
        (object(), object(), True),
        (1, True, False),
        (int, int, True),
    ],
)
def test_same(before, after, equal):
    assert compare.same(before, after) is equal


# -------------------------------------------------------------------------------------------------- the failing case


def test_smallest_failing_case_is_shown():
    backwards = dataclasses.replace(CAUSAL, cases=lambda randn: reversed(list(causal_cases(randn))))
    result = evaluate(backwards, unmasked)
    assert (result.case, result.cases, result.passed) == (3, 4, 1)
    assert list(result.arguments) == ["Q", "K", "V"]
    held = report.render(evaluate(STATE, by(STATE, lambda a: (*a[:2], a[2] + 1)))).split("\n")
    assert held[1] == "  Smallest failing case: 1 of 3"
    assert held[2] == "    mask = Steps of shape (1, 1)"
    assert held[4] == "    initial_state = torch.tensor([0, 0], dtype=torch.float64)"
    lines = said(PLAIN, by(PLAIN, lambda a: a[:1])).split("\n")
    assert lines[2:6] == ["    spec = 't'", "    sizes = {'t': 1}", "    shift = 1.5", "    flag = True"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (torch.ones(13, 1).double(), "x of shape (13, 1)"),
        (torch.ones(0, 3).double(), "x of shape (0, 3)"),
        (torch.ones(13), "x of shape (13,), torch.float32"),
        (torch.ones(2, dtype=torch.int64), "x = torch.tensor([1, 1])"),
        (torch.ones(3, 2).mT, "x = torch.tensor([[1, 1, 1], [1, 1, 1]], dtype=torch.float32)  # strides (1, 2)"),
        (torch.ones(3, 14).mT, "x of shape (14, 3), torch.float32  # strides (1, 14)"),
        ([torch.ones(13).double(), (1, None), (2,)], "x = [Tensor of shape (13,), (1, None), (2,)]"),
        (object(), "x = object"),
        ({1}, "x = set"),
        ("word " * 40, "x = '" + "word " * 11 + "…"),
    ],
)
def test_arguments_are_described(value, line):
    assert report.argument("x", value) == line


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


def test_record():
    assert "misconception" not in report.record(evaluate(CAUSAL, by(CAUSAL, torch.neg)))
    record = report.record(evaluate(CAUSAL, unmasked, seed=4))
    counts = {"seed": 4, "cases": 4, "passed": 1}
    assert record == {"exercise": "demo.1", "outcome": "failed", **counts, "misconception": NO_MASK}
    assert json.loads(json.dumps(record)) == record


# ------------------------------------------------------------------------------------------- values side by side

INF, ONE = math.inf, torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("target", "answer", "line"),
    [
        (ONE, ONE + 2e-8, "1.000000000 | 1.000000020"),  # as many digits as it takes
        (ONE, ONE + 2e-13, "1.00000000000000e+00 | 1.00000000000020e+00"),
        (2e30 * ONE, 2.0001e30 * ONE, "2.000000e+30 | 2.000100e+30"),
        (2e-30 * ONE[0], -3e-30 * ONE[0], " 2.0000e-30 | -3.0000e-30"),
        (torch.tensor([-1e-9]), torch.tensor([1.0]), "  0.0000 | 1.0000"),  # no negative zero
        (torch.tensor([[1, -20]]), torch.tensor([[1, 3]]), "  1  -20 |   1    3"),
        (torch.tensor([True]), torch.tensor([False]), "    True | False"),
        (torch.tensor([1j]), torch.tensor([0j]), "0.0000+1.0000j | 0.0000+0.0000j"),
        (torch.tensor([-INF, 1, 2]), torch.tensor([-INF, math.nan, 2]), "  -inf  1.0000  2.0000 |   -inf     nan  2.0"),
        (torch.tensor([INF]), torch.tensor([math.nan]), "     inf | nan"),
    ],
)
def test_entries_have_the_digits_that_show_the_difference(target, answer, line):
    assert report.side_by_side(target, answer)[1].startswith(line)


def _one_differs(shape, *place, by=1.0):
    target = torch.zeros(shape)
    answer = target.clone()
    answer[place] += by
    return target, answer


WIDE = torch.zeros(2, 9, dtype=torch.complex128)


@pytest.mark.parametrize(
    ("target", "answer", "facts", "lines"),
    [
        (torch.ones(1, 2), torch.tensor([[1.0, 1.5]]), "largest difference 0.5 at [0, 1], shape (1, 2), torch.fl", 3),
        (ONE[0], ONE[0] / 2, "largest difference 0.5 at [], shape (), torch.float64", 3),
        (torch.tensor([-INF, 1.0]), torch.tensor([-INF, 3.0]), "largest difference 2 at [1], shape (2,), torch.fl", 3),
        (torch.tensor([-INF, 1.0]), torch.tensor([-INF, math.nan]), "shape (2,), torch.float32", 3),
        (*_one_differs((20, 20), 0, 0), "difference 1 at [0, 0], shape (20, 20), torch.float32, shown: [0:6, 0:6]", 8),
        (*_one_differs((20, 20), 15, 19), "1 at [15, 19], shape (20, 20), torch.float32, shown: [10:16, 14:20]", 8),
        (torch.zeros(30), torch.ones(30), "shown: [0:6]", 3),
        (WIDE, WIDE + 1j, "shown: [0:2, 0:3]", 4),
        (
            *_one_differs((2, 3, 2, 2), 1, 2, 0, 1),
            "at [1, 2, 0, 1], shape (2, 3, 2, 2), torch.float32, shown: [1, 2",
            4,
        ),
    ],
)
def test_of_a_big_array_the_corner_or_what_differs_is_shown(target, answer, facts, lines):
    shown = report.side_by_side(target, answer)
    assert facts in shown[-1]
    assert len(shown) == lines
    assert max(map(len, shown)) <= report.WIDTH - 4


def test_plain_values_side_by_side():
    assert report.side_by_side(12, 13) == ["expected     12", "your answer  13"]
    assert report.side_by_side(0.1, 1 / 3) == ["expected     0.1", "your answer  0.3333333333"]
    assert report.side_by_side(1.0, 1 + 1e-14) == ["expected     1.0", "your answer  1.00000000000001"]
    assert report.side_by_side("a" * 300, "b")[0] == "expected     '" + "a" * 78 + "…"
