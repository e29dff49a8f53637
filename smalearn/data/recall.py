"""Associative recall: what a model must remember is known, so its memory can be measured."""

import torch

from smalearn._checks import ShapeError, check_count, check_number, check_tensor, seeded

__all__ = ["IGNORE", "MQAR_BLANK", "mqar", "mqar_lookup"]

IGNORE = -100
"""The target where nothing is asked: `torch.nn.functional.cross_entropy` leaves it out."""

MQAR_BLANK = 0
"""The token of `mqar` that means nothing."""


def mqar(
    examples: int, length: int, pairs: int, vocabulary: int, seed: int, power: float = 0.01
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-query associative recall (MQAR): read key-value pairs, then say the value of every key that is asked for.

        inputs    k1 v1 k2 v2 k3 v3  .  k2  .   .  k1  .  k3  .          . is a blank
        targets    .  .  .  .  .  .  .  v2  .   .  v1  .  v3  .          . is IGNORE

    1. Tokens: 0 is the blank, 1 .. V//2 - 1 are keys, V//2 .. V - 1 are values.
    2. Each example draws `pairs` keys and `pairs` values, each without replacement, and opens with the pairs
       k1 v1 k2 v2 ...
    3. The rest of the sequence is cut into slots of two tokens. Each key is asked for once, at the first token of a
       slot of its own: slot g = 1, 2, ... is drawn without replacement with weights g^(power - 1), so most questions
       come soon after the pairs and a few late, as repetitions do in real text. All other tokens are blank.
    4. The target stands at the query itself: the model must say the value there, before anything shows it.

    A model that knows which values the example has, but not which key has which, is right with probability 1/pairs.

    Args:
        examples: how many.
        length: T, at least 4·pairs, so that each query finds a slot.
        pairs: K, how many there are to remember.
        vocabulary: V, at least 2·pairs + 2.
        seed: the same seed gives the same examples on every machine.
        power: smaller is more questions early; 1 is as many everywhere.

    Returns:
        inputs (examples, T) and targets (examples, T), both int64; targets are IGNORE where nothing is asked.

    Raises:
        ValueError: a count is not an integer ≥ 1, the length or the vocabulary is too small, the power is not positive.

    Cost:
        examples·T tokens, and the draws.

    Source:
        Arora et al. 2023 (Zoology), procedure 1, and its code; there the blanks may be filled with random tokens, which
        then meet a key of the example by chance, and the vocabulary must be larger than T.

    Example:
        >>> mqar(1, length=12, pairs=2, vocabulary=8, seed=3)[0]
        tensor([[3, 5, 2, 6, 2, 0, 0, 0, 3, 0, 0, 0]])
    """
    for name, value in (("examples", examples), ("length", length), ("pairs", pairs), ("vocabulary", vocabulary)):
        check_count("mqar", name, value)
    if length < 4 * pairs:
        raise ValueError(f"mqar: length must be at least 4·pairs = {4 * pairs}, got {length}")
    if vocabulary < 2 * pairs + 2:
        raise ValueError(f"mqar: vocabulary must be at least 2·pairs + 2 = {2 * pairs + 2}, got {vocabulary}")
    if not check_number("mqar", "power", power) > 0:
        raise ValueError(f"mqar: power must be positive, got {power}")
    generator = seeded("mqar", seed)
    half = vocabulary // 2
    keys = 1 + _draw(torch.ones(half - 1), examples, pairs, generator)
    values = half + _draw(torch.ones(vocabulary - half), examples, pairs, generator)
    slots = torch.arange(1, (length - 2 * pairs) // 2 + 1, dtype=torch.float64) ** (power - 1)
    queries = 2 * pairs + 2 * _draw(slots, examples, pairs, generator)
    inputs = torch.full((examples, length), MQAR_BLANK)
    inputs[:, : 2 * pairs] = torch.stack([keys, values], -1).flatten(-2)
    inputs.scatter_(-1, queries, keys)
    return inputs, torch.full_like(inputs, IGNORE).scatter_(-1, queries, values)


def mqar_lookup(inputs: torch.Tensor, pairs: int) -> torch.Tensor:
    """The answers of `mqar`, by looking up each token among the keys: those of a perfect memory.

    Args:
        inputs: (..., T) from `mqar`.
        pairs: K, as in `mqar`.

    Returns:
        (..., T) int64: the value of the key that stands there, IGNORE where no key of the sequence stands, or within
        the pairs.

    Raises:
        ValueError: pairs is not an integer ≥ 1.
    """
    check_count("mqar_lookup", "pairs", pairs)
    check_tensor("mqar_lookup", "inputs", inputs)
    if not inputs.ndim or inputs.is_floating_point() or inputs.is_complex():
        raise ShapeError(f"mqar_lookup: inputs must be integers (..., T), got {inputs.dtype} {tuple(inputs.shape)}")
    keys, values = inputs[..., 0 : 2 * pairs : 2], inputs[..., 1 : 2 * pairs : 2]
    matches = inputs[..., :, None] == keys[..., None, :]
    matches[..., : 2 * pairs, :] = False
    return torch.where(matches.any(-1), (matches * values[..., None, :]).sum(-1), IGNORE)


def _draw(weights, examples, count, generator):
    """(examples, count) indices, without replacement in each example: the first `count` arrivals at these rates.

    Not torch.multinomial, which draws other numbers on other processors.
    """
    uniform = torch.rand(examples, len(weights), dtype=torch.float64, generator=generator)
    return (-uniform.log() / weights).argsort(-1)[:, :count]
