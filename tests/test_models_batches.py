"""Rows that are padded on their left, and several texts in one row: each text is as if it were alone."""

import copy

import pytest
import torch
from comparing import same_function
from registry_models import ATTENTION, MIXERS, build, sequence
from torch.utils import _pytree as pytree

from smalearn import ShapeError
from smalearn.models import Block, CausalConvolution, Hydra, SequenceModel, generate, select_rows
from smalearn.testing import assert_close, random_tensors, relative_rms

REFUSING = [name for name, (make, _) in MIXERS.items() if make().no_reset]
TAKING = [name for name in MIXERS if name not in REFUSING]
each_mixer = pytest.mark.parametrize("name", TAKING)
variants = [pytest.param(n, marks=pytest.mark.full) if n.rpartition("-")[0] in TAKING else n for n in TAKING]
each_kind = pytest.mark.parametrize("name", variants)  # by default without those of other groups, sizes or positions
LENGTHS = (9, 4, 1)  # of the rows of a padded batch


def begins(*places, length):
    """A reset that is True at these places."""
    reset = torch.zeros(length, dtype=torch.bool)
    reset[list(places)] = True
    return reset


def padding():
    """A reset (rows, T) at the first true token of each row."""
    return torch.stack([begins(max(LENGTHS) - length, length=max(LENGTHS)) for length in LENGTHS])


def texts(x, reset):
    """The texts of x (T, ...), cut before each place where one begins."""
    return [part for part in x.tensor_split(reset.nonzero()[:, 0]) if len(part)]


def alone(mixer, x, reset):
    """The outputs of each text alone, one after the other."""
    return torch.cat([mixer(part) for part in texts(x, reset)])


def kept(cache, row):
    """What a cache knows of a row: its states; or values, and keys that have no position, since the text began."""
    if hasattr(cache, "_fields"):
        return [part[row] for part in cache]
    length = cache._values.length
    first = 0 if cache.since is None else cache.since[row].max().item() - (cache.length - length)
    return [rows.seen[row][..., max(first, 0) :, :] for rows in (cache._values, *cache._keys)]


# ---------------------------------------------------------------- left padding


@each_mixer
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1), (torch.float64, 1e6), (torch.float32, 1e3)])
def test_a_padded_row_is_the_row_alone(name, dtype, size):
    """Its outputs, its cache and what is decoded from it, whatever the padding."""
    mixer = build(name, dtype)
    x, more = sequence(mixer, 3, length=9), sequence(mixer, 3, length=17)[:, 9:]
    reset = padding()
    for row, length in enumerate(LENGTHS):
        x[row, : 9 - length] *= size
    with torch.no_grad():
        y, cache = mixer.prefill(x, mixer.start(3), reset)
        assert_close(mixer(x, reset), y)
        decoded, after = [], cache
        for token in more.unbind(1):
            z, after = mixer.step(token, after)
            decoded.append(z)
        for row, length in enumerate(LENGTHS):
            z, own = mixer.prefill(x[row : row + 1, 9 - length :], mixer.start(1))
            assert_close(y[row, 9 - length :], z[0])
            pairs = zip(kept(cache, row), kept(own, 0), strict=True)
            for ours, theirs in list(pairs)[: 1 if getattr(mixer, "rope", False) else None]:
                assert_close(ours, theirs)
            for t, token in enumerate(more[row].unbind()):
                z, own = mixer.step(token[None], own)
                assert_close(decoded[t][row], z[0])


