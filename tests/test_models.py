"""The mixers against loops over tokens and heads; decoding against training; Mamba blocks against Hugging Face."""

import math

import pytest
import torch
from torch.nn import functional

from smalearn import ShapeError
from smalearn.models import (
    Block,
    CausalConvolution,
    GatedRMSNorm,
    LinearAttention,
    Mamba1,
    Mamba2,
    SequenceModel,
    ShortConvolution,
    SoftmaxAttention,
    initial_dt_bias,
)
from smalearn.ssd import ssd_quadratic, ssd_recurrent
from smalearn.testing import assert_close, random_tensors, relative_rms

DIM = 12


def convolve(conv, rows, t):
    """One output of a causal convolution: the sum over the last rows, zeros before the first."""
    length = conv.weight.shape[-1]
    past = (conv.weight[:, 0, k] * rows[t - length + 1 + k] for k in range(length) if t - length + 1 + k >= 0)
    return conv.bias + sum(past)


def rms(u, weight):
    return weight * u / (u.square().mean() + 1e-5).sqrt()


def mamba2_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    heads, N, P = len(block.D), block.state, block.head_dim
    per_group, inner = heads // block.groups, heads * P
    H, outputs = [x.new_zeros(P, N) for _ in range(heads)], []
    mixed = [row[inner:-heads] for row in rows]
    for t, row in enumerate(rows):
        xBC, y = functional.silu(convolve(block.conv, mixed, t)), []
        for head in range(heads):
            group = head // per_group
            X = xBC[head * P : (head + 1) * P]
            B, C = (xBC[inner + (k * block.groups + group) * N :][:N] for k in (0, 1))
            dt = torch.log1p(torch.exp(row[len(row) - heads + head] + block.dt_bias[head]))
            dt = dt.clamp(*block.dt_limits)
            H[head] = torch.exp(-torch.exp(block.A_log[head]) * dt) * H[head] + dt * torch.outer(X, B)
            y.append(H[head] @ C + block.D[head] * X)
        u = torch.cat(y) * functional.silu(row[:inner])
        parts = [rms(*part) for part in zip(u.chunk(block.groups), block.norm.weight.chunk(block.groups), strict=True)]
        outputs.append(block.out_proj.weight @ torch.cat(parts))
    return torch.stack(outputs)


def mamba1_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    H, outputs = x.new_zeros(block.inner, block.state), []
    for t, row in enumerate(rows):
        X = functional.silu(convolve(block.conv, [r[: block.inner] for r in rows], t))
        low, B, C = (block.x_proj.weight @ X).split([block.rank, block.state, block.state])
        dt = torch.log1p(torch.exp(block.dt_proj.weight @ low + block.dt_proj.bias))
        H = torch.stack(
            [
                torch.exp(-torch.exp(block.A_log[p]) * dt[p]) * H[p] + dt[p] * X[p] * B  # a channel, its N decays
                for p in range(block.inner)
            ]
        )
        outputs.append(block.out_proj.weight @ ((H @ C + block.D * X) * functional.silu(row[block.inner :])))
    return torch.stack(outputs)


def linear_attention_loop(block, x):
    rows = [block.in_proj.weight @ token for token in x]
    heads, N = block.heads, block.state
    H, outputs = [0] * heads, []
    for t in range(len(x)):
        row, y = functional.silu(convolve(block.conv, rows, t)), []
        for head in range(heads):
            Q, K = (row[(k * heads + head) * N :][:N] for k in (0, 1))
            V = row[2 * heads * N + head * block.head_dim :][: block.head_dim]
            H[head] = H[head] + torch.outer(V, K)
            y.append(H[head] @ Q)
        outputs.append(block.out_proj.weight @ rms(torch.cat(y), block.norm.weight))
    return torch.stack(outputs)


