"""Every public function of arrays, and every mixer and weight, under PyTorch's own transforms.

By default one function of each room; with `--full` all of them, and Inductor where it pays, in `fast` and `models`, and
where it has been wrong.
"""

import warnings
from functools import partial
from inspect import signature

import comparing
import pytest
import torch
import torch._dynamo.testing
from registry_functions import FUNCTIONS, T
from registry_models import MIXERS, build
from registry_weights import CASES
from torch.autograd.functional import jacobian
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from smalearn.models import Hydra

MODULES = {f"models.{name}": lambda name=name: build(name) for name in MIXERS} | {
    f"weights.{case.name}": lambda case=case: case.random(0, torch.float64)
    for case in {type(case.random(0, torch.float64)): case for case in CASES}.values()
}
MODULES["models.hydra"] = lambda: Hydra(12, state=3, head_dim=4)  # not causal, so none of the mixers above
NAMES = [*FUNCTIONS, *MODULES]
FIRST = list({name.partition(".")[0]: name for name in reversed(NAMES)}.values())
all_close = partial(comparing.all_close, tolerance=1e-10)
REFUSED = {"hessian": ("models.softmax", "_scaled_dot_product_flash_attention_for_cpu_backward is not implemented")}


def by_default(name):
    return name if name in FIRST else pytest.param(name, marks=pytest.mark.full)


batched = pytest.mark.filterwarnings("ignore:There is a performance drop")  # where PyTorch batches call by call
every_function = pytest.mark.parametrize("name", [by_default(name) for name in NAMES])


def case(name, dtype=torch.float64, batch=(), length=T):
    """A function of tensors that gives a tuple, and its operands; a module is a function of its parameters too."""
    if name in FUNCTIONS:
        form = FUNCTIONS[name]
        return (lambda *x: several(form.function(*x))), [*form.operands(length, batch, dtype=dtype).values()]
    torch.manual_seed(0)
    module = MODULES[name]().to(dtype)
    names, values = zip(*module.named_parameters(), strict=True)
    width = module.dim if hasattr(module, "dim") else module.shape[1]
    x = torch.randn(*batch, 2, 7, width, dtype=dtype)

    def call(*tensors):
        *values, x = tensors
        return several(torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,)))

    parameters = [value.detach().expand(*batch, *value.shape).clone() for value in values]
    return call, [*parameters, x]


def several(results):
    """The tensors among results, however nested."""
    return tuple(x for x in torch.utils._pytree.tree_leaves(results) if isinstance(x, torch.Tensor))


def total(results):
    return sum(y.abs().square().sum() for y in results)


def loss(function):
    return lambda *x: total(function(*x))


def gradients(function, tensors):
    tensors = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(loss(function)(*tensors), tensors)


def compiled(name, backend, length=T):
    function, tensors = case(name, length=length)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = [x.detach().requires_grad_() for x in tensors]
        results = torch.compile(function, backend=backend, fullgraph=True)(*held)  # one graph for values and gradients
        all_close(results, function(*tensors))
        all_close(torch.autograd.grad(total(results), held), gradients(function, tensors))


# Cold, Inductor takes half a minute for each; of all others only what it is given is tried.
GENERATED = ["fast.ssd", "fast.linear_attention", "fast.delta_rule", "fast.multilevel_attention"]
GENERATED += ["linear_attention.linear_attention_chunked", "models.mamba2", "models.mamba3", "models.delta"]
SIZES = {f"models.{name}" for name in MIXERS if name.endswith(("-groups", "-one-head", "-still", "-rank", "-blocks"))}
TRACED = [name for name in NAMES if name in FIRST or name not in {*GENERATED, *SIZES}]


LONG = {"ssd.ssd_recurrent", "ssm.ssm_recurrent", "linear_attention.linear_attention_recurrent"}  # token by token
LONG |= {"scores.tiled_attention", "models.mamba2"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in LONG else by_default(name) for name in TRACED]
)
def test_compile(name):
    compiled(name, "aot_eager")


