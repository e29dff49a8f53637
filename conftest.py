"""Rules for all tests: under CI a test may be skipped for few reasons, so that nothing goes unnoticed."""

import os
import sys

if "PYTEST_XDIST_WORKER" in os.environ:  # as many threads as there are processes would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, which parts of torch do unasked

pytest_plugins = ["claims_plugin", "comparing", "selection"]

# What these run is traced in other tests, and tracing would take a quarter of their time.
UNTRACED = ("tests/browser/", "tests/test_transforms.py")

ALLOWED_SKIPS = ["needs a GPU", "needs Chromium", "needs a peer"]
if sys.platform != "linux":
    ALLOWED_SKIPS.append("needs Triton")


def fail_unlisted_skip(report):
    """Under CI, turn a skip whose reason does not begin like one of the list into a failure."""
    if not (os.environ.get("CI") and report.skipped and isinstance(report.longrepr, tuple)):
        return  # an expected failure (xfail) is "skipped" too, with a traceback
    path, line, reason = report.longrepr
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(tuple(ALLOWED_SKIPS)):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: skipped, but '{reason}' begins with none of {ALLOWED_SKIPS}"


@pytest.fixture(autouse=True)
def _own_settings_of_matplotlib():
    """Begin each test with matplotlib's own look, whatever a test or a fixture of a module before it has changed."""
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].rcdefaults()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Look at a skip of a test."""
    report = yield
    fail_unlisted_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Look at a skip of a module."""
    report = yield
    fail_unlisted_skip(report)
    return report


def pytest_collection_modifyitems(config, items):
    """Trace no chapter and no test of `UNTRACED`.

    The option is hidden from nbval, which would read it to trace chapters, as pytest-cov has done for all else.
    """
    config.option.cov_source = None
    for item in items:
        if item.nodeid.startswith(UNTRACED):
            item.add_marker("no_cover")
