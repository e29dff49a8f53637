"""Numbers are learnt as tokens are; a test is measured by the trained loss; a parameter may have its own rate."""

import math

import pytest
import torch
from torch import nn

from smalearn.data import mqar
from smalearn.train import LOSSES, Plan, Record, accuracy, mean_loss, train


class Line(nn.Module):
    """A linear map of the last axis, its bias as a parameter of its own."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(2, 3, generator=generator))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x @ self.weight.T + self.bias


def draw(step, examples=16):
    x = torch.randn(examples, 3, generator=torch.Generator().manual_seed(step))
    return x, x @ torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]).T + 0.25


PLAN = Plan(steps=200, lr=0.05, weight_decay=0.0, every=50, loss="absolute error")


def test_a_model_of_numbers_learns_and_its_test_is_the_error():
    test = draw(10**6, 600)
    model, record = train(Line(), draw, PLAN, test)
    assert list(record.test_losses) == [50, 100, 150, 200]
    assert not record.accuracies
    assert math.isnan(record.accuracy)
    assert record.test_losses[200] < 0.05 < record.losses[0]
    expected = (model(test[0]) - test[1]).abs().mean().item()
    assert record.test_losses[200] == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(model.weight, torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]), atol=0.05)


def test_every_question_of_a_test_has_the_same_weight():
    """Batches with few questions, and with none, against the sum over all."""

    class Says(nn.Module):
        def forward(self, inputs):
            assert not self.training
            return nn.functional.one_hot(inputs, 5).float()

    inputs = torch.tensor([[1, 2, 3], [4, 0, 0], [1, 1, 1]])
    targets = torch.tensor([[1, 3, 3], [4, -100, -100], [-100, -100, -100]])
    model, logits = Says(), nn.functional.one_hot(inputs, 5).float()
    questions = [(b, t) for b in range(3) for t in range(3) if targets[b, t] >= 0]
    expected = -sum(logits[b, t].log_softmax(-1)[targets[b, t]].item() for b, t in questions) / len(questions)
    right = sum(inputs[b, t].item() == targets[b, t].item() for b, t in questions) / len(questions)
    for batch in (1, 2, 256):
        assert mean_loss(model, inputs, targets, batch=batch) == pytest.approx(expected, rel=1e-6)
        assert accuracy(model, inputs, targets, batch) == right == 3 / 4
    assert model.training
    for measured in (mean_loss, accuracy):
        assert math.isnan(measured(model, inputs, torch.full_like(targets, -100)))
    assert math.isnan(Record().accuracy)
    x, y = draw(0, 7)
    line = Line()
    for batch in (2, 256):
        assert mean_loss(line, x, y, "absolute error", batch) == pytest.approx((line(x) - y).abs().mean().item())


def test_tokens_have_a_loss_and_an_accuracy():
    model = nn.Embedding(12, 12)
    _, record = train(model, lambda step: mqar(4, 16, 2, 12, seed=step), Plan(steps=3), mqar(4, 16, 2, 12, seed=-1))
    assert list(record.test_losses) == list(record.accuracies) == [3]
    assert record.test_losses[3] == pytest.approx(mean_loss(model, *mqar(4, 16, 2, 12, seed=-1)))


def test_a_parameter_may_have_its_own_rate():
    """The first step of AdamW moves every entry by the rate, whatever the gradient."""
    model = Line()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, draw, Plan(steps=1, lr=0.01, weight_decay=0, loss="absolute error", scales={"weight": 0.25}))
    for name, rate in (("weight", 0.0025), ("bias", 0.01)):
        moved = (model.get_parameter(name) - before[name]).abs()
        assert torch.allclose(moved, torch.full_like(moved, rate), rtol=1e-3)


def test_a_loss_has_a_name():
    assert set(LOSSES) == {"cross-entropy", "absolute error", "squared error"}
    with pytest.raises(ValueError, match=r"Plan: loss must be one of cross-entropy, .*, got 'squares'"):
        Plan(steps=1, loss="squares")
