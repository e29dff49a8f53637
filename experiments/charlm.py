"""Which tokens deserve compute? Small models of characters that differ in their attention alone.

    python -m experiments.charlm -o assets/results/charlm.json

Every model reads the same excerpts of one text, which ends with a part that chooses learning rates and a part for the
test; no model reads either. Seed 0 tries five rates for each model, the other seeds have the best of them and are
reported. Positions are learned vectors, rotations (RoPE) or biases (ALiBi): what a split of the scores gains with the
first it may lose with the others, because the blocks of a split tell positions too. Blocks over a fixed random order of
the tokens do not, at equal cost.

`charlm_questions` says what is asked, and which sentence each outcome allows. On two cores it takes about an hour.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice, product

import torch
from torch import nn

from experiments.command import Experiment
from experiments.grid import each_seed, mean_seconds, means, model_lines, swept, trained
from experiments.variants import AlibiAttention, ShuffledAttention
from smalearn.course.ch11.charlm_questions import MARGIN, QUESTIONS
from smalearn.course.results import answers
from smalearn.data import Vocabulary, excerpts, load_text, split_text
from smalearn.models import (
    Block,
    GatedDeltaNet,
    LogLinearMamba2,
    Mamba2,
    Mamba3,
    Mixer,
    MultiLevelAttention,
    SequenceModel,
    ShortConvolution,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.multilevel import parse_ranks, score_macs
from smalearn.train import Plan, mean_loss

SCHEMES = ("standard", "width-stable")


@dataclass(frozen=True)
class Setting:
    """A size, the models that have it, and how they are trained."""

    # of all layers, "full", "window w", ranks such as "8|4|2|2", or a name of `RECURRENT`; with " + " between
    # them, the layers take turns; ", shuffled" after ranks puts the tokens in another order into blocks; ",
    # convolution" puts a short convolution before each layer
    mixers: tuple[str, ...]
    positions: str = "RoPE"  # "learned", "RoPE" or "ALiBi"; recurrent mixers have none
    data: str = "tinyshakespeare"  # name of the text
    length: int = 128  # T of an excerpt
    dim: int = 64  # D
    heads: int = 4  # of each attention layer
    layers: int = 2  # how many; of recurrent mixers, which have no MLPs, twice as many
    mlp: int = 256  # width of the hidden layers
    steps: int = 500  # of training
    seeds: int = 6  # the first tries every rate, all others have the best
    batch: int = 16  # excerpts of a step
    lrs: tuple[float, ...] = tuple(2.0**k for k in range(-8, -3))  # the highest learning rates to try
    scheme: str = "standard"  # how initial values and rates depend on the width: "standard" or "width-stable"
    tests: int = 256  # excerpts of the validation, and of the test
    device: str = "cpu"  # where it runs

    def runs(self, _: int) -> dict[str, dict[str, object]]:
        """Every mixer at every learning rate, whatever the seed."""
        pairs = product(self.mixers, self.lrs)
        return {f"{mixer}, lr {lr:.2g}": {"mixer": mixer, "lr": lr} for mixer, lr in pairs}


RECURRENT = {
    "Mamba-2": lambda setting, **size: Mamba2(**size),
    "Mamba-3": lambda setting, **size: Mamba3(**size),
    "log-linear Mamba-2": lambda setting, **size: LogLinearMamba2(context=setting.length, **size),
    "Gated DeltaNet": lambda setting, **size: GatedDeltaNet(expand=2, groups=1, **size),
}
"""Mixers that a block has alone, without an MLP."""

SPLITS = "full", "8|4|2|2", "8|4|2|2, shuffled", "2|2|4|8", "window 16"
FULL = {
    "learned positions": Setting(SPLITS, positions="learned"),
    "RoPE": Setting((*SPLITS, "full + window 16")),
    "ALiBi": Setting(("full",), positions="ALiBi"),
    "equal parameters": Setting(("full", "full, convolution", *RECURRENT), mlp=288),
}
"""The recorded experiment: loss against the multiply-adds of scores, and against what decoding must keep.

