"""Every mixer as it is served: mixed dtypes, wrapped projections, caches that are saved, picked from and compiled."""

import copy
import io

import pytest
import torch
from registry_models import MIXERS, RECURRENT, build, read_on, sequence
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils import _pytree as pytree

from smalearn import ShapeError
from smalearn.models import Block, Hydra, Mamba2, SequenceModel, SoftmaxAttention, WindowAttention, select_rows
from smalearn.multilevel import FullCache, KeyCache, WindowCache
from smalearn.testing import assert_close, random_tensors, relative_rms

# ---------------------------------------------------------------- what is kept


def around(cache):
    """Bytes that a file of the cache has beside those of its tensors."""
    file = io.BytesIO()
    torch.save(cache, file)
    return file.getbuffer().nbytes - cache.nbytes


def cache_is_saved_as_large_as_it_is(name):
    """Whatever the prompt: no tensor is a view of all its tokens."""
    mixer = build(name)
    with torch.no_grad():
        for length in (1, 2, 16):
            x = sequence(mixer, 8, length=length + 1)
            _, cache = mixer.prefill(x[:, :-1], mixer.start(8))
            for kept in (cache, mixer.step(x[:, -1], cache)[1]):
                assert around(kept) < around(mixer.start(8)) + 700  # each tensor begins at a multiple of 64
                if name in RECURRENT:
                    held = [x.untyped_storage().nbytes() for x in kept if isinstance(x, torch.Tensor)]
                    assert sum(held) == kept.nbytes


def rows_of_a_cache_are_picked(name):
    """Those rows alone give the same; the cache that they are from stays as it was; a cache of two leading axes too."""
    mixer = build(name)
    x, rows = sequence(mixer, 3), torch.tensor([2, 0, 0, 2])
    with torch.no_grad():
        for axis in (0, 1):
            whole, picked = (y if axis == 0 else torch.stack([y, 2 * y]) for y in (x, x[rows]))
            _, cache = mixer.prefill(whole[..., :9, :], mixer.start(*whole.shape[:-2]))
            beams = select_rows(cache, rows, axis)
            for t in range(9, 12):  # in turns: neither writes what the other reads
                y, beams = mixer.step(picked[..., t, :], beams)
                assert_close(y, mixer(picked[..., : t + 1, :])[..., -1, :])
                y, cache = mixer.step(whole[..., t, :], cache)
                assert_close(y, mixer(whole[..., : t + 1, :])[..., -1, :])
            y, _ = mixer.prefill(picked[..., 12:15, :], beams)
            assert_close(y, mixer(picked[..., :15, :])[..., 12:, :])


# ---------------------------------------------------------------- dtypes and wrappers


def delicate_parameters_stay_in_float32(name):
    """All but projections and convolution, and all but projections: as exact as with all in 16 bits."""
    exact, half, x = build(name).double(), build(name, torch.bfloat16), sequence(build(name), 2).bfloat16()
    expected = exact(x.double())
    for narrow in (("proj.weight", "conv.weight", "conv.bias"), ("proj.weight",)):
        if name == "convolution":
            narrow = narrow[0], "conv.weight"
        mixed = copy.deepcopy(half)
        for key, parameter in mixed.named_parameters():
            parameter.data = parameter.data if key.endswith(narrow) else parameter.data.float()
        for y in (mixed(x), read_on(mixed, x, 5)):
            assert y.dtype == torch.bfloat16
            assert relative_rms(y, expected) <= 1.5 * relative_rms(half(x), expected)
        y.square().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in mixed.parameters())


class Adapter(nn.Module):
    """A low-rank change beside a frozen projection, as LoRA has it; a wrapper without `weight`."""

    def __init__(self, base):
        super().__init__()
        self.low, self.high = (
            nn.Linear(*sizes, bias=False) for sizes in ((base.in_features, 2), (2, base.out_features))
        )
        nn.init.zeros_(self.high.weight)
        self.base = base

    def forward(self, x):
        return self.base(x) + self.high(self.low(x.float())).to(x.dtype)


class Quantised(nn.Module):
    """A linear map by integers of 8 bits: no floating parameter, and `weight` is a method, as PyTorch's have it."""

    def __init__(self, base):
        super().__init__()
        self.scale = base.weight.abs().max().item() / 127
        self.register_buffer("codes", (base.weight / self.scale).round().to(torch.int8))
        self.bias = base.bias

    def weight(self):
        return self.codes * self.scale

    def forward(self, x):
        return functional.linear(x, self.weight().to(x.dtype), self.bias)


class Same(nn.Module):
    """A parametrisation that changes nothing."""

    def forward(self, weight):
        return weight


