"""The exercises of chapter 06 on the whole: the chunked algorithm, and the length of a chunk."""

import torch

from smalearn.course.ch06.mask import decay_mask, decays, with_a_reset
from smalearn.course.ch06.pieces import chunk_states, hand_over, read_states
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.masks.decay import split_chunks


def ssd_in_chunks(X, log_a, B, C, state, chunk_len):
    """The scalar state space model in chunks: Y (..., T, P) and the last state (..., P, N).

    Put the four steps together: any leading axes, any length, a first state, and the last state returned.

    Hint: Four lines, one for each step, with your functions of 6.1 to 6.4; before them two lines that cut, after them
    one that joins.

    Hint: `split_chunks(x, chunk_len)` cuts (..., T, D) into (..., chunks, c, D), with zeros after the last token: they
    say nothing and decay nothing. `log_a` has no axis D: say that its time is `axis=-1`.

    Hint: The whole decay of a chunk is `log_a.sum(-1).exp()`. Join with `.flatten(-3, -2)[..., :length, :]`.

    Insight: Per token this costs what the recurrence does up to a constant, but as matrix products: duality, used where
    each side is best.
    """
    length = X.shape[-2]
    X, B, C = (split_chunks(x, chunk_len) for x in (X, B, C))  # (..., chunks, c, ·)
    log_a = split_chunks(log_a, chunk_len, axis=-1)  # (..., chunks, c)
    inside = (decay_mask(log_a) * (C @ B.mT)) @ X  # (..., chunks, c, P)
    updates = chunk_states(X, log_a, B)  # (..., chunks, P, N)
    entering, final = hand_over(log_a.sum(-1).exp(), updates, state)
    Y = inside + read_states(C, log_a, entering)
    return Y.flatten(-3, -2)[..., :length, :], final


def _ssd_cases(randn):
    """Of one head first; then leading axes, heads that share B and C, and resets."""
    sizes = [(1, 1, 1, 1), (3, 2, 1, 1), (4, 2, 2, 2), (6, 2, 3, 2), (7, 2, 2, 3), (5, 2, 2, 8), (8, 2, 2, 2)]
    for number, (length, head_dim, features, chunk_len) in enumerate(sizes):
        X, B, C = (randn(length, size) for size in (head_dim, features, features))
        log_a = decays(randn, length)
        state = randn(head_dim, features)
        if number == 0:  # all is 0
            B = 0 * B
        if number in (0, 2, 5):
            state = 0 * state
        if number == 6:
            log_a = with_a_reset(log_a)
        yield X, log_a, B, C, state, chunk_len
    for heads, shared in (((2,), (2,)), ((2, 3), (2, 1))):
        X, B, C = randn(*heads, 5, 2), randn(*shared, 5, 3), randn(*shared, 5, 3)
        yield X, with_a_reset(decays(randn, *heads, 5)), B, C, randn(*heads, 2, 3), 2


def _recurrence(X, log_a, B, C, state, chunk_len):
    """One token after the other."""
    rows = []
    for t in range(X.shape[-2]):
        state = log_a[..., t, None, None].exp() * state + X[..., t, :, None] * B[..., t, None, :]
        rows.append((state @ C[..., t, :, None])[..., 0])
    return torch.stack(rows, -2), state


# Tokens that are left over neither write nor read.
LOST = (
    "split_chunks(x, → split_chunks(x.where(torch.arange(length)[:, None] < length // chunk_len * chunk_len, 0), ; "
    "split_chunks(log_a, → split_chunks(log_a.where(torch.arange(length) < length // chunk_len * chunk_len, 0),"
)
WRONG_STEPS = {  # of Y, whatever state comes in
    "these are the diagonal blocks alone: step 4, what the states say, "
    "is never added": "inside + read_states(C, log_a, entering) → inside",
    "each chunk reads what the chunk leaves, not what enters it": "log_a, entering) → log_a, updates)",
    "your scores are B Cᵀ: C asks, so that row t of the scores is C_t · B_s": "C @ B.mT → B @ C.mT",
    "what a token writes is decayed by its own a_s too: "
    "look at 6.2": "chunk_states(X, → chunk_states(log_a.exp()[..., None] * X,",
    "what a token reads from the past leaves out its own a_t: "
    "look at 6.4": "read_states(C, log_a, → read_states(C, torch.nn.functional.pad(log_a, (1, -1)),",
    "between chunks you multiply by the sum of log a: the decay is its exponential; "
    "look at 6.3": "log_a.sum(-1).exp() → log_a.sum(-1)",
    "the state is read as it entered: for token t it has decayed by a_1 ⋯ a_t; "
    "look at 6.4": "read_states(C, log_a, entering) → C @ entering.mT",
    "what a token writes does not decay until its chunk ends: look at 6.2": "chunk_states(X, log_a, B) → X.mT @ B",
    "you weight what is written by the mask's first column, the decay from the chunk's beginning: "
    "until its END is the last row": "chunk_states(X, log_a, B) → (decay_mask(log_a)[..., :1] * X).mT @ B",
    "a chunk's own decay meets what it adds to the state: "
    "look at 6.3": "chunk_states( → log_a.sum(-1).exp()[..., None, None] * chunk_states(",
    "each chunk reads the state after it, and so its own tokens twice: read first, "
    "then hand on": "log_a, entering) → log_a, torch.cat([entering[..., 1:, :, :], final[..., None, :, :]], -3))",
}


def _long_case(randn, length):
    return randn(length, 2), decays(randn, length), randn(length, 3), randn(length, 3), randn(2, 3), 8


