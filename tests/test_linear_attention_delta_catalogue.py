"""The delta rule's family: every model against its own recurrence, in its paper's words, and against fla's."""

import importlib.util
import math
import warnings

import pytest
import torch

from smalearn import fast
from smalearn.linear_attention import (
    DELTA_MODELS,
    generalized_delta_rule_chunked,
    generalized_delta_rule_recurrent,
    l2norm,
)
from smalearn.testing import assert_close, random_tensors

N, P = 4, 3
FORMS = [generalized_delta_rule_recurrent, generalized_delta_rule_chunked, fast.generalized_delta_rule]


def logistic(x):
    return 1 / (1 + torch.exp(-x))


def rate_of(g, a):
    """α of Mamba-2, which all of these take."""
    return torch.exp(-torch.exp(a) * torch.log1p(torch.exp(g)))


def memory(K, V):
    return torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype)  # (N, P), as the papers write it


def deltanet(Q, K, V, z):
    S, Y = memory(K, V), []
    for q, k, v, b in zip(Q, K, V, logistic(z), strict=True):
        old, new = S.T @ k, b * v + (1 - b) * (S.T @ k)
        S = S - torch.outer(k, old) + torch.outer(k, new)
        Y.append(q @ S)
    return torch.stack(Y)


def gated_deltanet(Q, K, V, z, g, a):
    S, one, Y = memory(K, V), torch.eye(K.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        b = logistic(z[t])
        S = rate_of(g[t], a) * (one - b * torch.outer(K[t], K[t])) @ S + b * torch.outer(K[t], V[t])
        Y.append(Q[t] @ S)
    return torch.stack(Y)


def kda(Q, K, V, z, g, a):
    S, one, Y = memory(K, V), torch.eye(K.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        b = logistic(z[t])
        S = (one - b * torch.outer(K[t], K[t])) @ torch.diag(rate_of(g[t], a)) @ S + b * torch.outer(K[t], V[t])
        Y.append(Q[t] @ S)
    return torch.stack(Y)


def comba(Q, K, V, z, g, a, b, d):
    S, Y = memory(K, V), []
    for t in range(len(Q)):
        felt = logistic(b) * K[t]
        new = logistic(z[t]) * (V[t] - S.T @ felt)
        S = rate_of(g[t], a) * S + torch.outer(K[t], new)
        Y.append((Q[t] - d * felt) @ S)
    return torch.stack(Y)


def gated_deltanet2(Q, K, V, g, a, b, w):
    S, one, Y = memory(K, V), torch.eye(K.shape[1], dtype=V.dtype), []
    for t in range(len(Q)):
        S = (one - torch.outer(K[t], logistic(b[t]) * K[t])) @ torch.diag(rate_of(g[t], a)) @ S
        S = S + torch.outer(K[t], logistic(w[t]) * V[t])
        Y.append(Q[t] @ S)
    return torch.stack(Y)


def rwkv7(R, K, V, z, a, xi, alpha):
    S, Y = memory(K, V).T, []  # value by key, and multiplied from the right
    for t in range(len(R)):
        kappa = K[t] * xi[0]
        kappa, rate = kappa / kappa.norm(), logistic(a[t])
        w = torch.exp(-logistic(z[t]) / math.sqrt(math.e))
        S = S @ (torch.diag(w) - torch.outer(kappa, rate * kappa))
        S = S + torch.outer(V[t], K[t] + (rate - 1) * K[t] * alpha[0])
        Y.append(S @ R[t])
    return torch.stack(Y)


TOKEN, KEY, VALUE, HEAD, SHARED = (lambda T: (T,), lambda T: (T, N), lambda T: (T, P), lambda T: (), lambda T: (1, N))
CASES = {
    "DeltaNet": (deltanet, [TOKEN]),
    "Gated DeltaNet": (gated_deltanet, [TOKEN, TOKEN, HEAD]),
    "KDA": (kda, [TOKEN, KEY, HEAD]),
    "Comba": (comba, [TOKEN, TOKEN, HEAD, HEAD, HEAD]),
    "GDN-2": (gated_deltanet2, [KEY, HEAD, KEY, VALUE]),
    "RWKV-7": (rwkv7, [KEY, KEY, SHARED, SHARED]),
}
every_model = pytest.mark.parametrize("name", DELTA_MODELS)


def inputs(name, length, leading=(), dtype=torch.float64):
    shapes = [(*leading, *shape(length)) for shape in (KEY, KEY, VALUE, *CASES[name][1])]
    Q, K, *others = random_tensors(shapes)
    return [x.to(dtype) for x in (Q, l2norm(K, 0.0), *others)]


def test_every_model_has_a_case():
    assert list(CASES) == list(DELTA_MODELS)
    assert all(name == model.name for name, model in DELTA_MODELS.items())


@every_model
@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_a_choice_of_keys(name, form):
    for length in (1, 13, 70):
        operands = inputs(name, length)
        assert_close(DELTA_MODELS[name].run(*operands, form=form)[0], CASES[name][0](*operands))


@every_model
def test_heads_are_independent_and_gates_are_what_the_table_says(name):
    operands, model = inputs(name, 9, (2, 3)), DELTA_MODELS[name]
    Y, state = model.run(*operands)
    assert (Y.shape, state.shape) == ((2, 3, 9, P), (2, 3, P, N))
    assert_close(Y[1, 2], CASES[name][0](*(x[1, 2] for x in operands)))
    log_a = model.keys(*operands).log_a
    assert (None if log_a is None else log_a.ndim) == {"none": None, "scalar": 3, "key": 4}[model.gate]


@every_model
def test_gradients(name):
    operands = [x.requires_grad_() for x in inputs(name, 4)]
    assert torch.autograd.gradcheck(lambda *x: DELTA_MODELS[name].run(*x, form=FORMS[1])[0], operands, fast_mode=True)


@every_model
@pytest.mark.parametrize("size", [20.0, 300.0])
def test_finite_at_extreme_logits(name, size):
    """Up to 20 a decay is e^-40, and Comba's key that reads e^40 times as long; then nothing is left to read."""
    for sign in (-1, 1):
        operands = inputs(name, 9, dtype=torch.float32)
        operands[3:] = [(sign * size * x.sign() if x.ndim else x).requires_grad_() for x in operands[3:]]
        for form in FORMS:
            Y, _ = DELTA_MODELS[name].run(*operands, form=form)
            assert all(x.isfinite().all() for x in (Y, *torch.autograd.grad(Y.sum(), operands[3:])))
        if size < 100:
            assert_close(Y, CASES[name][0](*(x.detach().double() for x in operands)), 2e-5)


def test_against_fla():
    """Its naive programs divide the query by √N, so that ours is 2 Q."""
    if importlib.util.find_spec("fla") is None:
        pytest.skip("needs a peer: fla")
    with warnings.catch_warnings(action="ignore"):  # it warns where there is no GPU
        from fla.ops.comba.naive import naive_chunk_comba
        from fla.ops.gdn2.naive import naive_recurrent_gdn2
        from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence

    def by_time(*tensors):
        return [x.transpose(1, 2) for x in tensors]

    leading, T = (2, 3), 45
    Q, K, V, z, g, a, b, d = inputs("Comba", T, leading, torch.float32)
    _, keys, _, _, _, log_a = DELTA_MODELS["Comba"].keys(Q, K, V, z, g, a, b, d)
    felt = torch.sigmoid(b)[..., None, None] * K
    q, k, v, p, decay, beta = by_time(2 * (Q - d[..., None, None] * felt), K, V, felt, log_a, torch.sigmoid(z))
    Y, _ = naive_chunk_comba(q, k, v, p, decay, beta, chunk_size=16)
    assert_close(DELTA_MODELS["Comba"].run(Q, K, V, z, g, a, b, d)[0], Y.transpose(1, 2)[..., :T, :], 2e-6)

    operands = inputs("GDN-2", T, leading, torch.float32)
    log_a = DELTA_MODELS["GDN-2"].keys(*operands).log_a
    Q, K, V, _, _, b, w = operands
    Y, _ = naive_recurrent_gdn2(*by_time(2 * Q, K, V, log_a, torch.sigmoid(b), torch.sigmoid(w)))
    assert_close(DELTA_MODELS["GDN-2"].run(*operands)[0], Y.transpose(1, 2), 2e-6)

    operands = inputs("RWKV-7", T, leading, torch.float32)
    Q, keys, V, read, erase, log_a = DELTA_MODELS["RWKV-7"].keys(*operands)
    Y, state = dplr_recurrence(2 * Q, keys, V, -read * log_a.exp(), erase, log_a)
    ours = DELTA_MODELS["RWKV-7"].run(*operands, form=generalized_delta_rule_chunked)
    assert_close(ours[0], Y, 2e-6)
    assert_close(ours[1], state.mT, 2e-6)
