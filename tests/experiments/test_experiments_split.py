"""A split sequence: the lengths of the plan are where times meet, its counts are those of an exchange that is carried
out; what the command prints, and the group that it makes or finds.
"""

import math
import re

import pytest
import torch
import torch.distributed as dist
from ranks import STEPS

from experiments import split_sequence
from experiments.split_plan import HEADS, PLACES, RULES, N, P, pays_from
from smalearn.fast import distributed
from smalearn.models import SequenceModel


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_from_there_on_it_pays(name, tree):
    rule, ranks, rate, bandwidth, latency = RULES[name], 64, 1e11, 1e8, 5e-5
    steps, products = (6, 11) if tree else (63, 63)
    tokens = pays_from(rule, tree, ranks, (rate, bandwidth, latency))
    messages = 6 * latency + steps * 4 * HEADS * (P * N + rule.transition) / bandwidth
    work = products * (rule.product + tree * rule.composition) + tokens / ranks * rule.more
    waits = max(messages, tokens / ranks * HEADS * rule.token / rate) if rule.hides else messages
    waits += 0 if rule.hides else tokens / ranks * HEADS * rule.token / rate
    assert waits + HEADS * work / rate == pytest.approx(tokens * HEADS * rule.token / rate)


def test_what_the_docstring_says_is_counted():
    text = " ".join(distributed.__doc__.split())
    _, slow, fast = PLACES.values()
    for place, length, words in ((slow, 37_000, "if 12.5 GB/s"), (fast, 2_300, "at 400 GB/s")):
        assert pays_from(RULES["ssd"], False, 8, place) == pytest.approx(length, rel=0.03)
        assert f"from {length:,} {'tokens ' * (length > 9999)}on {words}" in text
    assert [R for R in range(2, 9) if pays_from(RULES["delta rule"], False, R, fast) is None] == [2, 3]
    token, more = RULES["delta rule"].token, RULES["delta rule"].more
    assert f"does {(token + more) / token:.1f} times the work" in text
    assert math.log2(64) / 63 == pytest.approx(0.1, abs=0.01)  # "a tree moves a tenth"


def test_the_command_prints_the_table(capsys):
    assert split_sequence.main(["--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ssd: a step has as many numbers as the keys and values of 43 tokens" in lines
    assert sum(line.startswith(("    8  tree", " 1024  tree")) for line in lines) == 4
    assert max(map(len, lines)) <= 120
    assert sum(line.count("never") for line in lines) == 6  # the delta rule on two ranks


# The command


def test_command_by_itself(capsys):
    assert split_sequence.main(["--smoke"]) == 0
    assert not dist.is_initialized()
    out, err = capsys.readouterr()
    first, last = re.fullmatch(r"step    1  loss (.*)\nstep    3  loss (.*)\n", err).groups()
    assert out.startswith("a sequence of 10 tokens on 1 rank; into each rank, per step and layer,\n0 bytes")
    assert out.endswith(f"loss {first} at the first step, {last} at the last of 3\n")


def test_the_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        split_sequence.main(["--help"])
    example = "python -m torch.distributed.run --standalone --nproc-per-node 2 -m experiments.split_sequence"
    assert f"\n  {example}\n" in capsys.readouterr().out


def test_a_stopped_command_ends_in_a_sentence(monkeypatch, capsys):
    def interrupted(model, setting):
        yield 1.0
        raise KeyboardInterrupt

    monkeypatch.setattr(split_sequence, "training", interrupted)
    assert split_sequence.main(["--smoke"]) == 130
    assert not dist.is_initialized()
    out, err = capsys.readouterr()
    assert (out, err) == ("", "step    1  loss 1.0000\n\nsplit_sequence: stopped\n")


@pytest.mark.parametrize(
    ("gpus", "has_nccl", "backend", "places"),
    [
        (0, True, "gloo", ["cpu"]),
        (1, True, "gloo", ["cpu"]),
        (2, True, "nccl", [1, "cuda"]),
        (2, False, "gloo", ["cpu"]),
    ],
)
def test_command_leaves_the_group_to_torchrun(monkeypatch, gpus, has_nccl, backend, places):
    """It takes "nccl" where each rank of this computer has a GPU; the GPUs are stand-ins."""
    begin, seen, taken = dist.init_process_group, [], []

    def record(backend, **options):
        seen.append((backend, options))
        begin("gloo", store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(SequenceModel, "to", lambda model, device: taken.append(device) or model)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", record)
    monkeypatch.setattr(split_sequence, "training", lambda model, setting: [1.0])
    assert split_sequence.main(["--smoke"]) == 0
    assert seen == [(backend, {"timeout": split_sequence.TIMEOUT})]
    assert taken == places


def test_what_a_model_reads_lies_where_the_model_does(monkeypatch):
    places = []
    monkeypatch.setattr(
        split_sequence, "share_of_loss", lambda model, *read: places.extend(x.device.type for x in read)
    )
    with pytest.raises(AttributeError):  # what comes of it is no loss
        next(split_sequence.training(split_sequence.build(STEPS).to("meta"), STEPS))
    assert places == ["meta", "meta"]
