"""The exercise of appendix B on what two prompts share: the tokens that a snapshot saves."""

import torch

from smalearn.course.exercises.core import exercise


def reused(prompt, served, chunk_len):
    """How many of the prompt's first tokens need not be read again.

    Prompts are token numbers (T,). While `served` was read, its states were kept at the end of every full chunk. Say
    how many tokens of `prompt` such a state has read already. At least one token must be left to read: a state alone
    gives no scores for what comes next.

    Hint: A state that has read a single token too many is of no use. Up to where do both prompts agree, and where are
    states?

    Hint: Compare the first min(T, S) tokens. A running product of "equal" stays 1 until the first difference.

    Hint: `(prompt[:length] == served[:length]).long().cumprod(0).sum()` counts the shared ones, and `// chunk_len *
    chunk_len` goes back to the border. Which `length` leaves a token to read?

    Insight: Keys and values can be cut off at any token: each belongs to one. A state is a sum over all of them, so a
    hit is only where a copy was made.
    """
    length = min(len(prompt) - 1, len(served))
    shared = (prompt[:length] == served[:length]).long().cumprod(0).sum()
    return int(shared) // chunk_len * chunk_len


def _border_by_border(prompt, served, chunk_len):
    """The last border up to which both agree."""
    borders = [0]
    for border in range(chunk_len, min(len(prompt) - 1, len(served)) + 1, chunk_len):
        if prompt[:border].tolist() == served[:border].tolist():
            borders.append(border)
    return borders[-1]


def _prompts(randn):
    """Fixed agreements, other tokens with each seed."""
    yield torch.tensor([3]), torch.tensor([3]), 1
    pairs = [(9, 9, 9, 3), (7, 12, 7, 4), (10, 14, 8, 4), (12, 8, 8, 4), (11, 11, 6, 4), (8, 8, 0, 2), (5, 5, 3, 8)]
    for target, source, shared, chunk_len in pairs:
        text = (10 * randn(max(target, source))).long().abs()
        other = text.clone()
        if shared < min(target, source):
            other[shared] += 1
        yield text[:target], other[:source], chunk_len


SHARED = "(prompt[:length] == served[:length]).long().cumprod(0).sum()"

exercise(
    "B.1",
    "What a new prompt saves",
    claim="009:grid",
    level=2,
    minutes=10,
    cases=_prompts,
    oracle=_border_by_border,
    wrong={
        "there is no state between borders: go back to the last one that both prompts have passed": (
            "// chunk_len * chunk_len → "
        ),
        "you go on to the next border: the state there has read tokens that this prompt does not have": (
            "return int(shared) // chunk_len → return -(-int(shared) // chunk_len)"
        ),
        "nothing is left to read, if the whole prompt was served: its last token must be read for its scores": (
            "len(prompt) - 1 → len(prompt)"
        ),
        "you count equal tokens wherever they stand: a state has read all before it, "
        "so one difference ends what is shared": ".cumprod(0) → ",
        "the last token is taken off behind the border: no state is there. Leave it out before you count": (
            "    length = → "
            "    shared = (prompt[: len(served)] == served[: len(prompt)]).long().cumprod(0).sum()\n"
            "    return min(int(shared) // chunk_len * chunk_len, len(prompt) - 1)\n    length = "
        ),
        "this is a number of chunks: tokens are asked for": "// chunk_len * chunk_len → // chunk_len",
        "a border counts even if the prompts differ at the very next token": (
            "int(shared) // chunk_len → max(int(shared) - 1, 0) // chunk_len"
        ),
        "you ask whether whole prompts are equal: a shared beginning is enough": (
            f"{SHARED} → length * (len(prompt) == len(served) and bool((prompt == served).all()))"
        ),
        "you compare chunk by chunk, each for itself: a difference in an earlier chunk is in every later state": (
            f"{SHARED} → chunk_len * sum(bool((prompt[s : s + chunk_len] == served[s : s + chunk_len]).all()) "
            "for s in range(0, length - chunk_len + 1, chunk_len))"
        ),
    },
)(reused)