@each_mixer
def test_rows_of_a_padded_cache_are_picked_and_read_on(name):
    mixer = build(name)
    x, rows = sequence(mixer, 3, length=17), torch.tensor([2, 0, 1, 2])
    with torch.no_grad():
        _, cache = mixer.prefill(x[:, :9], mixer.start(3), padding())
        beams = select_rows(cache, rows)
        y, beams = mixer.prefill(x[rows, 9:12], beams)
        z, _ = mixer.prefill(x[rows, 12:], beams)
        for out, row in zip(torch.cat([y, z], 1), rows, strict=True):
            assert_close(out, mixer(x[row, 9 - LENGTHS[row] :])[-8:])
        leaves, tree = pytree.tree_flatten(cache)
        assert_close(mixer.step(x[:, 9], pytree.tree_unflatten(leaves, tree))[0], mixer.step(x[:, 9], cache)[0])
        assert cache.nbytes >= sum(part.nbytes for part in leaves if isinstance(part, torch.Tensor))


# ---------------------------------------------------------------- packed texts


@each_kind
def test_long_texts_in_two_rows(name):
    """Longer than a chunk, than a block of a window, and than what a fused attention takes at once."""
    mixer = build(name)
    length = getattr(mixer, "context", None) or 700
    x = sequence(mixer, 2, length=length)
    places = [place for place in (3, 63, 64, 70, 128, 620, 650) if place < length]
    reset = torch.stack([begins(*places, length=length), begins(length - 7, length=length)])
    expected = torch.stack([alone(mixer, *row) for row in zip(x, reset, strict=True)])
    assert_close(mixer(x, reset), expected)
    assert_close(mixer(x, reset[1]), torch.stack([alone(mixer, row, reset[1]) for row in x]))  # one for all rows
    first, cache = mixer.prefill(x[:, :5], mixer.start(2), reset[:, :5])
    rest, cache = mixer.prefill(x[:, 5:], cache, reset[:, 5:])
    own = mixer.prefill(x[:1, places[-1] :], mixer.start(1))[1]
    assert_close(torch.cat([first, rest], 1), expected)
    if length == 700:  # else it is the context
        assert_close(mixer.step(x[:, 0], cache)[0][:1], mixer.step(x[:1, 0], own)[0])


@each_kind
@pytest.mark.parametrize("split", [0, 1, 4, 8])
def test_texts_in_two_parts(name, split):
    mixer = build(name)
    x = sequence(mixer, 2, length=8)
    for places in ((2, 5), (0,), (4,), (7,), (2, 3, 4, 7), range(8), ()):
        reset = torch.stack([begins(*places, length=8), begins(length=8)])
        first, cache = mixer.prefill(x[:, :split], mixer.start(2), reset[:, :split])
        second, cache = mixer.prefill(x[:, split:], cache, reset[:, split:])
        expected = mixer(x, reset)
        assert_close(torch.cat([first, second], 1), expected)
        assert_close(expected, torch.stack([alone(mixer, *row) for row in zip(x, reset, strict=True)]))
        assert mixer(x[:, :0], reset[:, :0]).shape == (2, 0, mixer.dim)
        z = mixer.step(x[:, 0], cache)[0]
        assert_close(z[0], mixer(torch.cat([texts(x[0], reset[0])[-1], x[0, :1]]))[-1])


@each_mixer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_gradient_leaks(name, dtype):
    """Of the loss of one text, none to the tokens of another; its own are those of the text alone."""
    mixer = build(name, dtype)
    x, reset = sequence(mixer, length=12), begins(3, 7, length=12)
    for begin, end in ((0, 3), (3, 7), (7, 12)):
        inputs = [x.detach().requires_grad_(), *mixer.parameters()]
        grad, *others = torch.autograd.grad(mixer(inputs[0], reset)[begin:end].square().sum(), inputs)
        assert grad[begin:end].count_nonzero() > 0
        grad[begin:end] = 0
        assert grad.count_nonzero() == 0
        assert all(other.isfinite().all() for other in others)


