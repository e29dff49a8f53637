"""Fixtures that tests of the workshop share."""

import shutil
import signal

import pytest

from smalearn.course import grading
from smalearn.course.exercises import commands, core, registry


@pytest.fixture
def fresh_kernel(monkeypatch):
    """No attempt and no hint is remembered; Ctrl-C interrupts, also where pytest runs in the background."""
    monkeypatch.setattr(commands, "_session", commands._Session())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_registry(monkeypatch):
    """What a test registers is forgotten."""
    monkeypatch.setattr(core, "_registry", dict(registry()))


@pytest.fixture(scope="session")
def box():
    """The sandbox of this computer: to make one copies and compiles the package."""
    with grading.opened() as made:
        yield made


@pytest.fixture
def cluster():
    """Two workers of Dask, processes of this machine."""
    distributed = pytest.importorskip("distributed", reason="needs a peer: distributed of the extra `dask`")
    options = {"processes": True, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
        yield f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"


@pytest.fixture
def course(tmp_path):
    """The course's first two chapters, and no copies yet, in a folder with a space and an umlaut."""
    import learner  # reads a chapter and all exercises, which other tests do not need

    folder = tmp_path / "mein kürs"
    (folder / "chapters").mkdir(parents=True)
    for name in ("00_start_here", learner.NAME):
        shutil.copy(learner.CHAPTERS / f"{name}.ipynb", folder / "chapters")
    return folder


@pytest.fixture
def begun(course):
    """The course was opened once: the copies are there."""
    import learner

    learner.sync(course)
