"""The claims of chapter 12, one test each or more, in the order of claims.toml."""

import sys

import pytest
import torch
from cells import cells, shown
from counting import counted, moved
from oracles_ssd import expected
from oracles_ssd import inputs as drawn

from smalearn import fast
from smalearn.course.ch12.beyond import decay_gradient, entering
from smalearn.course.ch12.chunk import one_chunk
from smalearn.course.ch12.counts import recorded_walk, walk_bytes
from smalearn.course.ch12.kernel import chunked_ssd
from smalearn.course.ch12.walk import walk
from smalearn.course.plots.kernels import Design
from smalearn.course.timing import grown_bytes
from smalearn.fast.triton import mamba2_ssd, ssd_tiles
from smalearn.ssd import ssd_chunked, ssd_quadratic, ssd_recurrent
from smalearn.testing import assert_close, random_tensors, relative_rms

LOG2 = torch.tensor(2.0).log().item()


def inputs(length, kind="mild", leading=(), shared=None, sizes=(20, 24), dtype=torch.float32):
    """X, log_a, B, C and a state; B and C with other leading axes if `shared` is given."""
    state, head_dim = sizes
    return drawn(length, kind, leading, shared, dtype, state, head_dim)


def listing_operands(chunks, chunk_len, state, head_dim):
    """Operands of `listing` for one head, and the same for the other forms."""
    X, log_a, B, C, _ = inputs(chunks * chunk_len, sizes=(state, head_dim))
    x, a, b, c = (z.unflatten(0, (chunks, chunk_len)) for z in (X, log_a, B, C))
    s = a.cumsum(-1)
    L = (s[:, :, None] - s[:, None, :]).tril().exp().tril()
    factors = s.exp()[..., None], (s[:, -1:] - s).exp()[..., None], s[:, -1, None, None].exp()
    return (x, L, b, c, *factors), (X, log_a, B, C)


def designs():
    """What the chapter counts for every design, and the bandwidth and peaks it takes."""
    space = shown("12", "roofline-designs", Design=Design)
    exec(cells("12")["roofline-table"].source.partition("\n")[0], space)
    return space


def least_seconds(one, space):
    return max(one.bytes / space["bandwidth"], one.flops / space["peaks"][one.roof])


@pytest.mark.claim("004:matmul-hardware", "smalearn.ssd.ssd_recurrent")
@pytest.mark.claim("004:matmul-hardware", "smalearn.ssd.ssd_quadratic")
def test_fewer_operations_in_more_launches():
    length, state, head_dim = 512, 64, 64
    operands = inputs(length, sizes=(state, head_dim))[:4]
    (loop, Y), (whole, again) = (counted(form, *operands) for form in (ssd_recurrent, ssd_quadratic))
    assert_close(Y[0], again[0])
    assert 3 * length * state * head_dim < 0.4 * length**2 * (state + head_dim + 1)
    assert loop.launches > 3 * length > 6 * whole.launches


@pytest.mark.claim("004:matmul-hardware", "smalearn.course.ch12.counts.walk_bytes")
def test_bytes_and_units_order_the_designs_and_operations_do_not():
    space = designs()
    every, heads, state, head_dim = space["designs"], 128, 128, 64
    walk, scan = every["one walk"], every["scan, state on chip"]
    assert scan.flops == 6 * state * head_dim < walk.flops == 2 * 64 * (state + head_dim) + 4 * 8192
    times = {name: least_seconds(one, space) for name, one in every.items()}
    assert min(times, key=times.get) == "one walk"
    assert times["scan, state on chip"] > 9 * times["one walk"]
    assert every["four steps"].flops == walk.flops
    assert round(every["four steps"].bytes / walk.bytes) == 19
    assert 0.7 < walk.flops / space["peaks"][walk.roof] / (walk.bytes / space["bandwidth"]) < 1
    # `walk_bytes` counts float32, the state too, and B and C once a head; towards memory they go once a group.
    per_token = walk_bytes(1 << 16, heads, head_dim, state, head_dim) / (1 << 16) / heads / 4
    assert per_token == 2 * head_dim + 2 * state + 1 + head_dim * state / (1 << 16)
    assert walk.bytes == scan.bytes == 2 * (2 * head_dim + 1 + 2 * state / heads)


@pytest.mark.claim("004:listing-kernel", "smalearn.fast.triton.ssd.ssd_tiles")
@pytest.mark.parametrize("kind", ["mild", "strong"])
def test_in_half_precision_it_is_at_least_half_as_good_as_plain_torch(kind):
    operands = [x.half() for x in inputs(100, kind, (2,), (1,), sizes=(16, 16))[:4]]
    exact = expected(*operands, None)[0]
    plain = relative_rms(ssd_chunked(*operands, chunk_len=32)[0], exact)
    assert 1e-5 < plain < 1e-2
    assert relative_rms(ssd_tiles(*operands)[0], exact) <= 2 * plain


@pytest.mark.claim("004:listing-kernel", "smalearn.course.ch12.walk.walk")
@pytest.mark.claim("004:listing-kernel", "smalearn.course.ch12.chunk.one_chunk")
@pytest.mark.parametrize("length", [1, 16, 45])
def test_the_two_lines_of_the_claim(length):
    X, log_a, B, C, H = inputs(length, sizes=(16, 32))
    wanted = expected(X, log_a, B, C, H)
    Y, last = walk(X, log_a / LOG2, B, C, H.mT.contiguous(), 16)
    assert_close(Y, wanted[0])
    assert_close(last.mT, wanted[1])
    if length == 16:
        Y, after = one_chunk(H.mT.contiguous(), X, B, C, log_a / LOG2)
        assert_close(Y, wanted[0])
        assert_close(after.mT, wanted[1])


