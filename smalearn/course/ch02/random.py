"""The exercises of chapter 02 on random features."""

import math

import torch

from smalearn.course.exercises.core import exercise


def fourier_features(x, W):
    """Features (T, 2m) of x (T, N) along W (m, N) whose dot products are unbiased estimates of exp(q·k).

    Return e^(|x|²/2) / √m times (cos ω_1·x, …, cos ω_m·x, sin ω_1·x, …, sin ω_m·x) for every row x.

    Hint: `x @ W.mT` holds all angles, one row for each x; the m cosines come first, then the m sines.

    Hint: |x|² is `x.square().sum(dim=1, keepdim=True)`: a column, so that it multiplies each row.

    Hint: Two estimates meet in a dot product, each with the factor 1/√m: together they make the mean over m.

    Insight: Where |x| is large the factor in front is, too, and multiplies the noise: such features are at their worst
    where attention is sharp.
    """
    angles = x @ W.mT
    factor = (x.square().sum(dim=1, keepdim=True) / 2).exp() / math.sqrt(len(W))
    return factor * torch.cat([angles.cos(), angles.sin()], dim=1)


def _feature_cases(randn):
    """Rows x and directions W: a zero row, one direction, several of both, zero rows with several directions."""
    yield torch.zeros(1, 1, dtype=torch.float64), randn(1, 1)
    yield 0.5 * randn(2, 2), randn(1, 2)
    yield 0.5 * randn(4, 3), randn(5, 3)
    yield torch.zeros(2, 3, dtype=torch.float64), randn(4, 3)


def _by_entries(entry):
    """Features (T, 2m) from loops: first entry(projection, half_square, m, +1) of all directions, then with -1."""

    def features(x, W):
        rows = []
        for row in x.tolist():
            half_square = sum(value**2 for value in row) / 2
            projections = [sum(a * b for a, b in zip(row, w, strict=True)) for w in W.tolist()]
            rows.append([entry(p, half_square, len(W), sign) for sign in (1, -1) for p in projections])
        return torch.tensor(rows, dtype=torch.float64)

    return features


def _wave(p, sign):
    return math.cos(p) if sign > 0 else math.sin(p)


exercise(
    "2.3",
    "From the Gaussian to exp",
    claim="000:rfa",
    level=2,
    minutes=10,
    cases=_feature_cases,
    oracle=_by_entries(lambda p, half, m, sign: math.exp(half) * _wave(p, sign) / math.sqrt(m)),
    wrong={
        "the factor e^(|x|²/2) is missing: these features "
        "estimate the Gaussian kernel exp(-|q - k|²/2)": "(x.square().sum(dim=1, keepdim=True) / 2).exp() → 1",
        "this is the map as the Mamba-2 paper prints it: e^(|x|²/2) and 1/√m are missing, "
        "and attention with it tends to softmax(q·k - |k|²/2)": "return factor * → return",
        "your angles are 2π ω·x: here they are ω·x": "x @ → 2 * math.pi * x @",
        "these are the positive features of the hyperbolic map: cosines and sines are "
        "asked for": "(x.square → (-x.square ; len(W) → 2 * len(W) ; angles.cos() → angles.exp() ; angles.sin() → "
        "(-angles).exp()",
        "the second half are cosines again: sines are asked for": "sin → cos",
        "the factor is added: it multiplies each row": "math.sqrt(len(W)) → 1 ; factor * → factor + ; dim=1) → "
        "dim=1) / math.sqrt(len(W))",
        "a quarter stands in your exponent: the factor is e^(|x|²/2)": "/ 2 → / 4",
        "you divide by the root of the number of rows of x: m is the number of rows of W": "len(W) → len(x)",
        "your factor is e^(|x|²): the Gaussian is e^(-|q - k|²/2), with a half": " / 2 → ",
        "the factor is e^(+|x|²/2) here, because the Gaussian has too little of it; "
        "with the minus sign the norms count against the score twice": "(x.square → (-x.square",
        "the length is not squared: the factor is e^(|x|²/2)": "x.square().sum(dim → x.norm(dim",
        "|x|² is the sum of the squares, not their mean": "sum(dim → mean(dim",
        "|x|² is a sum of squares, not the square of the "
        "sum": "x.square().sum(dim=1, keepdim=True) → x.sum(dim=1, keepdim=True).square()",
        "the norm is that of the whole matrix: each row has its own": "sum(dim=1, keepdim=True) → sum()",
        "you divide by √N: m is the number of directions, the rows of W": "len(W) → W.shape[1]",
        "the sines are missing: m cosines, then m sines": ", angles.sin() → ",
        "√2 cannot stand for the sines: cos a cos b "
        "alone is no cosine of a difference": "torch.cat([angles.cos(), angles.sin()], dim=1) → 2**0.5 * angles.cos()",
        "your directions are brought to length 1: "
        "they are Gaussian as they are": "W.mT → (W / W.norm(dim=1, keepdim=True)).mT",
        "your factor is of the direction, e^(|ω|²/2): "
        "it is of the row, e^(|x|²/2)": "x.square().sum(dim=1, keepdim=True) → W.square().sum(1).repeat(2)",
        "the factor stands on the cosines alone: sines need it too": "return factor * → return ; angles.cos() → "
        "factor * angles.cos() ; angles.sin() → angles.sin() / math.sqrt(len(W))",
        "each side carries 1/√m, so that the product has 1/m; you have 1/m on each side": "math.sqrt(len(W)) → len(W)",
        "cosine and sine of a direction make ONE estimate: divide by √m, not by √(2m)": "len(W) → 2 * len(W)",
    },
)(fourier_features)


