"""Exercise 7.1: steps that pass over pauses."""

import math

import torch

from smalearn.course.exercises.core import exercise

LEAST = 0.99  # of what the state holds
ROUNDING = 1e-6  # of a share


def steps(tokens):
    """A step Δ_t for each token, so that in a pause the state holds the last word, and hardly anything else.

    Tokens (T,) are words, 1 to 9, or pauses, 0. The state decays by e^{-Δ_t}, then Δ_t x_t is added. Here every token,
    a pause too, is written with weight Δ_t in a place of its own. In each pause after a word, and at the end of the
    text, at least 99 % of all weights in the state must belong to the last word. A step depends on its own token alone.

    Hint: Which Δ leaves the state as it is, and writes nothing?

    Hint: A word must push out what was there: e^{-Δ} of it stays, beside Δ of the new one.

    Hint: `torch.where(tokens > 0, ..., ...)` with two numbers, of which one is 0.

    Insight: One number a token decides what passes and what stays: the heart of “selective”.
    """
    return torch.where(tokens > 0, 6.0, 0.0)


def _texts(randn):
    yield (torch.tensor([1, 1]),)  # a word said twice, and no pause
    for pauses in [(1,), (4, 2), (8, 30), (60, 1, 5), (0, 200)]:
        yield (_spoken(randn, pauses),)
    yield (torch.cat([torch.tensor([0]), torch.randint(0, 10, (200,), generator=randn.generator)]),)


def _spoken(randn, pauses):
    """Words 1 to 9 in bursts of three, and pauses, 0, of these lengths after them."""
    bursts = [torch.randint(1, 10, (3,), generator=randn.generator) for _ in pauses]
    silences = [torch.zeros(length, dtype=torch.int64) for length in pauses]
    return torch.cat([part for pair in zip(bursts, silences, strict=True) for part in pair])


def _forgetful(delta, tokens):
    if not isinstance(delta, torch.Tensor) or delta.shape != tokens.shape:
        got = f"a tensor of the shape {tuple(delta.shape)}" if isinstance(delta, torch.Tensor) else type(delta).__name__
        return f"the answer must be a tensor with one step for each of the {len(tokens)} tokens, got {got}"
    delta = delta.detach().double()
    if not delta.isfinite().all() or (delta < 0).any():
        return "a step is a length of time: finite, and at least 0"
    if reason := _not_of_its_token(delta, tokens):
        return reason
    for t, (share, before, pauses) in _shares(delta, tokens).items():
        if share < LEAST - ROUNDING:
            what = "the end of the text" if tokens[t] else "a pause"
            step = delta[: t + 1][tokens[: t + 1] > 0][-1].item()
            return _diluted(f"at position {t}, {what}", step, share, before, pauses)
    return ""


def _shares(delta, tokens):
    """In each pause after a word and at the end: the shares of the last word, of earlier ones, of pauses."""
    state, is_word, last, shares = torch.zeros(len(tokens), dtype=torch.float64), tokens > 0, None, {}
    for t, token in enumerate(tokens.tolist()):
        state = state * torch.exp(-delta[t])
        state[t] = delta[t]
        last = t if token else last
        if last is not None and (not token or t == len(tokens) - 1):
            parts = torch.stack([state[last], state[:last][is_word[:last]].sum(), state[~is_word].sum()])
            shares[t] = (parts / state.sum()).nan_to_num(0.0).tolist()
    return shares


def _not_of_its_token(delta, tokens):
    """Say that one token takes two different steps."""
    for token in tokens.unique():
        places = (tokens == token).nonzero().flatten()
        first = places[0]
        others = places[~torch.isclose(delta[places], delta[first])].tolist()
        if others:
            name = f"word {token}" if token else "pause"
            both = f"{delta[first]:.6g} at position {first} and one of {delta[others[0]]:.6g} at position {others[0]}"
            return f"the {name} takes a step of {both}: a step depends on its own token alone"
    return ""


def _diluted(where, step, share, before, pauses):
    """Say that the last word's share of the state is too small, and what holds the rest."""
    if not share + before + pauses:
        return f"{where}, the state holds nothing: no step up to there is above 0"
    kept = _percent(math.exp(-step))
    rest = f"the words before it still hold {_percent(before)}: a step of {step:.3g} leaves {kept} of them"
    if pauses > before:
        rest = f"pauses hold {100 * pauses:.2f} %, for a pause is written with its Δ too"
    return f"{where}, the last word holds only {_percent(share)} of the state; {rest}"


def _percent(share):
    """Two decimals, rounded down: below 99 % it never reads 99.00 %."""
    return f"{math.floor(1e4 * share + 1e4 * ROUNDING) / 100:.2f} %"


def _least(delta, tokens):
    return (
        f"at least {_percent(min(share for share, *_ in _shares(delta.double(), tokens).values()))} for the last word"
    )


