"""A text becomes numbers and back; what is validated on is never trained on; a seed gives the same pieces."""

import pytest
import torch

from smalearn._checks import ShapeError
from smalearn.data import Pieces, Vocabulary, excerpts, load_text, split_text
from smalearn.models import Block, SequenceModel, ShortConvolution


def test_the_text_of_every_python_is_long_enough():
    text = load_text("python topics").text
    assert len(text) > 300_000
    assert "Assignment statements are used to (re)bind names to values" in text.replace("\n", " ")
    assert len(Vocabulary(text)) < 200


@pytest.mark.parametrize("text", ["a", "hello", "ä\nß…\x00z", "Grüße, 世界"])
def test_decoding_undoes_encoding(text):
    vocabulary = Vocabulary(text)
    codes = vocabulary.encode(text)
    assert codes.dtype == torch.int64
    assert codes.shape == (len(text),)
    assert vocabulary.decode(codes) == text
    assert sorted(set(codes.tolist())) == list(range(len(vocabulary)))
    assert list(vocabulary.characters) == sorted(set(text))


def test_a_vocabulary_refuses_what_it_does_not_know():
    assert Vocabulary("ab").encode("").shape == (0,)
    with pytest.raises(ValueError, match=r"Vocabulary\.encode: 'c' is none of the 2 characters"):
        Vocabulary("ab").encode("abc")
    with pytest.raises(ValueError, match="Vocabulary: text must have at least one character, got none"):
        Vocabulary("")


@pytest.mark.parametrize(("length", "part", "end"), [(10, 0.1, 1), (1000, 0.25, 250), (7, 0.5, 3), (5, 0.1, 0)])
def test_the_parts_are_the_text(length, part, end):
    codes = torch.arange(length)
    known, unseen = split_text(codes, part)
    assert torch.equal(torch.cat([known, unseen]), codes)
    assert len(unseen) == end


@pytest.mark.parametrize("part", [0, 1, -0.1, 1.5, float("nan")])
def test_a_part_is_a_part(part):
    with pytest.raises(ValueError, match=r"split_text: part must be in \(0, 1\), got "):
        split_text(torch.arange(10), part)


def test_targets_are_the_next_characters():
    inputs, targets = excerpts(torch.arange(50) * 3, examples=400, length=7, seed=2)
    assert inputs.shape == targets.shape == (400, 7)
    assert torch.equal(targets, inputs + 3)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert set((inputs[:, 0] // 3).tolist()) == set(range(43))  # from the first place to the last that has a target


def test_a_seed_gives_the_same_pieces():
    codes = torch.arange(1000)
    first, again, other = (excerpts(codes, 5, 7, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_a_model_takes_what_is_cut_out(dtype):
    codes = torch.arange(100).to(dtype)
    inputs, targets = excerpts(codes, 5, 7, 0)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs, excerpts(codes.long(), 5, 7, 0)[0])
    model = SequenceModel(100, [Block(ShortConvolution(8))])
    assert model(inputs).shape == (5, 7, 100)


@pytest.mark.parametrize("make", [Vocabulary, Pieces])
def test_only_numbers_of_the_vocabulary_are_decoded(make):
    vocabulary = make("abcab")
    name, size = make.__name__, len(vocabulary)
    assert vocabulary.decode(torch.arange(size, dtype=torch.uint8)) == vocabulary.decode(torch.arange(size))
    assert vocabulary.decode(torch.tensor([], dtype=torch.int64)) == ""
    for code in (-1, -size, size):
        with pytest.raises(ValueError, match=rf"{name}\.decode: codes must be in 0 to {size - 1}, got {code}"):
            vocabulary.decode(torch.tensor([0, code]))
    for codes in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor(0), torch.zeros(1, 2, dtype=torch.int64)):
        with pytest.raises(ShapeError, match=rf"{name}\.decode: codes must be integers \(T,\)"):
            vocabulary.decode(codes)


def test_pieces_that_do_not_fit_are_refused():
    assert excerpts(torch.arange(8), 2, 7, 0)[0].tolist() == [list(range(7))] * 2
    with pytest.raises(ValueError, match="excerpts: length must be at most 7, got 8"):
        excerpts(torch.arange(8), 2, 8, 0)
