"""Masks whose entries are not just zeros and ones: families against definitions, both modes, all gradients."""

import pytest
import torch
from comparing import same_function
from registry_masks import FAMILIES

from smalearn import ShapeError
from smalearn.masks import (
    DecayMask,
    FourierMask,
    HierarchicalMask,
    LowRankMask,
    SemiseparableMask,
    ToeplitzMask,
    fourier,
    rotary_decay_mask,
    scan,
)
from smalearn.sma import sma_linear, sma_quadratic
from smalearn.testing import assert_close, random_tensors

every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)
real_families = pytest.mark.parametrize("family", [one for one in FAMILIES if not one.dtype.is_complex], ids=repr)
complex_families = pytest.mark.parametrize("family", [one for one in FAMILIES if one.dtype.is_complex], ids=repr)
LENGTHS = [(1, 1), (7, 13), (13, 7), (33, 33)]
# Leading axes of (mask, operand).
LEADING = [((), ()), ((), (2, 4)), ((4,), ()), ((4,), (2, 1)), ((2, 4), (2, 4))]


def cases(family):
    return [(T, S) for T, S in LENGTHS if T == S or not family.square] + [(31, 31)]


def operands(family, shapes, seed=5, dtype=None):
    real, imaginary = random_tensors(shapes, seed), random_tensors(shapes, seed + 1)
    pairs = zip(real, imaginary, strict=True)
    return [(torch.complex(a, b) if family.dtype.is_complex else a).to(dtype or family.dtype) for a, b in pairs]


@every_family
@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
def test_dense_is_the_definition(family, leading):
    for T, S in cases(family):
        parameters = family.draw(leading, T, S)
        mask = family.build(T, S, *parameters)
        L = mask.dense(family.dtype)
        assert L.dtype == family.dtype
        assert tuple(L.shape) == mask.shape
        assert_close(L, family.oracle(T, S, parameters))
        default = torch.get_default_dtype()
        assert mask.dense().dtype == (default.to_complex() if family.dtype.is_complex else default)
        assert mask.dense(device="meta").device.type == "meta"


@every_family
@pytest.mark.parametrize(("mask_axes", "operand_axes"), LEADING)
def test_products_are_the_dense_products(family, mask_axes, operand_axes):
    for T, S in cases(family):
        parameters = family.draw(mask_axes, T, S)
        mask, L = family.build(T, S, *parameters), family.oracle(T, S, parameters)
        x, y = operands(family, [(*operand_axes, S, 3), (*operand_axes, T, 3)])
        assert_close(mask.matmul(x), L @ x)
        assert_close(mask.transpose_matmul(y), L.mT @ y)
        narrow = torch.complex64 if family.dtype.is_complex else torch.float32
        assert mask.matmul(x.to(narrow)).dtype == narrow
        assert_close(mask.matmul(x.to(narrow)), L @ x)
        assert_close(mask.transpose_matmul(y.to(narrow)), L.mT @ y)


@every_family
def test_products_over_many_chunks(family):
    T = scan.CHUNK_LEN**2 + scan.CHUNK_LEN - 1  # three levels of chunks, the last of each cut off
    parameters = family.draw((), T, T)
    x, y = operands(family, [(T, 2), (T, 2)])
    leaves = [z.requires_grad_() for z in (x, y, *parameters)]
    mask = family.build(T, T, *parameters)
    L = mask.dense(family.dtype)
    same_function(mask.matmul(x), L @ x, leaves)
    assert_close(mask.transpose_matmul(y), L.mT @ y)


@every_family
def test_operands_without_columns_and_empty_batches(family):
    mask = family.build(5, 5, *family.draw((2,), 5, 5))
    heads = mask.shape[:-2]
    x, y = operands(family, [(5, 0), (0, 1, 5, 3)])
    assert mask.matmul(x).shape == mask.transpose_matmul(x).shape == (*heads, 5, 0)
    assert mask.matmul(y).shape == mask.transpose_matmul(y).shape == (0, *(heads or (1,)), 5, 3)
    zero_heads = family.build(5, 5, *family.draw((0,), 5, 5))
    (z,) = operands(family, [(5, 3)])
    assert zero_heads.matmul(z).shape == zero_heads.transpose_matmul(z).shape == (*zero_heads.shape[:-2], 5, 3)


