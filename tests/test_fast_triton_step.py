"""One step for decoding against the recurrence in float64, and step after step against the whole sequence."""

import pytest
import torch
from oracles_ssd import INF, expected, inputs
from triton_marks import needs_gpu, needs_triton

from smalearn.fast.triton import launch, ssd_step_triton_, step
from smalearn.testing import assert_close


def on_tiles(*operands):
    return step._step("on_tiles", launch.on_tiles, *operands)


FORMS = [on_tiles, pytest.param(ssd_step_triton_, marks=needs_triton)]


def one_token(leading=(2, 4), shared=None, dtype=torch.float32, state=20, head_dim=40, kind="mild"):
    X, log_a, B, C, H = inputs(1, kind, leading, shared, dtype, state, head_dim)
    return X[..., 0, :], log_a[..., 0].float(), B[..., 0, :], C[..., 0, :], H.float()


def check(form, operands, tolerance=1e-6, device="cpu"):
    x, log_a, B, C, state = operands
    Y, H = expected(x[..., None, :], log_a[..., None], B[..., None, :], C[..., None, :], state)
    *token, state = (z.to(device, copy=True) for z in operands)
    y, state = form(*token, state).cpu(), state.cpu()
    assert y.dtype == x.dtype
    assert_close(y, Y[..., 0, :], tolerance)
    assert_close(state, H, 1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("leading", "shared"),
    [
        ((), ()),
        ((3,), ()),
        ((2, 4), (2, 1)),
        ((2, 2, 3), (2, 1, 3)),
        ((2, 2, 3), (2, 2, 1)),
        ((2, 2, 3, 2), (2, 1, 3, 2)),
    ],
)
def test_leading_axes_and_groups(form, leading, shared, dtype):
    check(form, one_token(leading, shared, dtype), 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps / 2)


def test_only_axes_that_lie_apart_are_copied():
    layouts = [
        step._layout("copied", tuple(map(step._kind, one_token(leading, shared))))
        for leading, shared in (((2, 4), (2, 1)), ((2, 2, 3), (2, 1, 3)), ((2, 2, 3, 2), (2, 1, 3, 2)))
    ]
    assert [layout is None for layout in layouts] == [False, False, True]


@pytest.mark.parametrize(("state", "head_dim"), [(1, 1), (16, 16), (256, 17), (3, 256)])
def test_sizes(state, head_dim):
    check(on_tiles, one_token(state=state, head_dim=head_dim))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("state", "head_dim"), [(1, 1), (128, 64), (256, 256)])
def test_on_a_gpu(state, head_dim, dtype):
    operands = one_token((2, 2, 3), (2, 1, 3), dtype, state, head_dim)
    check(ssd_step_triton_, operands, 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps / 2, "cuda")


@pytest.mark.parametrize("decay", [0.0, -1e4, -INF])
def test_extreme_decays(decay):
    x, log_a, B, C, state = one_token()
    check(on_tiles, (x, torch.full_like(log_a, decay), B, C, state))


def test_a_state_in_half_precision_stays_so():
    x, log_a, B, C, state = one_token(dtype=torch.float16)
    state = state.half()
    truth = state.clone().float()
    on_tiles(x, log_a, B, C, truth)
    on_tiles(x, log_a, B, C, state)
    assert torch.equal(state, truth.half())
