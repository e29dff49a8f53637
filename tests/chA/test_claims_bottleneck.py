"""The claim of appendix A on the time of a step with structured scores: what is recorded, and a part live."""

import math
import statistics
from dataclasses import asdict, replace

import numpy as np
import pytest
from ch10.test_claims_bottleneck import NARROW, SPHERE, TRAIN, curve, runs

from experiments.bottleneck import FULL, Timing, clock
from smalearn.course.results import ratios
from smalearn.data import recorded


@pytest.mark.claim("003:fig12", "smalearn.course.results.ratios")
def test_a_step_of_trains_takes_longer_and_is_worth_it():
    result = recorded("bottleneck")["runs"]
    times = result["time, nearest, d = 16"]["milliseconds"]
    deep = result["time, Transformers"]["milliseconds"]
    rounds = FULL["time, Transformers"].rounds
    for found in (ratios(times, TRAIN, NARROW), ratios(deep, TRAIN, "8 × low rank 8")):
        assert len(found) == rounds
        quartiles = statistics.quantiles(found)
        assert 0.5 < quartiles[0] <= quartiles[2] < 10
    assert ratios({"a": [3.0, 1.0], "b": [2.0, 4.0]}, "a", "b") == pytest.approx([1.5, 0.25], rel=1e-9)
    step = {model: statistics.median(samples) for model, samples in times.items()}
    for mine, theirs in zip(runs("nearest, d = 16", TRAIN), runs("nearest, d = 16", NARROW), strict=True):
        seconds, their_errors = curve(theirs, step[NARROW])
        assert (np.interp(seconds, *curve(mine, step[TRAIN])) < their_errors)[2:].all()
    setting = asdict(replace(SPHERE, models=(("low rank", 8, (2,)), ("BTT", 8, (1,)))))
    live = ratios(clock(setting, 3)["milliseconds"], TRAIN, NARROW)
    assert all(math.isfinite(one) for one in live)
    assert 0.5 < statistics.median(live) < 10
    assert isinstance(FULL["time, Transformers"], Timing)
