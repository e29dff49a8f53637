"""The readable forms of the delta rule in float32 and against other packages."""

import importlib.util
import inspect
import warnings

import pytest
import torch
from oracles_delta import alike, check_float32, inputs

from smalearn import ShapeError
from smalearn.linear_attention import delta_rule_chunked, delta_rule_recurrent, l2norm
from smalearn.testing import assert_close, random_tensors


def chunks_of(length):
    return lambda *operands: delta_rule_chunked(*operands, chunk_len=length)


FORMS = {
    "recurrent": delta_rule_recurrent,
    "chunks of 1": chunks_of(1),
    "chunks of 7": chunks_of(7),
    "chunks of 32": delta_rule_chunked,
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@every_form
@pytest.mark.parametrize("strength", [1e-3, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["none", "resets"])
def test_float32_with_unit_keys(form, strength, kind):
    """A reflection keeps all earlier rounding: with β = 2 and no decay a chunk of 32 comes to twice the loop's."""
    times = 2.3 if form is delta_rule_chunked and strength == 2 and kind == "none" else 2
    check_float32(form, inputs(300, kind, (4,), state=16, head_dim=8, strength=strength), times)


@every_form
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
@pytest.mark.parametrize(("strength", "times"), [(1.0, 2), (1.5, 4), (2.0, 20)])
def test_float32_with_keys_that_are_alike(form, strength, times, seed):
    """With β = 2 entries of (I + A)^-1 that are large cancel: a chunk of 32 comes to 16 times the loop's error."""
    check_float32(form, [x.double() for x in alike(300, 0.05, strength, seed)], times)


def test_against_fla():
    if importlib.util.find_spec("fla") is None:
        pytest.skip("needs a peer: fla")
    with warnings.catch_warnings(action="ignore"):  # it warns where there is no GPU
        from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
        from fla.ops.kda.naive import naive_recurrent_kda

    Q, K, V, beta, log_a, H = inputs(45, leading=(2, 3), dtype=torch.float32)
    (gate,) = random_tensors([(2, 3, 45, 4)], seed=3, dtype=torch.float32)
    gate = -gate.abs()
    for theirs, decay in ((naive_recurrent_gated_delta_rule, log_a), (naive_recurrent_kda, gate)):
        q, k, v, b, g = (x.transpose(1, 2) for x in (Q, K, V, beta, decay))
        Y, state = theirs(q, k, v, beta=b, g=g, scale=1.0, initial_state=H.mT, output_final_state=True)
        ours = delta_rule_chunked(Q, K, V, beta, decay, H)
        assert_close(ours[0], Y.transpose(1, 2), 2e-6)
        assert_close(ours[1], state.mT, 2e-6)


def test_against_transformers():
    pytest.importorskip("transformers", reason="needs a peer: transformers")
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    Q, K, V, beta, log_a, H = inputs(77, leading=(2, 3), dtype=torch.float32)
    q, k, v, b, g = (x.transpose(1, 2) for x in (2 * Q, K, V, beta, log_a))  # it divides queries by √4
    Y, state = inspect.unwrap(torch_chunk_gated_delta_rule)(
        q, k, v, g=g, beta=b, initial_state=H.mT, output_final_state=True
    )
    ours = delta_rule_chunked(Q, K, V, beta, log_a, H)
    assert_close(ours[0], Y.transpose(1, 2), 2e-6)
    assert_close(ours[1], state.mT, 2e-6)


def test_l2norm():
    (x,) = random_tensors([(3, 5)])
    assert_close(l2norm(x, 0.0), torch.nn.functional.normalize(x, dim=-1))
    assert not l2norm(torch.zeros(2, 3)).any()
    with pytest.raises(ValueError, match="l2norm: eps"):
        l2norm(x, -1)


@every_form
def test_a_full_gate_is_refused(form):
    Q, K, V, beta, _, H = inputs(6)
    with pytest.raises(ShapeError, match="log_a must have axes"):
        form(Q, K, V, beta, -torch.ones(6, 3, 4, dtype=torch.float64), H)
