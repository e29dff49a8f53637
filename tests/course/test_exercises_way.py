"""The way to a right answer: detours are named, other right ways are not; those of readers are in attempts.json."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from smalearn import fast
from smalearn.course.exercises import check, commands, evaluate, registry, report, trace, verify
from smalearn.course.exercises.trace import BUDGET, BYTES
from smalearn.course.exercises.way import LENGTHS, Way

EXERCISES = registry()


def dense(Q, K, V):
    return (Q @ K.mT).tril() @ V


def in_numpy(Q, K, V):
    H = (V.numpy()[:, :, None] * K.numpy()[:, None]).cumsum(0)
    return torch.from_numpy(np.einsum("tpn,tn->tp", H, Q.numpy()))


def decode_at_once(Q, K, V):
    state = (torch.cat([V, torch.ones_like(V[:, :1])], 1)[:, :, None] * K[:, None]).cumsum(0)
    y = torch.einsum("tpn,tn->tp", state, Q)
    return y[:, :-1] / y[:, -1:]


def by_backward(Q, V, dY):
    K = torch.zeros_like(Q, requires_grad=True)
    with torch.enable_grad():
        (dense(Q, K, V) * dY).sum().backward()
    return K.grad


def fading_by_mask(x, gamma):
    t = torch.arange(len(x), dtype=x.dtype)
    return (gamma ** (t[:, None] - t).clamp(min=0)).tril() @ x


def fading_by_doubling(x, gamma):
    y, step = x.clone(), 1
    while step < len(x):
        y = torch.cat([y[:step], y[step:] + gamma**step * y[:-step]])
        step *= 2
    return y


def nystrom(Q, K, V, landmarks):
    """Our factors, multiplied from the left."""
    Q_means, K_means = (x.unflatten(0, (landmarks, -1)).mean(1) for x in (Q, K))
    first, middle, last = (q @ k.mT for q, k in ((Q, K_means), (Q_means, K_means), (Q_means, K)))
    return first.softmax(-1) @ torch.linalg.pinv(middle.softmax(-1)) @ last.softmax(-1) @ V


def clamped_differences(log_a, s, border, t):
    sums = log_a.clamp(min=-800).cumsum(0)
    return (sums[border - 1] - sums[s]).exp().item(), (sums[t] - sums[border - 1]).exp().item()


def masked(Q, K, size):
    block = torch.arange(len(Q)) // size
    return Q @ K.mT * (block[:, None] == block)


def two_calls(Q, K, V, log_a, dt, share):
    before = [torch.cat([x[:1] * 0, x[:-1]]) for x in (K, V)]
    now = fast.ssd((share * dt)[:, None] * V, log_a, K, Q)[0]
    return now + fast.ssd(((1 - share) * dt * log_a.exp())[:, None] * before[1], log_a, before[0], Q)[0]


def by_vmap(Q, K, V):
    return torch.func.vmap(lambda q, mask: mask * (K @ q) @ V)(Q, torch.ones(len(Q), len(Q)).tril().to(Q))


def level_after_level(X, L, R, ranks, blocks):
    scores = 0
    for left, right, p in zip(L.split(ranks, 1), R.split(ranks, 1), blocks, strict=True):
        q, k = (torch.einsum("tpi,pir->tpr", X.unflatten(-1, (p, -1)), F.unflatten(0, (p, -1))) for F in (left, right))
        scores = scores + q.flatten(1) @ k.flatten(1).mT
    return scores


def in_a_cube(Q, K, log_a):
    """Every decay of every feature at once."""
    later = torch.ones(len(Q), len(Q)).tril(-1)[..., None] > 0
    decays = torch.where(later, log_a[:, None], 0.0).cumsum(0).exp()
    return torch.einsum("tn,sn,tsn->ts", Q, K, decays).tril()


def faded_keys(Q, K, log_a):
    """One loop: the keys so far fade by the new gate, and the new query reads them."""
    faded, scores = K[:0], Q.new_zeros(len(Q), len(Q))
    for t in range(len(Q)):
        faded = torch.cat([faded * log_a[t].exp(), K[t : t + 1]])
        scores[t, : t + 1] = faded @ Q[t]
    return scores


@pytest.mark.parametrize(
    ("id", "attempt", "said"),
    [
        ("2.7", nystrom, "its largest tensor, (64, 64) for T = 64"),
        ("3.1", by_vmap, "(64, 64) for T = 64, grows as T²"),
        ("3.2", decode_at_once, "it calls `torch.Tensor.cumsum`"),
        ("3.3", by_backward, "it calls `torch.autograd`"),
        ("3.4", clamped_differences, "it subtracts running sums"),
        ("3.7", in_a_cube, "(64, 64, 64) for T = N = 64, grows as T³; it should grow as T²"),
        ("4.1", fading_by_mask, "grows as T²"),
        ("9.4", two_calls, "it calls `ssd` 2 times"),
        ("10.4", EXERCISES["10.4"].oracle, "a loop over D inside a loop"),
        ("10.6", level_after_level, "it takes 6 products of matrices; 5 are enough"),
        ("11.3", masked, "it does the same work whatever size is"),
    ],
)
def test_a_detour_that_no_reader_took_is_named(id, attempt, said):
    result = evaluate(EXERCISES[id], attempt)
    assert result.outcome == "not as asked"
    assert result.passed == result.cases
    assert any(said in detour for detour in result.detours), result.detours


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("3.1", in_numpy),  # outside torch nothing is measured, and nothing said
        ("3.7", faded_keys),
        ("4.1", fading_by_doubling),
    ],
)
def test_another_right_way_is_none(id, attempt):
    assert evaluate(EXERCISES[id], attempt).outcome == "passed"


def test_a_large_tensor_ends_the_measurement():
    def attempt(Q, K, V):
        if len(Q) == 64:
            torch.empty(BYTES, dtype=torch.float64)
            raise KeyboardInterrupt  # not reached
        return EXERCISES["3.1"].solution(Q, K, V)

    assert "passes 64 MB" in evaluate(EXERCISES["3.1"], attempt).detours[0]


def test_a_loop_that_passes_the_budget_at_both_lengths_is_named():
    def attempt(Q, K, V):
        for _ in range(BUDGET * (len(Q) >= LENGTHS[0])):
            V.sum()
        return EXERCISES["3.1"].solution(Q, K, V)

    counts = f"more than {BUDGET} calls of torch for T = {LENGTHS[0]}, more than {BUDGET} for {LENGTHS[1]}"
    assert any(counts in said for said in evaluate(EXERCISES["3.1"], attempt).detours)


@pytest.mark.parametrize(
    ("longer", "outcome", "said"),
    [
        (lambda y: y[999], "error", "not one with T = 32: your code raised an exception"),
        (lambda y: y.index_fill(0, torch.arange(12, len(y)), 0), "failed", "not one with T = 32: wrong values"),
        (
            lambda y: y if len(y) < 64 else y.float(),
            "failed",
            "not one with T = 64: the values are right, but in float",
        ),
    ],
)
def test_what_is_wrong_at_the_lengths_of_the_way_is_wrong(longer, outcome, said):
    def attempt(Q, K, V):
        y = EXERCISES["3.1"].solution(Q, K, V)
        return longer(y) if len(Q) >= 32 else y

    result = evaluate(EXERCISES["3.1"], attempt)
    assert result.outcome == outcome
    assert result.problem.sentence.startswith(f"All 5 cases are right, but {said}")
    assert result.problem.sentence in " ".join(report.render(result).split())


def test_what_is_not_done_in_time_at_these_lengths_is_told(monkeypatch):
    def attempt(Q, K, V):
        while len(Q) >= 64:
            pass
        return EXERCISES["3.1"].solution(Q, K, V)

    monkeypatch.setattr(trace, "LIMIT", 0.5)
    assert evaluate(EXERCISES["3.1"], attempt).detours == ("it is not done with T = 64 in 10 s",)


def test_a_solution_must_go_its_own_way():
    strict = dataclasses.replace(EXERCISES["3.2"], way=dataclasses.replace(EXERCISES["3.2"].way, loops=0))
    assert "the solution has the outcome 'not as asked': it makes" in verify(strict, seeds=[0])[0]


def test_check_says_so_and_takes_what_is_nearly_as_fast(capsys, monkeypatch):
    monkeypatch.setattr(commands, "SLOWER", 1e9)
    assert check("3.3", by_backward) is by_backward
    text = capsys.readouterr().out
    assert text.startswith(
        "◐ 3.3 A gradient is linear attention: all 5 cases are right, but not found as asked (seed 0)\n"
    )
    assert "  → It calls `torch.autograd`\n" in text
    assert text.endswith("  Later cells use yours.\n")
    monkeypatch.setattr(commands, "SLOWER", 0)
    assert check("3.1", dense) is not dense
    assert "more than 0 times as long as our solution, which later cells use" in capsys.readouterr().out
    record = report.record(evaluate(EXERCISES["3.3"], by_backward))
    assert json.loads(json.dumps(record))["outcome"] == "not as asked"


def test_ours_and_yours_are_timed_in_turns():
    """So that a machine that is busy for a while makes both slow."""
    calls = []
    commands._seconds(lambda: calls.append("ours"), lambda: calls.append("yours"), ())
    assert calls == ["ours", "yours"] * 7


def test_nothing_is_measured_where_nothing_is_asked():
    assert EXERCISES["1.5"].way is None
    assert Way(case=print).memory is None
