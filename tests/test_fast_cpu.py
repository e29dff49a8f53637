"""The fast SSD of the CPU against the recurrence, token by token in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles_ssd import DECAYS, INF, check, expected, gradients, inputs

from smalearn import ShapeError
from smalearn.fast.cpu import memory, scan, ssd_cpu
from smalearn.testing import assert_close, random_tensors, relative_rms


@pytest.fixture
def small_blocks(monkeypatch):
    """Two chunks a block, so that short sequences have many blocks."""
    monkeypatch.setattr(scan, "CACHE", 1)
    monkeypatch.setattr(scan, "CHUNK_LEN", 4)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [1, 5, 31, 32, 33, 64, 97, 200])
def test_lengths(length, kind):
    check(inputs(length, kind))


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 17, 33])
def test_many_blocks(length, kind, small_blocks):
    check(inputs(length, kind, (3, 2)))


@pytest.mark.parametrize("kind", ["none", "mild", "resets"])
@pytest.mark.parametrize(
    ("leading", "shared"),
    [
        ((), ()),
        ((2,), (2,)),
        ((2,), (1,)),
        ((2,), ()),
        ((2, 4), (2, 4)),
        ((2, 4), (2, 1)),
        ((2, 4), (1, 4)),
        ((2, 4), (4,)),
        ((2, 4), ()),
        ((2, 2, 3), (2, 2, 1)),
        ((2, 2, 3), (2, 1, 3)),
        ((2, 2, 3), (1, 2, 1)),
        ((2, 1, 3, 2), (2, 1, 3, 2)),
        ((0, 2), (0, 1)),
    ],
)
def test_leading_axes_and_groups(leading, shared, kind):
    check(inputs(37, kind, leading, shared))


def test_one_decay_for_all_heads_and_one_input():
    X, log_a, B, C, H = inputs(37, "resets", (2, 3))
    check([X, log_a[0, 0], B, C, H])
    check([X[:, :1], log_a, B, C, H])
    check([X, log_a[:, :1], B[:1], C, H[0]])


def test_outputs_of_many_readers_share_one_state():
    """C alone has the axis of heads: the state has none."""
    X, log_a, B, _, H = inputs(37, "mild", (2, 1))
    C = inputs(37, "mild", (2, 3))[3]
    Y, state = ssd_cpu(X, log_a, B, C, H)
    assert Y.shape == (2, 3, 37, 2)
    assert state.shape == (2, 1, 2, 3)
    check([X, log_a, B, C, H])


@pytest.mark.parametrize("kind", DECAYS)
def test_without_tokens(kind):
    operands = inputs(0, kind, (2,))
    Y, state, *grads = gradients(ssd_cpu, operands)
    assert_close(Y, operands[0])
    assert_close(state, operands[4])
    assert [x.shape for x in grads] == [x.shape for x in operands if x is not None]
    assert_close(grads[-1], random_tensors([Y.shape, state.shape], seed=7)[1])
    assert_close(ssd_cpu(*operands[:4])[1], torch.zeros_like(state))


@pytest.mark.parametrize("without", [3, 2])
def test_without_features(without):
    X, log_a, B, C, H = inputs(40, "mild", (2,), state=0 if without == 3 else 3, head_dim=0 if without == 2 else 2)
    Y, state = ssd_cpu(X, log_a, B, C, H)
    assert (Y.shape, state.shape) == (X.shape, H.shape)
    assert not Y.any()


@given(
    length=st.integers(1, 150),
    leading=st.sampled_from([(), (2,), (2, 3)]),
    strongest=st.sampled_from([0.0, -1.0, -1e2, -1e4, -INF]),
    seed=st.integers(0, 99),
)
def test_any_mixture_of_decays(length, leading, strongest, seed):
    X, _, B, C, H = inputs(length, "none", leading)
    mild, where = random_tensors([(*leading, length)] * 2, seed=seed)
    log_a = torch.where(where > 1, strongest, -0.1 * mild.abs())
    check([X, log_a, B, C, H], 1e-11)  # sums of a chunk reach -32,000: a difference of two has an error of 4e-12


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [33, 200])
def test_float32_keeps_its_digits(length, kind):
    """With resets too: a difference of long sums would lose three digits of what follows them."""
    check(inputs(length, kind, (2, 3), (2, 1), torch.float32, state=16, head_dim=8), 2e-6)


def test_small_gradients_of_strong_decays_keep_their_digits():
    X, _, B, C, H = inputs(100, "none", (), (), torch.float32)
    check([X, torch.full((100,), -20.0), B, C, H], 2e-6)
    log_a = torch.full((100,), -40.0, requires_grad=True)
    (results,) = torch.autograd.grad(ssd_cpu(X, log_a, B, C)[0].sum(), log_a)
    exact = log_a.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(expected(X, exact, B, C, None)[0].sum(), exact)
    assert_close(results, truth, 2e-6)
    assert 0 < truth.abs().max() < 1e-14


@pytest.mark.parametrize("decay", [-1.2, -1.3, -80.0])
def test_decays_folded_into_the_maps_up_to_the_strongest(decay, monkeypatch):
    """A chunk of 32 tokens folds -38.4, not -41.6; beside a block too strong the others are folded."""
    X, log_a, B, C, H = inputs(100, "mild", (2, 3), (2, 3), torch.float32, state=16, head_dim=8)
    check([1e6 * X, torch.full_like(log_a, decay), 1e6 * B, C, 1e6 * H], 2e-6)
    monkeypatch.setattr(scan, "CACHE", 1)
    log_a[:, :, 40:60] = decay
    check([1e6 * X, log_a, 1e6 * B, C, 1e6 * H], 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    """Data in half, decay and states in float32: an error of the rounding of the result, not of the sums."""
    X, log_a, B, C, H = inputs(100, "resets", (2, 3), (2, 1), dtype, state=16, head_dim=8)
    log_a, H = log_a.float(), H.float()
    results, truth = gradients(ssd_cpu, [X, log_a, B, C, H]), gradients(expected, [X, log_a, B, C, H])
    dtypes = [dtype, torch.float32, dtype, torch.float32, dtype, dtype, torch.float32]
    assert [x.dtype for x in results] == dtypes
    for actual, oracle, half in zip(results, truth, dtypes, strict=True):
        assert_close(actual, oracle, torch.finfo(dtype).eps / 2 if half == dtype else 1e-5)


def test_gradcheck(small_blocks):
    operands = [x.requires_grad_() for x in inputs(11, "mild", (2, 2), (2, 1))]
    assert torch.autograd.gradcheck(ssd_cpu, operands)
    X, _, B, C, _ = operands
    assert torch.autograd.gradcheck(lambda *parts: ssd_cpu(parts[0], None, *parts[1:]), (X, B, C))


def test_a_single_output_or_gradient():
    operands = [x.requires_grad_() for x in inputs(70, "resets", (2,))]
    for which in (0, 1):
        truth = torch.autograd.grad(expected(*operands)[which].sum(), operands, materialize_grads=True)
        results = torch.autograd.grad(ssd_cpu(*operands)[which].sum(), operands)
        for actual, oracle in zip(results, truth, strict=True):
            assert_close(actual, oracle)
    X, log_a, B, C, H = (x.detach() for x in operands)
    log_a.requires_grad_()
    (results,) = torch.autograd.grad(ssd_cpu(X, log_a, B, C, H)[0].sum(), log_a)
    (truth,) = torch.autograd.grad(expected(X, log_a, B, C, H)[0].sum(), log_a)
    assert_close(results, truth)


def test_second_derivatives():
    operands = [x.requires_grad_() for x in inputs(5)]
    assert torch.autograd.gradgradcheck(ssd_cpu, operands)
    X, _, B, C, _ = operands
    assert torch.autograd.gradgradcheck(lambda *maps: ssd_cpu(X, None, *maps)[0], (B, C))


def test_a_sequence_in_two_parts_is_the_sequence():
    X, log_a, B, C, H = inputs(90, "resets", (2,))
    whole, last = ssd_cpu(X, log_a, B, C, H)
    first, middle = ssd_cpu(X[:, :50], log_a[:, :50], B[:, :50], C[:, :50], H)
    second, end = ssd_cpu(X[:, 50:], log_a[:, 50:], B[:, 50:], C[:, 50:], middle)
    assert_close(torch.cat([first, second], 1), whole)
    assert_close(end, last)


def test_a_reset_forgets_everything_to_the_last_bit():
    X, log_a, B, C, H = inputs(100, "mild", (2,), dtype=torch.float32)
    log_a[:, 41] = -INF
    changed = [x.clone() for x in (X, B, C)]
    for x in changed:
        x[:, :41] += 3
    Y, last = ssd_cpu(X, log_a, B, C, H)
    other, end = ssd_cpu(changed[0], log_a, *changed[1:], -H)
    assert torch.equal(Y[:, 41:], other[:, 41:])
    assert torch.equal(last, end)
    assert not torch.equal(Y[:, :41], other[:, :41])


def test_the_future_does_not_matter_to_the_last_bit():
    X, log_a, B, C, H = inputs(100, "mild", (2,), dtype=torch.float32)
    changed = [x.clone() for x in (X, B, C)]
    for x in changed:
        x[:, 41:] += 3
    Y = ssd_cpu(X, log_a, B, C, H)[0]
    assert torch.equal(Y[:, :41], ssd_cpu(changed[0], log_a, *changed[1:], H)[0][:, :41])


def test_two_runs_give_the_same_bits_and_inputs_stay():
    operands = inputs(100, "resets", (2, 3), (2, 1), torch.float32)
    before = [x.clone() for x in operands]
    first, second = gradients(ssd_cpu, operands), gradients(ssd_cpu, operands)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(operands, before, strict=True))


@pytest.mark.parametrize("kind", ["none", "resets"])
def test_layout_of_the_memory(kind):
    """(batch, T, heads, P) seen transposed: the same result, in the same layout."""
    X, log_a, B, C, H = inputs(70, kind, (2, 3), (2, 1))
    seen = X.transpose(1, 2).contiguous().transpose(1, 2)
    B_seen, C_seen = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (B, C))
    assert not seen.is_contiguous()
    check([seen, log_a, B_seen, C_seen, H])
    Y, _ = ssd_cpu(seen, log_a, B_seen, C_seen, H)
    assert Y.stride() == seen.stride()


def test_gradients_of_stride_zero():
    X, log_a, B, C, _ = inputs(40, "mild", (2,))
    X.requires_grad_()
    (results,) = torch.autograd.grad(ssd_cpu(X, log_a, B, C)[0].sum(), X)
    (truth,) = torch.autograd.grad(expected(X, log_a, B, C, None)[0].sum(), X)
    assert_close(results, truth)


def test_little_is_saved_for_the_backward():
    """The inputs, and a state for each block."""
    X, log_a, B, C, _ = (x.requires_grad_() for x in inputs(4096, "mild", (4,), (1,), state=16, head_dim=16))
    storages = {}

    def pack(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        Y, _ = ssd_cpu(X, log_a, B, C)
    operands = sum(x.numel() for x in (X, log_a, B, C))
    assert operands < sum(storages.values()) < 1.1 * operands
    assert Y.requires_grad


@pytest.mark.parametrize(("system", "asked"), [("linux", 1), ("darwin", 0), ("win32", 0)])
def test_large_memory_may_lie_on_huge_pages(monkeypatch, system, asked):
    advised = []
    monkeypatch.setattr(memory, "_advise", lambda *given: advised.append(given))
    monkeypatch.setattr(memory.sys, "platform", system)
    X = torch.ones(3, 1000, 4).transpose(0, 1)
    assert memory.empty_like(X).stride() == torch.empty_like(X).stride()
    assert not advised
    monkeypatch.setattr(memory, "LARGE", 48000)
    Y = memory.empty_like(X)
    assert len(advised) == asked
    for start, size in advised:  # whole pages, none of which another tensor shares
        assert start % 4096 == size % 4096 == 0
        assert Y.data_ptr() <= start < start + size <= Y.data_ptr() + 48000


def test_advice_leaves_large_memory_as_good_as_any(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    check(inputs(2000, "mild", leading=(2,), dtype=torch.float32, state=8, head_dim=16))


def test_constant_decay_over_a_long_sequence():
    X, _, B, C, _ = inputs(5000, "none", dtype=torch.float32)
    log_a = torch.full((5000,), -1e-4)
    assert relative_rms(ssd_cpu(X, log_a, B, C)[0], expected(X, log_a, B, C, None)[0]) < 5e-6


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"X": torch.ones(3, 4, 2)}, ShapeError, r"ssd_cpu: axis 't' is 4 in X but 5 in B"),
        ({"C": torch.ones(5, 2)}, ShapeError, r"ssd_cpu: axis 'n' is 3 in B but 2 in C"),
        ({"log_a": torch.zeros(4)}, ShapeError, r"ssd_cpu: axis 't' is 5 in X but 4 in log_a"),
        ({"initial_state": torch.ones(3, 2)}, ShapeError, r"ssd_cpu: axis 'p' is 2 in X but 3 in initial_state"),
        ({"B": torch.ones(2, 5, 3)}, ShapeError, r"ssd_cpu: leading axes \(2,\) of B do not broadcast with \(3,\)"),
        ({"B": torch.ones(5, 3).double()}, ValueError, r"ssd_cpu: B is torch.float64 but X is torch.float32"),
        ({"log_a": torch.zeros(5).double()}, ValueError, r"ssd_cpu: log_a is torch.float64, expected torch.float32"),
        ({"log_a": torch.ones(5)}, ValueError, r"ssd_cpu: log_a must be ≤ 0, the log of a decay in \[0, 1\], got 1"),
        ({"log_a": torch.full((5,), INF * 0)}, ValueError, r"log_a must be ≤ 0"),
        ({"initial_state": torch.ones(2, 3).half()}, ValueError, r"initial_state is torch.float16, expected torch.f"),
        ({"X": torch.ones(5, 2, dtype=torch.long)}, ValueError, r"ssd_cpu: X must have a floating dtype"),
        ({"X": None}, TypeError, r"ssd_cpu: X must be a torch.Tensor, got NoneType"),
    ],
)
def test_errors(change, error, message):
    operands = {
        "X": torch.ones(3, 5, 2),
        "log_a": torch.zeros(5),
        "B": torch.ones(5, 3),
        "C": torch.ones(5, 3),
        "initial_state": torch.ones(2, 3),
    }
    ssd_cpu(**operands)
    with pytest.raises(error, match=message):
        ssd_cpu(**operands | change)
