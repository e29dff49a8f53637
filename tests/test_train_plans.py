"""What a plan takes, what its weight decay reaches in every mixer, what stops a run before its weights are spoiled."""

import fractions

import numpy as np
import pytest
import torch
from registry_models import MIXERS
from torch import nn

from smalearn import train as module
from smalearn.models import Block, Hydra, SequenceModel
from smalearn.train import Plan, train


class Scale(nn.Module):
    """Numbers in, as many out, of any dtype of inputs."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=dtype))

    def forward(self, x):
        x = x.real if x.is_complex() else x
        return x.to(self.weight.dtype) * self.weight


def task(inputs, targets=torch.float32):
    def draw(step):
        x = torch.arange(6).reshape(2, 3) + step
        return x.to(inputs).conj(), x.to(targets)  # of complex numbers a view

    return draw


@pytest.mark.parametrize(
    "values",
    [
        {"lr": np.logspace(-4, -2, 3)[1]},
        {"lr": np.float32(0.25), "clip": np.float16(0.5), "warmup": np.float64(0.5), "weight_decay": np.int8(0)},
        {"steps": np.int64(4), "every": np.uint8(2)},
        {"lr": fractions.Fraction(1, 8), "scales": {np.str_("weight"): np.float32(0.5)}},
        {"loss": np.str_("absolute error")},
    ],
)
def test_a_plan_of_numpy_numbers_is_resumed(values, tmp_path):
    plan = Plan(**({"steps": 4, "every": 2, "loss": "squared error"} | values))
    assert {type(x) for x in vars(plan).values()} == {int, float, str, dict}

    def stopped(step):
        if step == 3:
            raise KeyboardInterrupt
        return task(torch.float32)(step)

    path = tmp_path / "run.pt"
    train(Scale(), stopped, plan, checkpoint=path)
    _, record = train(Scale(), task(torch.float32), plan, checkpoint=path)
    assert record.losses == train(Scale(), task(torch.float32), plan)[1].losses


def test_what_is_no_number_is_refused():
    for values, message in (
        ({"lr": "0.1"}, "Plan: lr "),
        ({"scales": {"weight": torch.ones(())}}, r"Plan: scales\['weight'\] "),
    ):
        with pytest.raises(TypeError, match=message):
            Plan(steps=1, **values)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool, torch.complex64, torch.float64]
)
def test_a_batch_of_any_dtype_has_a_checkpoint(dtype, tmp_path):
    path, plan = tmp_path / "run.pt", Plan(steps=3, every=1, loss="squared error")
    _, record = train(Scale(), task(dtype), plan, task(dtype)(9), path)
    assert list(record.test_losses) == [1, 2, 3]
    assert train(Scale(), task(dtype), plan, checkpoint=path)[1].losses == record.losses
    with pytest.raises(ValueError, match="is of another task"):
        train(Scale(), lambda step: task(dtype)(step - 1), plan, checkpoint=path)


def test_whole_numbers_have_an_error_and_no_accuracy():
    draw = task(torch.float32, torch.int64)
    x, y = draw(0)
    y[0, 0] = -100  # a number as any other
    _, record = train(Scale(), draw, Plan(steps=1, loss="absolute error", lr=1e-9), (x, y))
    assert not record.accuracies
    assert record.test_losses[1] == pytest.approx(100 / 6)


@pytest.mark.parametrize("name", [*MIXERS, "hydra"])
def test_weight_decay_is_for_matrices(name):
    """Those of linear layers, convolutions and embeddings: named here one by one, for every mixer."""
    mixer = Hydra(12, state=3, head_dim=4) if name == "hydra" else MIXERS[name][0]()
    model = SequenceModel(7, [Block(mixer, mlp=5)], positions=9)
    groups = module._Run(model, Plan(steps=1, weight_decay=0.25)).optimizer.param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] == 0.25 for p in group["params"]}
    kept = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    names = {key for key, p in model.named_parameters() if id(p) in decayed}
    layers = {"in_proj", "conv", "x_proj", "dt_proj", "level_proj", "gate_proj", "decay_proj", "out_proj"}
    layers |= {f"{name}_proj" for name in ("R", "K", "V", "w", "a", "g", "w_low", "a_low", "g_low")}
    layers &= set(dict(mixer.named_children()))
    expected = {f"blocks.0.mixer.{layer}.weight" for layer in layers}
    assert names == expected | {"embedding.weight", "positions.weight", "head.weight"} | {
        f"blocks.0.mlp.{k}.weight" for k in (1, 3)
    }
    assert len(decayed) + len(kept) == len(list(model.parameters()))


def test_weight_decay_of_other_modules():
    model = nn.ModuleDict({"norm": nn.LayerNorm((2, 3)), "linear": nn.Linear(3, 3)})
    model.table, model.steps_bias, model.A_log = (nn.Parameter(torch.ones(2, 3)) for _ in range(3))
    groups = module._Run(model, Plan(steps=1)).optimizer.param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert {key for key, p in model.named_parameters() if id(p) in decayed} == {"table", "linear.weight"}


class Root(Scale):
    """Its gradient is infinite where the input is 0."""

    def forward(self, x):
        return (self.weight * x).sqrt()


@pytest.mark.parametrize(
    ("model", "value", "message"),
    [
        (Scale, float("nan"), "train: the loss is nan at step 2: look at its batch"),
        (Scale, float("inf"), "train: the loss is inf at step 2"),
        (Root, 0.0, "train: the norm of the gradient is (nan|inf) at step 2"),
    ],
)
def test_what_is_not_finite_stops_before_the_weights_are_spoiled(model, value, message, tmp_path):
    def draw(step):
        return torch.full((2, 3), value if step == 2 else 1.0), torch.zeros(2, 3)

    model, path = model(), tmp_path / "run.pt"
    with pytest.raises(ValueError, match=f"^{message}"):
        train(model, draw, Plan(steps=5, every=1, loss="squared error"), checkpoint=path)
    assert model.weight.isfinite().all()
    assert len(torch.load(path)["losses"]) == 2
