"""SSD of one sequence that lies on several machines, each of which has a slice of it.

To its carry-in H a slice is one big step, whatever its length: the carry-out is H' = a·H + E, where a is the product of
its decays and E the carry-out if it begins with zeros. So the ranks of a process group do this:

1. each computes (a, E) of its slice, which needs nobody;
2. all exchange these pairs, P·N + 1 numbers a head, and combine those to their left: an exclusive scan;
3. each runs its slice, once, from its carry-in.

The gradient goes the same way from right to left: that of a rank's carry-in is summed over the rank and all after it.

A group comes from `torch.distributed.init_process_group`, or from `torchrun` with it. Its backend carries the tensors:
"gloo" those of a CPU, "nccl" those of NVIDIA GPUs.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from smalearn import fast
from smalearn._checks import check_count, check_dtypes, check_shapes, check_ssd
from smalearn.fast.groups import grouped
from smalearn.masks.decay import until_end

__all__ = ["NOTE", "Traffic", "ssd", "traffic", "window"]

NOTE = 256
"""Bytes in which a rank tells the others what it is about to do, before it does it."""


class Traffic(NamedTuple):
    """Bytes that one rank receives from all others, in `ssd` and in its backward."""

    forward: int
    backward: int


def ssd(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    group: "dist.ProcessGroup | None" = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`smalearn.fast.ssd` of a sequence whose slices lie on the ranks of a process group, in the order of the ranks.

    H_t = exp(log_a_t) H_(t-1) + X_t B_t^T, Y_t = H_t C_t, where t runs through all slices.

    All ranks call it, and if one of them needs gradients all do and all call backward, from losses that together are
    the loss: a rank that has none of its own takes `0 * Y.sum()`. Every rank asks for gradients of the same arguments.
    Two calls give the same bits.

    Args:
        X: (..., T, P) this rank's slice of the inputs. T may differ from rank to rank, and be 0.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, dtype of X or float32.
        B: (..., T, N). Heads that share B and C have an axis of size 1, or none, there.
        C: (..., T, N).
        initial_state: on rank 0 the state (..., P, N) before the first token of all, dtype of X or float32; zeros if
            None, as it has to be on the other ranks.
        group: the ranks between which the sequence is split; all of them if None.

    Returns:
        Y (..., T, P), dtype of X, of this slice, and the state after this slice (..., P, N), float32 if X is half
        precision: the last rank has that of the whole sequence.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: a dtype or device differs, log_a (on a CPU) is positive, a rank other than 0 has an initial state,
            or (on a CPU, where it costs no waiting) the ranks differ in dtype, in the shape of the state, or in whether
            they need gradients. If one rank refuses its arguments, all others raise too.
        RuntimeError: there is no process group, or this process is not in it; a graph of the gradient is asked for, for
            a second derivative; or another rank has died or does not take part. "gloo" notices a death at once, and
            silence after the timeout of the group, which is yours to set:
            `init_process_group(timeout=timedelta(seconds=20))`, where torch's own is half an hour. The group is of no
            use after that.

    Cost:
        That of `fast.ssd`, and T·N·P multiply-adds for each head before it. `traffic` says how many bytes: as many for
        a slice of a million tokens as for one of ten. A rank waits for the others once, and once in the backward.

    Source:
        Dao and Gu 2024 (Mamba-2), section 8.2, where the states are sent from rank to rank.
    """
    function = "distributed.ssd"
    rank = _place(function, group)
    try:
        check_dtypes(function, {"log_a": log_a})
        check_ssd(function, X, log_a, B, C, initial_state)
        if rank and initial_state is not None:
            raise ValueError(f"{function}: initial_state belongs to rank 0, got one on rank {rank}: give None there")
    except (TypeError, ValueError):
        _refuse(function, X, group)
        raise
    (X, log_a, B, C, initial_state), restore = grouped(X, log_a, B, C, initial_state)
    decay, left = _step(X, log_a, B)
    if initial_state is not None:
        initial_state = initial_state.to(left.dtype)
        left = decay * initial_state + left
    _agree(function, left, group)
    carry_in = _CarryIn.apply(decay, left, torch.mul, group)
    if initial_state is not None:
        carry_in = carry_in + initial_state  # on rank 0, whose carry-in is zero
    return restore(*fast.ssd(X, log_a, B, C, carry_in))


def window(x: torch.Tensor, length: int, group: "dist.ProcessGroup | None" = None) -> torch.Tensor:
    """The last tokens before this rank's slice, for a causal convolution: zeros before the first token of all.

    They may come from several ranks, where slices are shorter than the window. What `ssd` says of calls and of
    gradients holds here too.

    Args:
        x: (..., T, D) this rank's slice. T may differ from rank to rank, and be 0.
        length: of the window, K - 1 for a convolution of K tokens.
        group: the ranks between which the sequence is split; all of them if None.

    Returns:
        (..., length, D), dtype of x.

    Raises:
        ShapeError: x has no axis of time.
        ValueError: length is not an integer ≥ 0, or (on a CPU) the ranks differ in dtype, in the shape of the window,
            or in whether they need gradients.
        RuntimeError: as in `ssd`.

    Cost:
        From every other rank a window and length² numbers, and a window in the backward.
    """
    function = "distributed.window"
    _place(function, group)
    try:
        check_dtypes(function, {"x": x})
        check_shapes(function, {"x": (x, "td")})
        check_count(function, "length", length, 0)
    except (TypeError, ValueError):
        _refuse(function, x, group)
        raise
    tokens = x.shape[-2]
    # The window, too, is a state: T tokens shift it by T places and fill these.
    kept = max(0, length - tokens)
    shift = torch.diag(x.new_ones(kept), length - kept)
    left = F.pad(x, (0, 0, length, 0))[..., tokens:, :]
    _agree(function, left, group)
    return _CarryIn.apply(shift, left, torch.matmul, group)


