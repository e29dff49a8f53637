"""Exercises of chapter 03: what a learner is told who takes another border, or reads before writing."""

import pytest
import torch

from smalearn.course.exercises import evaluate, registry


def reading_first(Q, K, V):
    state, rows = torch.zeros(V.shape[1] + 1, K.shape[1], dtype=V.dtype), []
    for q, k, v in zip(Q, K, V, strict=True):
        y = state @ q
        rows.append(y[:-1] / y[-1])
        state = state + torch.outer(torch.cat([v, v.new_ones(1)]), k)
    return torch.stack(rows)


def halved(since=lambda a, b: a[b:].cumsum(0), until=lambda a, b: a[1:b].flip(0).cumsum(0).flip(0), up=0):
    """Scores of 3.7, with a border in the middle, or one later, and sums of one's own on its two sides."""

    def scores(Q, K, log_a):
        if len(Q) == 1:
            return Q @ K.mT
        b = (len(Q) + up) // 2
        keys = K[:b] * torch.cat([until(log_a, b), 0 * K[:1]])[:b].exp()
        block = (Q[b:] * since(log_a, b).exp()) @ keys.mT
        early, late = (scores(Q[part], K[part], log_a[part]) for part in (slice(b), slice(b, None)))
        return torch.cat([torch.cat([early, 0 * block.mT], 1), torch.cat([block, late], 1)])

    return scores


@pytest.mark.parametrize("up", [0, 1])
@pytest.mark.parametrize(
    ("changed", "said", "case"),
    [
        ({"until": lambda a, b: a[:b].sum(0) - a[:b].cumsum(0)}, ("difference of two sums", "∞ − ∞"), 5),
        (
            {"since": lambda a, b: torch.cat([a.new_zeros(1, a.shape[1]), a[b + 1 :]]).cumsum(0)},
            ("the border's own gate is",),
            2,
        ),
        ({"until": lambda a, b: 0 * a[1:b]}, ("have not faded", "does not change with log_a[1], and must"), 3),
        ({"since": lambda a, b: a[b:].cumsum(0).exp()}, ("two exponentials",), 2),
    ],
)
def test_a_wrong_side_of_the_border_is_named(changed, said, case, up):
    """Wherever the border is; and the smallest failing case has ordinary gates where these are enough."""
    assert evaluate(registry()["3.7"], halved(up=up)).outcome == "passed"
    result = evaluate(registry()["3.7"], halved(**changed, up=up))
    assert any(words in (result.misconception or result.sign) for words in said)
    assert result.case == case


def test_a_decoder_that_reads_first_is_told_why_it_is_not_a_number():
    assert "write first" in evaluate(registry()["3.2"], reading_first).misconception
