"""Levels of blocks: how an allocation r_1|r_2|... is written and checked, who shares a block, and what it costs."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from smalearn._checks import ShapeError, check_count, check_counts, check_type, holds

Blocks = int | torch.Tensor
"""One level: the length of its blocks, or for each token the number of its block."""


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks of an allocation in the paper's notation r_1|r_2|...|r_L, coarsest level first.

    Args:
        text: such as "32|8|6|4|4|4|4|2".

    Returns:
        (r_1, ..., r_L).

    Raises:
        ValueError: a part is not an integer ≥ 0.

    Source:
        Kuang et al. 2025, section 3.4.
    """
    check_type("parse_ranks", "text", text, str)
    parts = [part.strip() for part in text.split("|")]
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            raise ValueError(f"parse_ranks: expected integers ≥ 0 separated by '|', got {part!r} in {text!r}")
    return tuple(map(int, parts))


def halving_blocks(context: int, levels: int) -> tuple[int, ...]:
    """Block lengths of p_l = 2^(l-1) equal blocks: each half the one before, the coarsest long enough for `context`.

    The finest blocks have ⌈context / 2^(levels - 1)⌉ tokens; where that is rounded up, the last blocks are not full.

    Args:
        context: the longest sequence there will be, at least 2^(levels - 1) tokens.
        levels: L ≥ 1.

    Returns:
        (b_1, ..., b_L), b_1 ≥ context.

    Raises:
        ValueError: an argument is not an integer ≥ 1, or there are more blocks than tokens.

    Source:
        Kuang et al. 2025, section 3.4.
    """
    check_count("halving_blocks", "context", context)
    check_count("halving_blocks", "levels", levels)
    if levels > context.bit_length():  # context < 2^(levels - 1), which may be too long a number to compute
        needed = 2 ** (levels - 1) if levels < 64 else f"2^{levels - 1}"
        raise ValueError(f"halving_blocks: {levels} levels need context ≥ {needed}, a token a block, got {context}")
    finest = 2 ** (levels - 1)
    return tuple(-(-context // finest) * finest // 2**level for level in range(levels))


def check_levels(function, ranks, block_lens, features=None, length=None):
    """Check an allocation: a rank ≥ 0 and a block length ≥ 1 for every level, each length a multiple of the next.

    `features` is N, the sum of the ranks, and `length` T, at most block_lens[0], if known. Return both lists as tuples.
    """
    check_ranks(function, ranks, block_lens, features)
    check_counts(function, "block_lens", block_lens)
    _check_divisors(function, block_lens)
    if length is not None and block_lens[0] < length:
        raise ValueError(f"{function}: block_lens[0] must be ≥ T = {length}, one block of all, got {block_lens[0]}")
    return tuple(ranks), tuple(block_lens)


def same_blocks(function: str, length: int, block_lens: Sequence[Blocks]) -> list[torch.Tensor]:
    """One boolean (T, T) matrix for each level: which tokens share a block, as they do on the level before.

    Of every level `block_lens` has the block length, or a (T,) tensor of integers with the number of each token's
    block.
    """
    check_type(function, "block_lens", block_lens, Sequence)
    if not block_lens:
        raise ValueError(f"{function}: block_lens must have at least one level, got none")
    numbers = [_block_numbers(function, level, length, blocks) for level, blocks in enumerate(block_lens)]
    _check_divisors(function, block_lens)
    matrices = [blocks[:, None] == blocks for blocks in numbers]
    if not holds(matrices[0]):
        rule = f"block_lens[0] must hold all T = {length} tokens in one block"
        raise ValueError(f"{function}: {rule}, got {len(numbers[0].unique())} blocks")
    for level, (coarse, fine) in enumerate(pairwise(matrices), start=1):
        if not holds(~fine | coarse):
            rule = f"block_lens[{level}] must nest in block_lens[{level - 1}]"
            raise ValueError(f"{function}: {rule}, got a block that reaches over a border")
    return matrices


def level_counts(length: int, block_lens: Sequence[Blocks]) -> torch.Tensor:
    """d(i, j) of equation (9): the number of nested blocks that hold both tokens, 1 to L.

    With block lengths, level l holds both where i // b_l = j // b_l.

    Args:
        length: T.
        block_lens: of every level the block length, or a (T,) tensor with the number of each token's block.

    Returns:
        (T, T), int64. No three tokens have d(i, k) < min(d(i, j), d(j, k)): d measures distance in the tree of blocks.

    Raises:
        ShapeError: a tensor is not (T,).
        ValueError: the length is not an integer ≥ 0, blocks do not nest, or the first level has more than one block.

    Source:
        Kuang et al. 2025, section 3.4 and footnote 1.

    Example:
        >>> level_counts(4, (4, 2, 1))
        tensor([[3, 2, 1, 1],
                [2, 3, 1, 1],
                [1, 1, 3, 2],
                [1, 1, 2, 3]])
    """
    check_count("level_counts", "length", length, least=0)
    return torch.stack(same_blocks("level_counts", length, block_lens)).sum(0)


def score_macs(length: int, ranks: Sequence[int], block_lens: Sequence[int], causal: bool = True) -> int:
    """Multiply-adds of the scores of one head, exactly: Σ_l r_l · (pairs of tokens that share a block of level l).

    All pairs of p_l = 2^(l-1) equal blocks make the paper's T² Σ_l r_l / 2^(l-1).

    Args:
        length: T.
        ranks: r_l of every level.
        block_lens: b_l of every level.
        causal: count the pairs j ≤ i, or all.

    Raises:
        ValueError: the length is not an integer ≥ 0, or ranks and block lengths are not an allocation for it.

    Source:
        Kuang et al. 2025, section 3.4.
    """
    check_count("score_macs", "length", length, least=0)
    check_type("score_macs", "causal", causal, bool)
    check_levels("score_macs", ranks, block_lens, length=length)

    def pairs(size):
        return size * (size + 1) // 2 if causal else size**2

    levels = zip(ranks, block_lens, strict=True)
    return sum(rank * (length // size * pairs(size) + pairs(length % size)) for rank, size in levels)


def key_numbers(length: int, ranks: Sequence[int], block_lens: Sequence[int]) -> int:
    """Numbers in a key cache for T tokens and one head, Σ_l r_l · min(T, b_l): each level keeps one block.

    Args:
        length: T.
        ranks: r_l of every level.
        block_lens: b_l of every level.

    Returns:
        The count; with p_l = 2^(l-1) equal blocks the paper's T Σ_l r_l / 2^(l-1), where standard attention has T·r.

    Raises:
        ValueError: the length is not an integer ≥ 0, or ranks and block lengths are not an allocation for it.

    Source:
        Kuang et al. 2025, section 3.4.
    """
    check_count("key_numbers", "length", length, least=0)
    check_levels("key_numbers", ranks, block_lens, length=length)
    return sum(rank * min(length, size) for rank, size in zip(ranks, block_lens, strict=True))


def live_key_numbers(length: int, ranks: Sequence[int], block_lens: Sequence[int]) -> int:
    """The `key_numbers` that the last of T tokens meets, Σ_l r_l · ((T - 1) mod b_l + 1): a full block is dropped.

    Args:
        length: T.
        ranks: r_l of every level.
        block_lens: b_l of every level.

    Raises:
        ValueError: the length is not an integer ≥ 1, or ranks and block lengths are not an allocation for it.
    """
    check_count("live_key_numbers", "length", length)
    check_levels("live_key_numbers", ranks, block_lens, length=length)
    return sum(rank * ((length - 1) % size + 1) for rank, size in zip(ranks, block_lens, strict=True))


def check_ranks(function, ranks, block_lens, features):
    """Check one rank for every level, and N in all; see `check_levels`."""
    check_counts(function, "ranks", ranks, 0)
    check_type(function, "block_lens", block_lens, Sequence)
    if len(ranks) != len(block_lens) or not len(ranks):
        got = f"{len(ranks)} ranks, {len(block_lens)} block lengths"
        raise ValueError(f"{function}: every level has a rank and a block length, got {got}")
    if features is not None and sum(ranks) != features:
        raise ShapeError(f"{function}: axis 'n' of Q and K must be the sum of ranks = {sum(ranks)}, got {features}")


def _check_divisors(function, block_lens):
    """Blocks of lengths nest whatever T is: each length is a multiple of the next."""
    for level, (coarse, fine) in enumerate(pairwise(block_lens), start=1):
        if isinstance(coarse, int) and isinstance(fine, int) and coarse % fine:
            rule = f"block_lens[{level}] must divide block_lens[{level - 1}] = {coarse}, so that blocks nest"
            raise ValueError(f"{function}: {rule}, got {fine}")


def _block_numbers(function, level, length, blocks):
    """The number of each token's block."""
    if not isinstance(blocks, torch.Tensor):
        return torch.arange(length, device="cpu") // check_count(function, f"block_lens[{level}]", blocks)
    if blocks.shape != (length,):
        rule = f"block_lens[{level}] must have shape ({length},), a block for each token"
        raise ShapeError(f"{function}: {rule}, got {tuple(blocks.shape)}")
    if blocks.is_floating_point() or blocks.is_complex():
        raise ValueError(f"{function}: block_lens[{level}] must hold integers, got {blocks.dtype}")
    return blocks.cpu()
