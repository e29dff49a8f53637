"""The gated delta rule on a GPU: what needs no state beforehand, then one program for a head that carries the state.

In a chunk, with s the running sums of log a, L, e = exp(s) and f = exp(s_last - s) as in `programs.py`, H (N, P) the
state before it and B = diag(β), as in `fast.cpu.delta`,

    A  = (L B) ∘ K K^T                        below the diagonal: how each key meets the earlier ones
    T  = (I + A)^-1
    E  = T (V - (e ∘ K) H)                    what the memory, when it is asked, lacks of the values
    Y  = ((L B) ∘ Q K^T) E + (e ∘ Q) H
    H' = exp(s_last) H + K^T (f ∘ B E)

- T needs no state: a launch of its own computes all of them side by side, so that no chunk waits for those before it.
- T is built from inverses of blocks, twice as long each time: products of tiles alone, with nothing cut out of them.
  A power of A appears nowhere, for with keys that are alike those overflow, though T is small.
- T keeps the digits of float32 for every dtype: its errors grow with those of T, and products of T follow one another.
  Of operands in float32 it is computed in float64: where keys are alike and β is near 2, what is rounded in K K^T comes
  out of the inverse many times as large.
- A row past the end has β = 0, K = 0 and V = 0: it corrects nothing and writes nothing.
- No atomics: every entry is written by one program, once, so that two runs give the same bits.
"""

import torch
from torch.autograd import forward_ad

from smalearn._torch import in_transform
from smalearn.fast import tile as tl
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch
from smalearn.fast.triton.checks import check_grid, check_programs, check_triton, strided
from smalearn.fast.triton.configs import LARGE, config, padded, without_matrix_units
from smalearn.fast.triton.pieces import at, chunk_sums, lower, read, until_end, write, zeros
from smalearn.fast.triton.plan import architecture
from smalearn.fast.triton.ssd import sums_of, triton_handles
from smalearn.linear_attention.delta import check_delta

CHUNK_LEN = 16
"""Tokens of a chunk: with 32, an H200 takes 1.5 times as long."""


def delta_rule_inverses(
    k, beta, log_a, t, length, sizes: tl.constexpr, precision: tl.constexpr, inverting: tl.constexpr, sums=None
):
    """T of one chunk of a head; the grid is (chunks, heads, batch).

    An operand is a tuple: a pointer, and the strides of its axes (batch, head, 1, row, column).

    Args:
        k: (batch, head, 1, T, N).
        beta: (batch, head, 1, T, 1).
        log_a: (batch, head, 1, T, 1) log decays.
        t: (batch, head, 1, T, Q) float32: for each token its row of T.
        length: T.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
        inverting: of those that give T.
        sums: what `ssd_sums` has made of all log decays; if None they are summed here.
    """
    N: tl.constexpr = sizes[1]
    Q: tl.constexpr = sizes[2]
    head, start = (tl.program_id(2), tl.program_id(1), 0), tl.program_id(0) * Q
    i, n = tl.arange(0, Q), tl.arange(0, sizes[4])
    coarse, fine, _, _ = chunk_sums(log_a, sums, head, start, i, length, Q)
    K, b = read(k, head, start + i, n, length, N), strengths(beta, head, start + i, length)
    if K.dtype == tl.float32:
        K, coarse, fine = tl.cast(K, tl.float64), tl.cast(coarse, tl.float64), tl.cast(fine, tl.float64)
    A = tl.dot(K, tl.trans(K), input_precision=precision) * (lower(coarse, fine, i) * b[None, :])
    T = inverse(A, i, Q, inverting)
    write(t, head, start + i, i, length, Q, T)


def strengths(beta, head, rows, length):
    """β of these rows, (Q,) in float32, 0 past the end."""
    return tl.cast(tl.load(at(beta, head, rows, 0), mask=rows < length, other=0.0), tl.float32)


