"""The claims of chapter 03, one test each or more, in the order of claims.toml."""

import inspect
import itertools
import math
import re

import oracles_linear_attention as oracles
import pytest
import torch
from cells import cells
from counting import counted
from oracles_mixing import decays, matrix, pairs, walk_of_slots

from smalearn.contractions import contract, orders
from smalearn.course.timing import saved_bytes
from smalearn.linear_attention import (
    MODELS,
    OTHER_MODELS,
    gated_slot_attention,
    linear_attention_chunked,
    linear_attention_parallel,
    linear_attention_recomputed,
    linear_attention_recurrent,
    linear_attention_step,
    slot_weights,
)
from smalearn.masks import CausalMask
from smalearn.sma import LINEAR, QUADRATIC, SMA, sma_linear, sma_orders, sma_quadratic
from smalearn.testing import assert_close, random_tensors, relative_rms

T, S, N, P = 7, 5, 3, 2
UNMASKED = "TN, SN, SP -> TP"


def qkv(length=T, features=N, head_dim=P, seed=0):
    return random_tensors([(length, features), (length, features), (length, head_dim)], seed=seed)


def causal_loop(Q, K, V):
    """Y_t = Σ_{s ≤ t} (Q_t · K_s) V_s, one pair after the other."""
    return pairs(Q, K, lambda score, t, s: score * (s <= t)) @ V


def gates(*shape, seed=7):
    return -random_tensors([shape], seed=seed)[0].abs()


@pytest.mark.claim("004:linearise", "smalearn.contractions.orders")
@pytest.mark.claim("000:associativity", "smalearn.contractions.orders")
@pytest.mark.claim("002:linear-noncausal", "smalearn.contractions.orders")
@pytest.mark.parametrize(("features", "head_dim"), [(64, 64), (3, 5), (16, 64), (1, 1)])
def test_moving_the_brackets_pays_from_a_length_on(features, head_dim):
    def costs(target, source):
        table = orders(UNMASKED, {"T": target, "S": source, "N": features, "P": head_dim}, names="QKV")
        return table.named("(QK)V").macs, table.named("(KV)Q").macs

    for target, source in ((7, 5), (7, 7), (14, 14)):
        left, right = target * source * (features + head_dim), features * head_dim * (target + source)
        assert costs(target, source) == (left, right)
    for length in range(1, 100):
        left, right = costs(length, length)
        assert (right < left) == (length * (features + head_dim) > 2 * features * head_dim)


@pytest.mark.claim("000:associativity", "smalearn.contractions.Order.run")
@pytest.mark.claim("002:linear-noncausal", "smalearn.contractions.contract")
def test_the_brackets_do_not_change_the_result():
    Q, K, V = random_tensors([(T, N), (S, N), (S, P)])
    expected = pairs(Q, K, lambda score, t, s: score) @ V
    table = orders(UNMASKED, {"T": T, "S": S, "N": N, "P": P}, names="QKV")
    for name in ("(QK)V", "(KV)Q"):
        assert_close(table.named(name).run(Q, K, V), expected)
    assert_close(contract(UNMASKED, Q, K, V), expected)
    assert_close(Q @ torch.stack([sum(K[s, n] * V[s] for s in range(S)) for n in range(N)]), expected)


