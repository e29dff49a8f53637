"""The claims of chapter 07 on what a state remembers and what it costs: recorded experiments, and small ones live."""

import math
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from cells import shown
from seeds import apart, asked, stored
from torch.nn.functional import softplus

from benchmarks.training import samples
from experiments import charlm
from experiments.recall import FULL, Setting, build, run
from smalearn.course.ch07 import recall_questions
from smalearn.course.ch07.constant_decay import ConstantDecay
from smalearn.course.results import UNDECIDED, interval, reported
from smalearn.course.timing import one_thread, quartiles, slope
from smalearn.data import Vocabulary, load_text, recorded, recorded_cpus
from smalearn.linear_attention import linear_attention_parallel
from smalearn.models import Block, Mamba1, Mamba2, SequenceModel
from smalearn.ssd import ssd_recurrent
from smalearn.ssm import ssm_recurrent
from smalearn.testing import assert_close, random_tensors


def accuracies():
    """For (pairs, mixer, N) the accuracies of all reported seeds, after a look at every run."""
    result, found = recorded("recall"), {}
    assert result["settings"] == stored(FULL)
    for one in result["runs"].values():
        right = one["accuracy"] * FULL[f"{one['pairs']} pairs"].tests * one["pairs"]
        assert right == pytest.approx(round(right), abs=1e-6)  # of so many questions, a number of right answers
        assert one["accuracy"] == one["accuracies"]["1200"] <= 1
    for seeds in reported(result["runs"]).values():
        assert len(seeds) == 5
        found[tuple(seeds[0][part] for part in ("pairs", "mixer", "state"))] = [one["accuracy"] for one in seeds]
    wanted = {(s.pairs, mixer, N) for s in FULL.values() for mixer, states in s.states.items() for N in states}
    assert found.keys() == wanted
    return found


recall = partial(asked, "recall", recall_questions, "accuracy")


@pytest.mark.claim("004:larger-states", "smalearn.models.mamba1.Mamba1.state_shape")
@pytest.mark.claim("004:larger-states", "smalearn.models.mamba2.Mamba2.state_shape")
def test_sixteen_times_the_state():
    small, large = Mamba1(64).state_shape(), Mamba2(64, state=256).state_shape()
    assert small == (128, 16)  # the usual N of Mamba, for 2·64 channels
    assert large == (1, 2, 64, 256)
    assert math.prod(large) == 16 * math.prod(small)


@pytest.mark.claim("004:larger-states", "smalearn.data.included.recorded")
@pytest.mark.parametrize("cpu", recorded_cpus("training"))
def test_ssd_pays_less_for_a_larger_state_than_the_scan(cpu):
    part = recorded("training", cpu)["growth"]
    assert (part["states"][0], part["states"][-1]) == (16, 256)
    for name, times in samples(part).items():
        found = [slope([16, 32, 64, 128, 256], one) for one in zip(*times, strict=True)]
        assert part["slopes"][name] == pytest.approx(found, rel=1e-9)
    ssd, scan = (quartiles(part["slopes"][name]) for name in ("SSD", "selective scan"))
    assert apart(ssd, scan)


@pytest.mark.claim("004:filler", "smalearn.course.ch07.constant_decay.ConstantDecay._operands")
def test_the_rival_writes_alike_and_forgets_blindly():
    torch.manual_seed(0)
    blind = ConstantDecay(8, state=3, head_dim=4, groups=2).double().requires_grad_(False)
    free = Mamba2(8, state=3, head_dim=4, groups=2).double()
    free.load_state_dict(blind.state_dict())
    (x,) = random_tensors([(2, 11, 8)])
    (X, log_a, B, C), (other_X, other, other_B, other_C) = blind.operands(x), free.operands(x)
    for found, same in ((X, other_X), (B, other_B), (C, other_C)):
        assert_close(found, same.detach())
    rates = -blind.A_log.exp() * softplus(blind.dt_bias)
    assert_close(log_a, rates.view(2, 2, 1).expand(2, 2, 2, 11))
    assert other.std(-1).min() > 0.01


