"""Choice of the best implementation for device, dtype and gate."""

import torch

from smalearn._checks import check_ssd
from smalearn.fast.cpu import ssd_cpu
from smalearn.fast.triton import ssd_triton, triton_handles
from smalearn.linear_attention import linear_attention_chunked
from smalearn.linear_attention.inputs import check_inputs
from smalearn.ssd import ssd_chunked

__all__ = ["linear_attention", "ssd"]


def ssd(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`smalearn.ssd.ssd_chunked` by its fastest implementation.

    On a CPU `fast.cpu.ssd_cpu`; on a GPU `fast.triton.ssd_triton`, where Triton is there and takes dtype and sizes.

    H_t = exp(log_a_t) H_(t-1) + X_t B_t^T, Y_t = H_t C_t.

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
        RuntimeError: the gradient is differentiated a second time, where a kernel is used.

    Cost:
        See `fast.cpu.ssd_cpu`, `fast.triton.ssd_triton` and `smalearn.ssd.ssd_chunked`.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.

    Example:
        >>> one = torch.ones(3, 1)
        >>> ssd(one, torch.tensor([0.0, 0.5, 0.5]).log(), one, one)[0].ravel()
        tensor([1.0000, 1.5000, 1.7500])
    """
    check_ssd("ssd", X, log_a, B, C, initial_state)
    form = _kernel(X, B) or ssd_chunked
    return form(X, log_a, B, C, initial_state)


def linear_attention(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_attention_chunked` by its fastest implementation.

    With at most one decay per token the kernel that `ssd` takes, with a backward of its own. Otherwise
    `linear_attention_chunked`.

    Arguments, results and errors are those of `linear_attention_chunked`, without chunk_len. A second derivative of
    a kernel raises a RuntimeError.

    Cost:
        See `fast.cpu.ssd_cpu`, `fast.triton.ssd_triton` and `linear_attention_chunked`.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.
    """
    check_inputs("linear_attention", Q, K, V, log_a, initial_state)
    kernel = _kernel(V, K) if log_a is None or log_a.ndim < K.ndim else None
    if kernel:
        return kernel(V, log_a, K, Q, initial_state)
    return linear_attention_chunked(Q, K, V, log_a, initial_state)


def _kernel(X, B):
    """The kernel for tensors like X and B, or None."""
    if X.device.type == "cpu":
        return ssd_cpu
    return ssd_triton if triton_handles(X, B) else None
