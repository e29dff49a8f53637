"""SSD of a split sequence, on ranks that are processes of this machine, against one process.

All ranks of a group are started once: they play every scene below, and write down what they find.
"""

import contextlib
import io
import multiprocessing
import os
import re
import sys
import time
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from smalearn import fast
from smalearn.data import IGNORE, mqar
from smalearn.fast import distributed
from smalearn.fast.distributed import NOTE, Traffic, ssd, traffic, window
from smalearn.lab.experiments import split_sequence
from smalearn.models import Mamba2
from smalearn.ssd import ssd_recurrent
from smalearn.testing import assert_close, random_tensors

INF = float("inf")
ALL = (2, 3, 4)
every_size = pytest.mark.parametrize("ranks", ALL)


# Cases: what is split, and how.

SPLITS = {
    "even": lambda ranks: [40] * ranks,
    "ragged": lambda ranks: [5, 37, 1, 12][:ranks],
    "first is empty": lambda ranks: [0, *[9] * (ranks - 1)],
    "last is empty": lambda ranks: [*[9] * (ranks - 1), 0],
    "one inside is empty": lambda ranks: [7, *[0] * (ranks - 2), 3],
    "fewer tokens than ranks": lambda ranks: [0, *[1] * (ranks - 1)],
    "no token": lambda ranks: [0] * ranks,
}
LEADING = {  # of X and log_a, of B, of C, of the initial state
    "one head": [()] * 4,
    "batch": [(2,)] * 4,
    "heads share B and C": [(2, 3, 2), (2, 3, 1), (2, 3, 1), (2, 3, 2)],
    "C alone differs": [(1,), (1,), (3,), (1,)],
    "B alone differs": [(2, 1), (3,), (), (2, 3)],
}
OWN = [f"reset in {k}" for k in range(4)]


def cases(ranks):
    """Name -> split, leading axes, kind of decay, dtype, whether there is an initial state."""
    for split in SPLITS:
        yield f"{split}", (split, "batch", "mild", torch.float64, True)
    for leading in LEADING:
        for initial in (False, True):
            yield f"{leading}, {initial}", ("ragged", leading, "resets", torch.float64, initial)
    for kind in ["zeros", "strong", "all-inf", *OWN[:ranks]]:
        yield f"{kind}", ("ragged", "batch", kind, torch.float64, True)
    for kind in ("mild", "resets"):
        yield f"float32, {kind}", ("even", "heads share B and C", kind, torch.float32, True)


