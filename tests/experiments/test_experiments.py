"""Experiments run at tiny sizes, go on where they stopped, mix with nothing foreign, and say how they were made."""

import json
from dataclasses import asdict

import pytest
import torch
from registry_models import read_on

from experiments import __main__ as listing
from experiments import charlm, forecast, recall, recall_stream
from experiments import command as commands
from experiments.grid import best_rates, grid, means, swept, trained
from experiments.jobs import run_jobs
from experiments.recall import FULL, MIXERS, Setting, build, main, run
from experiments.variants import NormedMamba1, SequentialMamba2, UntiedMamba2, undecayed, unnormed
from smalearn import train
from smalearn.course.executors import executor
from smalearn.course.results import reported
from smalearn.data import IGNORE
from smalearn.linear_attention import linear_attention_parallel
from smalearn.models import Mamba1, Mamba2
from smalearn.ssd import ssd_quadratic
from smalearn.testing import assert_close

COMMAND, SETTINGS = "python -m example", {"size": (3, 4), "name": "ä"}
JOBS = {f"job {k}": {"base": k} for k in range(4)}


def square(base):
    return {"square": base**2, "threads": torch.get_num_threads()}


def fails(base):
    if base == 2:
        raise OSError("no memory")
    return square(base)


def test_every_experiment_is_listed_with_its_purpose(capsys):
    listing.main()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert list(lines) == [*NAMES, "shakespeare", "split_sequence"]
    assert lines["recall"] == recall.__doc__.splitlines()[0]


# ---------------------------------------------------------------- smoke runs

NAMES = ["bottleneck", "charlm", "forecast", "icl_regression", "recall", "recall_stream"]


def measured(run):
    """What the table shows of a run; None of one that is timed alone."""
    return next((run[key] for key in ("error", "accuracy", "loss") if key in run), None)


def timeless(record):
    return {key: value for key, value in record.items() if key not in ("seconds", "machine")}


SMOKED = [pytest.param(n, marks=pytest.mark.full) if n in ("charlm", "forecast", "recall_stream") else n for n in NAMES]


@pytest.mark.parametrize("name", SMOKED)
def test_a_command_writes_a_file_prints_its_table_and_goes_on(name, smoke, capsys):
    made = smoke(name)
    runs, main = made.result["runs"], made.module.main
    assert made.result["command"] == f"python -m experiments.{name} --smoke"
    assert f"\n{len(runs)}/{len(runs)}  " in made.err
    assert made.out == made.module.table(made.result) + "\n"
    shown = [value for run in runs.values() if (value := measured(run)) is not None and run["seed"]]
    assert all(f"{value:.3f}" in made.out or f"{value:.4f}" in made.out for value in shown)
    jobs = main.jobs(main.smoke, runs)
    assert jobs.keys() == runs.keys()
    last = [one for one in runs if measured(runs[one]) is not None][-1]
    assert timeless(json.loads(json.dumps(main.run(**jobs[last])))) == timeless(runs[last])  # the seed is the run
    left = {one: runs[one] for one in runs if one != last}
    made.path.write_text(json.dumps(made.result | {"runs": left}), encoding="utf-8")
    assert main(["-o", str(made.path), "--smoke", "--workers", "0"]) == 0
    assert capsys.readouterr().err.endswith(f"{len(runs)}/{len(runs)}  {last}\n")
    assert list(json.loads(made.path.read_text(encoding="utf-8"))["runs"]) == list(runs)


# ---------------------------------------------------------------- jobs


def test_what_is_done_is_not_done_again(tmp_path):
    path, called = tmp_path / "run.json", []

    def once(base):
        called.append(base)
        if base == 2 and called.count(2) == 1:
            raise KeyboardInterrupt
        return square(base)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(path, COMMAND, SETTINGS, JOBS, once)
    assert list(json.loads(path.read_text(encoding="utf-8"))["runs"]) == ["job 0", "job 1"]
    result = run_jobs(path, COMMAND, SETTINGS, JOBS, once)
    assert called == [0, 1, 2, 2, 3]
    assert list(result["runs"]) == list(JOBS)
    assert run_jobs(path, COMMAND, SETTINGS, JOBS, once) == result
    assert called == [0, 1, 2, 2, 3]


