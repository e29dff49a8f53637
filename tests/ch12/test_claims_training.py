"""The claims of chapter 12 on the time of training: what was recorded, and that what was timed is the same function."""

from dataclasses import replace

import pytest
import torch
from registry_models import read_on
from seeds import apart

from benchmarks.problem import Problem as SSDProblem
from benchmarks.training import MODELS, ROUTES, samples
from smalearn.course.timing import quartiles
from smalearn.data import recorded, recorded_cpus
from smalearn.models import SequenceModel
from smalearn.testing import assert_close


@pytest.mark.claim("004:mamba1-slower", "smalearn.data.included.recorded")
@pytest.mark.parametrize("cpu", recorded_cpus("training"))
def test_mamba_trains_slower_than_a_transformer_of_its_size(cpu):
    steps = recorded("training", cpu)["steps"]
    models, dim = steps["contestants"], steps["dim"]
    for name, one in models.items():
        built = 2 * sum(parameter.numel() for block in MODELS[name](dim) for parameter in block.parameters())
        assert one["parameters"] == built
        assert one["tolerated"]
    sizes = [one["parameters"] for one in models.values()]
    assert max(sizes) < 1.01 * min(sizes)
    for name in ("Mamba-1, scan", "Mamba-1, loop"):
        for rival in ("Transformer", "Mamba-2"):
            assert apart(*(quartiles(models[one]["seconds"]) for one in (rival, name)))


@pytest.mark.claim("004:mamba1-slower", "benchmarks.training.FusedAttention.forward")
@pytest.mark.claim("004:mamba1-slower", "benchmarks.training.ScannedMamba1.forward")
@pytest.mark.claim("004:mamba1-slower", "smalearn.models.mamba2.Mamba2.prefill")
@pytest.mark.claim("004:mamba1-slower", "smalearn.models.mamba1.Mamba1.prefill")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_timed_is_the_model_that_decodes(name):
    torch.manual_seed(0)
    model = SequenceModel(8, MODELS[name](16), positions=9).double().requires_grad_(False)
    tokens = torch.arange(18).view(2, 9) % 8
    assert_close(model(tokens), read_on(model, tokens))


@pytest.mark.claim("004:faster-training", "smalearn.data.included.recorded")
@pytest.mark.parametrize("cpu", recorded_cpus("training"))
def test_ssd_trains_faster_with_a_state_sixteen_times_as_large(cpu):
    part = recorded("training", cpu)["growth"]
    assert (part["states"][0], part["states"][-1]) == (16, 256)
    times = samples(part)
    ssd = quartiles(times["SSD"][-1])
    for name in ("selective scan", "selective loop"):
        assert apart(ssd, quartiles(times[name][0]))  # their least state against its largest
        for ours, theirs in zip(times["SSD"], times[name], strict=True):
            assert apart(quartiles(ours), quartiles(theirs))


@pytest.mark.claim("004:faster-training", "smalearn.fast.cpu.ssd.ssd_cpu_unchecked")
@pytest.mark.claim("004:faster-training", "smalearn.ssm.scan.ssm_scan")
@pytest.mark.claim("004:faster-training", "smalearn.linear_attention.recurrent.linear_attention_recurrent")
@pytest.mark.parametrize("name", ROUTES)
def test_all_three_are_one_function_with_one_gradient(name):
    problem = SSDProblem(length=37, heads=2, head_dim=3, backward=True)
    for state in (2, 5):
        arguments, dY = (one := replace(problem, state=state)).inputs()
        leaves = [x.double().requires_grad_() for x in arguments]
        Y = ROUTES[name](*leaves)
        found = [Y, *torch.autograd.grad(Y, leaves, dY.double())]
        for ours, expected in zip(found, one.oracle(), strict=True):
            assert_close(ours, expected)
