"""Published weights as a `SequenceModel`: Mamba-2, Mamba, and the dense hybrids of Granite 4."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from smalearn._checks import check_type
from smalearn.models.attention import SoftmaxAttention
from smalearn.models.mamba1 import Mamba1
from smalearn.models.mamba2 import Mamba2
from smalearn.models.stack import Block, SequenceModel

NAMES = {
    "backbone.": "",
    "model.": "",
    "embeddings.": "embedding.",
    "embed_tokens.": "embedding.",
    "layers.": "blocks.",
    "norm_f.": "norm.",
    "lm_head.": "head.",
    "conv1d.": "conv.",
    "input_layernorm.": "norm.",
    "post_attention_layernorm.": "mlp.0.",
    "shared_mlp.input_linear.": "mlp.1.up.",
    "shared_mlp.output_linear.": "mlp.1.down.",
    "self_attn.": "mixer.",
    "mamba.": "mixer.",
    "o_proj.": "out_proj.",
}
"""Parts of a parameter's name, theirs and ours."""


class SwiGLU(nn.Module):
    """The gated MLP of today's Transformers: (SiLU(x G) ∘ x U) W for x (..., D), with G and U in one projection."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it to (..., D)."""
        gate, up = self.up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


def load(folder_or_name: str | Path) -> SequenceModel:
    """Load a published model: its logits are those of transformers, up to rounding.

    It is a `SequenceModel`, which has `prefill`, `step` and `start` for decoding, and takes a `reset` for padded and
    packed texts; `generate(model, tokens, length)` writes. Tokens are numbers: their tokenizer is not loaded.

    Args:
        folder_or_name: a folder with `config.json` and weights (`*.safetensors` or `*.bin`), as transformers'
            `save_pretrained` and the older repositories of state-spaces have them; or the name of a repository, such as
            "state-spaces/mamba2-130m", which comes through huggingface_hub (`pip install "smalearn[weights]"`).
            Its `model_type` is mamba2, mamba, or granitemoehybrid without experts.

    Returns:
        The model, in evaluation mode and in the dtype of the file: `.float()` where that is half precision.

    Raises:
        FileNotFoundError: there is no such folder, or it lacks a file.
        ImportError: a name, or a file of safetensors, without the libraries to read it.
        OSError: the name cannot be fetched, or a file is damaged.
        ValueError: another family, an option of it that is not built here, or weights that do not fit. Nothing is
            loaded by half.

    Example:
        >>> from smalearn.data import trained
        >>> from smalearn.models import generate, load
        >>> folder, vocabulary = trained("shakespeare")
        >>> model = load(folder).float()
        >>> new, cache = generate(model, vocabulary.encode("ROMEO:"), 20)
        >>> vocabulary.decode(new).strip()
        'I will not be so ba'
    """
    check_type("load", "folder_or_name", folder_or_name, str, Path)
    folder = Path(folder_or_name)
    if not folder.is_dir():
        if isinstance(folder_or_name, Path) or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", folder_or_name):
            raise FileNotFoundError(f"load: there is no folder {folder}")
        folder = _fetched(folder_or_name)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"load: {folder} has no config.json")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"), object_hook=_numbers)
    if "d_model" in config:
        config = _of_state_spaces(config)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"load: model_type must be one of {', '.join(FAMILIES)}, got {family!r}")
    weights = _read(folder)
    with torch.device("meta"):  # nothing is drawn for weights that are read
        blocks = FAMILIES[family](config, weights)
        eps = config.get("layer_norm_epsilon", config.get("rms_norm_eps", 1e-5))
        model = SequenceModel(len(weights["embedding.weight"]), blocks, eps=eps)
    tied = _fold_ends(config, weights)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"load: the weights do not fit their config: {error}") from None
    if tied:
        model.head.weight = model.embedding.weight
    return model.eval()


def _mamba2(config: Mapping, weights: dict) -> list[Block]:
    _only(config, use_conv_bias=True, hidden_act="silu")
    names = ("hidden_size", "state_size", "head_dim", "expand", "n_groups", "conv_kernel", "num_heads")
    sizes, eps = [config[name] for name in names], config["layer_norm_epsilon"]

    def block():
        mixer = Mamba2(*sizes, eps=eps, bias=config["use_bias"])
        mixer.dt_limits = tuple(config["time_step_limit"])
        return Block(mixer, eps=eps)

    return [block() for _ in range(config["num_hidden_layers"])]


def _mamba1(config: Mapping, weights: dict) -> list[Block]:
    _only(config, use_conv_bias=True, hidden_act="silu")
    names = ("hidden_size", "state_size", "expand", "time_step_rank", "conv_kernel", "use_bias")
    sizes, eps = [config[name] for name in names], config["layer_norm_epsilon"]
    return [Block(Mamba1(*sizes), eps=eps) for _ in range(config["num_hidden_layers"])]


