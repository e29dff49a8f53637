"""Published weights: logits of transformers, from folders that it writes, and from two that our own code writes."""

import json
import math
import sys

import pytest
import torch
from registry_models import read_on

from smalearn.data import trained
from smalearn.models import Block, Mamba1, Mamba2, SequenceModel
from smalearn.models.load import load
from smalearn.testing import assert_close, relative_rms

TOKENS = torch.randint(96, (2, 37), generator=torch.Generator().manual_seed(0))
MAMBA2 = {"hidden_size": 24, "state_size": 16, "head_dim": 8, "num_heads": 6, "n_groups": 2, "num_hidden_layers": 2}
MAMBA2 |= {"vocab_size": 96, "chunk_size": 16}
GRANITE = {"hidden_size": 32, "vocab_size": 96, "num_hidden_layers": 3, "num_local_experts": 0, "mamba_chunk_size": 16}
GRANITE |= {"layer_types": ["mamba", "attention", "mamba"], "num_attention_heads": 4, "num_key_value_heads": 2}
GRANITE |= {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_d_conv": 4}
GRANITE |= {"shared_intermediate_size": 48, "position_embedding_type": "nope"}
GRANITE |= {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3}
FAMILIES = {
    "Mamba2": MAMBA2,
    "Mamba2, tied": MAMBA2 | {"use_bias": True, "tie_word_embeddings": True, "time_step_limit": (0.01, 0.05)},
    "Mamba2, other eps": MAMBA2 | {"layer_norm_epsilon": 1e-6, "n_groups": 1},
    "Mamba": {"hidden_size": 24, "state_size": 8, "num_hidden_layers": 2, "vocab_size": 96},
    "GraniteMoeHybrid": GRANITE,
    "GraniteMoeHybrid, tied": GRANITE | {"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
}


def enlarged(model):
    """Make a model's weights so large that errors show, and decays and steps differ."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(3 * parameter if parameter.ndim > 1 and parameter.std() < 0.5 else parameter + 0.2 * noise)
    return model


@pytest.fixture
def theirs(request, tmp_path, monkeypatch):
    """A model of transformers, and the folder that it wrote."""
    transformers = pytest.importorskip("transformers", reason="needs a peer: transformers")
    monkeypatch.setitem(sys.modules, "fla", None)  # whose kernels need a GPU
    config = getattr(transformers, request.param.partition(",")[0] + "Config")(**FAMILIES[request.param])
    torch.manual_seed(0)
    enlarged(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(tmp_path)
    return transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval(), tmp_path


@pytest.mark.parametrize("theirs", FAMILIES, indirect=True)
def test_logits_are_those_of_transformers(theirs):
    theirs, folder = theirs
    ours = load(folder)
    with torch.inference_mode():
        expected = theirs(TOKENS).logits
        assert expected.abs().max() > 0.5  # not a model that says nothing
        assert_close(ours(TOKENS), expected, 1e-5)
        assert_close(read_on(ours, TOKENS, 11, 21), expected, 1e-5)
    has_multipliers = "granite" in theirs.config.model_type  # which make two weights of the tied one
    assert (ours.head.weight is ours.embedding.weight) == (theirs.config.tie_word_embeddings and not has_multipliers)


@pytest.mark.parametrize("theirs", ["Mamba2", "Mamba", "GraniteMoeHybrid"], indirect=True)
def test_half_precision_rounds_as_transformers_does(theirs):
    theirs, folder = theirs
    with torch.inference_mode():
        exact = load(folder).bfloat16().double()(TOKENS)  # of the weights as they are rounded
        rounded = load(folder).bfloat16()(TOKENS), theirs.bfloat16()(TOKENS).logits
    ours, peer = (relative_rms(x.double(), exact) for x in rounded)
    assert ours <= 1.3 * peer


def written(folder, model, config, names):
    """Write a checkpoint of our own model by the names of another library."""
    weights = {}
    for name, weight in model.state_dict().items():
        for ours, other in names.items():
            name = name.replace(ours, other) if name.startswith(ours) or "conv." in ours else name
        weights[name] = weight
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


THEIR_NAMES = {"embedding.": "backbone.embeddings.", "blocks.": "backbone.layers.", "norm.": "backbone.norm_f."}
THEIR_NAMES |= {"head.": "lm_head.", ".conv.": ".conv1d."}


def test_a_folder_of_our_own(tmp_path):
    blocks = [Block(Mamba2(24, 16, 8, heads=3, groups=3, bias=True, eps=1e-6), eps=1e-6) for _ in range(2)]
    model = enlarged(SequenceModel(96, blocks, eps=1e-6))
    for block in model.blocks:
        block.mixer.dt_limits = (0.01, math.inf)
    config = MAMBA2 | {"model_type": "mamba2", "num_heads": 3, "n_groups": 3, "expand": 2, "conv_kernel": 4}
    config |= {"use_bias": True, "layer_norm_epsilon": 1e-6, "time_step_limit": [0.01, {"__float__": "Infinity"}]}
    written(tmp_path, model, config, THEIR_NAMES)
    ours = load(tmp_path)
    assert torch.equal(ours(TOKENS), model(TOKENS))
    assert not ours.training


@pytest.mark.parametrize("mixer", [Mamba2(64, 16, 64), Mamba1(64, 16)], ids=["mamba2", "mamba"])
def test_a_folder_of_the_older_form(tmp_path, mixer):
    """Config of state-spaces: a tied head, and a vocabulary that is padded."""
    model = enlarged(SequenceModel(96, [Block(mixer)], tied=True))
    layer = {"layer": "Mamba2", "d_state": 16} if isinstance(mixer, Mamba2) else {}
    config = {"d_model": 64, "n_layer": 1, "vocab_size": 91, "ssm_cfg": layer, "pad_vocab_size_multiple": 16}
    written(tmp_path, model, config, THEIR_NAMES | {"embedding.": "backbone.embedding."})
    ours = load(str(tmp_path))
    assert_close(ours(TOKENS), model(TOKENS))
    assert ours.head.weight is ours.embedding.weight


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "falcon_h1"}, "model_type must be one of mamba2, mamba, granitemoehybrid, got 'falcon_h1'"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"use_conv_bias": False}, "use_conv_bias must be True, got False"),
        ({"num_hidden_layers": 2}, r"the weights do not fit their config: .*blocks\.1"),
        ({"state_size": 8}, "the weights do not fit their config: .*size mismatch"),
        ({"d_model": 64, "n_layer": 1, "attn_layer_idx": [0]}, "attn_layer_idx of a model of state-spaces"),
    ],
)
def test_what_is_not_built_here_is_refused_by_name(tmp_path, change, said):
    model = SequenceModel(96, [Block(Mamba2(24, 16, 8))])
    config = MAMBA2 | {"model_type": "mamba2", "expand": 2, "n_groups": 1, "conv_kernel": 4, "num_hidden_layers": 1}
    config |= {"use_bias": False, "layer_norm_epsilon": 1e-5, "time_step_limit": [0.0, 1.0]}
    written(tmp_path, model, config | change, THEIR_NAMES)
    with pytest.raises(ValueError, match=f"(?s)load: {said}"):
        load(tmp_path)


def test_a_name_without_a_library_or_a_network(tmp_path, monkeypatch):
    for missing in (tmp_path / "no/where", str(tmp_path / "no/where"), "./no/where", "nowhere"):
        with pytest.raises(FileNotFoundError, match="load: there is no folder "):
            load(missing)
    with pytest.raises(FileNotFoundError, match=r"load: .* has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mamba2"}', encoding="utf-8")
    with pytest.raises(OSError, match=r"load: .* has no \*\.safetensors and no \*\.bin"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes((trained("shakespeare")[0] / "pytorch_model.bin").read_bytes()[:5000])
    with pytest.raises(OSError, match=r"load: .*pytorch_model\.bin cannot be read: "):
        load(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'load: \'no/where\' is no folder, .* pip install "smalearn\[weights\]"'):
        load("no/where")
