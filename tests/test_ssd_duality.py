import pytest
import torch

from smalearn import ShapeError
from smalearn.linear_attention import linear_attention_chunked, linear_attention_parallel
from smalearn.masks import SemiseparableMask, decay_matrix, scan_associative
from smalearn.sma import sma_linear, sma_quadratic
from smalearn.ssd import diagonal_ssm_as_attentions, scalar_ssm_as_attention
from smalearn.ssm import (
    Semiseparable,
    bidiagonal_inverse,
    block_factors,
    ssm_matrix,
    ssm_recurrent,
    ssm_scan,
    ssm_states,
    tril_factors,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

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


@pytest.mark.parametrize("kind", KINDS)
def test_all_algorithms_multiply_by_one_matrix(kind):
    X, log_a, B, C = inputs(33, (), kind)
    L, expected = SemiseparableMask(log_a), loop(X, log_a, B, C)
    M = ssm_matrix(log_a.exp(), B, C)
    assert_close(M.dense(), L.dense(torch.float64) * (C @ B.mT))
    results = {
        "recurrence": ssm_recurrent(X, log_a.exp(), B, C)[0],
        "associative scan": ssm_scan(X, log_a.exp(), B, C)[0],
        "matrix": M.dense() @ X,
        "attention, quadratic": sma_quadratic(C, B, X, L),
        "attention, linear": sma_linear(C, B, X, L),
        "linear attention, chunked": linear_attention_chunked(C, B, X, log_a, chunk_len=8)[0],
        "linear attention, parallel": linear_attention_parallel(C, B, X, log_a),
    }
    for Y in results.values():
        assert_close(Y, expected)
    Z = torch.einsum("tp,tn->tpn", X, B)
    assert_close(L.matmul(Z.flatten(-2)).unflatten(-1, (2, 3)), ssm_states(X, log_a.exp(), B))


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_is_the_inverse_of_a_bidiagonal_matrix(kind):
    _, log_a, _, _ = inputs(9, (), kind)
    one = torch.ones(9, 1, dtype=torch.float64)
    M = Semiseparable(log_a.exp(), one, one)
    L = SemiseparableMask(log_a).dense(torch.float64)
    assert_close(L, M.dense())
    assert_close(L, bidiagonal_inverse(M))
    assert_close(L, torch.linalg.inv(block_factors(M)[1]))
    assert_close(L, decay_matrix(log_a))
    if kind in ("mild", "zeros"):
        U, V = tril_factors(M)
        assert_close(L, (U @ V.mT).tril())
    x = random_tensors([(9, 4)], seed=3)[0]
    assert_close(scan_associative(x, log_a), M.matmul(x))
    assert_close(SemiseparableMask(log_a).transpose_matmul(x), M.transpose_matmul(x))


@pytest.mark.parametrize("order", ["time", "state"])
def test_both_kronecker_orders_lead_to_the_mask(order):
    _, log_a, B, C = inputs(6, (), "resets")
    M, eye = Semiseparable(log_a.exp(), B, C), torch.eye(3, dtype=torch.float64)
    a = torch.eye(6, dtype=torch.float64) - torch.diag(log_a.exp()[1:], -1)
    L = SemiseparableMask(log_a).dense(torch.float64)
    left, bidiagonal, right = block_factors(M, order)
    system, inverse = (
        torch.kron(*pair) for pair in ([(a, eye), (L, eye)] if order == "time" else [(eye, a), (eye, L)])
    )
    assert torch.equal(bidiagonal, system)
    assert_close(torch.linalg.inv(system), inverse)
    assert_close(left @ inverse @ right, L * (C @ B.mT))
    if order == "state":
        sandwich = sum(C[:, n].diag() @ L @ B[:, n].diag() for n in range(3))
        hadamard = sum(torch.outer(C[:, n], B[:, n]) * L for n in range(3))
        assert_close(left @ inverse @ right, sandwich)
        assert_close(sandwich, hadamard)


def test_the_perfect_shuffle_exchanges_the_orders():
    _, log_a, B, C = inputs(6)
    M = Semiseparable(log_a.exp(), B, C)
    by_time, by_state = (block_factors(M, order)[1] for order in ("time", "state"))
    shuffle = torch.arange(18).reshape(6, 3).mT.flatten()
    P = torch.eye(18, dtype=torch.float64)[shuffle]
    assert torch.equal(P @ by_time @ P.mT, by_state)


def test_equal_decays_collapse_to_one_mask():
    X, log_a, B, C = inputs(9)
    equal = log_a[:, None].expand(9, 3)
    assert_close(diagonal_ssm_as_attentions(X, equal, B, C), scalar_ssm_as_attention(X, log_a, B, C))


def test_different_decays_fit_no_single_mask():
    """A 1-semiseparable mask has L[i, j] L[j, k] = L[i, k]; the quotient of M and C B^T has not."""

    def defect(M, B, C):
        L = M / (C @ B.mT)
        return relative_rms(L[6:, 3:4] @ L[3:4, :3], L[6:, :3])

    _, log_a, B, C = inputs(9, (3,))
    B, C = B.exp(), C.exp()
    assert defect(ssm_matrix(log_a.exp(), B, C).dense(), B, C) > 1e-2
    assert defect(ssm_matrix(log_a[:, 0].exp(), B, C).dense(), B, C) < 1e-12


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
