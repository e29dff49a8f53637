"""Ranks that are processes of this machine, and the scenes that they play.

All ranks of a group are started once: they play every scene below, and write down what they find.
"""

import contextlib
import io
import multiprocessing
import os
import sys
import time
import traceback
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from experiments import split_sequence
from smalearn import fast
from smalearn.fast.distributed import delta_rule, ssd, window
from smalearn.linear_attention import delta_rule_recurrent
from smalearn.ssd import ssd_recurrent
from smalearn.testing import random_tensors

INF = float("inf")
ALL = (2, 3, 4)


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
SHAPES = {  # what each rule takes: a letter for each axis
    "ssd": ("tp", "t", "tn", "tn"),
    "delta": ("tn", "tn", "tp", "t", "t"),
    "delta, a gate per feature": ("tn", "tn", "tp", "t", "tn"),
    "delta without decay": ("tn", "tn", "tp", "t"),
}
DECAY = {"ssd": 1, "delta": 4, "delta, a gate per feature": 4}
SPLIT, ORACLE = {"ssd": ssd}, {"ssd": ssd_recurrent}  # the others are forms of the delta rule
SIZES = {"p": 2, "n": 3}
LEADING = {  # of each operand, and of the initial state
    "one head": [()] * 6,
    "batch": [(2,)] * 6,
    "heads share B and C": [(2, 3, 2), (2, 3, 2), (2, 3, 1), (2, 3, 1), (2, 3, 2)],
    "C alone differs": [(1,), (1,), (1,), (3,), (1,)],
    "B alone differs": [(2, 1), (2, 1), (3,), (), (2, 3)],
    "heads share keys": [(2, 1), (2, 1), (2, 3), (3,), (2, 1), (3,)],
    "Q alone differs": [(3,), (1,), (1,), (1,), (1,), (1,)],
}
OWN = [f"reset in {k}" for k in range(4)]


def cases(ranks):
    """Name -> rule, split, leading axes, kind of decay, dtype, whether there is an initial state."""
    for rule in SHAPES:
        for split in SPLITS:
            yield f"{rule}, {split}", (rule, split, "batch", "mild", torch.float64, True)
        for kind in ["zeros", "strong", "all-inf", *OWN[:ranks]] if rule in DECAY else []:
            yield f"{rule}, {kind}", (rule, "ragged", "batch", kind, torch.float64, True)
    for leading in LEADING:
        rule = "delta" if leading in ("heads share keys", "Q alone differs") else "ssd"
        for initial in (False, True):
            yield f"{leading}, {initial}", (rule, "ragged", leading, "resets", torch.float64, initial)
    for kind in ("mild", "resets"):
        yield f"float32, {kind}", ("ssd", "even", "heads share B and C", kind, torch.float32, True)
        yield f"float32, delta, {kind}", ("delta", "even", "heads share keys", kind, torch.float32, True)


