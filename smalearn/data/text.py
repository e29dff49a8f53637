"""A real text for character models: the plays of Shakespeare that everybody uses, or what every Python carries."""

import hashlib
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smalearn._checks import ShapeError, check_count, check_number, check_tensor, check_type, check_values, seeded
from smalearn.data.sources import PublicFile, Source, UnreachableError, fetch

SHAKESPEARE = PublicFile(
    Source(
        name="tinyshakespeare",
        sentence="Plays of Shakespeare, 1.1 million characters, from github.com/karpathy/char-rnn",
        licence="public domain",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    file="tinyshakespeare_input.txt",
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    size=1_115_394,
)
TEXTS = ("tinyshakespeare", "python topics", "python prose")
"""The names that `load_text` knows; only the first needs a network."""
PROSE = 0.85  # least share of small letters and the commonest signs in a paragraph


@dataclass(frozen=True)
class Text:
    """A text and its source."""

    text: str
    source: Source


def load_text(name: str = "tinyshakespeare") -> Text:
    """A text of some length, with its source.

    Args:
        name: "tinyshakespeare"; "python topics", the pages of `help()` on keywords and the like; or "python prose", the
            paragraphs among them that are sentences, each once, on a line of its own.

    Returns:
        The text; its `source.name` is "python topics" where the other was asked for and cannot be reached, and the
        sentence says why.

    Raises:
        ValueError: the name is unknown; or the file is another one, as `fetch` says.
        ImportError: pooch is missing, which downloads files.

    Cost:
        A download of 1.1 MB, once; none with the environment variable `SMALEARN_DATA`, the name of a folder that has
        `tinyshakespeare_input.txt`.

    Source:
        Karpathy 2015, char-rnn (github.com/karpathy/char-rnn), `data/tinyshakespeare/input.txt`.
    """
    if name not in TEXTS:
        raise ValueError(f"load_text: name must be one of {', '.join(TEXTS)}, got {name!r}")
    if name == "python topics":
        return _topics()
    if name == "python prose":
        topics = _topics()
        return Text(_prose(topics.text), topics.source)
    try:
        return Text(fetch("load_text", SHAKESPEARE).decode("utf-8"), SHAKESPEARE.source)
    except UnreachableError as error:
        return _topics(f", in place of {name}: {error}")


def _topics(why=""):
    """Text that needs no network, and in its source the reason why it is used."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[title] for title in sorted(topics))
    sentence = f"Python's documentation of its syntax, pydoc_data.topics of Python {platform.python_version()}{why}"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return Text(text, Source("python topics", sentence, "Python Software Foundation License", checksum))


def _prose(text):
    """Paragraphs of sentences, each once (a fifth stand there twice)."""
    paragraphs = dict.fromkeys(" ".join(part.split()) for part in text.split("\n\n"))
    kept = [p for p in paragraphs if len(p) > 60 and len(re.findall("[a-z ,.]", p)) > PROSE * len(p) and p.isascii()]
    return "\n".join(p.replace('"', "") for p in kept)


class Vocabulary:
    """The characters of a text, each with a number: 0, 1, 2, … in the order of Unicode.

    Args:
        text: with every character that is to have one.

    Raises:
        ValueError: the text is empty.

    Example:
        >>> Vocabulary("hello").encode("hole")
        tensor([1, 3, 2, 0])
    """

    def __init__(self, text: str):
        check_type("Vocabulary", "text", text, str)
        if not text:
            raise ValueError("Vocabulary: text must have at least one character, got none")
        self.characters = "".join(sorted(set(text)))
        self._codes = {character: code for code, character in enumerate(self.characters)}

    def __len__(self) -> int:
        """How many characters there are."""
        return len(self.characters)

    def encode(self, text: str) -> torch.Tensor:
        """The numbers (T,), int64, of the T characters of a text.

        Raises:
            ValueError: a character has none.
        """
        check_type("Vocabulary.encode", "text", text, str)
        try:
            return torch.tensor([self._codes[character] for character in text], dtype=torch.long)
        except KeyError as error:
            raise ValueError(f"Vocabulary.encode: {error} is none of the {len(self)} characters") from None

    def decode(self, codes: torch.Tensor) -> str:
        """The text of numbers (T,), one for each character, below their count; a ValueError says what is not."""
        return join("Vocabulary.decode", self.characters, codes)


def join(function: str, pieces: Sequence[str], codes: torch.Tensor) -> str:
    """The pieces of these numbers (T,), as one text; an error of `function` says what is none of their numbers."""
    _check_codes(function, codes)
    check_values(function, "codes", codes)
    for code in codes.tolist():
        if not 0 <= code < len(pieces):
            raise ValueError(f"{function}: codes must be in 0 to {len(pieces) - 1}, got {code}")
    return "".join(pieces[code] for code in codes.tolist())


def split_text(codes: torch.Tensor, part: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut a text in two: its beginning to train on, its end to validate with.

    Args:
        codes: (T,).
        part: of the text that is its end, in (0, 1).

    Returns:
        (T - ⌊part·T⌋,) and (⌊part·T⌋,), views.

    Raises:
        ValueError: part is out of its range.
    """
    _check_codes("split_text", codes)
    if not 0 < check_number("split_text", "part", part) < 1:
        raise ValueError(f"split_text: part must be in (0, 1), got {part}")
    end = int(part * len(codes))
    return codes[: len(codes) - end], codes[len(codes) - end :]


def excerpts(codes: torch.Tensor, examples: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of a text that begin anywhere, and the same pieces one character on: what is to be predicted.

    Args:
        codes: (T,) of a text.
        examples: how many.
        length: of a piece, at most T - 1.
        seed: the same seed gives the same pieces on every machine.

    Returns:
        inputs and targets, both (examples, length) int64; targets[:, t] is the character after inputs[:, t].

    Raises:
        ValueError: a count is not an integer ≥ 1, or the text is too short.
    """
    _check_codes("excerpts", codes)
    check_count("excerpts", "examples", examples)
    if len(codes) <= check_count("excerpts", "length", length):
        raise ValueError(f"excerpts: length must be at most {len(codes) - 1}, got {length}")
    generator = seeded("excerpts", seed)
    begin = torch.randint(len(codes) - length, (examples, 1), generator=generator)
    places = begin + torch.arange(length)
    return codes[places].long(), codes[places + 1].long()


def _check_codes(function, codes):
    """Check that codes are integers (T,)."""
    check_tensor(function, "codes", codes)
    if codes.ndim != 1 or codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise ShapeError(f"{function}: codes must be integers (T,), got {codes.dtype} {tuple(codes.shape)}")