@pytest.mark.parametrize("together", [1, 40, 64])
def test_a_convolution_takes_few_columns_at_a_time(together, monkeypatch):
    column, row, x = random_tensors([(2, 7), (13,), (13, 5)])
    L = ToeplitzMask(column, row)
    monkeypatch.setattr(fourier, "BATCH_NUMBERS", together)
    assert_close(L.matmul(x), L.dense(torch.float64) @ x)
    assert_close(L.matmul(x + 1j * x.flip(0)), L.dense(torch.complex128) @ (x + 1j * x.flip(0)))


@real_families
def test_half_precision_is_computed_in_float32(family):
    parameters = family.draw((), 33, 33)
    mask, L = family.build(33, 33, *parameters), family.oracle(33, 33, parameters)
    (x,) = operands(family, [(33, 2)], dtype=torch.bfloat16)
    assert mask.matmul(x).dtype == torch.bfloat16
    assert_close(mask.matmul(x), L @ x.double(), tolerance=2**-8)


@every_family
def test_sequences_of_length_zero(family):
    mask = family.build(0, 0, *family.draw((2,), 0, 0))
    x = operands(family, [(0, 3)])[0]
    leading = mask.shape[:-2]
    assert mask.dense(family.dtype).shape == (*leading, 0, 0)
    assert mask.matmul(x).shape == mask.transpose_matmul(x).shape == (*leading, 0, 3)
    assert mask.cost(3) == 0
    assert sma_linear(x, x, x, mask).shape == (*leading, 0, 3)


@pytest.mark.parametrize(("target", "source"), [(0, 4), (4, 0)])
def test_one_empty_length(target, source):
    column, row, U, V = random_tensors([(2, target), (source,), (2, target, 3), (source, 3)])
    for mask in (ToeplitzMask(column, row), LowRankMask(U, V)):
        assert mask.dense().shape == (2, target, source)
        assert torch.equal(mask.matmul(torch.ones(source, 5)), torch.zeros(2, target, 5))
        assert torch.equal(mask.transpose_matmul(torch.ones(target, 5)), torch.zeros(2, source, 5))
        assert mask.cost(5) == 0


# Costs, tables


@pytest.mark.parametrize(
    ("mask", "stored", "cost"),  # the cost of 5 columns, counted by hand
    [
        # For each step but the first and each column: one multiplication, one addition.
        (DecayMask(33, 0.5), 1, 2 * 32 * 5),
        # One γ for each of 4 heads; the cost is that of one head.
        (DecayMask(33, torch.full((4,), 0.5)), 4, 2 * 32 * 5),
        # One log_a for each of 2·33 steps.
        (SemiseparableMask(torch.zeros(2, 33)), 66, 2 * 32 * 5),
        # 3 sums over 13 sources (13 + 12 operations), then 7 sums over 3 features (3 + 2).
        (LowRankMask(torch.zeros(7, 3), torch.zeros(13, 3)), 60, (3 * 25 + 7 * 5) * 5),
        # 15 offsets, period 16: 2·5 + 1 transforms of 2.5·16·log2(16) = 160, and 3 per number to multiply.
        (ToeplitzMask(torch.zeros(8)), 8, 11 * 160 + 3 * 16 * 5),
        # 3 + 6 numbers, of which row[0] is not used; 8 offsets, period 8, transforms of 2.5·8·log2(8) = 60.
        (ToeplitzMask(torch.zeros(3), torch.zeros(6)), 8, 11 * 60 + 3 * 8 * 5),
        # 5 products; multiply-adds of 2, 2 and 1 targets that read a level, and of 2, 1 and 0 sums.
        (HierarchicalMask(torch.zeros(5), torch.zeros(5, 4)), 25, (5 + 2 * (2 + 2 + 1) + 2 * (2 + 1)) * 5),
        # One complex transform for each column: 5·8·log2(8).
        (FourierMask(8), 0, 5 * 8 * 3 * 5),
        # log2(1) = 0.
        (FourierMask(1), 0, 0),
        # 3·5 columns with the decay mask (2·8 each), 3 scalings on either side, 2 additions of terms per target.
        (LowRankMask(torch.zeros(9, 3), torch.zeros(9, 3)) * DecayMask(9, 0.5), 55, 16 * 15 + (3 * 18 + 2 * 9) * 5),
    ],
    ids=repr,
)
def test_numbers_stored_and_operations(mask, stored, cost):
    assert mask.stored == stored
    assert mask.cost(5) == cost


