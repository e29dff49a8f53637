"""Exercise 7.6: the Mamba-2 layer out of the learner's own convolution and chunks."""

import torch
import torch.nn.functional as F

from smalearn.course.ch06.whole import ssd_in_chunks
from smalearn.course.ch07.window import convolve, two_at_once
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def layer(x, weights):
    """The Mamba-2 layer, nothing before its first token: y (T, D) of x (T, D).

    Put the layer together from your `convolve` of 7.2 and your `ssd_in_chunks` of 6.5: the five formulas of section 2.

    Hint: Go through the picture of the block from left to right, one line for each box. `norm` has a number for each
    channel, `D` one for each head: so you know how to split `x @ W_in`, and then X, B, C.

    Hint: The heads come first for `ssd_in_chunks`: `X.unflatten(-1, (heads, -1)).movedim(1, 0)` is (heads, T, P), dt
    and log a are (heads, T), and `B[None]`, `C[None]` are for all heads. Window and state begin with zeros.

    Hint: After `Y, _ = ssd_in_chunks(dt[:, :, None] * X, log_a, B[None], C[None], state, 64)` comes
    `D[:, None, None] * X`. Put the heads side by side, `Y.movedim(0, 1).flatten(1)`, then gate, then norm.

    Insight: This is all of Mamba-2: between layers stand only a norm and a residual connection.
    """
    W_in, taps, bias, dt_bias, A_log, D, norm, W_out = weights.values()
    heads, channels = len(D), len(norm)
    state_len = (len(bias) - channels) // 2  # N
    z, xBC, dt = (x @ W_in).split([channels, len(bias), heads], -1)
    xBC, _ = convolve(xBC, taps, xBC.new_zeros(len(taps) - 1, len(bias)))
    X, B, C = F.silu(xBC + bias).split([channels, state_len, state_len], -1)
    X = X.unflatten(-1, (heads, -1)).movedim(1, 0)  # (heads, T, P)
    dt = F.softplus(dt + dt_bias).T  # (heads, T)
    log_a = -A_log.exp()[:, None] * dt
    state = X.new_zeros(heads, X.shape[2], state_len)
    Y, _ = ssd_in_chunks(dt[:, :, None] * X, log_a, B[None], C[None], state, 64)
    Y = Y + D[:, None, None] * X
    y = Y.movedim(0, 1).flatten(1) * F.silu(z)  # (T, channels)
    y = norm * y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return y @ W_out


def _weights(randn, dim, heads, head_dim, state, taps):
    """Ordinary numbers for all of them, so that none hides behind a 1."""
    channels = heads * head_dim
    seen = channels + 2 * state  # channels of the convolution
    return {
        "W_in": randn(dim, channels + seen + heads),
        "taps": randn(taps, seen),
        "bias": randn(seen),
        "dt_bias": randn(heads),
        "A_log": randn(heads),
        "D": randn(heads),
        "norm": randn(channels),
        "W_out": randn(channels, dim),
    }


def _layer_cases(randn):
    """Length, then D, heads, P, N, K; the last text is longer than a chunk."""
    sizes = [(1, 1, 1, 2, 1, 1), (2, 2, 1, 2, 1, 2), (4, 2, 2, 1, 2, 4), (5, 3, 2, 3, 2, 4), (70, 2, 2, 2, 3, 3)]
    for length, dim, *others in sizes:
        yield randn(length, dim), _weights(randn, dim, *others)


def _long_text(randn, length):
    return randn(length, 2), _weights(randn, 2, 2, 2, 3, 3)


