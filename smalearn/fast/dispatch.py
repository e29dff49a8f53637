"""Choice of the best implementation for device, dtype and gate."""

from functools import partial

import torch

from smalearn._checks import check_ssd
from smalearn.fast.cpu import step
from smalearn.fast.cpu.delta import delta_rule_cpu_unchecked
from smalearn.fast.cpu.ssd import ssd_cpu_unchecked
from smalearn.fast.triton import ssd_step_triton_, triton_handles
from smalearn.fast.triton.delta import delta_handles, delta_rule_of
from smalearn.fast.triton.ssd import ssd_of
from smalearn.linear_attention.chunked import in_chunks
from smalearn.linear_attention.delta import check_delta, delta_in_chunks
from smalearn.linear_attention.generalized_delta import check_generalized, correct_in_chunks
from smalearn.linear_attention.inputs import check_inputs, key_gate
from smalearn.ssd import ssd_chunked


def ssd(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`smalearn.ssd.ssd_chunked` by its fastest implementation.

    On a CPU `fast.cpu.ssd_cpu`; on a GPU `fast.triton.ssd_triton`, where Triton is there and takes dtype and sizes.

    H_t = exp(log_a_t) H_(t-1) + X_t B_t^T, Y_t = H_t C_t. A NaN or infinity in X or B, or an overflow, may reach all
    outputs of its chunk, also those before it.

    The axis before the last is time. mamba_ssm's layout, x (batch, time, heads, P), dt, A, B and C (batch, time,
    groups, N), is that of `fast.mamba2_ssd(x, dt, A, B, C)`; from tensors in its order call
    `ssd(X.transpose(1, 2), log_a.transpose(1, 2), B.transpose(1, 2), C.transpose(1, 2))`.

    Args:
        X: (..., T, P) inputs.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, dtype of X or float32.
        B: (..., T, N). Heads that share B and C have an axis of size 1, or none, there: nothing is copied for them.
        C: (..., T, N).
        initial_state: (..., P, N) state before the first token, dtype of X or float32; zeros if None.

    Returns:
        Y (..., T, P), dtype of X, and the state after the last token (..., P, N), float32 if X is half precision.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: a dtype or device differs, or log_a (on a CPU) is positive.
        NotImplementedError: derivatives are asked for in forward mode (`torch.func.jvp`), which `ssd_chunked` has.

    Cost:
        See `fast.cpu.ssd_cpu`, `fast.triton.ssd_triton` and `smalearn.ssd.ssd_chunked`. A second derivative takes what
        it takes through `ssd_chunked`; `torch.func.vmap` is one call, and its gradients scan forward once more.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.

    Example:
        >>> one = torch.ones(3, 1)
        >>> ssd(one, torch.tensor([0.0, 0.5, 0.5]).log(), one, one)[0].ravel()
        tensor([1.0000, 1.5000, 1.7500])
    """
    check_ssd("ssd", X, log_a, B, C, initial_state)
    kernel = _kernel(X, B)
    return kernel(X, log_a, B, C, initial_state) if kernel else ssd_chunked(X, log_a, B, C, initial_state)


def linear_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_attention_chunked` by its fastest implementation.

    With at most one decay per token the kernel that `ssd` takes, with a backward of its own. Otherwise
    `linear_attention_chunked`. A NaN or infinity in K or V, or an overflow, may reach all outputs of its chunk, also
    those before it.

    Arguments, results and errors are those of `linear_attention_chunked`, without chunk_len.

    Cost:
        See `fast.cpu.ssd_cpu`, `fast.triton.ssd_triton` and `linear_attention_chunked`.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.
    """
    check_inputs("linear_attention", Q, K, V, log_a, initial_state)
    kernel = _kernel(V, K) if log_a is None or log_a.ndim < K.ndim else None
    if kernel:
        return kernel(V, log_a, K, Q, initial_state)
    return in_chunks(Q, K, V, log_a, initial_state)