@each_mixer
def test_gradients_are_those_of_the_texts_alone(name):
    mixer = build(name)
    x, reset = sequence(mixer, length=12).requires_grad_(), begins(0, 3, 7, 8, length=12)
    same_function(mixer(x, reset), alone(mixer, x, reset), [x, *mixer.parameters()])
    cache = mixer.prefill(x[:5], mixer.start(), reset[:5])[1]
    leaves = [part for part in pytree.tree_leaves(cache) if isinstance(part, torch.Tensor) and part.is_floating_point()]
    if name not in ATTENTION:
        grad = torch.autograd.grad(sum(part.square().sum() for part in leaves), x)[0]
        assert grad[:3].count_nonzero() == 0 < grad[3:5].count_nonzero()


@each_mixer
def test_half_precision(name):
    """As near to float64 as the texts alone."""
    mixer = build(name, torch.bfloat16)
    x, reset = sequence(mixer), begins(5, 9, length=17)
    exact = alone(copy.deepcopy(mixer).double(), x.double(), reset)
    for y in (mixer(x, reset), mixer.prefill(x, mixer.start(), reset)[0]):
        assert y.dtype == torch.bfloat16
        assert relative_rms(y, exact) <= 2 * relative_rms(alone(mixer, x, reset), exact)


# ---------------------------------------------------------------- models


def model(*names, positions=0):
    torch.manual_seed(0)
    net = SequenceModel(11, [Block(build(name), mlp=8) for name in names], positions).double()
    with torch.no_grad():
        net.head.weight *= 20
    return net


def prompts():
    """Tokens (rows, T) of a padded batch, whose padding is noise."""
    return torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(0))


MODELS = {
    "recurrent": lambda: model("mamba2", "mamba3", "mamba1"),
    "linear": lambda: model("linear", "delta", "convolution"),
    "attention": lambda: model("softmax-rope", "window", positions=17),
    "hybrid": lambda: model("mamba2", "softmax", positions=17),
}


@pytest.fixture(params=MODELS)
def net(request):
    return MODELS[request.param]()


def test_a_padded_prompt_is_written_on_as_alone(net):
    tokens, reset = prompts(), padding()
    with torch.no_grad():
        logits = net(tokens, reset)
        written, cache = generate(net, tokens, 5, reset=reset)
        more, _ = generate(net, written[:, -1:], 4, cache=cache)
        for row, length in enumerate(LENGTHS):
            own = tokens[row, 9 - length :]
            assert_close(logits[row, 9 - length :], net(own))
            assert torch.equal(torch.cat([written, more], 1)[row], generate(net, own, 9)[0])
        assert relative_rms(net(tokens)[1:, -1], logits[1:, -1]) > 1e-3  # without a reset the padding is read


def test_packed_texts_in_a_model(net):
    """And the cache goes on from the last of them: one after the other, or many at once, with a new text among them."""
    tokens = torch.randint(11, (16,), generator=torch.Generator().manual_seed(0))
    reset = begins(0, 4, 5, 13, length=16)
    expected = alone(net, tokens, reset)
    assert_close(net(tokens, reset), expected)
    with torch.no_grad():
        first, cache = net.prefill(tokens[:7], net.start(), reset[:7])
        y, stepped = net.step(tokens[7], cache)
        rest, _ = net.prefill(tokens[8:10], stepped)
        last, after = net.prefill(tokens[10:], net.prefill(tokens[7:10], cache)[1], reset[10:])
    assert_close(torch.cat([first, y[None], rest, last]), expected)
    assert cache.nbytes >= sum(part.nbytes for part in pytree.tree_leaves(cache) if isinstance(part, torch.Tensor))
    assert after.length == 16


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of PyTorch, about itself
def test_a_model_is_compiled_with_a_reset(net):
    torch._dynamo.reset()
    tokens, reset = prompts(), padding()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    same_function(compiled(tokens, reset), net(tokens, reset), [*net.parameters()])


@pytest.mark.full
def test_a_model_is_exported_with_a_reset():
    net, tokens, reset = model("mamba2", "softmax", positions=17), prompts(), padding()
    length = torch.export.Dim("length", min=2, max=17)
    shapes = {"tokens": {1: length}, "reset": {1: length}}
    program = torch.export.export(net, (tokens, reset), dynamic_shapes=shapes).module()
    assert_close(program(tokens[:, 4:], reset[:, 4:]), net(tokens[:, 4:], reset[:, 4:]))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", REFUSING)