@pytest.mark.claim("000:eq15a", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq15b", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq15c", "smalearn.contractions.contract")
@pytest.mark.claim("000:eq14", "smalearn.sma.sma_linear")
@pytest.mark.claim("002:causal-linear", "smalearn.linear_attention.parallel.linear_attention_parallel")
@pytest.mark.claim("002:hadamard", "smalearn.sma.sma_linear")
@pytest.mark.claim("004:eq-causal-la", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("004:cumsum-form", "smalearn.contractions.contract")
def test_each_query_reads_its_own_running_sum():
    """The mask stops associativity, but no reordering; the proof of (14) is executed step by step."""
    Q, K, V = qkv()
    L, expected = matrix(lambda t, s: float(s <= t), T), causal_loop(Q, K, V)
    forms = [((Q @ K.mT) * L) @ V, contract(SMA, Q, K, V, L), linear_attention_parallel(Q, K, V)]
    forms += [mode(Q, K, V, mask) for mode in (sma_quadratic, sma_linear) for mask in (L, CausalMask(T))]
    for Y in forms:
        assert_close(Y, expected)
    Z = contract("SP, SN -> SPN", V, K)
    assert_close(Z, torch.stack([torch.outer(v, k) for v, k in zip(V, K, strict=True)]))
    H = contract("TS, SPN -> TPN", L, Z)
    assert_close(H, Z.cumsum(0))
    assert_close(contract("TN, TPN -> TP", Q, H), expected)
    wrong = [Q @ (K.mT @ V), (L @ Q) @ (K.mT @ V), Q @ (K.mT @ (L @ V)), Q @ ((L @ K).mT @ V)]
    for Y in (*wrong, *(Q @ (K.mT @ V).cumsum(axis) for axis in (0, 1))):  # read literally, K^T V has no time axis
        assert relative_rms(Y, expected) > 0.1


@pytest.mark.claim("002:rnn-form", "smalearn.linear_attention.recurrent.linear_attention_recurrent")
@pytest.mark.claim("002:linear-time", "smalearn.linear_attention.recurrent.linear_attention_recurrent")
@pytest.mark.claim("000:prop4.1", "smalearn.linear_attention.recurrent.linear_attention_recurrent")
@pytest.mark.parametrize("length", [1, 10, 20, 40])
def test_constant_work_per_step(length):
    Q, K, V = qkv(length)
    counter, (Y, state) = counted(linear_attention_recurrent, Q, K, V)
    assert_close(Y, causal_loop(Q, K, V))
    assert_close(state, V.mT @ K)
    assert counter.macs == length * 2 * N * P


@pytest.mark.claim("000:eq15a", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:eq15c", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:expand-contract", "smalearn.sma.sma_orders")
@pytest.mark.claim("004:eq-sma-lin", "smalearn.sma.sma_orders")
def test_the_key_expands_and_the_query_contracts():
    first, second, last = sma_orders(T, S, N, P).named(LINEAR).steps
    assert (first.spec, first.macs) == ("SN, SP -> SPN", S * P * N)  # K brings the axis N
    assert set(second.spec.split(" -> ")[1]) == set("TPN")
    assert (last.spec, last.macs) == ("TPN, TN -> TP", T * P * N)  # and Q meets it
    assert [step.output_elements for step in (first, second, last)] == [S * P * N, T * P * N, T * P]


@pytest.mark.claim("000:eq15b-cost", "smalearn.sma.sma_orders")
@pytest.mark.claim("002:hadamard", "smalearn.sma.sma_orders")
def test_an_unstructured_mask_forces_quadratic_cost():
    def order(length, scan=False):
        return sma_orders(length, length, N, P, scan=scan).named(LINEAR)

    assert sma_orders(T, S, N, P).named(LINEAR).steps[1].macs == T * S * N * P
    assert math.log2(order(128).steps[1].macs / order(64).steps[1].macs) == 2
    assert order(2048, scan=True).macs == 2 * order(1024, scan=True).macs == 3 * 2048 * N * P
    assert order(2048).macs / order(1024).macs > 3.99
    for features, head_dim in itertools.product(range(1, 5), repeat=2):
        table = sma_orders(64, 64, features, head_dim)
        cheaper = table.named(LINEAR).macs < table.named(QUADRATIC).macs
        assert cheaper == (features == 1 or head_dim == 1 or features == head_dim == 2)


@pytest.mark.claim("000:cumsum-mask", "smalearn.masks.base.Mask.matmul")
@pytest.mark.claim("000:eq15b-cost", "smalearn.masks.causal.CausalMask.cost")
@pytest.mark.claim("004:cumsum-form", "smalearn.masks.base.Mask.matmul")
@pytest.mark.parametrize("length", [1, 2, 33])
def test_the_mask_is_a_running_sum(length):
    (x,) = random_tensors([(length, 4)])
    product, L = CausalMask(length).matmul(x), torch.ones(length, length, dtype=torch.float64).tril()
    for expected in (torch.stack(list(itertools.accumulate(x))), x.cumsum(0), L @ x):
        assert_close(product, expected)
    assert CausalMask(length).cost(4) == 4 * (length - 1) + 4  # the first entries, which are copied, count there
    identity = torch.eye(length, dtype=torch.float64)
    assert torch.equal(CausalMask(length).matmul(identity), L)
    identity[range(1, length), range(length - 1)] = -1
    assert_close(identity @ product, x)  # the inverse is a difference


@pytest.mark.claim("002:causal-linear", "smalearn.linear_attention.recurrent.linear_attention_step")
def test_decoding_with_the_normaliser():
    Q, K, V = qkv()
    Q, K = Q.exp(), K.exp()
    state, rows = torch.zeros(P + 1, N, dtype=torch.float64), []
    for t, value in enumerate(torch.cat([V, V.new_ones(T, 1)], -1)):
        y, state = linear_attention_step(Q[t], K[t], value, None, state)
        rows.append(y[:-1] / y[-1])
    weights = (Q @ K.mT).tril()
    assert_close(torch.stack(rows), weights @ V / weights.sum(-1, keepdim=True))


@pytest.mark.claim("002:linear-time", "smalearn.linear_attention.recurrent.linear_attention_step")
def test_a_step_costs_the_same_after_any_text():
    for length in (10, 10_000):
        Q, K, V = qkv(length, 8, 4)
        before = V[:-1].mT @ K[:-1]
        counter, (y, state) = counted(linear_attention_step, Q[-1], K[-1], V[-1], None, before)
        assert counter.macs == 2 * 8 * 4
        assert state.numel() == 8 * 4  # a cache of keys and values has length · (8 + 4)
        assert_close(y, (K @ Q[-1]) @ V)


@pytest.mark.claim("002:memory", "smalearn.linear_attention.recompute.linear_attention_recomputed")
@pytest.mark.parametrize(("features", "head_dim"), [(16, 16), (8, 12)])
def test_recomputing_keeps_the_inputs_and_no_state(features, head_dim):
    def kept(function, length):
        Q, K, V = (x.requires_grad_() for x in qkv(length, features, head_dim))
        assert_close(function(Q, K, V)[0], (Q @ K.mT).tril() @ V)
        return saved_bytes(lambda: function(Q, K, V)) / 8

    def per_token(function):
        return (kept(function, 256) - kept(function, 128)) / 128

    assert per_token(linear_attention_recomputed) == 2 * features + head_dim
    assert per_token(linear_attention_recurrent) == features * head_dim + 2 * features + head_dim


@pytest.mark.claim("002:parallelism", "smalearn.linear_attention.chunked.linear_attention_chunked")
def test_chunks_feed_matrix_units():
    Q, K, V = qkv(256, 64, 64)
    expected = (Q @ K.mT).tril() @ V

    def share(counter):
        return sum(macs for macs, least, _ in counter.shapes if least >= 16) / counter.macs

    def intensity(counter):
        """Operations for each byte that an operation reads or writes."""
        return (2 * counter.products + counter.entrywise + counter.additions) / (8 * counter.moved)

    loop, _ = counted(linear_attention_recurrent, Q, K, V)
    assert (share(loop), intensity(loop) < 1) == (0, True)
    intensities = []
    for chunk_len in (2, 8, 64):
        chunked, (Y, _) = counted(linear_attention_chunked, Q, K, V, chunk_len=chunk_len)
        assert_close(Y, expected)
        intensities.append(intensity(chunked))
    assert share(chunked) > 0.98
    assert intensities == sorted(intensities)
    assert intensities[-1] > 20 * intensity(loop)


@pytest.mark.claim("002:chunkwise", "smalearn.linear_attention.chunked.linear_attention_chunked")
@pytest.mark.parametrize("chunk_len", [2, 4, 8, 32])
def test_its_products_cost_what_the_formula_says(chunk_len):
    counts = []
    for length in (32, 64):
        Q, K, V = qkv(length, 5, 3)
        counter, (Y, _) = counted(linear_attention_chunked, Q, K, V, chunk_len=chunk_len)
        assert_close(Y, (Q @ K.mT).tril() @ V)
        counts.append(sum(macs for macs, _, inner in counter.shapes if inner > 1))  # the mask of ones: inner = 1
        assert counts[-1] == length * chunk_len * (5 + 3) + 2 * length * 5 * 3
    assert counts[1] == 2 * counts[0]


@pytest.mark.claim("002:chunkwise", "smalearn.linear_attention.chunked.linear_attention_chunked")
@pytest.mark.parametrize("chunk_len", [1, 3, 4, T])
def test_pairs_inside_and_pairs_through_a_state_are_all_pairs(chunk_len):
    ones, values = torch.ones(T, 1, dtype=torch.float64), torch.eye(T, dtype=torch.float64)
    (inside, through), state = torch.zeros(2, T, T, dtype=torch.float64), None
    for start in range(0, T, chunk_len):
        part = slice(start, start + chunk_len)
        q, v = ones[part], values[part]
        inside[part], _ = linear_attention_chunked(q, q, v)
        through[part], state = linear_attention_chunked(q, q, v, initial_state=state)
        through[part] -= inside[part]
    expected = [[int(s <= t) * (1 if s // chunk_len == t // chunk_len else 2) for s in range(T)] for t in range(T)]
    assert (inside + 2 * through).tolist() == expected
    assert (inside * through == 0).all()


@pytest.mark.claim("002:gla-general", "smalearn.linear_attention.recurrent.linear_attention_recurrent")
def test_a_full_gate_unrolled():
    Q, K, V = qkv()
    log_a = gates(T, P, N)
    log_a[3, 0, 1] = -math.inf  # the interval is closed: 0 is a reset
    assert_close(linear_attention_recurrent(Q, K, V, log_a)[0], oracles.sum_of_products(Q, K, V, log_a))


GATES = {
    "none": {"linear attention"},
    "scalar": {"RetNet", "gated RetNet", "gated RFA", "Mamba-2", "mLSTM"},
    "key": {"GLA", "HGRN2", "RWKV-6", "GateLoop"},
    "full": {"Mamba"},
}


@pytest.mark.claim("002:gla-table", "smalearn.linear_attention.catalogue.RecurrentModel.run")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_a_choice_of_the_gate(name):
    length, model, (oracle, _, rows) = 17, MODELS[name], oracles.CASES[name]
    assert name in GATES[model.gate]
    assert "a matrix product in the place of the gate" in OTHER_MODELS["DeltaNet"]
    for seed in range(3):
        operands = oracles.inputs(name, length, seed=seed)
        Y, state = model.run(*operands)
        assert_close(Y, oracle(*operands))
        features = 8 if name == "GateLoop" else 4
        assert state.shape == (rows, features)
        log_a = model.gates(*operands).log_a
        shapes = {"none": None, "scalar": (length,), "key": (length, features), "full": (length, rows, features)}
        assert (None if log_a is None else log_a.shape) == shapes[model.gate]
        if model.gate != "full":
            for again, found in zip(model.run(*operands, form=linear_attention_chunked), (Y, state), strict=True):
                assert_close(again, found)


@pytest.mark.claim("002:gla-recurrent", "smalearn.linear_attention.recurrent.linear_attention_step")
@pytest.mark.parametrize("head_dim", [P, N])
def test_a_vector_gate_scales_the_key_axis(head_dim):
    q, k, v, S = random_tensors([(N,), (N,), (head_dim,), (head_dim, N)])
    log_a = gates(N)
    alpha, rows = log_a.exp(), S.mT  # 002 has keys in rows
    outer = torch.outer(alpha, torch.ones(head_dim, dtype=torch.float64)) * rows
    for faded in (torch.diag(alpha) @ rows, alpha[:, None] * rows, outer):
        y, state = linear_attention_step(q, k, v, log_a, S)
        assert_close(state.mT, faded + torch.outer(k, v))
        assert_close(y, q @ (faded + torch.outer(k, v)))


@pytest.mark.claim("002:gla-parallel", "smalearn.linear_attention.parallel.linear_attention_parallel")
@pytest.mark.parametrize("head_dim", [P, N])
def test_unrolled_vector_gates(head_dim):
    Q, K, V = qkv(head_dim=head_dim)
    alpha = gates(T, N).exp()

    def unrolled(fade):
        def read(t, i):
            return Q[t] @ fade(alpha[i + 1 : t + 1].prod(0), torch.outer(K[i], V[i]))

        return torch.stack([sum(read(t, i) for i in range(t + 1)) for t in range(T)])

    expected = unrolled(lambda decay, write: torch.diag(decay) @ write)
    assert_close(linear_attention_parallel(Q, K, V, alpha.log()), expected)
    if head_dim == N:  # 002's product, broadcast: it fades the values
        assert relative_rms(unrolled(torch.mul), expected) > 0.1
    else:
        with pytest.raises(RuntimeError, match="must match the size"):
            unrolled(torch.mul)


@pytest.mark.claim("002:gla-chunkwise", "smalearn.linear_attention.chunked.linear_attention_chunked")
@pytest.mark.parametrize("strength", [1, 100])
def test_vector_gates_in_chunks_of_any_length(strength):
    Q, K, V = qkv(13)
    log_a = strength * gates(13, N).clamp(min=-1)
    expected, final = oracles.linear_attention(Q, K, V, log_a)
    for chunk_len in range(1, 15):
        Y, state = linear_attention_chunked(Q, K, V, log_a, chunk_len=chunk_len)
        assert_close(Y, expected)
        assert_close(state, final)
    b = log_a.cumsum(0).exp()
    quotients = ((Q * b) @ (K / b).mT).tril() @ V
    assert bool(quotients.isfinite().all()) == (strength == 1)


@pytest.mark.claim("002:gsa", "smalearn.linear_attention.slots.gated_slot_attention")
@pytest.mark.claim("002:gsa", "smalearn.linear_attention.slots.slot_weights")
@pytest.mark.parametrize("length", [1, 2, 70])
@pytest.mark.parametrize("reset", [0.0, -1e-9, -1e4, -math.inf])
def test_slots_are_two_linear_attentions(length, reset):
    (Q, K, V), log_a, slots = qkv(length), gates(length, 5), 5
    log_a[length // 2, 1] = reset
    expected, weights, keys, values = walk_of_slots(Q, K, V, log_a)
    Y, state = gated_slot_attention(Q, K, V, log_a)
    assert_close(Y, expected)
    assert_close(state[0], keys)
    assert_close(state[1], values.mT)
    assert sum(x.numel() for x in state) == slots * (N + P)  # 2 m d where N = P = d
    assert_close(oracles.linear_attention(weights, 1 - log_a.exp(), V, log_a)[0], Y)
    found, last = slot_weights(Q, K, log_a)
    assert_close(found, weights)
    assert_close(last, keys)
    assert_close(found.sum(-1), torch.ones(length, dtype=torch.float64))


# Family names as arXiv lists them: all of Transformer Quality in Linear Time, the first of Gated Slot Attention.
RECORDS = {"2202.10447": ["Hua", "Dai", "Liu", "Le"], "2409.07146": ["Zhang", "Yang", "Zhu"]}


@pytest.mark.claim("002:references", "smalearn.linear_attention.chunked.linear_attention_chunked")
@pytest.mark.claim("002:references", "smalearn.linear_attention.slots.gated_slot_attention")
def test_the_bibliography_names_the_right_authors():
    closing = list(cells("03").values())[-1].source
    entries = [part for part in re.split(r"; |\n", closing) if "arXiv" in part]
    found = {}
    for entry in entries:
        authors = re.match(r"([\w, ]+?)(?: et al\.)? \d{4}", entry.removeprefix("**Further reading:** "))
        found[re.search(r"arXiv ([\d.]+)", entry)[1]] = authors[1].split(", ")
    assert found == RECORDS
    Q, K, V = qkv()
    for function, work in ((linear_attention_chunked, "2202.10447"), (gated_slot_attention, "2409.07146")):
        assert f"{RECORDS[work][0]} et al. {'20' + work[:2]}" in inspect.getdoc(function).partition("Source:")[2]
    assert_close(linear_attention_chunked(Q, K, V, chunk_len=3)[0], causal_loop(Q, K, V))
    assert_close(gated_slot_attention(Q, K, V, gates(T, 4))[0], walk_of_slots(Q, K, V, gates(T, 4))[0])


@pytest.mark.claim("004:eq-sma-lin", "smalearn.sma.sma_linear")
@pytest.mark.claim("004:associativity-special-case", "smalearn.sma.sma_linear")
def test_linear_form_for_any_mask():
    """Only under a mask of ones do the brackets move: then all rows of H are K^T V."""
    Q, K, V, dense = random_tensors([(T, N), (T, N), (T, P), (T, T)])
    ones = torch.ones_like(dense)
    kinds = {"dense": dense, "causal": ones.tril(), "1-semiseparable": decays(gates(T).exp()), "ones": ones}
    for kind, L in kinds.items():
        expected = torch.einsum("ts,sp->tp", torch.einsum("tn,sn->ts", Q, K) * L, V)
        assert_close(sma_linear(Q, K, V, L), expected)
        assert (relative_rms(Q @ (K.mT @ V), expected) < 1e-12) == (kind == "ones")
    for unit, column in zip(torch.eye(N, dtype=torch.float64), K.mT @ V, strict=True):  # queries that read one out of H
        assert_close(sma_linear(unit.expand(T, N), K, V, ones), column.expand(T, P))
