"""The forms of state space duality against the loop over tokens; that the fast ones agree with them."""

import pytest
import torch
from oracles_ssd import DECAYS, check, decays, expected, gradients, inputs

from smalearn import ShapeError, fast
from smalearn.fast import ssd_step_
from smalearn.fast.cpu import step
from smalearn.linear_attention import linear_attention_chunked
from smalearn.ssd import ssd_chunked, ssd_quadratic, ssd_recurrent, ssd_step
from smalearn.testing import assert_close, pairwise, random_tensors

INF = float("inf")
FORMS = {
    "recurrent": ssd_recurrent,
    "quadratic": ssd_quadratic,
    "chunked-5": lambda *operands: ssd_chunked(*operands, chunk_len=5),
    "chunked-64": ssd_chunked,
    "fast": fast.ssd,
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
KINDS = [kind for kind in DECAYS if kind != "none"]


@pytest.mark.parametrize(
    ("form", "kind", "length"),
    [case.values() for case in pairwise({"form": FORMS, "kind": KINDS, "length": [1, 5, 33]})],
)
def test_forms_are_the_loop(form, kind, length):
    check(inputs(length, kind), form=FORMS[form])


@each_form
@pytest.mark.parametrize(
    ("leading", "shared"), [((2,), ()), ((2, 4), (2, 1)), ((2, 4), (1, 4)), ((2, 4), ()), ((2, 2, 3), (2, 2, 1))]
)
def test_groups_of_heads(form, leading, shared):
    check(inputs(13, "resets", leading, shared), form=form)


@each_form
@pytest.mark.parametrize("kind", KINDS)
def test_float32(form, kind):
    check(inputs(33, kind, (2,), dtype=torch.float32), 1e-5, form)


@each_form
def test_without_tokens_and_without_a_state(form):
    X, log_a, B, C, H = inputs(0, "mild", (2,))
    Y, state = form(X, log_a, B, C, H)
    assert Y.shape == X.shape
    assert_close(state, H)
    X, log_a, B, C, H = inputs(9, "mild", (2,))
    for results, truth in zip(form(X, log_a, B, C), expected(X, log_a, B, C, None), strict=True):
        assert_close(results, truth)


@each_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(form, dtype):
    X, log_a, B, C, H = inputs(33, "mild", (2,), dtype=dtype)
    Y, state = form(X, log_a.float(), B, C, H.float())
    assert (Y.dtype, state.dtype) == (dtype, torch.float32)
    truth, last = expected(X, log_a.float(), B, C, H)
    assert_close(Y, truth, torch.finfo(dtype).eps / 2)
    assert_close(state, last, 1e-5)


def test_the_chunked_form_is_chunked_linear_attention():
    X, log_a, B, C, H = inputs(21, "mild", (2,))
    for ours, theirs in zip(ssd_chunked(X, log_a, B, C, H), linear_attention_chunked(C, B, X, log_a, H), strict=True):
        assert torch.equal(ours, theirs)


SHARED = [((), ()), ((2, 4), (2, 1)), ((2, 4), (1, 4)), ((2, 4), ()), ((3,), (3,))]


@pytest.mark.parametrize(
    ("axes", "cache", "kind"),
    [case.values() for case in pairwise({"axes": SHARED, "cache": [1, 1 << 18], "kind": KINDS})],
)
def test_decoding_is_training(axes, cache, kind, monkeypatch):
    monkeypatch.setattr(step, "CACHE", cache)
    X, log_a, B, C, H = inputs(9, kind, *axes)
    truth, last = expected(X, log_a, B, C, H)
    state, inplace = H, H.clone()
    for t in range(9):
        token = X[..., t, :], log_a[..., t], B[..., t, :], C[..., t, :]
        y, state = ssd_step(*token, state)
        assert_close(y, truth[..., t, :])
        assert_close(ssd_step_(*token, inplace), truth[..., t, :])
    assert_close(state, last)
    assert_close(inplace, last)


def test_a_step_in_half_precision_keeps_a_float32_state():
    X, log_a, B, C, H = inputs(1, "mild", (2, 3), (2, 1), torch.bfloat16)
    token = X[..., 0, :], log_a[..., 0].float(), B[..., 0, :], C[..., 0, :]
    y, state = ssd_step(*token, H.float())
    inplace = H.float()
    z = ssd_step_(*token, inplace)
    assert (y.dtype, z.dtype, state.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert_close(z, y, 4e-3)
    assert_close(inplace, state)


def test_a_step_in_place_gives_no_gradient_and_no_other_memory():
    X, log_a, B, C, H = (x.requires_grad_() for x in inputs(1, "mild", (2,)))
    state = H.detach().clone()
    where = state.data_ptr()
    y = ssd_step_(X[:, 0], log_a[:, 0], B[:, 0], C[:, 0], state)
    assert not y.requires_grad
    assert state.data_ptr() == where
    assert not torch.equal(state, H)


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (torch.zeros(2, 3), ShapeError, r"ssd_step_: leading axes of state are \(\), expected \(4,\)"),
        (torch.zeros(4, 3, 2).mT, ValueError, r"ssd_step_: state must be contiguous, got strides \(6, 1, 2\)"),
        (torch.zeros(4, 2, 5), ShapeError, r"ssd_step_: axis 'n' is 3 in B but 5 in state"),
        (torch.zeros(4, 2, 3).double(), ValueError, r"ssd_step_: state is torch.float64, expected torch.float32"),
    ],
)
def test_a_state_that_cannot_be_overwritten(state, error, message):
    with pytest.raises(error, match=message):
        ssd_step_(torch.ones(4, 2), torch.zeros(4), torch.ones(3), torch.ones(3), state)


