"""The benchmark of constants: every one exists, is tried at its values, and has its own value afterwards."""

import importlib

import pytest

import benchmarks as bench
from benchmarks import constants


def values():
    return [getattr(importlib.import_module(f"smalearn.{one.module}"), one.name) for one in constants.CONSTANTS]


def test_all_constants_are_tried_and_put_back():
    before = values()
    result = constants.benchmark(rounds=1, scale=1 / 16)
    assert values() == before
    lines = bench.table(result).splitlines()
    for one, present in zip(constants.CONSTANTS, before, strict=True):
        part = result["constants"][f"{one.module}.{one.name}"]
        assert set(part["contestants"]) == {str(value) for value in (present // 2, present, 2 * present)}
        assert part["present"] == present
        assert f"{one.module}.{one.name}, now {present}; buys {part['buys']:.3g}" in lines


def test_a_run_sees_the_value_it_is_timed_at_and_a_failure_leaves_none(monkeypatch):
    module, seen = importlib.import_module("smalearn.masks.scan"), []
    present = module.SUM_LEN

    def prepare(scale):
        return lambda: seen.append(module.SUM_LEN)

    spent = {present // 2: 3.0, present: 2.0, 2 * present: 5.0}
    monkeypatch.setattr(constants, "warm_seconds", lambda run: run() or spent[seen[-1]])
    part = constants.measure(constants.Constant("masks.scan", "SUM_LEN", prepare), 2)
    assert (part["present"], part["buys"]) == (present, 1.5)
    assert sorted(set(seen)) == [present // 2, present, 2 * present]

    def fails(scale):
        return lambda: 1 / 0

    with pytest.raises(ZeroDivisionError):
        constants.measure(constants.Constant("masks.scan", "SUM_LEN", fails), 2)
    assert present == module.SUM_LEN
