"""The small trained model: how it is made, in two steps, and the one that is stored."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from experiments import shakespeare
from experiments.shakespeare import Setting, main
from smalearn.data import Source, Text, Vocabulary, trained
from smalearn.models import generate, load
from smalearn.testing import assert_close
from smalearn.train import mean_loss

STORED = Path(__file__).parents[2] / "assets/shakespeare"
SMALL = Setting(dim=8, layers=2, state=4, head_dim=4, length=12, batch=2, steps=2, every=1)
SHORT = Text(
    "to be, or not to be: that is the question. " * 20, Source("tinyshakespeare", "s", "public domain", "0" * 64)
)
SPEECH = "First Citizen:\nWe are accounted poor citizens, the patricians good.\n"


def vocabulary_of(folder):
    return Vocabulary("".join(json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))))


def test_what_is_made_is_the_model_with_the_lowest_validation_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shakespeare, "load_text", lambda: SHORT)
    monkeypatch.setattr(shakespeare, "Setting", lambda: SMALL)
    seen, losses = [], iter([1.0, 2.0, 2.5, 2.5])  # after each of two steps; of what is stored, twice

    def measured(model, *examples):
        seen.append((model, model.head.weight.clone()))
        assert mean_loss(model, *examples) > 0
        return next(losses)

    monkeypatch.setattr(shakespeare, "mean_loss", measured)
    assert main(["-o", str(tmp_path / "new")]) == 0
    (trained, first), (_, second), (stored, _), _ = seen
    assert not torch.equal(first, second)
    assert torch.equal(trained.head.weight, first)
    tokens = torch.arange(9)
    assert torch.equal(stored(tokens), trained.half().float()(tokens))
    assert capsys.readouterr().out.splitlines()[0] == "    1 steps: 1.0000 nats a character"
    about = (tmp_path / "new/README.md").read_text(encoding="utf-8")
    assert "2.500 nats a character on the validation, 2.500 on\n  the test" in about
    assert "Kept is step 1 of 2." in about
    assert vocabulary_of(tmp_path / "new").decode(torch.tensor([0, 1])) == " ,"
    assert {weight.dtype for weight in load(tmp_path / "new").state_dict().values()} == {torch.float16}


def test_another_text_in_its_place_is_refused(tmp_path, monkeypatch, capsys):
    other = Text(SHORT.text, Source("python topics", "Python's, in place of it", "PSF", "0" * 64))
    monkeypatch.setattr(shakespeare, "load_text", lambda: other)
    assert main(["-o", str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err == "shakespeare: Python's, in place of it\n"
    assert not list(tmp_path.iterdir())


def test_the_stored_model_knows_shakespeare():
    folder, vocabulary = trained("shakespeare")
    model = load(folder).float()
    codes = vocabulary.encode(SPEECH)
    assert cross_entropy(model(codes)[:-1], codes[1:]) < 2
    new, _ = generate(model, codes, length=40, temperature=0.8)
    written = vocabulary.decode(new)
    assert sum(character.isalpha() or character == " " for character in written) > 30
    assert sum(file.stat().st_size for file in STORED.iterdir()) < 3e6


def test_its_example_is_one_that_runs(capsys, monkeypatch):
    monkeypatch.chdir(STORED.parents[1])
    about = (STORED / "README.md").read_text(encoding="utf-8")
    exec(about.partition("```python\n")[2].partition("```")[0], {})
    assert len(capsys.readouterr().out) == 201


def test_transformers_reads_it_too():
    transformers = pytest.importorskip("transformers", reason="needs a peer: transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(STORED, dtype=torch.float32).eval()
    codes = trained("shakespeare")[1].encode(SPEECH)[None]
    with torch.inference_mode():
        assert_close(load(STORED).float()(codes), theirs(codes).logits, 1e-5)
