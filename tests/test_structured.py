"""What all structured matrices can do like a tensor: `M @ x`, `M.mT`, `2 * M`; over all three registries."""

import pytest
import torch
from comparing import same_function
from registry_masks import FAMILIES, MASKS
from registry_weights import CASES

from smalearn import ShapeError
from smalearn.masks import BandedMask, CausalMask, DecayMask, LowRankMask, Mask, SemiseparableMask
from smalearn.sma import sma_linear, sma_quadratic
from smalearn.ssm import Quasiseparable, Semiseparable
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import LowRank

A, B, C = random_tensors([(2, 5), (2, 5, 3), (5, 3)], grad=True)


def families():
    """For each matrix its id, a function of its parameters that builds it, these parameters, and the dtype."""
    for mask, _ in MASKS:
        yield f"{mask!r}", lambda mask=mask: mask, [], torch.float64
    for family in FAMILIES:
        drawn = [x.requires_grad_() for x in family.draw((2,), 7, 7)]
        build = lambda *parameters, family=family: family.build(7, 7, *parameters)  # noqa: E731
        yield f"{family!r}", build, drawn, family.dtype
    for case in CASES:
        weight = case.random(1, torch.float64)
        yield f"{case!r}", lambda *_, weight=weight: weight, list(weight.parameters()), torch.float64
    for name, transition in {"scalar": A, "diagonal": B, "general": torch.randn(2, 5, 3, 3).double()}.items():
        yield f"Semiseparable-{name}", lambda *_, a=transition: Semiseparable(a, B, C), [B, C], torch.float64
    upper, diagonal = Semiseparable(0.5 * B.detach(), B, C), 3 + A.detach()
    yield "Quasiseparable", lambda *_: Quasiseparable(Semiseparable(A, B, C), diagonal, upper), [A, B, C], torch.float64


EACH = pytest.mark.parametrize(("build", "parameters", "dtype"), [pytest.param(*case, id=i) for i, *case in families()])


def dense(M, dtype):
    """The matrix in this dtype; a weight has that of its factors."""
    return M.dense() if hasattr(M, "macs") else M.dense(dtype)


@EACH
def test_products_transposes_and_multiples_are_those_of_the_dense_matrix(build, parameters, dtype):
    M, factor = build(*parameters), torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    target, source = M.shape[-2:]
    x, y = random_tensors([(2, source, 3), (2, target, 3)], dtype=dtype, grad=True)
    D = dense(M, dtype)
    pairs = [
        (M @ x, D @ x),
        (M @ x[0, :, 0], D @ x[0, :, 0]),
        (M.mT @ y, D.mT @ y),
        (M.mT.mT @ x, D @ x),
        ((2 * M) @ x, 2 * D @ x),
        ((M * factor) @ x, factor * D @ x),
        ((factor * (3 * M).mT) @ y, 3 * factor * D.mT @ y),
        ((3 * M.mT).transpose_matmul(x), 3 * D @ x),
    ]
    inputs = [x, y, factor, *parameters]
    for ours, theirs in pairs:
        same_function(ours, theirs, inputs, 1e-11)


@EACH
def test_views_have_shape_and_entries(build, parameters, dtype):
    M = build(*parameters)
    D, view = dense(M, dtype), (2 * M).mT * 3
    assert view.shape == D.mT.shape
    assert_close(dense(view.mT.mT, dtype) if isinstance(M, Mask) else view.dense(), 6 * D.mT)
    assert repr(view) == f"6 * {M!r}.mT"


def test_weights_transpose_complex_factors_without_conjugation():
    L, R, y = (torch.complex(*random_tensors([shape, shape])) for shape in [(4, 2), (5, 2), (4, 3)])
    weight = LowRank(L, R)
    assert_close(weight.mT @ y, weight.dense().mT @ y)


def test_a_view_of_a_mask_is_a_mask():
    T = 6
    Q, K, V = random_tensors([(2, T, 3), (2, T, 3), (2, T, 4)])
    later, half = CausalMask(T).mT, 0.5 * DecayMask(T, torch.tensor([0.5, 0.9], dtype=torch.float64))
    for L in (later, half, half.mT, LowRankMask(Q[0], K[0]) * later):
        assert isinstance(L, Mask)
        assert_close(sma_linear(Q, K, V, L), sma_quadratic(Q, K, V, L.dense(torch.float64)))
    assert (later.cost(2), half.cost(2)) == (CausalMask(T).cost(2), half.matrix.cost(2) + 2 * T)
    assert (later.stored, half.stored, half.is_complex) == (0, 2, False)
    assert "numbers stored" in half._repr_html_()


def test_a_view_is_no_copy():
    mask = BandedMask(4, 4, 1)
    assert mask.mT.mT.matrix is mask
    assert f"{torch.tensor(0.5) * mask!r}" == "0.5 * BandedMask(4, 4, window=1)"


@pytest.mark.parametrize(
    "M",
    [DecayMask(3, 0.5), LowRank.random(3, 3, 1, 0), Semiseparable(*map(torch.ones, (3, (3, 1), (3, 1))))],
    ids=["mask", "weight", "semiseparable"],
)
def test_what_is_no_number_and_no_tensor_is_refused(M):
    name = type(M).__name__
    for other in (torch.ones(3, 3), torch.tensor(1j), None, [2]):
        with pytest.raises(TypeError):
            M * other
        with pytest.raises(TypeError):
            other * M
    with pytest.raises(TypeError, match="unsupported operand"):
        M @ [1.0, 2.0, 3.0]
    with pytest.raises(ShapeError, match=rf"{name}.matmul: axis . is 3 in the \w+ but 4 in the operand"):
        M @ torch.ones(4)


@pytest.mark.parametrize("M", [SemiseparableMask(-torch.rand(5)), LowRank.random(5, 5, 2, 0)], ids=repr)
def test_views_under_the_transforms_of_pytorch(M):
    run = lambda x: (2 * M).matmul(M.mT.matmul(x))  # noqa: E731
    x = torch.randn(4, 5, 2)
    assert_close(torch.func.vmap(run)(x), run(x))
    assert_close(torch.compile(run, fullgraph=True, backend="eager")(x), run(x))
