"""The exercises of chapter 06 on the whole: the chunked algorithm, and the length of a chunk."""

import torch

from smalearn.course.ch06.mask import decay_mask, decays, with_a_reset
from smalearn.course.ch06.pieces import chunk_states, hand_over, read_states
from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way
from smalearn.masks.decay import split_chunks

# ------------------------------------------------------------------------------------------- 6.5 the whole algorithm


def _recurrence(X, log_a, B, C, state):
    """One token after the other; also all the states, the first one included."""
    states, rows = [state], []
    for t in range(len(X)):
        states.append(log_a[t].exp() * states[-1] + torch.outer(X[t], B[t]))
        rows.append(states[-1] @ C[t])
    return torch.stack(rows), states


def _loop(X, log_a, B, C, state, chunk_len):
    Y, states = _recurrence(X, log_a, B, C, state)
    return Y, states[-1]


def _with_states(entering):
    """The chunked algorithm where each chunk reads the state `entering(right state, chunk, the chunk before)`."""

    def ssd(X, log_a, B, C, state, chunk_len):
        parts, (_, states) = [], _recurrence(X, log_a, B, C, state)
        chunks = list(zip(*(x.split(chunk_len) for x in (X, log_a, B, C)), strict=True))
        for number, chunk in enumerate(chunks):
            before = chunks[number - 1] if number else None
            parts.append(_recurrence(*chunk, entering(states[number * chunk_len], chunk, before))[0])
        return torch.cat(parts), states[-1]

    return ssd


def _written(state, chunk):
    """State that a chunk leaves, from zero."""
    return _recurrence(*chunk, torch.zeros_like(state))[1][-1]


def _first_for_all(X, log_a, B, C, state, chunk_len):
    """Every chunk reads the given state."""
    return _with_states(lambda *_: state)(X, log_a, B, C, state, chunk_len)


def _whole_chunks_only(X, log_a, B, C, state, chunk_len):
    """Zeros for the tokens that are left over, which the state does not know either."""
    Y, states = _recurrence(X, log_a, B, C, state)
    whole = len(X) // chunk_len * chunk_len
    Y[whole:] = 0
    return Y, states[whole]


def _from_zero(X, log_a, B, C, state, chunk_len):
    """The first state is not used."""
    Y, states = _recurrence(X, log_a, B, C, torch.zeros_like(state))
    return Y, states[-1]


def _emptied(X, log_a, B, C, state, chunk_len):
    """The padding has a decay of 0."""
    Y, final = _loop(X, log_a, B, C, state, chunk_len)
    return Y, final * (len(X) % min(chunk_len, len(X)) == 0)


def _by_steps(mask=decay_mask, write=chunk_states, hand=hand_over, read=read_states, cut=True):
    """The four steps, one of them with a fault."""

    def ssd(X, log_a, B, C, state, chunk_len):
        length = len(X)
        X, log_a, B, C = (split_chunks(x, chunk_len) for x in (X, log_a[:, None], B, C))
        log_a = log_a[..., 0]
        entering, final = hand(log_a.sum(-1).exp(), write(X, log_a, B), state)
        return ((mask(log_a) * (C @ B.mT)) @ X + read(C, log_a, entering)).flatten(0, 1)[
            : length if cut else None
        ], final

    return ssd


def _scores_transposed(X, log_a, B, C, state, chunk_len):
    """The right outputs and states, but inside a chunk with B C^T."""
    Y, final = _by_steps()(X, log_a, B, C, state, chunk_len)
    parts = zip(*(split_chunks(x, chunk_len) for x in (X, log_a[:, None], B, C)), strict=True)
    more = [(decay_mask(a[:, 0]) * (b @ c.mT - c @ b.mT)) @ x for x, a, b, c in parts]
    return Y + torch.cat(more)[: len(X)], final


def _ssd_cases(randn):
    sizes = [(1, 1, 1, 1), (3, 2, 1, 1), (4, 2, 2, 2), (6, 2, 3, 2), (7, 2, 2, 3), (5, 2, 2, 8), (8, 2, 2, 2)]
    for number, (length, head_dim, features, chunk_len) in enumerate(sizes):
        X, B, C = (randn(length, size) for size in (head_dim, features, features))
        log_a, state = decays(randn, length), randn(head_dim, features)
        if number == 0:
            B, state = 0 * B, 0 * state
        yield X, with_a_reset(log_a) if number == 6 else log_a, B, C, state * (number % 3 != 2), chunk_len


