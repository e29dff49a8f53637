"""The gated delta rule on a GPU: one program loops over the chunks of a head with the state on the chip.

In a chunk, with s the running sums of log a, L, e = exp(s) and f = exp(s_last - s) as in `programs.py`, H (N, P) the
state before it and B = diag(β), as in `fast.cpu.delta`,

    A  = (L B) ∘ K K^T                        below the diagonal: how each key meets the earlier ones
    T  = (I + A)^-1
    E  = T (V - (e ∘ K) H)                    what the memory, when it is asked, lacks of the values
    Y  = ((L B) ∘ Q K^T) E + (e ∘ Q) H
    H' = exp(s_last) H + K^T (f ∘ B E)

- T is built from inverses of blocks, twice as long each time: products of tiles alone, with nothing cut out of them.
  A power of A appears nowhere, for with keys that are alike those overflow, though T is small.
- T keeps the digits of float32 for every dtype: its errors grow with those of T, and products of T follow one another.
- A row past the end has β = 0, K = 0 and V = 0: it corrects nothing and writes nothing.
- No atomics: every entry is written by one program, once, so that two runs give the same bits.
"""

import torch
from torch.autograd import forward_ad

from smalearn.fast import tile as tl
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch
from smalearn.fast.triton.checks import check_grid, check_programs, check_triton, strided
from smalearn.fast.triton.configs import config, padded, without_matrix_units
from smalearn.fast.triton.pieces import at, chunk_sums, lower, read, write, zeros
from smalearn.fast.triton.plan import architecture
from smalearn.fast.triton.ssd import sums_of, triton_handles
from smalearn.linear_attention.delta import check_delta

__all__ = ["delta_handles", "delta_rule_forward", "delta_rule_of", "delta_rule_tiles", "delta_rule_triton"]

CHUNK_LEN = 32
"""Tokens of a chunk in half precision. T costs 8192 multiply-adds for each of them; with chunks of 64 it is 40960."""


def delta_rule_forward(
    q, k, v, beta, log_a, y, initial, final, length, sizes: tl.constexpr, precision: tl.constexpr,
    inverting: tl.constexpr, sums=None,
):  # fmt: skip
    """Outputs and last state for BP columns of a head; the grid is (tiles of P, heads, batch).

    An operand is a tuple: a pointer, and the strides of its axes (batch, head, 1, row, column).

    Args:
        q: (batch, head, 1, T, N).
        k: (batch, head, 1, T, N).
        v: (batch, head, 1, T, P).
        beta: (batch, head, 1, T, 1).
        log_a: (batch, head, 1, T, 1) log decays.
        y: outputs, like v.
        initial: (batch, head, 1, N, P), the state before the first token; zeros if None.
        final: the state after the last token, like initial.
        length: T.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
        inverting: of those that give T.
        sums: what `ssd_sums` has made of all log decays; if None they are summed here.
    """
    P: tl.constexpr = sizes[0]
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    head = (tl.program_id(2), tl.program_id(1), 0)
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    p = tl.program_id(0) * sizes[3] + tl.arange(0, sizes[3])
    H = zeros(sizes[4], sizes[3])
    if initial is not None:
        H += read(initial, head, n, p, N, P)
    for start in range(0, length, Q):
        rows = start + i
        coarse, fine, coarse_total, fine_total = chunk_sums(log_a, sums, head, start, i, length, Q)
        e, f = tl.exp2(coarse + fine), tl.exp2((coarse_total - coarse) + (fine_total - fine))
        b = tl.cast(tl.load(at(beta, head, rows, 0), mask=rows < length, other=0.0), tl.float32)
        K, queries = read(k, head, rows, n, length, N), read(q, head, rows, n, length, N)
        LB, before = lower(coarse, fine, i) * b[None, :], tl.cast(H, K.dtype)
        T = inverse(tl.dot(K, tl.trans(K), input_precision=precision) * LB, i, Q, inverting)
        E = read(v, head, rows, p, length, P) - tl.dot(K, before, input_precision=precision) * e[:, None]
        E = tl.dot(T, E, input_precision=precision)
        S = tl.dot(queries, tl.trans(K), input_precision=precision) * LB
        Y = tl.dot(queries, before, input_precision=precision) * e[:, None]
        Y += tl.dot(tl.cast(S, K.dtype), tl.cast(E, K.dtype), input_precision=precision)
        write(y, head, rows, p, length, P, Y)
        E = tl.cast(E * (f * b)[:, None], K.dtype)
        H = H * tl.exp2(coarse_total + fine_total) + tl.dot(tl.trans(K), E, input_precision=precision)
    write(final, head, n, p, N, P, H)


