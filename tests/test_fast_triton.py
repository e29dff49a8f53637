"""The GPU programs against the recurrence in float64: in the tile machine, in Triton's interpreter, on a GPU."""

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from oracles_ssd import DECAYS, expected, gradients, inputs
from triton_marks import needs_gpu, needs_triton

from smalearn import ShapeError, fast
from smalearn.fast import dispatch, tile
from smalearn.fast.cpu import ssd_cpu
from smalearn.fast.cpu.ssd import ssd_cpu_unchecked
from smalearn.fast.triton import checks, configs, launch, plan, ssd, ssd_tiles, ssd_triton, triton_handles
from smalearn.linear_attention import linear_attention_chunked
from smalearn.ssd import ssd_chunked
from smalearn.testing import assert_close, pairwise

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


def recurrence(X, log_a, B, C, H):
    """`expected`, and without tokens the state that went in."""
    if X.shape[-2]:
        return expected(X, log_a, B, C, H)
    return X.double(), (X.mT @ B).double() if H is None else H.double()


def in_double(X, log_a, B, C, H):
    """`ssd_cpu` in float64, which has tests of its own."""
    return ssd_cpu(*(None if x is None else x.double() for x in (X, log_a, B, C, H)))


def check(form, operands, oracle=recurrence, truth=None):
    """Outputs and gradients; in half precision operands of products are rounded once, and results."""
    dtype = operands[0].dtype
    tolerance = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    outputs = gradients(form, operands)
    truth = truth or gradients(oracle, [None if x is None else x.cpu() for x in operands])
    given = [x for x in operands if x is not None]
    assert [x.dtype for x in outputs] == [dtype, torch.float32, *(x.dtype for x in given)]
    for actual, exact in zip(outputs, truth, strict=True):
        assert_close(actual, exact, tolerance)


@functools.cache
def right_answers(number):
    """Of a case; computed once for all forms."""
    return gradients(recurrence, build(**CASES[number]))


@pytest.fixture(autouse=True)
def not_a_number(monkeypatch):
    """Fresh memory holds NaN: what a program forgets to write is seen."""

    def filled(allocate):
        def fill(*args, **kwargs):
            x = allocate(*args, **kwargs)
            return x.fill_(NAN) if x.is_floating_point() else x

        return fill

    for owner, name in ((torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))


@pytest.fixture(params=[False, True], ids=["", "summed beforehand"])
def short_chunks(request, monkeypatch):
    """Chunks of 16 tokens and tiles of 16 columns, so that short sequences have many of both."""
    short = configs.Config(16, 16, 4, 1)
    monkeypatch.setattr(ssd, "sums_beforehand", lambda device: request.param)
    monkeypatch.setattr(plan, "config", lambda *_: (short,) * 3)


def test_every_pair_of_factors_is_covered():
    for a, b in itertools.combinations(FACTORS, 2):
        assert {(case[a], case[b]) for case in CASES} == set(itertools.product(FACTORS[a], FACTORS[b]))
    assert len(CASES) <= 60


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
@pytest.mark.full
@pytest.mark.parametrize("dtype", ON_A_GPU["dtype"])
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", FACTORS["length"])
def test_the_whole_product_on_a_gpu(length, kind, dtype):
    """All factors with each other: many programs to compile."""
    fixed = {"length": length, "kind": kind, "dtype": dtype}
    rest = {name: FACTORS[name] for name in FACTORS if name not in fixed}
    for values in itertools.product(*rest.values()):
        operands = build(**fixed, **dict(zip(rest, values, strict=True)), device="cuda")
        check(ssd_triton, operands, in_double)


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


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tile_machine_computes_what_triton_does(dtype):
    operands = build(70, "resets", 2, 24, 40, True, True, dtype)
    for ours, theirs in zip(gradients(ssd_tiles, operands), gradients(ssd_triton, operands), strict=True):
        assert_close(ours, theirs, 1e-6 if ours.dtype == torch.float32 else 1e-4)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 100])
def test_many_chunks_and_tiles(length, kind, short_chunks):
    check(ssd_tiles, build(length, kind, 2, 20, 40, True, False, torch.float32))


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.full
def test_many_chunks_and_tiles_in_tritons_interpreter(dtype, short_chunks):
    check(ssd_triton, build(33, "resets", 2, 20, 40, True, True, dtype))


@pytest.fixture(params=[2, 3, 6])
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


@needs_triton
@pytest.mark.full
def test_segments_in_tritons_interpreter(short_chunks, monkeypatch):
    monkeypatch.setattr(plan, "segments", lambda *_: 2)
    check(ssd_triton, build(40, "resets", 2, 20, 24, True, True, torch.float32))


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


