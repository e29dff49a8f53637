"""Every mixer against a loop over tokens and heads; decoding against training; the cache protocol; models of them."""

import copy
import math

import pytest
import torch
from comparing import same_function
from registry_models import ATTENTION, MIXERS, RECURRENT, build, loop, read_on, sequence

from smalearn import ShapeError
from smalearn.models import (
    RWKV7,
    Block,
    GatedDeltaNet,
    GatedDeltaNet2,
    GatedRMSNorm,
    GroupedAttention,
    LinearAttention,
    Mamba2,
    Mixer,
    MultiLevelAttention,
    RecurrentMixer,
    SequenceModel,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

each_mixer = pytest.mark.parametrize("name", MIXERS)
variants = [pytest.param(n, marks=pytest.mark.full) if n.rpartition("-")[0] in MIXERS else n for n in MIXERS]
each_kind = pytest.mark.parametrize("name", variants)  # by default without those of other groups, sizes or positions


@each_mixer
@pytest.mark.parametrize("length", [7, 1, 2, 33])
def test_a_mixer_is_the_loop(name, length):
    mixer = build(name)
    x = sequence(mixer, length=min(length, getattr(mixer, "context", None) or length))
    assert_close(mixer(x), loop(mixer, x))


@each_kind
def test_gradients_are_those_of_the_loop(name):
    mixer = build(name)
    x = sequence(mixer, length=9).requires_grad_()
    same_function(mixer(x), loop(mixer, x), [x, *mixer.parameters()])


@pytest.mark.claim("004:fig-mamba2-block", "smalearn.models.mamba2.Mamba2.step")
@each_mixer
@pytest.mark.parametrize(
    ("leading", "dtype"), [((), torch.float64), ((2,), torch.float32), ((2, 4), torch.float64), ((0,), torch.float64)]
)
def test_decoding_is_training(name, leading, dtype):
    mixer = build(name, dtype)
    x = sequence(mixer, *leading)
    Y, cache = mixer(x), mixer.start(*leading)
    for t in range(17):
        y, cache = mixer.step(x[..., t, :], cache)
        assert_close(y, Y[..., t, :])


@each_mixer
@pytest.mark.parametrize("split", [0, 1, 4, 9, 17])
def test_a_prompt_in_two_parts(name, split):
    mixer = build(name)
    x = sequence(mixer, 2)
    assert_close(read_on(mixer, x, split, 17), mixer(x))


@each_mixer
def test_gradients_of_decoding_are_those_of_training(name):
    mixer = build(name)
    x = sequence(mixer, length=7).requires_grad_()
    cache, outputs = mixer.start(), []
    for token in x:
        y, cache = mixer.step(token, cache)
        outputs.append(y)
    same_function(torch.stack(outputs), mixer(x), [x, *mixer.parameters()])


@each_mixer
def test_a_cache_can_be_decoded_from_twice(name):
    mixer = build(name)
    x = sequence(mixer, 2)
    with torch.no_grad():
        _, cache = mixer.prefill(x[:, :8], mixer.start(2))
        branches = [(token, *mixer.step(token, cache)) for token in (x[:, 8], x[:, 0])]
        for token, y, after in branches:
            Y = mixer(torch.cat([x[:, :8], token[:, None], x[:, 9:10]], 1))
            assert_close(y, Y[:, 8])
            assert_close(mixer.step(x[:, 9], after)[0], Y[:, 9])


@each_kind
def test_half_precision(name):
    """As near to float64 as the same formulas in plain torch; a state stays float32, keys and values do not."""
    mixer = build(name, torch.bfloat16)
    x = sequence(mixer)
    cache, decoded = mixer.start(), []
    for token in x:
        y, cache = mixer.step(token, cache)
        decoded.append(y)
    plain, exact = loop(mixer, x), loop(copy.deepcopy(mixer).double(), x.double())
    for Y in (mixer(x), mixer.prefill(x, mixer.start())[0], torch.stack(decoded)):
        assert Y.dtype == torch.bfloat16
        assert relative_rms(Y, exact) <= 2 * relative_rms(plain, exact)
    assert mixer.start(2).nbytes * (2 if name in ATTENTION else 1) == build(name, torch.float32).start(2).nbytes
    assert name in ATTENTION or mixer.start().state.dtype == torch.float32


@each_mixer
def test_bytes_of_a_cache(name):
    """A recurrent mixer keeps as much as at the start, attention two rows for each of its tokens in reach."""
    mixer = build(name)
    x = sequence(mixer, 2)
    _, cache = mixer.prefill(x, mixer.start(2))
    if name in RECURRENT:
        expected = 2 * sum(map(math.prod, mixer.cache_shapes().values()))
        assert mixer.start(2).nbytes == 8 * expected
    elif isinstance(mixer, MultiLevelAttention):
        rooms = zip(mixer.ranks, mixer.block_lens, strict=True)
        keys = sum(rank * min(mixer.context, size) for rank, size in rooms)
        expected = 2 * mixer.groups * (keys + mixer.context * mixer.head_dim)
    else:
        tokens = mixer.window if isinstance(mixer, WindowAttention) else mixer.context or 17
        expected = 2 * mixer.groups * tokens * 2 * mixer.head_dim
    assert cache.nbytes == 8 * expected


@each_mixer
def test_errors_name_the_argument(name):
    mixer = build(name)
    x, kind, D = sequence(mixer, 2), type(mixer).__name__, mixer.dim
    for function, call in (("forward", mixer), ("prefill", lambda x: mixer.prefill(x, mixer.start(2)))):
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: axis 'd' of x is {D - 1}, expected {D}"):
            call(x[..., :-1])
    with pytest.raises(ShapeError, match=rf"^{kind}.step: axis 'd' of x is {D - 1}"):
        mixer.step(x[:, 0, :-1], mixer.start(2))
    message = r"cache(.(conv_state|angle) has shape| has leading axes) \(3, .*\), expected \(2, "
    with pytest.raises(ShapeError, match=rf"^{kind}.step: {message}"):
        mixer.step(x[:, 0], mixer.start(3))
    with pytest.raises(ShapeError, match=rf"^{kind}.prefill: {message}"):
        mixer.prefill(x, mixer.start(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mamba2(6, head_dim=5), "Mamba2: head_dim 5 does not divide expand·dim 12"),
        (lambda: Mamba2(6, head_dim=4, groups=2), "Mamba2: groups 2 does not divide number of heads 3"),
        (lambda: GatedDeltaNet(12, head_dim=5), "GatedDeltaNet: head_dim 5 does not divide expand·dim 12"),
        (lambda: GatedDeltaNet2(12, head_dim=5), "GatedDeltaNet2: head_dim 5 does not divide expand·dim 12"),
        (lambda: RWKV7(12, head_dim=5), "RWKV7: head_dim 5 does not divide dim 12"),
        (lambda: RWKV7(12, head_dim=4, rank=0), "RWKV7: rank"),
        (lambda: GatedDeltaNet(12, head_dim=4, groups=2), "GatedDeltaNet: groups 2 does not divide number of heads 3"),
        (lambda: LinearAttention(6, head_dim=4), "LinearAttention: head_dim 4 does not divide expand·dim 6"),
        (lambda: SoftmaxAttention(6, heads=4), "SoftmaxAttention: heads 4 does not divide dim 6"),
        (lambda: GatedRMSNorm(6, 4), "GatedRMSNorm: groups 4 does not divide channels 6"),
        (lambda: SequenceModel(9, []), r"SequenceModel: blocks need one dim, got \[\]"),
        (lambda: SequenceModel(9, [Block(SoftmaxAttention(dim)) for dim in (6, 4)]), r"SequenceModel: blocks need"),
        (lambda: MultiLevelAttention(24, 5, (4, 4), 8), "^MultiLevelAttention: heads 5 does not divide dim 24"),
        (lambda: MultiLevelAttention(24, 3, (4, 4), 8, groups=2), "^MultiLevelAttention: groups 2 does not divide"),
        (lambda: MultiLevelAttention(24, 3, (4, 2), 8), "^MultiLevelAttention: .* sum of ranks = 6, got 8"),
        (lambda: MultiLevelAttention(24, 3, (4, 4), (8, 3)), r"^MultiLevelAttention: block_lens\[1\] must divide"),
        (lambda: MultiLevelAttention(24, 3, (4, 4), (8,)), "^MultiLevelAttention: every level has a rank and a block"),
        (lambda: MultiLevelAttention(24, 3, (2, 2, 4), 3), "^halving_blocks: 3 levels need context ≥ 4"),
        (lambda: MultiLevelAttention(24, 3, (3, 3, 2), 8, rope=True), r"^MultiLevelAttention: ranks must be even"),
        (lambda: SoftmaxAttention(24, 8, 8, rope=True), "^SoftmaxAttention: ranks must be even, got 3"),
        (lambda: WindowAttention(24, 5, 2), "^WindowAttention: heads 5 does not divide dim 24"),
        (lambda: WindowAttention(24, 8, 2, rope=True), "^WindowAttention: ranks must be even, got 3"),
    ],
)
def test_sizes_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_new_kind_says_what_it_does():
    mixer, x = GroupedAttention(24, 3, (8,), None, False, None), torch.zeros(4, 24)
    for call in (
        lambda: mixer(x),
        Mixer().start,
        lambda: Mixer().prefill(x, None),
        lambda: Mixer().check_cache("f", None, ()),
        RecurrentMixer().state_shape,
    ):
        with pytest.raises(NotImplementedError):
            call()


