"""The exercises of chapter 03 on gates: a decay that is cut at a border, and chunks with a decay."""

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def halves(log_a, s, border, t):
    """Two factors of the decay between s and t: until the border, and since.

    Token s comes before the border and token t does not, s < border ≤ t. Fill in the two factors on the right:

    ∏_{s < j ≤ t} a_j = (depends only on s and the border) · (depends only on the border and t).

    The border's own gate belongs to the second. Return a tuple of both numbers. log_a is (T,); some gates are 0,
    log_a = −∞: use no quotient, and no difference of running sums.

    Hint: Write out the gates between s = 1 and t = 4, with a border at 3: a_2 a_3 a_4. Which come before token 3?

    Hint: Until the border: the gates s + 1 to border − 1. Since: border to t. A sum over no entries is 0.

    Hint: `log_a[s + 1 : border].sum().exp().item()` is the first.

    Insight: Both factors are at most 1, whatever the gates: that is why chunks may be long and gates strong.
    """
    until = log_a[s + 1 : border].sum().exp()
    since = log_a[border : t + 1].sum().exp()
    return until.item(), since.item()


def product(log_a, first, last):
    """The product of the gates from `first` to `last`, both included."""
    product = 1.0
    for k in range(first, last + 1):
        product *= log_a[k].exp().item()
    return product


def _border_cases(randn):
    yield -randn(2).abs(), 0, 1, 1
    yield -randn(6).abs(), 1, 3, 4
    yield -randn(8).abs(), 0, 4, 7
    yield -randn(8).abs(), 3, 4, 4  # no gate until the border
    for place in (2, 3, 4, 5):  # a reset on token s itself, before the border, on its token, and after it
        yield -randn(8).abs().index_fill(0, torch.tensor(place), torch.inf), 2, 4, 6
    log_a = torch.full((9,), -1.0, dtype=torch.float64)
    log_a[[3, 5]] = -700.0  # tiny factors, but not 0
    yield log_a, 1, 4, 6


DIFFERENCES = (
    "until = → sums = log_a.cumsum(0)\n    until = ; log_a[s + 1 : border].sum() → (sums[border - 1] - sums[s]) ; "
    "log_a[border : t + 1].sum() → (sums[t] - sums[border - 1])"
)

