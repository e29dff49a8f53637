"""The exercises of chapter 06 on the pieces of the chunked algorithm: states written, handed over and read."""

import torch

from smalearn.course.ch06.mask import decay_mask, decays, with_a_reset
from smalearn.course.exercises.core import exercise


def chunk_states(X, log_a, B):
    """State that each chunk leaves at its end, from zero: (..., chunks, P, N).

    Compute for every chunk the state that its own tokens leave at its end, if it starts from zero. Any axes may stand
    before that of the chunks.

    Hint: Token s writes X_s B_sᵀ. Which decays does that meet on its way to the end of the chunk?

    Hint: All a_k with k > s, not its own. You have these products already: look at the last row of `decay_mask`.

    Hint: `left = decay_mask(log_a)[..., -1, :]` is (..., chunks, c). Scale the rows of X by it. The sum over s is then
    one matrix product with B: which of the two has to be transposed?

    Insight: As one product, (P, c) by (c, N), this is work for a GPU's matrix units; a scan does it number by number.
    """
    left = decay_mask(log_a)[..., -1, :]  # (..., chunks, c)
    return (left[..., None] * X).mT @ B


def _chunk_cases(randn):
    """X, log_a and B in chunks; the decays in turn all 1, mild, with resets; at last heads that share B."""
    ones, mild, resets = torch.zeros_like, torch.clone, with_a_reset
    sizes = [((1,), 1, 1, 1, ones), ((1,), 2, 1, 2, ones), ((2,), 3, 2, 3, mild), ((3,), 4, 2, 2, resets)]
    for lead, length, head_dim, features, kind in [*sizes, ((2, 3), 2, 2, 3, mild)]:
        log_a = kind(decays(randn, *lead, length))
        yield randn(*lead, length, head_dim), log_a, randn(*lead, length, features)
    yield randn(2, 2, 3, 2, 2), decays(randn, 2, 2, 3, 2), randn(2, 1, 3, 2, 3)


def _written_loop(X, log_a, B):
    """The recurrence, from zero in every chunk."""
    state = torch.zeros(*log_a.shape[:-1], X.shape[-1], B.shape[-1], dtype=X.dtype)
    for s in range(log_a.shape[-1]):
        written = X[..., s, :, None] * B[..., s, None, :]
        state = log_a[..., s, None, None].exp() * state + written
    return state


LEFT = "decay_mask(log_a)[..., -1, :]"

exercise(
    "6.2",
    "What a chunk leaves behind",
    claim="004:listing-step2",
    level=2,
    minutes=10,
    cases=_chunk_cases,
    oracle=_written_loop,
    wrong={
        "every token gets the decay of the whole chunk: "
        "only what was there before the chunk meets all of it": f"{LEFT} → log_a.sum(-1, keepdim=True).exp()",
        "you subtract running sums and fill the holes with 0: after a reset that is −∞ − (−∞), not a number, and what "
        "is written after it is lost. Sum what comes after a token "
        "on its own": f"{LEFT} → (log_a.cumsum(-1)[..., -1:] - log_a.cumsum(-1)).exp().nan_to_num(0.0)",
        "you subtract running sums and fill the holes with 0, of which the exponential makes 1: after a reset that is "
        "−∞ − (−∞), not a number. Sum what comes after a token "
        "on its own": f"{LEFT} → (log_a.cumsum(-1)[..., -1:] - log_a.cumsum(-1)).nan_to_num().exp()",
        "the decays until the end are a difference of running sums: −∞ − (−∞) after a reset. "
        "Take the mask's last row": f"{LEFT} → (log_a.cumsum(-1)[..., -1:] - log_a.cumsum(-1)).exp()",
        "the weights are log decays: the exponential is missing": "[..., -1, :] → [..., -1, :].log()",
        "this is the first column of the mask: "
        "what is written meets the decays in its last row": "[..., -1, :] → [..., :, 0]",
        "your difference is turned round, "
        "so that the weights grow above 1": f"{LEFT} → (log_a.cumsum(-1) - log_a.sum(-1, keepdim=True)).exp()",
        "you sum from the chunk's end, own decays too, "
        "and do not turn the sums round again by `.flip(-1)`": f"{LEFT} → log_a.flip(-1).cumsum(-1).exp()",
        "you sum the mask's rows, over all sources: "
        "what is written meets the decays in its last row": "[..., -1, :] → .sum(-1)",
        "you multiply the logarithms after a token: add them up, then take the "
        "exponential": f"{LEFT} → torch.stack([log_a[..., s + 1 :].prod(-1) for s in range(log_a.shape[-1])], -1)",
        "a token meets the next decay alone: "
        "it meets all of them until the chunk's end": f"{LEFT} → torch.nn.functional.pad(log_a[..., 1:], (0, 1)).exp()",
    },
)(chunk_states)


