import math

import pytest
import torch

from smalearn import ShapeError
from smalearn._checks import check_dtypes, check_shapes
from smalearn.testing import assert_close, random_tensors, relative_rms


def test_sizes_are_returned_and_leading_axes_broadcast():
    Q, K = torch.zeros(2, 1, 5, 3), torch.zeros(4, 7, 3)
    assert check_shapes("f", {"Q": (Q, "tn"), "K": (K, "sn")}) == {"t": 5, "n": 3, "s": 7}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 3), (7, 2)), "f: axis 'n' is 3 in Q but 2 in K"),
        (((3,), (7, 3)), r"f: Q needs trailing axes \(T, N\), got shape \(3,\)"),
        (((2, 5, 3), (4, 7, 3)), r"f: leading axes \(4,\) of K do not broadcast with \(2,\) before it"),
    ],
)
def test_shape_errors(shapes, message):
    Q, K = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ShapeError, match=message):
        check_shapes("f", {"Q": (Q, "tn"), "K": (K, "sn")})


def test_one_letter_twice_in_an_operand_must_agree():
    with pytest.raises(ShapeError, match="f: axis 't' is 2 in L but 3 in L"):
        check_shapes("f", {"L": (torch.zeros(2, 3), "tt")})


def test_dtype_errors():
    single, double, meta = torch.zeros(1), torch.zeros(1, dtype=torch.float64), torch.zeros(1, device="meta")
    check_dtypes("f", {"Q": single, "K": single})
    with pytest.raises(ValueError, match=r"f: K is torch.float64 but Q is torch.float32"):
        check_dtypes("f", {"Q": single, "K": double})
    with pytest.raises(ValueError, match="f: K is on meta but Q is on cpu"):
        check_dtypes("f", {"Q": single, "K": meta})
    with pytest.raises(ValueError, match=r"f: Q must have a floating dtype, got torch.int64"):
        check_dtypes("f", {"Q": single.long()})
    with pytest.raises(TypeError, match=r"f: Q must be a torch.Tensor, got list"):
        check_dtypes("f", {"Q": [1.0]})


def test_metric():
    x = torch.tensor([3.0, 4.0])
    assert relative_rms(x, x) == 0
    assert relative_rms(x + torch.tensor([0.0, 5.0]), x) == pytest.approx(1)
    assert relative_rms(1j * x, x) == pytest.approx(math.sqrt(2))
    assert relative_rms(torch.zeros(0), torch.zeros(0)) == 0
    assert relative_rms(x, 0 * x) == math.inf
    assert math.isnan(relative_rms(x * math.nan, x))
    assert math.isnan(relative_rms(x, x / 0))


def test_assertion():
    x = torch.ones(3, dtype=torch.float64)
    assert_close(x * (1 + 1e-13), x)
    assert_close(x.float() * (1 + 1e-6), x)
    assert_close(x.half() * 1.01, x, tolerance=0.1)
    with pytest.raises(AssertionError, match=r"relative RMS error 1.00e-11 exceeds 1e-12 for shape \(3,\)"):
        assert_close(x * (1 + 1e-11), x)
    with pytest.raises(AssertionError, match=r"shape: got \(1, 3\), expected \(3,\)"):
        assert_close(x[None], x)
    with pytest.raises(AssertionError, match="error nan"):
        assert_close(x * math.nan, x)


def test_random_tensors_repeat():
    a, b = random_tensors([(2, 3), (4,)], seed=1, grad=True)
    again, _ = random_tensors([(2, 3), (4,)], seed=1, dtype=torch.float32)
    assert a.requires_grad
    assert b.shape == (4,)
    assert torch.equal(a.detach().float(), again)
    assert not torch.equal(a, random_tensors([(2, 3)], seed=2)[0])
