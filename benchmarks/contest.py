"""A contest: everybody's answer is judged, and only whoever is right is timed, in interleaved rounds."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch

from smalearn.course import progress
from smalearn.course.timing import interleaved, slope, warm_seconds
from smalearn.testing import TOLERANCE, relative_rms

PATIENCE = 120.0  # seconds for all samples of one entrant, if three samples take no longer

Sampler = Callable[[], float]
Finish = Callable[[dict], dict]
"""Keeps a part of a benchmark that runs, and returns it."""


class CannotRunError(Exception):
    """An entrant cannot take part; the message says why, in one line."""


CANNOT = (ImportError, torch.OutOfMemoryError, CannotRunError)


def gathered(facts: Mapping, measure: Callable[[Finish], Mapping], keep: Callable[[Mapping], object] | None) -> dict:
    """Facts and parts of a benchmark; of one that Ctrl-C stops, the parts that it has `finished`, and no `targets`.

    `keep` is called after each part, as if the benchmark were stopped there.
    """
    finished = []

    def stopped():
        return {**facts, "finished": list(finished), "targets": []}

    def finish(part):
        finished.append(part)
        if keep:
            keep(stopped())
        return part

    try:
        return {**facts, **measure(finish)}
    except KeyboardInterrupt:
        if not finished:
            raise
    return stopped()


def reason(error: Exception) -> str:
    """An error in one line: its type, and its message, of a long one the beginning; of a compiler's also the end."""
    if isinstance(error, CannotRunError):
        return str(error)
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    end = f" {others[-1]}" if others and first.endswith(":") else ""
    return f"{type(error).__name__}: {first}{end}"[:300]


def judge(
    answers: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], tolerance: float | None = None
) -> tuple[list[float], bool]:
    """The relative RMS error of each answer, and whether all are within a tolerance, that of their dtype if None."""
    errors = [(relative_rms(x, y), TOLERANCE.get(x.dtype)) for x, y in zip(answers, expected, strict=True)]
    return [error for error, _ in errors], all(error <= (tolerance or bound) for error, bound in errors)


def checked(
    run: Callable[[], object], expected: Sequence[torch.Tensor], sampler: Callable[[Callable], float] = warm_seconds
) -> tuple[list[float], bool, Sampler]:
    """Judge a run by what it returns, a tensor or several: its errors, whether they are tolerated, and its sampler."""
    answers = run()
    return *judge([answers] if isinstance(answers, torch.Tensor) else answers, expected), partial(sampler, run)


def unchecked(run: Callable[[], object]) -> tuple[None, bool, Sampler]:
    """An entrant that is no peer but a measure of the machine, such as a copy: it has no error, and is timed."""
    return None, True, partial(warm_seconds, run)


def contest(
    problem: str,
    entrants: Mapping[str, Callable[[], tuple[list[float] | None, bool, Sampler]]],
    rounds: int,
    bases: Sequence[str],
    patience: float = PATIENCE,
    statistic: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, object]:
    """Check everybody, then time those that are right, in interleaved rounds; set all others beside the `bases`.

    An entrant loads what it needs and returns what `checked` or `unchecked` returns; it and its sampler may raise
    `CANNOT`. Each of the `contestants` has a reason why it is `absent`; or its `error`, the largest of its `errors`,
    None where that is not finite, whether it is `tolerated` (not of the unchecked), and, if so, `seconds`: as many as
    rounds, but three of what would take longer than `patience`. The `speedups` are ratios of a statistic of these.
    """
    entries, samplers, every, failed = {}, {}, {}, {}

    def attempt(name, sample):
        """A sample; not a number where the entrant can run no more."""
        try:
            return sample()
        except CANNOT as error:
            failed[name] = reason(error)
            return math.nan

    progress.part(problem)
    for name, enter in entrants.items():
        progress.step(f"checking {name}")
        try:
            errors, tolerated, sample = enter()
            entries[name] = {} if errors is None else _verdict(errors, tolerated)
            if tolerated:
                every[name], samplers[name] = every_kth(sample(), rounds, patience), partial(attempt, name, sample)
        except CANNOT as error:
            entries[name] = {"absent": reason(error)}
    for name, samples in interleaved(samplers, rounds, every).items():
        entries[name] = {"absent": failed[name]} if name in failed else entries[name] | {"seconds": samples}
    return {"problem": problem, "contestants": entries, "speedups": speedups(entries, bases, statistic)}


def _verdict(errors, tolerated):
    """What a record says of an answer; JSON has no NaN."""
    finite = [error if math.isfinite(error) else None for error in errors]
    several = {"errors": finite} if len(finite) > 1 else {}
    return {"error": None if None in finite else max(finite), **several, "tolerated": tolerated}


def every_kth(taken: float, rounds: int, patience: float = PATIENCE) -> int:
    """The k for which a run of so many seconds is timed in every k-th round only; three samples at least."""
    return min(1 + int(rounds * taken / patience), 1 + rounds // 3)


def speedups(
    entries: Mapping[str, Mapping], bases: Iterable[str], statistic: Callable[[Sequence[float]], float]
) -> dict[str, dict[str, float]]:
    """By how many times each base is faster than each of its peers: the ratio of their medians, or another statistic.

    Peers of a base are those that are timed and no bases; of an unchecked one, all others.
    """
    middle = {name: statistic(entry["seconds"]) for name, entry in entries.items() if "seconds" in entry}
    ratios = {}
    for base in (name for name in bases if name in middle):
        peers = [name for name in middle if name not in bases or ("error" not in entries[base] and name != base)]
        ratios[base] = {name: middle[name] / middle[base] for name in peers}
    return ratios


def ratio(part: Mapping, base: str, name: str) -> float | None:
    """By how many times a base of a contest is faster than another one; None where one of them has no time."""
    return part["speedups"].get(base, {}).get(name)


def best(part: Mapping, base: str) -> float | None:
    """By how many times a base is faster than its fastest peer in a contest; None where one of them has no time."""
    return min(part["speedups"].get(base, {}).values(), default=None)


def growth(name: str, runs: Mapping[int, tuple[Callable, torch.Tensor]], rounds: int) -> dict[str, object]:
    """Time of runs by T, and of copies of their operands, linear in T whatever the caches do; exponents of both."""
    samplers = {(name, length): partial(warm_seconds, run) for length, (run, _) in runs.items()}
    samplers |= {("clone", length): partial(warm_seconds, x.clone) for length, (_, x) in runs.items()}
    progress.part(f"growth of {name} with T, up to {max(runs)}")
    interleaved(samplers, 1)  # the first call takes longer
    samples = interleaved(samplers, rounds)
    times = {which: [samples[which, length] for length in runs] for which in (name, "clone")}
    ours, clone = (list(map(statistics.median, one)) for one in times.values())
    exponents = {
        "against T": slope(list(runs), ours),
        "clone against T": slope(list(runs), clone),
        "against clone": slope(clone, ours),
    }
    return {"lengths": list(runs), "seconds": times, "exponents": exponents}
