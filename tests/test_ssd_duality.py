import pytest
import torch

from smalearn import ShapeError
from smalearn.ssd import diagonal_ssm_as_attentions, scalar_ssm_as_attention
from smalearn.ssm import (
    ssm_recurrent,
)
from smalearn.testing import assert_close, random_tensors

INF = float("inf")
FORMS = {"scalar": (scalar_ssm_as_attention, ()), "diagonal": (diagonal_ssm_as_attentions, (3,))}
each_form = pytest.mark.parametrize(("form", "extra"), FORMS.values(), ids=FORMS)
KINDS = ["mild", "zeros", "resets", "strong"]


def inputs(length, extra=(), kind="mild", leading=(), seed=0):
    """X, log_a, B and C; log_a near 0, exactly 0, −inf among them, or −1e4 among them."""
    X, B, C, mild, where = random_tensors([(*leading, length, *n) for n in ((2,), (3,), (3,), extra, extra)], seed=seed)
    mild = -0.3 * mild.abs()
    log_a = {
        "mild": mild,
        "zeros": torch.where(where > 0, 0.0, mild),
        "resets": torch.where(where > 1, -INF, mild),
        "strong": torch.where(where > 1, -1e4, mild),
    }[kind]
    return X, log_a, B, C


def loop(X, log_a, B, C):
    """One step, one channel and one state component at a time."""
    Y = torch.zeros_like(X)
    decays = (log_a if log_a.ndim == 2 else log_a[:, None]).exp().expand(B.shape)
    for p in range(X.shape[1]):
        for n in range(B.shape[1]):
            h = 0.0
            for t in range(len(X)):
                h = decays[t, n] * h + B[t, n] * X[t, p]
                Y[t, p] += C[t, n] * h
    return Y


@each_form
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 33])
def test_attention_is_the_recurrence(form, extra, kind, length):
    X, log_a, B, C = inputs(length, extra, kind)
    assert_close(form(X, log_a, B, C), loop(X, log_a, B, C))
    assert_close(form(X, log_a, B, C), ssm_recurrent(X, log_a.exp(), B, C)[0])
    assert_close(form(X.float(), log_a.float(), B.float(), C.float()), loop(X, log_a, B, C))


@each_form
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_recurrence(form, extra, kind):
    leaves = [x.requires_grad_() for x in inputs(7, extra, kind)]
    cotangent = random_tensors([(7, 2)], seed=9)[0]
    ours = torch.autograd.grad((form(*leaves) * cotangent).sum(), leaves)
    X, log_a, B, C = leaves
    theirs = torch.autograd.grad((ssm_recurrent(X, log_a.exp(), B, C)[0] * cotangent).sum(), leaves)
    for outputs, expected in zip(ours, theirs, strict=True):
        assert_close(outputs, expected)
    if kind == "mild":
        assert torch.autograd.gradcheck(form, leaves)


@each_form
@pytest.mark.parametrize("leading", [(2,), (2, 4), (0,)])
def test_leading_axes(form, extra, leading):
    X, log_a, B, C = inputs(5, extra, "resets", leading)
    assert_close(form(X, log_a, B, C), ssm_recurrent(X, log_a.exp(), B, C)[0])
    shared = form(X, log_a[:1], B[:1], C[:1])
    assert_close(shared, ssm_recurrent(X, log_a[:1].exp(), B[:1], C[:1])[0])


@each_form
def test_errors(form, extra):
    X, log_a, B, C = inputs(4, extra)
    name = form.__name__
    with pytest.raises(ShapeError, match=f"{name}: axis 't' is 4 in X but 3 in log_a"):
        form(X, log_a[:3], B, C)
    with pytest.raises(ShapeError, match=rf"{name}: axis 'n' is 3 in (log_a|B) but 2 in (B|C)"):
        form(X, log_a, B[:, :2] if extra else B, C[:, :2])
    with pytest.raises(ValueError, match=f"{name}: B is torch.float32 but X is torch.float64"):
        form(X, log_a, B.float(), C)
    with pytest.raises(ValueError, match=f"{name}: log_a must have a floating dtype, got torch.int64"):
        form(X, log_a.long(), B, C)
    with pytest.raises(ValueError, match=r"SemiseparableMask: log_a must be ≤ 0, the log of a decay in .0, 1., got 1"):
        form(X, torch.ones_like(log_a), B, C)