@pytest.mark.claim("004:filler", "smalearn.models.mamba2.Mamba2.operands")
@pytest.mark.full
def test_silence_is_skipped_by_decays_that_depend_on_the_token():
    space = {"one_thread": one_thread, "softplus": softplus}
    space |= {"Block": Block, "Mamba2": Mamba2, "SequenceModel": SequenceModel}
    space = shown("07", "filler-task", "filler-train", "filler-dial", **space)
    text, target = space["silences"](3, 5)
    for row, wanted in zip(text.tolist(), target.tolist(), strict=True):
        last = None
        for word, right in zip(row, wanted, strict=True):
            last = word or last
            assert right == (-100 if word else last)
    assert space["scores"]["Mamba2"] > 0.99
    assert space["scores"]["ConstantDecay"] < 0.8
    block = space["talker"].blocks[0]
    seen = block.norm(space["talker"].embedding(torch.arange(5))) @ block.mixer.in_proj.weight.T
    lengths = softplus(seen[:, -block.mixer.widths[2] :] + block.mixer.dt_bias).T.detach()
    assert_close(space["lengths"], lengths)  # the convolution has one tap, and dt does not go through it
    assert lengths[:, 1:].mean() > 10 * lengths[:, 0].mean()
    assert ((space["kept"][:, 0] > 0.9) & (space["kept"][:, 1:] < 0.1).all(-1)).any()


@pytest.mark.claim("004:expressivity", "smalearn.ssm.recurrent.ssm_recurrent")
@pytest.mark.claim("004:expressivity", "smalearn.linear_attention.parallel.linear_attention_parallel")
@pytest.mark.claim("004:expressivity", "smalearn.ssd.ssd_recurrent")
def test_free_queries_and_keys_absorb_any_decay():
    X, z, B, C = random_tensors([(12, 2), (12, 3), (12, 3), (12, 3)])
    A = z.sigmoid()
    Y, _ = ssm_recurrent(X, A, B, C)
    grown = A.cumprod(0)
    assert_close(linear_attention_parallel(C * grown, B / grown, X), Y, 1e-14)
    log_a = -0.3 * torch.ones(12, dtype=X.dtype)  # and so does any one decay, with what is left absorbed
    left = grown / log_a.cumsum(0).exp()[:, None]
    assert_close(ssd_recurrent(X, log_a, B / left, C * left)[0], Y, 1e-13)
    long = A.repeat(200, 1).cumprod(0)
    assert long[-1].max() == 0
    assert not (1 / long).isfinite().all()


@pytest.mark.claim("004:expressivity", "smalearn.data.included.recorded")
def test_training_does_not_decide_what_tied_decays_cost():
    found = recall("8 pairs, Mamba-2, untied decay, N = 4", "8 pairs, Mamba-2, N = 4")
    assert found.sentence == UNDECIDED
    assert found.mean == pytest.approx(0.194, abs=1e-3)


@pytest.mark.claim("004:expressivity", "smalearn.ssd.ssd_recurrent")
def test_constant_queries_and_keys_do_not():
    """What one input makes of all later outputs: a sum of two exponentials, which one decay cannot have."""
    steps = torch.arange(30, dtype=torch.float64)
    wanted = 0.95**steps + 0.3**steps
    X, one = torch.zeros(30, 1, dtype=torch.float64), torch.ones(30, 1, dtype=torch.float64)
    X[0] = 1
    rates = torch.cat([torch.linspace(0.01, 0.999, 990, dtype=X.dtype), X.new_tensor([0.95, 0.3])])
    heads = ssd_recurrent(X, rates.log()[:, None].expand(-1, 30), one, one)[0][..., 0]
    assert_close(heads[-2] + heads[-1], wanted)
    scale = (heads @ wanted) / heads.square().sum(-1)
    missed = (scale[:, None] * heads - wanted).norm(dim=-1) / wanted.norm()
    assert missed.min().item() == pytest.approx(0.215, abs=1e-3)


@pytest.mark.claim("004:fig-mqar", "smalearn.data.included.recorded")
def test_recall_rises_with_the_state():
    found = accuracies()
    more = recall("8 pairs, Mamba-2, N = 16", "8 pairs, Mamba-2, N = 4")
    assert more.sentence == more.question.more
    assert max(found[8, "Mamba-2", 2]) < min(found[8, "Mamba-2", 16])
    assert max(found[8, "Mamba-1", 4]) < min(found[8, "Mamba-2", 16])
    for one in recorded("recall")["runs"].values():
        if one["mixer"] == "Mamba-1":  # at any rate, after these 1200 steps
            assert one["accuracy"] < 1.6 / one["pairs"]
    assert recall("16 pairs, Mamba-2, N = 32", "16 pairs, Mamba-2, N = 4").sentence == UNDECIDED
    for pairs in (8, 16):
        assert min(found[pairs, "attention", 0]) > 0.99
    least, middle, most = (found[16, "linear attention", state] for state in (1, 2, 4))
    assert max(least) < min(middle)
    assert max(middle) < min(most)


