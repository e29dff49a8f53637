"""Models of characters run at toy size, differ in what they should and nothing else, and say what they were made of."""

import json
from dataclasses import asdict, replace

import pytest
import torch

from experiments import charlm
from experiments.charlm import FULL, RATES, SMOKE, build, main, run
from experiments.grid import trained
from smalearn import data
from smalearn.data import Source, Text
from smalearn.masks import alibi_slopes, decay_matrix
from smalearn.models import (
    GatedDeltaNet,
    Mamba2,
    Mamba3,
    MultiLevelAttention,
    ShortConvolution,
    SoftmaxAttention,
    WindowAttention,
)
from smalearn.multilevel import parse_ranks
from smalearn.testing import assert_close, random_tensors

TOY = SMOKE["toy"]
SHORT = Text("to be, or not to be: that is the question. " * 40, Source("tinyshakespeare", "s", "l", "0" * 64))


@pytest.mark.full
def test_the_file_says_which_text_it_is_about(tmp_path, monkeypatch):
    """A text that stands in for Shakespeare is recorded by its own name, and does not go on with his results."""
    path, toy = tmp_path / "charlm.json", replace(TOY, mixers=("full",), data="tinyshakespeare", lrs=(1e-3,))
    monkeypatch.setitem(SMOKE, "toy", toy)
    monkeypatch.setattr(charlm, "load_text", lambda name: SHORT if name == "tinyshakespeare" else data.load_text(name))
    assert main(["-o", str(path), "--smoke", "--workers", "0"]) == 0
    settings = json.loads(path.read_text(encoding="utf-8"))["settings"]
    assert settings["data"] == {"tinyshakespeare": asdict(SHORT.source)}
    assert settings["toy"]["data"] == "tinyshakespeare"
    monkeypatch.setattr(charlm, "load_text", lambda name: data.load_text("python topics"))
    before = path.read_bytes()
    assert main(["-o", str(path), "--smoke", "--workers", "0"]) == 1  # of other settings
    assert path.read_bytes() == before


def test_a_run_has_the_text_it_says_or_none(monkeypatch):
    other = Text(SHORT.text, replace(SHORT.source, name="python topics", sentence="in place of it"))
    monkeypatch.setattr(charlm, "load_text", lambda name: other)
    with pytest.raises(ValueError, match="run: text must be tinyshakespeare, got python topics: in place of it"):
        run("full", 1e-3, asdict(replace(TOY, data="tinyshakespeare")), 0)


def test_a_device_is_there_or_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="run: device must be there, got cuda without a GPU that torch can use"):
        run("full", 1e-3, asdict(replace(TOY, device="cuda")), 0)


def test_the_command_says_that_the_data_are_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SMALEARN_DATA", str(tmp_path))
    assert main(["-o", str(tmp_path / "charlm.json")]) == 1
    message = "charlm: load_text: SMALEARN_DATA must have the file tinyshakespeare_input.txt, got none in "
    assert capsys.readouterr().err.startswith(message)


# ---------------------------------------------------------------- runs


def test_costs_of_windows_and_states_are_counted(smoke):
    """T = 12, two layers, two heads of 4 features, float32; full attention and levels are a claim of chapter 11."""
    runs, full = smoke("charlm").result["runs"], 12 * 13 // 2
    near = sum(min(t, 3) + 1 for t in range(12))
    for mixer, pairs, tokens in (("window 3", 2 * near, 2 * 3), ("full + window 3", full + near, 12 + 3)):
        one = runs[f"toy, {mixer}, lr 0.001, seed 0"]
        assert one["score_macs"] == one["value_macs"] == 2 * 4 * pairs
        assert 2 * one["key_bytes"] == one["cache_bytes"] == 2 * 4 * 2 * 4 * tokens
    one = runs["toy, Mamba-2, lr 0.001, seed 0"]
    assert (one["score_macs"], one["value_macs"], one["key_bytes"]) == (0, 0, 0)
    assert one["cache_bytes"] == 4 * 4 * (16 * 8 + 3 * (16 + 2 * 8))  # four layers: state, window of the convolution


def test_validation_and_test_are_apart_and_never_trained_on_and_seeds_differ(monkeypatch):
    seen, chosen = [], []

    def spy(model, task, plan, test):
        seen.append([task(0), task(1), test])
        return trained(model, task, plan, test)

    numbers = "".join(chr(0x4E00 + k) for k in range(2000))  # every character tells where it stands
    monkeypatch.setattr(charlm, "trained", spy)
    monkeypatch.setattr(charlm, "mean_loss", lambda model, *test: chosen.append(test) or 0.0)
    monkeypatch.setattr(charlm, "load_text", lambda name: Text(numbers, replace(SHORT.source, name=name)))
    for seed in (0, 1):
        run("2|2", 1e-3, asdict(replace(TOY, steps=1)), seed)
    for batches in seen:
        assert all(part.max() < 1800 for inputs in batches[:2] for part in inputs)
        assert all(part.min() >= 1900 for part in batches[2])
    assert all(1800 <= part.min() <= part.max() < 1900 for test in chosen for part in test)
    assert torch.equal(seen[0][2][0], seen[1][2][0])
    assert torch.equal(*(inputs for inputs, _ in chosen))
    drawn = [inputs for batches in seen for inputs, _ in batches[:2]]
    assert not any(torch.equal(a, b) for k, a in enumerate(drawn) for b in drawn[:k])