exercise(
    "3.4",
    "At the border",
    claim="002:gla-chunkwise",
    kind="prove",
    level=2,
    minutes=8,
    cases=_border_cases,
    oracle=lambda log_a, s, border, t: (product(log_a, s + 1, border - 1), product(log_a, border, t)),
    way=Way(case=lambda randn, length: (-randn(length).abs(), 1, length // 2, length - 2), differences=False),
    wrong={
        # where they begin and end
        "your first factor has the gate of token s itself: that acts before s is written": "s + 1 : → s :",
        "your first factor ends a gate too early: it runs up to the border, `[… : border]`": "border] → border - 1]",
        "the gate of the border's token is missing: it is the first of the second factor": "[border → [border + 1",
        "the last gate is missing: token t is read after its own gate has acted": "t + 1 → t",
        "the factors are exchanged: "
        "first what comes before the border": "until.item(), since.item() → since.item(), until.item()",
        # how they are computed
        "you multiply logarithms: multiply the gates, or add their logarithms": ".sum().exp() → .prod()",
        "you add the gates up: they act one after the other, so they are multiplied": ".sum().exp() → .exp().sum()",
        "a gate of 0 is left out: log_a = −∞ makes its product 0": ".sum() → .nan_to_num(neginf=0.0).sum()",
        "these are differences of running sums, and where those are not a number you put 0: "
        "the product may be another": f"{DIFFERENCES} ; .item() → .nan_to_num().item()",
        "these are sums of log_a: the factors are their exponentials": ".exp() → ",
    },
)(halves)


def chunked_attention(Q, K, V, log_a, chunk_len):
    """Causal linear attention under one gate per token, quadratic inside chunks, with a state between them.

    Y_t = Σ_{s ≤ t} (∏_{s < j ≤ t} a_j) (Q_t · K_s) V_s. Write it in chunks of chunk_len tokens: no (T, T) matrix, no
    quotient of decays, no difference of running sums. The last chunk may be shorter; some gates are 0, log_a = −∞.

    Hint: `Q.split(chunk_len)` gives the chunks. Of each you need: the decays between its tokens, L (c, c); the decay
    since the border, (c,); and the state at the border.

    Hint: Column s of log L adds up the gates after s: `a[:, None].expand(c, c).tril(-1).cumsum(0)`. Then `.exp()`, and
    `.tril()` last. Its last row is the decay of each token until the end of the chunk.

    Hint: `since = a.cumsum(0).exp()`. Read `(L * (q @ k.mT)) @ v + since[:, None] * (q @ state.mT)`. Then write: the
    old state fades by `since[-1]`, and each value by its entry in the last row of L.

    Insight: This is the algorithm of Mamba-2: in chapter 06 you meet it again from the side of state space models.
    """
    state = torch.zeros(V.shape[1], K.shape[1], dtype=V.dtype)
    outputs = []
    for q, k, v, a in zip(*(x.split(chunk_len) for x in (Q, K, V, log_a)), strict=True):
        L = a[:, None].expand(len(a), len(a)).tril(-1).cumsum(0).exp().tril()
        since = a.cumsum(0).exp()
        outputs.append((L * (q @ k.mT)) @ v + since[:, None] * (q @ state.mT))
        state = since[-1] * state + (L[-1][:, None] * v).mT @ k
    return torch.cat(outputs)


def _decayed(Q, K, V, log_a, chunk_len):
    """Pair by pair: scores times decays."""
    rows = [[product(log_a, s + 1, t) if s <= t else 0.0 for s in range(len(Q))] for t in range(len(Q))]
    return (torch.tensor(rows, dtype=Q.dtype) * (Q @ K.mT)) @ V


def _chunk_cases(randn):
    for length, features, head_dim, chunk_len in [(1, 1, 1, 1), (5, 2, 3, 8), (6, 3, 2, 3), (7, 2, 2, 3), (9, 2, 3, 2)]:
        qkv = (randn(length, size) for size in (features, features, head_dim))
        yield *qkv, -randn(length).abs(), chunk_len
    for place in (3, 4):  # a reset on the first token of a chunk, and inside one
        log_a = -randn(8).abs().index_fill(0, torch.tensor(place), torch.inf)
        yield randn(8, 2), randn(8, 2), randn(8, 3), log_a, 3
    yield randn(17, 2), randn(17, 2), randn(17, 2), torch.full((17,), -200.0, dtype=torch.float64), 16
    yield randn(17, 2), randn(17, 2), randn(17, 2), -randn(17).abs(), 5  # every row with ordinary gates
    Q, K, V, log_a = randn(8, 2), randn(8, 2), randn(8, 3), -randn(8).abs()
    for x in (Q, K, V, log_a):
        x[0] = 0  # so that `responses` draws no conclusions from what a sum of 10¹⁷ drowns
    log_a[3] = -1e17  # nearly a reset: after it differences of running sums have lost all digits
    yield Q, K, V, log_a, 3
    Q, V, log_a = randn(8, 2), randn(8, 3), torch.zeros(8, dtype=Q.dtype).index_fill(0, torch.tensor(4), -torch.inf)
    Q[:4], V[1] = 0, 1e30  # a value that an exact 0 alone forgets
    yield Q, randn(8, 2), V, log_a, 3


def _eight_chunks(randn, length):
    """Eight chunks whatever the length: a loop over pairs shows. So many features that nothing (c, c, N) does."""
    return *(randn(length, 16) for _ in "QKV"), -randn(length).abs(), length // 8


def _by_logarithms(Q, K, V, log_a, chunk_len):
    states = [V.new_zeros(V.shape[1], K.shape[1])]
    for k, v, a in zip(K, V, log_a, strict=True):
        states.append(a * states[-1] + torch.outer(v, k))
    return torch.stack([state @ q for state, q in zip(states[1:], Q, strict=True)])


exercise(
    "3.5",
    "Chunk by chunk",
    claim="002:gla-chunkwise",
    level=3,
    minutes=35,
    cases=_chunk_cases,
    gradient=("Q", "K", "V"),
    oracle=_decayed,
    way=Way(case=_eight_chunks, memory=1, loops=1, matters={"chunk_len": (4, 16)}, differences=False),
    wrong={
        "you multiply by log_a, the logarithm of the gate: the gate is its exponential": _by_logarithms,
        "log_a has met two exponentials: one makes it the gate": "V, log_a → V, log_a.exp()",
        "you add up the gates since the border: "
        "they multiply. Sum the logarithms, then take the exponential": "since[:, None] → a.exp().cumsum(0)[:, None]",
        "the chunks know nothing of one another: "
        "the state of the earlier chunks is never read": " + since[:, None] * (q @ state.mT) → ",
        "after the exponential the entries above the diagonal are 1, and tokens read later ones: "
        "mask once more": "exp().tril() → exp()",
        "a gate of 0 is left out: log_a = −∞ makes its product 0": "V, log_a → V, log_a.nan_to_num(neginf=0.0)",
        "what a chunk writes fades in yours by the gates since its beginning: "
        "those until its END count, the last row": "L[-1] → L[:, 0]",
        "the state is read as it was at the border: "
        "it has faded since, by the gates of the chunk up to t": "since[:, None] * → ",
        "what a chunk reads has not met the gate of its own token: "
        "the decay since the border includes a_t": "since[:, None] → torch.cat([a.new_ones(1), since[:-1]])[:, None]",
        "what a chunk writes enters the state unfaded: "
        "a token has met the gates after it, until the border": "L[-1][:, None] * v → v",
        "the decay since the border is still a sum of logarithms: "
        "take its exponential": "= a.cumsum(0).exp() → = a.cumsum(0)",
        "what is read is multiplied by a sum of logarithms: "
        "the decay since the border is its exponential": "since[:, None] → a.cumsum(0)[:, None]",
        "the decay until the border is a difference of two sums: "
        "after a reset −∞ − (−∞) is not a number. "
        "Add up the gates after each token themselves": "L[-1] → (a.sum() - a.cumsum(0)).exp()",
        "since the border all gates up to token t act, not its own alone": "since[:, None] → a.exp()[:, None]",
        **{
            f"log_a is cut off at −{limit}: sums of −∞ are fine here": f"V, log_a → V, log_a.clamp(min=-{limit})"
            for limit in (1, 3, 5, 10, 20, 50)
        },
        "these are differences of running sums: after a reset −∞ − (−∞) is not a number. Add up the gates between the "
        "two tokens themselves": "a[:, None].expand(len(a), len(a)).tril(-1).cumsum(0) → "
        "(a.cumsum(0)[:, None] - a.cumsum(0))",
        "inside a chunk your running sum goes along the rows: "
        "add up each column from the top down, `cumsum(0)`": "tril(-1).cumsum(0) → tril(-1).cumsum(1)",
        "what is left after the whole chunks is a shorter chunk of its own: "
        "your answer ends before it": "outputs) → outputs[: len(Q) // chunk_len])",
    },
)(chunked_attention)


def kept_numbers():
    """How many numbers the states of the model hold, after any number of tokens.

    Two blocks, four heads each, N = P = 24, and a 1 that rides along with every value.

    Hint: How many rows and columns has the state of one head?

    Hint: P + 1 rows, for the values and the normaliser, and N columns.

    Too little: Each head of each block has a number for every pair: an entry of a key, and one of a value with its 1.

    Too much: A state is one matrix for each head, and there are two blocks of four: it does not grow with the tokens.

    Insight: Attention with these sizes keeps as much after 13 tokens: two blocks of four heads, 48 numbers a token.
    """
    return 2 * 4 * 24 * 25


exercise(
    "3.6",
    "What your model keeps",
    claim="002:linear-time",
    kind="predict",
    level=1,
    minutes=3,
    oracle=lambda: 2 * 4 * 24 * 25,
    wrong={
        "the row of the normaliser is missing: a value is 24 numbers and a 1": "25 → 24",
        "this is one head: there are four in each block": "2 * 4 → 2",
        "this is one block: there are two": "2 * 4 → 4",
        "this is one head of one block: there are eight": "2 * 4 * → ",
        "these are bytes, four for each number: asked are the numbers": "2 * 4 → 4 * 2 * 4",
        "twice too much: bytes, two for each number, or eight heads a block? Asked are numbers, of four": "2 * → 4 *",
        "these are queries, keys and values of one token: a state is the outer product of a value and a key": "25 → 3",
        "the normaliser is a row of 24, one for each entry of a key, not one number": "24 * 25 → (24 * 24 + 1)",
        "this is a vector for each head: a state is a matrix, a value times a key": "24 * 25 → 25",
        "one row more, not two": "25 → 26",
        "a state does not grow with the tokens: these are keys and values of 2,000": "24 * 25 → 48 * 2000",
        "these are keys and values of one token, as attention keeps them": "24 * 25 → 48",
        "these are keys and values of 24 tokens, or two whole matrices: the normaliser is one row": "25 → 48",
        "the keys need no 1: only the values have a row more": "24 → 25",
        "this is what attention keeps of one token, a key and a value: "
        "a state is their outer product": "24 * 25 → (24 + 25)",
    },
)(kept_numbers)