def test_a_step_in_place_checks_every_time():
    """Shapes are checked once for each combination; values, and what is no tensor, at every step."""
    x, log_a, B, C, state = torch.ones(4, 2), torch.zeros(4), torch.ones(3), torch.ones(3), torch.zeros(4, 2, 3)
    for _ in range(2):
        ssd_step_(x, log_a, B, C, state)
        with pytest.raises(ValueError, match="ssd_step_: log_a must be ≤ 0"):
            ssd_step_(x, log_a + 1, B, C, state)
        with pytest.raises(TypeError, match=r"ssd_step_: B must be a torch\.Tensor, got list"):
            ssd_step_(x, log_a, [1.0, 1.0, 1.0], C, state)
        with pytest.raises(ValueError, match=r"ssd_step_: B is torch\.float64 but x is torch\.float32"):
            ssd_step_(x, log_a, B.double(), C, state)
    assert_close(state, torch.full((4, 2, 3), 2.0))


@pytest.mark.parametrize("name", ["ssd_recurrent", "ssd_quadratic", "ssd_chunked", "ssd"])
def test_errors_name_the_function(name):
    form = {"ssd": fast.ssd, **{f.__name__: f for f in (ssd_recurrent, ssd_quadratic, ssd_chunked)}}[name]
    X, log_a, B, C, H = inputs(5, "mild")
    with pytest.raises(ShapeError, match=rf"^{name}: axis 't' is 5 in X but 4 in B"):
        form(X, log_a, B[:4], C, H)
    with pytest.raises(ShapeError, match=rf"^{name}: axis 't' is 5 in X but 3 in log_a"):
        form(X, log_a[..., None].expand(5, 3), B, C, H)
    with pytest.raises(ValueError, match=rf"^{name}: log_a must be ≤ 0"):
        form(X, -log_a, B, C, H)
    with pytest.raises(ValueError, match=rf"^{name}: initial_state is torch.float16"):
        form(X, log_a, B, C, H.half())
    with pytest.raises(ValueError, match="ssd_chunked: chunk_len must be"):
        ssd_chunked(X, log_a, B, C, H, 0)


@pytest.mark.parametrize("gate", ["none", "token", "key"])
def test_fast_linear_attention(gate):
    """With a gate per key feature too, which the kernel does not have."""
    Q, K, V, H = random_tensors([(2, 40, 3), (2, 40, 3), (2, 40, 2), (2, 2, 3)])
    log_a = {"none": None, "token": decays("resets", (2, 40)), "key": decays("resets", (2, 40, 3))}[gate]
    for results, truth in zip(
        fast.linear_attention(Q, K, V, log_a, H), linear_attention_chunked(Q, K, V, log_a, H), strict=True
    ):
        assert_close(results, truth)


def test_fast_linear_attention_has_gradients_and_names_its_arguments():
    operands = inputs(40, "resets", (2,))
    X, log_a, B, C, H = operands
    truth = gradients(expected, operands)
    results = gradients(lambda X, log_a, B, C, H: fast.linear_attention(C, B, X, log_a, H), operands)
    for actual, oracle in zip(results, truth, strict=True):
        assert_close(actual, oracle)
    with pytest.raises(ShapeError, match="linear_attention: axis 't' is 40 in Q but 39 in K"):
        fast.linear_attention(C, B[:, 1:], X, log_a, H)
    with pytest.raises(ValueError, match="linear_attention: log_a must be ≤ 0"):
        fast.linear_attention(C, B, X, log_a + 1, H)