def decays(kind, shape, lengths):
    mild, where = random_tensors([shape, shape], seed=5)
    mild = -mild.abs()
    if kind.startswith("reset in"):
        rank = int(kind[-1])
        begin, end = sum(lengths[:rank]), sum(lengths[: rank + 1])
        mild = 0.1 * mild
        mild[..., (begin + end) // 2] = -INF
        return mild
    return {
        "mild": 0.1 * mild,
        "zeros": torch.zeros(shape, dtype=torch.float64),
        "strong": torch.where(where > 1, -1e4, 0.01 * mild),
        "resets": torch.where(where > 1.5, -INF, torch.where(where < -1.5, -1e4, 0.1 * mild)),
        "all-inf": torch.full(shape, -INF, dtype=torch.float64),
    }[kind]


def whole(case, ranks):
    """Lengths of the slices, and leaves X, log_a, B, C and the initial state of the whole sequence."""
    split, leading, kind, dtype, initial = case
    lengths, (x, b, c, h) = SPLITS[split](ranks), LEADING[leading]
    length = sum(lengths)
    X, B, C, H = random_tensors([(*x, length, 2), (*b, length, 3), (*c, length, 3), (*h, 2, 3)])
    operands = [X, decays(kind, (*x, length), lengths), B, C]
    return lengths, [z.to(dtype) for z in operands], H.to(dtype) if initial else None


def cut(operands, lengths, rank):
    """A rank's slice of X, log_a, B and C."""
    begin = sum(lengths[:rank])
    return [z.narrow(axis, begin, lengths[rank]) for z, axis in zip(operands, (-2, -1, -2, -2), strict=True)]


def cotangents(Y, H, rank):
    return [z.to(y.dtype) for z, y in zip(random_tensors([Y.shape, H.shape], seed=rank), (Y, H), strict=True)]


def split_run(case, rank, ranks):
    """Y, the state, and all gradients of this rank's slice."""
    lengths, operands, initial = whole(case, ranks)
    leaves = [z.clone().requires_grad_() for z in cut(operands, lengths, rank)]
    if initial is not None and rank == 0:
        leaves.append(initial.requires_grad_())
    Y, H = ssd(*leaves)
    grads = torch.autograd.grad([Y, H], leaves, cotangents(Y, H, rank))
    return [Y.detach(), H.detach(), *grads]


def expected(case, ranks):
    """The same for all ranks by the recurrence, in one process and in float64."""
    lengths, operands, initial = whole(case, ranks)
    operands = [z.double() for z in operands]
    initial = None if initial is None else initial.double().requires_grad_()
    state, results, leaves, outs, given = initial, [], [], [], []
    for rank in range(ranks):
        leaves.append([z.clone().requires_grad_() for z in cut(operands, lengths, rank)])
        Y, state = ssd_recurrent(*leaves[-1], state)
        results.append([Y.detach(), state.detach()])
        outs += [Y, state]
        dtype = case[3]
        given += [z.double() for z in cotangents(Y.to(dtype), state.to(dtype), rank)]
    inputs = [leaf for own in leaves for leaf in own] + ([] if initial is None else [initial])
    loss = sum((y * weights).sum() for y, weights in zip(outs, given, strict=True))
    grads = list(torch.autograd.grad(loss, inputs, materialize_grads=True))
    for rank in range(ranks):
        results[rank] += grads[4 * rank : 4 * rank + 4]
    if initial is not None:
        results[0].append(grads[-1])
    return results


# Scenes: what all ranks do together. Each takes rank and ranks, and returns what is to be written down.


def scene_cases(rank, ranks):
    return {name: split_run(case, rank, ranks) for name, case in cases(ranks)}


def scene_again(rank, ranks):
    """The same call twice."""
    case = ("ragged", "heads share B and C", "resets", torch.float32, True)
    return split_run(case, rank, ranks), split_run(case, rank, ranks)


def scene_forgotten(rank, ranks):
    """Two runs that differ only in what lies before a reset, in the last slice."""
    lengths, operands, _ = whole(("even", "batch", f"reset in {ranks - 1}", torch.float32, False), ranks)
    other = [operands[0].clone(), *operands[1:]]
    other[0][..., : sum(lengths[:-1]), :] += 1
    return [ssd(*cut(some, lengths, rank)) for some in (operands, other)]


def scene_half(rank, ranks):
    """Half precision: dtypes, and Y and the state without gradients."""
    lengths, operands, initial = whole(("ragged", "batch", "mild", torch.bfloat16, True), ranks)
    operands[1] = operands[1].float()
    with torch.no_grad():
        return ssd(*cut(operands, lengths, rank), initial.float() if rank == 0 else None)


def scene_window(rank, ranks):
    """Windows of every split, and the gradients that come back."""
    outputs = {}
    for split, lengths in SPLITS.items():
        lengths = lengths(ranks)
        x = random_tensors([(2, sum(lengths), 3)])[0].split(lengths, -2)[rank].clone().requires_grad_()
        for length in (0, 1, 3, 50):
            before = window(x, length)
            (weights,) = random_tensors([before.shape], seed=rank)
            outputs[split, length] = before.detach(), *torch.autograd.grad(before, x, weights)
    return outputs


def scene_traffic(rank, ranks):
    """Bytes received in forward and backward, counted where they come in, for two lengths."""
    counts, gather = [], dist.all_gather

    def counting(parts, x, group=None):
        counts[-1] += sum(part.nbytes for k, part in enumerate(parts) if k != rank)
        gather(parts, x, group=group)

    dist.all_gather = counting
    try:
        for length in (1, 70):
            X, B, C, z = random_tensors([(5, length, 4), (1, length, 3), (1, length, 3), (5, length)])
            counts.append(0)
            Y, _ = ssd(X.float().requires_grad_(), -z.abs().float(), B.float(), C.float())
            counts.append(0)
            Y.sum().backward()
    finally:
        dist.all_gather = gather
    return counts


def scene_step(rank, ranks):
    """Losses of a few steps, and the gradients of the last, in float64."""
    model = split_sequence.build(STEPS).double()
    losses = list(split_sequence.training(model, STEPS))
    return losses, [parameter.grad for parameter in model.parameters()], model.state_dict()


def scene_command(rank, ranks):
    """What the command prints in a group that stands already."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = split_sequence.main(["--smoke"])
    return status, out.getvalue()


def scene_errors(rank, ranks):
    """What each rank is told when they do not agree; the last one is the odd one out."""
    odd = rank == ranks - 1
    X, log_a, B, C = torch.zeros(4, 2), torch.zeros(4), torch.zeros(4, 3), torch.zeros(4, 3)
    wide = [z.double() for z in (X, log_a, B, C)]
    calls = {
        "dtype": lambda: ssd(*wide) if odd else ssd(X, log_a, B, C),
        "shape": lambda: ssd(X, log_a, B.repeat(1, 1 + odd), C.repeat(1, 1 + odd)),
        "gradients": lambda: ssd(X.clone().requires_grad_(odd), log_a, B, C),
        "refused": lambda: ssd(X, log_a + odd, B, C),
        "no tensor": lambda: ssd(X, None if odd else log_a, B, C),
        "state": lambda: ssd(X, log_a, B, C, torch.zeros(2, 3) if odd else None),
        "another function": lambda: window(X, 3) if odd else ssd(X, log_a, B, C),
        "window": lambda: window(X, 3 + odd),
        "window of no number": lambda: window(X, -1 if odd else 3),
        "window of no text": lambda: window(X[0] if odd else X, 3),
        "twice": lambda: _twice(X, log_a, B, C),
    }
    return {name: _message(call) for name, call in calls.items()}


def _twice(X, log_a, B, C):
    X = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ssd(X, log_a, B, C)[1].square().sum(), X, create_graph=True)
    gradient.sum().backward()


def _message(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def scene_subgroups(rank, ranks):
    """Two groups, each with a sequence of its own; the last rank of an odd number is in none."""
    pairs = [[k, k + 1] for k in range(0, ranks - 1, 2)]
    groups = [dist.new_group(pair) for pair in pairs]
    case = ("ragged", "batch", "mild", torch.float64, True)
    lengths, operands, initial = whole(case, 2)
    if rank // 2 == len(groups):
        return _message(lambda: ssd(*cut(operands, lengths, 0), group=groups[0]))
    operands[0] = operands[0] * (1 + rank // 2)
    place = rank % 2
    return ssd(*cut(operands, lengths, place), None if place else initial, groups[rank // 2])


def scene_silence(rank, ranks):
    """The last of two ranks does not call."""
    if ranks > 2:
        return None
    group = dist.new_group(timeout=timedelta(seconds=4))
    began = time.monotonic()
    if rank == ranks - 1:
        time.sleep(6)
        return None
    message = _message(lambda: window(torch.zeros(4, 2), 3, group))
    return message, time.monotonic() - began


def scene_death(rank, ranks):
    """The last rank dies in the middle of a forward and backward pass: the end of the play."""
    X = torch.zeros(4, 2, requires_grad=True)
    Y, _ = ssd(X, torch.zeros(4), torch.zeros(4, 3), torch.zeros(4, 3))
    if rank == ranks - 1:
        os._exit(3)
    began = time.monotonic()
    return _message(lambda: Y.sum().backward()), time.monotonic() - began


STEPS = split_sequence.Setting(pairs=2, length=11, vocabulary=8, dim=8, state=3, steps=3, batch=4)
SCENES = {name[6:]: scene for name, scene in list(globals().items()) if name.startswith("scene_")}


def play(rank, ranks, folder):
    """A rank: all scenes in order, each written to a file of its own."""
    torch.set_num_threads(1)
    if loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # no name of this machine has to be resolved
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    for name, scene in SCENES.items():
        try:
            outputs = scene(rank, ranks)
        except BaseException:
            (folder / f"failed in {name}, rank {rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise
        torch.save(outputs, folder / f"{name}-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """From a number of ranks and the name of a scene to what each rank has found; started when first asked for."""
    folders = {}

    def find(ranks, name):
        if ranks not in folders:
            folders[ranks] = tmp_path_factory.mktemp(f"{ranks}-ranks")
            _perform(ranks, folders[ranks])
        alive = ranks - (name == "death")
        return [torch.load(folders[ranks] / f"{name}-{k}.pt", weights_only=False) for k in range(alive)]

    return find


def _perform(ranks, folder):
    """Start the ranks, and wait for their end."""
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        # What takes seconds to import is imported once for all; optimizers import torch._dynamo at their first step.
        context.set_forkserver_preload(["torch._dynamo", "smalearn.lab.experiments.split_sequence"])
    processes = [context.Process(target=play, args=(rank, ranks, folder)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.kill()
        process.join()
    failed = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("failed*.txt"))
    assert not failed, failed
    assert not stuck
    assert [process.exitcode for process in processes] == [0] * (ranks - 1) + [3]


NAMES = [(ranks, name) for ranks in ALL for name, _ in cases(ranks)]


@pytest.mark.parametrize(("ranks", "name"), NAMES, ids=lambda part: str(part))
def test_split_equals_whole(played, ranks, name):
    case = dict(cases(ranks))[name]
    for outputs, truth in zip([one[name] for one in played(ranks, "cases")], expected(case, ranks), strict=True):
        for actual, oracle in zip(outputs, truth, strict=True):
            assert actual.dtype == case[3]
            assert_close(actual, oracle)


@every_size
def test_the_last_rank_has_the_state_of_fast_ssd(played, ranks):
    case = dict(cases(ranks))["ragged"]
    _, operands, initial = whole(case, ranks)
    Y, H = fast.ssd(*operands, initial)
    outputs = [one["ragged"] for one in played(ranks, "cases")]
    assert_close(torch.cat([one[0] for one in outputs], -2), Y)
    assert_close(outputs[-1][1], H)


@every_size
def test_two_calls_give_the_same_bits(played, ranks):
    for first, second in played(ranks, "again"):
        assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@every_size
def test_nothing_passes_a_reset(played, ranks):
    (Y, H), (other, state) = played(ranks, "forgotten")[-1]
    assert torch.equal(Y[..., 20:, :], other[..., 20:, :])
    assert torch.equal(H, state)
    assert not torch.equal(Y[..., :20, :], other[..., :20, :])


def test_half_precision_has_states_in_float32(played):
    lengths, operands, initial = whole(("ragged", "batch", "mild", torch.bfloat16, True), 3)
    Y, H = ssd_recurrent(*(z.double() for z in operands), initial.double())
    outputs = played(3, "half")
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
    for forward, backward, longer, longer_backward in played(ranks, "traffic"):
        assert (forward, backward) == (longer, longer_backward) == traffic(ranks, 5, 4, 3)


def test_traffic_is_states_and_decays():
    assert traffic(1, 5, 4, 3) == Traffic(0, 0)
    assert traffic(3, 5, 4, 3, itemsize=8) == Traffic(2 * (5 * 13 * 8 + NOTE), 2 * 5 * 12 * 8)
    with pytest.raises(ValueError, match="traffic: ranks must be an integer ≥ 1, got 0"):
        traffic(0, 5, 4, 3)


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


def test_command_in_a_group(played):
    first, *others = played(3, "command")
    assert first[0] == 0
    assert "a text of 10 tokens on 3 ranks;" in first[1]
    assert str(traffic(3, 4 * 2, 4, 2).forward) in first[1]
    assert [line.split()[:2] for line in first[1].splitlines()[2:]] == [["step", "1"], ["step", "3"]]
    assert others == [(0, "")] * 2


def test_command_by_itself(capsys):
    assert split_sequence.main(["--smoke"]) == 0
    assert not dist.is_initialized()
    out = capsys.readouterr().out
    assert "a text of 10 tokens on 1 rank; into each rank, per step and layer,\n0 bytes" in out
    assert out.splitlines()[-1].startswith("step    3  loss ")


def test_command_leaves_the_group_to_torchrun(monkeypatch):
    begin, seen = dist.init_process_group, []

    def record(backend, **options):
        seen.append((backend, options))
        begin(backend, store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", record)
    assert split_sequence.main(["--smoke"]) == 0
    assert seen == [("gloo", {"timeout": split_sequence.TIMEOUT})]


EXPECTED = {  # what the odd one is told, and what the others are
    "dtype": (
        r"ValueError: distributed.ssd: rank \d has .* torch.float64, .*, but rank 0 has .* torch.float32",
        r"ValueError: distributed.ssd: rank 0 has .* torch.float32, .*, but rank \d has .* torch.float64",
    ),
    "shape": (
        r"\(1, 1, 1, 2, 6\), .*, but rank 0 has .*\(1, 1, 1, 2, 3\)",
        r"\(1, 1, 1, 2, 3\), .*, but rank \d has .*\(1, 1, 1, 2, 6\)",
    ),
    "gradients": (
        "with gradients, but rank 0 has .* without gradients",
        r"without gradients, but rank \d has .* with gradients",
    ),
    "refused": (
        "ValueError: distributed.ssd: log_a must be ≤ 0",
        r"ValueError: .*, but rank \d has arguments that it refuses",
    ),
    "no tensor": (
        "TypeError: distributed.ssd: log_a must be a torch.Tensor, got NoneType",
        r"ValueError: .*, but rank \d has arguments that it refuses",
    ),
    "state": (
        r"ValueError: distributed.ssd: initial_state belongs to rank 0, got one on rank \d: give None there",
        r"ValueError: .*, but rank \d has arguments that it refuses",
    ),
    "another function": (
        "ValueError: distributed.window: rank . has distributed.window of .*, but rank 0 has distributed.ssd of",
        "ValueError: distributed.ssd: rank 0 has distributed.ssd of .*, but rank . has distributed.window of",
    ),
    "window": (r"\(4, 2\), .*, but rank 0 has .*\(3, 2\)", r"\(3, 2\), .*, but rank \d has .*\(4, 2\)"),
    "window of no number": (
        "ValueError: distributed.window: length must be an integer ≥ 0, got -1",
        r"ValueError: .*, but rank \d has arguments that it refuses",
    ),
    "window of no text": (
        r"ShapeError: distributed.window: x needs trailing axes \(T, D\), got shape \(2,\)",
        r"ValueError: .*, but rank \d has arguments that it refuses",
    ),
    "twice": ("RuntimeError: distributed: a gradient across ranks has no graph: create_graph must be False",) * 2,
}


@every_size
@pytest.mark.parametrize("name", EXPECTED)
def test_ranks_that_disagree_are_told(played, ranks, name):
    *others, odd = [one[name] for one in played(ranks, "errors")]
    for message in others[:1]:
        assert_matches(EXPECTED[name][1], message)
    assert_matches(EXPECTED[name][0], odd)
    assert "no error" not in others


def assert_matches(pattern, message):
    assert re.search(pattern, message), message


@pytest.mark.parametrize("ranks", [3, 4])
def test_groups_have_sequences_of_their_own(played, ranks):
    outputs = played(ranks, "subgroups")
    _, operands, initial = whole(("ragged", "batch", "mild", torch.float64, True), 2)
    for k in range(ranks // 2):
        Y, H = ssd_recurrent((1 + k) * operands[0], *operands[1:], initial)
        (first, _), (second, last) = outputs[2 * k : 2 * k + 2]
        assert_close(torch.cat([first, second], -2), Y)
        assert_close(last, H)
    if ranks % 2:
        assert_matches("RuntimeError: distributed.ssd: this process is not in the group", outputs[-1])


def test_silence_is_an_error_after_the_timeout(played):
    message, seconds = played(2, "silence")[0]
    assert_matches(r"RuntimeError: distributed: rank 0 of 2 got no answer: another rank has died", message)
    assert 3 < seconds < 20


@every_size
def test_death_is_an_error_and_no_hang(played, ranks):
    for message, seconds in played(ranks, "death"):
        assert_matches(r"RuntimeError: distributed: rank \d of \d got no answer: another rank has died", message)
        assert seconds < 20


@pytest.mark.parametrize("call", [lambda x: ssd(x, x[:, 0], x, x), lambda x: window(x, 3)], ids=["ssd", "window"])
def test_without_a_group(call):
    with pytest.raises(RuntimeError, match=r"there is no process group: call torch.distributed.init_process_group in"):
        call(torch.zeros(4, 2))
    assert distributed.NOTE == 256
