"""Every exercise of the course is sound: solution, stub, hints, and each wrong answer recognised for what it is."""

import tomllib
from pathlib import Path

import pytest

from smalearn.course.exercises import registry, verify

LISTS = Path(__file__).parents[1].glob("ch*/claims.toml")
CLAIMS = [claim for path in LISTS for claim in tomllib.loads(path.read_text(encoding="utf-8"))["claim"]]
every_exercise = pytest.mark.parametrize("exercise", registry().values(), ids=lambda exercise: exercise.id)


@every_exercise
def test_exercise_is_sound_on_one_seed(exercise):
    assert verify(exercise, seeds=[0]) == []


@pytest.mark.full
@every_exercise
def test_exercise_is_sound_on_others(exercise):
    assert verify(exercise, seeds=[1, 7]) == []


@every_exercise
def test_it_practises_a_claim(exercise):
    assert exercise.claim in {claim["id"] for claim in CLAIMS}


@every_exercise
def test_it_tells_an_insight_with_the_tick(exercise):
    assert exercise.insight.endswith(".")
    assert len(exercise.insight) < 200
