"""Attempts are judged, recognised, and disturb nobody: what they print, set and change."""

import dataclasses
import functools
import random
import re
import sys
import warnings

import numpy as np
import pytest
import torch
from demos import CAUSAL, NO_MASK, PLAIN, STATE, by, causal_loop, causal_product, describe, said, unmasked
from demos import masked_sum as summed

from smalearn.course.exercises import compare, evaluate, judge, verify
from smalearn.course.exercises.run import PRINTED_LINES, _Printed, run

# -------------------------------------------------------------------------------------------- known wrong answers


@pytest.mark.parametrize(
    "attempt",
    [
        lambda Q, K, V: unmasked(Q, K, V) if len(Q) == 4 else 2 * causal_product(Q, K, V),
        lambda Q, K, V: unmasked(Q, K, V) if len(Q) > 1 else 0 * V,  # also wrong where the known answer is right
        lambda Q, K, V: unmasked(Q, K, V) if len(Q) < 9 else Q[99],
    ],
)
def test_misconception_must_hold_in_all_cases(attempt):
    assert evaluate(CAUSAL, attempt).outcome == "failed"
    assert evaluate(CAUSAL, attempt).misconception is None


def test_a_known_answer_that_agrees_with_the_attempt_in_one_case_alone_is_not_named():
    def only_long(Q, K, V):
        return Q @ K.mT @ V if len(Q) == 9 else causal_product(Q, K, V)

    both = dataclasses.replace(CAUSAL, wrong={"only long": only_long} | CAUSAL.wrong)
    assert evaluate(both, unmasked).misconception == NO_MASK
    assert evaluate(both, only_long).misconception == "only long"


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


def test_an_answer_key_judges_what_was_run_elsewhere():
    key = judge.AnswerKey(CAUSAL, 3)
    for function in (causal_product, unmasked, lambda Q, K, V: None):
        here, there = evaluate(CAUSAL, function, 3), key.judge(run(function, key.cases, 3, 5.0))
        assert (there.outcome, there.seed, there.passed) == (here.outcome, 3, here.passed)
        assert there.misconception is here.misconception
    assert key.judge(run(causal_product, key.cases[:2], 3, 5.0), 5.0).outcome == "timeout"


def test_faults_of_the_exercise_itself_are_raised():
    def broken(Q, K, V):
        raise ZeroDivisionError("the oracle is broken")

    with pytest.raises(ZeroDivisionError, match="the oracle is broken"):
        evaluate(dataclasses.replace(CAUSAL, oracle=broken), causal_product)


# ---------------------------------------------------------------------------------- what cannot be called, or raises


def test_what_is_no_function_of_these_arguments():
    assert "check needs the function itself, got a tensor: write check(" in said(CAUSAL, torch.ones(2))
    assert "got None" in said(CAUSAL, None)
    text = said(CAUSAL, lambda Q, K: Q)
    assert "wrong parameters: expected causal_product(Q, K, V), got (Q, K)\n" in text
    assert "got (Q, K, V, scale)" in said(CAUSAL, lambda Q, K, V, scale: Q)
    assert evaluate(CAUSAL, lambda Q, K: Q).outcome == evaluate(CAUSAL, None).outcome == "error"
    assert evaluate(CAUSAL, lambda *QKV, scale=1: causal_product(*QKV)).outcome == "passed"


def test_functions_without_a_signature_are_tried():
    assert "TypeError" in said(CAUSAL, max) or "RuntimeError" in said(CAUSAL, max)
    assert evaluate(CAUSAL, torch.addmm).outcome in ("error", "failed")


class Angry:
    """Raises whatever it is asked."""

    def __call__(self, Q, K, V):
        return causal_product(Q, K, V)

    def __getattr__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize(
    "attempt", [Angry(), functools.partial(causal_product), torch.no_grad()(causal_product)], ids=type
)
def test_any_callable_may_be_an_attempt(attempt):
    assert evaluate(CAUSAL, attempt).outcome == "passed"
    assert "got an object of type Angry" in said(CAUSAL, lambda *_: Angry())


def helper(V):
    V.attribute = object()
    raise KeyError(f"no column in {object()!r}")


def partly(Q, K, V):
    if len(Q) > 1:
        raise NotImplementedError
    return causal_product(Q, K, V)


def attention(Q, K, V):
    scores = [Q[t] @ K.mT for t in range(len(Q))]
    return torch.stack(scores) @ helper(V)


def forget(Q, K, V):
    return [Q[row] for row in (0, 10**6)]


def in_torch(Q, K, V):
    return torch.empty(2, device="meta").numpy(force=True)


def deep(Q, K, V):
    return deep(Q, K, V)


def leave(Q, K, V):
    sys.exit("done")


@pytest.mark.parametrize(
    ("attempt", "lines"),
    [
        (
            attention,
            r"line 3 of attention: return torch.stack\(scores\) @ helper\(V\)\n    "
            r"line 3 of helper: raise KeyError\(.*\)\n    KeyError: 'no column in <object object at 0x…>'\n",
        ),
        (partly, r"line 3 of partly: raise NotImplementedError\n    NotImplementedError"),
        (torch.no_grad()(forget), r"line 2 of forget: .*\n    IndexError"),
        (in_torch, r"line 2 of in_torch: .*\n    NotImplementedError: Cannot copy out of meta tensor"),
        (deep, r"line 2 of deep: return deep\(Q, K, V\)\n    RecursionError: maximum recursion depth exceeded"),
        (leave, r"line 2 of leave: .*\n    SystemExit: done"),
    ],
)
def test_an_exception_shows_the_learners_own_lines_and_none_of_libraries(attempt, lines):
    assert re.search(rf"\n  Your code raised an exception\n    {lines}", said(CAUSAL, attempt))
    assert evaluate(CAUSAL, attempt).outcome == "error"


