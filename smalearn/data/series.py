"""Real measurements for forecasts: the oil temperature of a transformer station, or a series drawn in its likeness."""

import csv
import hashlib
import io
import math
from dataclasses import dataclass

import numpy as np
import torch

from smalearn._checks import ShapeError, check_count, check_dtypes, check_shapes, check_tensor, holds
from smalearn.data.sources import PublicFile, Source, UnreachableError, fetch

ETTH1 = PublicFile(
    Source(
        name="ETTh1",
        sentence="Hourly load and oil temperature of an electricity transformer, from github.com/zhouhaoyi/ETDataset",
        licence="CC BY-ND 4.0: to use, not to pass on changed",
        sha256="f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    ),
    file="ETTh1.csv",
    url="https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/ETTh1.csv",
    size=2_589_657,
)
SERIES = ("ETTh1", "seasonal")
"""The names that `load_series` knows; the last one needs no network."""

MONTH = 30 * 24
"""Hours of a month, as the usual split counts."""


@dataclass(frozen=True)
class Series:
    """Measurements, one row an hour.

    Args:
        values: (T, C).
        columns: C names.
        source: what they are.
    """

    values: torch.Tensor
    columns: tuple[str, ...]
    source: Source


def load_series(name: str = "ETTh1") -> Series:
    """Two years of hourly measurements, with their source.

    Args:
        name: "ETTh1": six loads and, in the last column, the oil temperature OT; or "seasonal", drawn.

    Returns:
        (17420, 7) values in torch's default dtype; `source.name` is "seasonal" where ETTh1 was asked for and cannot be
        reached, and the sentence says why.

    Raises:
        ValueError: the name is unknown; or the file is another one, as `fetch` says.
        ImportError: pooch is missing, which downloads files.

    Cost:
        A download of 2.6 MB, once; none with the environment variable `SMALEARN_DATA`, the name of a folder that has
        `ETTh1.csv`. Its licence forbids to pass on a changed copy, so the course has none.

    Source:
        Zhou et al. 2021 (Informer), github.com/zhouhaoyi/ETDataset, `ETT-small/ETTh1.csv`.
    """
    if name not in SERIES:
        raise ValueError(f"load_series: name must be one of {', '.join(SERIES)}, got {name!r}")
    if name == "seasonal":
        return _drawn()
    try:
        content = fetch("load_series", ETTH1).decode("utf-8")
    except UnreachableError as error:
        return _drawn(f", in place of {name}: {error}")
    (_, *columns), *rows = csv.reader(io.StringIO(content))
    values = torch.tensor([[float(value) for value in row[1:]] for row in rows], dtype=torch.get_default_dtype())
    return Series(values, tuple(columns), ETTH1.source)


def _drawn(why=""):
    """Series that needs no network, and in its source the reason why it is used."""
    values = seasonal_series(17_420, 7, seed=0)
    checksum = hashlib.sha256((1000 * values).round().to(torch.int32).numpy().astype("<i4").tobytes()).hexdigest()
    sentence = f"Days, weeks, years and noise, drawn by smalearn.data.seasonal_series(17420, 7, seed=0){why}"
    columns = tuple(f"series {column}" for column in range(1, 8))
    return Series(values, columns, Source("seasonal", sentence, "that of smalearn", checksum))


def seasonal_series(length: int, columns: int, seed: int) -> torch.Tensor:
    """A series to forecast that needs no file: days, weeks and years of chance strength, and noise with a memory.

    x_t = Σ_p a_p sin(2π t/p + φ_p) + e_t with p = 12, 24, 168 and 8766 hours, and e_t = 0.95 e_(t-1) + 0.3 n_t, for
    each column.

    Args:
        length: T, hours.
        columns: C.
        seed: the same seed gives the same series.

    Returns:
        (T, C) tensor in torch's default dtype, rounded to three decimals.

    Raises:
        ValueError: a count is not an integer ≥ 1.
    """
    check_count("seasonal_series", "length", length)
    check_count("seasonal_series", "seed", seed, 0)
    draw = np.random.default_rng(seed)
    periods = np.array([12, 24, 168, 8766])[:, None]
    strength = draw.uniform(0.3, 1.0, (4, check_count("seasonal_series", "columns", columns)))
    phase = draw.uniform(0, 2 * math.pi, (4, columns))
    noise = 0.3 * draw.standard_normal((length, columns))
    for t in range(1, length):
        noise[t] += 0.95 * noise[t - 1]
    angle = 2 * math.pi * np.arange(length)[:, None, None] / periods + phase
    x = (strength * np.sin(angle)).sum(1) + noise
    return torch.from_numpy(x.round(3)).to(torch.get_default_dtype())


def split_series(values: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The usual parts of ETTh1: 12 months to train, 4 to validate, 4 to test, each normalised by the first alone.

    The later parts begin `context` hours early, so that the first forecast is for their first hour; what they have of
    the part before is only looked at, never forecast.

    Args:
        values: (T, C), T at least 20 months of 30 days.
        context: hours that a forecast looks back on.

    Returns:
        Three tensors (hours, C). Those to train on have mean 0 and variance 1 in every column.

    Raises:
        ShapeError: there are no two axes, or T is too small.
        ValueError: context is not an integer ≥ 1, or more than the months to train on; a column of these is constant.

    Source:
        Zhou et al. 2021 (Informer), 12/4/4 months; all later work on ETTh1 does the same.
    """
    check_dtypes("split_series", {"values": values})
    check_shapes("split_series", {"values": (values, "tc")})
    if values.ndim != 2 or len(values) < 20 * MONTH:
        raise ShapeError(f"split_series: values must be (T ≥ {20 * MONTH}, C), got {tuple(values.shape)}")
    if check_count("split_series", "context", context) > 12 * MONTH:
        raise ValueError(f"split_series: context must be at most {12 * MONTH} hours, got {context}")
    known = values[: 12 * MONTH]
    scale = known.std(0, correction=0)
    if not holds(scale > 0):
        raise ValueError(f"split_series: every column must vary, got column {int(scale.argmin())} constant in training")
    values = (values - known.mean(0)) / scale
    return tuple(values[max(0, begin * MONTH - context) : end * MONTH] for begin, end in ((0, 12), (12, 16), (16, 20)))


def series_windows(
    part: torch.Tensor, begin: torch.Tensor, context: int, horizon: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of a series: hours that are known, and those after them, which are to be forecast.

    Args:
        part: (T, C).
        begin: (B,) int64, the first hour of each window, from 0 to T - context - horizon.
        context: hours known.
        horizon: hours to forecast.

    Returns:
        inputs (B, context, C) and targets (B, horizon, C).

    Raises:
        ValueError: a count is not an integer ≥ 1, or a window does not lie within the series.
    """
    check_tensor("series_windows", "part", part)
    check_tensor("series_windows", "begin", begin)
    if part.ndim != 2 or begin.ndim != 1 or begin.is_floating_point() or begin.is_complex():
        got = f"{tuple(part.shape)} and {begin.dtype} {tuple(begin.shape)}"
        raise ShapeError(f"series_windows: expected part (T, C) and integers begin (B,), got {got}")
    check_count("series_windows", "context", context)
    last = len(part) - context - check_count("series_windows", "horizon", horizon)
    if len(begin) and not holds((begin >= 0) & (begin <= last)):
        span = f"{int(begin.min())} to {int(begin.max())}"
        raise ValueError(f"series_windows: begin must be in 0 to {last}, got {span}")
    windows = part[begin[:, None] + torch.arange(context + horizon, device=begin.device)]
    return windows[:, :context], windows[:, context:]
