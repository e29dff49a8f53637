"""The GPU programs against the recurrence in float64: in the tile machine, in Triton's interpreter, on a GPU."""

import contextlib
import functools
import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from comparing import all_close, second_derivative
from counting import moved, written
from oracles_ssd import DECAYS, expected, gradients, inputs
from triton_marks import needs_gpu, needs_triton

from smalearn import fast
from smalearn.fast import dispatch, tile
from smalearn.fast.cpu import ssd_cpu
from smalearn.fast.cpu.ssd import ssd_cpu_unchecked
from smalearn.fast.triton import checks, configs, launch, plan, ssd, ssd_tiles, ssd_triton
from smalearn.linear_attention import linear_attention_chunked
from smalearn.ssd import ssd_chunked
from smalearn.testing import assert_close, pairwise

pytestmark = pytest.mark.usefixtures("fresh_memory_is_not_a_number")
FORMS = [ssd_tiles, pytest.param(ssd_triton, marks=needs_triton)]
NAN = float("nan")
DTYPES = [torch.float32, torch.float16]
FACTORS = {
    "length": [0, 1, 5, 63, 64, 65, 200, 400],
    "kind": DECAYS,
    "groups": [1, 2, 4],
    "state": [16, 32, 64, 128],
    "head_dim": [16, 32, 64, 128],
    "initial": [True, False],
    "seen": [False, True],
    "dtype": DTYPES,
}


CASES = pairwise(FACTORS)
ON_A_GPU = FACTORS | {"dtype": [*DTYPES, torch.bfloat16]}
SHORT_FIRST = [pytest.param(case, marks=pytest.mark.full) if case["length"] > 65 else case for case in CASES]


def build(length, kind, groups, state, head_dim, initial, seen, dtype, device="cpu"):
    """Operands of one batch and four heads; `seen` ones are transposed views, as a model has them."""
    leading = (1, groups, 4 // groups)
    X, log_a, B, C, H = inputs(length, kind, leading, (1, groups, 1), dtype, state, head_dim)
    if seen:
        X, B, C = (x.movedim(3, 1).contiguous().movedim(1, 3) for x in (X, B, C))
        log_a = None if log_a is None else log_a.movedim(3, 1).contiguous().movedim(1, 3)
        H = H.mT.contiguous().mT
    log_a, H = (None if x is None else x.float() for x in (log_a, H))
    return [None if x is None else x.to(device) for x in (X, log_a, B, C, H if initial else None)]


def in_double(X, log_a, B, C, H):
    """`ssd_cpu` in float64, which has tests of its own."""
    return ssd_cpu(*(None if x is None else x.double() for x in (X, log_a, B, C, H)))


def check(form, operands, oracle=expected, truth=None):
    """Outputs and gradients; in half precision operands of products are rounded once, and results."""
    dtype = operands[0].dtype
    tolerance = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    outputs = gradients(form, operands)
    truth = truth or gradients(oracle, [None if x is None else x.cpu() for x in operands])
    given = [x for x in operands if x is not None]
    assert [x.dtype for x in outputs] == [dtype, torch.float32, *(x.dtype for x in given)]
    all_close(outputs, truth, tolerance)


@functools.cache
def right_answers(number):
    """Of a case; computed once for all forms."""
    return gradients(expected, build(**CASES[number]))


@pytest.fixture(params=[False, True], ids=["", "summed beforehand"])
def short_chunks(request, monkeypatch):
    """Chunks of 16 tokens and tiles of 16 columns, so that short sequences have many of both."""
    short = configs.Config(16, 16, 4, 1)
    monkeypatch.setattr(ssd, "sums_beforehand", lambda device: request.param)
    monkeypatch.setattr(plan, "config", lambda *_: (short,) * 3)


@pytest.mark.parametrize("case", SHORT_FIRST, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("form", FORMS)
def test_against_the_recurrence(form, case):
    check(form, build(**case), truth=right_answers(CASES.index(case)))


@needs_gpu
@pytest.mark.parametrize("case", pairwise(ON_A_GPU), ids=lambda case: "-".join(map(str, case.values())))
def test_pairs_on_a_gpu(case):
    """Against `ssd_cpu` in float64: the recurrence takes as long again."""
    check(ssd_triton, build(**case, device="cuda"), in_double)


@needs_gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("state", [1, 16, 64, 128, 256])
@pytest.mark.parametrize("head_dim", [3, 16, 64, 128, 256])
def test_all_sizes_on_a_gpu(head_dim, state, dtype):
    operands = build(200, "resets", 2, state, head_dim, True, True, dtype, "cuda")
    check(ssd_triton, operands, in_double)
    first, second = gradients(ssd_triton, operands), gradients(ssd_triton, operands)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert torch.equal(fast.ssd(*operands)[0], ssd_triton(*operands)[0])


@needs_gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_segments_on_a_gpu(dtype):
    """So few heads and so many tokens that the scan is cut."""
    operands = build(5000, "resets", 2, 64, 64, True, True, dtype, "cuda")
    assert plan.Plan(operands[0], operands[2]).segments > 1
    check(ssd_triton, operands, in_double)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 100])
