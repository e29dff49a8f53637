"""The card of a result: what it says, that a learner's text stays text, and that no card is shown where none is due."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest
import torch

from smalearn.course.exercises import check, commands, evaluate, registry
from smalearn.course.exercises.card import card
from smalearn.course.exercises.way import LENGTHS

pytestmark = pytest.mark.usefixtures("fresh_kernel")

EXERCISE = registry()["1.2"]
SCRIPT = "<script>alert('&')</script>"


class Tags(HTMLParser):
    """The tags that are opened, and the text between them."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def shown(monkeypatch):
    """The HTML of every check."""
    pages = []
    monkeypatch.setattr(commands, "show", lambda text, record=None, html="", alive=None: pages.append(html))
    return pages


def wrong(Q, K):
    print(SCRIPT)
    return 2 * EXERCISE.solution(Q, K)


def named(Q, K):
    raise ValueError(SCRIPT)


def stub(Q, K):
    raise NotImplementedError


def test_a_wrong_answer():
    page = Tags(card(evaluate(EXERCISE, wrong), [], "○✗"))
    assert not page.open
    assert "✗ 1.2 Hide the future ○✗" in page.text
    assert "Your answer is 2 times the right one" in page.text
    assert "Wrong values" not in page.text  # the reason says more
    assert page.tags.count("table") == 4  # Q and K, expected and got
    assert "causal_weights is our solution from here on" in page.text


def test_entries_that_differ_are_marked():
    def attempt(Q, K):
        weights = EXERCISE.solution(Q, K)
        return torch.cat([weights[:-1], weights[-1:] + 1]) if len(Q) == 2 else weights

    page = card(evaluate(EXERCISE, attempt), [], "")
    assert re.findall(r"<td( class=off)?>", page.partition("expected")[2]) == ["", "", " class=off", " class=off"] * 2


@pytest.mark.parametrize("attempt", [wrong, named, lambda Q, K: SCRIPT], ids=["printed", "raised", "returned"])
def test_what_a_learner_writes_is_text(attempt):
    page = card(evaluate(EXERCISE, attempt), [SCRIPT], "")
    assert "script" not in Tags(page).tags
    assert SCRIPT in Tags(page).text
    assert not Tags(page).open


def test_what_follows_a_right_answer(shown):
    check("1.2", EXERCISE.solution)
    check("3.1", lambda Q, K, V: (Q @ K.mT).tril() @ V)
    right, detour = map(Tags, shown)
    assert EXERCISE.insight in right.text
    assert "○✓○○○○" in right.text
    assert "in this chapter 1 of 6, next 1.1" in right.text
    assert "All answers are right, but not found as asked:Its largest tensor, (64, 64)" in detour.text


def test_what_is_not_started_has_no_card(shown):
    check("1.2", stub)
    assert shown == [""]


def test_values_that_are_no_tensors_and_attempts_that_are_no_functions():
    letters = dataclasses.replace(registry()["1.3"], refuse=None, oracle=lambda *arguments: "TP")
    page = Tags(card(evaluate(letters, lambda *arguments: SCRIPT), [], ""))
    assert page.tags.count("td") == 2
    assert SCRIPT in page.text
    assert SCRIPT in Tags(card(evaluate(registry()["1.3"], lambda *arguments: SCRIPT), [], "")).text
    assert "check needs the function itself" in Tags(card(evaluate(EXERCISE, 3), [], "")).text


def test_an_attempt_is_timed_as_guarded_as_it_is_checked(shown, capsys):
    calls = []

    def fails_later(Q, K):
        calls.append(None)
        print("here")
        if len(calls) > len(EXERCISE.draw()) + len(LENGTHS):  # its way is measured at these
            raise ValueError("later")
        return EXERCISE.solution(Q, K)

    assert check("1.2", fails_later) is fails_later
    assert "yours" not in Tags(shown[0]).text
    assert capsys.readouterr().out == ""