def replica(mixer):
    """What `DataParallel` makes for each GPU: modules whose parameters are attributes."""
    copies = {part: part._replicate_for_data_parallel() for part in mixer.modules()}
    for part, twin in copies.items():
        for key, child in part._modules.items():
            setattr(twin, key, copies[child])
        for key, parameter in part._parameters.items():
            setattr(twin, key, parameter)
    return copies[mixer]


def each_linear(mixer, wrap):
    for part in list(mixer.modules()):
        for key, child in list(part.named_children()):
            if isinstance(child, nn.Linear):
                setattr(part, key, wrap(child) or child)
    return mixer


def wrapped_projections_are_projections(name):
    x, plain = sequence(build(name), 2), build(name)
    expected = plain(x)
    for wrapped in (
        each_linear(build(name), Adapter),
        each_linear(build(name), lambda part: parametrize.register_parametrization(part, "weight", Same()) and None),
        each_linear(build(name), parametrizations.weight_norm),
        replica(plain),
    ):
        assert_close(wrapped(x), expected)
        assert_close(read_on(wrapped, x, 5), expected)
    swapped = {key: parameter + 0 for key, parameter in plain.named_parameters()}
    assert_close(torch.func.functional_call(plain, swapped, (x,)), expected)
    with torch.device("meta"):
        empty = MIXERS[name][0]().double()
    assert empty(x.to("meta")).shape == read_on(empty, x.to("meta"), 5).shape == x.shape


def quantised_projections_are_nearly_the_same(name):
    mixer, x = build(name, torch.float32), sequence(build(name), 2).float()
    expected, quantised = mixer(x), each_linear(copy.deepcopy(mixer), Quantised)
    with torch.no_grad():
        assert_close(quantised(x), expected, 0.1)
        assert_close(read_on(quantised, x, 5), quantised(x), 1e-4)


SERVED = [
    cache_is_saved_as_large_as_it_is,
    rows_of_a_cache_are_picked,
    delicate_parameters_stay_in_float32,
    wrapped_projections_are_projections,
    quantised_projections_are_nearly_the_same,
]


@pytest.mark.parametrize("question", SERVED, ids=lambda question: question.__name__)
@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_is_served(name, question):
    question(name)