def _token_by_token(x, weights):
    """Each token as decoding sees it: its window, its state, its gate, its norm."""
    W_in, taps, bias, dt_bias, A_log, D, norm, W_out = weights.values()
    heads, channels = len(D), len(norm)
    state_len = (len(bias) - channels) // 2
    window, rows = [torch.zeros_like(bias) for _ in taps], []
    state = x.new_zeros(heads, channels // heads, state_len)
    for token in x:
        z, xBC, dt = (token @ W_in).tensor_split([channels, channels + len(bias)])
        window = [*window[1:], xBC]
        seen = sum(tap * one for tap, one in zip(taps, window, strict=True)) + bias
        X, B, C = (seen * seen.sigmoid()).tensor_split([channels, channels + state_len])
        X, dt = X.view(heads, -1), (1 + (dt + dt_bias).exp()).log()
        decay = torch.exp(-A_log.exp() * dt)
        state = torch.stack([decay[h] * state[h] + dt[h] * torch.outer(X[h], B) for h in range(heads)])
        y = (state @ C + D[:, None] * X).flatten() * z * z.sigmoid()
        rows.append(norm * y / (y.dot(y) / channels + 1e-5).sqrt() @ W_out)
    return torch.stack(rows)


WRONG_STEPS = {
    "dt is missing in what is written: `ssd_in_chunks` takes dt·X": "(dt[:, :, None] * X, → (X,",
    "your dt has not been through the softplus": "F.softplus(dt + dt_bias) → (dt + dt_bias)",
    "you take A_log for the rate: it is its logarithm, and log a = −exp(A_log)·dt": "-A_log.exp() → -A_log",
    "your dt lacks its bias: it is softplus(dt + dt_bias)": "dt + dt_bias → dt",
    "your dt_bias is added after the softplus: it goes inside": "F.softplus(dt + dt_bias) → (F.softplus(dt) + dt_bias)",
    "your state grows: log a = −exp(A_log)·dt is at most 0": "-A_log → A_log",
    "your log a lacks the rate of the head, exp(A_log)": "-A_log.exp()[:, None] * dt → -dt",
    "your log a lacks dt: it is −exp(A_log)·dt": "[:, None] * dt → [:, None].expand_as(dt)",
}
WRONG_ENDS = {
    "your gate comes after the norm: it is norm(Y ∘ SiLU(z))": "* F.silu(z) → * 1 ; y @ → (y * F.silu(z)) @",
    "the skip D·X is missing": "Y + D[:, None, None] * X → Y",
    "your gate is z itself: it is SiLU(z)": "* F.silu(z) → * z",
    "your gate is σ(z): SiLU(z) is z·σ(z)": "* F.silu(z) → * z.sigmoid()",
    "the gate is missing: norm(Y ∘ SiLU(z))": "* F.silu(z) → * 1",
    "your skip adds D·dt·X: it takes X as it is": "D[:, None, None] → (D[:, None] * dt)[:, :, None]",
    "your skip adds X itself: each head has a weight for it, D": "D[:, None, None] * X → X",
    "the norm is missing: divide by the root mean square, then scale": "norm * y / → norm * y + 0 *",
    "the weights of the norm are missing: one for each channel": "norm * y → y",
    "your norm takes the sum of the squares: it is their mean": "square().mean → square().sum",
    "the norm's 1e-5 is missing: it is added to the mean, before the root": " + 1e-5).sqrt() → ).sqrt()",
    "your norm adds another number to the mean: it is 1e-5": "1e-5 → 1e-6",
    "your skip passes the gate by: D·X is added to Y, then both are gated": (
        "Y + D[:, None, None] * X → Y ; F.silu(z) → F.silu(z) + (D[:, None, None] * X).movedim(0, 1).flatten(1)"
    ),
    "each head has a norm of its own in yours: it is over all channels": (
        "(y.square().mean(-1, keepdim=True) + 1e-5) → "
        "(y.unflatten(-1, (heads, -1)).square().mean(-1) + 1e-5).repeat_interleave(channels // heads, -1)"
    ),
}
WRONG_BEGINNINGS = {
    "there is no SiLU after your convolution": "F.silu(xBC + bias) → (xBC + bias)",
    "B and C have changed places: `xBC` holds X, B, C in this order": "X, B, C = → X, C, B =",
    "the bias of the convolution is missing: it is added before the SiLU": "xBC + bias → xBC",
    "your bias of the convolution is added after the SiLU": "F.silu(xBC + bias) → (F.silu(xBC) + bias)",
    "your SiLU comes before the convolution": "convolve(xBC → convolve(F.silu(xBC) ; F.silu(xBC + → (xBC +",
    "there is no convolution in yours": "convolve( → (lambda xBC, *_: (xBC, 0))(",
}

exercise(
    "7.6",
    "Your layer",
    claim="004:fig-mamba2-block",
    level=3,
    minutes=15,
    tolerance=1e-12,
    cases=_layer_cases,
    oracle=_token_by_token,
    way=Way(case=_long_text, loops=1),
    wrong=WRONG_STEPS
    | WRONG_ENDS
    | WRONG_BEGINNINGS
    | dict(two_at_once(4, WRONG_STEPS, WRONG_ENDS, WRONG_BEGINNINGS))
    | {
        "z and xBC have changed places: `x @ W_in` holds z, xBC, dt in this order": (
            "z, xBC, dt → xBC, z, dt ; [channels, len(bias), heads] → [len(bias), channels, heads]"
        ),
        "`xBC` holds X, B, C in this order: you take X from its end": (
            "X, B, C = → B, C, X = ; [channels, state_len, state_len] → [state_len, state_len, channels]"
        ),
        "your heads are interleaved when X is cut: head 0 has the first P channels, "
        "head 1 the next": "(-1, (heads, -1)).movedim(1, 0) → (-1, (-1, heads)).movedim(2, 0)",
        "your heads are interleaved from beginning to end: head 0 has the first P channels, head 1 the next": (
            "(-1, (heads, -1)).movedim(1, 0) → (-1, (-1, heads)).movedim(2, 0) ; Y.movedim(0, 1) → Y.movedim(0, 2)"
        ),
        "your last rows mix heads and tokens: move the axis of heads beside the channels, "
        "then flatten": "Y.movedim(0, 1).flatten(1) → Y.reshape(len(x), -1)",
    },
)(layer)