def test_a_job_that_fails_says_so_and_the_others_are_kept(tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(OSError, match="no memory"), executor("local", 1, tmp_path) as pool:
        run_jobs(path, COMMAND, SETTINGS, JOBS, fails, pool)
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert runs == {name: {"square": base**2, "threads": 1} for name, base in (("job 0", 0), ("job 1", 1))}


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "run.json"
    run_jobs(path, COMMAND, SETTINGS, JOBS, square)
    before = path.read_bytes()
    for command, settings in (("python -m other", SETTINGS), (COMMAND, SETTINGS | {"size": (3, 5)})):
        with pytest.raises(ValueError, match=r"run_jobs: .*run\.json is of another command or other settings; give"):
            run_jobs(path, command, settings, JOBS, square)
        assert path.read_bytes() == before
    for content in ("notes", "[]", "{}", '{"command": 1, "settings": 2, "machine": {}, "runs": 3}'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"run_jobs: .*run\.json is not a result \(\w+\); give another file"):
            run_jobs(path, COMMAND, SETTINGS, JOBS, square)
        assert path.read_text(encoding="utf-8") == content
    with pytest.raises(ValueError, match=r"run_jobs: there is no folder .*nowhere for the result"):
        run_jobs(tmp_path / "nowhere" / "run.json", COMMAND, SETTINGS, JOBS, square)


# ---------------------------------------------------------------- recall


def test_the_command_says_what_is_wrong(tmp_path, capsys, monkeypatch):
    path = tmp_path / "recall.json"
    path.write_text("notes", encoding="utf-8")
    assert main(["-o", str(path), "--smoke"]) == 1
    assert "recall: run_jobs: " in capsys.readouterr().err
    path.unlink()
    with monkeypatch.context() as refusing:
        refusing.setattr(commands.progress, "try_to_write", lambda folder: (folder / "no" / "file").touch())
        assert main(["-o", str(path), "--smoke", "--workers", "0"]) == 1
    assert "recall: [Errno" in capsys.readouterr().err
    monkeypatch.setattr(train, "accuracy", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["-o", str(path), "--smoke", "--workers", "0"]) == 130
    assert "recall: stopped; the same command goes on with" in capsys.readouterr().err
    assert not path.exists()  # half a run is not a result


def test_losses_are_means_of_ten_steps():
    losses = [float(k) for k in range(23)]
    assert means(losses, 4) == [4.5, 14.5, 21.0]
    assert means([1.0, 2.0], 0, 1) == [1.0, 2.0]


def beginnings(experiment, title, seed):
    """The weights of all models of a setting before a step."""
    setting = experiment.FULL[title]
    models, size = (setting.mixers, 65) if experiment is charlm else (setting.ranks, 7)
    return [experiment.build(model, setting, size, seed).state_dict() for model in models]


@pytest.mark.parametrize(
    ("experiment", "title"),
    [(charlm, "learned positions"), (charlm, "RoPE"), (forecast, "96 hours"), (forecast, "bins, D = 64")],
    ids=str,
)
def test_models_differ_in_scores_or_levels_alone(experiment, title):
    """These have no weights: with one seed all others are the same, to the last bit."""
    first, *others = beginnings(experiment, title, 1)
    for state in others:
        assert state.keys() == first.keys()
        assert all(torch.equal(state[name], first[name]) for name in first)
    assert ("positions.weight" in first) == (title == "learned positions")
    another = beginnings(experiment, title, 0)[0]
    assert not all(torch.equal(another[name], first[name]) for name in first)


def test_models_differ_in_their_mixer_alone():
    setting = FULL["8 pairs"]
    models = [build(mixer, 16, setting, 0) for mixer in MIXERS if mixer != "hybrid"]
    for model in models:
        assert len(model.blocks) == 2
        assert {block.mixer.dim for block in model.blocks} == {setting.dim}
        assert model.positions is None
        assert all(block.mlp is None for block in model.blocks)
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert max(counts) < 2 * min(counts)


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_variant_decodes_as_it_trains(mixer):
    torch.manual_seed(0)
    for block in MIXERS[mixer](8, 4):
        block.double()
        x = torch.randn(2, 7, 8, dtype=torch.float64)
        assert_close(read_on(block, x), block(x))


@pytest.mark.parametrize(
    ("plain", "normed"),
    [(unnormed(8, 4, head_dim=4), Mamba2(8, 4, head_dim=4)), (Mamba1(8, 4), NormedMamba1(8, 4))],
    ids=["Mamba-2", "Mamba-1"],
)
def test_a_variant_differs_in_its_norm(plain, normed):
    normed.load_state_dict(plain.state_dict() | {"norm.weight": torch.ones(16)})
    x, seen = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(0)).double(), []
    for one in (plain, normed):
        hook = one.double().out_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        one(x)
        hook.remove()
    assert_close(seen[1], seen[0] / (seen[0].square().mean(-1, keepdim=True) + 1e-5).sqrt())


