"""The ladder: runs of your mixers are kept and the newest are drawn; tests write nothing beside the chapters."""

import json
import math
from itertools import combinations
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from matplotlib.text import Text

from smalearn.course import check, ladder
from smalearn.models.minimal import TinyLM


def softmax(Q, K, V):
    return F.scaled_dot_product_attention(Q, K, V, is_causal=True)


def fading(Q, K, V, log_a):
    """Each head's values, faded: as small a mixer as there is, with its step."""
    rows, state = [], None
    for t in range(V.shape[2]):
        y, state = fading_step(Q[:, :, t], K[:, :, t], V[:, :, t], state, log_a[:, :, t])
        rows.append(y)
    return torch.stack(rows, 2)


def fading_step(q, k, v, state, log_a):
    state = v if state is None else log_a.exp()[..., None] * state + v
    return state, state


def causal_weights(Q, K):
    """Exercise 1.2, not solved yet."""
    raise NotImplementedError


def each_head(Q, K, V):
    """Each head's own weights, in a comprehension, as chapter 01 has it."""
    heads = zip(Q.flatten(0, 1), K.flatten(0, 1), strict=True)
    return torch.stack([causal_weights(q, k) for q, k in heads]).unflatten(0, Q.shape[:2]) @ V


def through_a_helper(Q, K, V):
    return each_head(Q, K, V)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("SMALEARN_QUICK", "ladder")
    monkeypatch.setattr(ladder, "POSITIONS", (50, 400))
    yield
    plt.close("all")


def test_runs_are_appended_and_the_newest_of_a_name_is_drawn(tmp_path, capsys):
    file = tmp_path / "ladder.json"
    for name, mixer, step in (("mine", softmax, None), ("fading", fading, fading_step), ("mine", softmax, None)):
        model = ladder.climb(name, mixer, step, seconds=1, file=file)
        assert isinstance(model, TinyLM)
    runs = ladder.rungs(file)
    assert [one["name"] for one in runs] == ["mine", "fading", "mine"]
    for one in runs:
        assert one["steps"] == 3
        assert 0 < one["bits"] < math.log2(600)
        assert set(one["milliseconds"]) == {50, 400}
    said = capsys.readouterr().out
    assert said.index("Measuring this machine") < said.index("mine: ")
    assert said.count(ladder.RECORDED) == 3  # of three steps nobody learns to write
    ax = ladder.draw(file)
    assert [line.get_label() for line in ax.lines] == ["mine", "fading"]
    for line, run in zip(ax.lines, (runs[2], runs[1]), strict=True):
        assert line.get_ydata().tolist() == list(run["milliseconds"].values())
        assert line.get_xdata().tolist() == [run["bits"]] * 2


def test_it_writes_on_the_way(monkeypatch, capsys):
    monkeypatch.delenv("SMALEARN_QUICK")
    monkeypatch.setattr(ladder, "_batch", lambda number: (torch.zeros(1, 4, dtype=torch.long),) * 2)
    pieces = ladder._text()[0]
    assert ladder._train(TinyLM(softmax, len(pieces), D=8, heads=2), 100, math.inf) == 100
    said = [line.partition(" it writes: ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == ["After 1 step", "After 10 steps"]


def test_no_name_covers_another(tmp_path):
    rung = {"steps": 30, "seconds": 1, "bytes": 19_200, "ours": ["3.5"]}
    places = [(2.0, 1), (2.0, 1), (2.01, 1), (2.01, 1.1), (2.1, 300)]
    rungs = [
        rung | {"name": f"mixer {bits} {ms}", "bits": bits, "milliseconds": {50: 1, 400: ms}} for bits, ms in places
    ]
    (tmp_path / "ladder.json").write_text(json.dumps(rungs), encoding="utf-8")
    ax = ladder.draw(tmp_path / "ladder.json")
    ax.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in ax.texts]
    assert len(boxes) == 4  # the newest of each name
    assert not any(a.overlaps(b) for a, b in combinations([*boxes, ax.get_legend().get_window_extent()], 2))


@pytest.mark.parametrize("mixer", [each_head, through_a_helper, [(softmax, None), (each_head, None)]])
def test_a_model_knows_which_of_its_functions_are_ours(monkeypatch, mixer):
    model = TinyLM(mixer, 11, D=8, heads=2)
    assert ladder._ours(model) == []
    monkeypatch.setitem(globals(), "causal_weights", check("1.2", causal_weights))
    assert ladder._ours(model) == ["1.2"]


def test_a_rung_keeps_whose_functions_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "_bits", lambda *_: 1.0)  # takes long, and is not asked for here
    monkeypatch.setitem(globals(), "causal_weights", check("1.2", causal_weights))
    ladder.climb("mine", each_head, seconds=1, file=tmp_path / "ladder.json")
    assert ladder.rungs(tmp_path / "ladder.json")[0]["ours"] == ["1.2"]
    (name,) = ladder.draw(tmp_path / "ladder.json").texts
    assert name.get_text().endswith("our solution\nof 1.2")


