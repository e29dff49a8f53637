"""Selection of tests: a few minutes' worth, or with `--full` everything.

By default a parametrised test runs few cases that together have every value of every parameter, and with `--full` such
as have every two values of any two parameters (on a GPU: all). Hypothesis tries few examples by default. What is marked
`full` waits for `--full`: a test, or a cell that takes times, of which no other cell needs anything. What needs a GPU
is collected only where there is one. The cells of a chapter, and tests that share a fixture of their module, go to one
process of pytest-xdist; all others go to whichever is free.
"""

import functools
import itertools
import os
from pathlib import Path

import hypothesis
import pytest
import torch

QUICK = "SMALEARN_QUICK"  # "ladder": the ladder's trainings take three steps; "all": all do, see `smalearn.train`

hypothesis.settings.register_profile("default", deadline=None, max_examples=12, derandomize=True)
hypothesis.settings.register_profile("full", deadline=None)


def pytest_addoption(parser):
    parser.addoption(
        "--full", action="store_true", help="all tests, with every two values of their parameters, in up to 25 minutes"
    )


def pytest_configure(config):
    os.environ.pop(QUICK, None)
    config.addinivalue_line("markers", "no_cover: no line is traced, which pytest-cov sees to")
    hypothesis.settings.load_profile("full" if config.getoption("full") else "default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Have a chapter's kernel start with quick trainings; the ladder's are never compared, and keep out of its file."""
    with pytest.MonkeyPatch.context() as patch:
        if item.path.suffix == ".ipynb":
            patch.setenv(QUICK, "ladder" if item.config.getoption("full") else "all")
        return (yield)


def pytest_collection_modifyitems(config, items):
    left_out = {item for item in items if item.get_closest_marker("gpu") and not torch.cuda.is_available()}
    more = {item for item in items if item.get_closest_marker("full") or "full" in _tags(item)}
    cases = [item for item in items if item not in left_out | more]
    more |= set(_more_than_covers(cases, together=1))
    if config.getoption("full"):
        left_out |= {item for item in _more_than_covers(items, together=2) if not item.get_closest_marker("gpu")}
        for item in more:
            item.add_marker("no_cover")  # the default set reaches as many lines, and tracing takes half as long again
    else:
        left_out |= more
        for item in items:
            _compare_no_training(item)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _more_than_covers(items, together):
    """List the cases of which any so many values of parameters stand together in an earlier case of the same test."""
    seen, redundant = {}, []
    for item in items:
        if callspec := getattr(item, "callspec", None):
            covered = seen.setdefault((item.path, item.cls, item.originalname), set())
            values = [(name, _key(value)) for name, value in callspec.params.items()]
            values = set(itertools.combinations(values, min(together, len(values))))
            if values <= covered:
                redundant.append(item)
            covered |= values
    return redundant


def _key(value):
    """Return a key that equal values of a parameter share; others are the same object in all cases."""
    return (type(value), value) if isinstance(value, int | float | str | type(None)) else repr(value)


def _compare_no_training(item):
    """Do not compare a cell tagged `trains`: it has other outputs after three steps."""
    if "trains" in _tags(item):
        item.options["check"] = False


def _tags(item):
    """List the tags of a cell; none for a test."""
    return getattr(item, "cell", {}).get("metadata", {}).get("tags", [])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give out tests one by one, but for files whose tests have to stay together."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if _stays_together(config.rootpath / file) else nodeid

    return Scheduling(config, log)


@functools.cache
def _stays_together(path: Path) -> bool:
    """Say whether it is a chapter, or a fixture of the file or of its folder is made once for the whole file."""
    sources = [file for file in (path, path.with_name("conftest.py")) if file.is_file()]
    return path.suffix == ".ipynb" or any('scope="module"' in file.read_text(encoding="utf-8") for file in sources)
