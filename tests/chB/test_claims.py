"""The claims of appendix B, one test each, in the order of claims.toml; and what the chapter says of its numbers."""

import pytest
import torch
from cells import cells, run_cell

from smalearn.course.ch06.mask import decays, with_a_reset
from smalearn.course.chB.drafts import replay, roll_back
from smalearn.course.chB.precision import store
from smalearn.course.chB.prefix import reused
from smalearn.course.exercises.core import Randn
from smalearn.ssd import ssd_chunked, ssd_recurrent
from smalearn.testing import assert_close, relative_rms


@pytest.fixture
def layer():
    """The trained layer's inputs, as the chapter has them."""
    return defined(
        "share-inputs",
        "share-sizes",
    )


def defined(*names, **space):
    """What these cells of the chapter define, with the answers of the day: those of a broken one are broken."""
    space |= {"roll_back": roll_back, "replay": replay, "store": store, "ssd_in_chunks": ssd_chunked, "torch": torch}
    for name in names:
        run_cell(cells("B")[name].source, space)
    return space


def drawn(length, *lead, seed=0):
    """X, log_a with a reset, B, C and a state."""
    randn = Randn(seed)
    X, B, C = (randn(*lead, length, size) for size in (2, 3, 3))
    return X, with_a_reset(decays(randn, *lead, length)), B, C, randn(*lead, 2, 3)


@pytest.mark.claim("009:grid", "smalearn.course.chB.prefix.reused")
@pytest.mark.parametrize("chunk_len", [1, 3, 4, 16])
def test_a_hit_is_the_last_border_whose_state_is_the_prompts_own(chunk_len):
    X, log_a, B, C, empty = drawn(13)
    log_a = decays(Randn(1), 13)
    states = [ssd_recurrent(X[:t], log_a[:t], B[:t], C[:t], empty)[1] for t in range(14)]
    for shared in range(14):
        other = torch.cat([X[:shared], X[shared:] + 1])
        tokens, prompt = torch.arange(13), torch.arange(13) + 13 * (torch.arange(13) >= shared)
        own = [ssd_recurrent(other[:t], log_a[:t], B[:t], C[:t], empty)[1] for t in range(13)]
        hits = [t for t in range(0, 13, chunk_len) if relative_rms(own[t], states[t]) < 1e-12]
        found = reused(prompt, tokens, chunk_len)
        assert found == max(hits)
        Y = ssd_chunked(other[found:], log_a[found:], B[found:], C[found:], states[found])[0]
        assert_close(Y, ssd_recurrent(other, log_a, B, C, empty)[0][found:])


@pytest.mark.claim("009:rollback", "smalearn.course.chB.drafts.roll_back")
def test_inputs_and_the_state_before_give_every_state(layer):
    X, log_a, B, C, before = drawn(7, 2)
    for accepted in range(8):
        now = [part[:, :accepted] for part in (X, log_a, B, C)]
        assert_close(roll_back(before, X, log_a, B, accepted), ssd_recurrent(*now, before)[1])
    off = defined("undo-run", **layer)["off"]
    assert off[0] < 1e-6
    assert off[-1] > 0.1  # "not a digit"
    assert layer["log_a"][:, -16:].sum(-1).min().exp() < 1e-6  # "forget nearly all of the past in sixteen tokens"
    after = ssd_recurrent(X, log_a, B, C, before)[1] * log_a[:, 3].exp()[:, None, None]  # met the reset
    assert not (after / log_a[:, 3].exp()[:, None, None]).isfinite().any()


@pytest.mark.claim("009:replay", "smalearn.course.chB.drafts.replay")
@pytest.mark.parametrize("c", [1, 2, 7, 16])
def test_a_checkpoint_once_in_c_tokens_is_exact(c):
    X, log_a, B, C, empty = drawn(23, 2)
    space = {"X": X, "log_a": log_a, "B": B, "C": C, "empty": empty}
    rows, _ = defined("traffic", **space)["decode"](c, 23)
    assert_close(rows, ssd_recurrent(X, log_a, B, C, empty)[0])


@pytest.mark.claim("009:traffic", "smalearn.course.chB.drafts.replay")
def test_what_is_moved_is_between_half_and_all_of_what_steps_move(layer):
    space = defined("traffic", **layer)
    Y = ssd_chunked(*(layer[name] for name in ("X", "log_a", "B", "C")))[0]
    state, token, share = 8 * 32 * 32, 8 * 32 + 8 + 32, {}
    for c in (1, 2, 4, 8, 16, 64):
        rows, moved = space["decode"](c)
        assert_close(rows, Y[:, :256])
        assert moved == state * (1 + 1 / c) + token * (c + 1) / 2
        share[c] = moved / (2 * state)
        assert share[c] > 1 / 2
    assert min(share, key=share.get) == 8
    assert 0.64 < share[8] < 0.645  # "a third", and more
    assert share[64] > 1
    assert "even moves more than plain steps" in cells("B")["traffic-after"].source


@pytest.mark.claim("009:feedback", "smalearn.course.chB.precision.store")
def test_the_rest_in_four_bits_restores_what_eight_lose(layer):
    found = defined("store-whisper", "store-keep", "store-outputs", **layer)
    plain, whole = (row[0, 1].item() for row in found["held"].values())
    assert plain == 0
    assert whole == pytest.approx(100, abs=0.5)
    Y = ssd_chunked(*(layer[name] for name in ("X", "log_a", "B", "C")))[0]
    error = {name: relative_rms(rows, Y) for name, rows in found["outputs"].items()}
    assert error["int8 and rest"] < error["int8"] / 10
    assert error["int8 and rest"] < error["bfloat16"]
    assert 4 < error["int8"] / error["bfloat16"] < 5  # "more than four times"
    assert error["int8, every 16"] < 1.1 * error["bfloat16"]  # "nearly as good"


@pytest.mark.claim("009:padding", "smalearn.ssd.ssd_chunked")
def test_pads_pass_by_if_they_neither_write_nor_decay():
    X, _, B, C, _ = drawn(9)
    log_a = decays(Randn(2), 9) / 4
    own = ssd_recurrent(X, log_a, B, C)[1]
    noise = [part - 1 for part in drawn(4, seed=1)[:4]]

    def last(left, silent):
        parts = [
            torch.cat([pads, part] if left else [part, pads])
            for pads, part in zip(noise, (X, log_a, B, C), strict=True)
        ]
        real = torch.tensor([0.0] * 4 + [1.0] * 9 if left else [1.0] * 9 + [0.0] * 4).double()
        parts[0] = parts[0] * real[:, None] if "X" in silent else parts[0]
        parts[1] = torch.where(real > 0, parts[1], 0) if "log a" in silent else parts[1]
        return ssd_chunked(*parts, chunk_len=4)[1]

    for left in (True, False):
        assert_close(last(left, ("X", "log a")), own)
        assert relative_rms(last(left, ("log a",)), own) > 0.1
    assert_close(last(True, ("X",)), own)
    assert relative_rms(last(False, ("X",)), own) > 0.1