def test_a_name_has_what_is_kept_and_the_picture_says_that_one_seed_ranks_nothing(tmp_path):
    rung = {"name": "mine", "steps": 339, "seconds": 40.3, "bits": 2.04, "bytes": 19_200}  # a run of an earlier edition
    rung["milliseconds"] = {"50": 1.0, "400": 2.0}
    (tmp_path / "ladder.json").write_text(json.dumps([rung]), encoding="utf-8")
    ax = ladder.draw(tmp_path / "ladder.json")
    assert ax.texts[0].get_text() == "mine\nkeeps 19 kB\n339 steps"
    assert "one seed" in ax.get_legend().get_title().get_text()


def test_a_state_stays_as_large_as_it_is_and_all_tokens_do_not():
    torch.manual_seed(0)
    tokens = torch.arange(40) % 11
    kept = {}
    for name, mixer, step in (("softmax", softmax, None), ("fading", fading, fading_step)):
        model = TinyLM(mixer, 11, step, D=8, heads=2)
        kept[name] = [ladder._decoding(model, tokens[:length])[1] for length in (10, 40)]
    assert kept["softmax"] == [2 * 3 * 4 * 8 * length for length in (10, 40)]  # blocks, parts, bytes, numbers
    assert kept["fading"] == [2 * 4 * 8] * 2


@pytest.mark.parametrize(("mixer", "step"), [(softmax, None), (fading, fading_step)])
def test_what_is_read_at_once_is_what_is_read_step_by_step(mixer, step):
    torch.manual_seed(0)
    model = TinyLM(mixer, 11, step, D=8, heads=2)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    tokens = torch.arange(20) % 11
    memory = None
    with torch.inference_mode():
        for token in tokens:
            _, memory = model.step(token[None], memory)
        expected = model.step(tokens[:1], memory)[0]
        found = model.step(tokens[:1], ladder._read(model, tokens))[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_bits_of_a_model_that_knows_nothing():
    pieces, _, unseen = ladder._text()
    model = TinyLM(softmax, len(pieces))
    texts = unseen[: len(unseen) // 256 * 256].view(-1, 256)[:, 1:]
    characters = len(pieces.decode(texts.flatten()))
    assert ladder._bits(model, unseen, pieces) == pytest.approx(texts.numel() * math.log2(len(pieces)) / characters)


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}', '[{"name": "x"}]'])
def test_a_faulty_file_is_left_as_it_is(tmp_path, text):
    file = tmp_path / "ladder.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="is not a ladder; move it away"):
        ladder.climb("mine", softmax, file=file)
    assert file.read_text(encoding="utf-8") == text


def test_the_file_stands_beside_the_chapters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ladder._file().parent != tmp_path  # while tests run
    monkeypatch.delenv("SMALEARN_QUICK")
    assert ladder._file() == tmp_path / "ladder.json"
    (tmp_path / "appendix").mkdir()
    monkeypatch.chdir(tmp_path / "appendix")
    assert ladder._file() == tmp_path / "ladder.json"
    assert ladder.rungs() == []
    (tmp_path / "ladder.json").write_text(json.dumps([]), encoding="utf-8")
    assert not ladder.draw().lines


@pytest.mark.full
def test_a_learners_run_takes_more_steps_and_learns(tmp_path, monkeypatch):
    monkeypatch.delenv("SMALEARN_QUICK")
    monkeypatch.setattr(ladder, "_affordable", lambda model, task, seconds: seconds // 10)
    bits = []
    for seconds in (250, 500):
        ladder.climb("fading", fading, fading_step, seconds, tmp_path / "ladder.json")
        bits.append(ladder.rungs(tmp_path / "ladder.json")[-1]["bits"])
    assert [one["steps"] for one in ladder.rungs(tmp_path / "ladder.json")] == [25, 50]
    assert bits[1] < bits[0] < 4


def test_training_ends_when_its_time_is_over_whatever_was_expected(tmp_path, monkeypatch):
    monkeypatch.delenv("SMALEARN_QUICK")
    monkeypatch.setattr(ladder, "_affordable", lambda model, task, seconds: 5)
    monkeypatch.setattr(ladder, "_bits", lambda *_: 1.0)
    ladder.climb("mine", softmax, seconds=0, file=tmp_path / "ladder.json")
    assert ladder.rungs(tmp_path / "ladder.json")[0]["steps"] == 3


def test_one_slow_step_and_one_fast_do_not_decide_how_many_follow(monkeypatch):
    model = TinyLM(softmax, 11, D=8, heads=2)
    task = lambda number: (torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long))  # noqa: E731
    clock = iter([0, 9, 9, 10, 10, 10.5])  # steps of 9, 1 and ½ seconds
    monkeypatch.setattr(ladder, "time", SimpleNamespace(perf_counter=clock.__next__))
    assert ladder._affordable(model, task, 120) == 100


def test_a_slow_machine_takes_fewer_steps():
    model = TinyLM(softmax, 11, D=8, heads=2)
    task = lambda number: (torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long))  # noqa: E731
    assert ladder._affordable(model, task, 0.0) == 3
    assert ladder._affordable(model, task, 1e6) == ladder.STEPS
    assert all(parameter.grad is None for parameter in model.parameters())