def test_without_decay_it_is_linear_attention_with_one_step_size_per_token():
    torch.manual_seed(0)
    block, x = undecayed(8, 4, head_dim=4).double(), torch.randn(2, 7, 8).double()
    X, log_a, B, C = block.operands(x)
    assert log_a.abs().max() == 0
    assert_close(ssd_quadratic(X, log_a, B, C)[0], linear_attention_parallel(C, B, X))
    block(x).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in block.parameters())


def test_untied_decays_of_one_rate_are_a_tied_decay():
    torch.manual_seed(0)
    untied, tied = UntiedMamba2(8, 4, head_dim=4).double(), Mamba2(8, 4, head_dim=4).double()
    tied.load_state_dict({name: value for name, value in untied.state_dict().items() if name != "offset"})
    x = torch.randn(2, 7, 8).double()
    assert (untied(x) - tied(x)).abs().max() > 1e-3
    rates = (untied.A_log[:, None] + untied.offset).exp()
    assert rates.std(-1).min() > 0
    assert 1 <= rates.min() < rates.max() <= 16
    with torch.no_grad():
        untied.offset.zero_()
    assert_close(untied(x), tied(x))


def test_in_sequence_all_operands_wait_for_x():
    """B, C and dt change with the rows that make X; in Mamba-2 they do not."""
    torch.manual_seed(0)
    x, changed = torch.randn(7, 8).double(), {}
    for kind in (SequentialMamba2, Mamba2):
        block, seen = kind(8, 4, head_dim=4).double(), []
        inner = block._operands
        block._operands = lambda *args, inner=inner, seen=seen: seen.append(inner(*args)) or seen[-1]
        block(x)
        with torch.no_grad():
            block.in_proj.weight[16:32] += 1
        block(x)
        changed[kind] = [not torch.equal(*pair) for pair in zip(*seen, strict=True)]
    assert changed == {SequentialMamba2: [True] * 5, Mamba2: [True, True, False, False, False]}


def test_seeds_are_other_weights_and_other_batches_and_the_test_is_none_of_them(monkeypatch):
    seen = []

    def spy(model, task, plan, test):
        seen.append([model.head.weight.clone(), task(0)[0], task(1)[0], test[0]])
        return trained(model, task, plan, test)

    monkeypatch.setattr(recall, "trained", spy)
    setting = asdict(Setting(4, {}, 20, 32, steps=2, batch=8, dim=4, tests=8))
    for seed in (0, 0, 1):
        run("Mamba-2", 1, 8e-3, setting, seed)
    first, again, other = seen
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert torch.equal(first[3], other[3])
    assert not torch.equal(first[0], other[0])
    drawn = [*first[1:], *other[1:3]]
    assert not any(torch.equal(batch, one) for k, batch in enumerate(drawn) for one in drawn[:k])


