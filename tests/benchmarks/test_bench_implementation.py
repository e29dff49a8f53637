"""The gate lets no wrong answer be timed, every peer computes the same function, and memory is what is saved."""

import math
import pickle
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import implementation, peers
from benchmarks.implementation import Implementation, Run, compare, memory
from benchmarks.peers import BACKWARDS, COMPILED_SSD, DELTA_RULE, LINEAR_ATTENTION, SSD
from benchmarks.problem import DECAYS, Problem, recurrence
from smalearn.testing import assert_close

SHARED = Problem(length=128, heads=2, head_dim=3, state=4)
OWN = replace(SHARED, shared=False)
LIBRARIES = {"fla": "fla", "transformers": "transformers", "mamba_ssm": "mamba_ssm"}


@pytest.fixture
def check(here):
    """Measure implementations at a problem in this process: their entries."""
    return lambda problem, *implementations: next(compare([problem], implementations, 2))["contestants"]


def right():
    return recurrence


def wrong():
    return lambda *operands: recurrence(*operands) * (1 + 1e-3)


def wrong_gradient():
    return lambda X, log_a, B, C: recurrence(X, log_a, B.detach() + 0 * B, C)


def not_a_number():
    return lambda *operands: recurrence(*operands) * math.nan


def missing():
    raise ModuleNotFoundError("No module named 'elsewhere'")


# The problem and its answer


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("decay", [None, *DECAYS])
def test_the_oracle_is_the_masked_product(decay, shared):
    problem = replace(SHARED, length=100, decay=decay, backward=True, shared=shared)  # not a multiple of its segments
    operands, dY = problem.inputs()
    X, log_a, B, C = doubles = [None if x is None else x.double().requires_grad_() for x in operands]
    log_a = X.new_zeros(1, 2, 100) if log_a is None else log_a
    between = log_a[..., :, None].expand(1, 2, 100, 100).tril(-1).cumsum(-2)  # sums over s < k <= t
    Y = (between.exp().tril() * (C @ B.mT)) @ X
    leaves = [x for x in doubles if x is not None]
    answers = problem.oracle()
    for answer, expected in zip(answers, [Y, *torch.autograd.grad(Y, leaves, dY.double())], strict=True):
        assert answer.dtype == torch.float64
        assert_close(answer, expected.detach())
    (forward,) = replace(problem, backward=False).oracle()
    assert torch.equal(forward, answers[0])


def test_the_oracle_of_some_heads_is_a_part_of_all():
    problem = replace(OWN, backward=True)
    for some, every in zip(problem.oracle(heads=1), problem.oracle(), strict=True):
        assert torch.equal(some, every[:, :1])


@pytest.mark.parametrize("views", [True, False])
def test_inputs_have_their_shapes_and_layout(views):
    (X, log_a, B, C), dY = replace(SHARED, views=views, dtype=torch.float16, batch=2).inputs()
    shapes = [(2, 2, 128, 3), (2, 2, 128), (2, 1, 128, 4), (2, 1, 128, 4), (2, 2, 128, 3)]
    assert [tuple(x.shape) for x in (X, log_a, B, C, dY)] == shapes
    assert {x.dtype for x in (X, B, C, dY)} == {torch.float16}
    assert log_a.dtype == torch.float32
    assert all((x.transpose(1, 2) if views else x).is_contiguous() for x in (X, log_a, B, C, dY))
    assert replace(OWN, decay=None).inputs()[0][1] is None
    assert not torch.equal(SHARED.inputs()[0][0], replace(SHARED, seed=1).inputs()[0][0])
    assert OWN.inputs()[0][2].shape == (1, 2, 128, 4)


# Implementations

CASES = [
    (one, problem)
    for some, problems in (
        (LINEAR_ATTENTION, (OWN, replace(OWN, decay=None))),
        ((*BACKWARDS,), (OWN,)),
        ((*SSD, COMPILED_SSD), (SHARED,)),
        (DELTA_RULE, (OWN,)),
    )
    for one in some
    for problem in problems
    if one.takes(problem)
]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("one", "problem"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_every_implementation_is_right(one, problem, backward, check):
    library = LIBRARIES.get(one.name.split()[0])
    if library:
        pytest.importorskip(library, reason=f"needs a peer: {library}")
    entry = check(replace(problem, backward=backward), pickle.loads(pickle.dumps(one)))[one.name]
    assert entry["tolerated"] if one.checked else "tolerated" not in entry, entry
    assert len(entry["seconds"]) == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("one", "problem"), [(COMPILED_SSD, SHARED), (LINEAR_ATTENTION[4], OWN)], ids=["ssd", "linear"]
)
def test_what_is_compiled_is_right_in_a_process_of_its_own(one, problem):
    if not shutil.which("c++"):
        pytest.skip("needs a peer: a C++ compiler")
    (part,) = compare([replace(problem, backward=True)], [one], 1)
    assert part["contestants"][one.name]["tolerated"] is True


def test_without_a_compiler_the_compiled_ones_are_absent(here, monkeypatch):
    def fails(*_, **__):
        raise torch._dynamo.exc.InternalTorchDynamoError("No working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", lambda function, dynamic, fullgraph: fails)
    (part,) = compare([SHARED], [COMPILED_SSD], 1)
    reason = "ImportError: torch.compile: No working C++ compiler found"
    assert part["contestants"] == {"ssd_chunked, compiled": {"absent": reason}}


