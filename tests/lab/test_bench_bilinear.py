"""The benchmark of structured scores: no wrong layer is timed, and what is reported follows from the samples."""

import pytest
import torch

from smalearn.lab.bench import bilinear
from smalearn.testing import assert_close, random_tensors
from smalearn.weights import BlockTensorTrain

BTT = "BTT, s = 1"


def test_all_layers_are_right_and_timed():
    result = bilinear.compare(64, 33, 4, 2)
    assert set(result["errors"]) == set(result["seconds"]) == {bilinear.SDPA, *bilinear.FORMS}
    assert max(result["errors"].values()) < 1e-6
    assert all(len(times) == 2 for part in ("seconds", "seconds_trained") for times in result[part].values())
    assert set(result["slower"]) == set(result["slower_trained"]) == set(bilinear.FORMS)
    assert (result["dim"], result["length"], result["heads"]) == (64, 33, 4)


@pytest.mark.parametrize("factor", [1 + 1e-1, torch.nan])
def test_a_wrong_layer_is_not_timed(factor, monkeypatch):
    class Wrong(BlockTensorTrain):
        def dense(self):
            return super().dense() * factor

    monkeypatch.setitem(bilinear.FORMS, BTT, lambda dim, heads, seed: Wrong.random((8, 8, 8, 8), 1, seed))
    result = bilinear.compare(64, 9, 4, 2)
    assert BTT in result["errors"]
    assert all(BTT not in result[key] for key in ("seconds", "seconds_trained", "slower", "slower_trained"))


def test_ratios_are_of_medians_and_need_standard_attention():
    assert bilinear._slower({BTT: [1.0]}) == {}
    assert bilinear._slower({bilinear.SDPA: [2.0, 1.0, 9.0], BTT: [3.0, 3.0, 0.0]}) == {BTT: 1.5}


def test_standard_attention_is_its_definition():
    layer = bilinear.StandardAttention(16, 4).double()
    (x,) = random_tensors([(2, 7, 16)])
    assert_close(layer(x)[1], bilinear.definition(layer, x[1]))


def test_levels_are_scaled_to_the_numbers_of_a_head():
    weight = bilinear.FORMS["MLR"](512, 8, 0)
    assert weight.ranks == bilinear.RANKS
    assert weight.num_parameters == bilinear.FORMS["low rank"](512, 8, 0).num_parameters


@pytest.mark.parametrize(("measured", "met"), [(1.6, True), (1.8, False), (None, False)])
def test_the_target_is_a_bound_from_above(measured, met):
    result = {"dim": 512, "length": 512, "heads": 8, "slower_trained": {BTT: measured} if measured else {}}
    (row,) = bilinear.targets(result)
    assert (row["target"], row["measured"], row["met"]) == (1.7, measured, met)
    assert row["what"].startswith("BTT, s = 1, D = 512, T = 512, H = 8: time of a forward and backward")


def test_the_table_shows_times_and_errors():
    result = {
        "dim": 64,
        "length": 33,
        "heads": 4,
        "errors": {bilinear.SDPA: 1e-7, BTT: 2e-7, "MLR": 1e-3},
        "seconds": {bilinear.SDPA: [0.002], BTT: [0.003]},
        "seconds_trained": {bilinear.SDPA: [0.004], BTT: [0.006]},
        "slower_trained": {BTT: 1.5},
    }
    ((title, rows),) = bilinear.sections(result)
    assert title == "causal attention, D = 64, T = 33, 4 heads"
    assert rows == [
        (bilinear.SDPA, "error 1e-07", "forward 2.00 ms", "with backward 4.00 ms"),
        (BTT, "error 2e-07", "forward 3.00 ms", "with backward 6.00 ms", "1.50 times standard, SDPA"),
        ("MLR", "error 1e-03", "not reported"),
    ]
