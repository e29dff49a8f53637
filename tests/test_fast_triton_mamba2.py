"""Mamba-2's form of SSD against a loop over tokens in float64."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from comparing import all_close
from counting import moved, written
from triton_marks import needs_gpu, needs_triton

from smalearn import ShapeError
from smalearn.fast import tile
from smalearn.fast.triton import configs, launch, mamba2, mamba2_ssd, plan, programs, ssd
from smalearn.testing import assert_close, random_tensors

NAMES = ["x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_state"]
OPTIONAL = ["D", "z", "dt_bias", "initial_state"]


def operands(length=23, heads=4, groups=2, leading=(2,), sequences=(), dtype=torch.float64, companion=None):
    """All arguments that are tensors, by name."""
    maps, state = (*leading, length, groups, 3), (*leading, *sequences, heads, 5, 3)
    values, steps = (*leading, length, heads, 5), (*leading, length, heads)
    drawn = random_tensors([values, steps, (heads,), maps, maps, (heads,), values, (heads,), state])
    found = dict(zip(NAMES, drawn, strict=True))
    found["A"] = -found["A"].exp()
    return {name: x.to(dtype if name in ("x", "B", "C", "z") else companion or dtype) for name, x in found.items()}


def loop(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial_state=None, softplus=False, limit=(0, math.inf)):
    """One sequence (T, heads, P), token by token, head by head."""
    x, dt, A, B, C = (tensor.double() for tensor in (x, dt, A, B, C))
    ys, ends = [], []
    for h in range(x.shape[1]):
        g = h // (x.shape[1] // B.shape[1])
        H = x.new_zeros(x.shape[2], B.shape[2]) if initial_state is None else initial_state[h].double()
        y = []
        for t in range(len(x)):
            step = dt[t, h] if dt_bias is None else dt[t, h] + dt_bias[h].double()
            step = torch.log1p(step.exp()) if softplus else step
            step = step.clamp(*limit)
            H = (A[h] * step).exp() * H + torch.outer(step * x[t, h], B[t, g])
            out = H @ C[t, g] + (0 if D is None else D[h].double() * x[t, h])
            y.append(out if z is None else out * z[t, h].double() * torch.sigmoid(z[t, h].double()))
        ys.append(torch.stack(y) if y else x[:, h])
        ends.append(H)
    return torch.stack(ys, 1), torch.stack(ends)


def batches(tensors, **options):
    """The loop for each member of a batch."""
    shared = {name: tensors.pop(name) for name in ("A", "D", "dt_bias") if name in tensors}
    members = [dict(zip(tensors, member, strict=True)) for member in zip(*tensors.values(), strict=True)]
    return map(torch.stack, zip(*(loop(**member, **shared, **options) for member in members), strict=True))


def results(function, tensors, **options):
    """Both outputs, and the gradients of all tensors."""
    leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
    outputs = list(function(dict(leaves), **options))
    cotangents = [c.to(y) for c, y in zip(random_tensors([y.shape for y in outputs], seed=3), outputs, strict=True)]
    return outputs + list(torch.autograd.grad(outputs, leaves.values(), cotangents))


def ours(tensors, softplus=False, limit=(0, math.inf), **options):
    return mamba2_ssd(**tensors, dt_softplus=softplus, dt_limit=limit, **options)


def check(tensors, tolerance=None, truth=None, **options):
    all_close(results(ours, tensors, **options), truth or results(batches, tensors, **options), tolerance)


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("limit", [(0, math.inf), (0.2, 0.9)])
@pytest.mark.parametrize("without", [[], *([name] for name in OPTIONAL), OPTIONAL])
def test_every_option(without, limit, softplus, request):
    """In steps, and in one launch as on a GPU."""
    for dtype, tolerance in ((torch.float64, None), (torch.float32, 2e-6)):
        tensors = {name: x for name, x in operands(dtype=dtype).items() if name not in without}
        check(tensors, tolerance, softplus=softplus, limit=limit)
        request.getfixturevalue("launched")


@pytest.mark.parametrize(("length", "heads", "groups"), [(1, 1, 1), (33, 3, 3), (70, 6, 1), (37, 6, 2)])
def test_sizes(length, heads, groups):
    check(operands(length, heads, groups), softplus=True)


def test_half_precision_keeps_decays_and_states_in_float32():
    tensors = operands(50, dtype=torch.float16, companion=torch.float32)
    found = results(ours, tensors, softplus=True)
    assert [x.dtype for x in found] == [torch.float16, torch.float32, *(x.dtype for x in tensors.values())]
    check(tensors, 2e-3, softplus=True)


def test_leading_axes():
    tensors = operands(leading=())
    y, state = mamba2_ssd(**tensors, dt_softplus=True)
    truth, end = loop(**tensors, softplus=True)
    assert_close(y, truth)
    assert_close(state, end)
    tensors |= operands(leading=(2, 3))
    maps = operands(leading=(3,))
    tensors |= {"B": maps["B"], "C": maps["C"]}  # shared along the first axis
    y, state = mamba2_ssd(**tensors)
    assert (y.shape, state.shape) == ((2, 3, 23, 4, 5), (2, 3, 4, 5, 3))
    one = {name: x[1, 2] if x.ndim > 3 and name not in "BC" else x for name, x in tensors.items()}
    one |= {"B": maps["B"][2], "C": maps["C"][2], "dt": tensors["dt"][1, 2]}
    assert_close(y[1, 2], loop(**one)[0])


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("borders", [[0, 23], [0, 1, 9, 23], [0, 0, 9, 9, 23, 23]])
@pytest.mark.parametrize("without", [[], ["initial_state"]])
def test_sequences_end_to_end(borders, without, as_tensor):
    tensors = {name: x for name, x in operands(sequences=(len(borders) - 1,)).items() if name not in without}

    def one_by_one(tensors, softplus):
        ys, ends = [], []
        for index, (start, end) in enumerate(itertools.pairwise(borders)):
            part = {name: x[:, start:end] if name in ["x", "dt", "B", "C", "z"] else x for name, x in tensors.items()}
            part |= {name: x[:, index] for name, x in tensors.items() if name == "initial_state"}
            y, last = batches(part, softplus=softplus)
            ys.append(y)
            ends.append(last)
        return torch.cat(ys, 1), torch.stack(ends, 1)

    truth = results(one_by_one, tensors, softplus=True)
    borders_given = torch.tensor(borders, dtype=torch.int32) if as_tensor else borders
    check(tensors, None, truth, softplus=True, cu_seqlens=borders_given)


# In one launch, as on a GPU


@pytest.fixture
def launched(request, monkeypatch, fresh_memory_is_not_a_number):
    """Programs compute tensors of the CPU too; gives the names of those that `mamba2_ssd` launches.

    Chunks have 16 tokens and tiles 16 columns, whose log decays are summed beforehand.
    """
    monkeypatch.setattr(plan, "config", lambda *_: (configs.Config(16, 16, 4, 1),) * 3)
    monkeypatch.setattr(ssd, "sums_beforehand", lambda device: True)
    where = getattr(request, "param", "on_tiles")
    names, run = [], getattr(launch, where)

    def counted(program, *operands, **constants):
        names.append(program.__name__)
        return run(program, *operands, **constants)

    monkeypatch.setattr(launch, where, counted)
    monkeypatch.setattr(mamba2, "_runner", lambda x, B: where)
    return names


def exact(tensors, borders=None, **options):
    """The layer in float64, which the loop has tested above, in steps that know no programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba2, "_runner", lambda x, B: None)
        return results(ours, {name: x.double() for name, x in tensors.items()}, cu_seqlens=borders, **options)