def delta_rule(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule_chunked` by its fastest implementation.

    With at most one decay per token, on a CPU, the kernel of `fast.cpu.delta`, with a backward of its own; on a GPU
    `fast.triton.delta_rule_triton`, where Triton is there and takes dtype and sizes, and no gradient is asked for.
    Otherwise, and on a GPU under `torch.compile` and the transforms of `torch.func`, `delta_rule_chunked`. Keys are
    taken as they are: `linear_attention.l2norm` gives them norm 1. A NaN or infinity in K, V or beta, or an overflow,
    may reach all outputs of its chunk, also those before it.

    Arguments, results and errors are those of `delta_rule_chunked`, without chunk_len; and NotImplementedError if
    derivatives are asked for in forward mode (`torch.func.jvp`), which `delta_rule_chunked` has.

    Cost:
        On a CPU T·16·(2·N + 2·P) + 3·T·N·P multiply-adds for each head in chunks of 16 tokens; the backward 3 times
        that. Where a β ‖k‖² is above 1 the system is computed in float64, a fifth more time forward. A few MiB of
        scratch memory; for the backward the inputs and one state for each block. Heads that share keys cost what heads
        with keys of their own do. On a GPU see `fast.triton.delta_rule_triton` and `delta_rule_chunked`.

    Source:
        Yang, Kautz and Hatamizadeh 2024 (Gated DeltaNet).
    """
    check_delta("delta_rule", Q, K, V, beta, log_a, initial_state)
    if delta_handles(Q, K, V, beta, log_a, initial_state):
        return delta_rule_of("on_triton", Q, K, V, beta, log_a, initial_state)
    if V.device.type in ("cpu", "meta") and (log_a is None or log_a.ndim < K.ndim):
        return delta_rule_cpu_unchecked(Q, K, V, beta, log_a, initial_state)
    return delta_in_chunks(Q, K, V, beta, log_a, initial_state)


def generalized_delta_rule(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    read: torch.Tensor,
    erase: torch.Tensor | None = None,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`generalized_delta_rule_chunked` by its fastest implementation.

    Without `erase` and with at most one decay per token, on a CPU, the kernel of `delta_rule`, with a backward of its
    own; otherwise `generalized_delta_rule_chunked`. A NaN or infinity in K, V or read, or an overflow, may reach all
    outputs of its chunk, also those before it.

    Arguments, results and errors are those of `generalized_delta_rule_chunked`, without chunk_len; and
    NotImplementedError if derivatives are asked for in forward mode (`torch.func.jvp`), which
    `generalized_delta_rule_chunked` has.

    Cost:
        See `delta_rule` and `generalized_delta_rule_chunked`.

    Source:
        Peng et al. 2025 (RWKV-7), section 4.
    """
    check_generalized("generalized_delta_rule", Q, K, V, read, erase, log_a, initial_state)
    if erase is None and V.device.type in ("cpu", "meta") and (log_a is None or log_a.ndim < K.ndim):
        return delta_rule_cpu_unchecked(Q, K, V, V.new_ones(V.shape[-2]), log_a, initial_state, read)
    return correct_in_chunks(Q, K, V, read, erase, key_gate(log_a, K), initial_state)


def ssd_step_(
    x: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """`smalearn.ssd.ssd_step` that overwrites the state, by its fastest implementation.

    H = exp(log_a) state + x B^T, y = H C, for decoding without new memory; no gradient flows through it.

    Args:
        x: (..., P) input.
        log_a: (...) log decay ≤ 0, dtype of x or float32.
        B: (..., N), dtype of x. Heads that share B and C have an axis of size 1 there.
        C: (..., N), dtype of x.
        state: (..., P, N), contiguous, with all leading axes; dtype of x or float32. It is overwritten.

    Returns:
        y (..., P), dtype of x.

    Raises:
        ShapeError: an axis has two sizes, or the state has not all leading axes.
        ValueError: a dtype or device differs, log_a (on a CPU) is positive, or the state is not contiguous.

    Cost:
        3·N·P multiply-adds for each head, and the state read and written once, part by part.

    Source:
        Dao and Gu 2024 (Mamba-2), section 2.
    """
    on_gpu = getattr(x, "is_cuda", False) and triton_handles(x, B)
    return (ssd_step_triton_ if on_gpu else step.ssd_step_)(x, log_a, B, C, state)


def _kernel(X, B):
    """The kernel for tensors like X and B, which checks nothing, or None."""
    if X.device.type in ("cpu", "meta"):
        return ssd_cpu_unchecked
    return partial(ssd_of, "on_triton") if triton_handles(X, B) else None