def hand_over(decay, updates, state):
    """The states that enter the chunks (..., chunks, P, N), and the one after the last chunk (..., P, N).

    Pass the state through the chunks; return the state that enters each, and the last one. Any axes may stand before
    that of the chunks.

    Hint: Seen from far away a chunk is a single step of a state space model. What are its decay and its input?

    Hint: Before a chunk changes the state, note it down: that is what the chunk's tokens will read.

    Hint: `updates.unbind(-3)` gives one chunk after the other, whatever stands before; so does `decay`, once it has two
    more axes. In the loop first `entering.append(state)`. Then one product and one sum make the new state.

    Insight: It is the recurrence once more, with chunks for tokens: the same function could be used on chunks of
    chunks.
    """
    decay = decay[..., None, None]  # (..., chunks, 1, 1)
    entering = []
    for a, update in zip(decay.unbind(-3), updates.unbind(-3), strict=True):
        entering.append(state)
        state = a * state + update  # (..., P, N)
    return torch.stack(entering, -3), state


def _hand_cases(randn):
    yield torch.ones(1).double(), torch.zeros(1, 1, 1).double(), randn(1, 1)
    yield torch.ones(2).double(), torch.zeros(2, 2, 1).double(), torch.zeros(2, 1).double()
    for chunks, head_dim, features in [(1, 1, 2), (3, 2, 2), (4, 2, 3)]:
        decay = decays(randn, chunks).exp()
        yield decay, randn(chunks, head_dim, features), randn(head_dim, features)
    yield torch.tensor([0.5, 0.0, 0.25]).double(), randn(3, 2, 3), randn(2, 3)
    for lead in ((2,), (3, 2)):
        yield decays(randn, *lead, 3).exp(), randn(*lead, 3, 2, 2), randn(*lead, 2, 2)


def _handed_over(decay, updates, state):
    """Every state as a sum over all chunks before it, and over what was there at first."""
    sums = []
    for c in range(decay.shape[-1] + 1):
        total = decay[..., :c].prod(-1)[..., None, None] * state
        for j in range(c):
            total = total + decay[..., j + 1 : c].prod(-1)[..., None, None] * updates[..., j, :, :]
        sums.append(total)
    return torch.stack(sums[:-1], -3), sums[-1]


exercise(
    "6.3",
    "From chunk to chunk",
    claim="004:listing-step3",
    level=1,
    minutes=8,
    cases=_hand_cases,
    oracle=_handed_over,
    wrong={
        "these are the states AFTER the chunks. A chunk sees its own tokens through its diagonal block; "
        "it must read the state that enters it": "append(state) → append(a * state + update)",
        "you decay what a chunk adds by that chunk's decay: the update is already a state at the chunk's end. "
        "Decay the old state, then add": "+ update → + a * update",
        "the states only add up: the old state meets the decay of every chunk that it passes": "a * state → state",
        "you decay a state by the chunk that it enters: what enters is the state as the chunk before left it. "
        "How it fades inside is the next exercise": "append(state) → append(a * state)",
        "`decay` is the factor already, not its logarithm: "
        "you take the exponential once more": "a * state → a.exp() * state",
        "you decay by the next chunk's factor: "
        "chunk c's own acts on the state that enters it": "decay.unbind(-3), → [*decay.unbind(-3)[1:], 1],",
        "your last state is the one that enters the last chunk, which it still meets": "-3), state → -3), entering[-1]",
        "your last state is the last update: "
        "the state before it decays, and stays": "-3), state → -3), updates[..., -1, :, :]",
        "every entering state is the last one: you keep ONE tensor and change it in place. "
        "Write `state = a * state + update`": "torch.stack(entering, -3) → state[..., None, :, :].expand_as(updates)",
    },
)(hand_over)