def decays(kind, shape, lengths, axis):
    mild, where = random_tensors([shape, shape], seed=5)
    mild = -mild.abs()
    if kind.startswith("reset in"):
        rank = int(kind[-1])
        begin, end = sum(lengths[:rank]), sum(lengths[: rank + 1])
        mild = 0.1 * mild
        mild.select(axis, (begin + end) // 2).fill_(-INF)
        return mild
    return {
        "mild": 0.1 * mild,
        "zeros": torch.zeros(shape, dtype=torch.float64),
        "strong": torch.where(where > 1, -1e4, 0.01 * mild),
        "resets": torch.where(where > 1.5, -INF, torch.where(where < -1.5, -1e4, 0.1 * mild)),
        "all-inf": torch.full(shape, -INF, dtype=torch.float64),
    }[kind]


def whole(case, ranks):
    """Lengths of the slices, and leaves of the whole sequence: the operands and the initial state."""
    rule, split, leading, kind, dtype, initial = case
    lengths, names, leading = SPLITS[split](ranks), SHAPES[rule], LEADING[leading]
    sizes = SIZES | {"t": sum(lengths)}
    shapes = [(*lead, *(sizes[axis] for axis in axes)) for axes, lead in zip(names, leading, strict=False)]
    *operands, H = random_tensors([*shapes, (*leading[-1], 2, 3)])
    if rule in DECAY:
        k = DECAY[rule]
        operands[k] = decays(kind, shapes[k], lengths, -1 if names[k] == "t" else -2)
    if rule != "ssd":
        operands[1] = torch.nn.functional.normalize(operands[1], dim=-1)
        operands[3] = 2 * operands[3].sigmoid()
    return lengths, [z.to(dtype) for z in operands], H.to(dtype) if initial else None


def cut(rule, operands, lengths, rank):
    """A rank's slice of the operands."""
    begin = sum(lengths[:rank])
    axes = [-len(axes) for axes in SHAPES[rule]]
    return [z.narrow(axis, begin, lengths[rank]) for z, axis in zip(operands, axes, strict=True)]


def with_state(function, rule, operands, state):
    """Call it; the delta rule takes the state behind a decay that may be None."""
    filler = [None] if rule == "delta without decay" else []
    return function(*operands, *filler, state)


def cotangents(Y, H, rank):
    return [z.to(y.dtype) for z, y in zip(random_tensors([Y.shape, H.shape], seed=rank), (Y, H), strict=True)]


def split_run(case, rank, ranks):
    """Y, the state, and all gradients of this rank's slice."""
    rule = case[0]
    lengths, operands, initial = whole(case, ranks)
    leaves = [z.clone().requires_grad_() for z in cut(rule, operands, lengths, rank)]
    initial = None if initial is None or rank else initial.requires_grad_()
    Y, H = with_state(SPLIT.get(rule, delta_rule), rule, leaves, initial)
    leaves += [] if initial is None else [initial]
    grads = torch.autograd.grad([Y, H], leaves, cotangents(Y, H, rank))
    return [Y.detach(), H.detach(), *grads]


def expected(case, ranks):
    """The same for all ranks by the recurrence, in one process and in float64."""
    rule = case[0]
    lengths, operands, initial = whole(case, ranks)
    operands = [z.double() for z in operands]
    initial = None if initial is None else initial.double().requires_grad_()
    state, results, leaves, outs, given = initial, [], [], [], []
    for rank in range(ranks):
        leaves.append([z.clone().requires_grad_() for z in cut(rule, operands, lengths, rank)])
        Y, state = with_state(ORACLE.get(rule, delta_rule_recurrent), rule, leaves[-1], state)
        results.append([Y.detach(), state.detach()])
        outs += [Y, state]
        dtype = case[4]
        given += [z.double() for z in cotangents(Y.to(dtype), state.to(dtype), rank)]
    inputs = [leaf for own in leaves for leaf in own] + ([] if initial is None else [initial])
    loss = sum((y * weights).sum() for y, weights in zip(outs, given, strict=True))
    grads = list(torch.autograd.grad(loss, inputs, materialize_grads=True))
    each = len(SHAPES[rule])
    for rank in range(ranks):
        results[rank] += grads[each * rank : each * (rank + 1)]
    if initial is not None:
        results[0].append(grads[-1])
    return results


# Scenes: what all ranks do together. Each takes rank and ranks, and returns what is to be written down.


def scene_cases(rank, ranks):
    return {name: split_run(case, rank, ranks) for name, case in cases(ranks)}


def scene_half(rank, ranks):
    """Half precision: dtypes, and Y and the state without gradients."""
    outputs = {}
    for rule, decay in (("ssd", 1), ("delta", 4)):
        lengths, operands, initial = whole((rule, "ragged", "batch", "mild", torch.bfloat16, True), ranks)
        operands[decay] = operands[decay].float()
        initial = initial.float() if rank == 0 else None
        with torch.no_grad():
            outputs[rule] = {"ssd": ssd, "delta": delta_rule}[rule](*cut(rule, operands, lengths, rank), initial)
    return outputs


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
    """Bytes received in forward and backward, counted where they come in, for two lengths of each rule."""
    counts, gather = [], dist.all_gather

    def counting(parts, x, **options):
        counts[-1] += sum(part.nbytes for k, part in enumerate(parts) if k != rank)
        return gather(parts, x, **options)

    dist.all_gather = counting
    try:
        for length in (1, 70):
            X, B, C, z = random_tensors([(5, length, 4), (1, length, 3), (1, length, 3), (5, length)])
            X, B, C, z = (one.float() for one in (X, B, C, z))
            for call in (lambda V: ssd(V, -z.abs(), B, C), lambda V: delta_rule(C, B, V, z.sigmoid())):  # noqa: B023
                counts.append(0)
                Y, _ = call(X.requires_grad_())
                counts.append(0)
                Y.sum().backward()
    finally:
        dist.all_gather = gather
    return counts


class _Witness(torch.autograd.Function):
    """The same tensor; says when its gradient comes by."""

    @staticmethod
    def forward(ctx, x, events):
        ctx.events = events
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.events.append("gradient of what the slice does")
        return gradient, None


def scene_overlap(rank, ranks):
    """What comes after what, forward and backward."""
    events, gather = [], dist.all_gather
    inner = {"ssd": fast.ssd, "delta_rule": fast.delta_rule}

    def sends(*args, **options):
        events.append("leaves")
        work = gather(*args, **options)
        return SimpleNamespace(wait=lambda: [work.wait(), events.append("arrives")])

    def watched(function):
        def run(*args):
            events.append("what the slice does")
            Y, H = function(*args)
            return _Witness.apply(Y, events), H

        return run

    dist.all_gather = sends
    for name, function in inner.items():
        setattr(fast, name, watched(function))
    try:
        X, log_a, beta, B, C = (z.requires_grad_() for z in random_tensors([(4, 2), (4,), (4,), (4, 3), (4, 3)]))
        ssd(X, -log_a.abs(), B, C)[0].sum().backward()
        seen = [*events]
        events.clear()
        delta_rule(C, B, X, beta.sigmoid())
    finally:
        dist.all_gather = gather
        for name, function in inner.items():
            setattr(fast, name, function)
    return seen, events


def scene_step(rank, ranks):
    """Losses of a few steps, and the gradients of the last, in float64."""
    model = split_sequence.build(STEPS).double()
    losses = list(split_sequence.training(model, STEPS))
    return losses, [parameter.grad for parameter in model.parameters()], model.state_dict()


def scene_command(rank, ranks):
    """What the command prints in a group that stands already."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = split_sequence.main(["--smoke"])
    return status, out.getvalue(), err.getvalue()


def scene_errors(rank, ranks):
    """What the last rank is told of arguments that only it has; the others make no call."""
    X, log_a, B, C, state = (torch.zeros(4, 2), torch.zeros(4), torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(2, 3))
    if rank < ranks - 1:
        return None
    return [_message(lambda: ssd(X, log_a, B, C, state)), _message(lambda: delta_rule(C, B, X, log_a, log_a, state))]


def scene_differ(rank, ranks):
    """What all are told of a shape that differs, if torch is asked to compare."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    mesh = DeviceMesh.from_group(dist.new_group(), "cpu")
    dist.set_debug_level(dist.DebugLevel.OFF)
    return _message(lambda: window(torch.zeros(4, 2), 3 + (rank == ranks - 1), mesh))


def _message(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def scene_mesh(rank, ranks):
    """Two sequences, each on one row of a mesh of two rows; the last rank of an odd number is in none."""
    case = ("ssd", "ragged", "batch", "mild", torch.float64, True)
    lengths, operands, initial = whole(case, 2)
    if ranks == 4:
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
        mesh, refused = both["cp"], _message(lambda: ssd(*cut("ssd", operands, lengths, 0), mesh=both))
    else:
        mesh, refused = DeviceMesh("cpu", [0, 1]), None
    if rank // 2 == ranks // 2:
        return _message(lambda: ssd(*cut("ssd", operands, lengths, 0), mesh=mesh)), None
    operands[0] = operands[0] * (1 + rank // 2)
    place = rank % 2
    return ssd(*cut("ssd", operands, lengths, place), None if place else initial, mesh), refused


def scene_silence(rank, ranks):
    """The last of two ranks does not call."""
    if ranks > 2:
        return None
    mesh = DeviceMesh.from_group(dist.new_group(timeout=timedelta(seconds=4)), "cpu")
    began = time.monotonic()
    if rank == ranks - 1:
        time.sleep(6)
        return None
    message = _message(lambda: window(torch.zeros(4, 2), 3, mesh))
    return message, time.monotonic() - began


def scene_death(rank, ranks):
    """The last rank dies in the middle of a forward and backward pass: the end of the play."""
    X = torch.zeros(4, 2, requires_grad=True)
    Y, _ = delta_rule(torch.zeros(4, 3), torch.zeros(4, 3), X, torch.zeros(4))
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


def perform(ranks, folder):
    """Start the ranks, and wait for their end."""
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        # What takes seconds to import is imported once for all; optimizers import torch._dynamo at their first step.
        context.set_forkserver_preload(["torch._dynamo", "experiments.split_sequence"])
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