# ---------------------------------------------------------------- models


def test_a_mixer_is_what_its_name_says():
    setting = replace(FULL["RoPE"], layers=3)
    layers = {name: [block.mixer for block in build(name, setting, 65, 0).blocks] for name in FULL["RoPE"].mixers}
    assert [type(layer) for layer in layers["full + window 16"]] == [
        SoftmaxAttention,
        WindowAttention,
        SoftmaxAttention,
    ]
    assert {layer.window for layer in layers["window 16"]} == {16}
    for split in ("8|4|2|2", "2|2|4|8"):
        assert all(type(layer) is MultiLevelAttention and layer.ranks == parse_ranks(split) for layer in layers[split])
    assert {layer.block_lens for layer in layers["8|4|2|2"]} == {(128, 64, 32, 16)}
    assert all(layer.rope for mixers in layers.values() for layer in mixers)
    for name, mixer in (("Mamba-2", Mamba2), ("Mamba-3", Mamba3), ("Gated DeltaNet", GatedDeltaNet)):
        assert [type(block.mixer) for block in build(name, setting, 65, 0).blocks] == [mixer] * 6
    blocks = build("full, convolution", setting, 65, 0).blocks
    assert [type(block.mixer) for block in blocks] == [ShortConvolution, SoftmaxAttention] * 3
    assert [block.mlp is None for block in blocks] == [True, False] * 3


def test_blocks_of_shuffled_tokens_are_those_of_levels_in_another_order():
    """With the order of the text it is multi-level attention; with another, of one layer, that of permuted tokens."""
    setting = FULL["RoPE"]
    shuffled, levels = (
        build(name, setting, 65, 0).blocks[0].mixer.double() for name in ("8|4|2|2, shuffled", "8|4|2|2")
    )
    Q, K, V = random_tensors([(4, 1, 128, 16)] * 3)
    assert (shuffled.attend(Q, K, V) - levels.attend(Q, K, V)).abs().max() > 0.1
    together = [
        sum(rank for rank, size in zip((8, 4, 2, 2), (128, 64, 32, 16), strict=True) if place // size == 0)
        for place in shuffled.places.tolist()
    ]
    assert sorted(together) == sorted([16] * 16 + [14] * 16 + [12] * 32 + [8] * 64)  # as many pairs as without
    assert together != sorted(together, reverse=True)
    shuffled.places = torch.arange(128)
    assert_close(shuffled.attend(Q, K, V), levels.attend(Q, K, V))


def test_alibi_is_attention_times_a_decay():
    """softmax(S - m (t - s)) is exp(S) ∘ DecayMask, normalised: the slopes are those of `alibi_slopes`."""
    mixer = build("full", FULL["ALiBi"], 65, 0).blocks[0].mixer.double()
    Q, K, V = random_tensors([(4, 1, 9, 16)] * 3)
    slopes = alibi_slopes(4).double()
    log_a = -slopes[:, None, None].expand(4, 1, 9)
    weights = (Q @ K.mT).exp() * decay_matrix(log_a)
    assert_close(mixer.attend(Q, K, V), weights / weights.sum(-1, keepdim=True) @ V)


def test_models_have_equally_many_parameters():
    setting = FULL["equal parameters"]
    counts = {m: sum(p.numel() for p in build(m, setting, 65, 0).parameters()) for m in setting.mixers}
    assert counts.pop("log-linear Mamba-2") == pytest.approx(1.14 * counts["Mamba-2"], rel=0.01)
    assert 115_000 < min(counts.values()) < max(counts.values()) < 118_500


def test_unknown_parts_are_refused():
    with pytest.raises(ValueError, match="build: positions must be one of learned, RoPE, ALiBi, got 'none'"):
        build("full", replace(TOY, positions="none"), 9, 0)
    with pytest.raises(ValueError, match="build: scheme must be one of standard, width-stable, got 'wide'"):
        build("full", replace(TOY, scheme="wide"), 9, 0)
    with pytest.raises(ValueError, match="parse_ranks: "):
        build("fully", TOY, 9, 0)


# ---------------------------------------------------------------- widths


def test_the_rates_fall_with_the_width_and_the_head_begins_at_zero():
    models = {dim: build("8|4|2|2", RATES[f"D = {dim}, width-stable"], 65, 0) for dim in (32, 64, 128)}
    rates = {dim: charlm.scales(model, RATES[f"D = {dim}, width-stable"]) for dim, model in models.items()}
    for dim, model in models.items():
        for name, p in model.named_parameters():
            matrix = p.ndim == 2 and "embedding" not in name
            assert rates[dim].get(name, 1.0) == (64 / dim if matrix else 1.0), name
        assert model.head.weight.abs().max() == 0
        for block in model.blocks:
            for layer in (block.mixer.in_proj, block.mixer.out_proj, block.mlp[1], block.mlp[3]):
                assert layer.weight.std().item() == pytest.approx(layer.in_features**-0.5, rel=0.05)
    setting = RATES["D = 32, standard"]
    assert charlm.scales(build("full", setting, 65, 0), setting) == {}
