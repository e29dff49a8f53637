"""What the entry points of GPU programs refuse before any launch, each by its own name, and where programs can run."""

from types import SimpleNamespace

import pytest
import torch
from oracles_delta import inputs

from smalearn.fast import tile
from smalearn.fast.triton import (
    checks,
    delta_rule_tiles,
    delta_rule_triton,
    launch,
    mamba2,
    mamba2_ssd,
    ssd_step_triton_,
    ssd_tiles,
    ssd_triton,
    step,
)
from smalearn.fast.triton.multilevel import multilevel_forward, multilevel_handles


def take_step(X, B):
    state = torch.zeros(*X.shape[:-2], X.shape[-1], B.shape[-1])
    return ssd_step_triton_(X[..., 0, :], torch.zeros(X.shape[:-2]), B[..., 0, :], B[..., 0, :], state)


def layer(X, B):
    on_a_gpu = (SimpleNamespace(device=torch.device("cuda"), dtype=x.dtype, shape=x.shape) for x in (X, B))
    return mamba2._runner(*on_a_gpu)


# function -> the name of its argument X, and a call with X (T, P) and B (T, N)
TILES = {
    "ssd_tiles": ("X", lambda X, B: ssd_tiles(X, torch.zeros(5), B, B)),
    "delta_rule_tiles": ("V", lambda X, B: delta_rule_tiles(B, B, X, torch.ones(5))),
}
TRITON = {
    "ssd_triton": ("X", lambda X, B: ssd_triton(X, torch.zeros(5), B, B)),
    "delta_rule_triton": ("V", lambda X, B: delta_rule_triton(B, B, X, torch.ones(5))),
    "ssd_step_triton_": ("x", take_step),
    "multilevel_forward": ("V", lambda X, B: multilevel_forward(B, B, X, (B.shape[-1],), (5,))),
}
SIZES = TILES | TRITON | {"mamba2_ssd": ("x", layer)}
X, B = torch.ones(5, 2), torch.ones(5, 3)


@pytest.fixture(autouse=True)
def nothing_is_launched(monkeypatch):
    monkeypatch.setattr(launch, "has_triton", lambda: True)
    monkeypatch.setattr(launch, "interprets", lambda: True)
    monkeypatch.setattr(launch, "on_triton", None)
    monkeypatch.setattr(tile, "launch", None)


@pytest.mark.parametrize("name", SIZES)
def test_dtypes_and_sizes(name):
    argument, call = SIZES[name]
    for x, b, said in (
        (X.double(), B.double(), f"{argument} is torch.float64, expected torch.float32, torch.float16 or"),
        (torch.ones(5, 257), B, "axis 'p' is 257, expected 1 to 256"),
        (X[:, :0], B, "axis 'p' is 0, expected 1 to 256"),
        (X, torch.ones(5, 300), "axis 'n' is 300, expected 1 to 256"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {said}"):
            call(x, b)


@pytest.mark.parametrize("name", TRITON)
def test_where_triton_runs_nothing(name, monkeypatch):
    call = TRITON[name][1]
    with pytest.raises(ValueError, match=f"^{name}: Triton's interpreter is wrong in bfloat16: use float32 or"):
        call(X.bfloat16(), B.bfloat16())
    monkeypatch.setattr(launch, "interprets", lambda: False)
    with pytest.raises(RuntimeError, match=f"^{name}: the tensors are on cpu, expected on a GPU, unless Triton interp"):
        call(X, B)
    monkeypatch.setattr(launch, "has_triton", lambda: False)
    instead = {
        "delta_rule_triton": "delta_rule_tiles runs such",
        "multilevel_forward": "fast.multilevel_attention does",
    }
    instead = instead.get(name, "ssd_tiles runs such programs to learn from, ssd_cpu is")
    with pytest.raises(RuntimeError, match=f"^{name}: Triton is missing, .*: {instead}"):
        call(X, B)


@pytest.mark.parametrize("name", TILES)
def test_the_emulator_has_no_bfloat16(name):
    argument, call = TILES[name]
    message = f"^{name}: {argument} is torch.bfloat16 on cpu, expected torch.float32 or torch.float16"
    with pytest.raises(ValueError, match=message):
        call(X.bfloat16(), B.bfloat16())


@pytest.mark.parametrize("name", [*TILES, "ssd_step_triton_"])
def test_too_large_a_grid(name, monkeypatch):
    monkeypatch.setattr(checks, "MOST", 3)
    step._layout.cache_clear()
    for batch, heads in ((2, 4), (4, 2)):
        message = f"^{name}: batch is {batch} and heads are {heads}, expected at most 3: split the batch"
        with pytest.raises(ValueError, match=message):
            SIZES[name][1](torch.ones(batch, heads, 5, 2), torch.ones(batch, heads, 5, 3))


def test_more_sequences_than_a_grid_holds(monkeypatch):
    monkeypatch.setattr(checks, "MOST", 5)
    monkeypatch.setattr(mamba2, "_runner", lambda x, B: "on_tiles")
    x, B, heads = torch.ones(2, 23, 4, 5), torch.ones(2, 23, 1, 3), torch.ones(4)
    with pytest.raises(ValueError, match="mamba2_ssd: sequences are 6 and heads are 4, expected at most 5: split the"):
        mamba2_ssd(x, x[..., 0], -heads, B, B, cu_seqlens=[0, 1, 2, 23])


@pytest.mark.parametrize("form", [delta_rule_tiles, delta_rule_triton])
def test_a_gate_per_key_feature(form):
    Q, K, V, beta, log_a, _ = inputs(5, dtype=torch.float32)
    message = r"log_a has shape \(5, 4\), a gate per key feature, expected one decay .*: delta_rule_chunked takes"
    with pytest.raises(ValueError, match=f"^{form.__name__}: {message}"):
        form(Q, K, V, beta, log_a[:, None].expand(5, 4))


@pytest.mark.parametrize("assembler", [(12, 8), (12, 9), (13, 0)])
@pytest.mark.parametrize("triton", [True, False])
def test_what_multi_level_attention_handles(assembler, triton, monkeypatch):
    monkeypatch.setattr(launch, "assembler", lambda: assembler)
    monkeypatch.setattr(launch, "has_triton", lambda: triton)

    def like(device, dtype=torch.float32, size=64):
        return SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(5, size))

    assert multilevel_handles(like("cuda"), like("cuda")) == triton
    for dtype in (torch.float16, torch.bfloat16):
        handled = multilevel_handles(like("cuda", dtype), like("cuda", dtype))
        assert handled == (triton and assembler > (12, 8))
    assert not multilevel_handles(like("cpu"), like("cpu"))
    assert not multilevel_handles(like("cuda", torch.float64), like("cuda", torch.float64))
    assert not multilevel_handles(like("cuda", size=257), like("cuda"))
    assert not multilevel_handles(like("cuda"), like("cuda", size=0))