exercise(
    "7.1",
    "A clock that stops in pauses",
    claim="004:filler",
    kind="open",
    level=1,
    minutes=8,
    cases=_texts,
    refuse=_forgetful,
    reached=_least,
    wrong={
        # words of length 1 and less
        "all your steps are 1: a pause then fades the words, and is written as strongly as one": "6.0, 0.0 → 1.0, 1.0",
        "a word of length 1 leaves e^-1 = 37 % of what was there: let a word last longer": "6.0 → 1.0",
        "True is a length of 1, and e^-1 = 37 % of what was there stays: let a word last longer": lambda tokens: (
            tokens > 0
        ),
        "0.2 is too short: e^-0.2 = 82 % of what was there stays": "6.0 → 0.2",
        "0.99 is too short: a step is a length, not a share, and e^-0.99 = 37 % of what was there stays": "6.0 → 0.99",
        "0.01 is too short: a step is a length, not a decay, and e^-0.01 = 99 % of what was there stays": "6.0 → 0.01",
        # turned round, or all alike
        "your pauses last and your words pass: turn it round": "6.0, 0.0 → 0.0, 10.0",
        "your words take no time, so that none is ever written; turn it round, "
        "and 1 is too short": "6.0, 0.0 → 0.0, 1.0",
        "every step is long, the pauses too: they wipe the state": "6.0, 0.0 → 10.0, 10.0",
        "no time passes at all: then nothing is written either": "6.0 → 0.0",
        # pauses that last
        "a pause takes time in yours, 1 each: it must take none": "6.0, 0.0 → 10.0, 1.0",
        "a pause takes time in yours, 0.5 each: it must take none": "6.0, 0.0 → 10.0, 0.5",
        "your pauses take a little time each, and it adds up: after 50 of them e^-5 is left": "6.0, 0.0 → 10.0, 0.1",
        "even 0.01 a pause writes something each time: exactly 0 passes over it": "6.0, 0.0 → 10.0, 0.01",
        "even 0.001 a pause adds up, in a long one: exactly 0 passes over it": "6.0, 0.0 → 10.0, 0.001",
        "a pause takes time in your code, a word less than enough: 0 and a large number do it": "6.0, 0.0 → 3.0, 0.5",
        # words a little too short
        "a word of length 2 leaves e^-2 = 14 % of what was there: longer": "6.0 → 2.0",
        "a word of length 3 leaves e^-3 = 5 % of what was there: a little longer": "6.0 → 3.0",
        "a word of length 4 leaves e^-4 = 1.8 % of what was there: a little longer": "6.0 → 4.0",
        "a word of length 4.5 leaves e^-4.5 = 1.1 % of what was there: a little longer": "6.0 → 4.5",
        "a word of length 4.6 leaves e^-4.6 = 1.005 % of what was there, a hair too much": "6.0 → 4.6",
        # which of the numbers are words
        "the number of a word is its name, not its length: word 1 is as good a word as word 9": lambda tokens: (
            tokens.float()
        ),
        "word 1 is a word, too: only 0 is a pause": "tokens > 0, 6.0 → tokens > 1, 10.0",
        "e^0 = 1: your pause takes a step of 1. The steps are the lengths themselves": "6.0, 0.0) → 10.0, 0.0).exp()",
        # steps that know more than their own token
        "a step must know its own token alone: yours looks for the pause "
        "that follows": "tokens > 0, 6.0 → (tokens > 0) & (torch.nn.functional.pad(tokens[1:], (0, 1)) == 0), 10.0",
        "a step must know its own token alone: yours looks for the pause that follows, and finds none at "
        "the end": "tokens > 0, 6.0 → (tokens > 0) & (torch.nn.functional.pad(tokens[1:], (0, 1), value=1) == 0), 10.0",
        "your steps stand one place late: each is that of the "
        "token before": "tokens > 0, 6.0 → torch.nn.functional.pad(tokens[:-1], (1, 0), value=1) > 0, 10.0",
        "a step must know its own token alone: a word said twice in a row passes in "
        "yours": "tokens > 0, 6.0 → (tokens > 0) & (tokens != torch.nn.functional.pad(tokens[:-1], (1, 0))), 10.0",
        "your steps grow with the position: "
        "a word lasts as long wherever it stands": "6.0 → torch.arange(len(tokens)).float()",
        "your steps change with the position: "
        "a step must know its own token alone": "6.0 → 10.0 + torch.arange(len(tokens))",
        "in a text without pauses all your steps are 0: "
        "a step must know its own token alone": "6.0, 0.0) → 10.0, 0.0) * (tokens == 0).any()",
        # no lengths at all
        "the steps are lengths, not decays: a decay of 1 keeps the state, "
        "and so does a length of 0": "6.0, 0.0 → 0.01, 1.0",
        "a step below 0 makes the old grow, and writes the word with a minus: a length is at least 0": "6.0 → -10.0",
        "an endless word pushes out everything, but ∞ · x is no number: 10 is long enough": "6.0 → torch.inf",
        "a tensor of many truths is no condition: `if` and `and` ask for one. "
        "`torch.where` chooses for each token": lambda tokens: 10.0 if tokens > 0 else 0.0,
    },
)(steps)