With equal parameters all have 116 to 118 thousand, but log-linear Mamba-2 133 thousand.
"""

RATES = {
    f"D = {dim}, {scheme}": Setting(
        ("full", "8|4|2|2"),
        length=64,
        dim=dim,
        heads=dim // 16,
        mlp=4 * dim,
        steps=200,
        seeds=1,
        lrs=tuple(2.0**k for k in range(-9, -2)),
        scheme=scheme,
    )
    for scheme in SCHEMES
    for dim in (32, 64, 128)
}
"""Does the best learning rate stay where it is when the model becomes wider?"""

PAPER = {
    f"D = {dim}": Setting(
        ("full", "32|8|6|4|4|4|4|2", "window 128", "full + window 128 + window 128"),
        positions="learned",
        length=1024,
        dim=dim,
        heads=dim // 64,
        layers=6,
        mlp=4 * dim,
        steps=3000,
        seeds=3,
        batch=32,
        lrs=(1e-3,),
        tests=100,
        device="cuda",
    )
    for dim in (256, 384, 512, 768)
}
"""The sizes of the paper, for a device; its text is far longer (OpenWebText), and its training 33 times."""

SMOKE = {
    "toy": Setting(
        ("full", "2|2", "window 3", "full + window 3", "Mamba-2"),
        data="python topics",
        length=12,
        dim=8,
        heads=2,
        mlp=16,
        steps=3,
        seeds=2,
        batch=4,
        lrs=(1e-3, 2e-3),
        tests=8,
    )
}
"""The same in seconds, to see that it runs; its numbers say nothing."""


def build(mixer: str, setting: Setting, vocabulary: int, seed: int) -> SequenceModel:
    """A model as it is before its training, the same on every machine for the same seed."""
    for name, value, known in (
        ("positions", setting.positions, ("learned", "RoPE", "ALiBi")),
        ("scheme", setting.scheme, SCHEMES),
    ):
        if value not in known:
            raise ValueError(f"build: {name} must be one of {', '.join(known)}, got {value!r}")
    torch.manual_seed(seed)
    recurrent = mixer in RECURRENT
    kinds = islice(cycle(mixer.split(" + ")), setting.layers * (2 if recurrent else 1))
    blocks = [block for kind in kinds for block in _blocks(kind, setting)]
    learned = setting.positions == "learned" and not recurrent
    model = SequenceModel(vocabulary, blocks, setting.length if learned else 0)
    if setting.scheme == "width-stable":
        stabilise(model)
    return model


def _blocks(kind: str, setting: Setting) -> list[Block]:
    """One layer, and what is put before it."""
    kind, _, change = kind.partition(", ")
    if kind in RECURRENT:
        size = {"dim": setting.dim, "state": 8, "head_dim": setting.dim // setting.heads}
        return [Block(RECURRENT[kind](setting, **size))]
    before = [Block(ShortConvolution(setting.dim))] if change == "convolution" else []
    return [*before, Block(_attention(kind, change, setting), setting.mlp)]


def _attention(kind: str, change: str, setting: Setting) -> Mixer:
    """The mixer of one layer that has scores."""
    size = {"dim": setting.dim, "heads": setting.heads, "rope": setting.positions == "RoPE"}
    if kind == "full":
        full = AlibiAttention if setting.positions == "ALiBi" else SoftmaxAttention
        return full(context=setting.length, **size)
    if kind.startswith("window "):
        return WindowAttention(window=int(kind.removeprefix("window ")), **size)
    levels = ShuffledAttention if change == "shuffled" else MultiLevelAttention
    return levels(ranks=parse_ranks(kind), context=setting.length, **size)


def stabilise(model: SequenceModel) -> None:
    """Make one learning rate do for every width: matrices N(0, 1/fan-in), rates of `scales`, a head that begins at 0.

    In AdamW the size of a step is the rate, whatever the gradient. Fan-in steps of one sign add up in an output, so
    that the rate of a matrix is to fall as 1/fan-in; embeddings and norms, whose fan-in is 1, keep theirs. The scores'
    1/√(D/heads) is as good as the rule's 1/(D/heads), because all widths here have heads of one size.

    Source:
        Yang and Hu 2021 (μP); Kuang et al. 2025, appendix F, whose code has embeddings N(0, 0.02²): ours stay N(0, 1),
        which at these rates learns faster, and depends on the width no more.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    nn.init.zeros_(model.head.weight)


def scales(model: SequenceModel, setting: Setting, base: int = 64) -> dict[str, float]:
    """Multiples of the learning rate by parameter: base/D for matrices, if the scheme is "width-stable"."""
    if setting.scheme != "width-stable":
        return {}
    linear = (name for name, layer in model.named_modules() if isinstance(layer, nn.Linear))
    return {f"{name}.weight": base / setting.dim for name in linear}