WRONG_STEPS = {  # of Y, whatever state comes in
    "these are the diagonal blocks alone: step 4, what the states say, is never added": _with_states(
        lambda state, chunk, before: torch.zeros_like(state)
    ),
    "each chunk also reads what it writes itself, which its diagonal block has counted: read the state "
    "that ENTERS the chunk": _with_states(lambda state, chunk, before: state + _written(state, chunk)),
    "each chunk knows only the chunk before it: the states must be handed on, "
    "decayed, through all chunks": _with_states(
        lambda state, chunk, before: _written(state, before) if before else state
    ),
    "the last, shorter chunk is lost: T need not be a multiple of the chunk length": _whole_chunks_only,
    "step 1 is never added: what tokens read inside their chunk": _by_steps(
        mask=lambda log_a: torch.zeros_like(decay_mask(log_a))
    ),
    "each chunk reads what the chunk leaves, not what enters it": _by_steps(
        hand=lambda decay, updates, state: (updates, hand_over(decay, updates, state)[1])
    ),
    "inside a chunk nothing is masked: tokens read what comes later, and nothing decays. Its scores need the mask of "
    "6.1": _by_steps(mask=lambda log_a: torch.ones_like(decay_mask(log_a))),
    "inside a chunk nothing decays: its scores need the mask of 6.1, not a triangle of ones": _by_steps(
        mask=lambda log_a: torch.ones_like(decay_mask(log_a)).tril()
    ),
    "your scores are B Cᵀ: C asks, so that row t of the scores is C_t · B_s": _scores_transposed,
    "what a token writes is decayed by its own a_s too: look at 6.2": _by_steps(
        write=lambda X, log_a, B: chunk_states(log_a.exp()[..., None] * X, log_a, B)
    ),
    "what a token reads from the past leaves out its own a_t: look at 6.4": _by_steps(
        read=lambda C, log_a, entering: read_states(
            C, torch.cat([torch.zeros_like(log_a[:, :1]), log_a[:, :-1]], 1), entering
        )
    ),
    "between chunks you multiply by the sum of log a: the decay is its exponential; look at 6.3": _by_steps(
        hand=lambda decay, updates, state: hand_over(decay.log(), updates, state)
    ),
    "nothing of the state decays while a chunk passes: look at 6.3": _by_steps(
        hand=lambda decay, updates, state: hand_over(torch.ones_like(decay), updates, state)
    ),
    "the state is read as it entered: for token t it has decayed by a_1 ⋯ a_t; look at 6.4": _by_steps(
        read=lambda C, log_a, entering: C @ entering.mT
    ),
    "what a token writes does not decay until its chunk ends: look at 6.2": _by_steps(
        write=lambda X, log_a, B: X.mT @ B
    ),
    "you weight what is written by the mask's first row, one token: what a chunk adds decays to its END, the "
    "last row": _by_steps(write=lambda X, log_a, B: X[:, :1].mT @ B[:, :1]),
    "you weight what is written by the mask's first column, the decay from the chunk's beginning: until its END is the "
    "last row": _by_steps(write=lambda X, log_a, B: (decay_mask(log_a)[..., :1] * X).mT @ B),
    "inside a chunk what token s writes meets its own a_s: the mask's product begins after s": _by_steps(
        mask=lambda log_a: decay_mask(log_a) * log_a.exp()[..., None, :]
    ),
    "a token does not read itself: the diagonal belongs to the mask": _by_steps(
        mask=lambda log_a: decay_mask(log_a).tril(-1)
    ),
    "a chunk's own decay meets what it adds to the state: look at 6.3": _by_steps(
        hand=lambda decay, updates, state: hand_over(decay, decay[:, None, None] * updates, state)
    ),
    "each chunk reads the state after it, and so its own tokens twice: read first, then hand on": _by_steps(
        hand=lambda *given: (
            torch.cat([hand_over(*given)[0][1:], hand_over(*given)[1][None]]),
            hand_over(*given)[1],
        )
    ),
}