def positive_features(x, W):
    """Positive features (T, 2m) of x (T, N) along W (m, N), each direction with both signs.

    Return e^(-|x|²/2) / √(2m) times (e^(ω_1·x), …, e^(ω_m·x), e^(-ω_1·x), …, e^(-ω_m·x)) per row.

    Hint: The form is that of exercise 2.3 with other waves and another factor. Now 2m are averaged, not m.

    Hint: `(x @ W.mT).exp()` are the first m features, `(-x @ W.mT).exp()` the last m.

    Hint: Multiply row by row with `(-x.square().sum(dim=1, keepdim=True) / 2).exp() / math.sqrt(2 * len(W))`.

    Insight: The variance of positive features goes to 0 with the weight itself, so that small weights stay small and no
    row sum is near 0 by accident.
    """
    projections = x @ W.mT
    factor = (-x.square().sum(dim=1, keepdim=True) / 2).exp() / math.sqrt(2 * len(W))
    return factor * torch.cat([projections.exp(), (-projections).exp()], dim=1)


exercise(
    "2.4",
    "Never negative",
    claim="000:performer-prf",
    level=2,
    minutes=5,
    cases=_feature_cases,
    oracle=_by_entries(lambda p, half, m, sign: math.exp(sign * p - half) / math.sqrt(2 * m)),
    wrong={
        "this is the factor e^(+|x|²/2) of the Fourier features; here the norms must be taken away": "-x → x",
        "this is the map as the Mamba-2 paper prints it: e^(-|x|²/2) and 1/√m are missing, and attention with "
        "it tends to softmax(q·k + |k|²/2)": "(-x.square().sum(dim=1, keepdim=True) / 2).exp() → 1 ; 2 * len(W) → 2",
        "the factor e^(-|x|²/2) is missing: the mean of e^(ω·(q + k)) is e^(|q + k|²/2), "
        "not e^(q·k)": "(-x.square().sum(dim=1, keepdim=True) / 2).exp() → 1",
        "you subtract the row's largest angle, as softmax may: here the sum is not divided by, "
        "and −ω·x gets it the other way": "x @ W.mT → x @ W.mT - (x @ W.mT).amax(1, keepdim=True)",
        "your factor is of the direction, e^(−|ω|²/2): "
        "it is of the row, e^(−|x|²/2)": "x.square().sum(dim=1, keepdim=True) → W.square().sum(1).repeat(2)",
        "the factor stands on the first half alone: the second needs it too": "return factor * → return ; "
        "projections.exp() → factor * projections.exp() ; (-projections).exp() → (-projections).exp() / math.sqrt(2 "
        "* len(W))",
        "these are cosh and sinh: a hyperbolic map has e^(+ω·x) and e^(−ω·x) side "
        "by side": "projections.exp(), (-projections).exp() → projections.cosh(), projections.sinh() ; 2 * len(W) → "
        "len(W)",
        "both halves are the same, cosh: e^(+ω·x) should stand in the first, e^(−ω·x) in the "
        "second": "projections.exp(), (-projections).exp() → projections.cosh(), projections.cosh()",
        "both halves are cosh, over √m: e^(+ω·x) and e^(−ω·x) stand side by side, over "
        "√(2m)": "projections.exp(), (-projections).exp() → projections.cosh(), projections.cosh() ; "
        "2 * len(W) → len(W)",
        "cosh is one feature for each direction: asked for are two, e^(+ω·x) and e^(−ω·x), side "
        "by side": "projections.exp(), (-projections).exp() → projections.cosh() ; 2 * len(W) → len(W)",
        "the second half is missing: every direction comes with both signs": ", (-projections).exp() →  ; 2 * → ",
        "your factor is e^(−|x|²): it is half of that, e^(−|x|²/2)": " / 2 → ",
        "your second half is −e^(ω·x): the sign stands in the exponent, e^(−ω·x)": "(-projections) → -projections",
        "your second half repeats the first: it should hold e^(−ω·x)": "-projections → projections",
        "the length is not squared: the factor is e^(−|x|²/2)": "x.square().sum(dim → x.norm(dim",
        "|x|² is the sum of the squares, not their mean": "sum(dim → mean(dim",
        "|x|² is a sum of squares, not the square of the "
        "sum": "x.square().sum(dim=1, keepdim=True) → x.sum(dim=1, keepdim=True).square()",
        "you divide by √(2N): m is the number of directions, the rows of W": "len(W) → W.shape[1]",
        "2m features are averaged, not m: divide by √(2m)": "2 * → ",
        "each side carries 1/√(2m), so that the product has 1/(2m); "
        "you have 1/(2m) on each side": "math.sqrt(2 * len(W)) → (2 * len(W))",
        "in the second half the whole exponent is negated: "
        "the norm must stay, with its minus": "(-projections) → (x.square().sum(dim=1, keepdim=True) - projections)",
        "the mean over the 2m features is missing: divide by √(2m)": " / math.sqrt(2 * len(W)) → ",
        "the mean over the m directions is missing: divide by √(2m), not by √2": "2 * len(W) → 2",
    },
)(positive_features)


