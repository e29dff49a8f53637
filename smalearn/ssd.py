"""State space duality: a structured state space model and a masked attention are one function of (X, log_a, B, C).

    M[t, s] = C_t^T A_t ... A_(s+1) B_s = L[t, s] · (C_t · B_s)    where A_t = a_t·I

Each form is a thin wrapper: the recurrent one of `ssm_recurrent`; the quadratic one of masked attention, plus the terms
of the initial state; the chunked one and the step of linear attention with Q = C, K = B, V = X. The two theorems are
executable as well: `scalar_ssm_as_attention` and `diagonal_ssm_as_attentions`.
`smalearn.fast.ssd` is the one to use where only the result matters.
"""

import torch

from smalearn._checks import check_count, check_dtypes, check_shapes, check_signs, check_ssd, check_tensor, check_values
from smalearn._structured import widen
from smalearn.linear_attention.chunked import in_chunks
from smalearn.linear_attention.recurrent import step_unchecked
from smalearn.masks import SemiseparableMask
from smalearn.masks.decay import since_start, until_end
from smalearn.sma import sma_quadratic
from smalearn.ssm import ssm_recurrent

__all__ = [
    "diagonal_ssm_as_attentions",
    "scalar_ssm_as_attention",
    "ssd_chunked",
    "ssd_quadratic",
    "ssd_recurrent",
    "ssd_step",
]