def check_exact(tensors, borders=None, tolerance=2e-6, **options):
    found = results(ours, tensors, cu_seqlens=borders, **options)
    all_close(found, exact(tensors, borders, **options), tolerance)
    return found


RAGGED = [[0, 40], [0, 16, 40], [0, 1, 9, 40], [0, 0, 17, 17, 33, 40, 40]]


def check_sequences(launched, tensors, borders):
    dtype = tensors["x"].dtype
    tolerance = 2e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    found = check_exact(tensors, borders, tolerance, softplus=True)
    backward = ["ssd_backward_states", "ssd_backward_inputs", "ssd_backward_maps"]
    assert launched == 2 * ["ssd_sums", "ssd_forward"] + ["ssd_sums", *backward]
    assert [x.dtype for x in found] == [dtype, torch.float32, *(x.dtype for x in tensors.values())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("borders", RAGGED, ids=len)
def test_sequences_in_one_launch(borders, dtype, launched):
    tensors = operands(40, sequences=(len(borders) - 1,), dtype=dtype, companion=torch.float32)
    check_sequences(launched, tensors, borders)


@needs_triton
@pytest.mark.parametrize("launched", ["on_triton"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.full
def test_sequences_in_tritons_interpreter(dtype, launched):
    tensors = operands(30, 2, 1, leading=(), sequences=(4,), dtype=dtype, companion=torch.float32)
    check_sequences(launched, tensors, [0, 0, 17, 18, 30])


@pytest.mark.parametrize("each", [2, pytest.param(3, marks=pytest.mark.full), 9])
@pytest.mark.parametrize(
    "borders", [None, RAGGED[0], *(pytest.param(one, marks=pytest.mark.full) for one in RAGGED[1:4])]
)
def test_sequences_in_segments(borders, each, launched, monkeypatch):
    """Few programs: each sequence is cut, and scanned twice; no state passes from one to the next."""
    monkeypatch.setattr(plan, "segments", lambda *_: each)
    sequences = () if borders is None else (len(borders) - 1,)
    check_exact(operands(40, sequences=sequences, dtype=torch.float32), borders, softplus=True)
    assert len(launched) in (8, 14)


def test_the_layer_is_cut_where_it_is_long_enough(launched, monkeypatch):
    monkeypatch.setattr(plan, "segments", lambda *_: 2)
    tensors = operands(40, dtype=torch.float32)
    with torch.no_grad():
        y, _ = mamba2_ssd(**tensors, dt_softplus=True)
    assert launched == ["ssd_sums", "ssd_forward", "ssd_carry", "ssd_forward"]
    assert_close(y, exact(tensors, softplus=True)[0], 2e-6)


def test_without_gradients_only_arguments_and_outputs_move(launched):
    """x, dt and z are read once, y is written once; the layer adds only its numbers for each head."""
    tensors = operands(32, groups=1, leading=(), dtype=torch.float32)
    with torch.no_grad(), tile.recording() as events:
        mamba2_ssd(**tensors, dt_softplus=True)
    bytes = moved(events)
    sizes = {name: x.nbytes for name, x in tensors.items()}
    assert (bytes["x"], bytes["y"]) == (sizes["x"], sizes["x"])
    chunks = 2 * 4 * 4 * 2  # chunks, heads, bytes, of bias and D
    assert bytes["layer"] == sizes["dt"] + sizes["z"] + chunks
    assert bytes["log_a"] == sizes["dt"]  # A, which the program sees once for every token


def test_leading_axes_in_one_launch(launched):
    """B and C shared along the first axis, x too, and more gates than there are outputs."""
    tensors, maps = operands(leading=(2, 3), dtype=torch.float32), operands(leading=(3,), dtype=torch.float32)
    shared = tensors | {"B": maps["B"], "C": maps["C"]}
    more = {name: x if x.ndim == 1 else x[:, :, None] for name, x in tensors.items()}
    for now in (shared, shared | {"x": tensors["x"][:1]}, more | {"z": more["z"].repeat(1, 1, 2, 1, 1, 1)}):
        check_exact(now, softplus=True)


@pytest.mark.full
def test_a_token_a_sequence(launched):
    check_exact(operands(40, sequences=(40,), dtype=torch.float32), list(range(41)))


@pytest.mark.parametrize(("sequences", "borders"), [((), None), ((3,), [0, 0, 0, 0])])
def test_without_tokens(sequences, borders, request):
    for _ in ("in steps", "in one launch"):
        tensors = operands(0, sequences=sequences, dtype=torch.float32)
        y, state = mamba2_ssd(**tensors, cu_seqlens=borders)
        assert y.shape == tensors["x"].shape
        assert torch.equal(state, tensors["initial_state"])
        gradients = results(ours, tensors, softplus=True, cu_seqlens=borders)[2:]
        assert [x.shape for x in gradients] == [x.shape for x in tensors.values()]
        request.getfixturevalue("launched")


def test_two_runs_in_one_launch_give_the_same_bits(launched):
    tensors = operands(40, sequences=(3,), dtype=torch.float32)
    first, second = (results(ours, tensors, softplus=True, cu_seqlens=[0, 3, 30, 40]) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_a_single_gradient(launched):
    tensors = operands(20, dtype=torch.float32)
    tensors["D"].requires_grad_()
    y, state = mamba2_ssd(**tensors)
    (found,) = torch.autograd.grad(y.sum(), tensors["D"], retain_graph=True)
    gate = tensors["z"] * tensors["z"].sigmoid()
    assert_close(found, (tensors["x"] * gate).sum((0, 1, 3)), 2e-6)
    (found,) = torch.autograd.grad(state.sum(), tensors["D"])
    assert not found.any()


@pytest.mark.parametrize("limit", [(0, math.inf), (0.2, 0.9)])
def test_second_derivatives(limit, launched):
    def seconds(tensors):
        """Gradients of the squared gradient of dt."""
        tensors = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        y, _ = mamba2_ssd(**tensors, dt_softplus=True, dt_limit=limit)
        (ddt,) = torch.autograd.grad(y.square().sum(), tensors["dt"], create_graph=True)
        return torch.autograd.grad(ddt.square().sum(), [x for name, x in tensors.items() if name != "initial_state"])

    tensors = operands(20, dtype=torch.float32)
    launched = seconds(tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba2, "_runner", lambda x, B: None)
        expected = seconds({name: x.double() for name, x in tensors.items()})
    all_close(launched, expected, 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_step_sizes_keep_their_digits(dtype):
    """Also where exp(v) is lost beside 1, and where it overflows."""
    given, out = np.linspace(-30, 40, 64).astype(dtype), np.zeros(64)
    layer = ((given, 0, 0, 0, 1, 0), None, None, None)

    def program(layer, out, steps):
        found = programs.step_sizes(layer, (0, 0, 0), tile.arange(0, 64), 64, steps)
        assert found.dtype == np.float32
        tile.store(out + tile.arange(0, 64), found)

    with np.errstate(all="raise", under="ignore"):
        tile.launch(program, (1,), layer, out, (True, 0.0, math.inf))
    truth = np.logaddexp(0, given.astype(np.float64))
    assert np.abs(out / truth - 1).max() < 2e-6


def test_step_sizes_and_gates_that_are_no_numbers_stay_so(launched):
    tensors = operands(20, dtype=torch.float32)
    for name in ("dt", "z"):
        changed = tensors[name].clone()
        changed[0, 5] = math.nan
        y, _ = mamba2_ssd(**tensors | {name: changed}, dt_softplus=True, dt_limit=(0.1, 0.9))
        assert y[0, 5].isnan().all()
        assert not y[1].isnan().any()


def test_every_gradient_is_written_by_one_program_once(launched):
    tensors = operands(40, sequences=(3,), leading=(), dtype=torch.float32)
    with tile.recording() as events:
        results(ours, tensors, softplus=True, cu_seqlens=[0, 17, 17, 40])
    stored = written(event for event in events if event.operand.startswith("d"))
    assert set(stored.values()) == {1}
    sizes = {name: x.numel() for name, x in tensors.items()}
    steps, states = sizes["dt"], 4 * 4 * 5 * 3  # four chunks; the number of a fifth stays free
    truth = {"dx": sizes["x"], "db": sizes["B"], "dc": sizes["C"], "dinitial": sizes["initial_state"]}
    truth |= {"dstates": states, "dlog_a": steps, "ddt": steps, "dskip": steps}
    assert Counter(operand for operand, _ in stored) == truth


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("borders", [None, [0, 100], [0, 1, 1, 64, 100], [0, 3000, 3001, 9000]])
def test_on_a_gpu(borders, dtype):
    """The last one so long that sequences are cut."""
    length, sequences = (100, ()) if borders is None else (borders[-1], (len(borders) - 1,))
    tensors = operands(length, sequences=sequences, dtype=dtype, companion=torch.float32)
    found, again = (
        results(ours, {name: x.cuda() for name, x in tensors.items()}, softplus=True, cu_seqlens=borders)
        for _ in range(2)
    )
    assert all(map(torch.equal, found, again))
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    all_close(found, exact(tensors, borders, softplus=True), tolerance)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"A": -torch.ones(2, 4)}, ShapeError, r"A must have one axis \(H\), got shape \(2, 4\)"),
        ({"D": torch.ones(7, 4)}, ShapeError, r"D must have one axis \(H\), got shape \(7, 4\)"),
        ({"B": torch.ones(7, 3, 3), "C": torch.ones(7, 3, 3)}, ShapeError, "axis 'g' of B is 3, which does not"),
        ({"B": torch.ones(7, 0, 3), "C": torch.ones(7, 0, 3)}, ShapeError, "axis 'g' of B is 0, which does not divide"),
        *(
            ({"dt_limit": limit}, ValueError, "dt_limit must be two numbers, 0 ≤")
            for limit in ((-1, 1), (2, 1), (math.inf, math.inf))
        ),
        *(
            ({"cu_seqlens": borders}, ValueError, "cu_seqlens must be integers that go from 0 to 7, got")
            for borders in ([1, 7], [0, 6], [0, 5, 4, 7], [7], torch.tensor([0.0, 7.0]))
        ),
        ({"A": None}, TypeError, "A must be a"),
        ({"D": torch.ones(4) * 1j}, ValueError, "D must be real, got"),
        ({"cu_seqlens": torch.tensor(7)}, ShapeError, "cu_seqlens needs trailing axes"),
        ({"cu_seqlens": torch.tensor([0, 7], device="meta")}, ValueError, "cu_seqlens must have values"),
    ],
)
def test_errors(change, error, message):
    good = operands(7, leading=(), dtype=torch.float32) | {"initial_state": None}
    mamba2_ssd(**good)
    with pytest.raises(error, match=f"mamba2_ssd: {message}"):
        mamba2_ssd(**good | change)
