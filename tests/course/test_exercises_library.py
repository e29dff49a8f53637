"""The library's own answer, however it is reached, is not the learner's; what a statement welcomes is."""

import functools

import pytest
from demos import demo

from smalearn import fast
from smalearn.course.ch06.mask import decay_mask
from smalearn.course.exercises import evaluate
from smalearn.course.exercises.way import taken
from smalearn.linear_attention import linear_attention_recurrent as recurrent
from smalearn.ssd import ssd_chunked
from smalearn.testing import random_tensors

ssd_in_chunks = ssd_chunked  # as a cell of chapter 07 does where 6.5 is missing


def helper(*arguments):
    return ssd_chunked(*arguments)


def decorated(*arguments):
    return functools.wraps(helper)(lambda *given: helper(*given))(*arguments)


def imports(*arguments):
    from smalearn.ssd import ssd_recurrent

    return ssd_recurrent(*arguments)


def imports_module(*arguments):
    from smalearn import masks as families

    return families.scan_recurrent(*arguments)


class Program:
    def __call__(self, *arguments):
        return [recurrent(*one) for one in arguments]


WELCOME = {"ssd_in_chunks"}


@pytest.mark.parametrize(
    ("attempt", "name"),
    [
        (ssd_chunked, "ssd_chunked"),
        (functools.partial(ssd_chunked, chunk_len=4), "ssd_chunked"),
        (helper, "ssd_chunked"),
        (decorated, "ssd_chunked"),
        (imports, "ssd_recurrent"),
        (Program(), "recurrent"),
        (lambda *arguments: fast.ssd(*arguments), "ssd"),
        (imports_module, "scan_recurrent"),
        (lambda *arguments: (lambda: helper(*arguments))(), "ssd_chunked"),
        (lambda *arguments: ssd_in_chunks(*arguments), None),
        (lambda *arguments: random_tensors(*arguments), None),
        (lambda *arguments: decay_mask(*arguments), None),  # what an earlier check hands back
        (len, None),
    ],
)
def test_what_is_taken_is_named(attempt, name):
    assert taken(attempt, WELCOME) == name


def test_what_the_statement_names_is_welcome():
    def recurrence(Q, K, V):
        return recurrent(Q, K, V)[0]

    exercise = demo(recurrence, lambda randn: ((randn(n, 2), randn(n, 2), randn(n, 2)) for n in (1, 2, 3)))
    result = evaluate(exercise, recurrence)
    assert (result.outcome, result.detours) == ("passed", ())  # the solution takes it as well
    other = evaluate(exercise, lambda Q, K, V: fast.linear_attention(Q, K, V)[0])
    assert other.outcome == "not as asked"
    assert other.detours == ("`linear_attention` is smalearn's: write it yourself",)
