"""The time limit of an attempt: what is stopped, what must not be cut, and whose Ctrl-C it is."""

import _thread
import importlib
import itertools
import signal
import sys
import threading
import time
import weakref

import pytest
import torch
from demos import CAUSAL, causal_product

from smalearn.course.exercises import check, evaluate, limit, report

pytestmark = pytest.mark.usefixtures("fresh_kernel")


def endless(Q, K, V):
    while True:
        pass


def recurse(Q, K, V):
    sys.setrecursionlimit(200_000)

    def again(n):
        return again(n + 1) + 1

    return again(0)


def test_endless_loop_is_stopped():
    def attempt(Q, K, V):
        while len(Q) > 1:
            print("again")
        return causal_product(Q, K, V)

    before = signal.getsignal(signal.SIGINT)
    result = evaluate(CAUSAL, attempt, limit=0.2)
    assert (result.outcome, result.passed, result.case, result.misconception) == ("timeout", 1, 2, None)
    text = report.render(result)
    assert "1 of 4 cases passed (seed 0)\n  In case 2 of 4\n    Q = torch.tensor([[0.838026, -0.719258], [" in text
    assert "\n  Stopped after 0.2 s: is there a loop that never ends?\n" in text
    assert "\n  Your code printed:\n  | again\n" in text
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # time may be over in a destructor
def test_a_recursion_without_end_ends():
    assert evaluate(CAUSAL, recurse, limit=0.5).outcome in ("timeout", "error")


def test_swallowing_once_and_returning_is_still_too_late():
    def stubborn(Q, K, V):
        try:
            while len(Q) == 9:
                pass
        except BaseException:
            print("never mind")
        return causal_product(Q, K, V)

    result = evaluate(CAUSAL, stubborn, limit=0.1)
    assert (result.outcome, result.passed, result.case) == ("timeout", 3, 4)


@pytest.mark.parametrize(
    ("attempt", "said"), [(lambda *_: time.sleep(0.6), "this code does not stop"), (endless, "")], ids=["sleep", "loop"]
)
def test_code_that_cannot_be_stopped_is_reported_and_no_other(attempt, said, monkeypatch, capsys):
    if said:
        monkeypatch.setattr(limit, "PAUSE", 0.02)
    assert evaluate(CAUSAL, attempt, limit=0.05).outcome == "timeout"
    out = capsys.readouterr().out
    assert said in out if said else out == ""


def test_late_interrupt_is_silent(monkeypatch):
    close = limit._Watch.close

    def ring_first(watch):
        watch.rung = True
        _thread.interrupt_main()
        close(watch)

    monkeypatch.setattr(limit._Watch, "close", ring_first)
    before = signal.getsignal(signal.SIGINT)
    for _ in range(50):
        assert limit.within(5.0, iter([1]), sys.stdout) == [1]
    assert evaluate(CAUSAL, causal_product).outcome == "passed"
    assert signal.getsignal(signal.SIGINT) is before


def test_attempts_that_end_at_the_limit_never_leak_an_interrupt():
    def last(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        yield seconds

    before, stopped = signal.getsignal(signal.SIGINT), 0
    for step in range(75):
        stopped += not limit.within(0.002, last(0.0002 * step), sys.stdout)
    assert signal.getsignal(signal.SIGINT) is before
    assert 0 < stopped < 75


def _tracer():
    """What coverage does: it may hold a lock."""
    space = {"__name__": "coverage.collector", "time": time, "finished": []}
    exec("def trace():\n    time.sleep(0.2)\n    finished.append(True)", space)
    return space["trace"], space["finished"]


def _callback():
    """A weak reference that calls back as soon as its object is gone."""

    class Slow(set):
        def discard(self, item):
            time.sleep(0.2)
            super().discard(item)
            finished.append(True)

    finished, kept = [], weakref.WeakSet()
    kept.data = Slow()
    return lambda: kept.add(torch.nn.Identity()), finished


def _destructor():
    """A loop of asyncio is closed by whatever code runs when its turn comes."""

    class Slow:
        def __del__(self):
            time.sleep(0.2)
            finished.append(True)

    finished = []
    return Slow, finished


@pytest.mark.parametrize(
    "make", [_tracer, *(pytest.param(one, marks=pytest.mark.full) for one in (_callback, _destructor))]
)
def test_where_an_interrupt_would_be_lost_or_break_something_nothing_is_cut(make):
    begin, finished = make()

    def attempt(Q, K, V):
        begin()
        while True:
            pass

    assert evaluate(CAUSAL, attempt, limit=0.05).outcome == "timeout"
    assert finished == [True]


def test_an_import_is_not_cut(tmp_path, monkeypatch):
    """Half of a library in `sys.modules` would be an error in every later cell."""
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nwhole = True\n"
    (tmp_path / "imported_slowly.py").write_text(busy, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    limit.within(0.05, map(importlib.import_module, ["imported_slowly"]), sys.stdout)
    assert sys.modules.pop("imported_slowly").whole


def test_only_the_work_of_this_process_counts(monkeypatch):
    wall = itertools.count(100)
    monkeypatch.setattr(limit.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(limit.time, "process_time", lambda: 7.5)
    stopwatch = limit.Stopwatch()
    assert [stopwatch(), stopwatch()] == [0.25, 0.5]  # a quarter of the time in which it waits
    monkeypatch.setattr(limit.time, "process_time", lambda: 9.0)
    assert stopwatch() == 1.5
    monkeypatch.setattr(limit.time, "process_time", lambda: 70.0)
    assert stopwatch() == 4  # several threads do not make it faster than the clock


def test_the_learners_own_interrupt_passes_through(capsys):
    def stopped(Q, K, V):
        signal.raise_signal(signal.SIGINT)
        return Q

    before, out = signal.getsignal(signal.SIGINT), sys.stdout
    with pytest.raises(KeyboardInterrupt):
        check(CAUSAL, stopped)
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.stdout is out
    assert capsys.readouterr().out == ""


def test_ignored_interrupts_stay_ignored():
    def stopped(Q, K, V):
        signal.raise_signal(signal.SIGINT)
        return causal_product(Q, K, V)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert evaluate(CAUSAL, stopped).outcome == "passed"
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert evaluate(CAUSAL, endless, limit=0.05).outcome == "timeout"


def test_no_limit_away_from_the_main_thread():
    def slow(Q, K, V):
        time.sleep(0.03)
        return causal_product(Q, K, V)

    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(evaluate(CAUSAL, slow, limit=0.01).outcome))
    thread.start()
    thread.join()
    assert outcomes == ["passed"]


def test_no_limit_where_the_host_program_owns_the_signal(monkeypatch):
    monkeypatch.setattr(limit.signal, "getsignal", lambda number: None)
    assert limit.within(0.0, iter([1, 2]), sys.stdout) == [1, 2]
