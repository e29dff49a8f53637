"""SSD and the delta rule of a split sequence, on ranks that are processes of this machine, against one process."""

import re

import pytest
import torch
import torch.distributed as dist
from ranks import ALL, SPLITS, STEPS, cases, expected, perform, whole

from experiments import split_sequence
from smalearn._checks import ShapeError
from smalearn.data import IGNORE, mqar
from smalearn.fast.distributed import Traffic, delta_rule, ssd, traffic, window
from smalearn.linear_attention import delta_rule_recurrent
from smalearn.models import Mamba2
from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close, random_tensors

every_size = pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.full) for n in ALL[1:])])


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """From a number of ranks and the name of a scene to what each rank has found; started when first asked for."""
    folders = {}

    def find(ranks, name):
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"{ranks}-ranks")
            perform(ranks, folders[ranks])
        alive = ranks - (name == "death")
        return [torch.load(folders[ranks] / f"{name}-{k}.pt", weights_only=False) for k in range(alive)]

    return find


NAMES = [
    pytest.param(ranks, name, marks=[pytest.mark.full] if ranks > 2 else [])
    for ranks in ALL
    for name, _ in cases(ranks)
]


@pytest.mark.parametrize(("ranks", "name"), NAMES, ids=lambda part: str(part))
def test_split_equals_whole(played, ranks, name):
    case = dict(cases(ranks))[name]
    for outputs, truth in zip([one[name] for one in played(ranks, "cases")], expected(case, ranks), strict=True):
        for actual, oracle in zip(outputs, truth, strict=True):
            assert actual.dtype == case[4]
            assert_close(actual, oracle)


@pytest.mark.parametrize("rule", ["ssd", "delta"])
@pytest.mark.full
def test_half_precision_has_states_in_float32(played, rule):
    lengths, operands, initial = whole((rule, "ragged", "batch", "mild", torch.bfloat16, True), 3)
    oracle = {"ssd": ssd_recurrent, "delta": delta_rule_recurrent}[rule]
    Y, H = oracle(*(z.double() for z in operands), initial.double())
    outputs = [one[rule] for one in played(3, "half")]
    assert [(y.dtype, h.dtype) for y, h in outputs] == [(torch.bfloat16, torch.float32)] * 3
    assert_close(torch.cat([y for y, _ in outputs], -2), Y, 4e-3)
    assert_close(outputs[-1][1], H, 1e-2)  # the decays are rounded to bfloat16 in one of the two
    assert [y.shape[-2] for y, _ in outputs] == lengths


@every_size
def test_window_is_what_lies_before(played, ranks):
    outputs = played(ranks, "window")
    for (split, length), _ in outputs[0].items():
        lengths = SPLITS[split](ranks)
        x = random_tensors([(2, sum(lengths), 3)])[0].requires_grad_()
        padded = torch.cat([x.new_zeros(2, length, 3), x], -2)
        truth = [padded[:, sum(lengths[:k]) :][:, :length] for k in range(ranks)]
        weights = [random_tensors([z.shape], seed=k)[0] for k, z in enumerate(truth)]
        (gradient,) = torch.autograd.grad(truth, x, weights)
        for one, before, own in zip(outputs, truth, gradient.split(lengths, -2), strict=True):
            assert torch.equal(one[split, length][0], before.detach())
            assert_close(one[split, length][1], own)


@every_size
def test_bytes_on_the_wire_are_counted(played, ranks):
    once = [*traffic(ranks, 5, 4, 3), *traffic(ranks, 5, 4, 3, transition=9)]
    for counts in played(ranks, "traffic"):
        assert counts == once * 2


def test_traffic_is_states_and_transitions():
    assert traffic(1, 5, 4, 3) == Traffic(0, 0)
    assert traffic(3, 5, 4, 3, itemsize=8) == Traffic(2 * 5 * 13 * 8, 2 * 5 * 12 * 8)
    assert traffic(3, 5, 4, 3, transition=9) == Traffic(2 * 5 * (12 + 9) * 4, 2 * 5 * 12 * 4)
    for name in ("ranks", "heads", "head_dim", "state", "transition", "itemsize"):
        sizes = {"ranks": 2, "heads": 5, "head_dim": 4, "state": 3} | {name: 0}
        with pytest.raises(ValueError, match=f"traffic: {name} "):
            traffic(**sizes)


@every_size
def test_what_travels_does_so_while_the_slice_is_computed(played, ranks):
    for seen, delta in played(ranks, "overlap"):
        forward = ["leaves", "leaves", "what the slice does", "arrives", "arrives"]
        assert seen == [*forward, "leaves", "gradient of what the slice does", "arrives"]
        assert delta == ["what the slice does", "leaves", "what the slice does", "leaves", "arrives", "arrives"]


@every_size
def test_training_split_is_training_whole(played, ranks):
    model = split_sequence.build(STEPS, Mamba2).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=STEPS.lr)
    plan, losses = split_sequence.Plan(steps=STEPS.steps, lr=STEPS.lr), []
    for step in range(STEPS.steps):
        optimizer.param_groups[0]["lr"] = plan.rate(step)
        tokens, targets = mqar(STEPS.batch, STEPS.length, STEPS.pairs, STEPS.vocabulary, seed=step)
        asked = targets != IGNORE
        loss = torch.nn.functional.cross_entropy(model(tokens)[asked], targets[asked])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        losses.append(loss.item())
    for outputs, gradients, state in played(ranks, "step"):
        assert_close(torch.tensor(outputs).double(), torch.tensor(losses).double(), 1e-10)
        for gradient, parameter in zip(gradients, model.parameters(), strict=True):
            assert_close(gradient, parameter.grad, 1e-10)
        for name, parameter in model.state_dict().items():
            assert_close(state[name], parameter, 1e-10)