def attention_loop(block, x):
    rows, size, outputs = [(block.in_proj.weight @ token).chunk(3) for token in x], block.head_dim, []
    for t in range(len(x)):
        y = []
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            scores = torch.stack([rows[t][0][part] @ rows[s][1][part] for s in range(t + 1)]) / math.sqrt(size)
            weights = scores.exp() / scores.exp().sum()
            y.append(sum(weights[s] * rows[s][2][part] for s in range(t + 1)))
        outputs.append(block.out_proj.weight @ torch.cat(y))
    return torch.stack(outputs)


def convolution_loop(block, x):
    return torch.stack([convolve(block.conv, x, t) for t in range(len(x))])


MIXERS = {
    "mamba2": (lambda: Mamba2(DIM, state=5, head_dim=4), mamba2_loop),
    "mamba2-groups": (lambda: Mamba2(DIM, state=3, head_dim=2, groups=3, conv_len=2), mamba2_loop),
    "mamba2-one-head": (lambda: Mamba2(DIM, state=1, head_dim=DIM, expand=1, conv_len=1), mamba2_loop),
    "mamba1": (lambda: Mamba1(DIM, state=3), mamba1_loop),
    "mamba1-rank": (lambda: Mamba1(DIM, state=2, expand=1, rank=5, conv_len=3), mamba1_loop),
    "linear": (lambda: LinearAttention(DIM, state=5, head_dim=4, expand=2), linear_attention_loop),
    "softmax": (lambda: SoftmaxAttention(DIM, heads=3), attention_loop),
    "convolution": (lambda: ShortConvolution(DIM, 3), convolution_loop),
}
each_mixer = pytest.mark.parametrize("name", MIXERS)


def build(name, dtype=torch.float64):
    """A mixer with weights away from their symmetric initial values."""
    torch.manual_seed(0)
    mixer = MIXERS[name][0]().to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return mixer


def text(*leading, dtype=torch.float64, length=9, seed=1):
    return random_tensors([(*leading, length, DIM)], seed=seed, dtype=dtype)[0]


@each_mixer
@pytest.mark.parametrize("length", [1, 2, 7, 33])
def test_a_mixer_is_the_loop(name, length):
    mixer, x = build(name), text(length=length)
    assert_close(mixer(x), MIXERS[name][1](mixer, x))


@each_mixer
def test_gradients_are_those_of_the_loop(name):
    mixer, x = build(name), text().requires_grad_()
    (weights,) = random_tensors([x.shape], seed=2)
    inputs = [x, *mixer.parameters()]
    wanted = torch.autograd.grad((MIXERS[name][1](mixer, x) * weights).sum(), inputs)
    for found, oracle in zip(torch.autograd.grad((mixer(x) * weights).sum(), inputs), wanted, strict=True):
        assert_close(found, oracle)