def test_many_chunks_and_tiles(length, kind, short_chunks):
    check(ssd_tiles, build(length, kind, 2, 20, 40, True, False, torch.float32))


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.full
@pytest.mark.parametrize("segments", [1, 2])
def test_many_chunks_and_tiles_in_tritons_interpreter(dtype, segments, short_chunks, monkeypatch):
    monkeypatch.setattr(plan, "segments", lambda *_: segments)
    check(ssd_triton, build(33, "resets", 2, 20, 40, True, True, dtype))


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.full), 6])
def in_segments(request, short_chunks, monkeypatch):
    """Walks cut into segments, of 6 chunks or fewer."""
    monkeypatch.setattr(plan, "segments", lambda *_: request.param)


@pytest.mark.parametrize(
    "kind",
    ["none", "resets", *(pytest.param(x, marks=pytest.mark.full) for x in DECAYS if x not in ("none", "resets"))],
)
@pytest.mark.parametrize("initial", [True, False])
def test_segments(kind, initial, in_segments):
    check(ssd_tiles, build(90, kind, 2, 20, 24, initial, True, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 16, 33])
def test_segments_of_a_batch(length, dtype, in_segments):
    leading = (3, 2)
    X, log_a, B, C, H = inputs(length, "mild", leading, (3, 1), dtype, 16, 8)
    check(ssd_tiles, [X, log_a.float(), B, C, H.float()])
    if length:
        check(ssd_tiles, [X, None, B, C, None])


@pytest.mark.parametrize(
    ("programs", "chunks", "processors", "truth"),
    [(24, 1024, 132, 11), (264, 1024, 132, 1), (300, 1024, 132, 1), (1, 1024, 132, 128), (24, 7, 132, 1), (0, 9, 0, 1)],
)
def test_how_many_segments(programs, chunks, processors, truth):
    """Two programs for each processor, none with fewer than 8 chunks."""
    assert plan.segments(programs, chunks, processors) == truth


