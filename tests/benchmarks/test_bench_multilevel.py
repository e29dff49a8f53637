"""The benchmark of multi-level attention: nothing wrong is timed, and what is reported follows from the samples."""

from dataclasses import replace

import pytest
import torch
from comparing import all_close

from benchmarks import multilevel
from benchmarks.implementation import Run, compare
from benchmarks.multilevel import ATTENTIONS, EQUAL, LOOP, PAPER, PROBLEM, STANDARD
from smalearn.multilevel import halving_blocks, score_macs
from smalearn.testing import assert_close

NAMES = [STANDARD, EQUAL, PAPER, LOOP]
RANKS = {STANDARD: [64], PAPER: (32, 8, 6, 4, 4, 4, 4, 2)}


@pytest.mark.parametrize("one", ATTENTIONS, ids=NAMES)
@pytest.mark.parametrize("length", [128, 150])
def test_implementations_compute_what_their_name_says(one, length, monkeypatch):
    monkeypatch.setattr(multilevel, "ROWS", 16)  # of the definition, so that it has many parts
    problem = replace(PROBLEM, length=length, heads=2, backward=True, dtype=torch.float64)
    assert one.name == NAMES[ATTENTIONS.index(one)]
    assert one.exact.args == (RANKS.get(one.name, (8,) * 8),)
    all_close(Run(one, problem).both(), problem.oracle(one.exact), 1e-11)


def test_a_comparison_has_costs_of_scores(here):
    (part,) = compare([replace(PROBLEM, length=130, heads=2)], ATTENTIONS, 2, statistic=min)
    needed = score_macs(130, (8,) * 8, halving_blocks(130, 8)) / (64 * 130 * 131 / 2)
    entry = multilevel._with_costs(part)["contestants"][EQUAL]
    assert entry["multiply-adds of scores"] == needed <= entry["with padding"]


def test_decoding_from_a_wrong_cache_is_not_timed(monkeypatch):
    read = multilevel.KeyCache.read

    def wrong(self, Q, K, V):
        Y, cache = read(self, Q, K, V)
        return Y * (1 + 1e-3), cache

    monkeypatch.setattr(multilevel.KeyCache, "read", wrong)
    part = multilevel.decode(replace(PROBLEM, length=256, heads=3), 4)
    assert not part["contestants"][EQUAL]["tolerated"]
    assert part["speedups"] == {STANDARD: {}}


def test_every_step_of_decoding_is_the_last_row():
    problem = replace(PROBLEM, length=150, heads=2)
    (V, _, K, Q), _ = problem.inputs()
    cache = multilevel.KeyCache((1, 2), (8,) * 8, halving_blocks(150, 8), 64).append(K[..., :140, :], V[..., :140, :])
    steps = multilevel.steps_with_all(Q, K, V, 140), multilevel.steps_with_cache(cache, Q, K, V, 140)
    for step, one in zip(steps, ATTENTIONS[:2], strict=True):
        (whole,) = problem.oracle(one.exact)
        for position in range(140, 150):
            assert_close(next(step), whole[..., position : position + 1, :])
