"""The matrix of two directions: its product, its solve and their gradients against the dense matrix."""

import pytest
import torch
from comparing import same_function

from smalearn import ShapeError
from smalearn.ssm import Quasiseparable, Semiseparable
from smalearn.testing import assert_close, random_tensors

SHAPES = {"scalar": lambda N: (), "diagonal": lambda N: (N,), "general": lambda N: (N, N)}


def part(structure, T, N, leading=(), seed=0):
    A, B, C = random_tensors([(*leading, T, *SHAPES[structure](N)), (*leading, T, N), (*leading, T, N)], seed=seed)
    return [(0.4 * A).requires_grad_(), B.requires_grad_(), C.requires_grad_()]


def build(below, above, T, leading=(), orders=(3, 2)):
    lower, upper = part(below, T, orders[0], leading), part(above, T, orders[1], leading, seed=7)
    (diagonal,) = random_tensors([(T,)], seed=9)
    diagonal = (diagonal + 30).requires_grad_()
    M = Quasiseparable(Semiseparable(*lower), diagonal, Semiseparable(*upper))
    return M, [*lower, diagonal, *upper]


def entries(M):
    """By the definition, from the entries of both parts."""
    lower, upper, T = M.lower.dense(), M.upper.dense(), M.shape[-1]
    rows = [
        [M.diagonal[t] if s == t else lower[..., t, s] if s < t else upper[..., s, t] for s in range(T)]
        for t in range(T)
    ]
    leading = M.shape[:-2]
    return torch.stack([torch.stack([x.expand(leading) for x in row], -1) for row in rows], -2)


every_pair = pytest.mark.parametrize(("below", "above"), [(b, a) for b in SHAPES for a in SHAPES])


@pytest.mark.parametrize("leading", [(), (2,)])
@pytest.mark.parametrize("T", [1, 2, 5, 17])
@every_pair
def test_products_and_solve_are_those_of_the_dense_matrix(below, above, T, leading):
    M, _ = build(below, above, T, leading)
    D, (x,) = entries(M), random_tensors([(*leading, T, 4)], seed=3)
    assert_close(M.dense(), D)
    assert_close(M.matmul(x), D @ x)
    assert_close(M.transpose_matmul(x), D.mT @ x)
    assert_close(M.solve(x), torch.linalg.solve(D, x))
    assert_close(M @ M.solve(x), x)


@every_pair
def test_gradients(below, above):
    M, leaves = build(below, above, 6)
    (x,) = random_tensors([(6, 2)], seed=3, grad=True)
    for ours, theirs in ((M.matmul(x), entries(M) @ x), (M.solve(x), torch.linalg.solve(entries(M), x))):
        same_function(ours, theirs, [x, *leaves])


def test_orders_of_one_and_no_token():
    M, _ = build("diagonal", "general", 7, orders=(1, 1))
    (x,) = random_tensors([(7, 3)])
    assert_close(M.solve(x), torch.linalg.solve(entries(M), x))
    empty, _ = build("scalar", "diagonal", 0)
    assert empty.solve(x[:0]).shape == empty.matmul(x[:0]).shape == (0, 3)


def test_the_work_grows_with_the_length_and_no_faster():
    short, long = (build("diagonal", "diagonal", T)[0].cost(5) for T in (100, 1000))
    assert long == 10 * short


def test_errors():
    M, _ = build("scalar", "scalar", 5)
    with pytest.raises(TypeError, match="Quasiseparable: upper must be a Semiseparable"):
        Quasiseparable(M.lower, M.diagonal, M.diagonal)
    with pytest.raises(ShapeError, match=r"Quasiseparable.solve: .*5"):
        M.solve(torch.zeros(4, 2).double())
    with pytest.raises(ValueError, match=r"Quasiseparable.matmul: .*float32"):
        M.matmul(torch.zeros(5, 2))
    singular = Quasiseparable(M.lower, torch.zeros(5).double(), M.upper)
    with pytest.raises(ValueError, match=r"Quasiseparable.solve: pivot 0 is 0, and there is no pivoting"):
        singular.solve(torch.zeros(5, 2).double())
