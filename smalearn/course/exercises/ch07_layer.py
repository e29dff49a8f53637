"""The exercises of chapter 07: steps that pass over pauses, a convolution, a step of decoding, the size of a memory."""

import torch

from smalearn.course.exercises.ch06_mask import decays
from smalearn.course.exercises.core import exercise

# ------------------------------------------------------------------------------------- 7.1 a clock that stops in pauses

LEAST = 0.99  # of what the state holds


def _spoken(randn, pauses):
    """Words 1 to 9 in bursts of three, and pauses, 0, of these lengths after them."""
    bursts = [torch.randint(1, 10, (3,), generator=randn.generator) for _ in pauses]
    silences = [torch.zeros(length, dtype=torch.int64) for length in pauses]
    return torch.cat([part for pair in zip(bursts, silences, strict=True) for part in pair])


def _shares(delta, tokens):
    """For each pause, how much of the state comes from the last word: of the weights e^(S_s - S_t) Δ_s."""
    state, last, shares = torch.zeros(len(tokens), dtype=torch.float64), 0, {}
    for t, token in enumerate(tokens.tolist()):
        state = state * torch.exp(-delta[t])
        state[t] = delta[t]
        last = t if token else last
        if not token:
            shares[t] = (state[last] / state.sum()).nan_to_num(0.0).item()
    return shares


def _forgetful(delta, tokens):
    if not isinstance(delta, torch.Tensor) or delta.shape != tokens.shape:
        return f"the answer must be a tensor with one step for each of the {len(tokens)} tokens"
    delta = delta.detach().double()
    if not delta.isfinite().all() or (delta < 0).any():
        return "a step is a length of time: finite, and at least 0"
    for t, share in _shares(delta, tokens).items():
        if share < LEAST:
            return f"after token {t}, a pause, only {100 * share:.1f} % of what the state holds is the last word"
    return ""


def _clock(word, pause):
    return lambda tokens: torch.where(tokens > 0, word, pause)


def _last_of_each_burst(tokens):
    after = torch.cat([tokens[1:], tokens[:1]])
    return torch.where((tokens > 0) & (after == 0), 0.5, 0.0)


@exercise(
    "7.1",
    "A clock that stops in pauses",
    claim="004:filler",
    kind="open",
    level=1,
    minutes=6,
    cases=lambda randn: ((_spoken(randn, pauses),) for pauses in [(1,), (4, 2), (8, 30), (60, 1, 5), (0, 200)]),
    refuse=_forgetful,
    reached=lambda delta, tokens: f"at least {100 * min(_shares(delta.double(), tokens).values()):.1f} % of the state",
    wrong={
        "all steps are 1: a pause then wipes out words and counts as one": _clock(1.0, 1.0),
        "a word of length 1 leaves e^{-1} = 37 % of what was there: let a word last longer": _clock(1.0, 0.0),
        "your pauses last and your words pass: turn it round": _clock(0.0, 10.0),
        "every step is long, the pauses too: they wipe the state": _clock(10.0, 10.0),
        "no time passes at all: then nothing is written either": _clock(0.0, 0.0),
        "your pauses take a little time each, and it adds up: after 50 of them e^{-5} is left": _clock(10.0, 0.1),
        "even 0.01 a pause writes something each time: exactly 0 passes over it": _clock(10.0, 0.01),
        "a pause takes time in your code, a word less than enough: 0 and a large number do it": _clock(3.0, 0.5),
        "a word of length 2 leaves e^{-2} = 14 % of what was there: longer": _clock(2.0, 0.0),
        "a word of length 3 leaves e^{-3} = 5 % of what was there: a little longer": _clock(3.0, 0.0),
        "a step must know its own token alone: yours looks for the pause that follows": _last_of_each_burst,
        "the steps are lengths, not decays: a decay of 1 keeps the state, and so does a length of 0": _clock(0.01, 1.0),
    },
)
def steps(tokens):
    """A step Δ_t for each token, so that in a pause the state holds the last word, and hardly anything else.

    Tokens (T,) are words, 1 to 9, or pauses, 0. The state decays by e^{-Δ_t}, then Δ_t x_t is added. In each pause at
    least 99 % of all weights in the state must belong to the last word. A step depends on its own token alone.

    Hint: Which Δ leaves the state as it is, and writes nothing?

    Hint: A word must push out what was there: e^{-Δ} of it stays, beside Δ of the new one.

    Hint: `torch.where(tokens > 0, ..., ...)` with two numbers, of which one is 0.

    Insight: One number a token decides what passes and what stays. That is all that “selective” means.
    """
    return torch.where(tokens > 0, 6.0, 0.0)


