"""The way to a right answer: detours are named, other right ways are not."""

import dataclasses
import json

import einops
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smalearn import fast
from smalearn.course.exercises import check, commands, evaluate, registry, report, trace, verify
from smalearn.course.exercises.trace import BUDGET, BYTES
from smalearn.course.exercises.way import LENGTHS, Way
from smalearn.kernel_attention import softmax_weights
from smalearn.linear_attention import linear_attention_chunked
from smalearn.masks import CausalMask
from smalearn.ssd import ssd_chunked
from smalearn.weights import MultiLevelLowRank

EXERCISES = registry()


def dense(Q, K, V):
    return (Q @ K.mT).tril() @ V


def window_of(Q, K, V, window):
    distance = (torch.arange(len(Q))[:, None] - torch.arange(len(Q))).abs()
    return ((Q @ K.mT) * (distance <= window)) @ V


def window_unfolded(Q, K, V, window):
    keys, values = (F.pad(x, (0, 0, window, window)).unfold(0, 2 * window + 1, 1) for x in (K, V))
    return torch.einsum("tn,tnw,tpw->tp", Q, keys, values)


def running(Q, K, V):
    state, rows = torch.zeros(V.shape[1], K.shape[1], dtype=V.dtype), []
    for q, k, v in zip(Q, K, V, strict=True):
        state = state + torch.outer(v, k)
        rows.append(state @ q)
    return torch.stack(rows)


def in_einops(Q, K, V):
    H = einops.einsum(V, K, "t p, t n -> t p n").cumsum(0)
    return einops.einsum(H, Q, "t p n, t n -> t p")


def in_numpy(Q, K, V):
    H = (V.numpy()[:, :, None] * K.numpy()[:, None]).cumsum(0)
    return torch.from_numpy(np.einsum("tpn,tn->tp", H, Q.numpy()))


def in_pairs(Q, K, V):
    return torch.stack([sum((Q[t] @ K[s]) * V[s] for s in range(t + 1)) for t in range(len(Q))])


def without_chunks(Q, K, V, log_a, chunk_len):
    state, rows = V.new_zeros(V.shape[1], K.shape[1]), []
    for q, k, v, a in zip(Q, K, V, log_a, strict=True):
        state = a.exp() * state + torch.outer(v, k)
        rows.append(state @ q)
    return torch.stack(rows)


def decode_from_cache(Q, K, V):
    rows = []
    for t in range(len(Q)):
        w = K[: t + 1] @ Q[t]
        rows.append(w @ V[: t + 1] / w.sum())
    return torch.stack(rows)


def decode_at_once(Q, K, V):
    state = (torch.cat([V, torch.ones_like(V[:, :1])], 1)[:, :, None] * K[:, None]).cumsum(0)
    y = torch.einsum("tpn,tn->tp", state, Q)
    return y[:, :-1] / y[:, -1:]


def decays_pair_by_pair(Q, K, V, log_a, chunk_len):
    """Products of matrices, but the decays of a chunk one after the other."""
    state, rows = V.new_zeros(V.shape[1], K.shape[1]), []
    for q, k, v, a in zip(*(x.split(chunk_len) for x in (Q, K, V, log_a)), strict=True):
        L = a.new_zeros(len(a), len(a))
        for t in range(len(a)):
            for s in range(t + 1):
                L[t, s] = a[s + 1 : t + 1].sum().exp()
        since = a.cumsum(0).exp()
        rows.append((L * (q @ k.mT)) @ v + since[:, None] * (q @ state.mT))
        state = since[-1] * state + (L[-1][:, None] * v).mT @ k
    return torch.cat(rows)


def padded_chunks(Q, K, V, log_a, chunk_len):
    length, rest = len(Q), -len(Q) % chunk_len
    q, k, v = (F.pad(x, (0, 0, 0, rest)).unflatten(0, (-1, chunk_len)) for x in (Q, K, V))
    a = F.pad(log_a, (0, rest)).unflatten(0, (-1, chunk_len))
    L = a[..., None].expand(*a.shape, chunk_len).tril(-1).cumsum(1).exp().tril()
    writes, since = (v * L[:, -1, :, None]).mT @ k, a.cumsum(1).exp()
    states = [torch.zeros_like(writes[0])]
    for fade, write in zip(since[:, -1], writes, strict=True):
        states.append(fade * states[-1] + write)
    past = since[..., None] * (q @ torch.stack(states[:-1]).mT)
    return ((L * (q @ k.mT)) @ v + past).flatten(0, 1)[:length]


def by_library(Q, K, V, log_a, chunk_len):
    return linear_attention_chunked(Q, K, V, log_a, chunk_len=chunk_len)[0]


def ssd_by_library(X, log_a, B, C, state, chunk_len):
    return ssd_chunked(X, log_a, B, C, state, chunk_len=chunk_len)


