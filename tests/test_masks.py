import pytest
import torch
from oracles_mixing import matrix
from registry_masks import FAMILIES, MASKS

from smalearn import masks
from smalearn.masks import BandedMask, BlockDiagonalMask, CausalMask, DilatedMask, SparseMask, dense_mask

IDS = [f"{mask!r}-{index}" for index, (mask, _) in enumerate(MASKS)]
every_mask = pytest.mark.parametrize(("mask", "entry"), MASKS, ids=IDS)
every_sparse_mask = pytest.mark.parametrize(
    ("mask", "entry"), [case for case in MASKS if isinstance(case[0], SparseMask)]
)
CAUSAL = [mask for mask, _ in MASKS if isinstance(mask, CausalMask)]


def oracle(mask, entry):
    """The matrix, entry by entry."""
    return matrix(lambda t, s: float(entry(t, s)), *mask.shape)


def test_registry_has_every_mask():
    public = {getattr(masks, name) for name in masks.__all__}
    concrete = {c for c in public if isinstance(c, type) and not c.__abstractmethods__}
    families = [family.build(3, 3, *family.draw((), 3, 3)) for family in FAMILIES]
    assert {type(mask) for mask in [*(mask for mask, _ in MASKS), *families]} == concrete


@every_mask
def test_dense_is_the_definition(mask, entry):
    L = mask.dense(torch.float64)
    assert L.dtype == torch.float64
    assert torch.equal(L, oracle(mask, entry))
    assert mask.dense().dtype == torch.get_default_dtype()


@pytest.mark.parametrize("mask", CAUSAL, ids=repr)
def test_dense_is_made_on_meta_too(mask):
    """Where the number of ones depends on no values."""
    assert mask.dense(device="meta").device.type == "meta"


@every_sparse_mask
def test_a_sparse_product_adds_as_many_rows_as_there_are_ones(mask, entry):
    assert mask.cost(5) == 5 * int(oracle(mask, entry).sum())


@pytest.mark.parametrize("mask", CAUSAL, ids=repr)
def test_a_causal_product_adds_every_row_once(mask):
    assert mask.cost(5) == 5 * min(mask.shape)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("build", [CausalMask, lambda T, S: BandedMask(T, S, 1), lambda T, S: DilatedMask(T, S, 1, 2)])
def test_empty_lengths(build, shape):
    mask = build(*shape)
    assert mask.dense().shape == shape
    assert torch.equal(mask.matmul(torch.ones(shape[1], 2)), torch.zeros(shape[0], 2))
    assert torch.equal(mask.transpose_matmul(torch.ones(shape[0], 2)), torch.zeros(shape[1], 2))


def test_blocks_that_do_not_fit():
    with pytest.raises(ValueError, match="BlockDiagonalMask: source must be a multiple of blocks = 4, got 6"):
        BlockDiagonalMask(4, 6, 4)


def test_nonzeros_are_sorted():
    rows, columns = BandedMask(100, 100, 3).nonzeros()
    flat = rows * 100 + columns
    assert torch.equal(flat, flat.sort().values)


def test_a_band_in_float32_is_no_difference_of_running_sums():
    x = torch.full((4096, 1), 1.0)
    x[0] = 1e8  # from there on a running sum has lost the ones
    band = BandedMask(4096, 4096, 1).matmul(x)
    assert band[-1].item() == 2.0


def test_dense_mask_passes_tensors_and_converts_booleans():
    like = torch.zeros(1, dtype=torch.float64)
    L = torch.eye(3)
    assert dense_mask(L, like) is L
    assert torch.equal(dense_mask(L > 0, like), torch.eye(3, dtype=torch.float64))
    assert torch.equal(dense_mask(CausalMask(3), like), torch.ones(3, 3, dtype=torch.float64).tril())


def test_repr_names_the_parameters():
    assert repr(CausalMask(3, 4)) == "CausalMask(3, 4)"
    assert repr(BandedMask(3, 4, 1)) == "BandedMask(3, 4, window=1)"
    assert repr(DilatedMask(3, 4, 1, 2)) == "DilatedMask(3, 4, window=1, dilation=2)"
    assert repr(BlockDiagonalMask(2, 4, 2)) == "BlockDiagonalMask(2, 4, blocks=2)"