@pytest.mark.claim("004:listing-kernel", "smalearn.course.ch12.beyond.decay_gradient")
def test_the_gradient_of_the_decays_of_a_chunk():
    operands = [x.double().requires_grad_() for x in inputs(16, sizes=(16, 32))]
    dY, dH = random_tensors([(16, 32), (32, 16)], seed=5)
    Y, last = ssd_recurrent(*operands)
    dX, wanted = torch.autograd.grad((Y, last), operands[:2], (dY, dH))
    passed = operands[0], dX, Y, dY, last.mT.contiguous(), dH.mT.contiguous()
    assert_close(decay_gradient(*(x.detach().float() for x in passed)), wanted)


@pytest.mark.claim("004:listing-kernel", "smalearn.course.ch12.beyond.entering")
def test_states_that_enter_slices():
    X, log_a, B, C, _ = inputs(60, "resets", dtype=torch.float64)
    slices = list(zip(*(x.split([20, 0, 25, 15]) for x in (X, log_a, B, C)), strict=True))
    ends = torch.stack([ssd_recurrent(*one)[1] if len(one[0]) else torch.zeros(24, 20).double() for one in slices])
    found = entering(torch.stack([one[1].sum().exp() for one in slices]), ends)
    for end, state in ((20, found[1]), (20, found[2]), (45, found[3])):
        assert_close(state, ssd_recurrent(*(x[:end] for x in (X, log_a, B, C)))[1])


@pytest.mark.claim("004:listing-kernel", "smalearn.course.ch12.kernel.chunked_ssd")
@pytest.mark.claim("004:listing-kernel", "smalearn.fast.triton.mamba2.mamba2_ssd")
def test_many_sequences_in_one_memory():
    borders = [0, 7, 7, 40, 61]
    X, log_a, B, C, _ = inputs(61, sizes=(16, 16))
    starts = inputs(1, leading=(4,), sizes=(16, 16))[4]
    heads = (x[:, None] for x in (X, log_a / LOG2, B, C, starts.mT.contiguous()))
    Y, last = (x.squeeze(1) for x in chunked_ssd(*heads, torch.tensor(borders), 16, 16))
    dt = -log_a[:, None]  # the rate is -1, and the input x / dt
    x = torch.where(dt > 0, X / dt, 0)[:, None]
    layer, states = mamba2_ssd(
        x, dt, -torch.ones(1), B[:, None], C[:, None], initial_state=starts[:, None], cu_seqlens=borders
    )
    for k, now in enumerate(map(slice, borders[:-1], borders[1:])):
        exact, end = (
            ssd_recurrent(*(z[now].double() for z in (X, log_a, B, C)), starts[k].double())
            if now.start < now.stop
            else (torch.zeros(0, 16), starts[k])
        )
        assert_close(Y[now], exact)
        assert_close(layer[now, 0], exact)
        assert_close(last[k].mT, end)
        assert_close(states[k, 0], end)


@pytest.mark.claim("004:kernel-traffic", "smalearn.course.ch12.counts.walk_bytes")
@pytest.mark.claim("004:kernel-traffic", "smalearn.course.ch12.counts.recorded_walk")
@pytest.mark.parametrize("sizes", [(64, 1, 16, 16, 16), (50, 3, 40, 20, 16), (33, 2, 32, 16, 32)])
def test_the_walk_reads_and_writes_everything_once(sizes):
    length, heads, head_dim, state, tile = sizes
    events, tiles = recorded_walk(*sizes), -(-head_dim // tile)
    once = {"x": head_dim, "log_a": tiles, "b": tiles * state, "c": tiles * state, "y": head_dim}
    wanted = {name: 4 * heads * length * numbers for name, numbers in once.items()}
    assert moved(events) == wanted | {"final": 4 * heads * head_dim * state, "": 0}
    assert {event.operand for event in events if event.kind == "store"} == {"y", "final"}
    assert walk_bytes(*sizes) == sum(moved(events).values())


@pytest.mark.claim("004:kernel-traffic", "smalearn.fast.triton.ssd.ssd_tiles")
@pytest.mark.parametrize(("chunks", "Q", "N", "P"), [(3, 16, 8, 4), (4, 32, 16, 24)])
def test_what_the_listing_moves(chunks, Q, N, P):
    operands, plain = listing_operands(chunks, Q, N, P)
    listing = shown("12", "listing")["listing"]
    counter, Y = counted(listing, *operands)
    length = chunks * Q
    assert counter.moved == length * (5 * Q + 4 * N + 11 * P + 2) + chunks * (7 * N * P + 1)
    assert counter.moved + length * Q > 3 * (length * (2 * P + 2 * N + 1) + N * P)  # + L, which has to be written
    assert_close(ssd_tiles(*plain)[0], Y.flatten(0, 1))


@pytest.mark.claim("004:kernel-traffic", "smalearn.fast.cpu.ssd.ssd_cpu_unchecked")
def test_the_memory_that_both_need():
    operands, plain = listing_operands(256, 64, 64, 64)
    listing = shown("12", "listing")["listing"]
    assert_close(fast.ssd(*plain)[0], listing(*operands).flatten(0, 1))
    peaks = [grown_bytes(lambda: listing(*operands)), grown_bytes(lambda: fast.ssd(*plain))]
    if sys.platform == "linux":
        steps, walked = (peak / plain[0].nbytes for peak in peaks)
        assert steps > 4  # scores, weights, half results, states; L was there before
        assert walked < 0.7 * steps
    else:
        assert peaks == [None, None]  # the system does not say