# ------------------------------------------------------------------------------- 7.2 a convolution that can be resumed


def _convolve_loop(x, weight, window):
    """One number after the other, each with the tokens that it sees."""
    taps, seen = len(weight), torch.cat([window, x])
    y = torch.zeros_like(x)
    for t in range(len(x)):
        for d in range(x.shape[1]):
            for k in range(taps):
                y[t, d] += weight[k, d] * seen[t + k, d]
    return y, seen[len(seen) - taps + 1 :]


def _window_after(x, weight, window):
    """Convolve the text with the window behind it."""
    length, seen = len(x), torch.cat([x, window])
    return sum(tap * seen[k : k + length] for k, tap in enumerate(weight)), seen[length:]


def _with_zeros(x, count):
    """The last `count` tokens of x alone, after zeros where there are fewer."""
    return torch.cat([x.new_zeros(count, x.shape[1]), x])[len(x) :]


def _mixed(x, weight, window):
    """A full sum over the channels, the same for all."""
    y, window = _convolve_loop(x, weight, window)
    return y.sum(1, keepdim=True).expand_as(y).clone(), window


def _centred(x, weight, window):
    """Half of the taps look ahead."""
    ahead = len(window) - len(window) // 2
    y, _ = _convolve_loop(torch.cat([x, torch.zeros_like(window[:ahead])]), weight, window)
    return y[ahead:], _convolve_loop(x, weight, window)[1]


def _of_outputs(x, weight, window):
    rows = []
    for token in x:
        rows.append((weight * torch.cat([window, token[None]])).sum(0))
        window = torch.cat([window, rows[-1][None]])[1:]
    return torch.stack(rows), window


def _convolve_cases(randn):
    """Length, channels, taps, and whether there was a text before."""
    for length, dim, taps, past in [(2, 1, 1, 0), (3, 1, 2, 0), (1, 2, 3, 1), (4, 2, 3, 1), (5, 3, 4, 0), (2, 3, 4, 1)]:
        yield randn(length, dim), randn(taps, dim), past * randn(taps - 1, dim) + 0.0


@exercise(
    "7.2",
    "A convolution that can be resumed",
    claim="004:fig-mamba2-block",
    level=2,
    minutes=10,
    cases=_convolve_cases,
    oracle=_convolve_loop,
    wrong={
        "your taps run the wrong way: the LAST row of the weights belongs to the token itself, the first to "
        "the one K - 1 back": lambda x, weight, window: _convolve_loop(x, weight.flip(0), window),
        "token t sees the tokens after it: the convolution must look back, or the "
        "model reads the answer": lambda x, weight, window: (
            _convolve_loop(x.flip(0), weight.flip(0), 0 * window)[0].flip(0),
            _convolve_loop(x, weight, window)[1],
        ),
        "you put zeros before the text where the window belongs: a text in two parts must give what it gives "
        "in one": lambda x, weight, window: (
            _convolve_loop(x, weight, 0 * window)[0],
            _convolve_loop(x, weight, window)[1],
        ),
        "you put the window after the text: its tokens came before": _window_after,
        "your next window forgets the old one: after a text shorter than K - 1, and after every decoded "
        "token, some of the old window is still in sight": lambda x, weight, window: (
            _convolve_loop(x, weight, window)[0],
            _with_zeros(x, len(window)),
        ),
        "you return the window that came in: it must move on to the last K - 1 tokens": lambda x, weight, window: (
            _convolve_loop(x, weight, window)[0],
            window,
        ),
        "you add up the channels: here each channel sees itself alone (depthwise); W_in has mixed them before": _mixed,
        "you take the newest token of the window first: it stands in the order of the text": lambda x, weight, window: (
            _convolve_loop(x, weight, window.flip(0))[0],
            _convolve_loop(x, weight, window.flip(0))[1].flip(0),
        ),
        "your next window holds outputs: the convolution of the next token needs inputs": lambda x, weight, window: (
            _convolve_loop(x, weight, window)[0],
            torch.cat([window, _convolve_loop(x, weight, window)[0]])[len(x) :],
        ),
        "all your channels use the taps of channel 0: each has its own": lambda x, weight, window: _convolve_loop(
            x, weight[:, :1].expand_as(weight), window
        ),
        "your taps stand around the token: the last belongs to the token itself, none to what comes after": _centred,
        "your window keeps outputs: the tokens themselves belong there, as they came in": _of_outputs,
    },
)
def convolve(x, weight, window):
    """Every channel a weighted sum of its last K tokens: y (T, D), and the next window (K - 1, D).

    Write the causal convolution of every channel with its own taps, and return the next window.

    Hint: Put the window before the text. Then every token has K - 1 tokens before it, and nothing is special.

    Hint: With the window in front, tap k meets the tokens x[k], x[k + 1], …: T rows of the longer text, shifted by k.

    Hint: `sum(tap * x[k : k + length] for k, tap in enumerate(weight))`, and the next window is what stands at the END
    of the longer text: its last K - 1 rows, `x[length:]` (for K = 1 there are none).

    Insight: The window is the convolution's state: a block has two states, one of K - 1 tokens and one of P·N numbers.
    """
    length, x = len(x), torch.cat([window, x])
    y = sum(tap * x[k : k + length] for k, tap in enumerate(weight))
    return y, x[length:]


