"""Every exercise of the course is sound: solution, stub, hints, and each wrong answer recognised for what it is."""

import tomllib
from pathlib import Path

import pytest

from smalearn.course.exercises import evaluate, registry, verify

CLAIMS = tomllib.loads((Path(__file__).parents[1] / "claims.toml").read_text(encoding="utf-8"))
every_exercise = pytest.mark.parametrize("exercise", registry().values(), ids=lambda exercise: exercise.id)


@every_exercise
def test_exercise_is_sound(exercise):
    assert verify(exercise) == []


@every_exercise
def test_every_mutant_hears_its_own_misconception(exercise):
    for mutant in exercise.mutants:
        for seed in (0, 7):
            result = evaluate(exercise, mutant.function, seed)
            assert result.outcome == "failed"
            assert 0 < result.passed < result.cases
            assert result.misconception is mutant


@every_exercise
def test_it_practises_a_claim(exercise):
    assert exercise.claim in {claim["id"] for claim in CLAIMS["claim"]}
