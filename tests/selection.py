"""Which tests run: a few minutes' worth, or with `--full` everything.

By default a parametrised test runs the fewest cases that together have every value of every parameter, hypothesis tries
few examples, and what is marked `full` waits for `--full`. What needs a GPU is collected only where there is one. The
cells of a chapter, and tests that share a fixture of their module, go to one process of pytest-xdist; all others go to
whichever is free.
"""

import hypothesis
import pytest
import torch

QUICK = "SMALEARN_QUICK"  # with it a training of a chapter takes three steps, see `smalearn.train`

hypothesis.settings.register_profile("default", deadline=None, max_examples=12, derandomize=True)
hypothesis.settings.register_profile("full", deadline=None)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="every case of every test, in up to 25 minutes")


def pytest_configure(config):
    hypothesis.settings.load_profile("full" if config.getoption("full") else "default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Have a chapter's kernel start with quick trainings."""
    with pytest.MonkeyPatch.context() as patch:
        if item.path.suffix == ".ipynb" and not item.config.getoption("full"):
            patch.setenv(QUICK, "1")
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if item.get_closest_marker("gpu") and not torch.cuda.is_available()]
    if not config.getoption("full"):
        left_out += [item for item in items if item.get_closest_marker("full")]
        left_out += _more_than_covers([item for item in items if item not in set(left_out)])
        for item in items:
            _compare_no_training(item)
    gone = set(left_out)
    if gone:
        config.hook.pytest_deselected(items=[item for item in items if item in gone])
        items[:] = [item for item in items if item not in gone]
    for item in items:
        if group := _together(item):
            item.add_marker(pytest.mark.xdist_group(group))


def _more_than_covers(items):
    """The cases whose every value of a parameter stands in an earlier case of the same test."""
    seen, more = {}, []
    for item in items:
        if callspec := getattr(item, "callspec", None):
            known = seen.setdefault((item.path, item.cls, item.originalname), set())
            values = {(name, _key(value)) for name, value in callspec.params.items()}
            if values <= known:
                more.append(item)
            known |= values
    return more


def _key(value):
    """What equal values of a parameter share; others are the same object in all cases."""
    return (type(value), value) if isinstance(value, int | float | str | type(None)) else repr(value)


def _compare_no_training(item):
    """A cell tagged `trains` has other outputs after three steps."""
    if "trains" in getattr(item, "cell", {}).get("metadata", {}).get("tags", []):
        item.options["check"] = False


def _together(item):
    """The file of a cell, or of a test that needs a fixture of its module; None for others."""
    if item.path.suffix == ".ipynb":
        return item.path.name
    fixtures = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    return item.path.name if any(definition[-1].scope == "module" for definition in fixtures) else None
