"""Who takes part: our forms of linear attention, a textbook listing, and other libraries' where they are installed."""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from smalearn.linear_attention import linear_attention_chunked, linear_attention_recomputed

__all__ = ["CONTESTANTS", "Contestant", "textbook"]

CHUNK_LEN = 64  # of all contestants


@dataclass(frozen=True)
class Contestant:
    """One implementation of causal linear attention.

    Attributes:
        name: as reports show it.
        load: imports what it needs and returns `run(Q, K, V, log_a) -> Y`; log_a is None without decay. It can be
            pickled, to be called in another process.
        ours: whether the others are its peers.
        time_first: whether its layout is (batch, T, heads, D), and not (batch, heads, T, D).
        decays: the contests it can enter: without decay (False), with one decay per token (True).
    """

    name: str
    load: Callable[[], Callable]
    ours: bool = False
    time_first: bool = False
    decays: tuple[bool, ...] = (False, True)


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


def _ours(function):
    """Our functions return the last state too."""
    return lambda Q, K, V, log_a: function(Q, K, V, log_a, chunk_len=CHUNK_LEN)[0]


def _textbook():
    return textbook


def _fla(module):
    """A module of flash-linear-attention, which warns where there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"fla.ops.{module}.naive")


def _simple_gla():
    """Chunked, one decay per token."""
    run = _fla("simple_gla").naive_chunk_simple_gla
    return lambda Q, K, V, log_a: run(Q, K, V, log_a, chunk_size=CHUNK_LEN, scale=1.0)[0]


def _linear_attn():
    """Chunked, without decay; its chunks have 64 tokens."""
    run = _fla("linear_attn").naive_chunk_linear_attn
    return lambda Q, K, V, _: run(Q, K, V, scale=1.0)


CONTESTANTS = (
    Contestant("linear_attention_chunked", partial(_ours, linear_attention_chunked), ours=True),
    Contestant("linear_attention_recomputed", partial(_ours, linear_attention_recomputed), ours=True),
    Contestant("textbook", _textbook),
    Contestant("fla naive_chunk_simple_gla", _simple_gla, time_first=True, decays=(True,)),
    Contestant("fla naive_chunk_linear_attn", _linear_attn, time_first=True, decays=(False,)),
)