@pytest.mark.parametrize("decay", [-20.0, -40.0])
def test_small_gradients_of_strong_decays_keep_their_digits(decay):
    X, _, B, C, H = inputs(100, "none", dtype=torch.float32)
    check(ssd_tiles, [X, torch.full((100,), decay), B, C, H])
    log_a = torch.full((100,), decay, requires_grad=True)
    (outputs,) = torch.autograd.grad(ssd_tiles(X, log_a, B, C)[0].sum(), log_a)
    exact = log_a.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(expected(X, exact, B, C, None)[0].sum(), exact)
    assert_close(outputs, truth, 3e-6)
    assert 0 < truth.abs().max() < 1e-6


def test_constant_decay_over_a_long_sequence():
    X, _, B, C, _ = inputs(3000, "none", dtype=torch.float32)
    log_a = torch.full((3000,), -1e-4)
    assert_close(ssd_tiles(X, log_a, B, C)[0], expected(X, log_a, B, C, None)[0], 5e-6)


@pytest.mark.parametrize("form", FORMS)
def test_not_a_number_is_not_hidden(form, monkeypatch):
    """On a GPU decays are not checked, for that would wait for it: NaN must stay NaN."""
    monkeypatch.setattr(checks, "check_ssd", lambda *_: None)
    X, log_a, B, C, _ = inputs(20, "mild", dtype=torch.float32)
    log_a[7] = NAN
    Y, last = form(X, log_a, B, C)
    assert Y[7:].isnan().all()
    assert last.isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_two_runs_give_the_same_bits_and_inputs_stay(form):
    operands = build(70, "resets", 2, 16, 24, True, True, torch.float32)
    before = [x.clone() for x in operands]
    first, second = gradients(form, operands), gradients(form, operands)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(operands, before, strict=True))


def test_second_derivatives():
    operands = inputs(5, dtype=torch.float32)
    assert_close(seconds(ssd_tiles, operands), seconds(ssd_chunked, [x.double() for x in operands]), 1e-5)


def seconds(form, operands):
    """Gradient of the squared gradient of X with respect to B."""
    X, log_a, B, C, H = (x.detach().requires_grad_() for x in operands)
    (dX,) = torch.autograd.grad(form(X, log_a, B, C, H)[0].square().sum(), X, create_graph=True)
    return torch.autograd.grad(dX.square().sum(), B)[0]


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
    written = Counter()
    for event in events:
        if event.kind == "store":
            written.update((event.operand, offset) for offset in event.offsets.ravel() if offset >= 0)
    beforehand = ssd.sums_beforehand(operands[0].device)
    again = Counter(name for (name, _), times in written.items() if times == 2)
    assert set(written.values()) <= {1, 2}
    sizes = Counter(operand for operand, _ in written)
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
    moved = Counter()
    for event in events:
        moved[event.operand] += event.bytes
    X, log_a, B = (x.numel() * x.element_size() for x in operands[:3])
    assert moved == {"x": X, "y": X, "log_a": log_a, "b": 2 * B, "c": 2 * B, "final": 4 * 4 * 64 * 32, "": 0}
    per_token = 2 * 64 * (64 + 32) + 4 * 64 * 32  # 2Q(N + P) + 4NP flops for one token of one head
    assert sum(event.flops for event in events) == 4 * 128 * per_token


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from smalearn.fast.triton import launch, mamba2, plan, ssd, step

class Absent:  # a GPU that compiles and is never run
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

def run(program, grid, *operands, **constants):
    kernel = launch.for_triton(program).warmup(*operands, grid=grid, **constants)
    print(program.__name__, kernel.metadata.shared)

