"""The judges of exercises 7.1, each of its verdicts, and 7.5 and 7.6, for which more than one way is right."""

import pytest
import torch
from torch.nn import functional

from smalearn import fast
from smalearn.course.ch06.mask import decay_mask
from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.compare import elements
from smalearn.course.exercises.edits import Edited
from smalearn.course.exercises.report import render
from smalearn.models import Mamba2
from smalearn.ssd import ssd_chunked as ssd_in_chunks
from smalearn.ssd import ssd_step
from smalearn.testing import assert_close

CLOCK, TEXTS, LAYER = (registry()[id] for id in ("7.1", "7.5", "7.6"))


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
    return (decay_mask(log_a) * (C @ B.mT)) @ X


def differences_of_clamped_sums(X, log_a, B, C, chunk_len):
    sums, rows, state = log_a.clamp(min=-30).cumsum(-1)[..., None], [], 0
    for begin in range(0, X.shape[-2], chunk_len):
        x, b, c, s = (part[..., begin : begin + chunk_len, :] for part in (X, B, C, sums))
        before = s[..., :1, :] - log_a.clamp(min=-30)[..., begin, None, None]
        L = (s - s.mT).exp().tril()
        rows.append((L * (c @ b.mT)) @ x + ((s - before).exp() * (c @ state.mT) if begin else 0))
        last = s[..., -1:, :]
        state = (last - before).exp() * state + ((last - s).exp() * x).mT @ b
    return torch.cat(rows, -2)


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (differences_of_clamped_sums, "it subtracts running sums"),
        (text_by_text, "a loop over T or texts inside a loop"),
        (all_pairs, "its largest tensor, (64, 64, 64) for T = texts = 64, grows as T³; it should grow as T²"),
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


def test_a_pair_is_not_to_be_stacked():
    result = evaluate(TEXTS, lambda X, log_a, B, C, chunk_len: ssd_in_chunks(X, log_a, B, C, None, chunk_len))
    assert result.problem.sentence == "Wrong type: expected a tensor, got a tuple"


def test_a_case_of_many_texts_can_be_looked_at():
    assert max(sum(map(elements, case)) for case in TEXTS.draw()) <= 100


def test_no_norm_hides_what_was_wrong_before_it():
    assert all(len(weights["norm"]) > 1 for _, weights in LAYER.draw())  # of one channel it leaves the sign


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ("(dt[:, :, None] * X, → (X,", "→ dt is missing in what is written"),
        (
            "(-1, (heads, -1)).movedim(1, 0) → (-1, (-1, heads)).movedim(2, 0) ; Y.movedim(0, 1) → Y.movedim(0, 2)",
            "→ Your heads are interleaved",
        ),
    ],
)
def test_a_slip_in_the_layer_is_named(edits, said):
    assert said in render(evaluate(LAYER, Edited(LAYER.solution, [], edits)))


def the_librarys(x, weights):
    dim, channels, heads = x.shape[1], len(weights["norm"]), len(weights["D"])
    state, taps = (len(weights["bias"]) - channels) // 2, len(weights["taps"])
    block = Mamba2(dim, state, channels // heads, conv_len=taps, heads=heads).double().requires_grad_(False)
    ours = block.in_proj.weight, block.conv.weight, block.norm.weight, block.out_proj.weight
    theirs = weights["W_in"].T, weights["taps"].T[:, None], weights["norm"], weights["W_out"].T
    pairs = [*zip(ours, theirs, strict=True), (block.conv.bias, weights["bias"])]
    for parameter, value in [*pairs, *((getattr(block, name), weights[name]) for name in ("dt_bias", "A_log", "D"))]:
        parameter.copy_(value)
    return block(x)


def test_the_layer_is_mamba2():
    *_, case = LAYER.draw()
    for answer in (LAYER.solution(*case), LAYER.oracle(*case)):
        assert_close(answer, the_librarys(*case), 1e-12)


def by_steps(x, weights):
    """Exercise 7.6, one token after the other, by 7.2 and 7.3."""
    convolve, block_step = registry()["7.2"].solution, registry()["7.3"].solution
    channels, heads, seen = len(weights["norm"]), len(weights["D"]), len(weights["bias"])
    window = torch.zeros(len(weights["taps"]) - 1, seen, dtype=x.dtype)
    state = torch.zeros(heads, channels // heads, (seen - channels) // 2, dtype=x.dtype)
    rows = []
    for token in x @ weights["W_in"]:
        y, window = convolve(token[None, channels:-heads], weights["taps"], window)
        X, B, C = functional.silu(y[0] + weights["bias"]).split([channels, *2 * [state.shape[-1]]])
        dt = functional.softplus(token[-heads:] + weights["dt_bias"])
        y, state = block_step(X.view(heads, -1), dt, weights["A_log"], B, C, weights["D"], state)
        rows.append(functional.rms_norm(y.flatten() * functional.silu(token[:channels]), (channels,), eps=1e-5))
    return weights["norm"] * torch.stack(rows) @ weights["W_out"]


def test_a_layer_in_another_style_is_right_and_the_librarys_is_not_as_asked():
    assert evaluate(LAYER, by_steps).outcome == "passed"
    result = evaluate(LAYER, the_librarys)
    assert result.outcome == "not as asked"
    assert "`Mamba2` is smalearn's" in result.detours[0]


def channel_by_channel(x, weight, window):
    seen, y = torch.cat([window, x]), torch.zeros_like(x)
    for t in range(len(x)):
        for d in range(x.shape[1]):
            y[t, d] = weight[:, d] @ seen[t : t + len(weight), d]
    return y, seen[len(x) :]


def the_librarys_step(X, dt, A_log, B, C, D, state):
    y, state = ssd_step(dt[:, None] * X, -A_log.exp() * dt, B.expand(len(X), -1), C.expand(len(X), -1), state)
    return y + D[:, None] * X, state


def test_the_librarys_chunks_stand_in_for_the_learners():
    """So that chapter 07 can be handed in without the file of chapter 06."""
    result = evaluate(TEXTS, lambda X, log_a, B, C, chunk_len: ssd_in_chunks(X, log_a, B, C, None, chunk_len)[0])
    assert result.outcome == "passed"


@pytest.mark.parametrize(
    ("id", "attempt", "said"),
    [
        ("7.2", channel_by_channel, "inside a loop"),
        ("7.3", the_librarys_step, "`ssd_step` is smalearn's"),
        ("7.5", lambda X, log_a, B, C, chunk_len: fast.ssd(X, log_a, B, C)[0], "`ssd` is smalearn's"),
    ],
)
def test_a_right_answer_that_is_not_ones_own_or_slow_is_not_as_asked(id, attempt, said):
    result = evaluate(registry()[id], attempt)
    assert result.outcome == "not as asked"
    assert said in result.detours[0]
