"""The attention mixers against a loop over tokens and heads; decoding against training; models of them."""

import copy
import math

import pytest
import torch

from smalearn import ShapeError
from smalearn.models import (
    Block,
    FullAttention,
    GroupedAttention,
    MultiLevelAttention,
    SequenceModel,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

DIM = 24


def turned(x, position, ranks):
    """RoPE of one vector: every level alone, pair by pair."""
    y = []
    for part in x.split(ranks):
        for k in range(len(part) // 2):
            angle = torch.tensor(position * 10000.0 ** (-2 * k / len(part)), dtype=torch.float64).to(x)
            a, b = part[2 * k], part[2 * k + 1]
            y += [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.stack(y)


def score(mixer, q, k, t, s):
    """The score of one pair; -∞ where a window does not reach."""
    if mixer.rope:
        q, k = turned(q, t, mixer.ranks), turned(k, s, mixer.ranks)
    if isinstance(mixer, WindowAttention):
        return q @ k * mixer.scales[0] if t - s <= mixer.window else q.new_tensor(-math.inf)
    parts = zip(mixer.scales, q.split(mixer.ranks), k.split(mixer.ranks), mixer.block_lens, strict=True)
    return sum(scale * (a @ b) for scale, a, b, size in parts if t // size == s // size)


def loop(mixer, x):
    P, outputs = mixer.head_dim, []
    rows = [(mixer.in_proj.weight @ token).split(mixer.widths) for token in x]
    for t in range(len(x)):
        y = []
        for head in range(mixer.heads):
            group = head // (mixer.heads // mixer.groups)
            k, v = ([row[part][group * P : (group + 1) * P] for row in rows[: t + 1]] for part in (1, 2))
            q = rows[t][0][head * P : (head + 1) * P]
            p = torch.stack([score(mixer, q, k[s], t, s) for s in range(t + 1)]).softmax(0)
            y.append(sum(p[s] * v[s] for s in range(t + 1)))
        outputs.append(mixer.out_proj.weight @ torch.cat(y))
    return torch.stack(outputs)


MIXERS = {
    "levels": lambda: MultiLevelAttention(DIM, 3, (4, 2, 2), 20),
    "levels-rope": lambda: MultiLevelAttention(DIM, 3, (4, 2, 2), 20, rope=True),
    "levels-groups": lambda: MultiLevelAttention(DIM, 4, (2, 0, 4), 20, groups=2, rope=True),
    "levels-blocks": lambda: MultiLevelAttention(DIM, 2, (3, 5, 4), (18, 6, 3), groups=1),
    "full": lambda: FullAttention(DIM, 3, 20),
    "full-rope": lambda: FullAttention(DIM, 6, 17, groups=2, rope=True),
    "window": lambda: WindowAttention(DIM, 3, 4),
    "window-rope": lambda: WindowAttention(DIM, 4, 2, groups=2, rope=True),
}
each_mixer = pytest.mark.parametrize("name", MIXERS)


def build(name, dtype=torch.float64):
    """A mixer with queries and keys large enough for weights that differ."""
    torch.manual_seed(0)
    mixer = MIXERS[name]().to(dtype)
    with torch.no_grad():
        mixer.in_proj.weight *= 2
    return mixer


def text(*leading, dtype=torch.float64, length=17):
    return random_tensors([(*leading, length, DIM)], seed=1, dtype=dtype)[0]


@each_mixer
@pytest.mark.parametrize("length", [1, 2, 7, 17])
def test_a_mixer_is_the_loop(name, length):
    mixer, x = build(name), text(length=length)
    assert_close(mixer(x), loop(mixer, x))


@each_mixer
def test_gradients_are_those_of_the_loop(name):
    mixer, x = build(name), text(length=7).requires_grad_()
    (weights,) = random_tensors([x.shape], seed=2)
    inputs = [x, *mixer.parameters()]
    wanted = torch.autograd.grad((loop(mixer, x) * weights).sum(), inputs)
    for found, oracle in zip(torch.autograd.grad((mixer(x) * weights).sum(), inputs), wanted, strict=True):
        assert_close(found, oracle)


@each_mixer
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_decoding_is_training(name, leading, dtype):
    mixer, x = build(name, dtype), text(*leading, dtype=dtype)
    wanted, cache = mixer(x), mixer.start(*leading)
    for t in range(x.shape[-2]):
        y, cache = mixer.step(x[..., t, :], cache)
        assert_close(y, wanted[..., t, :])
    assert cache.length == 17


@each_mixer
@pytest.mark.parametrize("split", [0, 1, 4, 9, 17])
def test_a_prompt_in_two_parts(name, split):
    mixer, x = build(name), text(2)
    first, cache = mixer.prefill(x[:, :split], mixer.start(2))
    second, _ = mixer.prefill(x[:, split:], cache)
    assert_close(torch.cat([first, second], -2), mixer(x))


@each_mixer
def test_gradients_of_decoding_are_those_of_training(name):
    mixer, x = build(name), text(length=7).requires_grad_()
    inputs, cache, outputs = [x, *mixer.parameters()], mixer.start(), []
    wanted = torch.autograd.grad(mixer(x).square().sum(), inputs)
    for token in x:
        y, cache = mixer.step(token, cache)
        outputs.append(y)
    found = torch.autograd.grad(torch.stack(outputs).square().sum(), inputs)
    for pair in zip(found, wanted, strict=True):
        assert_close(*pair)


@each_mixer
def test_a_cache_can_be_decoded_from_twice(name):
    mixer, x = build(name), text(2)
    with torch.no_grad():
        _, cache = mixer.prefill(x[:, :8], mixer.start(2))
        branches = []
        for first in (x[:, 8], x[:, 0]):
            y, after = mixer.step(first, cache)
            branches.append((y, after))
        for (y, after), first in zip(branches, (x[:, 8], x[:, 0]), strict=True):
            wanted = mixer(torch.cat([x[:, :8], first[:, None], x[:, 9:10]], 1))
            assert_close(y, wanted[:, 8])
            assert_close(mixer.step(x[:, 9], after)[0], wanted[:, 9])


@each_mixer
def test_the_future_is_not_seen(name):
    mixer, x = build(name), text()
    changed = x.clone()
    changed[5:] += 1
    assert_close(mixer(changed)[:5], mixer(x)[:5])
    assert not torch.allclose(mixer(changed)[5:], mixer(x)[5:])


@each_mixer
def test_half_precision(name):
    mixer, x = build(name, torch.bfloat16), text(dtype=torch.bfloat16)
    cache, decoded = mixer.start(), []
    for token in x:
        y, cache = mixer.step(token, cache)
        decoded.append(y)
    plain = loop(mixer, x)  # the same formulas in plain torch at that dtype
    exact = loop(copy.deepcopy(mixer).double(), x.double())
    for found in (mixer(x), torch.stack(decoded)):
        assert found.dtype == torch.bfloat16
        assert relative_rms(found, exact) <= 2 * relative_rms(plain, exact)
    assert cache.nbytes == 2 * sum(rows.storage.numel() for rows in (cache._values, *cache._keys))


def test_one_level_is_standard_attention():
    """Of the same weights, without RoPE: `SoftmaxAttention`."""
    torch.manual_seed(0)
    ours, theirs, x = FullAttention(DIM, 3, 20).double(), SoftmaxAttention(DIM, 3).double(), text(2)
    theirs.load_state_dict(ours.state_dict())
    assert_close(ours(x), theirs(x))
    split = build("levels")
    split.load_state_dict(ours.state_dict())
    assert relative_rms(split(x), theirs(x)) > 1e-3
    assert_close(split(x)[:, :5], theirs(x)[:, :5])  # within the first block of all levels nothing is left out


def test_scales_belong_to_levels():
    mixer, x = build("levels-groups"), text(length=7)
    assert mixer.scales == (6**-0.5,) * 3
    mixer.scales = (1 / 2, 0.0, 1 / 4)
    assert_close(mixer(x), loop(mixer, x))


def test_groups_are_repeated_keys():
    """Heads with the keys and values of their group, written out for each: the same, but for the size of the cache."""
    grouped, x = build("levels-groups"), text(2)
    whole = MultiLevelAttention(DIM, 4, (2, 0, 4), 20, rope=True).double()
    Q, K, V = grouped.in_proj.weight.split(grouped.widths)
    K, V = (w.unflatten(0, (2, 6)).repeat_interleave(2, 0).flatten(0, 1) for w in (K, V))
    whole.load_state_dict({"in_proj.weight": torch.cat([Q, K, V]), "out_proj.weight": grouped.out_proj.weight})
    assert_close(whole(x), grouped(x))
    assert whole.start(2).nbytes == 2 * grouped.start(2).nbytes
    # Both savings multiply: 4 heads by 2 groups, and 6 columns of 20 keys by 2 of 20, none of 10 and 4 of 5.
    full = FullAttention(DIM, 4, 20).double()
    assert grouped.start().key_bytes * (2 * 6 * 20) == full.start().key_bytes * (2 * 20 + 4 * 5)


@pytest.mark.parametrize("name", ["levels-rope", "levels-groups", "full-rope", "window-rope"])
def test_rope_needs_no_positions_in_the_tokens(name):
    """Order shows in one layer, where it is rotated; two equal tokens in other places weigh differently."""
    mixer, x = build(name), text(length=4)
    swapped = x[[1, 0, 2, 3]]
    blind = copy.deepcopy(mixer)
    blind.rope = False
    assert relative_rms(mixer(swapped)[3], mixer(x)[3]) > 1e-3
    assert name.startswith("window") or relative_rms(blind(swapped)[2], blind(x)[2]) < 1e-12


def test_operands_are_those_of_the_attention():
    mixer, x = build("levels-groups"), text(2)
    Q, K, V = mixer.operands(x)
    assert Q.shape == (2, 2, 2, 17, 6)
    assert K.shape == V.shape == (2, 2, 1, 17, 6)
    assert_close(mixer.out_proj(mixer.attend(Q, K, V).movedim(-2, -4).flatten(-3)), mixer(x))
    with pytest.raises(ShapeError, match=r"^MultiLevelAttention.operands: axis 'd' of x is 23, expected 24"):
        mixer.operands(x[..., 1:])


# ---------------------------------------------------------------- models


@each_mixer
@pytest.mark.parametrize("positions", [0, 17])
def test_a_model_decodes_as_it_trains(name, positions):
    torch.manual_seed(0)
    net = SequenceModel(11, [Block(MIXERS[name](), 20) for _ in range(2)], positions).double()
    tokens = torch.randint(11, (2, 17), generator=torch.Generator().manual_seed(0))
    wanted = net(tokens)
    first, cache = net.prefill(tokens[:, :6], net.start(2))
    outputs = [first]
    for t in range(6, 17):
        y, cache = net.step(tokens[:, t], cache)
        outputs.append(y[:, None])
    assert_close(torch.cat(outputs, 1), wanted)
    assert cache.length == 17


def test_global_and_window_layers_in_one_model():
    """A layer of each kind; the last output sees all through the global one, and only a stack of windows without it."""

    def seen(*mixers):
        torch.manual_seed(0)
        net = SequenceModel(12, [Block(mixer) for mixer in mixers]).double()
        x = torch.arange(17) % 11
        changed = [(net(torch.where(torch.arange(17) == t, 11, x)) - net(x))[-1].abs().max() > 1e-9 for t in range(16)]
        return sum(map(bool, changed)) + 1

    def window():
        return WindowAttention(DIM, 3, 3, rope=True)

    assert seen(window(), window()) == 7
    assert seen(window(), window(), window()) == 10
    assert seen(FullAttention(DIM, 3, 17, rope=True), window(), window()) == 17
    assert seen(window(), MultiLevelAttention(DIM, 3, (4, 2, 2), 17, rope=True)) == 17


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MultiLevelAttention(24, 5, (4, 4), 8), "^MultiLevelAttention: heads 5 does not divide dim 24"),
        (
            lambda: MultiLevelAttention(24, 3, (4, 4), 8, groups=2),
            "^MultiLevelAttention: groups 2 does not divide heads 3",
        ),
        (lambda: MultiLevelAttention(24, 3, (4, 2), 8), "^MultiLevelAttention: .* sum of ranks = 6, got 8"),
        (lambda: MultiLevelAttention(24, 3, (4, 4), (8, 3)), r"^MultiLevelAttention: block_lens\[1\] must divide"),
        (
            lambda: MultiLevelAttention(24, 3, (4, 4), (8,)),
            "^MultiLevelAttention: every level has a rank and a block length",
        ),
        (lambda: MultiLevelAttention(24, 3, (2, 2, 4), 3), "^halving_blocks: 3 levels need context ≥ 4"),
        (
            lambda: MultiLevelAttention(24, 3, (3, 3, 2), 8, rope=True),
            r"^MultiLevelAttention: ranks must be even, got 3\|3\|2: an odd one cuts a rotated pair in two",
        ),
        (lambda: FullAttention(24, 8, 8, rope=True), "^FullAttention: ranks must be even, got 3"),
        (lambda: FullAttention(24, 5, 8), "^FullAttention: heads 5 does not divide dim 24"),
        (lambda: FullAttention(24, 3, 0), "^halving_blocks: context must be an integer ≥ 1, got 0"),
        (lambda: WindowAttention(24, 3, -1), "^WindowAttention: window must be an integer ≥ 0, got -1"),
        (lambda: WindowAttention(24, 5, 2), "^WindowAttention: heads 5 does not divide dim 24"),
        (lambda: WindowAttention(24, 8, 2, rope=True), "^WindowAttention: ranks must be even, got 3"),
    ],
)
def test_sizes_that_do_not_fit(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@each_mixer
def test_errors_name_the_argument(name):
    mixer, x = build(name), text(2)
    kind = type(mixer).__name__
    for function, call in (("forward", mixer), ("prefill", lambda x: mixer.prefill(x, mixer.start(2)))):
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: axis 'd' of x is 23, expected 24"):
            call(x[..., :-1])
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: x needs trailing axes \(T, D\), got shape \(24,\)"):
            call(x[0, 0])
        with pytest.raises(ValueError, match=rf"^{kind}.{function}: x is torch.float32 but weights is torch.float64"):
            call(x.float())
    message = r"cache has leading axes \(3, \d, 1\), expected \(2, \d, 1\)"
    with pytest.raises(ShapeError, match=rf"^{kind}.step: {message}"):
        mixer.step(x[:, 0], mixer.start(3))
    with pytest.raises(ShapeError, match=rf"^{kind}.prefill: {message}"):
        mixer.prefill(x, mixer.start(3))


@pytest.mark.parametrize("name", ["levels", "full-rope"])
def test_a_text_longer_than_the_context(name):
    mixer, x = build(name), text(2, length=21)
    kind, context = type(mixer).__name__, mixer.context
    with pytest.raises(ShapeError, match=rf"^{kind}.forward: 21 tokens, expected at most {context}, the context"):
        mixer(x)
    _, cache = mixer.prefill(x[:, :context], mixer.start(2))
    with pytest.raises(
        ShapeError, match=rf"^{kind}.step: {context + 1} tokens, expected at most {context}, the context"
    ):
        mixer.step(x[:, context], cache)
    with pytest.raises(ShapeError, match=rf"^{kind}.prefill: {context + 2} tokens, expected at most {context}"):
        mixer.prefill(x[:, :2], cache)


def test_a_window_has_no_longest_text():
    mixer = build("window")
    assert mixer(text(length=100)).shape == (100, DIM)


def test_a_new_kind_says_how_it_attends():
    mixer = GroupedAttention(DIM, 3, (8,), None, False, None)
    with pytest.raises(NotImplementedError):
        mixer(text(dtype=torch.float32))
