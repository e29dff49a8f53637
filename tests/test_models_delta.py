"""Gated DeltaNet against Qwen3-Next's in transformers: whole sequences, and a prompt read in two parts."""

import inspect

import pytest
import torch
from comparing import all_close
from registry_models import read_on

from smalearn.models import GatedDeltaNet
from smalearn.testing import assert_close, random_tensors


def of_qwen(ours, theirs):
    """Load their weights: rows by key head, each [q, k, v, z] and [b, a], become [z, Q, K, V, b, a] over all heads."""
    N, P, groups, r = ours.state, ours.head_dim, ours.groups, ours.heads_per_group
    by_group = theirs.in_proj_qkvz.weight.unflatten(0, (groups, 2 * N + 2 * r * P))
    Q, K, V, z = (part.flatten(0, 1) for part in by_group.split([N, N, r * P, r * P], 1))
    b, a = (part.flatten(0, 1) for part in theirs.in_proj_ba.weight.unflatten(0, (groups, 2 * r)).split([r, r], 1))
    ours.load_state_dict(
        {
            "in_proj.weight": torch.cat([z, Q, K, V, b, a]),
            "conv.weight": theirs.conv1d.weight,
            "dt_bias": theirs.dt_bias,
            "A_log": theirs.A_log,
            "norm.weight": theirs.norm.weight,
            "out_proj.weight": theirs.out_proj.weight,
        }
    )


@pytest.mark.parametrize(
    ("heads", "groups", "N", "P", "conv_len"), [(3, 3, 8, 8, 4), (6, 2, 16, 4, 4), (4, 1, 5, 7, 2)]
)
def test_it_is_that_of_hugging_face(heads, groups, N, P, conv_len, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="needs a peer: transformers")
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        monkeypatch.setattr(qwen, name, inspect.unwrap(getattr(qwen, name)))  # else fla's program, for a GPU
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        hidden_size=heads * P,
        linear_num_key_heads=groups,
        linear_num_value_heads=heads,
        linear_key_head_dim=N,
        linear_value_head_dim=P,
        linear_conv_kernel_dim=conv_len,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    theirs = qwen.Qwen3NextGatedDeltaNet(config, layer_idx=0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    ours = GatedDeltaNet(heads * P, state=N, head_dim=P, groups=groups, conv_len=conv_len)
    of_qwen(ours, theirs)
    x, weights = random_tensors([(2, 77, heads * P)] * 2, dtype=torch.float32)
    results = []
    for mixer in (ours, theirs):
        leaf = x.clone().requires_grad_()
        y = mixer(leaf)
        results.append([y, *torch.autograd.grad((y * weights).sum(), [leaf, mixer.A_log, mixer.out_proj.weight])])
    all_close(*results, 5e-5)  # float32, and decays of e^-16 in the gradient of A_log
    with torch.no_grad():
        y = theirs(x)
        assert_close(read_on(ours, x, 40, 70), y, 5e-6)
