"""Kernels as a learner writes them: launched in the emulator, and everywhere else that this machine has."""

import math
import runpy

import pytest
import torch
from triton_marks import needs_gpu, needs_triton

from smalearn.fast import tile as tl
from smalearn.fast.jit import Kernel, next_power_of_2, triton
from smalearn.fast.triton import everywhere as module
from smalearn.fast.triton.compiled import Compiled, Launch, compile_for
from smalearn.fast.triton.everywhere import everywhere
from smalearn.testing import assert_close


@triton.jit
def twice(x):
    return 2 * x


@triton.jit
def double_kernel(x, y, length, Q: tl.constexpr):
    """Doubles a tile."""
    i = tl.program_id(0) * Q + tl.arange(0, Q)
    tl.store(y + i, twice(tl.load(x + i, mask=i < length, other=0.0)), mask=i < length)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(len(x), 4),)](x, y, len(x), Q=4, num_warps=1)
    return y


@triton.jit
def product_kernel(a, b, c, Q: tl.constexpr):
    i = tl.arange(0, Q)
    where = i[:, None] * Q + i[None, :]
    tl.store(c + where, tl.dot(tl.load(a + where), tl.load(b + where)))


def product(a, b):
    c = torch.empty(a.shape)
    product_kernel[(1,)](a, b, c, Q=len(a))
    return c


@triton.jit
def careless_kernel(x, y, Q: tl.constexpr):
    i = tl.program_id(0) * Q + tl.arange(0, Q)
    tl.store(y + i, tl.load(x + i))


@triton.jit
def carrying_kernel(y, length, first: tl.constexpr, width: tl.constexpr):
    """Adds up tiles, from a first value of any kind."""
    total, turns = first, 0
    for start in range(0, length):
        total = total + (tl.zeros((width,), tl.float32) + start if width else start)
        turns += 1
    tl.store(y, turns)


@triton.jit
def returning(x):
    return tl.load(x)


