"""Who takes part: our forms of linear attention, a textbook listing, and other libraries' where they are installed."""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from smalearn import fast
from smalearn.lab.bench.problem import Problem, SSDProblem, job
from smalearn.linear_attention import (
    linear_attention_chunked,
    linear_attention_recomputed,
    linear_attention_recurrent,
)

__all__ = ["BACKWARDS", "CONTESTANTS", "Contestant", "itself", "ours", "simple_gla", "textbook"]

CHUNK_LEN = 64  # of all contestants but the fast ones, which choose for themselves


@dataclass(frozen=True)
class Contestant:
    """One implementation of causal linear attention, or of state space duality.

    What lies between our layout and its own is not timed.

    Attributes:
        name: as reports show it.
        load: imports what it needs and returns `run(*arguments) -> Y`, with the arguments of the problems; log_a is
            None without decay. It can be pickled, to be called in another process.
        ours: whether the others are its peers.
        time_first: whether its layout is (batch, T, heads, ...), and not (batch, heads, T, ...).
        every_head: whether it takes what heads share once for each head.
        kinds: the problems that it can solve, all if None.
    """

    name: str
    load: Callable[[], Callable]
    ours: bool = False
    time_first: bool = False
    every_head: bool = False
    kinds: tuple[str, ...] | None = None

    def enters(self, problem: Problem | SSDProblem) -> bool:
        """Whether it can solve a problem."""
        return self.kinds is None or problem.kind in self.kinds

    def job(self, problem: Problem | SSDProblem) -> Callable[[bool], list[torch.Tensor]]:
        """`problem.job` of this contestant, with inputs and answers in its own layout."""
        arguments, dY = problem.inputs()
        return job(self.load(), [self._given(x, problem.heads) for x in arguments], self._given(dY, problem.heads))

    def _given(self, x, heads):
        """A tensor (batch, heads or 1, T, ...) in its layout."""
        if x is None:
            return None
        x = x.expand(-1, heads, *x.shape[2:]) if self.every_head else x
        return (x.transpose(1, 2) if self.time_first else x).contiguous()

    def returned(self, answers: list[torch.Tensor], problem: Problem | SSDProblem) -> list[torch.Tensor]:
        """Its answers in our layout, the gradients of what heads share summed over them."""
        arguments, dY = problem.inputs()
        answers = [x.transpose(1, 2) for x in answers] if self.time_first else answers
        shapes = [x.shape for x in (dY, *arguments) if x is not None]
        return [x.sum_to_size(shape) for x, shape in zip(answers, shapes, strict=False)]  # Y alone, or all


def textbook(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, log_a: torch.Tensor | None) -> torch.Tensor:
    """The chunked form as it is usually written: all chunks at once, then a loop over their states.

    Args:
        Q: (batch, heads, T, N), T a multiple of the chunk length.
        K: (batch, heads, T, N).
        V: (batch, heads, T, P).
        log_a: (batch, heads, T) log decay, or None.

    Returns:
        Y (batch, heads, T, P).

    Cost:
        T·chunk_len·(N + P) + 2·T·N·P multiply-adds.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6, the block decomposition.
    """
    log_a = Q.new_zeros(Q.shape[:-1]) if log_a is None else log_a
    q, k, v, a = (x.unflatten(2, (-1, CHUNK_LEN)) for x in (Q, K, V, log_a))
    sums = a.cumsum(-1)
    below = torch.ones(CHUNK_LEN, CHUNK_LEN, dtype=torch.bool).tril()
    L = (sums[..., :, None] - sums[..., None, :]).masked_fill(~below, -torch.inf).exp()
    inside = torch.einsum("bhcts,bhcsp->bhctp", L * torch.einsum("bhctn,bhcsn->bhcts", q, k), v)
    updates = torch.einsum("bhcsn,bhcsp->bhcnp", k * (sums[..., -1:] - sums).exp()[..., None], v)
    decays = sums[..., -1].exp()
    state, states = torch.zeros_like(updates[:, :, 0]), []
    for chunk in range(updates.shape[2]):
        states.append(state)
        state = decays[:, :, chunk, None, None] * state + updates[:, :, chunk]
    past = torch.einsum("bhctn,bhcnp->bhctp", q * sums.exp()[..., None], torch.stack(states, 2))
    return (inside + past).flatten(2, 3)


def ours(function, **options):
    """Our functions return the last state too."""
    return lambda *arguments: function(*arguments, **options)[0]


def itself(function):
    """A function of this package that needs no import."""
    return function


def simple_gla():
    """Chunked, one decay per token."""
    run = _fla("simple_gla").naive_chunk_simple_gla
    return lambda Q, K, V, log_a: run(Q, K, V, log_a, chunk_size=CHUNK_LEN, scale=1.0)[0]


def _linear_attn():
    """Chunked, without decay; its chunks have 64 tokens."""
    run = _fla("linear_attn").naive_chunk_linear_attn
    return lambda Q, K, V, _: run(Q, K, V, scale=1.0)


def _fla(module):
    """A module of flash-linear-attention, which warns where there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"fla.ops.{module}.naive")


_FAST = Contestant("fast.linear_attention", partial(ours, fast.linear_attention), ours=True)
_CHUNKED = Contestant(
    "linear_attention_chunked", partial(ours, linear_attention_chunked, chunk_len=CHUNK_LEN), ours=True
)

CONTESTANTS = (
    _FAST,
    _CHUNKED,
    Contestant("textbook", partial(itself, textbook)),
    Contestant("fla naive_chunk_simple_gla", simple_gla, time_first=True, kinds=("one decay per token",)),
    Contestant("fla naive_chunk_linear_attn", _linear_attn, time_first=True, kinds=("no decay",)),
)

BACKWARDS = (
    _FAST,
    Contestant("linear_attention_recomputed", partial(ours, linear_attention_recomputed), ours=True),
    _CHUNKED,
    Contestant("linear_attention_recurrent", partial(ours, linear_attention_recurrent), ours=True),
)
"""Those whose memory is compared: two that recompute, and two that autograd differentiates."""
