"""What the exercises of appendix B say to answers in other styles."""

import pytest
import torch

from smalearn.course.exercises import evaluate, registry
from smalearn.masks import SemiseparableMask
from smalearn.ssd import ssd_recurrent

PREFIX, DRAFTS, REPLAY, STORE = (registry()[f"B.{number}"] for number in range(1, 5))


def while_equal(prompt, served, chunk_len):
    shared = 0
    while shared < min(len(prompt) - 1, len(served)) and prompt[shared] == served[shared]:
        shared += 1
    return shared - shared % chunk_len


def from_suffix_products(state, X, log_a, B, accepted):
    decays = torch.cat([log_a[..., :accepted].exp(), torch.ones_like(log_a[..., :1])], -1)
    until = decays.flip(-1).cumprod(-1).flip(-1)
    written = (until[..., 1:, None] * X[..., :accepted, :]).mT @ B[..., :accepted, :]
    return until[..., :1, None] * state + written


def last_row_of_the_mask(state, X, log_a, B, C):
    row = torch.exp(log_a.sum(-1))[..., None] * torch.einsum("...pn,...n->...p", state, C)
    weights = SemiseparableMask(log_a).dense(log_a.dtype)[..., -1, :] * torch.einsum("...cn,...n->...c", B, C)
    return row + torch.einsum("...c,...cp->...p", weights, X)


def by_steps(state, X, log_a, B, C):
    for s in range(X.shape[-2]):
        state = log_a[..., s, None, None].exp() * state + X[..., s, :, None] * B[..., s, None, :]
    return (state @ C[..., None])[..., 0]


def without_where(state, top, rest_top):
    def multiples(x, top):
        scale = (x.abs().amax(-1, keepdim=True) / top).clamp_min(1e-300)
        return torch.round(x / scale) * scale

    first = multiples(state, top)
    return first, multiples(state - first, rest_top)


@pytest.mark.parametrize(
    ("exercise", "attempt"),
    [(PREFIX, while_equal), (DRAFTS, from_suffix_products), (STORE, without_where)],
    ids=lambda one: getattr(one, "id", None),
)
def test_other_styles_pass(exercise, attempt):
    assert evaluate(exercise, attempt).outcome == "passed"


def test_replay_forms_no_state():
    assert evaluate(REPLAY, last_row_of_the_mask).outcome == "not as asked"  # the mask is smalearn's
    result = evaluate(REPLAY, by_steps)
    assert result.outcome == "not as asked"
    assert any("loop" in found for found in result.detours)


def test_the_librarys_recurrence_is_no_way_back():
    def attempt(state, X, log_a, B, accepted):
        parts = X[..., :accepted, :], log_a[..., :accepted], B[..., :accepted, :], B[..., :accepted, :]
        return ssd_recurrent(*parts, state)[1]

    assert evaluate(DRAFTS, attempt).outcome == "not as asked"
