"""Your model: one file, any mixer; the same function in training and one token after the other."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smalearn.linear_attention import linear_attention_chunked
from smalearn.models import SoftmaxAttention, minimal
from smalearn.ssd import ssd_chunked
from smalearn.testing import assert_close

torch_mha = F.scaled_dot_product_attention


def softmax(Q, K, V):
    return torch_mha(Q, K, V, is_causal=True)


def linear(Q, K, V):
    return linear_attention_chunked(Q.exp(), K.exp(), V)[0]


def linear_step(q, k, v, state):
    state = (0 if state is None else state) + v[..., :, None] * k.exp()[..., None, :]
    return (state @ q.exp()[..., None])[..., 0], state


def ssd(Q, K, V, log_a):
    return ssd_chunked(V, log_a, K, Q)[0]


def ssd_step(q, k, v, state, log_a):
    state = 0 if state is None else state
    state = log_a.exp()[..., None, None] * state + v[..., :, None] * k[..., None, :]
    return (state @ q[..., None])[..., 0], state


def gated(Q, K, V, log_a, beta):
    return ssd(Q, K, V * beta[..., None], log_a)


MIXERS = {"softmax": (softmax, None), "linear": (linear, linear_step), "ssd": (ssd, ssd_step), "gated": (gated, None)}


def model(name, **sizes):
    torch.manual_seed(0)
    made = minimal.TinyLM(MIXERS[name][0], 11, MIXERS[name][1], **{"D": 8, "heads": 2} | sizes).double()
    for parameter in made.parameters():  # what begins at zero would hide faults
        parameter.data += 0.3 * torch.randn_like(parameter)
    return made


def test_it_is_one_short_file_of_its_own():
    source = Path(minimal.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 180
    assert "smalearn" not in source


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("batch", [1, 3])
def test_token_by_token_is_all_at_once(name, batch):
    lm = model(name)
    tokens = torch.randint(11, (batch, 13), generator=torch.Generator().manual_seed(1))
    memory, rows = None, []
    for token in tokens.unbind(1):
        row, memory = lm.step(token, memory)
        rows.append(row)
    assert_close(torch.stack(rows, 1), lm(tokens), 1e-10)


def test_a_block_is_made_of_the_pieces_of_the_library():
    """With a softmax that torch computes, the block equals the library's mixer between the same residuals."""
    lm = model("softmax", blocks=1)
    block, x = lm.blocks[0], torch.randn(2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    block.taps.data = torch.cat([torch.zeros(3, 8), torch.ones(1, 8)]).double()
    block.norm_y = nn.Identity()
    mixer = SoftmaxAttention(8, 2).double()
    mixer.in_proj.weight.data, mixer.out_proj.weight.data = block.qkv.weight.data, block.out.weight.data
    h = x + mixer(block.norm1(x))
    expected = h + block.down(F.relu(block.up(block.norm2(h))) ** 2)
    assert_close(block(x), expected)


def test_gates_are_projected_where_they_are_asked_for():
    seen = {}

    def mixer(Q, K, V, log_a, beta):
        seen.update(log_a=log_a, beta=beta)
        return V

    minimal.TinyLM(mixer, 5, D=8, heads=2)(torch.zeros(3, 6, dtype=torch.long))
    assert seen["log_a"].shape == seen["beta"].shape == (3, 2, 6)
    assert (seen["log_a"] < 0).all()
    assert ((seen["beta"] > 0) & (seen["beta"] < 1)).all()


def test_the_loss_of_a_fresh_model_is_that_of_a_guess():
    lm = minimal.TinyLM(softmax, 11, D=8, heads=2)
    tokens = torch.randint(11, (4, 20))
    assert lm.loss(tokens).item() == pytest.approx(math.log(11), rel=1e-6)
    made = model("ssd")
    scores = made(tokens[:, :-1]).log_softmax(-1)
    expected = -scores.gather(2, tokens[:, 1:, None]).mean()
    assert_close(made.loss(tokens), expected)


def test_a_state_does_not_grow_and_all_tokens_do():
    def entries(memory):
        return memory.numel() if torch.is_tensor(memory) else sum(map(entries, memory))

    sizes = {}
    for name in ("linear", "softmax"):
        lm, memory, sizes[name] = model(name), None, []
        for _ in range(6):
            _, memory = lm.step(torch.tensor([1]), memory)
            sizes[name].append(entries(memory))
    assert len(set(sizes["linear"])) == 1
    assert len(set(sizes["softmax"])) == 6


@pytest.mark.parametrize("name", MIXERS)
def test_it_writes_on_from_something(name):
    lm = model(name)
    text = [3, *minimal.write(lm, torch.tensor([3]), 8, temperature=1e-9)]
    assert text[1:] == lm(torch.tensor([text]))[0, :-1].argmax(-1).tolist()
    with pytest.raises(ValueError, match="write: the prompt must have at least one token, got none"):
        list(minimal.write(lm, torch.tensor([], dtype=torch.long), 4))


@pytest.mark.parametrize("name", [n if n == "softmax" else pytest.param(n, marks=pytest.mark.full) for n in MIXERS])
def test_it_writes_what_it_learned(name):
    torch.manual_seed(0)
    lm = minimal.TinyLM(*MIXERS[name][:1], 5, MIXERS[name][1], D=16, heads=2)
    adam = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    song = torch.tensor([0, 1, 2, 3, 4] * 6)
    for _ in range(60):
        adam.zero_grad()
        lm.loss(song[None]).backward()
        adam.step()
    assert list(minimal.write(lm, song[:5], 10, temperature=0.1)) == [0, 1, 2, 3, 4] * 2
    assert list(minimal.write(lm, song[:5], 8, seed=3)) == list(minimal.write(lm, song[:5], 8, seed=3))