@pytest.mark.parametrize(("state", "head_dim"), [(1, 1), (3, 100), (256, 16), (16, 256)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_and_large_sizes(state, head_dim, dtype):
    check(ssd_tiles, build(40, "resets", 2, state, head_dim, True, True, dtype))


@pytest.mark.parametrize("form", FORMS)
def test_not_a_number_is_not_hidden(form, monkeypatch):
    """On a GPU decays are not checked, for that would wait for it: NaN must stay NaN."""
    monkeypatch.setattr(checks, "check_ssd", lambda *_: None)
    X, log_a, B, C, _ = inputs(20, "mild", dtype=torch.float32)
    log_a[7] = NAN
    Y, last = form(X, log_a, B, C)
    assert Y[7:].isnan().all()
    assert last.isnan().all()


def test_second_derivatives():
    """By B of the gradient of X."""
    operands = inputs(5, dtype=torch.float32)
    ours, theirs = (
        second_derivative(lambda *x, form=form: form(*x)[0], given, 0, 2)
        for form, given in ((ssd_tiles, operands), (ssd_chunked, [x.double() for x in operands]))
    )
    assert_close(ours, theirs, 1e-5)


def test_nothing_is_copied_and_outputs_lie_in_memory_as_inputs():
    X, log_a, B, C, H = build(70, "mild", 2, 16, 24, True, True, torch.float32)
    with tile.recording() as events:
        Y, state = ssd_tiles(X, log_a, B, C, H)
    assert Y.stride()[1:] == X.stride()[1:] != X.contiguous().stride()[1:]
    assert state.is_contiguous()
    assert {str(e.offsets.dtype) for e in events if e.operand} == {"int64"}  # 2^31 entries are no border
    offsets = [e.offsets.ravel() for e in events if e.operand == "x"]
    assert max(x.max() for x in offsets) == sum((n - 1) * s for n, s in zip(X.shape, X.stride(), strict=True))


def test_programs_are_launched_on_the_device_of_the_first_tensor(monkeypatch):
    """As it would be on the second of two GPUs while the first is the current one."""
    calls, device = [], torch.device("cuda", 1)

    @contextlib.contextmanager
    def current(device):
        calls.append(device)
        yield
        calls.append("left")

    kernel = {(2,): lambda *operands, **constants: calls.append((operands, constants))}
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(launch, "for_triton", lambda program: kernel)
    operand = SimpleNamespace(device=device), 1

    def program():
        raise AssertionError

    launch.on_triton(program, (2,), operand, 5, sizes=(1,))
    assert calls == [device, ((operand, 5), {"sizes": (1,)}), "left"]


def test_every_entry_is_written_by_one_program_once(short_chunks):
    operands = build(40, "mild", 2, 20, 40, True, False, torch.float32)
    with tile.recording() as events:
        gradients(ssd_tiles, operands)
    stored = written(events)
    beforehand = ssd.sums_beforehand(operands[0].device)
    again = Counter(name for (name, _), times in stored.items() if times == 2)
    assert set(stored.values()) <= {1, 2}
    sizes = Counter(operand for operand, _ in stored)
    X, log_a, B, C, H = (x.numel() for x in operands)
    states = 4 * 3 * 20 * 40
    names = ["y", "final", "states", "dinitial", "dstates", "dx", "dlog_a", "pairs", "db", "dc"]
    expected = dict(zip(names, [X, H, states, H, states, X, log_a, log_a * 16, B, C], strict=True))
    sums = {"coarse": log_a, "fine": log_a} if beforehand else {}  # in the forward, and in the backward
    assert (sizes, again) == (expected | sums, sums)


def test_traffic_of_the_forward():
    """X and Y move once, B and C once for every head: the state moves only at the ends."""
    operands = build(128, "mild", 2, 64, 32, False, False, torch.float16)
    with tile.recording() as events, torch.no_grad():
        ssd_tiles(*operands)
    X, log_a, B = (x.numel() * x.element_size() for x in operands[:3])
    assert moved(events) == {"x": X, "y": X, "log_a": log_a, "b": 2 * B, "c": 2 * B, "final": 4 * 4 * 64 * 32, "": 0}
    per_token = 2 * 64 * (64 + 32) + 4 * 64 * 32  # 2Q(N + P) + 4NP flops for one token of one head
    assert sum(event.flops for event in events) == 4 * 128 * per_token


def test_fast_takes_the_kernel_that_can():
    def like(device, dtype=torch.float32, size=64):
        return SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(5, size))

    assert dispatch._kernel(like("cpu"), like("cpu")) is ssd_cpu_unchecked
    assert dispatch._kernel(like("cuda", torch.float64), like("cuda")) is None
    assert dispatch._kernel(like("cuda"), like("cuda", size=257)) is None
    assert dispatch._kernel(like("cuda", size=0), like("cuda")) is None
    assert dispatch._kernel(like("mps"), like("mps")) is None
    on_gpu = dispatch._kernel(like("cuda"), like("cuda"))
    assert getattr(on_gpu, "args", None) == (("on_triton",) if launch.has_triton() else None)


def test_fast_uses_the_kernel(monkeypatch):
    """The branches of `fast`, with the tile machine in the place of a GPU, and with no kernel at all."""
    X, log_a, B, C, H = inputs(37, "mild", (2,), dtype=torch.float32)
    gate = log_a[..., None] * torch.ones(3)
    for kernel in (ssd_tiles, None):
        monkeypatch.setattr(dispatch, "_kernel", lambda X, B, kernel=kernel: kernel)
        with tile.recording() as events:
            assert_close(fast.ssd(X, log_a, B, C, H)[0], ssd_chunked(X, log_a, B, C, H)[0], 2e-6)
            assert_close(fast.linear_attention(C, B, X)[0], linear_attention_chunked(C, B, X)[0], 2e-6)
        assert bool(events) == bool(kernel)
        with tile.recording() as events:
            assert_close(fast.linear_attention(C, B, X, gate)[0], linear_attention_chunked(C, B, X, gate)[0], 2e-6)
        assert not events


def test_configurations():
    assert [configs.padded(size) for size in (1, 16, 17, 64, 200, 256)] == [16, 16, 32, 64, 256, 256]
    sizes = itertools.product(("sm90", "sm89", "sm75"), (1, 16, 64, 256), (1, 64, 256), (*DTYPES, torch.bfloat16))
    for architecture, head_dim, state, dtype in sizes:
        scan, inputs, maps = configs.config(architecture, head_dim, state, dtype)
        assert scan.chunk_len == inputs.chunk_len == maps.chunk_len in (16, 32, 64)
        assert {scan.tile, inputs.tile, maps.tile} <= {16, 32, 64}
        assert configs.padded(state) * scan.tile <= 64 * 32 * scan.num_warps  # 64 registers of each thread
        assert max(scan.tile, inputs.tile, maps.tile) <= configs.padded(head_dim)
    assert configs.config("sm89", 64, 256, torch.float32)[1].chunk_len == 16
    assert configs.config("sm89", 64, 256, torch.float16)[1].chunk_len == 32
    assert configs.config("sm75", 64, 256, torch.float16) == configs.config("sm90", 64, 256, torch.float32)
    assert configs.config("sm120", 64, 256, torch.float16) == configs.config("sm89", 64, 256, torch.float16)
    assert configs.config("sm90", 64, 256, torch.float16)[1].chunk_len == 64
    assert configs.config("cpu", 100, 3, torch.float32) == 3 * (configs.Config(64, 64, 4, 1),)
