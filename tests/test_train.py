"""The loop learns, resumes to the last bit, survives an interruption at any moment, and overwrites nothing foreign."""

import math
import pickle
import re
import sys
import types

import pytest
import torch

from smalearn import _bar
from smalearn.data import mqar
from smalearn.models import Block, Mamba2, SequenceModel, ShortConvolution, SoftmaxAttention
from smalearn.train import Plan, train, write_atomically

PLAN = Plan(steps=12, every=4)


def task(step):
    return mqar(4, 16, 2, 12, seed=step)


def tiny(seed=0, dim=8):
    torch.manual_seed(seed)
    return SequenceModel(12, [Block(Mamba2(dim, state=4, head_dim=8))])


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Stop:
    """A task that is interrupted when a step asks for its batch."""

    def __init__(self, at):
        self.at = at

    def __call__(self, step):
        if step == self.at:
            raise KeyboardInterrupt
        return task(step)


def test_a_small_model_learns():
    torch.manual_seed(0)
    model = SequenceModel(12, [Block(ShortConvolution(16)), Block(SoftmaxAttention(16))])
    plan, test = Plan(steps=150, lr=0.01), mqar(200, 16, 2, 12, seed=-1)
    model, record = train(model, lambda step: mqar(32, 16, 2, 12, seed=step), plan, test)
    assert len(record.losses) == 150
    assert record.losses[-1] < 0.3 * record.losses[0]
    assert list(record.accuracies) == [100, 150]
    assert record.accuracy == record.accuracies[150] > 0.9
    assert not record.interrupted
    assert not model.training


def test_a_quick_run_takes_three_steps_unless_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("SMALEARN_QUICK", "ladder")
    assert len(train(tiny(), task, PLAN)[1].losses) == 12
    monkeypatch.setenv("SMALEARN_QUICK", "all")
    _, record = train(tiny(), task, PLAN, task(-1))
    assert (len(record.losses), list(record.accuracies)) == (3, [3])
    _, record = train(tiny(), task, PLAN, checkpoint=tmp_path / "run.pt")
    assert len(record.losses) == 12


def test_a_step_is_adamw_with_clipped_gradients():
    """Against the loop written out."""
    plan, model, twin = Plan(steps=3, lr=0.1, clip=0.01), tiny(), tiny()
    _, record = train(model, task, plan)
    decayed = [p for p in twin.parameters() if p.ndim > 1]
    others = [p for p in twin.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}])
    for step in range(3):
        inputs, targets = task(step)
        log_p = twin(inputs).log_softmax(-1)
        questions = [(b, t) for b in range(4) for t in range(16) if targets[b, t] >= 0]
        loss = -sum(log_p[b, t, targets[b, t]] for b, t in questions) / len(questions)
        assert record.losses[step] == pytest.approx(loss.item(), rel=1e-5)
        grads = torch.autograd.grad(loss, list(twin.parameters()))
        norm = math.sqrt(sum(g.square().sum().item() for g in grads))
        assert norm > 0.01
        for p, g in zip(twin.parameters(), grads, strict=True):
            p.grad = g * 0.01 / (norm + 1e-6)
        for group in optimizer.param_groups:
            group["lr"] = [0.1, 0.1, 0.1 * (1 + math.cos(math.pi / 2)) / 2][step]
        optimizer.step()
    assert torch.allclose(weights(model), weights(twin), atol=1e-5)


def test_the_rate_rises_and_falls():
    plan = Plan(steps=100, lr=2.0, warmup=0.1)
    rates = [plan.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * k for k in range(1, 11)])
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.001
    assert Plan(steps=4, lr=1.0, warmup=0).rate(0) == 1.0


@pytest.mark.parametrize("at", [1, 4, 6, 11])
def test_resuming_is_not_having_stopped(tmp_path, at):
    """To the last bit: the losses, the accuracies, the weights; in a new model too."""
    test, path = mqar(5, 16, 2, 12, seed=-1), tmp_path / "ümläut dir" / "run.pt"
    path.parent.mkdir()
    whole, expected = train(tiny(), task, PLAN, test)
    stopped, record = train(tiny(), Stop(at), PLAN, test, path)
    assert record.interrupted
    assert record.losses == expected.losses[:at]
    assert path.exists() == (at >= 4)
    assert not stopped.training
    for model in (stopped if at >= 4 else tiny(), tiny(seed=1 if at >= 4 else 0)):
        copy = path.read_bytes() if path.exists() else None
        resumed, record = train(model, task, PLAN, test, path)
        assert record == expected
        assert torch.equal(weights(resumed), weights(whole))
        path.unlink()
        if copy:
            path.write_bytes(copy)


def test_a_finished_run_comes_back_at_once(tmp_path):
    path = tmp_path / "run.pt"
    model, record = train(tiny(), task, PLAN, checkpoint=path)
    before = path.read_bytes()
    again, repeated = train(tiny(seed=1), Stop(1), PLAN, checkpoint=path)
    assert repeated == record
    assert torch.equal(weights(again), weights(model))
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", ["forward", "optimizer", "save"])
def test_an_interruption_at_any_moment_leaves_a_usable_result(tmp_path, monkeypatch, where):
    path, model, calls = tmp_path / "run.pt", tiny(), []

    def interrupt(*_args, **_kwargs):
        calls.append(1)
        if len(calls) > (7 if where != "save" else 1):
            raise KeyboardInterrupt
        return original(*_args, **_kwargs)

    owner, name = {
        "forward": (SequenceModel, "forward"),
        "optimizer": (torch.optim.AdamW, "step"),
        "save": (torch, "save"),
    }[where]
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, interrupt)
    model, record = train(model, task, PLAN, checkpoint=path)
    monkeypatch.undo()
    assert record.interrupted
    assert len(record.losses) == (8 if where == "save" else 7)
    assert model(task(0)[0]).isfinite().all()
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]  # that of step 4, whole, and nothing beside it
    resumed, repeated = train(model, task, PLAN, checkpoint=path)
    whole, expected = train(tiny(), task, PLAN)
    assert repeated == expected
    assert torch.equal(weights(resumed), weights(whole))