def by_backward(Q, V, dY):
    K = torch.zeros_like(Q, requires_grad=True)
    with torch.enable_grad():
        (dense(Q, K, V) * dY).sum().backward()
    return K.grad


def by_func(Q, V, dY):
    return torch.func.grad(lambda K: (dense(Q, K, V) * dY).sum())(torch.zeros_like(Q))


def by_loop(Q, V, dY):
    R, rows = torch.zeros(V.shape[1], Q.shape[1], dtype=Q.dtype), []
    for q, v, dy in zip(Q.flip(0), V.flip(0), dY.flip(0), strict=True):
        R = R + torch.outer(dy, q)
        rows.append(R.mT @ v)
    return torch.stack(rows).flip(0)


def toeplitz_dense(column, row, x):
    t = torch.arange(len(column))
    distance = t[:, None] - t
    return torch.where(distance >= 0, column[distance.abs()], row[distance.abs()]) @ x


def toeplitz_complex(column, row, x):
    circle = torch.cat([column, column.new_zeros(1), row[1:].flip(0)])
    return torch.fft.ifft(torch.fft.fft(circle)[:, None] * torch.fft.fft(x, len(circle), dim=0), dim=0).real[: len(x)]


def fading_by_mask(x, gamma):
    t = torch.arange(len(x), dtype=x.dtype)
    return (gamma ** (t[:, None] - t).clamp(min=0)).tril() @ x


def fading_by_doubling(x, gamma):
    y, step = x.clone(), 1
    while step < len(x):
        y = torch.cat([y[:step], y[step:] + gamma**step * y[:-step]])
        step *= 2
    return y


def nystrom_weights(Q, K, landmarks):
    Q_means, K_means = (x.unflatten(0, (landmarks, -1)).mean(1) for x in (Q, K))
    first, middle, last = (q @ k.mT for q, k in ((Q, K_means), (Q_means, K_means), (Q_means, K)))
    return first.softmax(-1) @ torch.linalg.pinv(middle.softmax(-1)) @ last.softmax(-1)


def clamped_differences(log_a, s, border, t):
    sums = log_a.clamp(min=-800).cumsum(0)
    return (sums[border - 1] - sums[s]).exp().item(), (sums[t] - sums[border - 1]).exp().item()


def train_dense(L, R, x):
    b, a = L.shape[:2]
    return torch.einsum("bacs,cdbs->abcd", L, R).reshape(a * b, -1) @ x


def masked(Q, K, size):
    block = torch.arange(len(Q)) // size
    return Q @ K.mT * (block[:, None] == block)


def two_calls(Q, K, V, log_a, dt, share):
    before = [torch.cat([x[:1] * 0, x[:-1]]) for x in (K, V)]
    now = fast.ssd((share * dt)[:, None] * V, log_a, K, Q)[0]
    return now + fast.ssd(((1 - share) * dt * log_a.exp())[:, None] * before[1], log_a, before[0], Q)[0]


def block_by_block(Q, K, size):
    return torch.block_diag(*(q @ k.mT for q, k in zip(Q.split(size), K.split(size), strict=True)))


def in_one_einsum(Q, K, V, horizon):
    angles = torch.pi / (2 * horizon) * torch.arange(len(Q), dtype=Q.dtype)[:, None]
    q, k = (torch.cat([x.relu() * angles.cos(), x.relu() * angles.sin()], dim=1) for x in (Q, K))
    return torch.einsum("tf,sf,sp->tp", q, k, V) / (q @ k.sum(0))[:, None]


def by_vmap(Q, K, V):
    return torch.func.vmap(lambda q, mask: mask * (K @ q) @ V)(Q, torch.ones(len(Q), len(Q)).tril().to(Q))


def train_at_once(L, R, x):
    return torch.einsum("bacs,cdbs,cd->ab", L, R, x.view(len(R), -1)).flatten()


def scores_at_once(X, L, R):
    (b, a), (c, d) = L.shape[:2], R.shape[:2]
    return torch.einsum("tab,bacs,cdbs,ucd->tu", X.view(-1, a, b), L, R, X.view(-1, c, d))


def scores_pair_by_pair(X, L, R):
    Y = torch.stack([train_at_once(L, R, x) for x in X])
    return torch.stack([torch.stack([x @ y for y in Y]) for x in X])


def scores_by_sides(X, L, R):
    Q = torch.einsum("tab,bacs->tbcs", X.view(len(X), -1, len(L)), L)
    return torch.einsum("tbcs,ubcs->tu", Q, torch.einsum("tcd,cdbs->tbcs", X.view(len(X), len(R), -1), R))


def _projected(X, F, ranks, blocks):
    pieces = zip(F.split(ranks, 1), blocks, strict=True)
    return [
        torch.einsum("tpi,pir->tpr", X.unflatten(-1, (p, -1)), F.unflatten(0, (p, -1))).flatten(1) for F, p in pieces
    ]


