"""The judges of exercises 7.1, each of its verdicts, and 7.5, for which more than one way is right."""

import pytest
import torch

from smalearn.course.exercises import evaluate, registry
from smalearn.ssd import ssd_quadratic

CLOCK, TEXTS = registry()["7.1"], registry()["7.5"]


def word_and_pause(word, pause):
    return lambda tokens: torch.where(tokens > 0, word, pause)


def longer_at_the_end(tokens):
    return torch.where(tokens > 0, 10.0, 0.0) + 5.0 * (torch.arange(len(tokens)) == len(tokens) - 1)


def timid_pauses(tokens):
    return torch.where(tokens > 0, 10.0, 1e-3 * torch.arange(len(tokens)))


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (lambda tokens: [10.0] * len(tokens), "one step for each of the 2 tokens, got list"),
        (lambda tokens: torch.full((3,), 10.0), "got a tensor of the shape (3,)"),
        (word_and_pause(10.0, torch.nan), "finite, and at least 0"),
        (word_and_pause(10.0, -0.1), "finite, and at least 0"),
        (word_and_pause(0.0, 0.3), "At position 1, the end of the text, the state holds nothing"),
        (word_and_pause(1.5, 0.0), "the words before it still hold 18.24 %"),
        (word_and_pause(4.59, 0.0), "the end of the text, the last word holds only 98.99 %"),
        (word_and_pause(9.0, 0.4), "At position 3, a pause, the last word holds only"),
        (word_and_pause(9.0, 0.4), "for a pause is written with its Δ too"),
        (longer_at_the_end, "The word 1 takes a step of 10 at position 0 and one of 15 at position 1"),
        (timid_pauses, "The pause takes a step of"),
    ],
)
def test_steps_that_do_not_reach_the_goal_are_told_why(attempt, reason):
    result = evaluate(CLOCK, attempt)
    assert result.outcome == "failed"
    assert reason in result.problem.sentence


@pytest.mark.parametrize(
    "attempt",
    [
        lambda tokens: -torch.log(torch.where(tokens > 0, 0.01, 1.0)),  # just the 99 % that are asked for
        word_and_pause(1e6, 1e-6),
        lambda tokens: 9.5 + tokens.double() - 9.5 * (tokens == 0),
        lambda tokens: (10 * (tokens > 0)).tolist() and 10 * (tokens > 0),
    ],
)
def test_steps_that_reach_it_pass(attempt):
    assert evaluate(CLOCK, attempt).outcome == "passed"


def test_what_is_reached_is_rounded_down():
    tokens = torch.tensor([0, 3, 3, 0])
    assert CLOCK.reached(torch.tensor([0.0, 20.0, 20.0, 0.0]), tokens) == "at least 100.00 % for the last word"
    assert CLOCK.reached(torch.tensor([0.0, 9.0, 9.0, 0.0]), tokens) == "at least 99.98 % for the last word"


def one_text(X, log_a, B, C, chunk_len):
    """Exercise 6.5, from an empty state."""
    empty = X.new_zeros(X.shape[-1], B.shape[-1])
    return registry()["6.5"].solution(X, log_a, B, C, empty, chunk_len)[0]


def mapped(X, log_a, B, C, chunk_len):
    program = lambda *text: one_text(*text, chunk_len)  # noqa: E731
    for _ in range(X.ndim - 2):
        program = torch.vmap(program)
    return program(X, log_a, B, C)


def padded_by_hand(X, log_a, B, C, chunk_len):
    length, state, rows = X.shape[-2], 0, []
    for begin in range(0, length, chunk_len):
        x, b, c = (part[..., begin : begin + chunk_len, :] for part in (X, B, C))
        a = log_a[..., begin : begin + chunk_len]
        L = torch.where(torch.ones(a.shape[-1], a.shape[-1]).tril(-1).bool(), a[..., None], 0.0).cumsum(-2).exp().tril()
        since = a.cumsum(-1).exp()[..., None]
        rows.append((L * (c @ b.mT)) @ x + (since * (c @ state.mT) if rows else 0))
        state = since[..., -1:, :] * state + (L[..., -1, :, None] * x).mT @ b
    return torch.cat(rows, -2)


@pytest.mark.parametrize("attempt", [mapped, padded_by_hand])
def test_another_way_to_many_texts_is_right(attempt):
    assert evaluate(TEXTS, attempt).outcome == "passed"


def text_by_text(X, log_a, B, C, chunk_len):
    if X.ndim == 2:
        return one_text(X, log_a, B, C, chunk_len)
    return torch.stack([text_by_text(*text, chunk_len) for text in zip(X, log_a, B, C, strict=True)])


def all_pairs(X, log_a, B, C, chunk_len):
    return ssd_quadratic(X, log_a, B, C)[0]


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (text_by_text, "a loop over texts or tokens inside a loop"),
        (
            all_pairs,
            "its largest tensor, (64, 64, 64) for 64 texts of 64 tokens, grows as T times its arguments; it should "
            "grow as they do",
        ),
        (all_pairs, "it does the same work whatever chunk_len is"),
    ],
)
def test_a_slow_way_to_many_texts_is_named(attempt, said):
    result = evaluate(TEXTS, attempt)
    assert result.outcome == "not as asked"
    assert any(said in detour for detour in result.detours), result.detours


def test_a_gradient_must_arrive():
    result = evaluate(TEXTS, lambda X, log_a, *others: TEXTS.solution(X, log_a.detach(), *others))
    assert result.problem.sentence.startswith("The values are right, the gradient by log_a is not: ")