exercise(
    "6.5",
    "The chunked algorithm",
    claim="004:block-decomposition",
    level=3,
    minutes=20,
    cases=_ssd_cases,
    oracle=_recurrence,
    way=Way(case=_long_case, memory=1, loops=1, matters={"chunk_len": (4, 16)}),
    wrong=WRONG_STEPS
    | {
        "the given state is ignored: it enters the first chunk": "updates, state) → updates, 0 * state)",
        "the last, shorter chunk is dropped: pad it": f"{LOST} ; :length → : length // chunk_len * chunk_len",
        "you return the state that entered the last chunk: "
        "the one after it is asked for": ":], final → :], entering[..., -1, :, :]",
        "you return the padded tokens, too: keep the first T": "[..., :length, :] → ",
        "`log_a` has no axis D, and you cut it along the wrong one: add `axis=-1`": "chunk_len, axis=-1) → chunk_len)",
    },
)(ssd_in_chunks)


def best_chunk_len(length, state, head_dim):
    """The chunk length of the fewest multiply-adds, the smallest if there are several.

    Find the chunk length with the fewest multiply-adds by counting the four steps for every length.

    Hint: Count for one chunk of c tokens, then multiply by the number of chunks, ⌈T / c⌉: the last one is padded. How
    many multiply-adds does a product of (c, N) with (N, c) take?

    Hint: Inside: c²·N for the scores and c²·P for the values. Each state: c·N·P to write, N·P to hand over, c·N·P to
    read. (The mask's c² products and the scalings are not counted.)

    Hint: `min(range(1, length + 1), key=cost)` gives the first of the least; `-(-length // chunk_len)` rounds up.

    Insight: Multiply-adds alone ask for short chunks, of about √(N P / (N + P)) tokens; a GPU asks for longer ones,
    since products of small tiles are slow.
    """

    def macs(chunk_len):
        chunks = -(-length // chunk_len)
        inside = chunk_len**2 * (state + head_dim)
        through = 2 * chunk_len * state * head_dim + state * head_dim
        return chunks * (inside + through)

    return min(range(1, length + 1), key=macs)


def _length_cases(randn):
    yield 1, 4, 4
    yield 2, 1, 1
    yield from [(100, 16, 16), (500, 64, 64), (500, 128, 64), (300, 256, 64), (400, 16, 256)]
    yield from [(13, 64, 64), (29, 64, 64), (127, 64, 64)]  # primes: no divisor is near the best length
    yield from [(12, 3, 8), (50, 6, 10), (77, 24, 40), (100, 20, 7)]


def _by_trying(length, state, head_dim):
    """The first of the cheapest lengths."""
    n, p = state, head_dim
    costs = []
    for q in range(1, length + 1):
        scores = q * q * n + q * q * p  # and their product with X
        states = q * n * p + q * n * p + n * p  # written, read, handed over
        chunks = -(-length // q)
        costs.append(chunks * (scores + states))
    return costs.index(min(costs)) + 1


exercise(
    "6.6",
    "How long is a chunk?",
    claim="004:listing-cost",
    level=2,
    minutes=12,
    cases=_length_cases,
    oracle=_by_trying,
    wrong={
        "you hand over from every chunk to every later one, as the listing does with its matrix over chunks: "
        "a loop needs N·P once a chunk": "+ state * head_dim → + chunks * state * head_dim",
        "only step 3 knows of the padding in your count: a padded chunk costs steps 1, "
        "2 and 4 as much": "chunk_len**2 → chunk_len * length / chunks ; 2 * chunk_len → 2 * length / chunks",
        "step 1 ignores the padding in your count: "
        "a padded chunk costs it as much as a full one": "chunk_len**2 → chunk_len * length / chunks",
        "you count neither what is written nor what is read, "
        "2·c·N·P a chunk": "through = 2 * chunk_len * state * head_dim + → through =",
        "you count one of writing and reading, c·N·P a chunk: both do": "2 * chunk_len → chunk_len",
        "you count the mask, c² a chunk: the table leaves it out": "(state + head_dim) → (state + head_dim + 1)",
        "you count T / c chunks, the last one as a fraction: it is padded, "
        "and costs as much as a full one": "-(-length // chunk_len) → length / chunk_len",
        "you try powers of 2 alone: "
        "any length may be the cheapest": "range(1, length + 1) → (2**k for k in range(length.bit_length()))",
        "you try only lengths that divide T: "
        "the last chunk is padded": "range(1, length + 1) → (q for q in range(1, length + 1) if length % q == 0)",
        "you round the number of chunks down: the last, "
        "shorter one costs as much as a full one": "-(-length // chunk_len) → length // chunk_len",
        "this is the cost: the length that has it "
        "is asked for": "min(range(1, length + 1), key=macs) → min(map(macs, range(1, length + 1)))",
        "this is the length that STORES least, scores and states together: "
        "you were asked for multiply-adds": "(inside + through) → (chunk_len**2 + state * head_dim)",
        "this is the length next to √(N·P / (N + P)), the least if T / c chunks need not be a whole number. There are "
        "⌈T / c⌉, and the last one, padded, "
        "costs as much as a full one": lambda length, n, p: min(length, max(1, round((n * p / (n + p)) ** 0.5))),
        "inside a chunk you count only the pairs that the mask keeps: a matrix product computes the whole c × c block, "
        "and the mask throws half of it away": "chunk_len**2 → chunk_len * (chunk_len + 1) / 2",
        "several lengths cost the same: "
        "the smallest of them is asked for": "range(1, length + 1) → range(length, 0, -1)",
        "this is √(N·P), where the diagonal blocks cost as much as the states: a balance, "
        "not the least": lambda length, n, p: min(length, round((n * p) ** 0.5)),
        "this is the place in a list that begins with c = 1: one less than c": "return min( → return -1 + min(",
        "you never try one chunk for the whole text: "
        "`range(1, length)` stops before it": "range(1, length + 1) → range(1, max(length, 2))",
    },
)(best_chunk_len)