# --------------------------------------------------------------------------------- 7.3 a step as long as the token says


def _block_loop(X, dt, A_log, B, C, D, state):
    """One entry of the state after the other."""
    heads, head_dim, features = state.shape
    y, new = torch.zeros_like(X), torch.zeros_like(state)
    for h in range(heads):
        decay = torch.exp(-torch.exp(A_log[h]) * dt[h])
        for p in range(head_dim):
            y[h, p] = D[h] * X[h, p]
            for n in range(features):
                new[h, p, n] = decay * state[h, p, n] + dt[h] * X[h, p] * B[n]
                y[h, p] += C[n] * new[h, p, n]
    return y, new


def _step(x, log_a, B, C, state):
    """The recurrence alone: y and the new state."""
    state = log_a.exp()[:, None, None] * state + x[:, :, None] * B
    return state @ C, state


def _block_stepped(log_decay=None, write=None, skip=None):
    """A step with another log decay(dt, A_log), another write(dt, X) or another skip(dt, X, D)."""
    log_decay = log_decay or (lambda dt, A_log: -dt * A_log.exp())
    write = write or (lambda dt, X: dt[:, None] * X)
    skip = skip or (lambda dt, X, D: D[:, None] * X)

    def wrong(X, dt, A_log, B, C, D, state):
        y, state = _step(write(dt, X), log_decay(dt, A_log), B, C, state)
        return y + skip(dt, X, D), state

    return wrong


def _block_read_too_early(X, dt, A_log, B, C, D, state):
    """The old state is read."""
    return state @ C + D[:, None] * X, _block_loop(X, dt, A_log, B, C, D, state)[1]


def _held(X, dt, A_log, B, C, D, state):
    """The zero-order hold."""
    rate = A_log.exp()
    y, state = _step((-torch.expm1(-dt * rate) / rate)[:, None] * X, -dt * rate, B, C, state)
    return y + D[:, None] * X, state


def _token_decays_too(X, dt, A_log, B, C, D, state):
    """The decay takes of the new token as well."""
    decay = (-dt * A_log.exp()).exp()[:, None]
    y, state = _step(decay * dt[:, None] * X, -dt * A_log.exp(), B, C, state)
    return y + D[:, None] * X, state


def _block_cases(randn):
    """Heads, P, N; first an empty state and no input, then a token of length 0, then ordinary ones."""
    for heads, head_dim, features, kind in [(1, 1, 1, 0), (2, 1, 2, 1), (1, 2, 2, 2), (2, 2, 3, 2), (3, 2, 2, 2)]:
        X, state = randn(heads, head_dim), randn(heads, head_dim, features)
        dt, A_log, D = -decays(randn, heads), -decays(randn, heads), randn(heads)
        B, C = randn(2, features)
        yield X * (kind > 0) + 0.0, dt * (kind != 1), A_log, B, C, D, state * (kind > 0) + 0.0