@each_mixer
@pytest.mark.parametrize("leading", [(), (2,), (2, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_decoding_is_training(name, leading, dtype):
    mixer, x = build(name, dtype), text(*leading, dtype=dtype)
    wanted, cache = mixer(x), mixer.start(*leading)
    for t in range(x.shape[-2]):
        y, cache = mixer.step(x[..., t, :], cache)
        assert_close(y, wanted[..., t, :])
    whole, last = mixer.prefill(x, mixer.start(*leading))
    assert_close(whole, wanted)
    for found, oracle in zip(cache, last, strict=True):
        assert_close(found, oracle)


@each_mixer
@pytest.mark.parametrize("split", [0, 1, 4, 9])
def test_a_prompt_in_two_parts(name, split):
    mixer, x = build(name), text(2)
    first, cache = mixer.prefill(x[:, :split], mixer.start(2))
    second, _ = mixer.prefill(x[:, split:], cache)
    assert_close(torch.cat([first, second], -2), mixer(x))


@each_mixer
def test_a_cache_can_be_decoded_from_twice(name):
    mixer, x = build(name), text(2)
    _, cache = mixer.prefill(x, mixer.start(2))
    kept = [part.clone() for part in cache]
    once, twice = (mixer.step(x[:, 0], cache)[0] for _ in range(2))
    assert torch.equal(once, twice)
    assert all(torch.equal(*pair) for pair in zip(cache, kept, strict=True))


@each_mixer
def test_the_future_is_not_seen(name):
    mixer, x = build(name), text()
    changed = x.clone()
    changed[5:] += 1
    assert_close(mixer(changed)[:5], mixer(x)[:5])
    assert not torch.allclose(mixer(changed)[5:], mixer(x)[5:])


@each_mixer
def test_half_precision_keeps_a_float32_state(name):
    mixer, x = build(name, torch.bfloat16), text(dtype=torch.bfloat16)
    y, _ = mixer.prefill(x, mixer.start())
    assert (y.dtype, mixer.start()[-1].dtype) == (torch.bfloat16, torch.float32)
    steps, decoded = mixer.start(), []
    for token in x:
        z, steps = mixer.step(token, steps)
        decoded.append(z)
    loop = MIXERS[name][1](mixer, x)  # the same formulas in plain torch at that dtype
    exact = MIXERS[name][1](mixer.double(), x.double())
    assert relative_rms(y, exact) <= 2 * relative_rms(loop, exact)
    assert relative_rms(torch.stack(decoded), exact) <= 2 * relative_rms(loop, exact)


@each_mixer
def test_errors_name_the_argument(name):
    mixer, x = build(name), text(2)
    kind = type(mixer).__name__
    for function, call in (("forward", mixer), ("prefill", lambda x: mixer.prefill(x, mixer.start(2)))):
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: axis 'd' of x is 11, expected 12"):
            call(x[..., :-1])
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: x needs trailing axes \(T, D\), got shape \(12,\)"):
            call(x[0, 0])
        with pytest.raises(ValueError, match=rf"^{kind}.{function}: x is torch.float32 but weights is torch.float64"):
            call(x.float())
    with pytest.raises(ShapeError, match=rf"^{kind}.step: axis 'd' of x is 11"):
        mixer.step(x[:, 0, :-1], mixer.start(2))
    with pytest.raises(ShapeError, match=rf"^{kind}.step: cache.\w+ has shape \(3, .*\), expected \(2, "):
        mixer.step(x[:, 0], mixer.start(3))
    with pytest.raises(ShapeError, match=rf"^{kind}.prefill: cache.\w+ has shape .*, expected \(2, "):
        mixer.prefill(x, mixer.start())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Mamba2(6, head_dim=5), "Mamba2: head_dim 5 does not divide expand·dim 12"),
        (lambda: Mamba2(6, head_dim=4, groups=2), "Mamba2: groups 2 does not divide number of heads 3"),
        (lambda: Mamba2(6, state=0, head_dim=4), "Mamba2: state must be an integer ≥ 1, got 0"),
        (lambda: Mamba2(0), "Mamba2: dim must be an integer ≥ 1, got 0"),
        (lambda: Mamba1(6, expand=0), "Mamba1: expand must be an integer ≥ 1, got 0"),
        (lambda: Mamba1(6, rank=0), "Mamba1: rank must be an integer ≥ 1, got 0"),
        (lambda: LinearAttention(6, head_dim=4), "LinearAttention: head_dim 4 does not divide expand·dim 6"),
        (lambda: SoftmaxAttention(6, heads=4), "SoftmaxAttention: heads 4 does not divide dim 6"),
        (lambda: CausalConvolution(6, 0), "CausalConvolution: length must be an integer ≥ 1, got 0"),
        (lambda: GatedRMSNorm(6, 4), "GatedRMSNorm: groups 4 does not divide channels 6"),
        (lambda: Block(SoftmaxAttention(6), mlp=-1), "Block: mlp must be an integer ≥ 0, got -1"),
        (lambda: SequenceModel(9, []), r"SequenceModel: blocks need one dim, got \[\]"),
        (
            lambda: SequenceModel(9, [Block(SoftmaxAttention(dim)) for dim in (6, 4)]),
            r"SequenceModel: blocks need one dim, got \[4, 6\]",
        ),
        (lambda: SequenceModel(0, [Block(SoftmaxAttention(6))]), "SequenceModel: vocabulary must be an integer ≥ 1"),
        (lambda: SequenceModel(9, [Block(SoftmaxAttention(6))], -1), "SequenceModel: positions must be an integer ≥ 0"),
    ],
)
def test_sizes_that_do_not_fit(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# ---------------------------------------------------------------- Mamba-2


def test_all_operands_come_from_one_projection():
    """Of width 2·inner + 2·groups·N + heads; nothing of the SSM depends on another one's output."""
    block, x = build("mamba2-groups"), text()
    assert block.in_proj.out_features == 2 * 24 + 2 * 3 * 3 + 12
    before = block.operands(x)
    with torch.no_grad():
        block.in_proj.weight[24:48] += 1  # the rows that make X
    X, *others = (torch.equal(*pair) for pair in zip(before, block.operands(x), strict=True))
    assert not X
    assert all(others)
    older, sizes = build("mamba1"), []
    before = older.operands(x)
    with torch.no_grad():
        older.in_proj.weight[: older.inner] += 1
    sizes = [torch.equal(*pair) for pair in zip(before, older.operands(x), strict=True)]
    assert sizes == [False] * 4


@pytest.mark.parametrize("form", [ssd_quadratic, ssd_recurrent])
def test_operands_are_for_every_form_of_ssd(form):
    block, x = build("mamba2-groups"), text(2)
    X, log_a, B, C = block.operands(x)
    assert X.shape == (2, 3, 4, 9, 2)
    assert log_a.shape == (2, 3, 4, 9)
    assert B.shape == C.shape == (2, 3, 1, 9, 3)
    _, cache = block.prefill(x, block.start(2))
    assert_close(form(X, log_a, B, C)[1], cache.state)


def test_operands_are_checked():
    for name in ("mamba2", "mamba1"):
        with pytest.raises(ShapeError, match="operands: axis 'd' of x is 9, expected 12"):
            build(name).operands(torch.zeros(4, 9).double())


def test_step_sizes_are_kept_within_limits():
    block, x = build("mamba2"), text()
    block.dt_limits = (0.02, 0.05)
    assert_close(block(x), mamba2_loop(block, x))
    dt = (-block.operands(x)[1] / block.A_log.exp()[:, None]).detach()
    assert dt.min() == pytest.approx(0.02)
    assert dt.max() == pytest.approx(0.05)


def test_initial_values():
    torch.manual_seed(0)
    block = Mamba2(512, head_dim=1)
    dt = functional.softplus(block.dt_bias)
    assert dt.min() >= 0.99e-3
    assert dt.max() <= 0.101
    # log-uniform: a quarter of the range of the logarithm holds a quarter of the steps
    parts = torch.histc(dt.log(), 4, math.log(1e-3), math.log(0.1)) / len(dt)
    assert parts.sub(0.25).abs().max() < 0.05
    A = block.A_log.exp()
    assert A.min() >= 1
    assert A.max() <= 16
    assert torch.histc(A, 5, 1, 16).div(len(A)).sub(0.2).abs().max() < 0.05
    assert torch.equal(block.D, torch.ones(1024))
    older = Mamba1(32, state=4)
    assert older.rank == 2
    assert torch.equal(older.A_log.exp().round(), torch.tensor([1.0, 2, 3, 4]).repeat(64, 1))


def test_bias_inverts_the_softplus():
    torch.manual_seed(0)
    dt = functional.softplus(initial_dt_bias(1000, 1e-4, 1.0).double())
    assert 1e-4 * 0.99 < dt.min() < 2e-4
    assert 0.9 < dt.max() < 1.01


def test_a_block_can_be_cut_by_heads():
    """Tensor parallelism: halves with their own groups and norms add up; with one norm for all channels they do not."""
    torch.manual_seed(0)
    whole = Mamba2(DIM, state=3, head_dim=4, groups=2).double()
    x, inner, shared = text(), 24, 6
    total = 0
    for half in range(2):
        part = Mamba2(DIM, state=3, head_dim=4, expand=1, groups=1).double()
        spans = [(0, inner), (inner, inner), (2 * inner, shared), (2 * inner + shared, shared)]
        spans += [(2 * (inner + shared), 6)]
        rows = [torch.arange(start + half * size // 2, start + (half + 1) * size // 2) for start, size in spans]
        channels = torch.cat(rows[1:4]) - inner
        halves = {"dt_bias": 6, "A_log": 6, "D": 6, "norm.weight": inner}
        weights = {key: getattr(whole, key, whole.norm.weight).chunk(2)[half] for key in halves}
        weights |= {"in_proj.weight": whole.in_proj.weight[torch.cat(rows)]}
        weights |= {f"conv.{key}": getattr(whole.conv, key)[channels] for key in ("weight", "bias")}
        weights |= {"out_proj.weight": whole.out_proj.weight.chunk(2, 1)[half]}
        part.load_state_dict(weights)
        total = total + part(x)
    assert_close(total, whole(x))
    whole.norm.groups = 1
    assert not torch.allclose(total, whole(x), rtol=1e-3)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("groups", "limits", "conv_len"), [(1, (0.0, math.inf), 4), (3, (0.0, math.inf), 4), (3, (0.01, 0.05), 2)]
)
def test_mamba2_is_that_of_hugging_face(groups, limits, conv_len, training):
    transformers = pytest.importorskip("transformers", reason="needs a peer: transformers")
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    torch.manual_seed(0)
    ours = Mamba2(24, state=16, head_dim=8, groups=groups, conv_len=conv_len)
    ours.dt_limits = limits
    config = transformers.Mamba2Config(
        hidden_size=24,
        state_size=16,
        head_dim=8,
        num_heads=6,
        n_groups=groups,
        conv_kernel=conv_len,
        time_step_limit=limits,
        num_hidden_layers=1,
        chunk_size=16,
    )
    theirs = Mamba2Mixer(config, layer_idx=0).train(training)
    same_as_hugging_face(ours, theirs)


def test_mamba1_is_that_of_hugging_face():
    transformers = pytest.importorskip("transformers", reason="needs a peer: transformers")
    from transformers.models.mamba.modeling_mamba import MambaMixer

    torch.manual_seed(0)
    config = transformers.MambaConfig(hidden_size=24, state_size=8, num_hidden_layers=1, use_associative_scan=False)
    same_as_hugging_face(Mamba1(24, state=8), MambaMixer(config, layer_idx=0).eval())


def same_as_hugging_face(ours, theirs):
    """Outputs and gradients of 37 tokens, after copying our weights."""
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.load_state_dict({key.replace("conv.", "conv1d."): value for key, value in ours.state_dict().items()})
    (x, weights) = random_tensors([(2, 37, 24)] * 2, dtype=torch.float32)
    grads = []
    for mixer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = mixer(leaf)
        grads.append([y, *torch.autograd.grad((y * weights).sum(), [leaf, mixer.in_proj.weight, mixer.A_log])])
    for found, wanted in zip(*grads, strict=True):
        assert_close(found, wanted)


# ---------------------------------------------------------------- models


def model(name, positions=0, mlp=0):
    torch.manual_seed(0)
    return SequenceModel(11, [Block(MIXERS[name][0](), mlp) for _ in range(2)], positions).double()


@each_mixer
@pytest.mark.parametrize(("positions", "mlp"), [(0, 0), (9, 20)])
def test_a_model_decodes_as_it_trains(name, positions, mlp):
    net = model(name, positions, mlp)
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    wanted, cache = net(tokens), net.start(2)
    assert wanted.shape == (2, 9, 11)
    for t in range(4):
        y, cache = net.step(tokens[:, t], cache)
        assert_close(y, wanted[:, t])
    rest, cache = net.prefill(tokens[:, 4:], cache)
    assert_close(rest, wanted[:, 4:])
    assert cache.length == 9


def test_a_block_is_two_residual_connections():
    torch.manual_seed(0)
    block, x = Block(SoftmaxAttention(DIM), mlp=7).double(), text()
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
