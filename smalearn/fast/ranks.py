"""A scan over the ranks of a process group, of states that each rank turns from H into H Φ + E, and its gradient.

What travels does so while the caller computes: forward between `Scan.send` and `Scan.receive`; backward from where
autograd passes `receive` until it passes `send`. Autograd runs first what was made last, so between the two lies the
gradient of what was computed between them.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from smalearn._checks import ShapeError


class Rule(NamedTuple):
    """What a transition does to a state: `act` makes H Φ of H and Φ.

    `pull` makes the gradient of Φ of H and the gradient of H Φ, before it is summed over axes that Φ lacks.
    """

    act: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    pull: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


SCALAR = Rule(torch.mul, torch.mul)
MATRIX = Rule(torch.matmul, lambda H, gradient: H.mT @ gradient)


class Scan:
    """An exclusive scan over the ranks of a group, in their order, of H' = H Φ + E; made by sending Φ.

    Φ, the transition of this rank, is (..., 1, 1) or (..., N, N), of the same shape and dtype on all ranks. A rank that
    does not answer is a RuntimeError.
    """

    def __init__(self, function: str, rule: Rule, transition: torch.Tensor, group: "dist.ProcessGroup"):
        self.function, self.rule, self.transition, self.group = function, rule, transition, group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.initial_state, self.transitions, self.back = None, self.gather(transition), None

    def send(self, left: torch.Tensor, initial_state: torch.Tensor | None = None) -> torch.Tensor:
        """Send what this rank adds to the state, E (..., P, N): all axes of Φ, one shape and dtype on all ranks.

        It returns the carry-out from the initial state, which rank 0 alone may have, or from zeros: to be given to
        `receive`. An axis of the initial state that E has not is a ShapeError.
        """
        if initial_state is not None:
            self.initial_state = initial_state.to(left.dtype)
            shape, left = left.shape, self.rule.act(self.initial_state, self.transition) + left
            if left.shape != shape:
                axes, others = tuple(initial_state.shape[:-2]), tuple(shape[:-2])
                raise ShapeError(
                    f"{self.function}: initial_state has leading axes {axes}, but the others make {others}"
                )
        return _Leave.apply(left, self.transition, self)

    def receive(self, left: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Wait for all ranks, given what `send` returned: the states before and after this rank, (..., P, N) each."""
        carry_in = _Arrive.apply(left, self)
        carry_out = self.rule.act(carry_in, self.transition) + left
        return carry_in if self.initial_state is None else carry_in + self.initial_state, carry_out

    def gather(self, x):
        """Send x to all ranks; return a function that waits for the tensors of all of them, in their order."""
        x = x.detach().contiguous()
        parts = [torch.empty_like(x) for _ in range(self.ranks)]

        work = dist.all_gather(parts, x, group=self.group, async_op=True) if x.numel() else None

        def wait():
            try:
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                raise RuntimeError(
                    f"{self.function}: rank {self.rank} of {self.ranks} got no answer: another rank has died, has "
                    f"raised an error, or does not make the same calls ({str(error).strip().splitlines()[0]})"
                ) from error
            return parts

        return wait


class _Leave(torch.autograd.Function):
    """Sends what a slice adds to the state. Backward, it awaits the gradients that `_Arrive` has sent."""

    @staticmethod
    def forward(ctx, left, transition, scan):
        scan.terms = scan.gather(left)
        ctx.scan, ctx.shape = scan, transition.shape
        return left.view_as(left)

    @staticmethod
    def backward(ctx, gradient):
        scan = ctx.scan
        (gradients, carry_in, transitions), scan.back = scan.back, None
        gradients = gradients()[scan.rank + 1 :]
        after = _pass_on(scan.rule.act, [x.mT for x in reversed(transitions)], reversed(gradients), carry_in)
        flow = scan.rule.pull(carry_in, after).sum_to_size(ctx.shape) if ctx.needs_input_grad[1] else None
        return gradient + after, flow, None


class _Arrive(torch.autograd.Function):
    """Awaits what `_Leave` has sent, and makes this rank's carry-in of it. Backward, it sends the gradient of that."""

    @staticmethod
    def forward(ctx, left, scan):
        transitions, terms = scan.transitions(), scan.terms()
        carry_in = _pass_on(scan.rule.act, transitions[: scan.rank], terms[: scan.rank], left)
        ctx.save_for_backward(carry_in, *transitions[scan.rank + 1 :])
        ctx.scan, scan.transitions, scan.terms = scan, None, None
        return carry_in

    @staticmethod
    def backward(ctx, gradient):
        scan = ctx.scan
        if torch.is_grad_enabled():
            raise RuntimeError(f"{scan.function}: a gradient across ranks has no graph: create_graph must be False")
        carry_in, *transitions = ctx.saved_tensors
        scan.back = scan.gather(gradient), carry_in, transitions
        return None, None  # what the state was worth to others, `_Leave` learns from them


def _pass_on(act, transitions, terms, like):
    """Run the recurrence between slices, H = act(H, transition) + term, from zeros."""
    H = torch.zeros_like(like, memory_format=torch.contiguous_format)
    for transition, term in zip(transitions, terms, strict=True):
        H = act(H, transition) + term
    return H


def group_of(function: str, mesh: DeviceMesh | None, initial_state: torch.Tensor | None = None) -> "dist.ProcessGroup":
    """The process group of a mesh of one axis, of all processes if None; rank 0 alone may have an initial state."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{function}: there is no process group: call torch.distributed.init_process_group in every rank first"
        )
    if mesh is not None and mesh.ndim != 1:
        raise ValueError(f"{function}: mesh must have one axis, got {mesh.ndim}: take one of its axes, as mesh['cp']")
    if mesh is not None and mesh.get_coordinate() is None:
        raise RuntimeError(f"{function}: this process is not in the mesh")
    group = dist.group.WORLD if mesh is None else mesh.get_group()
    if initial_state is not None and (rank := dist.get_rank(group)):
        raise ValueError(f"{function}: initial_state belongs to rank 0, got one on rank {rank}: give None there")
    return group
