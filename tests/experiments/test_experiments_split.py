"""The exchanges that the plan counts give the carry-ins of the recurrence, and its lengths are where times meet."""

import math
from fractions import Fraction

import pytest
import torch

from experiments import split_sequence
from experiments.split_plan import (
    HEADS,
    PLACES,
    RULES,
    WAYS,
    Costs,
    Exchange,
    N,
    P,
    Place,
    pays_from,
    plan,
)
from smalearn.fast import distributed
from smalearn.fast.distributed import traffic
from smalearn.fast.ranks import MATRIX, SCALAR
from smalearn.testing import assert_close, random_tensors


def recurrence(act, steps):
    """The state before each rank."""
    states = [0 * steps[0][1]]
    for transition, term in steps[:-1]:
        states.append(act(states[-1], transition) + term)
    return states


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 13, 33])
@pytest.mark.parametrize("rule", [SCALAR, MATRIX], ids=["scalar", "matrix"])
@pytest.mark.parametrize("way", WAYS)
def test_carry_ins_are_those_of_the_recurrence(way, rule, ranks):
    side = 1 if rule is SCALAR else 3
    transitions, terms = random_tensors([(ranks, side, side), (ranks, 2, 3)])
    steps = list(zip(0.5 * transitions, terms, strict=True))
    for state, truth in zip(WAYS[way](steps, Exchange(rule.act)), recurrence(rule.act, steps), strict=True):
        assert_close(state, truth)


def simulated(way, ranks):
    exchange = Exchange(lambda H, transition: H * transition)
    steps = [(Fraction(1, 2), Fraction(rank)) for rank in range(ranks)]
    return exchange, WAYS[way](steps, exchange), recurrence(exchange.act, steps)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 11, 64, 100])
def test_rounds_and_what_comes_into_a_rank(ranks):
    rounds = math.ceil(math.log2(ranks))
    for way, (turns, states, in_turn) in {
        "chain": (ranks - 1, min(1, ranks - 1), ranks - 1),
        "all-gather": (rounds, ranks - 1, ranks - 1),
        "tree": (rounds, rounds, rounds),
    }.items():
        exchange, carry_ins, truth = simulated(way, ranks)
        assert carry_ins == truth
        assert len(exchange.rounds) == turns
        assert exchange.busiest(states=1) == states
        assert exchange.slowest(states=1) == in_turn
        assert exchange.busiest(transitions=1) == (0 if way == "chain" else states)
    exchange, *_ = simulated("all-gather", ranks)
    size = exchange.busiest(transitions=4 * HEADS, states=4 * HEADS * P * N)
    assert size == (traffic(ranks, HEADS, P, N).forward if ranks > 1 else 0)


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_ranks(way):
    _, carry_ins, truth = simulated(way, 1024)
    assert carry_ins == truth


def forward_seconds(tokens, costs, exchange, ranks, place):
    """Of one device, and of a rank."""
    token, more = (HEADS * n / place.rate for n in (costs.token, costs.more))
    sizes = {"transitions": 4 * HEADS * costs.transition, "states": 4 * HEADS * P * N}
    messages = len(exchange.rounds) * place.latency + exchange.slowest(**sizes) / place.bandwidth
    work = {"products": costs.product, "compositions": costs.composition}
    after = HEADS * exchange.slowest(**work) / place.rate
    function = tokens / ranks * token
    meanwhile = max(function, messages) if costs.hides else function + messages
    return tokens * token, tokens / ranks * more + meanwhile + after


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", [Place("slow", 1e11, 1e8, 5e-5), Place("all work", 1e9, 1e15, 0.0)])
def test_from_there_on_it_pays(rule, way, place):
    for ranks in (2, 3, 8, 64):
        exchange, *_ = simulated(way, ranks)
        tokens = pays_from(RULES[rule], exchange, ranks, place)
        if tokens is None:
            whole, split = forward_seconds(1e12, RULES[rule], exchange, ranks, place)
            assert (rule, ranks) in (("delta rule", 2), ("delta rule", 3))
            assert split > whole
        else:
            whole, split = forward_seconds(tokens, RULES[rule], exchange, ranks, place)
            assert split == pytest.approx(whole)
            whole, split = forward_seconds(2 * tokens, RULES[rule], exchange, ranks, place)
            assert split < whole


def test_what_a_split_costs_more_can_be_too_much():
    exchange, *_ = simulated("tree", 2)
    place = Place("", 1.0, 1.0, 0.0)
    assert pays_from(Costs(1, 1, 1, token=10, more=10, hides=False), exchange, 2, place) is None
    assert pays_from(Costs(1, 1, 1, token=10, more=9, hides=False), exchange, 2, place) > 0


def test_what_the_docstring_says_is_counted():
    text = " ".join(distributed.__doc__.split())
    exchange, *_ = simulated("all-gather", 8)
    for place, length, words in zip(PLACES[1:], (37_000, 2_300), ("if 12.5 GB/s", "at 400 GB/s"), strict=True):
        assert pays_from(RULES["ssd"], exchange, 8, place) == pytest.approx(length, rel=0.03)
        assert f"from {length:,} {'tokens ' * (length > 9999)}on {words}" in text
    never = [ranks for ranks in range(2, 9) if pays_from(RULES["delta rule"], exchange, ranks, PLACES[2]) is None]
    assert never == [2, 3]
    token, more = RULES["delta rule"].token, RULES["delta rule"].more
    assert f"does {(token + more) / token:.1f} times the work" in text
    sizes = [simulated(way, 64)[0].busiest(states=1) for way in ("tree", "all-gather")]
    assert sizes[0] / sizes[1] == pytest.approx(0.1, abs=0.01)


def test_the_command_prints_the_table(capsys, monkeypatch):
    few = plan([2, 8])
    monkeypatch.setattr(split_sequence, "plan", lambda: few)
    assert split_sequence.main(["--plan"]) == 0
    assert capsys.readouterr().out == few + "\n"
    lines = few.splitlines()
    assert "ssd: a step has as many numbers as the keys and values of 43 tokens" in lines
    assert sum(line.startswith("    8  tree             3 ") for line in lines) == 2
    assert max(map(len, lines)) <= 120
    assert torch.tensor([line.count("never") for line in lines]).sum() == 9  # the delta rule on two ranks