def test_recall_in_growing_texts_is_recall_with_other_texts(smoke):
    for setting in recall_stream.FULL.values():
        inputs, targets = setting.texts(2, seed=1)
        assert inputs.shape == (2, 4 * setting.pairs)
        assert (targets != IGNORE).sum() == 2 * setting.pairs
        assert max(inputs.max(), targets.max()) < setting.vocabulary
    entries = {run["mixer"]: run["entries"] for run in smoke("recall_stream").result["runs"].values()}
    assert entries["attention"] == 8 * 2 * 8  # keys and values of 8 tokens
    assert entries["log-linear Mamba-2"] == 9 * entries["Mamba-2"]  # a state for each level of 256 tokens
    assert entries["hybrid"] == entries["Mamba-2"] + entries["attention"]


def test_a_grid_goes_seed_after_seed():
    settings = {
        "A": Setting(2, {"Mamba-1": (1,)}, seeds=2, lrs=(0.01,)),
        "B": Setting(4, {"Mamba-2": (1, 2)}, seeds=1, lrs=(0.01,)),
    }
    jobs = grid(settings)
    names = ["A, Mamba-1, N = 1, lr 0.01, seed 0", "B, Mamba-2, N = 1, lr 0.01, seed 0"]
    names += ["B, Mamba-2, N = 2, lr 0.01, seed 0", "A, Mamba-1, N = 1, lr 0.01, seed 1"]
    assert list(jobs) == names
    assert jobs[names[3]] == {"mixer": "Mamba-1", "state": 1, "lr": 0.01, "setting": asdict(settings["A"]), "seed": 1}


def test_seed_0_chooses_the_rate_of_all_others():
    """By the validation alone, for every model by itself, and not before all its rates have been tried."""
    settings = {"A": Setting(2, {"Mamba-1": (1,), "Mamba-2": (1,)}, seeds=3, lrs=(0.01, 0.02))}

    def record(lr, seed, validation_loss, accuracy=0.0):
        return {"lr": lr, "seed": seed, "validation_loss": validation_loss, "accuracy": accuracy}

    runs = {
        "A, Mamba-1, N = 1, lr 0.01, seed 0": record(0.01, 0, 2.0, accuracy=1.0),
        "A, Mamba-1, N = 1, lr 0.02, seed 0": record(0.02, 0, 1.0),
        "A, Mamba-2, N = 1, lr 0.01, seed 0": record(0.01, 0, 1.0),
    }
    tries = [f"A, {mixer}, N = 1, lr {lr}, seed 0" for mixer in ("Mamba-1", "Mamba-2") for lr in (0.01, 0.02)]
    chosen = [f"A, Mamba-1, N = 1, lr 0.02, seed {seed}" for seed in (1, 2)]
    assert list(swept(settings, {})) == tries
    assert list(swept(settings, runs)) == tries + chosen
    runs["A, Mamba-2, N = 1, lr 0.02, seed 0"] = record(0.02, 0, 3.0)
    assert best_rates(runs) == {"A, Mamba-1, N = 1": 0.02, "A, Mamba-2, N = 1": 0.01}
    every = list(swept(settings, runs))
    assert set(every) == {*tries, *chosen, *(f"A, Mamba-2, N = 1, lr 0.01, seed {seed}" for seed in (1, 2))}
    runs[chosen[0]] = record(0.02, 1, 9.0)
    assert list(swept(settings, runs)) == every  # a reported seed changes no rate
    assert reported(runs) == {"A, Mamba-1, N = 1": [runs[chosen[0]]]}