def _granite(config: Mapping, weights: dict) -> list[Block]:
    """Mamba-2 or attention in each block, then a gated MLP; the multiplier of a block goes into its last weights."""
    _only(config, num_local_experts=0, position_embedding_type=("nope", None), attention_bias=False)
    _only(config, mamba_conv_bias=True, hidden_act="silu")
    dim, eps = config["hidden_size"], config["rms_norm_eps"]
    names = ("mamba_d_state", "mamba_d_head", "mamba_expand", "mamba_n_groups", "mamba_d_conv", "mamba_n_heads")
    sizes = [config[name] for name in names]

    def block(i):
        place = f"blocks.{i}."
        if f"{place}mixer.A_log" in weights:
            mixer = Mamba2(dim, *sizes, eps=eps, bias=config["mamba_proj_bias"])
        else:
            mixer = SoftmaxAttention(dim, config["num_attention_heads"], groups=config["num_key_value_heads"])
            mixer.scales = (config["attention_multiplier"],)
            parts = [weights.pop(f"{place}mixer.{name}_proj.weight") for name in "qkv"]
            weights[f"{place}mixer.in_proj.weight"] = torch.cat(parts)
        for name in (f"{place}mixer.out_proj.weight", f"{place}mixer.out_proj.bias", f"{place}mlp.1.down.weight"):
            if name in weights:
                weights[name] = weights[name] * config["residual_multiplier"]
        return Block(mixer, SwiGLU(dim, config["shared_intermediate_size"]), eps=eps)

    return [block(i) for i in range(config["num_hidden_layers"])]


FAMILIES = {"mamba2": _mamba2, "mamba": _mamba1, "granitemoehybrid": _granite}


def _of_state_spaces(config: Mapping) -> dict:
    """Say the older config in the words of transformers; its sizes are those of the classes of mamba_ssm."""
    layer = dict(config.get("ssm_cfg") or {})
    is_second = layer.pop("layer", "Mamba1") == "Mamba2"
    dim, expand, head_dim = config["d_model"], layer.pop("expand", 2), layer.pop("headdim", 64)
    said = {
        "model_type": "mamba2" if is_second else "mamba",
        "hidden_size": dim,
        "num_hidden_layers": config["n_layer"],
        "state_size": layer.pop("d_state", 128 if is_second else 16),
        "head_dim": head_dim,
        "num_heads": expand * dim // head_dim,
        "expand": expand,
        "n_groups": layer.pop("ngroups", 1),
        "conv_kernel": layer.pop("d_conv", 4),
        "time_step_rank": -(-dim // 16),
        "time_step_limit": layer.pop("dt_limit", (0.0, float("inf"))),
        "tie_word_embeddings": config.get("tie_embeddings", True),
    }
    others = {name: config.get(name) for name in ("attn_layer_idx", "attn_cfg", "d_intermediate")}
    unknown = layer | {name: value for name, value in others.items() if value}
    if unknown:
        raise ValueError(f"load: {', '.join(unknown)} of a model of state-spaces are not built here")
    return said | {"use_bias": False, "use_conv_bias": True, "hidden_act": "silu", "layer_norm_epsilon": 1e-5}


def _fold_ends(config: Mapping, weights: dict) -> bool:
    """Put the multipliers of embedding and logits into their weights; say whether head and embedding are still one."""
    embedding, tied = weights["embedding.weight"], config.get("tie_word_embeddings", "head.weight" not in weights)
    before, after = config.get("embedding_multiplier", 1), config.get("logits_scaling", 1)
    weights["head.weight"] = (embedding if tied else weights["head.weight"]) / after
    weights["embedding.weight"] = embedding * before
    return tied and before == after == 1


def _only(config: Mapping, **options: object) -> None:
    """Refuse an option that is not built here."""
    for name, values in options.items():
        allowed = values if isinstance(values, tuple) else (values,)
        if config.get(name, allowed[0]) not in allowed:
            raise ValueError(f"load: {name} must be {allowed[0]!r}, got {config[name]!r}: no other is built here")


def _read(folder: Path) -> dict[str, torch.Tensor]:
    """Read all weights of a folder, by our names."""
    weights = {}
    if files := sorted(folder.glob("*.safetensors")):
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise ImportError(f'load: {files[0].name} needs safetensors; pip install "smalearn[weights]"') from None
        for file in files:
            weights |= _whole(load_file, file)
    for file in [] if files else sorted(folder.glob("*.bin")):
        weights |= _whole(partial(torch.load, map_location="cpu", weights_only=True), file)
    if not weights:
        raise FileNotFoundError(f"load: {folder} has no *.safetensors and no *.bin")
    return {_renamed(name): weight for name, weight in weights.items()}


def _whole(read, file: Path) -> dict[str, torch.Tensor]:
    """What a function reads of a file; OSError if that is damaged."""
    try:
        return read(file)
    except Exception as error:  # each library has its own, for each place where a file may be cut
        line = str(error).strip().partition("\n")[0]
        raise OSError(f"load: {file} cannot be read: {type(error).__name__}: {line}") from None


def _renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours) if f".{theirs}" in f".{name}" else name
    return name


def _numbers(read: dict) -> object:
    """Read a number that JSON lacks, as transformers writes it."""
    return float(read["__float__"]) if read.keys() == {"__float__"} else read


def _fetched(name: str) -> Path:
    """Fetch a repository, or say why it cannot be had."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        needs = 'huggingface_hub; pip install "smalearn[weights]"'
        raise ImportError(f"load: {name!r} is no folder, and to fetch it needs {needs}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "*.safetensors", "*.bin"]))
    except Exception as error:  # whatever the network, the hub or the name is wrong with
        line = str(error).strip().partition("\n")[0]
        raise OSError(f"load: {name!r} is no folder, and cannot be fetched: {type(error).__name__}: {line}") from None
