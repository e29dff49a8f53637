"""Log-linear attention: a state for each level of a tree over time, between the one state of a recurrence and all keys.

Y = (L ∘ W ∘ Q K^T) V with decays L and W[t, s] = w[t, level(t, s)], the mask of `masks.HierarchicalMask`. Decoding is a
binary counter: state b is the sum of a block of 2^b tokens, there if bit b of the number of tokens is 1. A new token is
a block of one; where two blocks have the same size they merge, as a bit carries.
"""

import torch

from smalearn._checks import ShapeError, broadcast_shapes, check_count, check_operands, check_tensor
from smalearn._structured import widen
from smalearn.contractions import contract
from smalearn.masks import HierarchicalMask, level_count
from smalearn.masks.decay import join_chunks, split_chunks, until_end
from smalearn.masks.hierarchical import add_levels_


def log_linear_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor,
    level_weights: torch.Tensor,
    chunk_len: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-linear attention in chunks: dense inside each, and between them one sum of states for each level.

    y_t = Σ_ℓ w[t, ℓ] H_ℓ q_t, where H_ℓ sums v_s k_s^T, decayed until t, over all s that the tree joins to t at level
    ℓ. All weights 1 give linear attention. A NaN or infinity in K or V, or an overflow, may reach all outputs of its
    chunk, also those before it.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        log_a: (..., T) log decay ≤ 0, −inf for a reset; dtype of Q or float32.
        level_weights: (..., T, levels) weights w, at least `masks.level_count(T)` levels; dtype of Q or float32.
        chunk_len: length ≥ 1 of a chunk, a power of 2.

    Returns:
        Y (..., T, P), dtype of Q, and the states after the last token (..., levels, P, N), as `log_linear_step` takes
        them, float32 if Q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or there are too few levels.
        ValueError: a dtype or device differs, log_a is (on a CPU) positive, or chunk_len is not a power of 2.

    Cost:
        T·chunk_len·(N + P) + T·N·P·(2 + log2(T / chunk_len) / 2) multiply-adds; T·chunk_len + 2·T·N·P / chunk_len
        entries.

    Source:
        Guo et al. 2025 (Log-linear attention), sections 3.2 and 3.3.

    Example:
        >>> one, weights = torch.ones(4, 1), torch.tensor([1.0, 0.5, 0.0]).expand(4, 3)
        >>> log_linear_attention(one, one, one, torch.zeros(4), weights)[0].ravel()
        tensor([1.0000, 1.5000, 1.0000, 1.5000])
    """
    _check("log_linear_attention", Q, K, V, log_a, level_weights)
    check_count("log_linear_attention", "chunk_len", chunk_len)
    if chunk_len & (chunk_len - 1):
        raise ValueError(f"log_linear_attention: chunk_len must be a power of 2, got {chunk_len}")
    _check_levels("log_linear_attention", level_weights, Q.shape[-2])
    q, k, v, gate, weights = widen(Q, Q, K, V, log_a[..., None], level_weights)
    states = _count(k, v, gate, weights.shape[-1])
    q, k, v, gate, weights = (split_chunks(x, chunk_len) for x in (q, k, v, gate, weights))
    L = HierarchicalMask(gate[..., 0], weights).dense(q.dtype)
    Y = contract("TS, SP -> TP", contract("TN, SN -> TS", q, k) * L, v).contiguous()
    sums = contract("TN, TP -> NP", k * until_end(gate).exp(), v)
    Y = join_chunks(add_levels_(Y, q, sums, gate, weights), Q.shape[-2])
    return Y.to(Q.dtype), states


def log_linear_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_a: torch.Tensor,
    level_weights: torch.Tensor,
    states: torch.Tensor,
    length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of `log_linear_attention`, for decoding.

    Args:
        q: (..., N) query.
        k: (..., N) key.
        v: (..., P) value.
        log_a: (...) log decay ≤ 0, dtype of q or float32.
        level_weights: (..., levels) weights of this token, at least `masks.level_count(length + 1)` of them.
        states: (..., levels, P, N) before this token, dtype of q or float32; zeros before the first.
        length: how many tokens came before.

    Returns:
        y (..., P), dtype of q, and the new states (..., levels, P, N), float32 if q is half precision.

    Raises:
        ShapeError: an axis has two sizes, or there are too few levels.
        ValueError: a dtype or device differs, log_a is (on a CPU) positive, or length is no integer ≥ 0.

    Cost:
        3·levels·N·P multiply-adds.

    Source:
        Guo et al. 2025 (Log-linear attention), section 3.2.
    """
    _check("log_linear_step", q, k, v, log_a, level_weights, states, time="")
    _check_levels("log_linear_step", level_weights, check_count("log_linear_step", "length", length, 0) + 1)
    dtype = q.dtype
    q, k, v, gate, weights, states = widen(q, q, k, v, log_a[..., None, None, None], level_weights, states)
    states, block = gate.exp() * states, contract("P, N -> PN", v, k)[..., None, :, :].to(states.dtype)
    leading = broadcast_shapes(states.shape[:-3], block.shape[:-3])
    states, block = (x.expand(*leading, *x.shape[-3:]) for x in (states, block))
    read = torch.cat([block, states[..., :-1, :, :]], -3)
    y = contract("L, LP -> P", weights, (read * q[..., None, None, :]).sum(-1))
    # Blocks carry into the first bit of length + 1 that is 1. Tensors say which: one compiled program for any length.
    sizes = 2 ** torch.arange(states.shape[-3], device=states.device)[:, None, None]
    carries, stays = (length + 1) % (2 * sizes) == 0, (length + 1) % sizes != 0
    block = block + torch.where(carries, states, 0).sum(-3, keepdim=True)
    return y.to(dtype), torch.where(stays, states, torch.where(carries, 0, block))


def _count(k, v, gate, levels):
    """The states of the binary counter after all tokens: the sum of each block that is there, decayed until the end."""
    length, decay = k.shape[-2], until_end(gate).exp()
    blocks, stop = [], 0
    for bit in reversed(range(levels)):
        start, stop = stop, stop + (length & (1 << bit))
        rows = slice(start, stop)
        blocks.append(contract("TP, TN -> PN", v[..., rows, :] * decay[..., rows, :], k[..., rows, :]))
    return torch.stack(blocks[::-1], -3).to(k.dtype)  # autocast multiplies in half precision


def _check(function, Q, K, V, log_a, weights, states=None, time="t"):
    """Check shapes, dtypes and devices of all operands, and the sign of log_a."""
    q, k, v = ("Q", "K", "V") if time else ("q", "k", "v")
    check_tensor(function, "log_a", log_a)
    wide = {"log_a": (log_a, time), "level_weights": (weights, time + "l"), "states": (states, "lpn")}
    check_operands(function, {q: (Q, time + "n"), k: (K, time + "n"), v: (V, time + "p")}, wide, real=True)


def _check_levels(function, weights, length):
    """Check that there are levels for so many tokens."""
    if max(length, 1) > (1 << weights.shape[-1]) >> 1:
        needed = f"{weights.shape[-1]}, expected at least {level_count(length)} for {length} tokens"
        raise ShapeError(f"{function}: axis 'l' of level_weights is {needed}")