def traffic(ranks: int, heads: int, head_dim: int, state: int, itemsize: int = 4) -> Traffic:
    """Count the bytes that a rank receives in `ssd`, on a CPU; on a GPU `NOTE` fewer from each of the others.

    forward = (ranks - 1)·(heads·(P·N + 1)·itemsize + NOTE), backward = (ranks - 1)·heads·P·N·itemsize. T is not in it.

    Args:
        ranks: ≥ 1, in the group.
        heads: how many states there are, the batch included.
        head_dim: P.
        state: N.
        itemsize: bytes of a number of the state: 8 for float64, 4 for all others.

    Returns:
        Both counts.

    Raises:
        ValueError: an argument is not an integer ≥ 1.

    Example:
        >>> traffic(ranks=8, heads=24, head_dim=64, state=128)
        Traffic(forward=5507936, backward=5505024)
    """
    sizes = {"ranks": ranks, "heads": heads, "head_dim": head_dim, "state": state, "itemsize": itemsize}
    for name, size in sizes.items():
        check_count("traffic", name, size)
    states = heads * head_dim * state * itemsize
    return Traffic((ranks - 1) * (states + heads * itemsize + NOTE), (ranks - 1) * states)


def _step(X, log_a, B):
    """Effect of a slice on a state: the decay (b, g, r, 1, 1), and what it adds (b, g, r, P, N)."""
    wide = torch.promote_types(X.dtype, torch.float32)
    log_a = log_a.double()[..., None]  # a reset in a sum costs the others no digit
    decay = log_a.sum(-2, keepdim=True).exp().to(wide)
    weighted = X * until_end(log_a).exp().to(wide)
    return decay, torch.einsum("bgrtp, bgtn -> bgrpn", weighted, B[:, :, 0].to(wide))


class _CarryIn(torch.autograd.Function):
    """Carry-in of this rank, where every rank turns its carry-in H into the carry-out act(transition, H) + left."""

    @staticmethod
    def forward(ctx, transition, left, act, group):
        rank = dist.get_rank(group)
        gathered = _gather(torch.cat([transition.flatten(), left.flatten()]), group)
        transitions = [x[: transition.numel()].view(transition.shape) for x in gathered]
        terms = [x[transition.numel() :].view(left.shape) for x in gathered]
        carry_in = _pass_on(act, transitions[:rank], terms[:rank], left)
        ctx.save_for_backward(
            carry_in, *(x.clone() for x in transitions[rank + 1 :])
        )  # clone: a view would keep the whole gathered buffer
        ctx.act, ctx.group = act, group
        return carry_in

    @staticmethod
    def backward(ctx, gradient):
        if torch.is_grad_enabled():
            raise RuntimeError("distributed: a gradient across ranks has no graph: create_graph must be False")
        carry_in, *transitions = ctx.saved_tensors
        gradients = _gather(gradient, ctx.group)[dist.get_rank(ctx.group) + 1 :]
        after = _pass_on(ctx.act, [x.mT for x in reversed(transitions)], reversed(gradients), gradient)
        flow = (after * carry_in).sum((-2, -1), keepdim=True) if ctx.needs_input_grad[0] else None
        return flow, after, None, None


def _pass_on(act: Callable, transitions: Iterable, terms: Iterable, like: torch.Tensor) -> torch.Tensor:
    """Run the recurrence between slices, H = act(transition, H) + term, from zeros."""
    H = torch.zeros_like(like, memory_format=torch.contiguous_format)
    for transition, term in zip(transitions, terms, strict=True):
        H = act(transition, H) + term
    return H


def _place(function, group):
    """This process's rank in the group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{function}: there is no process group: call torch.distributed.init_process_group in every rank first"
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise RuntimeError(f"{function}: this process is not in the group")
    return rank


def _agree(function, left, group):
    """Check that all ranks are about to do the same; not on a GPU, where to read the answer is to wait."""
    gradients = "with" if torch.is_grad_enabled() and left.requires_grad else "without"
    _tell(function, f"{function} of {left.dtype}, {tuple(left.shape)}, {gradients} gradients", left, group)


def _refuse(function, x, group):
    """Tell the others, who would wait for this rank, that it will not come."""
    _tell(function, "arguments that it refuses", x, group, listen=False)


def _tell(function, text, like, group, listen=True):
    """Exchange a line between all ranks, and compare it."""
    if not getattr(like, "is_cpu", True):
        return
    note = torch.zeros(NOTE, dtype=torch.uint8)
    mine = text.encode()[:NOTE]
    note[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    for rank, other in enumerate(_gather(note, group)):
        theirs = bytes(other.tolist()).rstrip(b"\0").decode(errors="replace")
        if listen and theirs != text:
            own = dist.get_rank(group)
            raise ValueError(f"{function}: rank {own} has {text}, but rank {rank} has {theirs}")


def _gather(x, group):
    """Gather x of all ranks, of one shape and dtype, in their order."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(ranks)]
    if not x.numel():
        return parts
    try:
        dist.all_gather(parts, x, group=group)
    except RuntimeError as error:
        raise RuntimeError(
            f"distributed: rank {rank} of {ranks} got no answer: another rank has died, has raised an error, or does "
            f"not make the same calls ({str(error).strip().splitlines()[0]})"
        ) from error
    return parts