def inverse(A, i, size: tl.constexpr, precision: tl.constexpr):
    """(I + A)^-1 for what of A (size, size) is below the diagonal; above it A is 0. The size is 16 or 32."""
    T = tl.cast(i[:, None] == i[None, :], tl.float32)
    T -= between_siblings(A, i, 1)  # blocks of one token are their own inverses
    T = joined(T, A, i, 2, precision)
    T = joined(T, A, i, 4, precision)
    T = joined(T, A, i, 8, precision)
    if size > 16:
        T = joined(T, A, i, 16, precision)
    return T


def joined(T, A, i, s: tl.constexpr, precision: tl.constexpr):
    """T with inverses of blocks of 2·s tokens, from one with those of s: [X, 0; D, Z]^-1 = [X', 0; -Z' D X', Z']."""
    D = between_siblings(A, i, s)
    return T - tl.dot(tl.dot(T, D, input_precision=precision), T, input_precision=precision)


def between_siblings(A, i, s: tl.constexpr):
    """What of A is in rows of one and columns of the other block of s tokens, of the two that are joined."""
    return tl.where((i // s ^ 1)[:, None] == (i // s)[None, :], A, 0.0)


def delta_rule_triton(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gated delta rule by Triton: the same function as `linear_attention.delta_rule_chunked`, for a GPU.

    H' = exp(log_a_t) H_(t-1), H_t = H' + β_t (v_t - H' k_t) k_t^T, y_t = H_t q_t. Two calls give the same bits. Tensors
    on a CPU go through Triton's interpreter, which is for learning and tests.

    Forward only: no gradient flows through it. `fast.delta_rule` calls it where none is asked for, and takes
    `delta_rule_chunked` where one is.

    Args:
        Q: (..., T, N) queries, dtype of V.
        K: (..., T, N) keys, of norm 1 as a rule, dtype of V; N from 1 to 256.
        V: (..., T, P) values, float32, float16 or, on a GPU, bfloat16; P from 1 to 256.
        beta: (..., T) strength of the correction, from 0 to 2; dtype of V or float32.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, dtype of V or float32; None for no decay.
        initial_state: (..., P, N) state before the first token, dtype of V or float32; zeros if None.

    Returns:
        Y (..., T, P), dtype and, without broadcasting, memory layout of V, and the state after the last token
        (..., P, N), float32.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: a dtype or device differs or is not supported, log_a has a gate per key feature or (on a CPU) is
            positive, beta (on a CPU) is not in [0, 2], P or N is 0 or too large.
        RuntimeError: Triton is missing, or does not interpret though there is no GPU.

    Cost:
        T·Q·(2·N·tiles + 256·tiles + 2·P) + 3·T·N·P multiply-adds for each head, with chunks of Q tokens (32; 16 in
        float32, and 96 for 256) and P in tiles (of 64; 16 in float32). It reads V, and the others once for each tile,
        and writes Y.

    Source:
        Yang, Kautz and Hatamizadeh 2024 (Gated DeltaNet); Yang et al. 2024 (DeltaNet) for the form in chunks.
    """
    _check("delta_rule_triton", Q, K, V, beta, log_a, initial_state)
    check_triton("delta_rule_triton", V, "delta_rule_tiles runs such programs to learn from, fast.delta_rule is fast")
    return delta_rule_of("on_triton", Q, K, V, beta, log_a, initial_state)


def delta_rule_tiles(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule_triton` in our Triton emulator: the same program, on every system, to look into; slow.

    Arguments, results and errors are those of `delta_rule_triton`, with tensors on the CPU, float32 or float16. Forward
    only, too.

    Cost:
        That of `delta_rule_triton`, one tile after the other in NumPy.

    Source:
        Yang, Kautz and Hatamizadeh 2024 (Gated DeltaNet).

    Example:
        >>> key, values = torch.ones(2, 1), torch.tensor([[3.0], [5.0]])
        >>> delta_rule_tiles(key, key, values, torch.ones(2))[0].ravel()
        tensor([3., 5.])
    """
    _check("delta_rule_tiles", Q, K, V, beta, log_a, initial_state)
    if V.device.type != "cpu" or V.dtype == torch.bfloat16:
        what = f"V is {V.dtype} on {V.device}, expected torch.float32 or torch.float16 on cpu"
        raise ValueError(f"delta_rule_tiles: {what}")
    return delta_rule_of("on_tiles", Q, K, V, beta, log_a, initial_state)


def delta_handles(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None,
    initial_state: torch.Tensor | None,
) -> bool:
    """Tell whether `delta_rule_triton` computes what is asked for: on a GPU, of a dtype and sizes that it takes.

    Args:
        Q: (..., T, N) queries.
        K: (..., T, N) keys.
        V: (..., T, P) values.
        beta: (..., T).
        log_a: (..., T), (..., T, N) or None.
        initial_state: (..., P, N) or None.

    Returns:
        True if Triton is there too, no decay is one per key feature, and values alone are asked for: no derivative, and
        none of the transforms of `torch.compile` and `torch.func`, which see no program.
    """
    if not triton_handles(V, K) or (log_a is not None and log_a.ndim >= K.ndim):
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    tensors = [x for x in (Q, K, V, beta, log_a, initial_state) if x is not None]
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not wanted and all(forward_ad.unpack_dual(x).tangent is None for x in tensors)


@torch.no_grad()
def delta_rule_of(
    run: str,
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None,
    initial_state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule_triton` of operands that are checked.

    Args:
        run: name of the function of `launch` that runs programs.
        Q: (..., T, N).
        K: (..., T, N).
        V: (..., T, P).
        beta: (..., T).
        log_a: (..., T), or None.
        initial_state: (..., P, N), or None.

    Returns:
        Y (..., T, P) and the last state (..., P, N).
    """
    (V, log_a, K, Q, state, beta), restore = grouped(V, log_a, K, Q, initial_state, beta)
    check_grid({"on_triton": "delta_rule_triton", "on_tiles": "delta_rule_tiles"}[run], V)
    batch, heads, _, length, head_dim = V.shape
    Y = torch.empty_like(V)
    final = V.new_empty(batch, heads, 1, head_dim, K.shape[-1], dtype=torch.float32)
    log_a = V.new_zeros(()).expand(beta.shape) if log_a is None else log_a
    operands = Q, K, V, beta[..., None], log_a[..., None], Y, None if state is None else state.mT, final.mT
    constants = _constants(V, K)
    grid = (-(-head_dim // constants["sizes"][3]), heads, batch)
    run = getattr(launch, run)
    constants["sums"] = sums_of(run, operands[4], constants["sizes"][2])
    run(delta_rule_forward, grid, *map(strided, operands), length, **constants)
    return restore(Y, final)


def _constants(V, K):
    """What the program is compiled for."""
    head_dim, state, wide = V.shape[-1], K.shape[-1], V.dtype == torch.float32
    chunk_len, tile, num_warps, num_stages = _config(architecture(V.device), head_dim, state, V.dtype)
    return {
        "sizes": (head_dim, state, chunk_len, tile, padded(state)),
        "precision": "ieee" if wide else "tf32",
        "inverting": "ieee" if wide else "tf32x3",
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _config(architecture, head_dim, state, dtype):
    """Tiles of a scan of SSD, whose state is the same, and shorter chunks."""
    scan = config(architecture, head_dim, state, dtype)[0]
    if without_matrix_units(
        architecture, dtype
    ):  # products without tensor cores need many registers, and errors of T grow with a chunk
        return scan._replace(chunk_len=16, num_warps=8)
    return scan._replace(chunk_len=min(scan.chunk_len, CHUNK_LEN))


def _check(function, Q, K, V, beta, log_a, state):
    """Check what `check_delta` does, that a token has one decay, and that the program takes these dtypes and sizes."""
    check_delta(function, Q, K, V, beta, log_a, state)
    if log_a is not None and log_a.ndim == K.ndim:
        what = f"log_a has shape {tuple(log_a.shape)}, a gate per key feature, expected one decay per token (..., T)"
        raise ValueError(f"{function}: {what}: delta_rule_chunked takes such gates")
    check_programs(function, "V", V, K)
