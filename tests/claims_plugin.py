"""Options of pytest for claims: `--break-claims` asks whether a claim's test would notice that its function is wrong.

A test marked `@pytest.mark.claim(id, function)` says that it pins a claim on a function, named by the module or class
that defines it: "smalearn.sma.sma_quadratic", "smalearn.contractions.Order.run". With the option only marked tests are
run, once for each of their markers, while every number that the function returns is off by one in a thousand. A test
that still passes says nothing about the function and is reported as a failure.

A parametrised test counts as one: it must fail for at least one of its parameters, because a single case (a mask of
ones, one source) may well be blind to a fault that the others see. Which case failed, and where, stands in the report
of passed tests (`-rP`). A test that skips every case with the function broken is skipped.

`pytest tests --record-claims assets/results/claims.json` runs the marked tests as they are and keeps, for every
claim, the largest relative error that `smalearn.testing.assert_close` met: what the site's concordance shows.
"""

import dataclasses
import functools
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from _pytest.runner import runtestprotocol

from smalearn import testing

EPSILON = 1e-3


def pytest_addoption(parser):
    parser.addoption("--break-claims", action="store_true", help="run claim tests with the claimed function broken")
    parser.addoption("--record-claims", metavar="FILE", help="keep the largest error that each claim's tests met")


def pytest_configure(config):
    """Record comparisons, if errors are to be kept."""
    if file := config.getoption("record_claims"):
        config.pluginmanager.register(Recorder(Path(file)))


class Recorder:
    """Recorder of the largest error that each claim's tests met, written when all have passed."""

    def __init__(self, file):
        self.file, self.residuals, self.met = file, {}, []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        """Run one test and keep the errors for its claims."""
        self.met, compare = [], testing.assert_close

        @functools.wraps(compare)
        def recorded(actual, expected, tolerance=None):
            self.met.append(testing.relative_rms(actual, expected))
            return compare(actual, expected, tolerance)

        _swap(testing, "assert_close", compare, recorded)
        try:
            return (yield)
        finally:
            _swap(testing, "assert_close", recorded, compare)
            for marker in item.iter_markers("claim") if self.met else ():
                self.residuals[marker.args[0]] = max(*self.met, self.residuals.get(marker.args[0], 0.0))

    def pytest_sessionfinish(self, session):
        """Write the file, unless a test has failed."""
        from smalearn.course.timing import machine

        if not session.testsfailed:
            residuals = {claim: float(f"{error:.1e}") for claim, error in sorted(self.residuals.items())}
            result = {"command": "pytest tests --record-claims FILE", "machine": machine(), "residuals": residuals}
            self.file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Replace the items that other options have left by one `BrokenClaim` for each test and marker."""
    if not config.getoption("break_claims"):
        return
    variants = {}
    for item in items:
        for marker in item.iter_markers("claim"):
            variants.setdefault((item.parent, item.originalname, *marker.args), []).append(item)
    config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("claim")])
    items[:] = [
        BrokenClaim.from_parent(parent, name=f"{test}[{claim} {function}]", spec=(claim, function, group))
        for (parent, test, claim, function), group in variants.items()
    ]


class BrokenClaim(pytest.Item):
    """All parameters of one claim test, to be run with one function broken; passes when one of them fails."""

    def __init__(self, *, spec, **kwargs):
        super().__init__(**kwargs)
        self.claim, self.function, self.variants = spec
        self.own_markers = self.variants[0].own_markers  # filterwarnings holds here too

    def runtest(self):
        with broken(self.function):
            reports = [(variant, report) for variant in self.variants for report in runtestprotocol(variant, log=False)]
        for variant, report in reports:
            if report.failed:
                reason = report.longreprtext.strip().rpartition("\n")[-1]
                return self.add_report_section("call", "claim", f"{variant.name} failed: {reason}")
        reasons = [report.longrepr[2] for _, report in reports if report.skipped and isinstance(report.longrepr, tuple)]
        if len(reasons) == len(self.variants):
            pytest.skip(reasons[0].removeprefix("Skipped: "))
        pytest.fail(f"claim {self.claim} survives a broken {self.function}", pytrace=False)

    def reportinfo(self):
        return (*self.variants[0].reportinfo()[:2], self.name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Run a `BrokenClaim` without a set-up of its own: that of its variants happens while the function is broken."""
    if not isinstance(item, BrokenClaim):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    call = pytest.CallInfo.from_call(item.runtest, when="call", reraise=(pytest.exit.Exception, KeyboardInterrupt))
    item.ihook.pytest_runtest_logreport(report=item.ihook.pytest_runtest_makereport(item=item, call=call))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def resolve(path: str) -> tuple[object, str, Callable]:
    """Find the module or class that defines a function, the function's name there, and the function."""
    home, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(home)
    function = vars(owner).get(name)
    if not inspect.isfunction(function):
        raise ValueError(f"claims: {path}, expected a function or method, got {type(function).__name__}")
    if (defined := f"{function.__module__}.{function.__qualname__}") != path:
        raise ValueError(f"claims: {path}, expected the name where it is defined, {defined}")
    return owner, name, function