@pytest.mark.full
def test_one_compiled_step_for_all_lengths():
    module = build("log-linear")
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    step = torch.compile(module.step, backend=counter, fullgraph=True)
    with torch.no_grad():
        cache = expected = module.start(2)
        for token in torch.randn(12, 2, module.dim, dtype=torch.float64):
            (y, cache), (truth, expected) = step(token, cache), module.step(token, expected)
            all_close(several((y, cache)), several((truth, expected)))
    assert counter.frame_count == 2  # the first token, and any other


@pytest.mark.full
@pytest.mark.parametrize("name", GENERATED)
def test_inductor(name):
    compiled(name, "inductor")


@pytest.mark.full
def test_inductor_where_it_once_lost_gradients():
    """Of decays per token that are taken apart, from 8 tokens on."""
    compiled("masks.scan_recurrent", "inductor", length=9)


@every_function
def test_export(name):
    function, tensors = case(name)

    class Module(torch.nn.Module):
        def forward(self, *x):
            return function(*x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Module(), tuple(tensors)).module()
    all_close(exported(*tensors), function(*tensors))


MIXERS = [name for name in MODULES if name.startswith("models")]


@pytest.mark.parametrize("name", [by_default(name) for name in MIXERS])
def test_export_of_a_length_that_varies(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    x, longer = (torch.randn(2, length, module.dim) for length in (7, 16))
    module = module.float()
    varying = {"x": {1: torch.export.Dim("T", min=3, max=16)}}
    if not getattr(module, "varies", True):
        with pytest.raises(ValueError, match="export it for one length"):
            torch.export.export(module, (x,), dynamic_shapes=varying)
        return
    exported = torch.export.export(module, (x,), dynamic_shapes=varying).module()
    all_close(several(exported(longer)), several(module(longer)), tolerance=1e-6)


@batched
@every_function
def test_vmap(name):
    function, tensors = case(name, batch=(2,))
    each = [function(*(x[i] for x in tensors)) for i in range(2)]
    results = torch.func.vmap(function)(*tensors)
    all_close(results, map(torch.stack, zip(*each, strict=True)))


@batched
@every_function
def test_gradients_of_a_batched_call(name):
    function, tensors = case(name, batch=(2,))
    results = torch.func.grad(loss(torch.func.vmap(function)), argnums=tuple(range(len(tensors))))(*tensors)
    each = [gradients(function, [x[i] for x in tensors]) for i in range(2)]
    all_close(results, map(torch.stack, zip(*each, strict=True)))


@batched
@every_function
def test_gradients_by_sample(name):
    function, tensors = case(name, batch=(2,))
    grad = torch.func.grad(loss(function), argnums=tuple(range(len(tensors))))
    results = torch.func.vmap(grad)(*tensors)
    each = [gradients(function, [x[i] for x in tensors]) for i in range(2)]
    all_close(results, map(torch.stack, zip(*each, strict=True)))


@every_function
def test_hessian(name):
    function, tensors = case(name)
    tensors = [x.requires_grad_() for x in tensors]
    prefix, reason = REFUSED["hessian"]
    if name.startswith(prefix):
        with pytest.raises(RuntimeError, match=reason):
            torch.autograd.gradgradcheck(function, tensors, fast_mode=True)
    else:
        assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


def keep_ours(_, operation, *arguments, **settings):
    """Which results checkpointing keeps: those of our operations, that they need not run again."""
    return CheckpointPolicy.MUST_SAVE if operation.namespace == "smalearn" else CheckpointPolicy.PREFER_RECOMPUTE


again = partial(checkpoint, use_reentrant=False)
selective = partial(again, context_fn=partial(create_selective_checkpoint_contexts, keep_ours))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_checkpoint(name, autocast):
    function, tensors = case(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        truth = gradients(function, tensors)
        for computed_again in (again, selective, partial(again, again)):
            results = gradients(partial(computed_again, function), tensors)
            assert all(map(torch.equal, results, truth))


@pytest.mark.parametrize("name", NAMES)
def test_each_saved_tensor_is_unpacked_at_most_once(name):
    function, tensors = case(name)
    unpacked = []

    def pack(x):
        unpacked.append(0)
        return len(unpacked) - 1, x

    def unpack(packed):
        unpacked[packed[0]] += 1
        return packed[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        gradients(function, tensors)
    assert max(unpacked, default=0) <= 1


@batched
@every_function
def test_gradients_in_batches(name):
    function, tensors = case(name)
    tensors = [x.requires_grad_() for x in tensors]
    results = function(*tensors)
    basis = [torch.randn(3, *y.shape, dtype=y.dtype) for y in results]
    grad = partial(torch.autograd.grad, results, tensors, retain_graph=True)
    each = [grad([y[i] for y in basis]) for i in range(3)]
    all_close(grad(basis, is_grads_batched=True), map(torch.stack, zip(*each, strict=True)))


@batched
@pytest.mark.parametrize("name", [by_default(name) for name in FUNCTIONS])
def test_jacobians(name):
    function, tensors = case(name)
    truth = jacobian(function, tuple(tensors))
    reverse = torch.func.jacrev(function, tuple(range(len(tensors))))(*tensors)
    for found in (jacobian(function, tuple(tensors), vectorize=True), reverse):
        all_close(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(truth))


@every_function
def test_autocast(name):
    function, tensors = case(name, torch.float32)
    expected, truth = function(*tensors), gradients(function, tensors)
    with torch.autocast("cpu", torch.bfloat16):
        all_close(function(*tensors), expected, tolerance=0.04)
        all_close(gradients(function, tensors), truth, tolerance=0.1)


RESUMED = [name for name, form in FUNCTIONS.items() if "initial_state" in signature(form.function).parameters]
RESUMED.remove("ssm.ssm_states")  # gives all states, and no outputs


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RESUMED)
def test_states_are_float32_and_taken_back(name, dtype, autocast):
    form = FUNCTIONS[name]
    for length in (0, 1, 2, 3, 5, 70):
        tensors = form.operands(length, dtype=dtype)
        tensors.pop("initial_state", None)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            *_, state = form.function(*tensors.values())
            *_, last = form.function(*tensors.values(), initial_state=state)
        assert {x.dtype for x in several((state, last))} == {torch.float32}


@every_function
def test_meta(name):
    function, tensors = case(name)
    shapes = [y.shape for y in function(*(x.to("meta") for x in tensors))]
    assert shapes == [y.shape for y in function(*tensors)]


@pytest.mark.parametrize("name", NAMES)
def test_another_default_device(name):
    function, tensors = case(name)
    expected = function(*tensors)
    with torch.device("meta"):
        results = function(*tensors)
    all_close(results, expected)


ignore_jit = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch itself calls it
FAST = [name for name in FUNCTIONS if name.startswith(("fast.", "scores.")) and "by key" not in name]


@ignore_jit
@pytest.mark.parametrize("name", FAST)
def test_forward_mode_is_refused_by_what_has_none(name):
    function, tensors = case(name)
    with pytest.raises(NotImplementedError, match=r"^\w+ has no forward mode \(jvp\): use "):
        torch.func.jvp(function, tuple(tensors), tuple(tensors))
    with pytest.raises(NotImplementedError, match=r"^\w+ has no forward mode \(jvp\): use "):
        torch.func.hessian(lambda x: loss(function)(x, *tensors[1:]))(tensors[0])


@ignore_jit
def test_forward_mode_of_readable_forms():
    for name in ("ssd.ssd_chunked", "linear_attention.linear_attention_recurrent", "sma.sma_quadratic"):
        function, tensors = case(name)
        _, tangents = torch.func.jvp(function, tuple(tensors), tuple(tensors))
        step = 1e-6
        nearby = function(*(x + step * x for x in tensors)), function(*(x - step * x for x in tensors))
        all_close(
            tangents, [(after - before) / (2 * step) for after, before in zip(*nearby, strict=True)], tolerance=1e-7
        )