@pytest.mark.parametrize("chunk_len", [32, 64])
def test_the_floor_has_the_products_of_the_algorithm_and_no_new_memory(chunk_len):
    floor = Implementation("floor", partial(peers.products_only, chunk_len))
    run, count = Run(floor, OWN), 128 * 2 * (chunk_len * (3 + 4) + 2 * 3 * 4)  # multiply-adds of two heads
    for once, times in ((run.forward, 1), (run.both, 3)):
        with FlopCounterMode(display=False) as flops:
            once()
        assert flops.get_total_flops() == 2 * times * count
    assert run.forward().data_ptr() == run.forward().data_ptr()
    first, second = (run.both() for _ in range(2))
    assert [x.shape for x in first] == [x.shape for x in [first[0], *next(run.sets)[0]]]
    assert [x.data_ptr() for x in first] == [x.data_ptr() for x in second]


def test_the_textbooks_agree_where_chunks_matter():
    X, log_a, B, C = (x.double() for x in replace(SHARED, length=320).inputs()[0])
    every = [x.transpose(1, 2) for x in peers.every_head(X, log_a, B, C)]
    assert_close(peers.textbook_ssd(*every).transpose(1, 2), recurrence(X, log_a, B, C))
    assert_close(peers.textbook_attention(X, log_a, B, C), recurrence(X, log_a, B, C))


def test_which_problems_an_implementation_takes():
    one, on_gpu = partial(Implementation, "one", right), replace(SHARED, device="cuda")
    for changes in ({}, {"anywhere": False}, {"decay": True}, {"longest": 128}, {"most": 128 * 2 * 4 + 1}):
        assert one(**changes).takes(on_gpu)
    for changes in ({"anywhere": False}, {"decay": False}, {"longest": 127}, {"most": 128 * 2 * 4}):
        assert not one(**changes).takes(SHARED)
    assert not one(decay=True).takes(replace(OWN, decay=None))


# The gate


@pytest.mark.parametrize(("load", "backward"), [(wrong, False), (not_a_number, False), (wrong_gradient, True)])
@pytest.mark.parametrize("problem", [SHARED, OWN], ids=str)
def test_a_wrong_answer_is_not_timed(load, backward, problem, check):
    ones = Implementation("right", right), Implementation("wrong", load), Implementation("peer", missing)
    entries = check(replace(problem, backward=backward), *ones)
    assert entries["right"]["tolerated"]
    assert len(entries["right"]["seconds"]) == 2
    assert not entries["wrong"]["tolerated"]
    assert "seconds" not in entries["wrong"]
    assert entries["peer"] == {"absent": "ModuleNotFoundError: No module named 'elsewhere'"}


def wrong_later():
    return lambda *x: recurrence(*x) * torch.tensor([1.0, 2.0])[:, None, None]


@pytest.mark.parametrize(("heads", "tolerated"), [(1, True), (None, False)])
def test_so_many_heads_are_judged_as_it_says(heads, tolerated, check):
    assert check(OWN, Implementation("one", wrong_later, heads=heads))["one"]["tolerated"] == tolerated


def twice(X, log_a, B, C):
    return 2 * X, log_a, B, C


def test_an_implementation_is_judged_by_its_own_function_and_arguments(check):
    same = Implementation("same", right, arguments=twice)
    other = Implementation("other", partial(peers.given, torch.add), lambda X, *_: (X, X), lambda x, y: x + y)
    entries = check(replace(OWN, backward=True), same, other, replace(same, name="no", exact=right()), other)
    assert all(entry["tolerated"] for entry in entries.values())
    assert not check(OWN, replace(other, exact=lambda x, y: x - 2 * y))["other"]["tolerated"]


@pytest.mark.full
def test_implementations_run_in_processes_of_their_own():
    implementations = [BACKWARDS[1], LINEAR_ATTENTION[5], Implementation("peer", missing)]
    (part,) = compare([replace(OWN, backward=True)], implementations, 3)
    assert part["problem"] == "T = 128, 2 heads, P = 3, N = 4: forward + backward"
    first, second, peer = part["contestants"].values()
    assert [len(entry["seconds"]) for entry in (first, second)] == [3, 3]
    assert peer == {"absent": "ModuleNotFoundError: No module named 'elsewhere'"}
    assert list(part["speedups"]) == ["linear_attention_recomputed"]
    assert part["speedups"]["linear_attention_recomputed"]["textbook"] > 0


def test_sets_of_inputs_are_used_in_turn():
    seen = []
    run = Run(Implementation("seen", lambda: lambda X, *_: seen.append(X) or X), SHARED, sets=3)
    for _ in range(4):
        run.forward()
    assert len({x.data_ptr() for x in seen}) == 3
    assert seen[3] is seen[0]


def test_recomputing_saves_less_than_every_state(monkeypatch):
    monkeypatch.setattr(implementation, "alone", lambda function, *arguments: function(*arguments))
    problem = replace(OWN, length=512, heads=1, state=16, head_dim=16, backward=True)
    part = memory(problem, [*BACKWARDS, Implementation("peer", missing)])
    assert (part["length"], part["unit"], part["backward"]) == (512, 4 * 512 * 16, True)
    saved = {name: sizes["saved"] for name, sizes in part["bytes"].items()}
    assert list(saved) == [one.name for one in BACKWARDS]
    assert saved["linear_attention_recurrent"] >= 4 * 512 * 16 * 16
    assert saved["linear_attention_recomputed"] == 4 * 512 * (3 * 16 + 1)
    assert 0 < saved["fast.linear_attention"] - saved["linear_attention_recomputed"] <= 4 * 4 * 16 * 16  # borders