@triton.jit
def halved(x, y):
    tl.store(y, tl.load(x) // 2)


def test_a_launch_writes_into_its_tensors():
    x, y = torch.arange(6.0), torch.zeros(6)
    assert double_kernel[(2,)](x, y, 6, Q=4) is None
    assert y.tolist() == [0, 2, 4, 6, 8, 10]
    double_kernel[lambda constants: (8 // constants["Q"],)](x, y, length=3, Q=4)
    assert y.tolist() == [0, 2, 4, 6, 8, 10]
    assert double(x).tolist() == y.tolist()


def test_a_kernel_keeps_its_name_and_words():
    assert isinstance(double_kernel, Kernel)
    assert (double_kernel.__name__, double_kernel.__doc__) == ("double_kernel", "Doubles a tile.")


def test_arithmetic_of_launches():
    assert [triton.cdiv(x, 4) for x in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [next_power_of_2(x) for x in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: double_kernel(x), RuntimeError, r"a kernel is launched, double_kernel\[grid\]\(...\); only kernels"),
        (lambda x: double_kernel[2](x, x, 4, Q=4), TypeError, "grid, expected a tuple of 1 to 3 whole numbers, got 2"),
        (lambda x: double_kernel[(1.5,)](x, x, 4, Q=4), TypeError, r"whole numbers, got \(1.5,\)"),
        (lambda x: double_kernel[(1,)](x, x, Q=4), TypeError, "missing a required argument: 'length'; its parameters"),
        (lambda x: double_kernel[(1,)](x.double(), x, 4, Q=4), TypeError, r"x is float64, .*: x.float\(\)"),
        (lambda x: double_kernel[(1,)](x, x.to(torch.float8_e5m2), 4, Q=4), TypeError, r"y is float8_e5m2, .*: x.half"),
        (lambda x: triton.autotune, AttributeError, "triton.autotune: the emulator does not have it.*num_warps and"),
        (lambda x: returning[(1,)](x), TypeError, "returning: a kernel returns nothing, it stores; got Tile"),
        (lambda x: everywhere(lambda y: careless_kernel[(2,)](y, y, Q=4), x), IndexError, "load of x at offset 6"),
    ],
    ids=range(9),
)
def test_launches_that_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.zeros(6))


@needs_triton
def test_the_same_in_the_interpreter_and_through_the_compiler():
    report = everywhere(double, torch.arange(10.0))
    assert report.answer.tolist() == list(range(0, 20, 2))
    assert report.moved == {"x": 40, "y": 40}
    assert list(report.apart) == ["interpreter"]
    assert report.apart["interpreter"] < 1e-7
    (compiled,) = report.compiled
    assert (compiled.kernel, compiled.spilled, compiled.mma) == ("double_kernel", 0, 0)
    lines = str(report).splitlines()
    assert lines[0].startswith("emulator       6 accesses, none outside; 40 bytes loaded, 40 stored")
    assert lines[1:3] == ["interpreter    the same to 1e-07", "GPU            not on this machine"]
    assert lines[3].startswith("sm90           double_kernel: ")
    assert report.compiled_for("sm90", num_warps=2).startswith("sm90           double_kernel: ")


@needs_gpu
def test_the_same_on_a_gpu():
    def run(x):
        y = torch.empty(len(x))  # without a device
        double_kernel[(1,)](x, y, len(x), Q=16)
        return y

    assert everywhere(run, torch.arange(10.0)).apart["GPU"] < 1e-6


@needs_triton
@pytest.mark.full
@pytest.mark.parametrize(("target", "unit"), [("sm75", None), ("sm86", "mma"), ("sm90", "wgmma"), ("sm100", "tcgen05")])
def test_which_units_multiply(target, unit):
    """Products of halves: none on a T4 through this Triton, and a kind of its own for each generation since."""
    a, b = torch.randn(2, 64, 64)
    launch = Launch(product_kernel, (1,), (a.half(), b.half(), a), {"Q": 64, "num_warps": 4})
    (one,) = compile_for(target, [launch])
    units = {"mma": one.mma, "wgmma": one.wgmma, "tcgen05": one.tcgen05}
    assert {name for name, count in units.items() if count} == ({unit} if unit else set())


@needs_triton
@pytest.mark.full
def test_what_the_compiler_refuses_is_said():
    launch = Launch(product_kernel, (1,), (torch.zeros(4), torch.zeros(4), torch.zeros(4)), {"Q": 12})
    with pytest.raises(RuntimeError, match=r"compile_for: sm90, Triton's compiler says\n(.|\n)*power of 2"):
        compile_for("sm90", [launch])


@needs_triton
def test_a_program_without_source_is_not_compiled():
    space = {"tl": tl}
    exec("def bare(x):\n    tl.store(x, 1.0)", space)
    with pytest.raises(RuntimeError, match=r"source of bare cannot be read: write it in a cell"):
        compile_for("sm90", [Launch(triton.jit(space["bare"]), (1,), (torch.zeros(1),), {})])


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr(module.launch, "has_triton", lambda: False)
    report = everywhere(double, torch.arange(3.0))
    assert report.compiled is None
    assert report.compiled_for("sm75") == "sm75           Triton is missing (its packages are for Linux)"
    assert str(report).splitlines()[1:] == [
        "interpreter    Triton is missing (its packages are for Linux)",
        "GPU            Triton is missing (its packages are for Linux)",
        "sm90           Triton is missing (its packages are for Linux)",
    ]


@needs_triton
@pytest.mark.parametrize("interprets", [False, True])
@pytest.mark.full
def test_the_place_that_is_off_says_how_to_start_it(monkeypatch, interprets):
    """On a machine with a GPU Triton interprets or compiles, and the other place exists all the same."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.launch, "interprets", lambda: interprets)
    monkeypatch.setattr(module, "_on_gpu", lambda run, operands: (run(*operands), 0.25))
    lines = str(everywhere(double, torch.arange(3.0))).splitlines()[1:3]
    assert lines == (
        [
            "interpreter    the same to 1e-07",
            "GPU            off, Triton interprets here: start without TRITON_INTERPRET",
        ]
        if interprets
        else [
            "interpreter    off, Triton compiles here: start with TRITON_INTERPRET=1",
            "GPU            the same to 1e-07, in 0.250 ms",
        ]
    )


@needs_triton
@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ((131073, 101376, "shared memory"), "not run: needs 129 KB of the card's 99 of shared memory"),
        pytest.param(
            (2048, 1024, "threads"),
            "not run, out of resource: threads, Required: 2048, Hardware limit: 1024.",
            marks=pytest.mark.full,
        ),
    ],
)
@pytest.mark.full
def test_a_program_that_is_too_large_for_the_gpu_is_reported(monkeypatch, resource, said):
    from triton.runtime.errors import OutOfResources

    def refused(run, operands):
        raise OutOfResources(*resource)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.launch, "interprets", lambda: False)
    monkeypatch.setattr(module, "_on_gpu", refused)
    report = everywhere(double, torch.arange(3.0))
    assert report.apart == {}
    assert report.missing["GPU"].startswith(said)
    assert report.compiled[0].kernel == "double_kernel"


def test_another_answer_is_said_aloud():
    one = Compiled("k", 3, 8, 2048, 1, 2, 4)
    report = module.Report(torch.ones(1), [], {"interpreter": 0.5, "GPU": 3e-6}, {}, "sm100", [one, one])
    assert str(report).splitlines()[1:] == [
        "interpreter    ANOTHER ANSWER, 5.0e-01 apart",
        "GPU            the same to 1e-05",
        "sm100          k: 3 registers, 8 bytes spilled, 2 of 227 KB shared, 1 wgmma, 2 mma, 4 tcgen05",
    ]


@pytest.mark.parametrize(
    ("target", "size", "said"),
    [
        ("sm86", 99 * 1024, ", 99 of 99 KB shared, "),
        ("sm86", 99 * 1024 + 1, ", 100 of 99 KB shared (TOO MUCH), "),
        ("sm75", 131072, ", 128 of 64 KB shared (TOO MUCH), "),
        ("sm90", 131072, ", 128 of 227 KB shared, "),
        ("sm999", 131072, ", 128 KB shared, "),
    ],
)
def test_whether_a_program_fits_a_card(target, size, said):
    missing = dict.fromkeys(("interpreter", "GPU"), "not on this machine")
    report = module.Report(torch.ones(1), [], {}, missing, target, [Compiled("k", 3, 8, size, 0, 0, 0)])
    assert said in str(report).splitlines()[3]


def test_numbers_of_a_tuple_are_right_in_half_precision():
    a, b = torch.randn(2, 16, 16)
    assert_close(product(a.half(), b.half()), a.half().float() @ b.half().float(), 1e-6)
    assert math.isclose(product(a, b)[0, 0].item(), (a[0] @ b[:, 0]).item(), rel_tol=1e-4)


def test_bfloat16_is_float32_that_is_rounded():
    (a, b), x = torch.randn(2, 16, 16).bfloat16(), torch.randn(999).bfloat16()
    x[3] = torch.nan
    assert double(x).dtype == torch.bfloat16
    torch.testing.assert_close(double(x), 2 * x, rtol=0, atol=0, equal_nan=True)
    found = torch.empty_like(x)
    sums_kernel[(1,)](x, found, len(x), Q=1024)
    expected = ((x * 0.375) + x).neg().abs()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert_close(product(a, b), a.float() @ b.float(), 1e-6)


@triton.jit
def sums_kernel(x, y, length, Q: tl.constexpr):
    """Arithmetic between a load and a store, each result of which is rounded."""
    i = tl.arange(0, Q)
    X = tl.load(x + i, mask=i < length)
    tl.store(y + i, tl.abs(-(X * 0.375 + X)), mask=i < length)


@needs_triton
def test_bfloat16_is_interpreted_in_float32_with_its_strides():
    a, b = torch.randn(2, 16, 16).bfloat16()
    report = everywhere(lambda a, b: (product(a, b), double(a[0])), a, b)
    assert report.apart["interpreter"] < 1e-6
    assert [one.kernel for one in report.compiled] == ["product_kernel", "double_kernel"]
    assert module._widened(a[:, ::2]).stride() == (16, 2)


@needs_triton
@pytest.mark.full
def test_whole_numbers_divide_as_triton_divides():
    def run(x):
        y = torch.empty_like(x)
        halved[(1,)](x, y)
        return y

    assert everywhere(run, torch.tensor([-7], dtype=torch.int32)).answer.tolist() == [-3]


@pytest.mark.parametrize(
    ("length", "first", "width", "found"),
    [
        (3, 0.0, 16, r"total is one number, float32, before the loop and a tile of shape \(16,\), float32, after a"),
        (3, 0.0, 0, None),
        (3, True, 0, "total is one number, bool, before the loop and one number, int32, after a turn"),
        (0, True, 16, None),
    ],
)
def test_what_a_loop_carries_keeps_its_shape_and_dtype(length, first, width, found):
    turns = torch.zeros(1, dtype=torch.int32)
    if found is None:
        carrying_kernel[(1,)](turns, length, first=first, width=width)
        assert turns.item() == length
    else:
        with pytest.raises(TypeError, match=f"carrying_kernel: {found}"):
            carrying_kernel[(1,)](turns, length, first=first, width=width)


@triton.jit
def masking_kernel(y):
    i = tl.arange(0, 4)
    tl.store(y + i, tl.where(i > 1, 0.0, -torch.inf))


@triton.jit
def summing_kernel(y):
    tl.store(y, torch.sum(tl.arange(0, 4)))


def test_a_kernel_knows_no_other_library():
    with pytest.raises(TypeError, match=r'masking_kernel: inside a program there is no torch.inf: use float\("inf"\)'):
        masking_kernel[(1,)](torch.zeros(4))
    with pytest.raises(TypeError, match=r"there is no torch.sum: use tl.sum"):
        summing_kernel[(1,)](torch.zeros(1))


SIZE, KNOWN, HALF, LEAST = 16, tl.constexpr(16), tl.constexpr(0.5), tl.constexpr(float("-inf"))


@triton.jit
def loop_variable_as_bound(y, length):
    for first in range(0, length, 16):
        tl.store(y + tl.arange(first, first + 16), 0.0)


@triton.jit
def loop_variable_of_constants(y, length):
    for first in range(0, 32, 16):
        after = first + 16
        tl.store(y + tl.arange(first, after), 0.0)


@triton.jit
def runtime_value_unrolled(y, length):
    for first in tl.static_range(0, length, 16):
        tl.store(y + first + tl.arange(0, 16), 0.0)


@triton.jit
def counted_by_hand(y, length):
    first = 0
    while first < length:
        tl.store(y + tl.arange(first, first + 16), 0.0)
        first += 16


@triton.jit
def doubled_in_a_loop(y, length, w: tl.constexpr):
    for _ in range(4):
        w *= 2
    tl.store(y + tl.arange(0, 16), tl.zeros((w,), tl.float32))


@triton.jit
def of_a_global(y, length):
    tl.store(y + tl.arange(0, SIZE), 0.0)


@pytest.mark.parametrize(
    ("kernel", "constants", "said"),
    [
        (loop_variable_as_bound, {}, r"tl.arange: its bounds are constexpr.*`first \+ tl.arange\(0, 16\)`"),
        (loop_variable_of_constants, {}, "tl.arange: its bounds are constexpr"),
        (runtime_value_unrolled, {}, "tl.static_range: its bounds are constexpr"),
        (counted_by_hand, {}, r"tl.arange takes constexpr, and first changes in a loop: use first \+ tl.arange"),
        (doubled_in_a_loop, {"w": 1}, "tl.zeros takes constexpr, and w changes in a loop"),
        (of_a_global, {}, r"of_a_global: a kernel cannot read the global SIZE: .* SIZE = tl.constexpr\("),
    ],
)
def test_what_triton_does_not_compile_is_refused(kernel, constants, said):
    with pytest.raises(TypeError, match=said):
        kernel[(1,)](torch.zeros(32), 32, **constants)


HEAD = "from smalearn.fast import tile as tl\nfrom smalearn.fast.jit import triton\n\n\n"
HEAD += "@triton.jit\ndef kernel(y, length):\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    while length:\n        break", "kernel: Triton has no break"),
        ("    while length:\n        continue", "no continue"),
        ("    rows = []\n    rows.append(tl.load(y))", "no lists that grow"),
        ("    for first in (0, 16):\n        tl.store(y + first, 0.0)", "no loops but over range and tl.static_range"),
        ("    if 0 < tl.program_id(0) < length:\n        tl.store(y, 0.0)", "no chained comparisons"),
        ("    a, b = (tl.load(y + k) for k in (0, 1))", "no generators"),
    ],
)
def test_words_that_triton_does_not_have_are_refused(body, said, tmp_path):
    path = tmp_path / "one.py"
    path.write_text(HEAD + body, encoding="utf-8")
    with pytest.raises(TypeError, match=said):
        runpy.run_path(str(path))["kernel"][(1,)](torch.zeros(32), 32)


@triton.jit
def with_constants(x, y, length, block: tl.constexpr):
    """Sizes that are known, in all the ways there are."""
    for k in tl.static_range(0, 2):
        i = tl.arange(k * (block // 2), (k + 1) * (block // 2))
        total = tl.zeros([block // 2], tl.float32)
        first = 0
        while first < length:
            total += tl.load(x + first + i, mask=first + i < length, other=0.0)
            more = tl.zeros((total.shape[0],), total.dtype)
            total += more
            first += block
        tl.store(y + i, tl.maximum(HALF * total, LEAST), mask=tl.arange(0, KNOWN) + k * KNOWN < length)


def halved_sums(x):
    y = torch.zeros(triton.cdiv(32, KNOWN) * KNOWN)
    with_constants[(1,)](x, y, len(x), block=32)
    return y


def test_what_triton_knows_when_it_compiles_is_accepted():
    x = torch.arange(40.0)
    assert halved_sums(x).tolist() == (x[:32] / 2 + torch.cat([x[32:] / 2, torch.zeros(24)])).tolist()
    assert (KNOWN.value, type(KNOWN.value), HALF.value) == (16, int, 0.5)


@needs_triton
@pytest.mark.full
def test_global_constants_go_everywhere():
    report = everywhere(halved_sums, torch.arange(40.0))
    assert report.apart["interpreter"] < 1e-6
    assert report.compiled[0].kernel == "with_constants"


def test_equal_infinities_are_the_same_answer():
    difference = module._difference
    x = torch.tensor([-torch.inf, 2.0, torch.inf])
    assert difference(x, x.clone()) == 0
    assert not difference(torch.tensor([torch.inf, 2.0, torch.inf]), x) < 1
    assert difference(torch.tensor([-torch.inf, 3.0, torch.inf]), x) == 0.5
