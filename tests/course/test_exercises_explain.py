"""What is said of a wrong answer that no list knows: true of the program, and silent where nothing can be told."""

import dataclasses

import pytest
import torch
from demos import demo

from smalearn.course.exercises import AnswerKey, evaluate, registry
from smalearn.course.exercises.explain import LEADING, Asked
from smalearn.course.exercises.rows import changed_rows
from smalearn.course.exercises.run import run


def asked(exercise, attempt):
    """What explainers look at, of an attempt that is wrong."""
    key = AnswerKey(exercise)
    calls = run(attempt, key.cases, 0, 10).calls
    verdicts = key.verdicts(calls)
    shown = next(k for k, verdict in enumerate(verdicts) if verdict)
    return Asked(exercise, key.cases, key.targets, calls, verdicts, shown, attempt)


def weigh(Q, K, gamma):
    time = torch.arange(len(Q), dtype=torch.float64)
    weights = ((Q @ K.mT).exp() * (gamma ** (time[:, None] - time).abs())).tril()
    return weights / weights.sum(-1, keepdim=True)


def rows(Q, K):
    """Sums of the rows, a running sum, and whether the first is positive."""
    return (Q + K).sum(-1), (Q + 2 * K).cumsum(0), bool(Q[0, 0] > 0)


def both(*shapes):
    """Cases of two tensors of one shape."""
    return lambda randn: ((randn(*shape), randn(*shape)) for shape in shapes)


LENGTHS = [(1, 0.5), (2, 0.25), (4, 0.5), (5, 0.8), (7, 0.9)]
WEIGHTS = demo(weigh, lambda randn: ((randn(length, 3), randn(length, 3), gamma) for length, gamma in LENGTHS))
ROWS = demo(rows, both((2, 3), (4, 3), (5, 3), (7, 3)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda L, *_: 2 * L, "your answer is 2 times the right one, in every wrong case"),
        (lambda L, *_: L * L.diagonal(), "each column of your answer is the right one times a number of its own"),
        (lambda L, *_: torch.cat([L, L]), "your answer is right as far as it is needed, and goes on after that"),
        (lambda L, *_: L.flip(0), "your answer is the right one in reverse order along axis 0"),
        (lambda L, *_: L.mT, "your answer is the transpose of the right one"),
        (lambda L, *_: L.flatten(), "your answer has the right entries in another shape"),
        (lambda L, *_: L.roll(1, 0), "the rows of your answer are right, their order is not"),
        (lambda L, *_: torch.cat([L[:1], 0 * L[1:]]), "only the first place along axis 0 is filled in your answer"),
        (lambda L, *_: -L, "your answer is the right one with its sign changed, in every wrong case"),
        (lambda L, *_: L + 1e-8, "your answer is right to about seven digits"),
        (lambda L, *_: torch.tanh(L) / torch.tanh(L).sum(-1, keepdim=True), None),
        (lambda L, *_: L * (2 if len(L) > 3 else 1), "your answer is 2 times the right one, in every wrong case"),
        (lambda L, *_: 2 * L if len(L) < 7 else L[99], None),  # of what raises nothing is said
    ],
)
def test_what_is_said(change, said):
    result = evaluate(WEIGHTS, lambda Q, K, gamma: change(weigh(Q, K, gamma), Q, K, gamma))
    assert result.outcome in ("failed", "error")
    assert said in result.sign if said else result.sign is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a, b, c: (3 * a, b, c), "in item 0, your answer is 3 times the right one, in every wrong case"),
        (lambda a, b, c: (a, b), None),
        (lambda a, b, c: b + 1, None),
        # the item that is wrong in the case that is shown
        (
            lambda a, b, c: (a if len(a) == 2 else 2 * a, b.flip(0), c),
            "in item 1, your answer is the right one in reverse order along axis 0",
        ),
    ],
)
def test_what_is_said_of_an_item(change, said):
    result = evaluate(ROWS, lambda Q, K: change(*rows(Q, K)))
    assert result.sign == said


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda Q, K: Q @ K.T, LEADING),  # raises where there are two axes before the last ones
        (lambda Q, K: (Q @ K.mT).sin() if Q.ndim > 3 else Q @ K.mT, ""),  # right with one leading axis
        (lambda Q, K: (Q @ K.mT).sin(), ""),
    ],
)
def test_leading_axes(attempt, said):
    stacked = dataclasses.replace(
        ROWS,
        cases=both((2, 3), (4, 2), (3, 4, 2), (2, 5, 4, 2)),
        oracle=lambda Q, K: torch.einsum("...tn,...sn->...ts", Q, K),
    )
    sign = evaluate(stacked, attempt).sign
    assert sign == said if said else sign != LEADING