def read_states(C, log_a, entering):
    """Output that every token reads from the past: (..., chunks, c, P).

    Compute for every token what it reads from the state that enters its chunk. Any axes may stand before that of the
    chunks.

    Hint: The state entered before the chunk's first token. Which decays has it met when token t reads it?

    Hint: All of the chunk so far, a_t included: a token first decays the state. A running sum of `log_a`.

    Hint: `C @ entering.mT` is (..., chunks, c, P): all tokens read in one product. What scales its rows is
    (..., chunks, c), the exponential of the running sum, and lacks an axis.

    Insight: All tokens of a chunk read at once because none of them needs the states between: one product with C.
    """
    since = log_a.cumsum(-1).exp()  # (..., chunks, c)
    return since[..., None] * (C @ entering.mT)


def _read_cases(randn):
    for _, log_a, C in _chunk_cases(randn):
        yield C, log_a, randn(*log_a.shape[:-1], 2, C.shape[-1])


def _read_loop(C, log_a, entering):
    """The entering state, decayed and read step by step."""
    rows, state = [], entering
    for t in range(log_a.shape[-1]):
        state = log_a[..., t, None, None].exp() * state
        rows.append((state @ C[..., t, :, None])[..., 0])
    return torch.stack(rows, -2)


exercise(
    "6.4",
    "What a chunk reads",
    claim="004:listing-step4",
    level=2,
    minutes=8,
    cases=_read_cases,
    oracle=_read_loop,
    wrong={
        "your decay leaves out a_t: "
        "a token decays the state before it reads": "log_a.cumsum → torch.nn.functional.pad(log_a, (1, -1)).cumsum",
        "your factors are log decays: take the exponential": "cumsum(-1).exp() → cumsum(-1)",
        "you multiply logarithms: sum them, then take the exponential": "cumsum(-1).exp() → cumprod(-1)",
        "you multiply logarithms before the exponential: sum them": "cumsum → cumprod",
        "every token sees its own decay alone: the state has met all decays since the chunk's start, "
        "a running sum of `log_a`": "log_a.cumsum(-1) → log_a",
        "every token reads through the decay of the whole chunk: the state has met only those "
        "up to that token": "log_a.cumsum(-1) → log_a.sum(-1, keepdim=True).expand_as(log_a)",
        "you decay from the token to the chunk's end: that is for writing. "
        "What is read has decayed since the chunk's START": "log_a.cumsum(-1).exp() → decay_mask(log_a)[..., -1, :]",
        "your sum runs from the chunk's end: token t has met the decays from the chunk's "
        "start up to its own": "log_a.cumsum(-1) → log_a.flip(-1).cumsum(-1).flip(-1)",
        "you add up decays: they multiply. Sum the logarithms, "
        "then take the exponential": "cumsum(-1).exp() → exp().cumsum(-1)",
        "each chunk reads the state that enters the one before": "entering.mT → entering.roll(1, -3).mT",
        "a state is (P, N) and C (c, N): what they share is N, so the state "
        "has to be transposed": "entering.mT → entering",
        "you sum `log_a` over the chunks: sum it over the tokens of each, axis -1": "cumsum(-1) → cumsum(-2)",
        "your running sum goes on from chunk to chunk: each state enters its own chunk, "
        "and the sum begins anew": "log_a.cumsum(-1) → log_a.flatten(-2).cumsum(-1).view(log_a.shape)",
    },
)(read_states)