@contextmanager
def broken(path: str) -> Iterator[None]:
    """Make the function return wrong numbers while this lasts, whoever calls it."""
    owner, name, function = resolve(path)

    @functools.wraps(function)
    def wrong(*args, **kwargs):
        return perturbed(function(*args, **kwargs))

    _swap(owner, name, function, wrong)
    try:
        yield
    finally:
        _swap(owner, name, wrong, function)


def _swap(owner: object, name: str, old: Callable, new: Callable) -> None:
    """Put one function in the place of another: in its class, or under every name that a module has for it."""
    if inspect.isclass(owner):
        return setattr(owner, name, new)
    # All modules, at both ends: one that is first imported in between has taken the wrong function.
    for module in list(sys.modules.values()):
        for alias, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, alias, new)
    return None


def perturbed(value: object) -> object:
    """Make all numbers of a function's result slightly wrong; shapes, types and gradients stay.

    Tensors are changed by a pattern, entry by entry, so that the fault does not cancel in ratios and sums, and zeros
    move too. Integers change by one at least, truth values are negated, and a text that is itself the result grows.
    """
    if isinstance(value, torch.Tensor):
        return _perturbed_tensor(value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + max(1, round(EPSILON * abs(value)))
    if isinstance(value, float):
        return value * (1 + EPSILON) if value else EPSILON
    if isinstance(value, str):
        return value + "?"
    if isinstance(value, dict):
        return dict(zip(value, _parts(value.values()), strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*_parts(value))
    if isinstance(value, list | tuple):
        return type(value)(_parts(value))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        parts = _parts(getattr(value, name) for name in names)
        return dataclasses.replace(value, **dict(zip(names, parts, strict=True)))
    return value


def _parts(values: Iterable) -> list:
    """Perturb the parts of a result; a text among them is a label, and stays."""
    return [value if isinstance(value, str) else perturbed(value) for value in values]


def _perturbed_tensor(value: torch.Tensor) -> torch.Tensor:
    """Return x·(1 + ε cos i) + ε·rms·sin i for entry number i, with rms = 1 where all entries are zero."""
    if value.dtype == torch.bool:
        return ~value
    if not (value.is_floating_point() or value.is_complex()):
        return value + (EPSILON * value.abs()).round().clamp(min=1).to(value.dtype)
    size = value.detach().abs().double()
    rms = torch.where(size.isfinite(), size, 0).square().mean().sqrt()
    shift = EPSILON * torch.where(rms > 0, rms, 1)
    index = torch.arange(1, value.numel() + 1, dtype=torch.float64, device=value.device).reshape(value.shape)
    return value * (1 + EPSILON * index.cos()).to(value.dtype) + (shift * index.sin()).to(value.dtype)