@pytest.mark.full
def test_command_in_a_group(played):
    first, *others = played(3, "command")
    assert first[0] == 0
    assert "a sequence of 10 tokens on 3 ranks;" in first[1]
    assert str(traffic(3, 4 * 2, 4, 2).forward) in first[1]
    assert [line.split()[:2] for line in first[2].splitlines()] == [["step", "1"], ["step", "3"]]
    assert others == [(0, "", "")] * 2


@every_size
def test_an_initial_state_belongs_to_rank_0(played, ranks):
    for name, message in zip(("ssd", "delta_rule"), played(ranks, "errors")[-1], strict=True):
        wanted = (
            f"ValueError: distributed.{name}: initial_state belongs to rank 0, got one on rank {ranks - 1}: give None"
        )
        assert message.startswith(wanted)


@every_size
def test_torch_compares_what_the_ranks_send(played, ranks):
    for message in played(ranks, "differ"):
        assert_matches(r"RuntimeError: Detected mismatch between collectives on ranks.*TensorShape=\[\d, \d\]", message)


def assert_matches(pattern, message):
    assert re.search(pattern, message), message


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.full
def test_a_mesh_has_a_sequence_of_its_own(played, ranks):
    outputs = played(ranks, "mesh")
    _, operands, initial = whole(("ssd", "ragged", "batch", "mild", torch.float64, True), 2)
    for k in range(ranks // 2):
        Y, H = ssd_recurrent((1 + k) * operands[0], *operands[1:], initial)
        (first, _), (second, last) = (output for output, _ in outputs[2 * k : 2 * k + 2])
        assert_close(torch.cat([first, second], -2), Y)
        assert_close(last, H)
    if ranks % 2:
        assert_matches("RuntimeError: distributed.ssd: this process is not in the mesh", outputs[-1][0])
    else:
        wanted = "ValueError: distributed.ssd: mesh must have one axis, got 2: take one of its axes, as mesh\\['cp'\\]"
        for _, refused in outputs:
            assert_matches(wanted, refused)


def test_silence_is_an_error_after_the_timeout(played):
    message, seconds = played(2, "silence")[0]
    assert_matches(r"RuntimeError: distributed.window: rank 0 of 2 got no answer: another rank has died", message)
    assert 3 < seconds < 20


@every_size
def test_death_is_an_error_and_no_hang(played, ranks):
    for message, seconds in played(ranks, "death"):
        assert_matches(r"RuntimeError: distributed.delta_rule: rank \d of \d got no answer: another rank has", message)
        assert seconds < 20


CALLS = {
    "ssd": lambda x: ssd(x, x[:, 0], x, x),
    "delta_rule": lambda x: delta_rule(x, x, x, x[:, 0]),
    "window": lambda x: window(x, 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_without_a_group(name):
    message = f"distributed.{name}: there is no process group: call torch.distributed.init_process_group in"
    with pytest.raises(RuntimeError, match=message):
        CALLS[name](torch.zeros(4, 2))


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_arguments_are_checked():
    X, log_a, B, state = torch.zeros(4, 2), torch.zeros(4), torch.zeros(4, 3), torch.zeros(5, 2, 3)
    with pytest.raises(ValueError, match=r"distributed.ssd: log_a must be ≤ 0"):
        ssd(X, log_a + 1, B, B)
    with pytest.raises(TypeError, match=r"distributed.ssd: log_a "):
        ssd(X, None, B, B)
    with pytest.raises(ValueError, match=r"distributed.delta_rule: beta "):
        delta_rule(B, B, X, log_a + 3)
    message = r"distributed.\w+: initial_state has leading axes \(5,\), but the others make \(\)"
    for call in (lambda: ssd(X, log_a, B, B, state), lambda: delta_rule(B, B, X, log_a, None, state)):
        with pytest.raises(ShapeError, match=message):
            call()
    with pytest.raises(ValueError, match=r"distributed.window: length "):
        window(X, -1)
    with pytest.raises(ShapeError, match=r"^distributed\.window: x "):
        window(X[0], 3)


@pytest.mark.usefixtures("alone")
def test_a_second_derivative_is_refused():
    X, log_a, B = torch.zeros(4, 2, requires_grad=True), torch.zeros(4), torch.zeros(4, 3)
    with pytest.raises(RuntimeError, match=r"distributed.ssd: a gradient across ranks has no graph: create_graph must"):
        torch.autograd.grad(ssd(X, log_a, B, B)[1].square().sum(), X, create_graph=True)


@pytest.mark.usefixtures("alone")
def test_a_graph_can_be_walked_twice():
    X, log_a, B = torch.ones(4, 2, requires_grad=True), torch.zeros(4), torch.ones(4, 3)
    loss = ssd(X, log_a, B, B)[0].square().sum()
    first, again = (torch.autograd.grad(loss, X, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