def ssd_recurrent(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """State space duality, recurrent form: the scalar state space model, one token after the other.

    H_t = exp(log_a_t) H_(t-1) + X_t B_t^T, Y_t = H_t C_t. A NaN or infinity in a token reaches no earlier output.

    Args:
        X: (..., T, P) inputs.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, dtype of X or float32; the first in time decays
            the initial state.
        B: (..., T, N) input maps. To share B and C across heads, give them a head axis of size 1, or none.
        C: (..., T, N) output maps.
        initial_state: (..., P, N) state before the first token, dtype of X or float32; zeros if None.

    Returns:
        Y (..., T, P), dtype of X, and the state after the last token (..., P, N), float32 if X is half precision.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: a dtype or device differs, or log_a (on a CPU) is positive or NaN.

    Cost:
        3·T·N·P multiply-adds in T sequential steps; a state of N·P numbers.

    Source:
        Dao and Gu 2024 (Mamba-2), sections 2 and 5; "State Space Duality (Mamba-2) Part 1", Eq. (ssm).
    """
    _check_decayed("ssd_recurrent", X, log_a, B, C, initial_state)
    log_a, B, C = _aligned(*widen(X, log_a), B, C)
    return ssm_recurrent(X, log_a.exp(), B, C, initial_state)


def ssd_quadratic(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """State space duality, quadratic form: attention with a 1-semiseparable mask, Y = (L ∘ C B^T) X.

    An initial state adds exp(Σ_{k ≤ t} log_a_k) H C_t to Y_t. A NaN or infinity in X or B, or an overflow, may reach
    all outputs, also those before it: 0·NaN is NaN. Arguments, results and errors are those of `ssd_recurrent`.

    Cost:
        T²·(N + P + 1) multiply-adds, T² numbers of intermediate memory.

    Source:
        Dao and Gu 2024 (Mamba-2), section 5; "State Space Duality (Mamba-2) Part 1", Eq. (ssd-attention).
    """
    _check_decayed("ssd_quadratic", X, log_a, B, C, initial_state)
    x, log_a, b, c, state = widen(X, X, log_a, B, C, initial_state)
    Y = scalar_ssm_as_attention(x, log_a, b, c)
    final = ((x * until_end(log_a[..., None]).exp()).mT @ b).to(x.dtype)  # autocast multiplies in half precision
    if state is not None:
        decay = since_start(log_a[..., None]).exp()
        Y = Y + decay * (c @ state.mT)
        final = final + (decay[..., -1:, :] if X.shape[-2] else 1) * state
    return Y.to(X.dtype), final


def ssd_chunked(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    chunk_len: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """State space duality, chunked: attention inside the chunks, the state space model between them.

    In a chunk with carry-in H, and with the decays e_t since its beginning and f_s until its end,

        Y_t = Σ_{s ≤ t} L[t, s] (C_t · B_s) X_s + e_t H C_t        attention inside, and what the past says
        H'  = e_last H + Σ_s f_s X_s B_s^T                         the state for the next chunk

    It is `linear_attention_chunked` called with (Q, K, V) = (C, B, X), in chunks of chunk_len ≥ 1 tokens; the last
    chunk may be shorter. A NaN or infinity in X or B, or an overflow, may reach all outputs of its chunk, also those
    before it. All other arguments, results and errors are those of `ssd_recurrent`.

    Cost:
        T·chunk_len·(N + P) + 2·T·N·P multiply-adds, almost all in matrix products; linear in T.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6 and listing 1.
    """
    _check_decayed("ssd_chunked", X, log_a, B, C, initial_state)
    check_count("ssd_chunked", "chunk_len", chunk_len)
    log_a, B, C = _aligned(log_a, B, C)
    return in_chunks(C, B, X, log_a, initial_state, chunk_len)


def ssd_step(
    x: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of `ssd_recurrent`, for decoding: H = exp(log_a) state + x B^T, y = H C.

    Arguments, results and errors are those of `ssd_recurrent` without the axis of time: x (..., P), log_a (...), B and
    C (..., N), state (..., P, N); it returns y (..., P) and the new state.

    Cost:
        3·N·P multiply-adds, whatever came before.

    Source:
        Dao and Gu 2024 (Mamba-2), section 2.
    """
    check_ssd("ssd_step", x, log_a, B, C, state, time="")
    c, b, v, log_a, state = widen(x, C, B, x, log_a, state)
    y, state = step_unchecked(c, b, v, log_a[..., None, None], state)
    return y.to(x.dtype), state


def scalar_ssm_as_attention(X: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """A state space model with A_t = exp(log_a_t)·I is one masked attention: Y = (L ∘ C B^T) X.

    Scalars commute with everything, so the decays leave C_t^T A_t ... A_(s+1) B_s as the 1-semiseparable mask L.
    A NaN or an overflow reaches what `ssd_quadratic` says.

    Args:
        X: (..., T, P) input: the values.
        log_a: (..., T) log decay ≤ 0, −inf for a reset; any floating dtype, any device.
        B: (..., T, N) input maps: the keys.
        C: (..., T, N) output maps: the queries.

    Returns:
        Y (..., T, P), dtype of X.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: the dtypes or devices of X, B and C differ, or log_a (on a CPU) is positive or NaN.

    Cost:
        T²·(N + P + 1) multiply-adds, quadratic in T where the recurrence has 3·T·N·P.

    Source:
        "State Space Duality (Mamba-2) Part 1", Eq. (ssd-attention); "Structured Masked Attention", last section.
    """
    _check("scalar_ssm_as_attention", X, log_a, B, C, axes="t")
    return sma_quadratic(C, B, X, SemiseparableMask(log_a))


def diagonal_ssm_as_attentions(X: torch.Tensor, log_a: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> torch.Tensor:
    """A state space model with A_t = diag(exp(log_a_t)) is a sum of N masked attentions.

    Y = Σ_n (L_n ∘ c_n b_n^T) X: every state component is a head with one feature and a 1-semiseparable mask of its own.
    A NaN or an overflow reaches what `ssd_quadratic` says.

    Args:
        X: (..., T, P) input: the values of all heads.
        log_a: (..., T, N) log decays ≤ 0, −inf for a reset; any floating dtype, any device.
        B: (..., T, N) input maps: column n has the keys of head n.
        C: (..., T, N) output maps: column n has the queries of head n.

    Returns:
        Y (..., T, P), dtype of X.

    Raises:
        ShapeError: an axis has two sizes.
        ValueError: the dtypes or devices of X, B and C differ, or log_a (on a CPU) is positive or NaN.

    Cost:
        N·T²·(P + 2) multiply-adds and N·T² numbers of intermediate memory, N masks where the scalar model has one.

    Source:
        "Structured Masked Attention", last display.
    """
    _check("diagonal_ssm_as_attentions", X, log_a, B, C, axes="tn")
    masks = SemiseparableMask(log_a.mT)
    return sma_quadratic(C.mT[..., None], B.mT[..., None], X[..., None, :, :], masks).sum(-3)


def _check_decayed(function, X, log_a, B, C, state):
    """Check the operands of a form that has decays: the kernels of `fast`, which share the check, do without."""
    check_tensor(function, "log_a", log_a)
    check_ssd(function, X, log_a, B, C, state)


def _check(function, X, log_a, B, C, axes):
    """Shapes (T, P), log_a with these axes, (T, N), (T, N), and one dtype and device of X, B and C.

    The mask takes log_a of any floating dtype to the device of X.
    """
    check_dtypes(function, {"X": X, "B": B, "C": C})
    check_dtypes(function, {"log_a": log_a})
    check_shapes(function, {"X": (X, "tp"), "log_a": (log_a, axes), "B": (B, "tn"), "C": (C, "tn")})
    if not X.is_meta:
        check_values(function, "log_a", log_a)
    if log_a.device.type == "cpu":
        check_signs(function, log_a)


def _aligned(log_a, B, C):
    """Prepend axes of size 1 until all three have the same number of leading axes.

    The functions called infer from log_a.ndim whether it is one decay per token or one per feature: with as many axes
    as B it would count as one per feature.
    """
    axes = max(log_a.ndim + 1, B.ndim, C.ndim)
    log_a = log_a[(None,) * (axes - 1 - log_a.ndim)]  # no axis N
    B = B[(None,) * (axes - B.ndim)]
    C = C[(None,) * (axes - C.ndim)]
    return log_a, B, C