def delta_rule_forward(
    q, k, v, beta, log_a, t, y, initial, final, length, sizes: tl.constexpr, precision: tl.constexpr, sums=None,
):  # fmt: skip
    """Outputs and last state for BP columns of a head; the grid is (tiles of P, heads, batch).

    An operand is a tuple: a pointer, and the strides of its axes (batch, head, 1, row, column).

    Args:
        q: (batch, head, 1, T, N).
        k: (batch, head, 1, T, N).
        v: (batch, head, 1, T, P).
        beta: (batch, head, 1, T, 1).
        log_a: (batch, head, 1, T, 1) log decays.
        t: what `delta_rule_inverses` has written.
        y: outputs, like v.
        initial: (batch, head, 1, N, P), the state before the first token; zeros if None.
        final: the state after the last token, like initial.
        length: T.
        sizes: (P, N, Q, BP, BN).
        precision: of products of float32.
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
        e, f = tl.exp2(coarse + fine), until_end(coarse, fine, coarse_total, fine_total)
        b = strengths(beta, head, rows, length)
        K, queries = read(k, head, rows, n, length, N), read(q, head, rows, n, length, N)
        T, V = read(t, head, rows, i, length, Q), read(v, head, rows, p, length, P)
        LB, before = lower(coarse, fine, i) * b[None, :], tl.cast(H, K.dtype)
        E = V - tl.dot(K, before, input_precision=precision) * e[:, None]
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
    T = tl.cast(i[:, None] == i[None, :], A.dtype)
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

    Two calls give the same bits. Tensors on a CPU go through Triton's interpreter, which is for learning and tests.
    Forward only: no gradient flows through it. `fast.delta_rule` calls it where none is asked for, and takes
    `delta_rule_chunked` where one is.

    Arguments, results and errors are those of `delta_rule_chunked`, with V in float32, float16 or, on a GPU, bfloat16,
    P and N from 1 to 256, and log_a one decay per token or None; the state is float32, Y lies in memory as V does.
    RuntimeError if Triton is missing, or does not interpret though there is no GPU.

    Cost:
        T·Q·(N + 96 + N·tiles + 2·P) + 3·T·N·P multiply-adds for each head, with chunks of Q = 16 tokens and P in tiles
        (of 64; 16 in float32). It reads V, and the others once for each tile, K once more, and writes Y; T·Q numbers in
        float32 are written and read.

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


def delta_handles(Q, K, V, beta, log_a, initial_state):
    """Tell whether `delta_rule_triton` computes what is asked for: on a GPU, of a dtype and sizes that it takes.

    So it is if Triton is there too, no decay is one per key feature, and values alone are asked for: no derivative, and
    none of the transforms of `torch.compile` and `torch.func`, which see no program.
    """
    if not triton_handles(V, K) or (log_a is not None and log_a.ndim >= K.ndim):
        return False
    if torch.compiler.is_compiling() or in_transform():
        return False
    tensors = [x for x in (Q, K, V, beta, log_a, initial_state) if x is not None]
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not wanted and all(forward_ad.unpack_dual(x).tangent is None for x in tensors)


@torch.no_grad()
def delta_rule_of(run, Q, K, V, beta, log_a, initial_state):
    """`delta_rule_triton` of operands that are checked, by the function of `launch` of the name `run`."""
    (V, log_a, K, Q, state, beta, _), restore = grouped(V, log_a, K, Q, initial_state, beta)
    check_grid({"on_triton": "delta_rule_triton", "on_tiles": "delta_rule_tiles"}[run], V)
    batch, heads, _, length, head_dim = V.shape
    Y = torch.empty_like(V)
    final = V.new_empty(batch, heads, 1, head_dim, K.shape[-1], dtype=torch.float32)
    log_a = V.new_zeros(()).expand(beta.shape) if log_a is None else log_a
    beta, log_a, run, constants = beta[..., None], log_a[..., None], getattr(launch, run), _constants(V, K)
    chunk_len, tile = constants["sizes"][2:4]
    constants["sums"] = sums_of(run, log_a, chunk_len)
    T = V.new_empty(batch, heads, 1, length, chunk_len, dtype=torch.float32)
    grid, inverting = (-(-length // chunk_len), heads, batch), "ieee" if V.dtype == torch.float32 else "tf32x3"
    alone = constants | {"num_warps": 1}  # of a chunk so short there is no more to do
    run(delta_rule_inverses, grid, *map(strided, (K, beta, log_a, T)), length, inverting=inverting, **alone)
    operands = Q, K, V, beta, log_a, T, Y, None if state is None else state.mT, final.mT
    run(delta_rule_forward, (-(-head_dim // tile), heads, batch), *map(strided, operands), length, **constants)
    return restore(Y, final)


def _constants(V, K):
    """What the program is compiled for."""
    head_dim, state = V.shape[-1], K.shape[-1]
    chosen = _config(architecture(V.device), head_dim, state, V.dtype)
    return {
        "sizes": (head_dim, state, chosen.chunk_len, chosen.tile, padded(state)),
        "precision": "ieee" if V.dtype == torch.float32 else "tf32",
        "num_warps": chosen.num_warps,
        "num_stages": chosen.num_stages,
    }


def _config(architecture, head_dim, state, dtype):
    """Tiles of a scan of SSD, whose state is the same, and shorter chunks, of which more are loaded ahead."""
    scan = config(architecture, head_dim, state, dtype)[0]
    if without_matrix_units(architecture, dtype):  # products without tensor cores need many registers
        return scan._replace(chunk_len=CHUNK_LEN, num_warps=8)
    return scan._replace(chunk_len=CHUNK_LEN, num_stages=scan.num_stages + 1 if architecture in LARGE else 1)


def _check(function, Q, K, V, beta, log_a, state):
    """Check what `check_delta` does, that a token has one decay, and that the program takes these dtypes and sizes."""
    check_delta(function, Q, K, V, beta, log_a, state)
    if log_a is not None and log_a.ndim == K.ndim:
        what = f"log_a has shape {tuple(log_a.shape)}, a gate per key feature, expected one decay per token (..., T)"
        raise ValueError(f"{function}: {what}: delta_rule_chunked takes such gates")
    check_programs(function, "V", V, K)