assert not launch.interprets()
launch.on_triton = run
driver.set_active(Absent())
plan.architecture, plan._processors = lambda device: "sm90", lambda device: 9
ssd.sums_beforehand = lambda device: True
for length, state in ((1, True), (1100, False)):
    shapes = [(1, 4, length, 40), (1, 1, length, 24), (1, 1, length, 24), (1, 4, 40, 24)]
    X, B, C, H = (torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
    log_a = torch.zeros(1, 4, length, requires_grad=True) if state else None
    Y, last = ssd.ssd_of("on_triton", X, log_a, B, C, H if state else None)
    torch.autograd.backward([Y, last] if state else [Y], [Y, last] if state else [Y])
one = torch.zeros(1, 4, 24, dtype=torch.bfloat16)
step._step("compile", run, one[..., :16], torch.zeros(1, 4), one, one, torch.zeros(1, 4, 16, 24))

x, z, B, C = (torch.zeros(1, 70, heads, size, dtype=torch.bfloat16) for heads, size in ((4, 40),) * 2 + ((1, 24),) * 2)
dt, A, D, bias = torch.zeros(1, 70, 4), *torch.zeros(3, 4)
tensors = [x.requires_grad_() for x in (x, dt.bfloat16(), A, B, C, D, z, bias, torch.zeros(1, 3, 4, 40, 24))]
options = mamba2._Options(1, (True, 0.0, float("inf")), [0, 30, 30, 70])
y, last = mamba2._in_one("on_triton", options, mamba2._Tensors(*tensors))
torch.autograd.backward([y, last], [y, last])
options = options._replace(steps=(False, 0.1, 0.5), borders=None)
with torch.no_grad():
    mamba2._in_one("on_triton", options, mamba2._Tensors(*tensors[:5], None, None, None, None))
"""


@pytest.mark.full
@needs_triton
def test_tritons_compiler_takes_the_programs(tmp_path):
    """Compiled for a GPU that need not be there: types that change in a loop, say, no interpreter minds."""
    variables = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    forward, chunks = ["ssd_sums", "ssd_forward"], ["ssd_backward_inputs", "ssd_backward_maps"]
    names = [*forward, "ssd_sums", "ssd_backward_states", *chunks]
    back = ["ssd_backward_states", "ssd_carry", "ssd_backward_states"]
    twice = [*forward, "ssd_carry", "ssd_forward", "ssd_sums", *back, *chunks]  # 1100 tokens: two segments
    assert [name for name, _ in lines] == [*names, *twice, "ssd_step", *forward, *names, *forward]
    assert max(int(shared) for _, shared in lines) < 227 * 1024  # bytes that a program may have there


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


BAD = [
    ({"X": torch.ones(3, 4, 2)}, ShapeError, ".* X"),
    ({"X": torch.ones(3, 5, 257), "initial_state": None}, ValueError, "axis 'p' is 257, expected 1 to 256"),
    ({"X": torch.ones(3, 5, 0), "initial_state": None}, ValueError, "axis 'p' is 0, expected 1 to 256"),
    ({"B": torch.ones(5, 300), "C": torch.ones(5, 300), "initial_state": None}, ValueError, "axis 'n' is 300"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
@pytest.mark.parametrize("form", [ssd_tiles, ssd_triton])
def test_errors_before_any_launch(form, change, error, message, monkeypatch):
    operands = {"X": torch.ones(3, 5, 2), "log_a": torch.zeros(5), "B": torch.ones(5, 3), "C": torch.ones(5, 3)}
    operands["initial_state"] = torch.ones(2, 3)
    ssd_tiles(**operands)
    monkeypatch.setattr(launch, "has_triton", None)
    monkeypatch.setattr(tile, "launch", None)
    with pytest.raises(error, match=f"{form.__name__}: {message}"):
        form(**operands | change)


def test_dtypes_and_devices_that_are_refused(monkeypatch):
    X, log_a, B, C, _ = inputs(5)
    with pytest.raises(ValueError, match=r"ssd_tiles: X is torch.float64, expected torch.float32, torch.float16 or"):
        ssd_tiles(X, log_a, B, C)
    X, log_a, B, C = (x.bfloat16() for x in (X, log_a, B, C))
    with pytest.raises(ValueError, match=r"ssd_tiles: X is torch.bfloat16 on cpu, expected torch.float32 or torch.f"):
        ssd_tiles(X, log_a, B, C)
    monkeypatch.setattr(launch, "has_triton", lambda: True)
    monkeypatch.setattr(launch, "interprets", lambda: True)
    with pytest.raises(ValueError, match="ssd_triton: Triton's interpreter is wrong in bfloat16: use float32 or"):
        ssd_triton(X, log_a, B, C)
    monkeypatch.setattr(launch, "interprets", lambda: False)
    with pytest.raises(
        RuntimeError, match="ssd_triton: the tensors are on cpu, expected on a GPU, unless Triton interp"
    ):
        ssd_triton(X, log_a, B, C)


def test_without_triton(monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: False)
    X, log_a, B, C, _ = inputs(5, dtype=torch.float32)
    with pytest.raises(RuntimeError, match=r"ssd_triton: Triton is missing, .*: ssd_tiles runs such .*, ssd_cpu is"):
        ssd_triton(X, log_a, B, C)
    assert not triton_handles(X, B)


def test_too_large_a_grid_is_refused(monkeypatch):
    monkeypatch.setattr(checks, "MOST", 3)
    X, log_a, B, C, _ = inputs(5, "mild", (2, 4), dtype=torch.float32)
    with pytest.raises(ValueError, match="ssd_tiles: batch is 2 and heads are 4, expected at most 3: split the batch"):
        ssd_tiles(X, log_a, B, C)
    X, log_a, B, C, _ = inputs(5, "mild", (4, 2), dtype=torch.float32)
    with pytest.raises(ValueError, match="batch is 4 and heads are 2, expected at most 3: split the batch"):
        ssd_tiles(X, log_a, B, C)
