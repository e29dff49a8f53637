"""The claims of chapter 09 on what training makes of its models: recorded experiments, and parity live."""

import pytest
import torch
from cells import shown
from seeds import apart, stored

from experiments import charlm, recall_stream
from smalearn.course.results import interval, reported
from smalearn.course.timing import one_thread
from smalearn.data import recorded
from smalearn.testing import assert_close
from smalearn.train import Plan, train


@pytest.mark.claim("006:parity", "smalearn.models.mamba3.Mamba3.prefill")
@pytest.mark.full
def test_mamba3_keeps_parity_beyond_its_training_and_mamba2_does_not():
    """All at once as the chapter trains it, and token by token."""
    space = shown("09", "clock-task", "layer-train", one_thread=one_thread, train=train, Plan=Plan)
    bits, odd = space["parity"](-1, 256, 64)
    assert torch.equal(odd, bits.cumsum(1) % 2)
    with torch.no_grad():
        found = {name: layer(bits) for name, layer in space["layers"].items()}
        layer, steps = space["layers"]["Mamba3"], []
        cache = layer.start(len(bits))
        for token in bits.unbind(1):
            logits, cache = layer.step(token, cache)
            steps.append(logits)
    right = {name: (logits.argmax(-1) == odd).double().mean(0) for name, logits in found.items()}
    assert right["Mamba3"][:40].min() > 0.95  # how far beyond 32 differs from machine to machine
    assert (right["Mamba2"][16:] - 1 / 2).abs().mean() < 0.1
    assert_close(torch.stack(steps, 1), found["Mamba3"])


@pytest.mark.claim("006:language", "smalearn.data.included.recorded")
def test_on_characters_mamba3_ends_above_mamba2():
    result, title = recorded("charlm"), "equal parameters"
    assert result["settings"][title] == stored(charlm.FULL)[title]
    old, new = (reported(result["runs"])[f"{title}, {mixer}"] for mixer in ("Mamba-2", "Mamba-3"))
    assert len(old) == len(new) == 5
    assert apart([run["loss"] for run in old], [run["loss"] for run in new])
    assert new[0]["parameters"] == pytest.approx(old[0]["parameters"], rel=0.02)


@pytest.mark.claim("007:recall", "smalearn.data.included.recorded")
def test_a_state_for_each_level_recalls_more_than_one_and_less_than_attention():
    result = recorded("recall_stream")
    assert result["settings"] == stored(recall_stream.FULL)
    found = {}
    for run in result["runs"].values():
        if run["seed"]:
            found.setdefault((4 * run["pairs"], run["mixer"]), []).append(run["accuracy"])
    for tokens in (64, 128, 256):
        one, levels, keys = (found[tokens, mixer] for mixer in ("Mamba-2", "log-linear Mamba-2", "attention"))
        assert len(one) == len(levels) == len(keys) == 5
        assert sum(one) + 0.1 < sum(levels) < sum(keys) - 1
    more = [new - old for new, old in zip(found[128, "log-linear Mamba-2"], found[128, "Mamba-2"], strict=True)]
    assert min(more) > 0
    assert interval(more)[0] > 0
