"""The tasks are what their docstrings say, for all sizes, and cannot be solved without remembering."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smalearn.data import IGNORE, MQAR_BLANK, mqar, mqar_lookup, recall_stream


@st.composite
def sizes(draw):
    pairs = draw(st.integers(1, 9))
    return {
        "examples": draw(st.integers(1, 4)),
        "length": draw(st.integers(4 * pairs, 4 * pairs + 30)),
        "pairs": pairs,
        "vocabulary": draw(st.integers(2 * pairs + 2, 60)),
        "seed": draw(st.integers(0, 2**62)),
        "power": draw(st.sampled_from([0.01, 0.5, 1.0, 3.0])),
    }


@pytest.mark.claim("004:mqar-task", "smalearn.data.recall.mqar_lookup")
@given(sizes())
def test_mqar_is_what_its_docstring_says(drawn):
    inputs, targets = mqar(**drawn)
    assert all(map(torch.equal, mqar(**drawn), (inputs, targets)))
    assert torch.equal(mqar_lookup(inputs, drawn["pairs"]), targets)
    pairs, half, length = drawn["pairs"], drawn["vocabulary"] // 2, drawn["length"]
    assert inputs.shape == targets.shape == (drawn["examples"], length)
    assert inputs.dtype == targets.dtype == torch.int64
    for tokens, expected in zip(inputs.tolist(), targets.tolist(), strict=True):
        memory = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
        assert len(memory) == len(set(memory.values())) == pairs
        assert all(1 <= key < half <= value < drawn["vocabulary"] for key, value in memory.items())
        questions = [t for t in range(length) if expected[t] != IGNORE]
        assert sorted(tokens[t] for t in questions) == sorted(memory)  # each key once, after all pairs
        for t in range(length):
            if t in questions:
                assert t >= 2 * pairs
                assert t % 2 == 0
                assert expected[t] == memory[tokens[t]]
            elif t >= 2 * pairs:
                assert tokens[t] == MQAR_BLANK


def test_keys_values_and_their_pairing_are_uniform():
    inputs, _ = mqar(4000, 8, 2, 12, seed=3)
    keys, values = inputs[:, 0:4:2].flatten(), inputs[:, 1:4:2].flatten()
    assert (torch.bincount(keys)[1:] / len(keys) - 1 / 5).abs().max() < 0.02
    assert (torch.bincount(values)[6:] / len(values) - 1 / 6).abs().max() < 0.02
    table = torch.bincount(keys * 12 + values, minlength=72).view(6, 12)[1:, 6:] / len(keys)
    assert (table - 1 / 30).abs().max() < 0.01


def test_the_power_says_when_questions_come():
    """Slot g is drawn first with probability g^(power - 1) / sum."""
    early, even = (mqar(8000, 18, 1, 64, seed=2, power=power)[1] for power in (0.01, 1.0))
    slots = torch.arange(1.0, 9)
    for targets, power in ((early, 0.01), (even, 1.0)):
        frequencies = (targets[:, 2::2] != IGNORE).double().mean(0)
        expected = slots ** (power - 1) / (slots ** (power - 1)).sum()
        assert (frequencies - expected).abs().max() < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 15}, "mqar: length must be at least 4·pairs = 16, got 15"),
        ({"vocabulary": 9}, r"mqar: vocabulary must be at least 2·pairs \+ 2 = 10, got 9"),
        ({"power": 0}, "mqar: power must be positive, got 0"),
        ({"power": float("nan")}, "mqar: power must be positive, got nan"),
    ],
)
def test_sizes_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        mqar(**({"examples": 2, "length": 16, "pairs": 4, "vocabulary": 10, "seed": 0} | change))


def test_the_example_is_the_same_on_every_machine():
    inputs, targets = mqar(1, length=12, pairs=2, vocabulary=8, seed=3)
    assert inputs.tolist() == [[3, 5, 2, 6, 2, 0, 0, 0, 3, 0, 0, 0]]
    assert targets.tolist() == [[IGNORE, IGNORE, IGNORE, IGNORE, 6, IGNORE, IGNORE, IGNORE, 5, IGNORE, IGNORE, IGNORE]]


# ---------------------------------------------------------------- recall while the text goes on


@given(st.integers(1, 3), st.integers(1, 12), st.integers(0, 5), st.integers(1, 9), st.integers(0, 2**62))
def test_a_stream_is_what_its_docstring_says(examples, pairs, spare, values, seed):
    keys = pairs + spare
    inputs, targets = recall_stream(examples, 4 * pairs, keys, values, seed)
    assert inputs.shape == targets.shape == (examples, 4 * pairs)
    assert inputs.dtype == targets.dtype == torch.int64
    assert all(map(torch.equal, (inputs, targets), recall_stream(examples, 4 * pairs, keys, values, seed)))
    for tokens, expected in zip(inputs.tolist(), targets.tolist(), strict=True):
        memory = {}
        for slot in range(0, 4 * pairs, 4):
            key, value, blank, asked = tokens[slot : slot + 4]
            assert key not in memory
            assert 1 <= key <= keys < value <= keys + values
            assert blank == MQAR_BLANK
            memory[key] = value
            assert expected[slot : slot + 4] == [IGNORE] * 3 + [memory[asked]]


def test_a_stream_asks_for_each_doubling_of_the_distance_as_often():
    inputs, _ = recall_stream(4000, 128, 32, 4, seed=1)
    keys, asked = inputs[:, ::4], inputs[:, 3::4]
    age = torch.arange(32) - (keys[:, None] == asked[..., None]).int().argmax(-1)
    for place in (0, 1, 7, 31):
        found = torch.bincount(age[:, place], minlength=place + 1) / 4000
        weights = 1 / torch.arange(1.0, place + 2)
        assert ((found - weights / weights.sum()).abs() < 0.03).all()
    assert (keys.flatten().bincount() > 0).sum() == 32  # no key is left out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 0}, "recall_stream: examples "),
        ({"values": 1.5}, "recall_stream: values "),
        ({"length": 18}, "recall_stream: length must be a multiple of 4, got 18"),
        ({"keys": 3}, "recall_stream: keys must be at least length / 4 = 4, got 3"),
    ],
)
def test_a_stream_with_wrong_sizes(change, message):
    with pytest.raises(ValueError, match=message):
        recall_stream(**({"examples": 2, "length": 16, "keys": 4, "values": 4, "seed": 0} | change))
