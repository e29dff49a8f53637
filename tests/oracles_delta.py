"""The delta rule in its slowest obvious form, one head and one token at a time, and operands of every kind for it."""

import torch
from comparing import all_close
from oracles_linear_attention import each_head
from oracles_ssd import decays, gradients

from smalearn.testing import random_tensors, relative_rms

KINDS = ["none", "mild", "strong", "resets", "all-inf"]


def delta_rule(Q, K, V, beta, log_a=None, state=None):
    """(Y, state after the last token); log_a (..., T) or, with as many axes as K, (..., T, N)."""
    return _by_head(_one_head, Q, K, V, [beta[..., None]], log_a, state)


def generalized(Q, K, V, read, erase=None, log_a=None, state=None):
    """The same of three keys: a token's whole transition is one matrix."""
    return _by_head(_three_keys, Q, K, V, [read, K if erase is None else erase], log_a, state)


def _by_head(rule, Q, K, V, more, log_a, state):
    if log_a is None:
        log_a = V.new_zeros(V.shape[-2])
    log_a = log_a[..., None] if log_a.ndim < K.ndim else log_a
    state = V.new_zeros(V.shape[-1], K.shape[-1]) if state is None else state
    operands = K, V, *more, log_a, state
    written = torch.broadcast_shapes(*(x.shape[:-2] for x in operands))
    answered = torch.broadcast_shapes(written, Q.shape[:-2])
    # The state is that of what is written, whatever is read: queries may have more heads.
    (Y, _), (_, state) = (
        each_head(rule, leading, *((x, 2) for x in (q, *operands))) for leading, q in ((answered, Q), (written, K))
    )
    return Y, state


def _one_head(Q, K, V, beta, log_a, S):
    outputs = []
    for t in range(Q.shape[0]):
        S = S * log_a[t].exp()
        S = S + torch.outer(beta[t] * (V[t] - S @ K[t]), K[t])
        outputs.append(S @ Q[t])
    return torch.stack(outputs) if outputs else V, S


def _three_keys(Q, K, V, read, erase, log_a, S):
    one, outputs = torch.eye(K.shape[-1], dtype=K.dtype), []
    for t in range(Q.shape[0]):
        S = (S * log_a[t].exp()) @ (one - torch.outer(read[t], erase[t])) + torch.outer(V[t], K[t])
        outputs.append(S @ Q[t])
    return torch.stack(outputs) if outputs else V, S


def inputs(length, kind="mild", leading=(), shared=None, dtype=torch.float64, state=4, head_dim=3, strength=None):
    """Q, K, V, beta, log_a and an initial state: unit keys, Q and K with the leading axes `shared`.

    `strength` is one value of all beta; drawn between 0 and 2 if None.
    """
    shared = leading if shared is None else shared
    rows = [
        *2 * [(*shared, length, state)],
        (*leading, length, head_dim),
        (*leading, length),
        (*leading, head_dim, state),
    ]
    Q, K, V, z, H = random_tensors(rows)
    K = torch.nn.functional.normalize(K, dim=-1)
    beta = 2 * torch.sigmoid(z) if strength is None else torch.full_like(z, strength)
    log_a = decays(kind, (*leading, length))
    return [None if x is None else x.to(dtype) for x in (Q, K, V, beta, log_a, H)]


def alike(length, correlated, strength, seed, state=32):
    """Operands in float32 whose keys point the same way, but for `correlated`; decays are weak."""
    Q, K, V, beta, log_a, H = inputs(length, "mild", state=state, head_dim=16, strength=strength)
    K = correlated * K.roll(seed, 0) + torch.ones(state, dtype=torch.float64)
    K = torch.nn.functional.normalize(K, dim=-1)
    return [x.float() for x in (Q, K, V.roll(3 * seed, 0), beta, 0.01 * log_a, H)]


def expected(*operands):
    """`delta_rule` in float64."""
    return delta_rule(*(None if x is None else x.double() for x in operands))


def check(form, operands, tolerance=None):
    """Outputs and gradients of a form against those of the loop."""
    all_close(gradients(form, operands), gradients(expected, operands), tolerance)


def check_float32(form, operands, times):
    """A form's errors in float32 are at most so many times those of the loop."""
    exact = expected(*operands)
    narrow = [x if x is None else x.float() for x in operands]
    for actual, plain, oracle in zip(form(*narrow), delta_rule(*narrow), exact, strict=True):
        assert relative_rms(actual.double(), oracle) <= times * relative_rms(plain.double(), oracle)