def level_after_level(X, L, R, ranks, blocks):
    Q, K = (_projected(X, F, ranks, blocks) for F in (L, R))
    return sum(q @ k.mT for q, k in zip(Q, K, strict=True))


def side_by_side(X, L, R, ranks, blocks):
    Q, K = (torch.cat(_projected(X, F, ranks, blocks), 1) for F in (L, R))
    return Q @ K.mT


def from_each_key_on(Q, V, dY):
    """One loop and no large tensor, but T²/2 rows in all."""
    return torch.stack([(dY[s:] @ V[s]) @ Q[s:] for s in range(len(Q))])


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
        ("1.2", lambda Q, K: softmax_weights(Q, K, CausalMask(len(Q))), "`softmax_weights` is smalearn's"),
        ("1.6", window_of, "its largest tensor, (64, 64) for T = 64, grows as T²; it should grow as T"),
        ("2.6", in_one_einsum, "its largest tensor, made inside `einsum`, "),
        ("3.1", by_vmap, "(64, 64) for T = 64, grows as T²"),
        ("3.1", dense, "its largest tensor, (64, 64) for T = 64, grows as T²"),
        ("3.1", running, "calls of torch for T = 32, "),
        ("3.1", in_pairs, "a loop over time inside a loop"),
        ("3.3", by_backward, "it calls `torch.autograd`"),
        ("3.3", from_each_key_on, "handle 1056 numbers for T = 32, 4160 for 64: that grows as T²"),
        ("3.3", by_func, "it calls `torch.autograd"),
        ("3.2", decode_from_cache, "that grows as T²; it should grow as T"),
        ("3.2", decode_at_once, "it calls `torch.Tensor.cumsum`"),
        ("3.5", decays_pair_by_pair, "a loop over time inside a loop"),
        ("3.5", by_library, "`linear_attention_chunked` is smalearn's"),
        ("6.5", ssd_by_library, "`ssd_chunked` is smalearn's"),
        ("3.5", without_chunks, "it does the same work whatever chunk_len is"),
        ("3.7", in_a_cube, "(64, 64, 64) for T = N = 64, grows as T³; it should grow as T²"),
        ("4.1", fading_by_mask, "grows as T²"),
        ("4.3", toeplitz_dense, "it calls no function of `torch.fft`"),
        ("3.3", lambda Q, V, dY: (V @ dY.mT).triu() @ Q, "grows as T²; it should grow as T"),
        ("2.7", lambda Q, K, V, r: nystrom_weights(Q, K, r) @ V, "its largest tensor, (64, 64) for T = 64"),
        ("3.4", clamped_differences, "it subtracts running sums"),
        ("10.2", lambda L, R, r, b, x: MultiLevelLowRank(L, R, r, b)(x), "`MultiLevelLowRank` is smalearn's"),
        ("10.4", train_dense, "grows as D²; it should grow as D"),
        ("10.4", EXERCISES["10.4"].oracle, "a loop over D inside a loop"),
        ("10.4", train_at_once, "its largest tensor, made inside `einsum`, "),
        ("10.5", scores_at_once, "its last product sums over 32 numbers for D = 32, 64 for 64"),
        ("10.5", scores_pair_by_pair, "products of matrices; 3 are enough"),
        ("10.6", level_after_level, "it takes 6 products of matrices; 5 are enough"),
        ("11.3", block_by_block, "a loop over time"),
        ("11.3", masked, "it does the same work whatever size is"),
        ("9.4", two_calls, "it calls `ssd` 2 times"),
        ("9.4", EXERCISES["9.4"].oracle, "it never calls `ssd`"),
    ],
)
def test_a_detour_is_named(id, attempt, said):
    result = evaluate(EXERCISES[id], attempt)
    assert result.outcome == "not as asked"
    assert result.passed == result.cases
    assert any(said in detour for detour in result.detours), result.detours


@pytest.mark.parametrize(
    ("id", "attempt"),
    [
        ("1.6", window_unfolded),
        ("3.1", in_einops),
        ("3.1", in_numpy),  # outside torch nothing is measured, and nothing said
        ("3.3", by_loop),
        ("3.5", padded_chunks),
        ("3.7", faded_keys),
        ("4.1", fading_by_doubling),
        ("4.3", toeplitz_complex),
        ("10.5", scores_by_sides),
        ("10.6", side_by_side),
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
    assert check("3.1", in_pairs) is not in_pairs
    assert "more than 0 times as long as our solution, which later cells use" in capsys.readouterr().out
    record = report.record(evaluate(EXERCISES["3.3"], by_backward))
    assert json.loads(json.dumps(record))["outcome"] == "not as asked"


def test_nothing_is_measured_where_nothing_is_asked():
    assert EXERCISES["1.5"].way is None
    assert Way(case=print).memory is None