def test_a_checkpoint_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "run.pt"
    train(tiny(), task, PLAN, checkpoint=path)
    before = path.read_bytes()
    for model, other, plan, what in (
        (tiny(), task, Plan(steps=13, every=4), "plan"),
        (tiny(), lambda step: task(step + 1), PLAN, "task"),
        (tiny(dim=16), task, PLAN, "model"),
    ):
        with pytest.raises(ValueError, match=rf"train: .*run\.pt is of another {what}; give another file, or remove"):
            train(model, other, plan, checkpoint=path)
        assert path.read_bytes() == before


class Evil:
    """What must not be unpickled."""

    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("contents", ["text", "pickle", "tensor"])
def test_a_file_that_is_no_checkpoint_is_not_run_and_not_overwritten(tmp_path, capsys, contents):
    path = tmp_path / "notes.txt"
    if contents == "text":
        path.write_text("my notes", encoding="utf-8")
    elif contents == "pickle":
        path.write_bytes(pickle.dumps(Evil()))
    else:
        torch.save(torch.ones(3), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"train: .*notes\.txt is not a checkpoint \(\w+\); give another file"):
        train(tiny(), task, PLAN, checkpoint=path)
    assert path.read_bytes() == before
    assert "executed" not in capsys.readouterr().out


def test_a_folder_must_exist(tmp_path):
    with pytest.raises(ValueError, match=r"train: there is no folder .*nowhere for the checkpoint"):
        train(tiny(), task, PLAN, checkpoint=tmp_path / "nowhere" / "run.pt")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup": 1.0}, r"Plan: warmup must be in \[0, 1\), got 1\.0"),
        ({"lr": 0.0}, r"Plan: lr must be positive, got 0\.0"),
        ({"clip": -1.0}, r"Plan: clip must be positive, got -1\.0"),
        ({"weight_decay": -0.1}, r"Plan: weight_decay must be ≥ 0, got -0\.1"),
    ],
)
def test_a_plan_says_what_is_wrong(values, message):
    with pytest.raises(ValueError, match=message):
        Plan(**({"steps": 5} | values))


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a b.json"
    write_atomically(path, lambda file: file.write(b"old"))

    def half(file):
        file.write(b"ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, half)
    assert path.read_bytes() == b"old"
    write_atomically(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


# ---------------------------------------------------------------- the bar


def test_the_bar_in_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(_bar, "REDRAW", 0)
    train(tiny(), task, PLAN)
    lines = capsys.readouterr().err.split("\r")[1:]
    assert len(lines) == 12
    assert lines[5].startswith(f"[{'#' * 15}{'.' * 15}] 6/12  loss ")
    assert lines[-1].startswith(f"[{'#' * 30}] 12/12  loss ")
    assert lines[-1].rstrip(" ").endswith("  0:00 left\n")


def test_the_bar_is_drawn_only_so_often(monkeypatch):
    written, now = [], iter([0.0, *(0.1 * k for k in range(1, 11))])
    monkeypatch.setattr(_bar, "_place", lambda: lambda line, html: written.append(line))
    monkeypatch.setattr(_bar, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    show = _bar.bar(10, 0)
    for done in range(1, 11):
        show(done, 0.5)
    shown = [line.split()[1] for line in written]
    assert shown[0] == "1/10"
    assert shown[-1] == "10/10"
    assert 4 <= len(shown) <= 7
    assert written[1].endswith("left")


def test_the_time_left_counts_the_steps_of_this_run(monkeypatch):
    written, now = [], iter([0.0, 10.0])
    monkeypatch.setattr(_bar, "_place", lambda: lambda line, html: written.append(line))
    monkeypatch.setattr(_bar, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    _bar.bar(100, 50)(60, 0.25)  # ten steps in ten seconds, forty to go
    assert written == [f"[{'#' * 18}{'.' * 12}] 60/100  loss 0.250  0:40 left"]


def test_the_bar_in_a_notebook(monkeypatch):
    shown = []

    class Handle:
        def update(self, data, raw):
            assert raw
            shown.append(data)

    fake = types.ModuleType("IPython")
    fake.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    fake.display = types.SimpleNamespace(display=lambda data, raw, display_id: Handle())
    monkeypatch.setitem(sys.modules, "IPython", fake)
    train(tiny(), task, PLAN)
    assert shown[-1]["text/plain"].startswith(f"[{'#' * 30}] 12/12  loss ")
    (path,) = re.findall(r'd="M([^"HV]*)"', shown[-1]["text/html"])
    assert path.count("L") == 11  # a place for each step
    assert path.split("L")[-1].startswith("400.0 ")


def test_no_bar_where_nobody_sees_it(monkeypatch, capsys):
    train(tiny(), task, PLAN)  # captured: no terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train(tiny(), task, PLAN, progress=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "IPython", None)
    train(tiny(), task, PLAN)
    assert "12/12" in capsys.readouterr().err
