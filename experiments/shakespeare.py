"""A small trained model, for whoever wants one at once: Mamba-2 on the characters of Shakespeare's plays.

    python -m experiments.shakespeare -o assets/shakespeare

The last tenth of the text is not trained on: its first half says when to stop, its second half is the test. The folder
is one that `smalearn.models.load` reads, and transformers too.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from smalearn.course.timing import machine, one_thread
from smalearn.data import Text, Vocabulary, excerpts, load_text, split_text
from smalearn.models import Block, Mamba2, SequenceModel, load
from smalearn.train import Plan, mean_loss, train

NAMES = {"embedding.": "backbone.embeddings.", "blocks.": "backbone.layers.", "norm.": "backbone.norm_f."}
NAMES |= {"head.": "lm_head."}
"""How the names of parameters begin, ours and those of transformers."""


@dataclass(frozen=True)
class Setting:
    """Sizes of the model and of its training; `every` is the steps from one validation to the next."""

    dim: int = 128
    layers: int = 4
    state: int = 32
    head_dim: int = 32
    length: int = 256
    batch: int = 8
    steps: int = 2200
    lr: float = 8e-3
    every: int = 220


def make(text: Text, setting: Setting, folder: Path) -> None:
    """Train a model on a text, and write its weights, config and vocabulary, and what there is to know of it."""
    began = time.process_time()
    vocabulary = Vocabulary(text.text)
    known, unseen = split_text(vocabulary.encode(text.text))
    validation, test = (_windows(part, setting.length) for part in unseen.tensor_split(2))
    torch.manual_seed(0)
    blocks = [Block(Mamba2(setting.dim, setting.state, setting.head_dim)) for _ in range(setting.layers)]
    model = SequenceModel(len(vocabulary), blocks)
    stopped = _trained(model, known, validation, setting)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {_theirs(name): weight.half() for name, weight in model.state_dict().items()}
    torch.save(weights, folder / "pytorch_model.bin")
    _write_json(folder / "config.json", _config(setting, len(vocabulary)))
    _write_json(folder / "vocabulary.json", {character: k for k, character in enumerate(vocabulary.characters)})
    stored = load(folder).float()  # the losses are those of the rounded weights
    losses = mean_loss(stored, *validation), mean_loss(stored, *test)
    about = _about(text, stopped, setting, losses, time.process_time() - began)
    (folder / "README.md").write_text(about, encoding="utf-8")


def _trained(model, known, validation, setting):
    """Train, leave the model with the weights of the lowest validation loss, and return the step that had them."""
    best = None

    def look(step):
        nonlocal best
        loss = mean_loss(model, *validation)
        print(f"{step:5} steps: {loss:.4f} nats a character", flush=True)
        if best is None or loss < best[0]:
            best = loss, step, copy.deepcopy(model.state_dict())

    def task(step):
        if step and step % setting.every == 0:
            look(step)
        return excerpts(known, setting.batch, setting.length, seed=step)

    _, record = train(model, task, Plan(setting.steps, setting.lr), progress=False)
    look(len(record.losses))
    model.load_state_dict(best[2])
    return best[1]


def _windows(codes, length):
    """All of a text as inputs and targets, in pieces of one length after another."""
    count = (len(codes) - 1) // length
    return tuple(codes[k : k + count * length].view(count, length) for k in (0, 1))


def _theirs(name):
    """The name that transformers has for a parameter."""
    for ours, other in NAMES.items():
        name = other + name.removeprefix(ours) if name.startswith(ours) else name
    return name.replace(".conv.", ".conv1d.")


def _config(setting, vocabulary):
    """The sizes in the words of transformers, and its options that are those of our layer."""
    sizes = {"hidden_size": setting.dim, "num_hidden_layers": setting.layers, "state_size": setting.state}
    sizes |= {"expand": 2, "head_dim": setting.head_dim, "num_heads": 2 * setting.dim // setting.head_dim}
    sizes |= {"n_groups": 1, "conv_kernel": 4, "chunk_size": 64, "vocab_size": vocabulary}
    options = {"hidden_act": "silu", "use_bias": False, "use_conv_bias": True, "tie_word_embeddings": False}
    options |= {"layer_norm_epsilon": 1e-5, "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]} | sizes | options | tokens


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _about(text, stopped, setting, losses, seconds):
    """The README of the folder."""
    here = machine()
    validation, test = losses
    return f"""# A small trained model: Mamba-2 on characters

Trained on: {text.source.sentence} ({text.source.licence}).
Nine tenths are trained on; of the last tenth, the first half says when to stop, the second is the test.

- Loss of these weights, float16 on disk, in float32: {validation:.3f} nats a character on the validation, {test:.3f} on
  the test, in pieces of {setting.length} characters. Kept is step {stopped} of {setting.steps}.
- Made by `python -m experiments.shakespeare -o assets/shakespeare` in {seconds:.0f} seconds of one core
  ({here["cpu"]}, torch {here["torch"]}, {here["date"]}).

```python
from smalearn.data import trained
from smalearn.models import generate, load

folder, vocabulary = trained("shakespeare")
model = load(folder).float()
new, _ = generate(model, vocabulary.encode("ROMEO:\\n"), length=200, temperature=0.8)
print(vocabulary.decode(new))
```
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command: from its arguments, those of the process where None are given, to its exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.shakespeare", description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="made if it is not there")
    args = parser.parse_args(argv)
    try:
        text = load_text()
        if text.source.name != "tinyshakespeare":
            raise ValueError(text.source.sentence)
        with one_thread():
            make(text, Setting(), args.output)
    except (ImportError, OSError, ValueError) as error:
        print(f"shakespeare: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