# ---------------------------------------------------------------- models


def model(name, positions=0, mlp=0):
    torch.manual_seed(0)
    return SequenceModel(11, [Block(MIXERS[name][0](), mlp) for _ in range(2)], positions).double()


@each_mixer
@pytest.mark.parametrize(("positions", "mlp"), [(0, 0), (17, 20)])
def test_a_model_decodes_as_it_trains(name, positions, mlp):
    net = model(name, positions, mlp)
    tokens = torch.randint(11, (2, 17), generator=torch.Generator().manual_seed(0))
    logits = net(tokens)
    assert logits.shape == (2, 17, 11)
    assert_close(read_on(net, tokens, 4, 9), logits)
    rest, cache = net.prefill(tokens[:, 1:], net.step(tokens[:, 0], net.start(2))[1])
    assert_close(rest, logits[:, 1:])
    assert cache.length == 17
    assert cache.nbytes == sum(block.nbytes for block in cache.blocks) > 0


def test_a_block_is_two_residual_connections():
    torch.manual_seed(0)
    block, x = Block(SoftmaxAttention(12), mlp=7).double(), random_tensors([(9, 12)])[0]
    with torch.no_grad():
        block.norm.weight += 0.5
    u = x + block.mixer(block.norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    first, activation, second = block.mlp[1:]
    v = u / (u.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    hidden = activation(v @ first.weight.mT + first.bias)
    assert_close(block(x), u + hidden @ second.weight.mT + second.bias)


def test_positions_tell_order_to_attention():
    tokens = torch.tensor([1, 2, 3, 4])
    swapped = torch.tensor([2, 1, 3, 4])
    blind, seeing = model("softmax"), model("softmax", positions=4)
    # One layer sees a set; its last output does not depend on the order.
    for net, same in ((blind, True), (seeing, False)):
        net.blocks = net.blocks[:1]
        assert torch.allclose(net(tokens)[-1], net(swapped)[-1], rtol=1e-12) == same


def test_a_model_says_what_it_cannot_read():
    net = model("softmax", positions=4)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    with pytest.raises(ShapeError, match=r"^SequenceModel.forward: 5 tokens, expected at most 4 positions"):
        net(tokens)
    _, cache = net.prefill(tokens[:, :4], net.start(2))
    with pytest.raises(ShapeError, match=r"^SequenceModel.step: 5 tokens, expected at most 4 positions"):
        net.step(tokens[:, 4], cache)
    with pytest.raises(ShapeError, match=r"^SequenceModel.prefill: 9 tokens, expected at most 4 positions"):
        net.prefill(tokens, cache)
    with pytest.raises(ShapeError, match=r"^SequenceModel.forward: tokens need a trailing axis \(T\), got shape \(\)"):
        net(tokens[0, 0])
