"""The GPU program of the delta rule against the loop in float64: emulated, interpreted, compiled, on a GPU."""

import itertools
import warnings
from collections import Counter

import pytest
import torch
from comparing import all_close
from counting import moved, written
from oracles_delta import KINDS, expected, inputs
from torch.autograd import forward_ad
from triton_marks import needs_gpu, needs_triton

from smalearn import fast
from smalearn.fast import dispatch, tile
from smalearn.fast.lanes import Tile
from smalearn.fast.triton import configs, delta, delta_rule_tiles, delta_rule_triton, ssd
from smalearn.testing import assert_close, pairwise, random_tensors

pytestmark = pytest.mark.usefixtures("fresh_memory_is_not_a_number")
FORMS = [delta_rule_tiles, pytest.param(delta_rule_triton, marks=needs_triton)]
INF, NAN = float("inf"), float("nan")
DTYPES = [torch.float32, torch.float16]
FACTORS = {
    "length": [0, 1, 7, 31, 32, 33, 97, 128],
    "kind": KINDS,
    "leading": [((), ()), ((2,), (2,)), ((2, 2), (2, 1)), ((3,), (1,))],
    "state": [1, 16, 20, 64],
    "head_dim": [3, 16, 40, 80],
    "strength": [None, 1.0, 2.0],
    "initial": [True, False],
    "seen": [False, True],
    "dtype": DTYPES,
}
CASES = pairwise(FACTORS)
ON_A_GPU = FACTORS | {"dtype": [*DTYPES, torch.bfloat16]}


def build(length, kind, leading, state, head_dim, strength, initial, seen, dtype, device="cpu"):
    """Operands with decays and a state in float32; `seen` ones are transposed views, whose rows are not consecutive."""
    Q, K, V, beta, log_a, H = inputs(length, kind, *leading, dtype, state, head_dim, strength)
    if seen:
        Q, K, V, H = (x.mT.contiguous().mT for x in (Q, K, V, H))
    log_a, H = None if log_a is None else log_a.float(), H.float() if initial else None
    return [None if x is None else x.to(device) for x in (Q, K, V, beta, log_a, H)]


def check(form, operands, tolerance=None):
    """In half precision operands of products are rounded once, and results."""
    dtype = operands[0].dtype
    outputs, truth = form(*operands), expected(*(None if x is None else x.cpu() for x in operands))
    assert [x.dtype for x in outputs] == [dtype, torch.float32]
    all_close(outputs, truth, tolerance or (2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps))


@pytest.fixture(params=[16, 32])
def small_tiles(request, monkeypatch):
    """Chunks of both lengths whatever the dtype is, and tiles of 16 columns, so that few columns have many."""
    monkeypatch.setattr(delta, "_config", lambda *_: configs.Config(request.param, 16, 4, 1))
    monkeypatch.setattr(ssd, "sums_beforehand", lambda device: request.param == 16)
    return request.param


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("form", FORMS)
def test_against_the_recurrence(form, case):
    check(form, build(**case))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 101])
@pytest.mark.parametrize("form", FORMS)
def test_many_chunks_and_tiles(form, length, kind, small_tiles):
    check(form, build(length, kind, ((2,), (1,)), 20, 40, None, True, False, torch.float32))


