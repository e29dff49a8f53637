"""The exercises of chapter 11 on counting: multiply-adds of causal scores, and the keys that a step still needs."""

from smalearn.course.exercises.core import exercise


def causal_macs(length, ranks, block_lens):
    """Multiply-adds of the scores of all pairs j ≤ i, where level l counts in its blocks of block_lens[l] tokens.

    Count the multiply-adds of causal multi-level scores exactly, for any T.

    Hint: How many pairs j ≤ i are there among b tokens? How many multiply-adds does level l spend on each?

    Hint: b(b + 1)/2 pairs, the diagonal among them, r_l multiply-adds each. Level l has ⌊T / b_l⌋ full blocks, and
    perhaps a shorter one at the end.

    Hint: For each level let `start` run over `range(0, length, size)`; the block has `min(size, length - start)`
    tokens.

    Insight: A block of b tokens has b(b + 1)/2 pairs in place of b²: causal attention saves nearly a factor of 2 only
    where blocks are long.
    """
    total = 0
    for rank, size in zip(ranks, block_lens, strict=True):
        for start in range(0, length, size):
            tokens = min(size, length - start)
            total += rank * tokens * (tokens + 1) // 2
    return total


def _brute(length, ranks, block_lens):
    """Pair by pair, level by level."""
    pairs = [(i, j) for i in range(length) for j in range(i + 1)]
    return sum(r for r, b in zip(ranks, block_lens, strict=True) for i, j in pairs if i // b == j // b)


def _mac_cases(randn):
    yield 0, [2], [1]
    yield 1, [2], [1]
    yield 4, [2, 1], [4, 2]
    yield 16, [4, 2, 1, 1], [16, 8, 4, 2]
    yield 11, [2, 2, 4], [12, 6, 3]
    yield 9, [1, 2], [12, 4]
    yield 6, [2, 3], [6, 1]
    yield 7, [4], [7]


def _triangle(tokens):
    return tokens * (tokens + 1) // 2


exercise(
    "11.4",
    "What causal scores cost",
    claim="003:mlr-flops",
    level=2,
    minutes=8,
    cases=_mac_cases,
    oracle=_brute,
    wrong={
        "you count every pair in a block, b²: "
        "a causal query meets the keys j ≤ i alone, b(b + 1)/2": "tokens * (tokens + 1) // 2 → tokens**2",
        "your pairs are j < i: a token meets itself, too, b(b + 1)/2 pairs in a block": "(tokens + 1) → (tokens - 1)",
        "your blocks are T/2^l long, rounded down: their lengths are given in block_lens, and they may "
        "not fill T": "return total → return sum(r * 2**n * _triangle(length // 2**n) for n, r in enumerate(ranks))",
        "this is r·T(T + 1)/2, standard attention: level "
        "l spends only on pairs in one block of it": "return total → return sum(ranks) * length * (length + 1) // 2",
        "the tokens after the last full block are missing: "
        "they are a block, too, a shorter one": "(0, length, → (0, length - size + 1,",
        "each token of the shorter block meets b keys in your count: it "
        "meets the tokens of its block up to itself": "total += → total += rank * tokens * size if tokens < size else",
        "each token of the shorter block meets itself alone in your count: "
        "it meets its block up to itself": "total += → total += rank * tokens if tokens < size else",
        "you count every pair of the shorter block: "
        "there, too, a query meets the keys j ≤ i alone": "total += → total += rank * tokens**2 if tokens < size else",
        "the shorter block lacks its diagonal: there, "
        "too, a token meets itself": "total += → total += rank * tokens * (tokens - 1) // 2 if tokens < size else",
        "you count the last block as if it were full: it ends with token T - 1": "min(size, length - start) → size",
        "you add one full block, even where none is left over: the last one has T mod b tokens, "
        "perhaps none": "(0, length, → (0, length + 1, ; min(size, length - start) → size",
        "this is r·T(b + 1)/2, right where b divides T: else the last block is shorter, and "
        "its tokens meet fewer keys": "range(0, length, size) → range(1) ; tokens * (tokens + 1) → length * (size + 1)",
        "this is r·T·b: a causal query meets the tokens "
        "of its block up to itself": "range(0, length, size) → range(1) ; tokens * (tokens + 1) // 2 → length * size",
        "you take half of all pairs, b²/2 a block: with the whole diagonal these are b(b + 1)/2, and "
        "the last block may be shorter": "range(0, length, size) → range(1) ; tokens * (tokens + 1) → length * size",
        "you take half of all pairs, rounded down: with the whole diagonal a block has b(b + 1)/2": (
            "range(0, length, size) → range(1) ; "
            "tokens * (tokens + 1) → (length // size * size**2 + (length % size) ** 2)"
        ),
        "the products with the values are in your count: "
        "asked are the scores alone": "total = 0 → total = sum(ranks) * length * (length + 1) // 2",
        "you cut T into equal parts: all blocks have b tokens but the last": (
            "range(0, length, size) → range(1) ; "
            "tokens * (tokens + 1) // 2 → -(-length // size) * _triangle(length // -(-length // size))"
        ),
        "your ranks are in the opposite order: ranks[l] belongs to block_lens[l]": "zip(ranks → zip(ranks[::-1]",
        "only the first two levels are there: "
        "the sum runs over all": "zip(ranks, block_lens, strict=True) → zip(ranks[:2], block_lens)",
        "you add the diagonal of one block to half of all pairs: every block has one": (
            "range(0, length, size) → range(1) ; "
            "tokens * (tokens + 1) → (length // size * size**2 + (length % size) ** 2 + size)"
        ),
        "your blocks are halves of T, of halves: "
        "level l has blocks of block_lens[l] tokens": "block_lens, → [max(1, length >> n) for n in range(len(ranks))],",
        "this is T² Σ r_l/2^(l - 1): it counts all pairs, and is "
        "right for halves of T alone": "return total → return sum(length**2 * r // 2**n for n, r in enumerate(ranks))",
        "this is half of T² Σ r_l/2^(l - 1): count the pairs in blocks of block_lens[l] tokens, "
        "the diagonal too": "return total → return sum(length**2 * r // 2**n for n, r in enumerate(ranks)) // 2",
        "this is half of T² Σ r_l/2^(l - 1) and of the diagonal: the lengths of blocks are given in block_lens": (
            "return total → return (sum(length**2 * r // 2**n for n, r in enumerate(ranks)) + length * sum(ranks)) // 2"
        ),
        "coarse columns count again at each finer level: "
        "level l adds its own r_l alone": "zip(ranks → zip([sum(ranks[: n + 1]) for n in range(len(ranks))]",
        "a pair costs the rank of its finest level alone in your count: "
        "it spends on all levels l ≤ d(i, j)": "zip(ranks → zip([r - before for r, before in zip(ranks, [0, *ranks])]",
        "you multiply the sum of the ranks by the pairs of all levels: "
        "each level has its own rank and pairs": "+= rank → += sum(ranks)",
        "you count pairs: a pair costs r_l multiply-adds at level l": "rank * tokens → tokens",
        "only what the first level spends is here: "
        "the sum runs over all levels": "zip(ranks, block_lens, strict=True) → zip(ranks[:1], block_lens)",
        "only what the last level spends is here: "
        "the sum runs over all levels": "zip(ranks, block_lens, strict=True) → zip(ranks[-1:], block_lens[-1:])",
        "only the tokens that one level leaves over reach the next: "
        "every level has all T": "// 2 → // 2\n        length %= size",
        "you count one block of each level: level l has ⌈T / b_l⌉ of them": "range(0, length, size) → range(1)",
        "the last token is missing: the queries are 0, …, T - 1": "total = 0 → total, length = 0, max(0, length - 1)",
        "these are windows, pairs less than b apart: a level counts where one block "
        "holds both": "range(0, length, size) → range(length) ; tokens * (tokens + 1) // 2 → min(start + 1, size)",
        "your tokens are counted from 1, so that the first block is one short: the first token "
        "is number 0": "range(0, → range(-1, ; min(size, length - start) → min(start + size, length) - max(start, 0)",
    },
)(causal_macs)


def kept_keys(tokens, ranks, block_lens):
    """Count the numbers of keys that the query of the last of `tokens` tokens meets, its own key included.

    Count the numbers of keys that the newest token's query meets: what a cache must hold at that step.

    Hint: The newest of t tokens is number t - 1, counted from 0. Where does its block of level l begin?

    Hint: At ((t - 1) // b_l)·b_l. From there up to itself these are (t - 1) mod b_l + 1 tokens; of each, level l holds
    r_l numbers.

    Insight: What only near tokens share can be forgotten when their block ends: the cache of a level is as short as its
    blocks.
    """
    return sum(rank * ((tokens - 1) % size + 1) for rank, size in zip(ranks, block_lens, strict=True))


def _needed(tokens, ranks, block_lens):
    """Key by key, level by level."""
    last = tokens - 1
    return sum(r for r, b in zip(ranks, block_lens, strict=True) for j in range(tokens) if last // b == j // b)


def _kept_cases(randn):
    yield 1, [1], [1]
    yield 4, [2], [8]
    yield 6, [1], [8]
    yield 5, [2, 1], [8, 4]
    yield 8, [2, 1], [8, 4]
    yield 12, [4, 2, 1, 1], [16, 8, 4, 2]
    yield 13, [4, 2, 1, 1], [16, 8, 4, 2]
    yield 17, [3, 1, 2], [30, 15, 5]


exercise(
    "11.7",
    "What a step still needs",
    claim="003:key-cache",
    level=1,
    minutes=6,
    cases=_kept_cases,
    oracle=_needed,
    wrong={
        "where a block has just become full, yours holds nothing of it: "
        "the token that fills it still meets all of it": "((tokens - 1) % size + 1) → (tokens % size)",
        "you keep the last b_l tokens, a window: "
        "at a border a level starts anew, and holds less": "((tokens - 1) % size + 1) → min(tokens, size)",
        "this is the room that a cache needs, whatever it holds: "
        "at this step a level holds what has been read of its block": "((tokens - 1) % size + 1) → size",
        "you are one token ahead: the newest of t tokens is number t - 1": "tokens - 1 → tokens",
        "the newest token's own key is missing: its query meets it, too": "size + 1 → size",
        "this is the cache of standard attention: "
        "of level l only the keys of the current block are needed": "((tokens - 1) % size + 1) → tokens",
        "these are the last b_l - 1 keys, a window: "
        "a level holds its current block, which began at a border": "((tokens - 1) % size + 1) → min(tokens, size - 1)",
        "these are the tokens that are still to come in the block: "
        "those that have been read count": "((tokens - 1) % size + 1) → (size - (tokens - 1) % size)",
        "these are the places that are free in the block: "
        "its tokens that have been read count": "((tokens - 1) % size + 1) → (-tokens % size)",
        "this is b - t mod b, what the block still has room for: "
        "its tokens that have been read count": "((tokens - 1) % size + 1) → (size - tokens % size)",
        "these are the keys before the block, which may be forgotten: "
        "those in it are needed": "% size + 1 → // size * size",
        "this counts blocks, ⌈t/b_l⌉: asked are the tokens of the last one": "% → //",
        "this counts full blocks, ⌊t/b_l⌋: "
        "asked are the tokens of the current one": "((tokens - 1) % size + 1) → (tokens // size)",
        "this counts the blocks before the current one: asked are its tokens": "% size + 1 → // size",
        "you count tokens: each has r_l numbers in level l": "rank * → 1 *",
        "you multiply the sum of the ranks by the tokens of all levels: "
        "each level has its own rank and tokens": "rank * → sum(ranks) *",
        "coarse columns count again at each finer level: "
        "level l adds its own r_l alone": "zip(ranks → zip([sum(ranks[: n + 1]) for n in range(len(ranks))]",
        "a key has the columns of its finest level alone in your count: "
        "it has those of all levels l ≤ d": "zip(ranks → zip([r - before for r, before in zip(ranks, [0, *ranks])]",
        "only the keys of the finest block count in yours: "
        "coarser levels keep more tokens": "block_lens, → block_lens[-1:] * len(ranks),",
        "only what the first level keeps is here: "
        "the sum runs over all levels": "zip(ranks, block_lens, strict=True) → zip(ranks[:1], block_lens)",
        "only what the last level keeps is here: "
        "the sum runs over all levels": "zip(ranks, block_lens, strict=True) → zip(ranks[-1:], block_lens[-1:])",
        "this is the sum of all steps up to the newest: "
        "asked is that step alone": "tokens - 1 → t - 1 ; strict=True) → strict=True) for t in range(1, tokens + 1)",
        "keys and values are in your count: asked are keys alone": "return → return 2 *",
        "the values of all tokens are in your count: asked are keys alone": "return → return tokens * sum(ranks) +",
        "your ranks are in the opposite order: ranks[l] belongs to block_lens[l]": "zip(ranks → zip(ranks[::-1]",
        "a level counts only once its block has been full in yours: "
        "it holds what has been read of its block": "((tokens - 1) % size + 1) → (size if tokens >= size else 0)",
        "the newest token adds 1 to a level in yours: it adds r_l numbers": "size + 1) → size) + 1",
        "every level keeps the tokens of a window as long as the finest block in yours: "
        "level l keeps its own block": "((tokens - 1) % size + 1) → min(tokens, block_lens[-1])",
    },
)(kept_keys)


def left_in_training():
    """The share that is left, from 0 to 1.

    Training has seven products over all pairs: S = Q Kᵀ and Y = P V forward, where P is the softmax of S, and five
    backward, as S is computed again. Without a split each costs as much as the others; eight equal levels make each
    with Q or K in it four times cheaper. Which share of all multiply-adds is left?

    Hint: The backward pass makes S again; it knows dY, and wants dV, dP, dQ and dK. Which matrices does each multiply?

    Hint: dV = Pᵀ dY and dP = dY Vᵀ run over the columns of the values, dQ = dS K and dK = dSᵀ Q over those of queries
    and keys.

    Too little: Some of the seven products run over the columns of the values: they cost as much as before.

    Too much: Of the seven products, those that run over the columns of queries and keys cost a quarter, and none costs
    more than before: go through them one by one.

    Insight: Training gains more than the forward pass alone: four of its seven products shrink, not one of two.
    """
    return (4 / 4 + 3) / 7


exercise(
    "11.9",
    "What is left in training",
    claim="003:mlr-flops",
    kind="predict",
    level=2,
    minutes=6,
    tolerance=5e-3,
    oracle=lambda: (4 / 4 + 3) / 7,
    wrong={
        "this is the share of the scores alone: three of the products have the columns of the values": lambda: 0.25,
        "with this half of the products become cheaper, as in the forward pass, (1/4 + 1)/2: "
        "of all seven four do": lambda: 0.625,
        "only one product is counted as narrow: the scores are computed twice, and dQ and dK are narrow, too": lambda: (
            (1 / 4 + 6) / 7
        ),
        "this is a percentage: give the share, from 0 to 1": lambda: 400 / 7,
        "this is how many products' worth is left: its share is of all seven": lambda: 4.0,
        "with 1 nothing would be saved: four of the seven products become cheaper": lambda: 1.0,
        "this is a half: which of the seven products shrink, and to what? The others stay as they are": lambda: 0.5,
        "only the scores, computed twice, are counted as narrow: "
        "dQ = dS K and dK = dSᵀ Q run over the columns of queries and keys, too": lambda: (2 / 4 + 5) / 7,
        "three products are counted as narrow; there are four: the scores twice, dQ and dK": lambda: (3 / 4 + 4) / 7,
        "five products are counted as narrow; there are four: dP = dY Vᵀ runs over the columns of the values": lambda: (
            (5 / 4 + 2) / 7
        ),
        "this is what is saved, 1 minus it is left; or the four narrow products cost nothing in yours": lambda: 3 / 7,
    },
)(left_in_training)
