"""Writing on from a model's cache."""

import pytest
import torch

from smalearn import ShapeError
from smalearn.models import Block, Mamba2, SequenceModel, SoftmaxAttention, generate

PROMPT = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])


@pytest.fixture(params=["mamba2", "attention"])
def model(request):
    torch.manual_seed(0)
    mixer = Mamba2(16, 8, 8) if request.param == "mamba2" else SoftmaxAttention(16, 2, rope=True)
    model = SequenceModel(11, [Block(mixer)]).double()
    with torch.no_grad():
        model.head.weight *= 20
    return model


def likeliest(model, prompt, length):
    """The whole text read anew for every token."""
    tokens = prompt
    for _ in range(length):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], -1)
    return tokens[:, prompt.shape[1] :]


def test_greedy_is_the_likeliest_token_each_time(model):
    written, cache = generate(model, PROMPT, 9)
    assert torch.equal(written, likeliest(model, PROMPT, 9))
    more, _ = generate(model, written[:, -1:], 5, cache=cache)
    assert torch.equal(more, likeliest(model, torch.cat([PROMPT, written], 1), 5))
    assert generate(model, PROMPT, 0)[0].shape == (2, 0)
    assert generate(model, PROMPT[0], 3)[0].tolist() == written[0, :3].tolist()


def test_a_row_that_has_stopped_repeats_it_and_all_end_the_call(model):
    free, _ = generate(model, PROMPT, 20)
    stop = free[0, 2].item()
    written, _ = generate(model, PROMPT, 20, stop=stop)
    for row, before in zip(written, free, strict=True):
        end = row.tolist().index(stop) if stop in row else len(row)
        assert row[: end + 1].tolist() == before[: end + 1].tolist()
        assert set(row[end:].tolist()) <= {stop}
    assert written.shape[1] == 20 or bool((written[:, -1] == stop).all())


def test_draws_follow_the_temperature_and_stay_in_the_nucleus(model):
    many = PROMPT[:1].expand(4000, -1)
    logits = model(PROMPT[:1])[0, -1]
    for temperature, top_p in ((1.0, 1.0), (2.0, 1.0), (2.0, 0.6)):
        probabilities = (logits / temperature).softmax(-1)
        kept = probabilities.clone()
        order = probabilities.argsort(descending=True)
        enough = int((probabilities[order].cumsum(0) < top_p).sum()) + 1
        kept[order[enough:]] = 0
        drawn = generate(model, many, 1, temperature, top_p)[0][:, 0]
        share = torch.bincount(drawn, minlength=11) / len(drawn)
        assert (share[kept == 0] == 0).all()
        assert (share - kept / kept.sum()).abs().max() < 0.04  # five standard deviations
    assert torch.equal(generate(model, PROMPT, 9, 1.0, seed=1)[0], generate(model, PROMPT, 9, 1.0, seed=1)[0])


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"tokens": PROMPT[:, :0]}, ShapeError, "tokens need an axis"),
        ({"temperature": -1.0}, ValueError, "temperature must be ≥ 0"),
        ({"top_p": 0.0}, ValueError, r"top_p must be in \(0, 1\]"),
        ({"length": -1}, ValueError, "length"),
    ],
)
def test_what_does_not_fit_is_refused(model, arguments, error, said):
    with pytest.raises(error, match=f"generate: .*{said}"):
        generate(model, **{"tokens": PROMPT, "length": 3} | arguments)