def test_hydra_is_served():
    """It has no cache; projections of 16 bits, or of 8, and all else in float32."""
    torch.manual_seed(0)
    mixer, x = Hydra(12, state=5, head_dim=4), random_tensors([(2, 9, 12)], dtype=torch.float32)[0]
    expected = mixer(x)
    for wrap, bound in ((Adapter, 1e-5), (Quantised, 0.1)):
        assert_close(each_linear(copy.deepcopy(mixer), wrap)(x), expected, bound)
    assert_close(replica(mixer)(x), expected, 1e-5)
    for part in (mixer.in_proj, mixer.conv, mixer.out_proj):
        part.bfloat16()
    y = mixer(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert_close(y, expected, 0.03)


@pytest.mark.parametrize("name", ["mamba2", "log-linear", "softmax", "levels", "window"])
def test_a_model_is_served(name):
    """Norms in float32 beside blocks of 16 bits; rows of the cache of all blocks; its bytes."""
    torch.manual_seed(0)
    net = SequenceModel(11, [Block(MIXERS[name][0](), mlp=8) for _ in range(2)])
    tokens, rows = torch.randint(11, (3, 17)), torch.tensor([1, 1, 0, 2])
    with torch.no_grad():
        logits = net(tokens)
        _, cache = net.prefill(tokens[:, :9], net.start(3))
        beams = select_rows(cache, rows)
        for t in range(9, 12):
            y, beams = net.step(tokens[rows, t], beams)
            assert_close(y, logits[rows, t], 1e-5)
        assert (cache.length, beams.length) == (9, 12)
        net.bfloat16()
        for part in net.modules():
            if isinstance(part, nn.RMSNorm):
                part.float()
        assert net(tokens).dtype == torch.bfloat16
        assert_close(net(tokens), logits, 0.05)


def test_a_hook_of_the_convolution_is_called():
    """So what wraps it there, as weight normalisation of old, works; and what looks at it."""
    mixer, calls = build("mamba2"), []
    mixer.conv.register_forward_hook(lambda *_: calls.append(1))
    read_on(mixer, sequence(mixer, 2, length=7), 5)
    assert len(calls) == 3


CACHES = [
    lambda *leading: FullCache(leading, 4, 12, 3),
    lambda *leading: FullCache(leading, 4, None, 3),
    lambda *leading: KeyCache(leading, (2, 2), (12, 4), 3),
    lambda *leading: WindowCache(leading, 4, 3, 3),
]


@pytest.mark.parametrize("start", CACHES)
def test_a_cache_is_a_tree_of_tensors(start):
    Q, K, V = random_tensors([(2, 3, 12, 4), (2, 3, 12, 4), (2, 3, 12, 3)], dtype=torch.float32)
    cache = start(2, 3).append(K[..., :5, :], V[..., :5, :])
    leaves, tree = pytree.tree_flatten(cache)
    twin = pytree.tree_unflatten(leaves, tree)
    assert (type(twin), twin.length, twin.leading) == (type(cache), 5, (2, 3))
    assert twin.key_numbers == cache.key_numbers
    tokens = [x[..., 5:6, :] for x in (Q, K, V)]
    y, after = twin.read(*tokens)  # what both share is not written
    other, _ = cache.read(tokens[0], -tokens[1], -tokens[2])
    assert_close(cache.read(*tokens)[0], y)
    assert relative_rms(other, y) > 1e-3
    assert_close(after.read(*(x[..., 6:, :] for x in (Q, K, V)))[0], start(2, 3).read(Q, K, V)[0][..., 6:, :], 1e-5)
    assert after.nbytes == cache.read(*tokens)[1].nbytes
    assert type(pytree.tree_map(lambda _: None, cache)) is type(cache)


def test_rows_that_are_not_there():
    cache = build("mamba2").start(3)
    for rows, error, message in (
        ([0], TypeError, "^select_rows: rows .* list"),
        (torch.tensor([True, False, True]), ValueError, "^select_rows: rows must be int64 or int32, got torch.bool"),
        (torch.tensor([0, 3]), ValueError, "^select_rows: rows must be from 0 to 2, got another"),
        (torch.tensor([[0, 1]]), ShapeError, r"^select_rows: expected .*, and rows \(R,\); got .* shape \(1, 2\)"),
    ):
        with pytest.raises(error, match=message):
            select_rows(cache, rows)
    with pytest.raises(ShapeError, match=r"^select_rows: expected a cache with one size at axis 0"):
        select_rows(build("mamba2").start(), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"^select_rows: axis "):
        select_rows(cache, torch.tensor([0]), -1)


# ---------------------------------------------------------------- programs


def programs(step, tokens, cache):
    """How many programs PyTorch compiles for one token after the other."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, backend="eager")
    for token in tokens:
        _, cache = compiled(token, cache)
    assert not torch._dynamo.utils.counters["graph_break"]
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


STEPPED = {
    "mamba2": lambda: Mamba2(12, state=5, head_dim=4),
    "softmax": lambda: SoftmaxAttention(12, 3),
    "softmax-context": lambda: SoftmaxAttention(12, 3, 64, rope=True),
    "window": lambda: WindowAttention(12, 3, 4),
}


def after_a_prompt(name):
    """A model of such mixers, tokens (T, B), and the cache after five of them."""
    torch.manual_seed(0)
    net = SequenceModel(11, [Block(STEPPED[name]()) for _ in range(2)], positions=64)
    tokens = torch.randint(11, (26, 2))
    return net, tokens, net.prefill(tokens[:5].T, net.start(2))[1]


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("name", STEPPED)
def test_a_step_is_compiled_for_every_length(name):
    """One program for the first token, whose length is a number to it, and one for all that follow."""
    net, tokens, cache = after_a_prompt(name)
    assert programs(net.step, tokens[5:25], cache) <= 2


def dynamic(cache):
    """The specification of a cache for `torch.export`: its number of tokens, and axes that grow with it."""
    if isinstance(cache, torch.Tensor):
        return {}
    if cache is None:
        return None
    if isinstance(cache, int):
        return torch.export.Dim.DYNAMIC
    if isinstance(cache, FullCache):
        return [{x.ndim - 2: torch.export.Dim.AUTO} for x in pytree.tree_leaves(cache)]
    parts = [dynamic(part) for part in (cache if isinstance(cache, tuple) else pytree.tree_leaves(cache))]
    return type(cache)(*parts) if hasattr(cache, "_fields") else tuple(parts) if isinstance(cache, tuple) else parts


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("name", STEPPED)
def test_a_step_is_exported_for_every_length(name):
    class Step(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, token, cache):
            return self.net.step(token, cache)

    net, tokens, cache = after_a_prompt(name)
    exported = torch.export.export(Step(net), (tokens[5], cache), dynamic_shapes=({}, dynamic(cache))).module()
    twin = cache
    for token in tokens[5:12]:
        y, cache = exported(token, cache)
        expected, twin = net.step(token, twin)
        assert_close(y, expected, 1e-5)
    assert cache.length == 12