def test_who_counts_from_the_first_token_of_a_row_refuses_a_reset(name):
    mixer = build(name)
    x, reset, kind = sequence(mixer, length=9), begins(3, length=9), type(mixer).__name__
    with pytest.raises(ValueError, match=rf"^{kind}.forward: reset must be None: its (blocks|tree)"):
        mixer(x, reset)
    with pytest.raises(ValueError, match=rf"^{kind}.prefill: reset must be None"):
        mixer.prefill(x, mixer.start(), reset)
    with pytest.raises(ValueError, match=rf"^{kind}.\w+: reset must be None"):
        model(name)(torch.zeros(9, dtype=torch.long), reset)


def test_hydra_refuses_a_reset():
    with pytest.raises(ValueError, match=r"^Hydra.forward: reset must be None"):
        Block(Hydra(12, state=5, head_dim=4))(torch.zeros(9, 12), begins(3, length=9))


CALLS = {
    "forward": lambda mixer, x, reset: mixer(x, reset),
    "prefill": lambda mixer, x, reset: mixer.prefill(x, mixer.start(2), reset),
}


@each_mixer
@pytest.mark.parametrize("function", CALLS)
def test_a_wrong_reset_is_refused(name, function):
    mixer = build(name)
    x, reset, start = sequence(mixer, 2, length=9), begins(3, length=9), f"^{type(mixer).__name__}.{function}: reset "
    for wrong, error, message in (
        (reset.long(), ValueError, "must be torch.bool, True where a text begins, got torch.int64"),
        (reset.to("meta"), ValueError, "is on meta, expected cpu"),
        (reset[1:], ShapeError, r"has shape \(8,\), expected \(2, 9\)"),
        (reset[0], ShapeError, r"has shape \(\), expected \(2, 9\)"),
        (reset[:1], ShapeError, r"has shape \(1,\), expected \(2, 9\)"),
        (reset.expand(3, 9), ShapeError, r"has shape \(3, 9\), expected \(2, 9\)"),
        (reset.expand(4, 1, 9), ShapeError, r"has shape \(4, 1, 9\), expected \(2, 9\)"),
        (reset.tolist(), TypeError, "must be a torch.Tensor, got list"),
    ):
        with pytest.raises(error, match=start + message):
            CALLS[function](mixer, x, wrong)


def test_a_wrong_reset_of_a_model_is_refused():
    net, tokens, reset = model("mamba2"), prompts(), padding()
    for call in (net, lambda *given: generate(net, given[0], 2, reset=given[1])):
        with pytest.raises(ShapeError, match=r"^SequenceModel.\w+: reset has shape \(3, 8\), expected \(3, 9\)"):
            call(tokens, reset[:, 1:])
        with pytest.raises(ValueError, match=r"^SequenceModel.\w+: reset must be torch.bool"):
            call(tokens, reset.int())


def test_a_convolution_alone():
    torch.manual_seed(0)
    conv, (x, state) = CausalConvolution(3, 4).double(), random_tensors([(7, 3), (3, 3)])
    zeros = torch.zeros(3, 3, dtype=x.dtype)
    y, after = conv.prefill(x, state, begins(2, length=7))
    assert_close(y, torch.cat([conv.prefill(x[:2], state)[0], conv.prefill(x[2:], zeros)[0]]))
    for place in range(7):
        assert_close(conv.prefill(x, state, begins(place, length=7))[1], conv.prefill(x[place:], zeros)[1])
    assert_close(conv.prefill(x, state, begins(length=7))[1], after)
    with pytest.raises(ShapeError, match=r"^CausalConvolution.prefill: reset has shape \(6,\), expected \(7,\)"):
        conv.prefill(x, state, begins(2, length=6))
