"""Implementations on a CPU: ours, textbook listings, and other libraries' where they are installed."""

import importlib
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch

from benchmarks.implementation import Implementation
from benchmarks.problem import by_segments
from smalearn import fast
from smalearn.linear_attention import (
    delta_rule_chunked,
    delta_rule_recurrent,
    l2norm,
    linear_attention_chunked,
    linear_attention_recomputed,
    linear_attention_recurrent,
)
from smalearn.ssd import ssd_chunked

CHUNK_LEN = 64  # of all but the fast ones, which choose for themselves


def every_head(X, log_a, B, C):
    """B and C once for each head."""
    return X, log_a, *(x.expand(-1, X.shape[1], -1, -1) for x in (B, C))


def given(function: Callable) -> Callable:
    """A function that needs no import."""
    return function


def ours(function: Callable, **options: object) -> Callable:
    """Y of a function that returns the last state, too."""
    return lambda *arguments: function(*arguments, **options)[0]


def _attention(function, **options):
    """Y of one of our linear attentions, whose arguments are Q, K and V."""
    return lambda X, log_a, B, C: function(C, B, X, log_a, **options)[0]


def compiled(load: Callable, function: Callable, **options: object) -> Callable:
    """`load(function, **options)`, the function compiled by PyTorch's Inductor at its first call, for every size.

    A call raises ImportError where there is no C++ compiler.
    """
    torch._dynamo.config.recompile_limit = 64  # sizes
    run = load(torch.compile(function, dynamic=False, fullgraph=True), **options)

    def try_to(*arguments):
        try:
            return run(*arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise ImportError(f"torch.compile: {str(error).splitlines()[0]}") from None

    return try_to


class Products(torch.autograd.Function):
    """The matrix products that linear attention in chunks needs, alone: no masks, no decays, no sums, no new memory.

    Forward these are the scores, their product with the values, the states and what these say; backward twice as many.
    What comes out are numbers without meaning. `bmm(name, left, right)` is a product into memory of that name.
    """

    @staticmethod
    def forward(ctx, bmm, chunk_len, V, log_a, K, Q):
        """One of the results, in the shape of V."""
        q, k, v = (x.reshape(-1, chunk_len, x.shape[-1]) for x in (Q, K, V))
        scores, states = bmm("scores", q, k.mT), bmm("states", v.mT, k)
        bmm("inside", scores, v)
        ctx.save_for_backward(q, k, v, scores, states)
        ctx.bmm, ctx.log_a = bmm, log_a
        return bmm("past", q, states.mT).view(V.shape)

    @staticmethod
    def backward(ctx, dY):
        """Results in the shapes of the operands."""
        (q, k, v, scores, states), bmm = ctx.saved_tensors, ctx.bmm
        d = dY.reshape(v.shape)
        dscores, dstates = bmm("dscores", d, v.mT), bmm("dstates", d.mT, q)
        for name, left, right in (("q", dscores, k), ("k", dscores.mT, q), ("v", scores.mT, d)):
            bmm(f"d{name} inside", left, right)
        dq, dk, dv = bmm("dq", d, states), bmm("dk", v, dstates), bmm("dv", k, dstates.mT)
        return None, None, dv.view(dY.shape), ctx.log_a, *(x.view(*dY.shape[:-1], -1) for x in (dk, dq))


def products_only(chunk_len: int) -> Callable:
    """`Products` of chunks of that length, with their memory."""
    memory = {}

    def bmm(name, left, right):
        shape = len(left), left.shape[1], right.shape[2]
        if name not in memory or memory[name].shape != shape:
            memory[name] = left.new_empty(shape)
        return torch.bmm(left, right, out=memory[name])

    return partial(Products.apply, bmm, chunk_len)


def textbook_attention(X: torch.Tensor, log_a: torch.Tensor | None, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """Chunked linear attention as it is usually written: all chunks at once, then a loop over their states.

    Cost:
        T·chunk_len·(N + P) + 2·T·N·P multiply-adds.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6, the block decomposition.
    """
    log_a = X.new_zeros(X.shape[:-1]) if log_a is None else log_a
    q, k, v, a = (x.unflatten(2, (-1, CHUNK_LEN)) for x in (C, B, X, log_a))
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


def textbook_ssd(X: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """State space duality as the paper lists it: four steps, the third a product with a matrix over all chunks.

    Cost:
        T·chunk_len·(N + P) + 2·T·N·P + (T/chunk_len)²·N·P multiply-adds for each head: the last one is not linear in T.

    Source:
        Dao and Gu 2024 (Mamba-2), listing 1.
    """
    X, log_a, B, C = (x.unflatten(1, (-1, CHUNK_LEN)) for x in (X, log_a, B, C))
    log_a = log_a.permute(0, 3, 1, 2)  # (batch, heads, chunks, chunk_len)
    sums = log_a.cumsum(-1)
    scores = torch.einsum("bclhn,bcshn->bhcls", C, B) * _segment_sums(log_a).exp()
    inside = torch.einsum("bhcls,bcshp->bclhp", scores, X)
    remaining = (sums[..., -1:] - sums).exp().permute(0, 2, 3, 1)[..., None]
    updates = torch.einsum("bclhn,bclhp->bchpn", B * remaining, X)
    across = _segment_sums(torch.nn.functional.pad(sums[..., -1], (1, 0))).exp()[..., :-1, 1:]
    states = torch.einsum("bhzc,bchpn->bzhpn", across, updates)
    past = torch.einsum("bclhn,bchpn->bclhp", C, states) * sums.exp().permute(0, 2, 3, 1)[..., None]
    return (inside + past).flatten(1, 2)


def _segment_sums(x):
    """The sum of x over s < k ≤ t at [t, s], -inf above the diagonal: sums of what lies between, not differences."""
    below = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool).tril()
    terms = x[..., None].expand(*x.shape, x.shape[-1]).masked_fill(~below.tril(-1), 0)
    return terms.cumsum(-2).masked_fill(~below, -torch.inf)


def _simple_gla():
    """Chunked, one decay per token."""
    run = fla("ops.simple_gla.naive").naive_chunk_simple_gla
    return lambda X, log_a, B, C: run(C, B, X, log_a, chunk_size=CHUNK_LEN, scale=1.0)[0]


def _linear_attn():
    """Chunked, without decay; its chunks have 64 tokens."""
    run = fla("ops.linear_attn.naive").naive_chunk_linear_attn
    return lambda X, _, B, C: run(C, B, X, scale=1.0)


def fla(module: str) -> ModuleType:
    """A module of flash-linear-attention, which warns where there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(f"fla.{module}")


def _transformers():
    """Chunked; it multiplies X and A by dt: dt = 1, and log_a for A, leave one needless product of each.

    Without the wrapper, which takes mamba_ssm's program for a GPU where mamba_ssm is.
    """
    importlib.import_module("transformers").logging.set_verbosity_error()  # it advises a kernel for GPUs
    run = inspect.unwrap(importlib.import_module("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan)
    return lambda X, log_a, B, C: run(X, torch.ones_like(log_a), log_a, B, C, chunk_size=CHUNK_LEN)


def _mamba_ssm():
    """The authors' own listing; the library can be imported only where its GPU kernels are built."""
    run = importlib.import_module("mamba_ssm.modules.ssd_minimal").ssd_minimal_discrete
    return lambda X, log_a, B, C: run(X, log_a, B, C, CHUNK_LEN)[0]


def delta_operands(X, log_a, B, C):
    """Q, K, V, beta and log_a of the delta rule: unit keys and queries, and strengths from a column of values."""
    return l2norm(C), l2norm(B), X, torch.sigmoid(X[..., 0]), log_a


def _scaled_operands(*tensors):
    """The same for a function that divides queries by √N."""
    Q, *others = delta_operands(*tensors)
    return Q * Q.shape[-1] ** 0.5, *others


def corrected(Q, K, V, beta, log_a):
    """Y of the delta rule, token by token."""
    return by_segments(delta_rule_recurrent, Q, K, V, beta, log_a)


def _divided(Q, *operands):
    """The same for a function that divides queries by √N."""
    return corrected(Q * Q.shape[-1] ** -0.5, *operands)


def _gated_delta_rule():
    """Chunked, by forward substitution in Python."""
    run = fla("ops.gated_delta_rule.naive").naive_chunk_gated_delta_rule
    return lambda Q, K, V, beta, log_a: run(Q, K, V, log_a, beta, chunk_size=CHUNK_LEN, scale=1.0)[0]


def _qwen3_next():
    """Chunked, by two triangular solves; without the wrapper, which takes fla's program for a GPU where fla is."""
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    run = inspect.unwrap(module.torch_chunk_gated_delta_rule)
    return lambda Q, K, V, beta, log_a: run(Q, K, V, log_a, beta, chunk_size=CHUNK_LEN)[0]


def _rule(name, load, **settings):
    return Implementation(name, load, **{"arguments": delta_operands, "exact": corrected} | settings)


def _ours(name, function, **options):
    return Implementation(name, partial(_attention, function, **options), base=True)


def _floor(chunk_len):
    load = partial(products_only, chunk_len)
    return Implementation(f"products only, chunks of {chunk_len}", load, base=True, checked=False)


def _peer(name, load, function):
    return Implementation(name, partial(compiled, load, function, chunk_len=CHUNK_LEN))


_FAST = _ours("fast.linear_attention", fast.linear_attention)
_CHUNKED = _ours("linear_attention_chunked", linear_attention_chunked, chunk_len=CHUNK_LEN)

LINEAR_ATTENTION = (
    _FAST,
    _CHUNKED,
    *map(_floor, (CHUNK_LEN, 32)),  # 32 is the fast one's
    _peer("linear_attention_chunked, compiled", _attention, linear_attention_chunked),
    Implementation("textbook", partial(given, textbook_attention)),
    Implementation("fla naive_chunk_simple_gla", _simple_gla, time_first=True, decay=True),
    Implementation("fla naive_chunk_linear_attn", _linear_attn, time_first=True, decay=False),
)

BACKWARDS = (
    _FAST,
    _ours("linear_attention_recomputed", linear_attention_recomputed),
    _CHUNKED,
    _ours("linear_attention_recurrent", linear_attention_recurrent),
)
"""Implementations whose memory is compared: two that recompute, and two that autograd differentiates."""

_EVERY_HEAD = {"arguments": every_head, "time_first": True}

COMPILED_SSD = _peer("ssd_chunked, compiled", ours, ssd_chunked)

SSD = (
    Implementation("fast.ssd", partial(ours, fast.ssd), base=True),
    Implementation("ssd_chunked", partial(ours, ssd_chunked, chunk_len=CHUNK_LEN), base=True),
    Implementation("textbook", partial(given, textbook_ssd), **_EVERY_HEAD),
    Implementation("fla naive_chunk_simple_gla", _simple_gla, **_EVERY_HEAD),
    Implementation("transformers mamba2_chunk_scan", _transformers, time_first=True),
    Implementation("mamba_ssm ssd_minimal_discrete", _mamba_ssm, **_EVERY_HEAD),
)

DELTA_RULE = (
    _rule("fast.delta_rule", partial(ours, fast.delta_rule), base=True),
    _rule("delta_rule_chunked", partial(ours, delta_rule_chunked), base=True),
    _rule("fla naive_chunk_gated_delta_rule", _gated_delta_rule, time_first=True),
    _rule(
        "transformers torch_chunk_gated_delta_rule",
        _qwen3_next,
        arguments=_scaled_operands,
        exact=_divided,
        time_first=True,
    ),
)
