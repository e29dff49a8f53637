"""The exercise of appendix B on the precision of a state: rounding that remembers what it has lost."""

import torch

from smalearn.course.exercises.core import exercise


def store(state, top, rest_top):
    """What is kept of a state (..., P, N), and what is kept of what that loses.

    Round each row of the state to whole multiples of its own scale, such that its largest entry is `top` of them. What
    that loses, the rest, is rounded in the same way, to `rest_top` multiples. Return both as what they stand for, in
    the shape of the state. A row of zeros stays one.

    Hint: The scale of a row is its largest absolute value, divided by `top`: `amax(-1, keepdim=True)`.

    Hint: The rest is small: on the state's scale all of it would round to 0. Its rows have scales of their own. So one
    function does both.

    Hint: `(x / scale).round() * scale` rounds. Where a row is all 0 its scale is, too: `scale.where(scale > 0, 1)`.

    Insight: At 127 and 7 these are numbers of 8 and of 4 bits. With the rest added before the next token, small writes
    collect until they count.
    """

    def rounded(x, top):
        scale = x.abs().amax(-1, keepdim=True) / top
        return (x / scale.where(scale > 0, 1)).round() * scale

    kept = rounded(state, top)
    return kept, rounded(state - kept, rest_top)


def _entry_by_entry(state, top, rest_top):
    """One row after the other, one number after the other."""

    def row(numbers, top):
        scale = max(map(abs, numbers)) / top
        return [round(number / scale) * scale if scale else 0.0 for number in numbers]

    kept = [row(numbers, top) for numbers in state.reshape(-1, state.shape[-1]).tolist()]
    kept = torch.tensor(kept, dtype=state.dtype).view(state.shape)
    rest = [row(numbers, rest_top) for numbers in (state - kept).reshape(-1, state.shape[-1]).tolist()]
    return kept, torch.tensor(rest, dtype=state.dtype).view(state.shape)


def _states(randn):
    yield torch.zeros(1, 2).double(), 127, 7
    for shape, top, rest_top in [((2, 3), 127, 7), ((3, 4), 7, 3), ((2, 3, 4), 127, 7), ((2, 2, 5), 15, 127)]:
        rows = torch.logspace(0, 2, shape[-2]).double()[:, None]  # of different sizes
        yield rows * randn(*shape), top, rest_top
    silent = randn(2, 3, 4)
    silent[0, 1] = 0
    yield silent, 127, 7


exercise(
    "B.4",
    "A state that remembers its rounding",
    claim="009:feedback",
    level=2,
    minutes=10,
    cases=_states,
    oracle=_entry_by_entry,
    wrong={
        "one scale for the whole state: a quiet row beside a loud one rounds to 0": "amax(-1, keepdim=True) → max()",
        "you scale columns: each row, over N, has a scale of its own": "amax(-1, → amax(-2,",
        "a row of zeros has the scale 0, and 0/0 is no number": "scale.where(scale > 0, 1) → scale",
        "the largest entry counts with its sign: the largest ABSOLUTE value sets the scale": ".abs().amax → .amax",
        "you cut digits off: round to the nearest multiple": ".round() → .trunc()",
        "you round down: round to the nearest multiple": ".round() → .floor()",
        "the rest is kept as it is: it is to be rounded, too": "rounded(state - kept, rest_top) → state - kept",
        "this rounds the state once more: the rest is what the first rounding loses, state − kept": (
            "rounded(state - kept, rest_top) → rounded(state, rest_top)"
        ),
        "the rest has the state's scale: its rows have scales of their own": (
            "return kept, → scale = state.abs().amax(-1, keepdim=True) / top\n    rest = state - kept\n"
            "    return kept, (rest / scale.where(scale > 0, 1) * rest_top).round() / rest_top * scale #"
        ),
        "what is kept has the rest in it: return both, the one beside the other": (
            "return kept, rounded(state - kept, rest_top) → "
            "return kept + rounded(state - kept, rest_top), rounded(state - kept, rest_top)"
        ),
        "your rest has the wrong sign: it is what must be ADDED to what is kept": "state - kept → kept - state",
        "the rest is rounded to the state's multiples: it has its own, `rest_top`": "kept, rest_top → kept, top",
        "you keep whole numbers: multiply by the scale, for what they stand for": ".round() * scale → .round()",
        "you return state and rest together: both are asked for": (
            "return kept, rounded(state - kept, rest_top) → return kept + rounded(state - kept, rest_top)"
        ),
        "your largest entry is one multiple too high: −128 exists in 8 bits, 128 does not": "/ top → / (top + 1)",
    },
)(store)