def features_needed():
    """How many positive features it takes for a relative error of 0.1 in one weight at |q| = |k| = 2, q · k = 0.

    The error is the standard deviation of the estimate, divided by the weight.

    Hint: What is the relative variance of the mean of m features?

    Hint: Set the relative variance of section 6 equal to 0.1². What is |q + k|² of perpendicular vectors?

    Too little: One feature's variance is e^{|q + k|²} − 1 times the weight squared, and an error of 0.1 is a variance
    of 0.01.

    Too much: The mean of m features has 1/m of the variance of one, and 0.01 of the weight squared is enough.

    Insight: At half the norm, |q + k|² = 2, 640 features do: the norm decides, and a sharp model has large norms.
    """
    return 298_000


exercise(
    "2.5",
    "How many features",
    claim="000:performer-prf",
    kind="predict",
    level=1,
    minutes=4,
    tolerance=0.02,  # two digits
    oracle=lambda: math.expm1(8) / 0.1**2,
    wrong={
        "the error is the square root of the variance: "
        "ask for a variance of 0.01, not of 0.1": "298_000 → math.expm1(8) / 0.1",
        "this is the variance of one feature, or how many an error of 1 takes: divide by 0.1²": lambda: math.expm1(8),
        "your exponent is half of what it should be: "
        "the variance goes with e^{|q + k|²}, whole": "298_000 → math.expm1(4) / 0.1**2",
        "one sign is asked for, so m directions are m features": lambda: 2 * math.expm1(8) / 0.1**2,
        "the variance of one feature is e^8 − 1, not 8": lambda: 8 / 0.1**2,
        "the variance of one feature is e^8 − 1, not 1": lambda: 1 / 0.1**2,
        "√(e^8 − 1)/√m is the error: solve for m, which squares the quotient": lambda: math.sqrt(math.expm1(8)) / 0.1,
        "|q + k|² is 8, not 16: the vectors are perpendicular, 4 + 4": lambda: math.expm1(16) / 0.1**2,
        "|q + k|² is 8 already: it is not squared once more": lambda: math.expm1(64) / 0.1**2,
        "this would do at |q + k|² = 2, half the norm": lambda: math.expm1(2) / 0.1**2,
    },
)(features_needed)
