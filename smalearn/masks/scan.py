"""Scans over time, y_t = a_t y_(t-1) + x_t, by three algorithms.

Step by step; in chunks; and in log2(T) rounds, each parallel over all tokens. In chunks also those of one decay for all
tokens, and running sums, which have none.
"""

import torch

from smalearn._checks import broadcast_shapes, check_count, check_dtypes, check_shapes
from smalearn.masks.decay import decay_matrix, join_chunks, since_start, split_chunks

CHUNK_LEN = 16  # Chunk length of the scans: larger costs more decays, smaller more recursion levels.
SUM_LEN = 64  # Chunk length of running sums, which need no decays.


def scan_recurrent(x: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """y_t = exp(log_a[t]) y_(t-1) + x_t, one step after the other.

    Args:
        x: (..., T, columns).
        log_a: (..., T) log decays; the first acts on nothing.

    Returns:
        (..., T, columns), dtype of x.

    Raises:
        ShapeError: an operand has too few axes, T differs, or leading axes do not broadcast.

    Cost:
        2·T·columns operations in T steps.
    """
    _check_scan("scan_recurrent", x, log_a)
    leading = broadcast_shapes(x.shape[:-2], log_a.shape[:-1])
    # Decays with an axis behind them: of unbind(-1), and 8 tokens or more, Inductor of torch 2.13 has wrong gradients.
    a = log_a.exp().to(x.dtype)[..., None]  # (..., T, 1)
    y = x.new_zeros(*leading, x.shape[-1])
    rows = []
    for a_t, x_t in zip(a.unbind(-2), x.unbind(-2), strict=True):
        y = a_t * y + x_t
        rows.append(y)
    return torch.stack(rows, -2) if rows else x.expand(*leading, *x.shape[-2:])


def scan_chunked(x: torch.Tensor, log_a: torch.Tensor, chunk_len: int = CHUNK_LEN) -> torch.Tensor:
    """`scan_recurrent` in chunks: a dense product inside each, and a scan over their carry-outs.

    1. Multiply each chunk by its decay matrix as if it stood alone.
    2. The last row of each chunk goes through this same function (recursion), with one decay per chunk; the result is
       the state at each chunk's end, its carry-out.
    3. Add the previous carry-out, decayed, to each row.

    A NaN or infinity in x may reach all rows but those of the first chunk, also rows before it. Results and errors are
    those of `scan_recurrent`, and one error more.

    Args:
        x: (..., T, columns).
        log_a: (..., T) log decays; the first acts on nothing.
        chunk_len: tokens of a chunk, ≥ 2; the last chunk may be shorter.

    Raises:
        ValueError: chunk_len is not an integer ≥ 2.

    Cost:
        About T·(chunk_len + 2)·columns multiply-adds in matrix products, T·chunk_len decays, log(T) / log(chunk_len)
        levels.
    """
    _check_scan("scan_chunked", x, log_a)
    check_count("scan_chunked", "chunk_len", chunk_len, 2)
    length = x.shape[-2]
    if length <= chunk_len:
        return decay_matrix(log_a).to(x.dtype) @ x
    log_a = split_chunks(log_a[..., None], chunk_len)  # (..., C, chunk_len, 1)
    inside = decay_matrix(log_a[..., 0]).to(x.dtype) @ split_chunks(x, chunk_len)  # (..., C, chunk_len, columns)
    log_decay = since_start(log_a)
    carry_out = scan_chunked(inside[..., -1, :], log_decay[..., -1, 0], chunk_len)  # (..., C, columns)
    return _add_carry(inside, log_decay.exp().to(x.dtype), carry_out, length)


def scan_associative(x: torch.Tensor, log_a: torch.Tensor) -> torch.Tensor:
    """`scan_recurrent` in log2(T) rounds, each parallel over all tokens.

    Pairs compose: first (a, x), then (a', x') is (a' a, a' x + x'), with a = exp(log_a), which is associative. After
    round r every token holds the composition of the 2^r tokens up to it; next it takes over that of the token 2^r
    before. Arguments, results and errors are those of `scan_recurrent`.

    Cost:
        2·T·log2(T)·columns operations in log2(T) rounds.

    Source:
        Hillis and Steele 1986, "Data parallel algorithms".
    """
    _check_scan("scan_associative", x, log_a)
    leading = broadcast_shapes(x.shape[:-2], log_a.shape[:-1])
    x = x.expand(*leading, *x.shape[-2:])
    a = log_a.exp()  # and no sums of log_a: complex, -inf + -inf has an imaginary part NaN
    step = 1
    while step < x.shape[-2]:
        decayed = a[..., step:, None].to(x.dtype) * x[..., :-step, :]
        x = torch.cat([x[..., :step, :], x[..., step:, :] + decayed], -2)
        a = torch.cat([a[..., :step], a[..., step:] * a[..., :-step]], -1)
        step *= 2
    return x


def scan_constant(x, gamma, stride=1):
    """`scan_chunked` for the constant decay γ^stride, without a logarithm: γ = 0 is exact, and so is its gradient."""
    length = x.shape[-2]
    chunk_len = min(CHUNK_LEN, length)
    powers = decay_powers(gamma, chunk_len + 1, stride).to(x.dtype)  # (..., chunk_len + 1)
    L = lower_toeplitz(powers[..., :chunk_len])  # (..., chunk_len, chunk_len), the same for every chunk
    if length == chunk_len:
        return L @ x
    inside = L[..., None, :, :] @ split_chunks(x, chunk_len)  # (..., C, chunk_len, columns)
    carry_out = scan_constant(inside[..., -1, :], gamma, stride * chunk_len)
    return _add_carry(inside, powers[..., None, 1:, None], carry_out, length)


def running_sum(x):
    """`x.cumsum(-2)`, in chunks: cumsum along axis -2 strides through memory, which many columns make slow."""
    length = x.shape[-2]
    if length <= SUM_LEN:
        return x.cumsum(-2)
    inside = split_chunks(x, SUM_LEN).cumsum(-2)  # (..., C, SUM_LEN, columns)
    carry_out = running_sum(inside[..., -1, :])  # (..., C, columns)
    return _add_carry(inside, inside.new_ones(()), carry_out, length)


def _add_carry(inside, decay, carry_out, length):
    """The rows of all chunks, with what comes in: inside + decay · (carry-out of the previous chunk)."""
    nothing = torch.zeros_like(carry_out[..., :1, :])
    carry_in = torch.cat([nothing, carry_out[..., :-1, :]], -2)  # (..., C, columns)
    rows = torch.addcmul(inside, decay, carry_in[..., None, :])
    return join_chunks(rows, length)


def decay_powers(gamma, count, stride=1):
    """γ^0, γ^stride, γ^(2·stride), ...: (..., count)."""
    return gamma[..., None] ** (stride * torch.arange(count, device=gamma.device))


def lower_toeplitz(column):
    """The lower triangular Toeplitz matrix with this first column: (..., T) as (..., T, T)."""
    steps = torch.arange(column.shape[-1], device=column.device)
    offsets = steps[:, None] - steps
    return column[..., offsets.clamp(min=0)].tril()


def _check_scan(function, x, log_a):
    """Check x (..., T, columns) and log_a (..., T), of any floating dtypes."""
    check_dtypes(function, {"x": x})
    check_dtypes(function, {"log_a": log_a})
    if log_a.is_complex() and not x.is_complex():
        raise ValueError(f"{function}: log_a is complex but x is {x.dtype}; make it complex")
    if log_a.device != x.device:
        raise ValueError(f"{function}: log_a is on {log_a.device} but x is on {x.device}")
    check_shapes(function, {"x": (x, "tp"), "log_a": (log_a, "t")})