def twice(x):
    """Two equal blocks."""
    return torch.stack([x, x])


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda x: torch.stack([x, 0 * x]), "only the first place along axis 0 is filled in your answer"),
        (lambda x: torch.stack([0 * x, x]), "row 0 of your answer does not change with x[0]"),
        (lambda x: torch.stack([x.sin(), x]), ""),
    ],
)
def test_what_is_right_where_it_stands_has_not_moved(attempt, said):
    sign = evaluate(demo(twice, lambda randn: [(randn(n, 2),) for n in (1, 1, 4)]), attempt).sign  # one has content
    assert not {"late", "early"} & set(str(sign).split())
    assert said in str(sign)


SIZES = dataclasses.replace(ROWS, oracle=lambda Q, K: len(Q))


@pytest.mark.parametrize("odd", [10**400, float("nan"), torch.tensor([]), torch.ones(2, 0, 3), "a", [1, "b"], {}, True])
@pytest.mark.parametrize(("exercise", "count"), [(WEIGHTS, 0), (ROWS, 3), (SIZES, 0)])
def test_odd_answers_have_no_sign(exercise, count, odd):
    assert evaluate(exercise, lambda *_: (odd,) * count if count else odd).sign is None


def test_an_accident_in_a_small_case_is_no_sign():
    """One case may look transposed; where another does not, that is not said."""

    def attempt(Q, K, gamma):
        L = weigh(Q, K, gamma)
        return L.mT if len(Q) < 5 else L.tanh() / L.tanh().sum(-1, keepdim=True)

    assert "transpose" not in evaluate(WEIGHTS, attempt).sign


def fading(x, a):
    """A sum that fades."""
    return torch.stack([sum((a[s + 1 : t + 1].prod() * x[s] for s in range(t)), x[t]) for t in range(len(x))])


FADING = demo(fading, lambda randn: ((randn(length, 3), randn(length).sigmoid()) for length in (2, 4, 5)))


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (lambda x, a: x, "row 1 of your answer does not change with x[0], and must"),
        (lambda x, a: fading(x.flip(1), a), "column 0 of your answer changes with x[..., 2], which it must not, and"),
        (lambda x, a: torch.cat([x[:1] * a[1], fading(x, a)[1:]]), "row 0 of your answer changes with a[1]: in the"),
    ],
)
def test_dependence(attempt, said):
    assert said in changed_rows(asked(FADING, attempt))


def test_the_case_is_shown_of_which_the_sentence_speaks():
    """Two rows show no pattern: that of three is shown, and said not to be the smallest."""
    result = evaluate(FADING, lambda x, a: fading(x.flip(0), a).flip(0))
    assert (result.passed, result.case, result.smallest) == (0, 2, False)
    assert "it depends on nothing that comes later" in result.sign


def test_dependence_says_nothing_of_a_factor():
    assert changed_rows(asked(FADING, lambda x, a: 2 * fading(x, a))) is None


def test_dependence_on_one_case_is_true_there():
    """What is said of a row and a cause holds if they are tried by hand."""

    def ahead(x, a):
        return fading(x, a) + x.roll(-1, 0) * 0.1

    found = changed_rows(asked(FADING, ahead))
    x, a = FADING.draw(0)[1]
    other = x.clone()
    other[1] *= 0.5
    assert "row 0 of your answer changes with x[1]" in found
    assert not torch.equal(ahead(x, a)[0], ahead(other, a)[0])
    assert torch.equal(fading(x, a)[0], fading(other, a)[0])