@pytest.mark.parametrize(("message", "word", "most"), [("word " * 10_000, "word", 250), ("line\n" * 50, "line\n", 10)])
def test_long_exceptions_are_cut(message, word, most):
    def attempt(Q, K, V):
        raise ValueError(message)

    text = said(CAUSAL, attempt)
    assert "\n    …\n" in text
    assert text.count(word) <= most
    assert text.count("\n") < 20


# ----------------------------------------------------------------------------------------------- changed arguments


def scale(Q, K, V):
    Q /= 2
    V *= 2
    return causal_product(Q, K, V)


def grow(mask, log, initial_state):
    mask.cache = mask.dense()
    log.unsqueeze_(0)
    return STATE.oracle(mask, log[0], initial_state)


def reach_in(mask, log, initial_state):
    answer = summed(mask, log, initial_state)
    mask.rows.neg_()
    return answer


def pop(spec, sizes, shift, flag):
    answer = describe(spec, sizes, shift, flag)
    sizes.clear()
    return answer


@pytest.mark.parametrize(
    ("exercise", "attempt", "line"),
    [
        (CAUSAL, scale, r"\n  Your code changes its input Q and V in place\n  → Q is the caller's: work on a copy"),
        (STATE, grow, "changes its input log in place"),
        (STATE, reach_in, "changes its input mask in place"),
        (PLAIN, pop, "changes its input sizes in place"),
    ],
)
def test_changed_inputs_are_named(exercise, attempt, line):
    assert re.search(line, said(exercise, attempt))
    assert evaluate(exercise, attempt).outcome == "failed"


def test_attempt_cannot_reach_what_others_see():
    buffer = torch.zeros(9, 3, dtype=torch.float64)

    def reuse(Q, K, V):
        buffer[: len(Q)] = causal_product(Q, K, V)
        Q.zero_()
        return buffer[: len(Q)]

    result = evaluate(CAUSAL, reuse)
    assert result.problem.sentence == "Your code changes its input Q in place"
    assert compare.elements(result.arguments) == 7
    assert result.arguments["Q"].any()
    frozen = compare.freeze([(torch.ones(2, requires_grad=True) * 2, "a")])
    assert not frozen[0][0].requires_grad  # no answer holds its graph


def test_an_oracle_that_changes_its_inputs_disturbs_no_attempt():
    def careless(Q, K, V):
        answer = causal_loop(Q, K, V)
        Q.zero_()
        return answer

    assert evaluate(dataclasses.replace(CAUSAL, oracle=careless), causal_product).outcome == "passed"


def test_warnings_are_no_errors():
    def warn(Q, K, V):
        warnings.warn("careful", UserWarning, stacklevel=1)
        return causal_product(Q, K, V)

    assert evaluate(CAUSAL, warn).outcome == "passed"


# ------------------------------------------------------------------------------------------- what is printed and set


def test_prints_are_shown_under_the_verdict():
    def chatty(Q, K, V):
        print("length", len(Q))
        print("no newline", end="")
        print()
        return causal_product(Q, K, V)

    lines = ["  | length 1", "  | no newline", "  | length 2", "  | no newline"]
    assert said(CAUSAL, chatty).split("\n")[1:6] == ["  Your code printed:", *lines]


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
    assert printed[:2] == ("x" * 90 + "…", "y" * 90 + "…")
    assert printed[-1] == "… (2980 more lines)"


def test_random_numbers_are_the_same_for_each_attempt_and_the_callers_go_on():
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
    evaluate(CAUSAL, wild)  # torch's own state is another one by now
    assert len(set(seen)) == 1
    evaluate(CAUSAL, wild, seed=1)
    assert len(set(seen)) == 2


def test_what_is_set_or_entered_and_never_left_is_as_it_was():
    before = torch.get_default_device(), torch.get_num_threads(), sys.getrecursionlimit()

    def wild(Q, K, V):
        torch.set_default_device("meta")
        torch.set_num_threads(before[1] + 1)
        sys.setrecursionlimit(5000)
        for mode in (torch.device("meta"), torch.no_grad()):
            entered.append(mode)
            mode.__enter__()
        torch.set_float32_matmul_precision("medium")
        torch.autograd.set_detect_anomaly(True)
        torch.set_printoptions(precision=1)
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        raise ValueError

    entered = []
    evaluate(CAUSAL, wild)
    assert (torch.get_default_device(), torch.get_num_threads(), sys.getrecursionlimit()) == before
    assert torch.ones(1).device.type == "cpu"
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.is_anomaly_enabled()
    assert "1.2346" in repr(torch.tensor(1.23456))
    seven = random.Random(7).random(), np.random.RandomState(7).rand()
    assert random.random() != seven[0]
    assert np.random.rand() != seven[1]  # noqa: NPY002
