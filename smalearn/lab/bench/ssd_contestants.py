"""Who takes part in the benchmark `ssd`: ours, the paper's listing, and other libraries' where they are installed."""

import importlib
from functools import partial

import torch

from smalearn import fast
from smalearn.lab.bench.contestants import CHUNK_LEN, Contestant, itself, ours, simple_gla
from smalearn.ssd import ssd_chunked

__all__ = ["CONTESTANTS", "textbook"]


def textbook(X: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """State space duality as the paper lists it: four steps, the third a product with a matrix over all chunks.

    Args:
        X: (batch, T, heads, P), T a multiple of the chunk length.
        log_a: (batch, T, heads) log decay.
        B: (batch, T, heads, N).
        C: (batch, T, heads, N).

    Returns:
        Y (batch, T, heads, P).

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
    kept = (sums[..., -1:] - sums).exp().permute(0, 2, 3, 1)[..., None]
    updates = torch.einsum("bclhn,bclhp->bchpn", B * kept, X)
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
    """Under (C, B, X) for (Q, K, V)."""
    run = simple_gla()
    return lambda X, log_a, B, C: run(C, B, X, log_a)


def _transformers():
    """It multiplies X and A by dt: dt = 1, and log_a for A, leave one needless product of each."""
    importlib.import_module("transformers").logging.set_verbosity_error()  # it advises a kernel for GPUs
    run = importlib.import_module("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan
    return lambda X, log_a, B, C: run(X, torch.ones_like(log_a), log_a, B, C, chunk_size=CHUNK_LEN)


def _mamba_ssm():
    """The authors' own listing; the library can be imported only where its GPU kernels are built."""
    run = importlib.import_module("mamba_ssm.modules.ssd_minimal").ssd_minimal_discrete
    return lambda X, log_a, B, C: run(X, log_a, B, C, CHUNK_LEN)[0]


CONTESTANTS = (
    Contestant("fast.ssd", partial(ours, fast.ssd), ours=True),
    Contestant("ssd_chunked", partial(ours, ssd_chunked, chunk_len=CHUNK_LEN), ours=True),
    Contestant("textbook", partial(itself, textbook), time_first=True, every_head=True),
    Contestant("fla naive_chunk_simple_gla", _simple_gla, time_first=True, every_head=True),
    Contestant("transformers mamba2_chunk_scan", _transformers, time_first=True),
    Contestant("mamba_ssm ssd_minimal_discrete", _mamba_ssm, time_first=True, every_head=True),
)