def test_numbers_of_python_keep_their_digits():
    """A pair of floats whose first is exact: what is said is said of the second, and not of their order."""
    halves = registry()["3.4"]
    late = evaluate(halves, lambda log_a, s, border, t: (halves.solution(log_a, s, border, t)[0], log_a.sum().exp()))
    assert "item 0" not in (late.sign or "")
    narrow = evaluate(halves, lambda log_a, *ends: tuple(float(x) for x in halves.solution(log_a.float(), *ends)))
    assert narrow.outcome == "failed"
    assert "order" not in (narrow.sign or "")
    bounded = evaluate(halves, lambda log_a, *ends: halves.solution(log_a.clamp(min=-20), *ends))
    assert "digits" not in (bounded.sign or "")


@pytest.mark.parametrize("exercise", [e for e in registry().values() if e.kind == "predict"], ids=lambda e: e.id)
def test_a_wrong_prediction_gets_a_reason(exercise):
    """Numbers that nobody foresaw are told why they are too small or too large; words have all their sentences."""
    right = exercise.oracle()
    if isinstance(right, str):
        return
    for factor, word in ((0.87, "Too little: "), (1.17, "Too much: ")):
        found = evaluate(exercise, lambda guess=factor * right: guess)
        (why,) = (text for text in exercise._paragraphs if text.startswith(word))
        why = " ".join(why.split())[len(word) + 1 :].rstrip(".")
        told = found.problem.sentence
        assert found.misconception or (told.startswith(f"That is {word.lower()}") and told.endswith(why))
    assert "Too " not in exercise.statement


def test_what_another_case_denies_is_not_said():
    """Where all keys of a column are negative, ReLU lets no query matter; the right answer is not blind in general."""

    def relu(Q, K):
        return (Q @ K.relu().mT)[:, :1] * Q.sin()

    def cases(randn):
        yield randn(4, 3), -randn(4, 3).abs()
        for _ in range(2):
            yield randn(5, 3), randn(5, 3).abs()

    exercise = demo(relu, cases)
    attempt = lambda Q, K: (Q @ K.mT)[:, :1] * Q.sin()  # noqa: E731
    assert changed_rows(asked(exercise, attempt)) is None
    alone = dataclasses.replace(exercise, cases=lambda randn: [next(cases(randn)) for _ in range(3)])
    assert "must not" in changed_rows(asked(alone, attempt))


def test_a_row_that_may_have_any_length_matters_all_the_same():
    """Entries shrink by different factors: the right answer changes with the direction of B[0]."""

    def unit(x, B):
        return x * torch.nn.functional.normalize(B, dim=1)[0]

    exercise = demo(unit, lambda randn: [(randn(4, 3), randn(4, 3)) for _ in range(3)])
    assert "must not" not in str(changed_rows(asked(exercise, lambda x, B: x * B[0])))
    assert "must" in changed_rows(asked(exercise, lambda x, B: x * B[1]))


def test_an_answer_much_smaller_than_the_right_one_depends_on_what_it_reads():
    def oracle(x, a):
        return x * a[:, None]

    exercise = demo(oracle, lambda randn: [(randn(4, 3), randn(4)) for _ in range(3)])
    tiny = lambda x, a: 1e-30 * (x + a[:, None] ** 3)  # noqa: E731
    assert "does not change" not in str(changed_rows(asked(exercise, tiny)))


def test_a_row_that_a_gate_has_cleared_says_nothing_of_the_others():
    """From row 9 on gates are e^-800: there no row depends on its own gate, in the short cases every row does."""

    def kept(V, g):
        return (V * g.exp()[:, None]).cumsum(0)

    def gated(randn):
        for length in (2, 3, 4):
            yield randn(length, 2), -randn(length).abs()
        yield randn(17, 2), torch.cat([-randn(9).abs(), torch.full((8,), -800.0)])

    def attempt(V, g):
        return kept(V, g) if len(g) < 17 else kept(V, g) + (V * g[:, None] * (g < -700)[:, None]).cumsum(0)

    found = evaluate(demo(kept, gated), attempt)
    assert found.outcome == "failed"
    assert "and must not" not in (found.sign or "")