@pytest.mark.claim("004:fig-mqar", "experiments.recall.run")
@pytest.mark.claim("004:fig-mqar", "smalearn.data.recall.mqar")
@pytest.mark.full
def test_a_small_recall_live():
    setting = Setting(pairs=4, states={}, length=16, vocabulary=16, steps=300, dim=32, tests=256)
    with one_thread():
        found = {state: run("Mamba-2", state, 1e-2, asdict(setting), 1) for state in (1, 16)}
    assert {state: one["entries"] for state, one in found.items()} == {1: 64, 16: 1024}
    assert found[1]["accuracy"] < 0.6
    assert 0.85 < found[16]["accuracy"] <= 1


@pytest.mark.claim("004:mqar-controlled", "smalearn.models.mamba1.Mamba1.state_shape")
@pytest.mark.claim("004:mqar-controlled", "smalearn.models.mamba2.Mamba2.state_shape")
def test_the_states_are_equally_large():
    for name, setting in FULL.items():
        for mixer, states in setting.states.items():
            if mixer == "attention":
                continue
            for state in states:
                shapes = [block.mixer.state_shape() for block in build(mixer, state, setting, 0).blocks]
                assert [math.prod(shape) for shape in shapes] == [64 * state] * 2, (name, mixer)


@pytest.mark.claim("004:mqar-controlled", "smalearn.data.included.recorded")
def test_no_part_is_decided_at_equal_state():
    found, whole = accuracies(), "8 pairs, Mamba-2, N = 4"
    assert {one["entries"] for one in recorded("recall")["runs"].values() if one["state"] == 4} == {2 * 64 * 4}
    for part in ("no decay", "no norm", "in sequence", "P = 1"):
        assert recall(f"8 pairs, Mamba-2, {part}, N = 4", whole).sentence == UNDECIDED
    against = recall("8 pairs, Mamba-1, N = 4", whole)
    assert against.sentence == UNDECIDED
    assert sum(accuracy > 0.5 for accuracy in found[8, "Mamba-2", 4]) == 3
    normed = recall("8 pairs, Mamba-1, norm, N = 4", "8 pairs, Mamba-1, N = 4")
    assert normed.sentence == normed.question.same
    assert max(found[8, "Mamba-2, in sequence", 4]) < 1.6 / 8


@pytest.mark.claim("004:fig-pile", "experiments.charlm.run")
def test_a_small_character_model_of_either_kind():
    setting, found = charlm.FULL["equal parameters"], {}
    for name, seeds in reported(recorded("charlm")["runs"]).items():
        if name.startswith("equal parameters, "):
            assert len(seeds) == setting.seeds - 1 >= 3
            found[seeds[0]["mixer"]] = seeds
    ends = {mixer: [one["loss"] for one in seeds] for mixer, seeds in found.items()}
    assert max(ends["full, convolution"]) < min(ends["full"])
    lead = [one - other for one, other in zip(ends["full, convolution"], ends["Mamba-2"], strict=True)]
    assert interval(lead)[0] > 0
    for mixer in ("full, convolution", "Mamba-2"):
        assert found[mixer][0]["parameters"] == pytest.approx(found["full"][0]["parameters"], rel=0.01)
    toy = replace(setting, data="python topics", length=16, dim=16, heads=2, mlp=32, steps=20, batch=4, tests=4)
    vocabulary = len(Vocabulary(load_text(toy.data).text))
    for mixer in ("full", "Mamba-2"):
        one = charlm.run(mixer, 1e-2, asdict(toy), seed=0)
        assert one["parameters"] == sum(p.numel() for p in charlm.build(mixer, toy, vocabulary, 0).parameters())
        assert one["losses"][-1] < one["losses"][0] < math.log(vocabulary) + 1