@exercise(
    "6.5",
    "The chunked algorithm",
    claim="004:block-decomposition",
    level=3,
    minutes=20,
    cases=_ssd_cases,
    oracle=_loop,
    way=Way(
        case=lambda randn, length: (
            randn(length, 2),
            decays(randn, length),
            randn(length, 3),
            randn(length, 3),
            randn(2, 3),
            8,
        ),
        memory=1,
        loops=1,
        matters={"chunk_len": (4, 16)},
    ),
    wrong=WRONG_STEPS
    | {
        "every chunk starts from the given state: only the first one does, the others "
        "from what came before": _first_for_all,
        "the given state is ignored: it enters the first chunk": _from_zero,
        "the last, shorter chunk is dropped: pad it": lambda X, log_a, B, C, state, chunk_len: (
            _whole_chunks_only(X, log_a, B, C, state, chunk_len)[0][: len(X) // chunk_len * chunk_len],
            _whole_chunks_only(X, log_a, B, C, state, chunk_len)[1],
        ),
        "you return the state that entered the last chunk: the one after it is asked for": _by_steps(
            hand=lambda *given: (hand_over(*given)[0], hand_over(*given)[0][-1])
        ),
        "your padding empties the last state: its decay must be 1, log a = 0": _emptied,
        "you return the padded tokens, too: keep the first T": _by_steps(cut=False),
    },
)
def ssd_in_chunks(X, log_a, B, C, state, chunk_len):
    """The scalar state space model in chunks: Y (T, P) and the last state (P, N).

    Put the four steps together: any length, a first state, and the last state returned.

    Hint: Four lines, one for each step, with your functions of 6.1 to 6.4; before them a line that cuts, after them a
    line that joins.

    Hint: `split_chunks(x, chunk_len)` cuts a (T, D) tensor into (chunks, c, D), with zeros after the last token: they
    say nothing and decay nothing. For `log_a`, append an axis, and take it away again.

    Hint: The whole decay of a chunk is `log_a.sum(-1).exp()`. Join with `.flatten(0, 1)[:length]`.

    Insight: Per token this costs what the recurrence does up to a constant, but as matrix products: duality, used where
    each side is best.
    """
    length = len(X)
    X, log_a, B, C = (split_chunks(x, chunk_len) for x in (X, log_a[:, None], B, C))
    log_a = log_a[..., 0]
    inside = (decay_mask(log_a) * (C @ B.mT)) @ X
    entering, final = hand_over(log_a.sum(-1).exp(), chunk_states(X, log_a, B), state)
    Y = inside + read_states(C, log_a, entering)
    return Y.flatten(0, 1)[:length], final


# ---------------------------------------------------------------------------------------- 6.6 the length of a chunk


def _cheapest(cost):
    """The chunk length with the least cost(chunks, chunk_len, state, head_dim), by trying them all."""

    def best(length, state, head_dim):
        costs = [cost(-(-length // q), q, state, head_dim) for q in range(1, length + 1)]
        return costs.index(min(costs)) + 1

    return best


def _chunk_macs(c, q, n, p):
    """Scores and their product with X, states written and read, states handed over, for all chunks."""
    return c * q * q * n + c * q * q * p + c * q * n * p + c * q * n * p + c * n * p


def _largest(length, state, head_dim):
    """Chunk length of the fewest multiply-adds, the largest of several that are equally cheap."""
    costs = [_chunk_macs(-(-length // q), q, state, head_dim) for q in range(length, 0, -1)]
    return length - costs.index(min(costs))


def _length_cases(randn):
    yield 1, 4, 4
    yield 2, 1, 1
    yield from [(100, 16, 16), (500, 64, 64), (500, 128, 64), (300, 256, 64), (400, 16, 256)]
    yield from [(13, 64, 64), (29, 64, 64), (127, 64, 64)]  # primes: no divisor is near the best length
    yield from [(12, 3, 8), (50, 6, 10), (77, 24, 40), (100, 20, 7)]


@exercise(
    "6.6",
    "How long is a chunk?",
    claim="004:listing-cost",
    level=2,
    minutes=12,
    cases=_length_cases,
    oracle=_cheapest(_chunk_macs),
    wrong={
        "handing over is free in your count: N·P multiply-adds a chunk are missing, and without them a chunk "
        "of one token is always best": _cheapest(lambda c, q, n, p: c * q * (q * (n + p) + 2 * n * p)),
        "you hand over from every chunk to every later one, as the listing does with its matrix over chunks: a "
        "loop needs N·P once a chunk": _cheapest(lambda c, q, n, p: c * q * (q * (n + p) + 2 * n * p) + c * c * n * p),
        "only step 3 knows of the padding in your count: a padded chunk costs steps 1, 2 and 4 as much": (
            lambda length, n, p: min(
                range(1, length + 1),
                key=lambda q: length * q * (n + p) + 2 * length * n * p + -(-length // q) * n * p,
            )
        ),
        "step 1 ignores the padding in your count: a padded chunk costs it as much as a full one": (
            lambda length, n, p: min(
                range(1, length + 1),
                key=lambda q: length * q * (n + p) + -(-length // q) * (2 * q + 1) * n * p,
            )
        ),
        "you count neither what is written nor what is read, 2·c·N·P a chunk": _cheapest(
            lambda c, q, n, p: c * (q * q * (n + p) + n * p)
        ),
        "you count one of writing and reading, c·N·P a chunk: both do": _cheapest(
            lambda c, q, n, p: c * (q * q * (n + p) + q * n * p + n * p)
        ),
        "you count the mask, c² a chunk: the table leaves it out": _cheapest(
            lambda c, q, n, p: _chunk_macs(c, q, n, p) + c * q * q
        ),
        "you count T / c chunks, the last one as a fraction: it is padded, and costs as much as a full one": (
            lambda length, n, p: min(range(1, length + 1), key=lambda q: _chunk_macs(length / q, q, n, p))
        ),
        "you try powers of 2 alone: any length may be the cheapest": lambda length, n, p: min(
            (2**k for k in range(length.bit_length())), key=lambda q: _chunk_macs(-(-length // q), q, n, p)
        ),
        "you try only lengths that divide T: the last chunk is padded": lambda length, n, p: min(
            (q for q in range(1, length + 1) if length % q == 0), key=lambda q: _chunk_macs(length // q, q, n, p)
        ),
        "you round the number of chunks down: the last, shorter one costs as much as a full one": lambda length, n, p: (
            min(range(1, length + 1), key=lambda q: _chunk_macs(length // q, q, n, p))
        ),
        "this is the cost: the length that has it is asked for": lambda length, n, p: min(
            _chunk_macs(-(-length // q), q, n, p) for q in range(1, length + 1)
        ),
        "this is the length that STORES least, scores and states together: you were asked for multiply-adds": _cheapest(
            lambda c, q, n, p: c * (q * q + n * p)
        ),
        "inside a chunk the scores (c·c·N) are only half of it: they are then multiplied with X, c·c·P": _cheapest(
            lambda c, q, n, p: c * (q * q * n + 2 * q * n * p + n * p)
        ),
        "this is the length next to √(N·P / (N + P)), the least if T / c chunks need not be a whole number. "
        "There are ⌈T / c⌉, and the last one, padded, costs as much as a full one": lambda length, state, head_dim: min(
            length, max(1, round((state * head_dim / (state + head_dim)) ** 0.5))
        ),
        "inside a chunk you count only the pairs that the mask keeps: a matrix product computes the whole "
        "c × c block, and the mask throws half of it away": _cheapest(
            lambda c, q, n, p: c * (q * (q + 1) / 2 * (n + p) + 2 * q * n * p + n * p)
        ),
        "several lengths cost the same: the smallest of them is asked for": _largest,
        "this is √(N·P), where the diagonal blocks cost as much as the states: a "
        "balance, not the least": lambda length, state, head_dim: min(length, round((state * head_dim) ** 0.5)),
        "this is the place in a list that begins with c = 1: one less than c": lambda *given: (
            best_chunk_len(*given) - 1
        ),
        "you never try one chunk for the whole text: `range(1, length)` stops before it": lambda length, n, p: min(
            range(1, max(length, 2)), key=lambda q: _chunk_macs(-(-length // q), q, n, p)
        ),
    },
)
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
