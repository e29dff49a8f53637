"""The associative scan: all states of a recurrence in a number of rounds that grows with log T."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from smalearn._checks import ShapeError, brief, broadcast_shapes, check_count, check_tensor, check_type
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.ssm.recurrent import check_ssm
from smalearn.ssm.transitions import start, transitions

Elements = tuple[torch.Tensor, ...]
Combine = Callable[[Elements, Elements], Elements]


class ScanCost(NamedTuple):
    """Cost of a scan: how many pairs it combines, and in how many rounds, each of which is one call of `combine`."""

    combines: int
    depth: int


def ssm_scan(
    X: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A state space model by an associative scan, the same function as `ssm_recurrent`.

    A step is the pair (A_t, B_t x_t). Two steps after one another are a step again, (a, b) then (a', b') being
    (a' a, a' b + b'), and this operation is associative: pairs of neighbours can be combined at the same time.
    Arguments, results and errors are those of `ssm_recurrent`.

    Cost:
        `scan_cost(T)`: fewer than 2·T combinations in at most 2·log2 T rounds. One costs P·N multiply-adds and the
        product of two transitions: 1, N or N³. All states are kept, T·P·N entries.

    Source:
        Blelloch 1990, "Prefix sums and their applications"; Smith et al. 2023 (S5), section 2.2.
    """
    check_ssm("ssm_scan", X, A, B, initial_state, C=(C, "tn"))
    A, B, C, U, initial_state = widen(X, A, B, C, X, initial_state)
    state = start(A, B, U, initial_state)
    if not X.shape[-2]:
        leading = broadcast_shapes(state.shape[:-2], C.shape[:-2])
        return X.new_zeros(*leading, *X.shape[-2:]), state
    inputs = contract("TP, TN -> TPN", U, B)
    inputs = inputs.expand(*broadcast_shapes(inputs.shape[:-3], state.shape[:-2]), *inputs.shape[-3:])
    A, act, compose = transitions(A, B)
    # The state before the first step is an input of the first step.
    first = inputs[..., :1, :, :] + act(A[..., :1, :, :], state[..., None, :, :])
    inputs = torch.cat([first, inputs[..., 1:, :, :]], -3)

    def combine(earlier, later):
        (a, b), (a_later, b_later) = earlier, later
        return compose(a_later, a), act(a_later, b) + b_later

    _, H = scan_by_pairs(combine, (A, inputs))
    return contract("TPN, TN -> TP", H, C).to(X.dtype), H[..., -1, :, :]


def scan_by_pairs(combine: Combine, elements: Elements) -> Elements:
    """All prefixes e_0, e_0 e_1, e_0 e_1 e_2, ... with little work.

    Combine neighbours, scan the pairs, and fill in the places between them.

    Args:
        combine: associative; takes two tuples like `elements` and combines them along the time axis, earlier one first.
        elements: tensors with time as axis -3, of one length T.

    Returns:
        Tensors of the same shapes: the combination of elements 0..t at time t.

    Raises:
        ShapeError: an element has fewer than three axes, or another T than the first.
        TypeError: an argument is not a function, or not a tuple of tensors.
        ValueError: there is no tensor.

    Cost:
        `scan_cost(T, "pairs")`: fewer than 2·T combinations, in at most 2·log2 T rounds.

    Source:
        Ladner and Fischer 1980; Blelloch 1990.
    """
    _check_scan("scan_by_pairs", combine, elements)
    return _by_pairs(combine, elements)


def _by_pairs(combine, elements):
    """`scan_by_pairs` of checked arguments."""
    length = elements[0].shape[-3]
    if length < 2:
        return elements
    earlier = tuple(x[..., 0 : length - 1 : 2, :, :] for x in elements)
    later = tuple(x[..., 1::2, :, :] for x in elements)
    odd = _by_pairs(combine, combine(earlier, later))
    first = tuple(x[..., :1, :, :] for x in elements)
    if length == 2:
        return tuple(torch.cat(pair, -3) for pair in zip(first, odd, strict=True))
    before = tuple(x[..., : (length - 1) // 2, :, :] for x in odd)
    even = combine(before, tuple(x[..., 2::2, :, :] for x in elements))
    return tuple(_interleave(torch.cat([x, y], -3), z) for x, y, z in zip(first, even, odd, strict=True))


def scan_by_doubling(combine: Combine, elements: Elements) -> Elements:
    """All prefixes in the fewest rounds: combine each with the one 1, 2, 4, ... places before it.

    Arguments and results are those of `scan_by_pairs`.

    Cost:
        `scan_cost(T, "doubling")`: at most T·log2 T combinations, in ⌈log2 T⌉ rounds.

    Source:
        Hillis and Steele 1986, "Data parallel algorithms".
    """
    _check_scan("scan_by_doubling", combine, elements)
    length, distance = elements[0].shape[-3], 1
    while distance < length:
        earlier = tuple(x[..., : length - distance, :, :] for x in elements)
        combined = combine(earlier, tuple(x[..., distance:, :, :] for x in elements))
        done = (x[..., :distance, :, :] for x in elements)
        elements = tuple(torch.cat(pair, -3) for pair in zip(done, combined, strict=True))
        distance *= 2
    return elements


def scan_cost(length: int, method: Literal["pairs", "doubling"] = "pairs") -> ScanCost:
    """Work and depth of a scan over a sequence, counted in combinations of two elements.

    A loop needs T - 1 combinations in T - 1 rounds.

    Args:
        length: T ≥ 0.
        method: "pairs" for `scan_by_pairs`, "doubling" for `scan_by_doubling`.

    Returns:
        How many combinations, and in how many rounds; those of one round can all be done at the same time.

    Raises:
        ValueError: length is not an integer ≥ 0, or there is no such method.

    Example:
        >>> scan_cost(1024), scan_cost(1024, "doubling")
        (ScanCost(combines=2036, depth=19), ScanCost(combines=9217, depth=10))
    """
    check_count("scan_cost", "length", length, 0)
    if not isinstance(method, str) or method not in ("pairs", "doubling"):
        raise ValueError(f"scan_cost: method must be 'pairs' or 'doubling', got {brief(method)}")
    if method == "doubling":
        rounds = max(0, length - 1).bit_length()
        return ScanCost(sum(length - 2**k for k in range(rounds)), rounds)
    if length < 2:
        return ScanCost(0, 0)
    pairs = scan_cost(length // 2)
    return ScanCost(length // 2 + pairs.combines + (length - 1) // 2, pairs.depth + (2 if length > 2 else 1))


def _check_scan(function, combine, elements):
    """Check a function of two tuples, and tensors with time as axis -3, of one length."""
    if not callable(combine):
        raise TypeError(f"{function}: combine must be a function of two tuples, got {type(combine).__name__}")
    check_type(function, "elements", elements, tuple, list)
    if not elements:
        raise ValueError(f"{function}: elements must have at least one tensor, got none")
    for i, x in enumerate(elements):
        check_tensor(function, f"elements[{i}]", x)
        if x.ndim < 3 or x.shape[-3] != elements[0].shape[-3]:
            expected = "axes (..., T, ·, ·), with one T for all"
            raise ShapeError(f"{function}: elements[{i}] needs {expected}, got shape {tuple(x.shape)}")


def _interleave(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """The entries of both along axis -3 in turn, beginning with an even one; even may have one more."""
    mixed = torch.stack([even[..., : odd.shape[-3], :, :], odd], -3).flatten(-4, -3)
    return torch.cat([mixed, even[..., odd.shape[-3] :, :, :]], -3)
