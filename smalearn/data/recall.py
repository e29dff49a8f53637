"""Associative recall: what a model must remember is known, so its memory can be measured."""

import torch

from smalearn._checks import ShapeError, check_count, check_number, check_tensor, seeded

IGNORE = -100
"""The target where nothing is asked: `torch.nn.functional.cross_entropy` leaves it out."""

MQAR_BLANK = 0
"""The token of `mqar` and `recall_stream` that means nothing."""


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


def recall_stream(examples: int, length: int, keys: int, values: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Recall while the text goes on: every four tokens a new pair is stored, and one of those so far is asked for.

        inputs    k1 v1  . k1    k2 v2  . k1    k3 v3  . k2          . is a blank
        targets    .  .  . v1     .  .  . v1     .  .  . v2          . is IGNORE

    1. Tokens: 0 is the blank, 1 .. keys are keys, keys + 1 .. keys + values are values.
    2. Each example draws length / 4 keys without replacement, and any value for each.
    3. Slot i = 0, 1, ... has pair i, a blank, and the key of pair i - d, where d = 0 .. i is drawn with weights
       1 / (d + 1), so that each doubling of the distance is asked for about as often, as in `mqar`.
    4. The target stands at the question, the last token of a slot.

    A longer text has more pairs, and asks for older ones. A guess is right with probability 1/values.

    Args:
        examples: how many.
        length: T, a multiple of 4.
        keys: how many there are, at least length / 4.
        values: how many there are.
        seed: the same seed gives the same examples on every machine.

    Returns:
        inputs (examples, T) and targets (examples, T), both int64; targets are IGNORE where nothing is asked.

    Raises:
        ValueError: a count is not an integer ≥ 1, the length is no multiple of 4, or the keys are too few.

    Cost:
        examples·T tokens, and the draws.

    Source:
        The questions are those of Arora et al. 2023 (Zoology), and the law of their distances; that pairs and questions
        take turns is our own.

    Example:
        >>> recall_stream(1, length=12, keys=4, values=4, seed=3)[0]
        tensor([[3, 6, 0, 3, 2, 8, 0, 2, 4, 7, 0, 2]])
    """
    for name, value in (("examples", examples), ("length", length), ("keys", keys), ("values", values)):
        check_count("recall_stream", name, value)
    pairs, rest = divmod(length, 4)
    if rest:
        raise ValueError(f"recall_stream: length must be a multiple of 4, got {length}")
    if keys < pairs:
        raise ValueError(f"recall_stream: keys must be at least length / 4 = {pairs}, got {keys}")
    generator = seeded("recall_stream", seed)
    K = 1 + _draw(torch.ones(keys), examples, pairs, generator)
    V = 1 + keys + torch.randint(values, (examples, pairs), generator=generator)
    up_to = (1 / torch.arange(1, pairs + 1, dtype=torch.float64)).cumsum(0)
    age = torch.searchsorted(up_to, up_to * torch.rand(examples, pairs, dtype=torch.float64, generator=generator))
    asked = torch.arange(pairs) - age
    inputs = torch.stack([K, V, torch.full_like(K, MQAR_BLANK), K.gather(-1, asked)], -1)
    targets = torch.full_like(inputs, IGNORE)
    targets[..., -1] = V.gather(-1, asked)
    return inputs.flatten(-2), targets.flatten(-2)


def _draw(weights, examples, count, generator):
    """(examples, count) indices, without replacement in each example: the first `count` arrivals at these rates.

    Not torch.multinomial, which draws other numbers on other processors.
    """
    uniform = torch.rand(examples, len(weights), dtype=torch.float64, generator=generator)
    return (-uniform.log() / weights).argsort(-1)[:, :count]