def test_repr_shows_scalars_and_the_shapes_of_the_rest():
    U, V = torch.zeros(3, 2), torch.zeros(4, 2)
    assert repr(DecayMask(3, 0.5)) == "DecayMask(3, 3, gamma=0.5)"
    assert repr(DecayMask(3, torch.tensor([0.5, 1.0]))) == "DecayMask(2, 3, 3, gamma: (2,))"
    assert repr(SemiseparableMask(torch.zeros(2, 3))) == "SemiseparableMask(2, 3, 3, log_a: (2, 3))"
    assert repr(ToeplitzMask(torch.zeros(3))) == "ToeplitzMask(3, 3, column: (3,))"
    assert repr(ToeplitzMask(torch.zeros(3), torch.zeros(4))) == "ToeplitzMask(3, 4, column: (3,), row: (4,))"
    assert repr(FourierMask(3)) == "FourierMask(3, 3)"
    assert repr(LowRankMask(U, V)) == "LowRankMask(3, 4, U: (3, 2), V: (4, 2))"
    assert repr(LowRankMask(V, V) * FourierMask(4)) == "LowRankMask(4, 4, U: (4, 2), V: (4, 2)) * FourierMask(4, 4)"


def test_html_table_compares_with_the_dense_matrix():
    table = DecayMask(100, torch.full((4,), 0.5))._repr_html_()
    for cell in ("DecayMask", "4 × 100 × 100", "gamma: (4,)", "4 (dense: 40,000)", "792 (dense: 79,600)"):
        assert f">{cell}</td>" in table
    assert ">none</td>" in FourierMask(3)._repr_html_()
    assert ">gamma = 0.25</td>" in DecayMask(3, 0.25)._repr_html_()


# Errors


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: DecayMask(3, 1.5), ValueError, r"DecayMask: gamma must be in \[0, 1\], got 1\.5"),
        (lambda: DecayMask(3, torch.tensor([0.5, -0.25])), ValueError, r"gamma must be in \[0, 1\], got -0\.25"),
        (lambda: rotary_decay_mask(3, 1.5, 0.1), ValueError, r"rotary_decay_mask: gamma must be in \[0, 1\], got 1\.5"),
        (lambda: DecayMask(3, torch.nan), ValueError, r"DecayMask: gamma must be in \[0, 1\], got nan"),
    ],
)
def test_bad_arguments(build, error, message):
    with pytest.raises(error, match=message):
        build()


@every_family
def test_bad_operands(family):
    mask = family.build(5, 5, *family.draw((2,), 5, 5))
    (x,) = operands(family, [(6, 2)])
    for product in (mask.matmul, mask.transpose_matmul):
        with pytest.raises(ShapeError, match=f"^{type(mask).__name__}.{product.__name__}: .* the mask but 6"):
            product(x)
    if mask.shape[:-2]:
        with pytest.raises(ShapeError, match=r"leading axes .* of the mask"):
            mask.matmul(x[:5].expand(3, 5, 2))


@complex_families
def test_a_complex_mask_wants_complex_operands(family):
    mask = family.build(5, 5, *family.draw((), 5, 5))
    name, x = type(mask).__name__, torch.zeros(5, 2)
    with pytest.raises(ValueError, match=rf"{name}.dense: the mask is complex but the dtype is torch.float64; make Q"):
        mask.dense(torch.float64)
    with pytest.raises(ValueError, match="make Q, K and V complex"):
        sma_quadratic(x, x, x, mask)
    with pytest.raises(ValueError, match="the mask is complex"):
        sma_linear(x, x, x, mask)


@real_families
def test_a_real_mask_takes_complex_operands(family):
    parameters = family.draw((), 33, 33)
    mask = family.build(33, 33, *parameters)
    x, y = random_tensors([(33, 2), (33, 2)])
    z = torch.complex(x, y)
    assert_close(mask.matmul(z), torch.complex(mask.matmul(x), mask.matmul(y)))
    assert mask.dense(torch.complex128).dtype == torch.complex128


@pytest.mark.parametrize("length", [1, 29])
def test_toeplitz_mask_against_scipy(length):
    linalg = pytest.importorskip("scipy.linalg", reason="needs a peer: scipy")
    column, row, x = random_tensors([(length,), (length,), (length, 2)])
    row[0] = column[0]
    expected = linalg.matmul_toeplitz((column.numpy(), row.numpy()), x.numpy())
    assert_close(ToeplitzMask(column, row).matmul(x), torch.from_numpy(expected))