@exercise(
    "7.3",
    "A step as long as the token says",
    claim="004:fig-mamba2-block",
    level=2,
    minutes=12,
    cases=_block_cases,
    oracle=_block_loop,
    wrong={
        "you write X, not dt·X: a token of length 0 should leave no trace, and yours leaves all of it": _block_stepped(
            write=lambda dt, X: X
        ),
        "you take A_log for −A: it is its logarithm, so that exp(A_log) is above 0 "
        "however it is trained": _block_stepped(log_decay=lambda dt, A_log: -dt * A_log),
        "your state grows: A is −exp(A_log), and a log decay is at most 0": _block_stepped(
            log_decay=lambda dt, A_log: dt * A_log.exp()
        ),
        "your decay does not depend on dt: every token forgets alike, and nothing is selected": _block_stepped(
            log_decay=lambda dt, A_log: -A_log.exp()
        ),
        "you take a softplus of dt: it has been through one, and a token "
        "of length 0 may occur": lambda X, dt, A_log, B, C, D, state: _block_loop(
            X, torch.nn.functional.softplus(dt), A_log, B, C, D, state
        ),
        "your new token has decayed already: the decay acts on the old state, then the "
        "token is written whole": _token_decays_too,
        "you write with C and read with B: B is the key under which "
        "X is written, C asks": lambda X, dt, A_log, B, C, D, state: _block_loop(X, dt, A_log, C, B, D, state),
        "your skip adds D·dt·X: it passes the state by, and takes X as it is": _block_stepped(
            skip=lambda dt, X, D: D[:, None] * dt[:, None] * X
        ),
        "the skip D·X is missing": _block_stepped(skip=lambda dt, X, D: 0 * X),
        "you read the state before the token has changed it: decay, write, then read": _block_read_too_early,
        "this is the hold of chapter 05, (e^(dt A) − 1)/A: the block writes dt·X": _held,
    },
)
def block_step(X, dt, A_log, B, C, D, state):
    """One token for all heads of the block: y (heads, P) and the new state (heads, P, N).

    Decode one token: the log decay is -exp(A_log)·dt, what is written is dt·X under the key B, C reads the new state,
    and D·X is added to what it reads. All heads share B and C.

    Hint: The recurrence, once: decay what is there, write, then read. Which tensors have an axis of heads?

    Hint: `(dt[:, None] * X)[:, :, None] * B` is (heads, P, N): every head writes its own value under the shared key.

    Hint: The decay is `(-dt * A_log.exp()).exp()[:, None, None]`. Reading is `state @ C`, with the NEW state.

    Insight: dt acts twice, as forgetting and as writing: a token with dt near 0 passes by and leaves the state alone.
    And a step touches the state once: its time does not grow with the text.
    """
    decay = (-dt * A_log.exp()).exp()
    state = decay[:, None, None] * state + (dt[:, None] * X)[:, :, None] * B
    return state @ C + D[:, None] * X, state


# ------------------------------------------------------------------------------------------ 7.4 which memory is smaller


@exercise(
    "7.4",
    "Which memory is the smaller one?",
    claim="004:hybrid",
    kind="predict",
    level=1,
    minutes=3,
    tolerance=0.1,
    oracle=lambda: 2 * 1024 * 128 / (2 * 1024),
    wrong={
        "this compares with keys alone: attention keeps a key AND a value for each token": lambda: 256,
        "this is the state of one channel, N numbers, over 2D: there are 2D channels, each with N": lambda: 0.0625,
        "this forgets that the state belongs to 2D channels, not to D": lambda: 64,
        "this is D: count the numbers of the state, 2D · N, and divide by those of a token": lambda: 1024,
    },
)
def equal_after():
    """The number of tokens after which attention's cache is as large as the state.

    A layer with D = 1024 has 2D = 2048 channels, each with a state of N = 128 numbers. Attention of the same D keeps a
    key and a value, 2D numbers, for every token. After how many tokens are the two equally large?

    Hint: How many numbers is the state, all channels together?

    Hint: 2048 · 128 numbers, against 2048 for each token.

    Insight: So up to N tokens attention remembers in less memory, and exactly. A state pays when the text is long.
    """
    return 128
