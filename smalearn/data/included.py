"""Real text that every Python carries, features that need no training, and the results that were recorded."""

import codecs
import contextlib
import io
import json
from pathlib import Path

import torch

from smalearn._checks import check_count, check_type
from smalearn._files import FILES
from smalearn.data.text import Vocabulary

CPU = "amd-epyc-avx512"
"""The CPU whose times the chapters show: the name of a folder in `assets/results/cpu`."""

ASSETS = FILES / "assets"
RESULTS = ASSETS / "results"


def zen_of_python() -> str:
    """The Zen of Python by Tim Peters, as the standard library's `this` holds it: title, empty line, 19 aphorisms.

    It repeats itself, which makes it a good first text for attention: "is better than" stands in it seven times.

    Returns:
        The text, lines separated by newlines.

    Source:
        PEP 20, in the public domain.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # the module prints its text when it is first imported
        import this
    return codecs.decode(this.s, "rot13")


def ngram_features(tokens: list[str], order: int) -> torch.Tensor:
    """Features whose dot products count matching words: X_t = the one-hot codes of tokens t, t-1, …, t-order+1.

    X_t · X_s = #{i < order : tokens[t-i] = tokens[s-i]}, so a repeated n-gram of length `order` scores `order`.

    Args:
        tokens: T words; compared exactly, so lower-case them first.
        order: n ≥ 1, the number of words a feature looks back on, its own included.

    Returns:
        (T, order·vocabulary) tensor of zeros and ones in torch's default dtype; places before the first token are 0.

    Raises:
        TypeError: tokens are not a list of words.
        ValueError: order is not an integer ≥ 1.

    Cost:
        T·order·vocabulary entries.
    """
    check_type("ngram_features", "tokens", tokens, list, tuple)
    for i, token in enumerate(tokens):
        check_type("ngram_features", f"tokens[{i}]", token, str)
    check_count("ngram_features", "order", order)
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(tokens))}
    codes = torch.tensor([vocabulary[word] for word in tokens], dtype=torch.long)
    one_hot = torch.nn.functional.one_hot(codes, max(len(vocabulary), 1)).to(torch.get_default_dtype())
    padded = torch.cat([one_hot.new_zeros(order - 1, one_hot.shape[1]), one_hot])
    length = len(tokens)
    return torch.cat([padded[order - 1 - back : order - 1 - back + length] for back in range(order)], dim=-1)


def ten_words() -> tuple[list[str], torch.Tensor]:
    """The sentences on which chapters 03 to 07 try a mask: "simple is better than complex. complex is better than …".

    Returns:
        The ten words, seven of them different, and their one-hot codes, (10, 7) in torch's default dtype, numbered by
        first occurrence: as keys they make a state a table of words.
    """
    words = " ".join(zen_of_python().lower().splitlines()[4:6]).split()
    return words, ngram_features(words, order=1)


def recorded(name: str, cpu: str = CPU) -> dict:
    """A result that was measured once and is kept with the course: what it says of the machine and date stands in it.

    Args:
        name: of the benchmark or experiment, such as "masks"; of times of a GPU with its folder, "gpu/nvidia-h200/ssd".
        cpu: one of `recorded_cpus(name)`, for times; experiments have one result for all.

    Returns:
        The content of `assets/results/cpu/<cpu>/<name>.json`, or of `assets/results/<name>.json`.

    Raises:
        ValueError: there is none of that name, or none of that CPU; it lists those that there are.
    """
    folder = RESULTS
    if cpus := recorded_cpus(name):
        if cpu not in cpus:
            raise ValueError(f"recorded: cpu must be one of {', '.join(cpus)}, got {cpu!r}")
        folder = folder / "cpu" / cpu
    elif not (folder / f"{name}.json").is_file():
        names = ", ".join(sorted({other.stem for other in folder.rglob("*.json")}))
        raise ValueError(f"recorded: name must be one of {names}, got {name!r}")
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def recorded_cpus(name: str) -> list[str]:
    """The CPUs on which a benchmark was recorded.

    Args:
        name: of the benchmark, such as "masks".

    Returns:
        Names for `recorded`, sorted; an empty list for what is recorded once, or not at all.
    """
    return sorted(path.parent.name for path in (RESULTS / "cpu").glob(f"*/{name}.json"))


def trained(name: str) -> tuple[Path, Vocabulary]:
    """A small model that was trained once and is kept with the course.

    Args:
        name: "shakespeare", a Mamba-2 of 455,000 parameters that writes characters in the manner of his plays.

    Returns:
        The folder, for `smalearn.models.load`, and the vocabulary of its tokens.

    Raises:
        ValueError: there is none of that name.
    """
    folder = ASSETS / name
    if not (folder / "vocabulary.json").is_file():
        raise ValueError(f"trained: name must be shakespeare, got {name!r}")
    characters = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    return folder, Vocabulary("".join(characters))
