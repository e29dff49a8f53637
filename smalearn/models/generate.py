"""Writing on: the next token drawn again and again, from a model's cache."""

import torch

from smalearn._checks import ShapeError, check_count, check_number, check_tensor, check_type, seeded
from smalearn.models.stack import ModelCache, SequenceModel


@torch.no_grad()
def generate(
    model: SequenceModel,
    tokens: torch.Tensor,
    length: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    stop: int | None = None,
    cache: ModelCache | None = None,
    seed: int = 0,
    reset: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ModelCache]:
    """Read a prompt and write on from it.

    Args:
        model: the model.
        tokens: (..., T) integers, T ≥ 1: the prompt, or what follows the tokens of the cache.
        length: how many tokens to write, ≥ 0.
        temperature: logits are divided by it; 0 takes the likeliest token each time.
        top_p: the likeliest tokens whose probabilities sum to at least this are drawn from, 0 < top_p ≤ 1.
        stop: a token after which a row repeats it; the call ends when all rows have it.
        cache: of an earlier call, to go on; None to begin.
        seed: of the draws: the same seed writes the same text, and begins anew in a call that goes on with a cache.
        reset: (..., T) boolean, True where a text begins: at the first true token of each row that is padded on its
            left; no attention mask, see `SequenceModel`. None if there is no padding.

    Returns:
        The new tokens (..., at most `length`), and the cache after the prompt and all of them but the last, whose
        outputs nobody has asked for yet: a further call begins with that token.

    Raises:
        ShapeError: there is no token, or reset does not fit tokens.
        TypeError: an argument is of another type.
        ValueError: temperature is negative or not finite, top_p not in (0, 1], or a count is none; reset is not
            boolean, or a mixer of the model takes none.

    Source:
        Holtzman et al. 2020 for top_p, nucleus sampling.
    """
    check_type("generate", "model", model, SequenceModel)
    check_tensor("generate", "tokens", tokens)
    check_count("generate", "length", length, 0)
    if not tokens.ndim or not tokens.shape[-1]:
        raise ShapeError(f"generate: tokens need an axis (..., T) with T ≥ 1, got shape {tuple(tokens.shape)}")
    if not 0 <= check_number("generate", "temperature", temperature) < float("inf"):
        raise ValueError(f"generate: temperature must be ≥ 0 and finite, got {temperature}")
    if not 0 < check_number("generate", "top_p", top_p) <= 1:
        raise ValueError(f"generate: top_p must be in (0, 1], got {top_p}")
    if tokens.is_meta:
        raise ValueError("generate: tokens are on meta, where there are no values to draw from")
    generator = seeded("generate", seed)
    cache = model.start(*tokens.shape[:-1]) if cache is None else cache
    logits, cache = model.prefill(tokens, cache, reset)
    logits = logits[..., -1, :]
    written = []
    for _ in range(length):
        token = _drawn(logits, temperature, top_p, generator)
        if stop is not None and written:
            token = torch.where(written[-1] == stop, stop, token)
        written.append(token)
        if len(written) == length or (stop is not None and bool((token == stop).all())):
            break
        logits, cache = model.step(token, cache)
    return torch.stack(written, -1) if written else tokens[..., :0], cache


def _drawn(logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator) -> torch.Tensor:
    """Draw a token of logits (..., vocabulary)."""
    if not temperature:
        return logits.argmax(-1)
    probabilities = (logits.double() / temperature).softmax(-1)
    if top_p < 1:
        ordered, places = probabilities.sort(-1, descending=True)
        ordered = ordered * (ordered.cumsum(-1) - ordered < top_p)  # those before it do not suffice
        probabilities = torch.zeros_like(probabilities).scatter(-1, places, ordered)
    rows = probabilities.reshape(-1, probabilities.shape[-1])
    drawn = torch.multinomial(rows.cpu(), 1, generator=generator)  # the same draws on every device
    return drawn.to(logits.device).reshape(logits.shape[:-1])
