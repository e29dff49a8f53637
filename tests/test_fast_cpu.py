"""The fast SSD of the CPU against the recurrence, token by token in float64."""

import pytest
import torch
from oracles_ssd import DECAYS, check, expected, inputs

from smalearn.course.timing import saved_bytes
from smalearn.fast.cpu import memory, scan, ssd_cpu
from smalearn.fast.triton import ssd_tiles
from smalearn.linear_attention import linear_attention_recomputed
from smalearn.testing import assert_close


@pytest.fixture
def small_blocks(monkeypatch):
    """Two chunks a block, so that short sequences have many blocks."""
    monkeypatch.setattr(scan, "CACHE", 1)
    monkeypatch.setattr(scan, "CHUNK_LEN", 4)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 17, 33])
def test_many_blocks(length, kind, small_blocks):
    check(inputs(length, kind, (3, 2)))


@pytest.mark.parametrize("without", [3, 2])
def test_without_features(without):
    X, log_a, B, C, H = inputs(40, "mild", (2,), state=0 if without == 3 else 3, head_dim=0 if without == 2 else 2)
    Y, state = ssd_cpu(X, log_a, B, C, H)
    assert (Y.shape, state.shape) == (X.shape, H.shape)
    assert not Y.any()


def recomputed(X, log_a, B, C, H):
    return linear_attention_recomputed(C, B, X, log_a, H)


every_form = pytest.mark.parametrize("form", [ssd_cpu, ssd_tiles, recomputed])


@every_form
@pytest.mark.parametrize("decay", [-20.0, -40.0])
def test_small_gradients_of_strong_decays_keep_their_digits(form, decay):
    """A difference of large sums, Σ_i (Q_i·dQ_i − K_i·dK_i), would lose them all."""
    X, _, B, C, H = inputs(100, "none", (), (), torch.float32)
    check([X, torch.full((100,), decay), B, C, H], 2e-6, form)
    log_a = torch.full((100,), decay, requires_grad=True)
    (results,) = torch.autograd.grad(form(X, log_a, B, C, None)[0].sum(), log_a)
    exact = log_a.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(expected(X, exact, B, C, None)[0].sum(), exact)
    assert_close(results, truth, 3e-6)
    assert 0 < truth.abs().max() < (1e-14 if decay < -30 else 1e-5)


@pytest.mark.parametrize("maps", [1, 3])
@pytest.mark.parametrize("decay", [-1.2, -1.3, -2.4, -2.6, -80.0])
def test_decays_are_folded_up_to_the_strongest(decay, maps, monkeypatch):
    """Chunks of 64 and of 32 tokens fold -76.8, not -83.2; beside a block too strong the others are folded."""
    X, log_a, B, C, H = inputs(100, "mild", (2, 3), (2, maps), torch.float32, state=16, head_dim=8)
    check([1e6 * X, torch.full_like(log_a, decay), 1e6 * B, C, 1e6 * H], 2e-6)
    monkeypatch.setattr(scan, "CACHE", 1)
    log_a[:, :, 40:60] = decay
    check([1e6 * X, log_a, 1e6 * B, C, 1e6 * H], 2e-6)


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


def test_little_is_saved_for_the_backward():
    """The inputs, and a state for each block."""
    operands = [x.requires_grad_() for x in inputs(4096, "mild", (4,), (1,), state=16, head_dim=16)[:4]]
    given = sum(x.nbytes for x in operands)
    assert given < saved_bytes(lambda: ssd_cpu(*operands)) < 1.1 * given


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


@pytest.mark.full
def test_advice_leaves_large_memory_as_good_as_any(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    check(inputs(2000, "mild", leading=(2,), dtype=torch.float32, state=8, head_dim=16))


@every_form
def test_constant_decay_over_a_long_sequence(form):
    X, _, B, C, _ = inputs(3000, "none", dtype=torch.float32)
    log_a = torch.full((3000,), -1e-4)
    assert_close(form(X, log_a, B, C, None)[0], expected(X, log_a, B, C, None)[0], 5e-6)
