"""Regrouping of any leading axes as (batch, groups, heads of a group), which all kernels work on, and back."""

import torch

from smalearn._checks import broadcast_shapes


def grouped(X, log_a, B, C, initial_state, beta=None, read=None):
    """The operands of SSD with three leading axes (b, g, r), without a copy where their strides allow it.

    Heads r of a group are those leading axes along which both B and C have size 1 or none; the last axis of the others
    is g, what is before it b. With beta (..., T), of the delta rule, heads share nothing, r = 1: B and C are expanded
    to all; `read` (..., T, N) are keys that read, None where those that write do.

    It returns X (b, g, r, T, P), log_a (b, g, r, T), B and C (b, g, 1, T, N), initial_state (b, g, r, P, N), with beta
    also it (b, g, 1, T) and read (b, g, 1, T, N); and a function that takes Y and the last state back to the leading
    axes of the arguments. The state has the axes of those that write it, which C does not.
    """
    operands = [(X, 2), (log_a, 1), (B, 2), (C, 2), (initial_state, 2), (beta, 1), (read, 2)][
        : 5 if beta is None else 7
    ]
    leading = [() if x is None else x.shape[: x.ndim - axes] for x, axes in operands]
    everything, written = broadcast_shapes(*leading), broadcast_shapes(*leading[:3], *leading[4:])
    maps = broadcast_shapes(leading[2], leading[3]) if beta is None else everything
    maps = (1,) * (len(everything) - len(maps)) + tuple(maps)
    shared = [axis for axis, size in enumerate(maps) if size == 1]
    own = [axis for axis, size in enumerate(maps) if size != 1]
    order, split = [*own, *shared], max(len(own) - 1, 1)
    sizes = [everything[axis] for axis in order]

    def group(x, axes, lead):
        if x is None:
            return None
        x = x.expand(*lead, *x.shape[x.ndim - axes :]).permute(*order, *range(len(lead), len(lead) + axes))
        kept = [*x.shape[: len(own)], 1, 1][: max(len(own), 2)]
        heads = torch.Size(x.shape[len(own) : len(lead)]).numel()
        return x.reshape(torch.Size(kept[:split]).numel(), kept[split], heads, *x.shape[len(lead) :])

    def ungroup(x):
        return x.reshape(*sizes, *x.shape[3:]).permute(*_inverse(order), len(order), len(order) + 1)

    def restore(Y, state):
        state, missing = ungroup(state), len(everything) - len(written)
        for axis, size in enumerate((1,) * missing + tuple(written)):
            state = state.narrow(axis, 0, size)  # equal along an axis that only C has
        return ungroup(Y), state.reshape(*written, *state.shape[-2:])

    leads = [everything, everything, maps, maps, *[everything] * 3][: len(operands)]
    return tuple(group(x, axes, lead) for (x, axes), lead in zip(operands, leads, strict=True)), restore


def _inverse(order):
    """The permutation that undoes `order`."""
    return [order.index(axis) for axis in range(len(order))]