@pytest.mark.parametrize(("state", "head_dim"), [(1, 1), (256, 16), (16, 256), (200, 100)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_and_large_sizes(state, head_dim, dtype):
    check(delta_rule_tiles, build(40, "resets", ((), ()), state, head_dim, None, True, True, dtype))


@pytest.mark.parametrize("size", [16, 32])
def test_the_inverse_looks_below_the_diagonal_alone(size):
    (A,) = random_tensors([(size, size)], dtype=torch.float32)
    A = A.tril() / 4
    T = torch.from_numpy(delta.inverse(Tile(A.numpy()), tile.arange(0, size), size, "ieee")._values)
    exact = torch.linalg.inv(torch.eye(size) + A.double().tril(-1))
    assert T.dtype == torch.float32
    assert_close(T, exact, 1e-6)
    assert torch.equal(T, T.tril())
    assert torch.equal(T.diagonal(), torch.ones(size))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", [1, 2, 3, 4])
def test_not_a_number_is_not_hidden(which, form, monkeypatch):
    """On a GPU strengths and decays are not checked, for that would wait for it: NaN must stay NaN."""
    monkeypatch.setattr(delta, "check_delta", lambda *_: None)
    operands = inputs(70, "mild", dtype=torch.float32)
    operands[which][40] = NAN
    Y, last = form(*operands)
    assert Y[40:].isnan().all() if which in (1, 4) else Y[40:].isnan().any(0).all()
    assert last.isnan().any()
    assert Y[:32].isfinite().all()


def test_nothing_is_copied_and_outputs_lie_in_memory_as_values():
    operands = inputs(70, "mild", (2, 3), dtype=torch.float32, state=16, head_dim=24)
    operands = [*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in operands[:5]), operands[5]]
    with tile.recording() as events:
        Y, state = delta_rule_tiles(*operands)
    assert Y.stride() == operands[2].stride()
    assert state.is_contiguous()
    assert {str(e.offsets.dtype) for e in events if e.operand} == {"int64"}  # 2^31 entries are no border
    for name, x in zip(("q", "k", "v", "beta", "log_a", "initial"), operands, strict=True):
        assert max(e.offsets.max() for e in events if e.operand == name) == x.numel() - 1


def test_every_entry_is_written_by_one_program_once(small_tiles):
    operands = build(40, "mild", ((2, 2), (2, 1)), 20, 40, None, True, False, torch.float32)
    with tile.recording() as events:
        delta_rule_tiles(*operands)
    stored = written(events)
    assert set(stored.values()) == {1}
    rows = operands[4].numel()
    sizes = {"y": operands[2].numel(), "final": operands[5].numel(), "t": rows * small_tiles}
    beforehand = ssd.sums_beforehand(operands[2].device)
    sums = dict.fromkeys(("coarse", "fine"), rows) if beforehand else {}
    assert Counter(name for name, _ in stored) == sizes | sums


def test_traffic_and_products():
    """Every operand moves once for each head, what T needs once more, the state at the end alone."""
    operands = build(128, "mild", ((2,), (2,)), 64, 32, 1.0, False, False, torch.float16)
    with tile.recording() as events:
        delta_rule_tiles(*operands)
    q, k, v, beta, log_a = (x.numel() * x.element_size() for x in operands[:5])
    wanted = {"q": q, "k": 2 * k, "v": v, "y": v, "beta": 2 * beta, "log_a": 2 * log_a, "final": 2 * 4 * 64 * 32}
    assert moved(events) == wanted | {"t": 2 * 2 * 128 * 16 * 4, "": 0}
    per_token = 2 * 16 * (2 * 64 + 96 + 2 * 32) + 6 * 64 * 32
    assert sum(event.flops for event in events) == 2 * 128 * per_token


@pytest.mark.parametrize("architecture", ["cpu", "sm80", "sm89", "sm90"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_configurations(architecture, dtype):
    for head_dim, state in itertools.product((1, 16, 64, 256), (1, 64, 128, 256)):
        chunk_len, columns, num_warps, num_stages = delta._config(architecture, head_dim, state, dtype)
        assert (chunk_len, columns in (16, 32, 64)) == (16, True)
        assert (num_warps in (4, 8), num_stages in (1, 3)) == (True, True)


def test_fast_takes_the_program(monkeypatch):
    """The branch of `fast`, with the tile machine in the place of a GPU."""
    operands = inputs(37, "mild", (2,), dtype=torch.float32)
    truth = fast.delta_rule(*operands)
    ran = []

    def run(where, *operands):
        ran.append(where)
        return delta.delta_rule_of("on_tiles", *operands)

    monkeypatch.setattr(dispatch, "delta_handles", lambda *_: True)
    monkeypatch.setattr(dispatch, "delta_rule_of", run)
    all_close(fast.delta_rule(*operands), truth, 2e-6)
    assert ran == ["on_triton"]


def test_what_asks_for_more_than_values_takes_the_readable_form(monkeypatch):
    monkeypatch.setattr(delta, "triton_handles", lambda V, K: True)
    operands = inputs(5, "mild", (2,), dtype=torch.float32)
    Q, K, V, beta, log_a, H = operands
    seen = []

    def ask(*operands):
        seen.append(delta.delta_handles(*operands))
        return operands[2].sum()

    ask(*operands)
    ask(Q, K, V, beta, None, None)
    assert seen == [True, True]
    seen.clear()
    ask(Q, K, V, beta, log_a[..., None].expand(K.shape), H)
    ask(Q, K, V, beta, log_a, H.clone().requires_grad_())
    torch.func.vmap(ask)(*operands)
    torch.func.grad(lambda V: torch.func.vmap(ask)(Q, K, V, beta, log_a, H).sum())(V)
    with warnings.catch_warnings(action="ignore"):  # PyTorch's own, of what it loads for forward mode
        torch.func.jvp(lambda V: ask(Q, K, V, beta, log_a, H), (V,), (V,))
        with forward_ad.dual_level():
            ask(Q, K, forward_ad.make_dual(V, V), beta, log_a, H)
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        ask(*operands)
    assert seen == [False] * 7
    with torch.no_grad():
        ask(Q, K, V, beta, log_a, H.clone().requires_grad_())
    assert seen[7:] == [True]


@needs_gpu
@pytest.mark.parametrize("case", pairwise(ON_A_GPU), ids=lambda case: "-".join(map(str, case.values())))
def test_pairs_on_a_gpu(case):
    """With one feature all keys are alike, and in bfloat16 what is rounded before T grows with it."""
    tolerance = 2 * torch.finfo(torch.bfloat16).eps if case["dtype"] == torch.bfloat16 else None
    check(delta_rule_triton, build(**case, device="cuda"), tolerance)


@needs_gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("state", [1, 16, 64, 128, 256])
@pytest.mark.parametrize("head_dim", [3, 16, 64, 128, 256])
def test_all_sizes_on_a_gpu(head_dim, state, dtype):
    operands = build(200, "resets", ((2, 2), (2, 1)), state, head_dim, None, True, True, dtype, "cuda")
    check(delta_rule_triton, operands)
    first = delta_rule_triton(*operands)
    assert all(map(torch.equal, first, delta_rule_triton(*operands)))
    assert torch.equal(fast.delta_rule(*operands)[0], first[0])


@needs_gpu
@pytest.mark.parametrize("correlated", [0.05, 0.5])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_keys_that_are_alike_on_a_gpu(dtype, correlated):
    """With strengths of 2, where errors of T are largest: in half precision too it must keep its digits."""
    Q, K, V, beta, log_a, H = inputs(300, "mild", state=64, head_dim=64, strength=2.0)
    K = torch.nn.functional.normalize(correlated * K + torch.ones(64, dtype=torch.float64), dim=-1)
    operands = [x.to(dtype) for x in (Q, K, V, beta, log_a, H)]
    truth, outputs = expected(*operands), delta_rule_triton(*(x.to("cuda") for x in operands))
    same = delta_rule_tiles(*operands) if dtype != torch.bfloat16 else truth
    for actual, exact, emulated in zip(outputs, truth, same, strict=True):
        times = (emulated.double() - exact).norm() / exact.norm() / torch.finfo(dtype).eps
        assert_close(actual, exact, max(10.0, 2 * times.item()) * torch.finfo(dtype).eps)


@needs_gpu
def test_gradients_on_a_gpu_take_the_readable_form():
    operands = [x.to("cuda").requires_grad_() for x in inputs(40, "mild", (2,), dtype=torch.float32)]
    Y, _ = fast.delta_rule(*operands)
    assert all(x.isfinite().all() for x in torch.autograd.grad(Y.sum(), operands))
