"""What a NaN in one token reaches of a mixer's outputs; that of functions is in `test_conformance`."""

import math

import pytest
import torch
from registry_functions import everything, exact, inside

from smalearn.models import (
    RWKV7,
    GatedDeltaNet,
    GatedDeltaNet2,
    Hydra,
    LinearAttention,
    LogLinearMamba2,
    Mamba1,
    Mamba2,
    Mamba3,
    MultiLevelAttention,
    ShortConvolution,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.models.mixer import Mixer
from smalearn.testing import assert_close, random_tensors

T = 300

# mixer -> first output that a NaN at t may reach; None where a decay of NaN is an error
MIXERS = {
    "Mamba2": (lambda: Mamba2(8, state=4, head_dim=4), None),
    "LogLinearMamba2": (lambda: LogLinearMamba2(8, 512, state=4, head_dim=4), None),
    "Mamba3": (lambda: Mamba3(8, state=4, head_dim=4, rank=2), None),
    "Mamba1": (lambda: Mamba1(8, state=4), None),
    "LinearAttention": (lambda: LinearAttention(8, state=4, head_dim=4), inside(32)),
    "GatedDeltaNet": (lambda: GatedDeltaNet(8, state=4, head_dim=4), None),
    "GatedDeltaNet2": (lambda: GatedDeltaNet2(8, state=4, head_dim=4), None),
    "RWKV7": (lambda: RWKV7(8, head_dim=4, rank=2), None),
    "Hydra": (lambda: Hydra(8, state=4, head_dim=4), None),
    "ShortConvolution": (lambda: ShortConvolution(8), exact),
    "SoftmaxAttention": (lambda: SoftmaxAttention(8, 2), everything),
    "MultiLevelAttention": (lambda: MultiLevelAttention(8, 2, (2, 1, 1), 512), inside(64)),
    "WindowAttention": (lambda: WindowAttention(8, 2, 20), inside(20)),
}


@pytest.mark.parametrize("name", MIXERS)
def test_outputs_of_a_mixer_before_a_nan(name):
    make, first = MIXERS[name]
    torch.manual_seed(0)
    mixer = make().double()
    (x,) = random_tensors([(T, 8)], seed=3)
    expected = mixer(x).detach()
    assert "NaN in a token" in " ".join(Mixer.__doc__.split())
    for t in (150, 170):
        poisoned = x.clone()
        poisoned[t, 0] = math.nan
        if first is None:
            with pytest.raises(ValueError, match=rf"{name}\.forward: x must have no NaN, .*; got one at \[{t}, 0\]"):
                mixer(poisoned)
            if name == "Hydra":  # no step: it sees what follows
                continue
            with pytest.raises(ValueError, match=rf"{name}\.step: x must have no NaN, .*; got one at \[1, 0\]"):
                mixer.step(torch.stack([x[t], poisoned[t]]), mixer.start(2))
            continue
        Y = mixer(poisoned)
        assert_close(Y[: first(t)], expected[: first(t)])
        assert Y[t].isnan().any()