def run(mixer: str, lr: float, setting: Mapping[str, object], seed: int) -> dict[str, object]:
    """Train and validate one model; validation and test are the same for all seeds.

    Costs are those of one sequence in all layers; losses are nats a character, `losses` means of ten steps.
    """
    setting = Setting(**setting)
    if setting.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("run: device must be there, got cuda without a GPU that torch can use")
    text = load_text(setting.data)
    if text.source.name != setting.data:
        raise ValueError(f"run: text must be {setting.data}, got {text.source.name}: {text.source.sentence}")
    vocabulary = Vocabulary(text.text)
    known, unseen = split_text(vocabulary.encode(text.text))
    validation, unseen = unseen.tensor_split(2)
    model = build(mixer, setting, len(vocabulary), seed).to(setting.device)
    costs = _costs(model, setting)

    def draw(codes, examples, seed):
        return tuple(part.to(setting.device) for part in excerpts(codes, examples, setting.length, seed))

    plan, test = Plan(steps=setting.steps, lr=lr, scales=scales(model, setting)), draw(unseen, setting.tests, 0)
    began = time.perf_counter()
    record = trained(model, lambda step: draw(known, setting.batch, seed * 10**6 + step), plan, test)
    return {
        "mixer": mixer,
        "lr": lr,
        **{name: getattr(setting, name) for name in ("positions", "dim", "scheme")},
        "seed": seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        **costs,
        "losses": means(record.losses, 4),
        "test_losses": {str(step): round(loss, 5) for step, loss in record.test_losses.items()},
        "loss": round(record.test_losses[setting.steps], 5),
        "validation_loss": round(mean_loss(model, *draw(validation, setting.tests, 0)), 5),
        "seconds": round(time.perf_counter() - began, 2),
    }


@torch.no_grad()
def _costs(model, setting):
    """Multiply-adds of one sequence, and bytes that decoding keeps of it, counted from the tensors of the caches."""
    tokens = torch.zeros(1, setting.length, dtype=torch.long, device=setting.device)
    _, cache = model.prefill(tokens, model.start(1))
    macs = [_macs(block.mixer, setting) for block in model.blocks]
    return {
        "score_macs": sum(scores for scores, _ in macs),
        "value_macs": sum(values for _, values in macs),
        "key_bytes": sum(getattr(kept, "key_bytes", 0) for kept in cache.blocks),
        "cache_bytes": cache.nbytes,
    }


def _macs(mixer, setting):
    """Multiply-adds of the scores and of the values of one layer; none where there are no scores."""
    length, width = setting.length, setting.dim // setting.heads
    if isinstance(mixer, MultiLevelAttention | SoftmaxAttention):
        values = score_macs(length, (width,), (length,))
        levels = isinstance(mixer, MultiLevelAttention)
        scores = score_macs(length, mixer.ranks, mixer.block_lens) if levels else values
        return setting.heads * scores, setting.heads * values
    if isinstance(mixer, WindowAttention):
        pairs = sum(min(t, mixer.window) + 1 for t in range(length))
        return setting.heads * pairs * width, setting.heads * pairs * width
    return 0, 0


def table(result: Mapping[str, Mapping]) -> str:
    """A result for a terminal: of each model its costs and the loss of every seed, and the answers."""

    def line(name, runs):
        first = runs[0]
        costs = f"{first['score_macs']:9} score MACs  {first['key_bytes']:6} B keys  {first['parameters']:6} parameters"
        return f"{name}  {costs}  {each_seed(runs, 'loss')}  {mean_seconds(runs)}"

    found = answers(QUESTIONS, result["runs"], "loss", MARGIN)
    return "\n".join([*model_lines(result["runs"], line), *found.splitlines()])


OPTIONS = {
    "--rates": ("learning rates at three widths", RATES),
    "--paper": ("the sizes of the paper, for a GPU", PAPER),
}
main = Experiment("charlm", __doc__, FULL, SMOKE, run, table, OPTIONS, swept, load=lambda name: load_text(name).source)
"""The command: from its arguments, those of the process where None are given, to its exit status."""


if __name__ == "__main__":
    sys.exit(main())
