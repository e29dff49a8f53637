"""Mamba-2's form of SSD against a loop over tokens in float64."""

import itertools
import math

import pytest
import torch
from test_kernels_gpu import needs_gpu

from smalearn import ShapeError
from smalearn.kernels import mamba2_ssd
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


def check(tensors, tolerance=None, wanted=None, **options):
    found = results(ours, tensors, **options)
    wanted = wanted or results(batches, {name: x.cpu() for name, x in tensors.items()}, **options)
    for actual, expected in zip(found, wanted, strict=True):
        assert_close(actual, expected, tolerance)


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("limit", [(0, math.inf), (0.2, 0.9)])
@pytest.mark.parametrize("without", [[], *([name] for name in OPTIONAL), OPTIONAL])
def test_every_option(without, limit, softplus):
    tensors = {name: x for name, x in operands().items() if name not in without}
    check(tensors, softplus=softplus, limit=limit)


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
    wanted, end = loop(**tensors, softplus=True)
    assert_close(y, wanted)
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

    wanted = results(one_by_one, tensors, softplus=True)
    borders_given = torch.tensor(borders, dtype=torch.int32) if as_tensor else borders
    check(tensors, None, wanted, softplus=True, cu_seqlens=borders_given)


def test_without_tokens():
    tensors = operands(0)
    y, state = mamba2_ssd(**tensors)
    assert y.shape == tensors["x"].shape
    assert_close(state, tensors["initial_state"])
    assert_close(
        mamba2_ssd(**operands(0, sequences=(2,)), cu_seqlens=[0, 0, 0])[1], operands(0, sequences=(2,))["initial_state"]
    )


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype):
    tensors = {name: x.cuda() for name, x in operands(100, dtype=dtype, companion=torch.float32).items()}
    check(tensors, 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps, softplus=True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dt": torch.ones(7, 3)}, ShapeError, "axis 'h' is 4 in x but 3 in dt"),
        ({"B": torch.ones(6, 2, 3)}, ShapeError, "axis 't' is 7 in x but 6 in B"),
        ({"A": -torch.ones(2, 4)}, ShapeError, r"A must have one axis \(H\), got shape \(2, 4\)"),
        ({"D": torch.ones(7, 4)}, ShapeError, r"D must have one axis \(H\), got shape \(7, 4\)"),
        (
            {"B": torch.ones(7, 3, 3), "C": torch.ones(7, 3, 3)},
            ShapeError,
            "axis 'g' of B is 3, which does not divide 4",
        ),
        ({"B": torch.ones(7, 0, 3), "C": torch.ones(7, 0, 3)}, ShapeError, "axis 'g' of B is 0, which does not divide"),
        ({"C": torch.ones(7, 2, 3).double()}, ValueError, "C is torch.float64 but x is torch.float32"),
        ({"z": torch.ones(7, 4, 5).double()}, ValueError, "z is torch.float64, expected torch.float32"),
        ({"z": torch.ones(7, 4, 5, device="meta")}, ValueError, "z is on meta but x is on cpu"),
        ({"D": 1.0}, TypeError, "D must be a torch.Tensor, got float"),
        ({"A": torch.full((4,), 0.5)}, ValueError, "A must be ≤ 0, got 0.5"),
        ({"dt_limit": (-1, 1)}, ValueError, r"dt_limit must be two numbers, 0 ≤ least ≤ greatest, got \(-1, 1\)"),
        ({"dt_limit": (2, 1)}, ValueError, r"dt_limit must be two numbers, 0 ≤ least ≤ greatest, got \(2, 1\)"),
        ({"cu_seqlens": [1, 7]}, ValueError, r"cu_seqlens must be integers that go from 0 to 7, got \[1, 7\]"),
        ({"cu_seqlens": [0, 6]}, ValueError, r"cu_seqlens must be integers that go from 0 to 7, got \[0, 6\]"),
        (
            {"cu_seqlens": [0, 5, 4, 7]},
            ValueError,
            r"cu_seqlens must be integers that go from 0 to 7, got \[0, 5, 4, 7\]",
        ),
        ({"cu_seqlens": [7]}, ValueError, r"cu_seqlens must be integers that go from 0 to 7, got \[7\]"),
        (
            {"cu_seqlens": torch.tensor([0.0, 7.0])},
            ValueError,
            r"cu_seqlens must be integers that go from 0 to 7, got \[0.0, 7.0\]",
        ),
        (
            {"cu_seqlens": [0, 3, 7], "initial_state": torch.ones(3, 4, 5, 3)},
            ShapeError,
            "axis 's' is 3 in initial_state but 2 in cu_seqlens",
        ),
    ],
)
def test_errors(change, error, message):
    good = operands(7, leading=(), dtype=torch.float32) | {"initial_state": None}
    mamba2_ssd(**good)
    with pytest.raises(error, match=f"mamba2_ssd: {message}"):
        mamba2_ssd(**good | change)
