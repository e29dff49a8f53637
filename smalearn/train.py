"""One training loop for every small model of the course: it can be watched, interrupted and resumed.

A task is a function from the number of a step to a batch. What a step sees is thus known from its number alone, and a
run that was resumed is the run that was never interrupted, to the last bit.
"""

import contextlib
import math
import numbers
import os
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from smalearn._bar import bar
from smalearn._checks import ShapeError, brief, check_count, check_number, check_tensor, check_type
from smalearn.models import Mixer

__all__ = ["LOSSES", "Plan", "Record", "accuracy", "mean_loss", "train", "write_atomically"]

Batch = tuple[torch.Tensor, torch.Tensor]


def _cross_entropy(outputs, targets):
    """Mean over the questions; outputs are logits, a target of -100 asks nothing."""
    has_target = targets != -100
    return functional.cross_entropy(outputs[has_target], targets[has_target])


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross-entropy": _cross_entropy,
    "absolute error": functional.l1_loss,
    "squared error": functional.mse_loss,
}
"""Losses of outputs and targets by their names: the first for tokens, the others for numbers."""


@dataclass(frozen=True)
class Plan:
    """How to train: AdamW, a learning rate that rises linearly and falls as a cosine, clipped gradients.

    Args:
        steps: ≥ 1, batches to train on.
        lr: the highest learning rate.
        warmup: part of the steps in which it rises, in [0, 1).
        weight_decay: of AdamW; for matrices, as those of linear layers, convolutions and embeddings. Not for norms,
            biases, other parameters with fewer than two axes, and what a mixer has beside its layers, as `A_log`.
        clip: the largest norm of the gradient.
        every: steps from one test, and one checkpoint, to the next.
        loss: a name of `LOSSES`.
        scales: parameter's name -> multiple of the rate at which it learns; 1 for all others.

    Raises:
        ValueError: a value is out of its range. NumPy's numbers count as Python's.
    """

    steps: int
    lr: float = 3e-3
    warmup: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    every: int = 100
    loss: str = "cross-entropy"
    scales: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        for name, value in vars(self).items():  # a file of NumPy's numbers could not be read again
            object.__setattr__(self, name, _plain(value))
        check_count("Plan", "steps", self.steps)
        check_count("Plan", "every", self.every)
        if not 0 <= check_number("Plan", "warmup", self.warmup) < 1:
            raise ValueError(f"Plan: warmup must be in [0, 1), got {self.warmup}")
        for name in ("lr", "clip"):
            if not check_number("Plan", name, getattr(self, name)) > 0:
                raise ValueError(f"Plan: {name} must be positive, got {getattr(self, name)}")
        if not check_number("Plan", "weight_decay", self.weight_decay) >= 0:
            raise ValueError(f"Plan: weight_decay must be ≥ 0, got {self.weight_decay}")
        check_type("Plan", "scales", self.scales, Mapping)
        for name, value in self.scales.items():
            check_number("Plan", f"scales[{name!r}]", value)
        _check_loss("Plan", self.loss)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0 to steps - 1."""
        rising = math.ceil(self.warmup * self.steps)
        if step < rising:
            return self.lr * (step + 1) / rising
        return self.lr * (1 + math.cos(math.pi * (step - rising) / (self.steps - rising))) / 2


@dataclass
class Record:
    """Result of a run: the loss of every step, that of the test and its accuracy at some, whether it was interrupted.

    Only tokens have an accuracy; where the targets are numbers, the loss of the test says it all.
    """

    losses: list[float] = field(default_factory=list)
    accuracies: dict[int, float] = field(default_factory=dict)
    interrupted: bool = False
    test_losses: dict[int, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """The last accuracy, NaN if there was no test."""
        return next(reversed(self.accuracies.values()), math.nan)


def train(
    model: nn.Module,
    task: Callable[[int], Batch],
    plan: Plan,
    test: Batch | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
) -> tuple[nn.Module, Record]:
    """Train a model in place to predict a task's targets: tokens, -100 where nothing is asked; or numbers.

    Interrupt it (the stop button, Ctrl+C) when you have seen enough: it returns what it has. With a checkpoint, the
    same call goes on where the file was last written, at most `plan.every` steps back; a finished run comes back at
    once. Where SMALEARN_QUICK is "all" in the environment, a run without a checkpoint ends after three steps.

    Args:
        model: tokens (..., T) in, logits (..., T, V) out; or anything in, numbers of the targets' shape out.
        task: from a step's number to its inputs and targets (..., T); the same number gives the same batch.
        plan: how to train, and by which loss.
        test: inputs and targets that no step sees, to be measured every `plan.every` steps and after the last one.
        checkpoint: a file to go on from, if it exists, and to write to. It is replaced as a whole or not at all.
        progress: show a curve of the loss below the cell, a bar in the terminal.

    Returns:
        The model, in evaluation mode, and the record.

    Raises:
        ValueError: the checkpoint is of another plan, task or model, or is not a checkpoint; the file stays as it was.
            Or a loss or gradient is infinite or NaN; the model stays as it was before that step.

    Example:
        >>> model, record = train(model, lambda step: mqar(64, 64, 8, 64, seed=step), Plan(steps=1000))
    """
    path = None if checkpoint is None else Path(checkpoint)
    if path is None and os.environ.get("SMALEARN_QUICK") == "all":  # a test asks whether it runs, not what it learns
        plan = replace(plan, steps=min(plan.steps, 3))
    run = _Run(model, plan)
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"train: there is no folder {path.parent} for the checkpoint")
    fingerprint = None if path is None else _fingerprint(task(0))
    if path is not None and path.exists():
        run.load(path, fingerprint)
    start = len(run.record.losses)
    show = bar(plan.steps, start) if progress and start < plan.steps else None
    try:
        for done in range(start + 1, plan.steps + 1):
            run.step(*task(done - 1))
            if done % plan.every == 0 or done == plan.steps:
                if test is not None:
                    run.test(done, *test)
                if path is not None:
                    run.save(path, fingerprint)
            if show is not None:
                show(done, run.record.losses[-1])
    except KeyboardInterrupt:
        run.record.interrupted = True
    return model.eval(), run.record


@torch.no_grad()
def mean_loss(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, loss: str = "cross-entropy", batch: int = 256
) -> float:
    """The loss over many examples, every question with the same weight.

    Args:
        model: of inputs (B, ...), as in `train`.
        inputs: (B, ...).
        targets: (B, ...), -100 where nothing is asked of a model of tokens.
        loss: a name of `LOSSES`.
        batch: examples at a time.

    Returns:
        Sum of losses / questions, NaN if there are no questions.
    """
    _check_loss("mean_loss", loss)
    total, count = 0.0, 0
    for outputs, y in _in_parts("mean_loss", model, inputs, targets, batch, loss):
        questions = int((y != -100).sum()) if loss == "cross-entropy" else y.numel()
        if questions:
            total += LOSSES[loss](outputs, y).item() * questions
        count += questions
    return total / count if count else math.nan


@torch.no_grad()
def accuracy(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, batch: int = 256) -> float:
    """How often the largest logit is the target, where one is asked for.

    Args:
        model: tokens (B, T) in, logits (B, T, V) out.
        inputs: (B, T).
        targets: (B, T), -100 where nothing is asked.
        batch: examples at a time.

    Returns:
        Right answers / questions, NaN if there are no questions.
    """
    right, questions = 0, 0
    for outputs, y in _in_parts("accuracy", model, inputs, targets, batch):
        has_target = y != -100
        right += (outputs.argmax(-1) == y)[has_target].sum().item()
        questions += has_target.sum().item()
    return right / questions if questions else math.nan


def _check_loss(function, loss):
    """Check the name of a loss."""
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(f"{function}: loss must be one of {', '.join(LOSSES)}, got {brief(loss)}")


def _in_parts(function, model, inputs, targets, batch, loss="cross-entropy"):
    """Yield outputs and targets of so many examples at a time, the model evaluating; it is then as before."""
    check_type(function, "model", model, nn.Module)
    check_tensor(function, "inputs", inputs)
    check_tensor(function, "targets", targets)
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
        got = f"{tuple(inputs.shape)} and {tuple(targets.shape)}"
        raise ShapeError(f"{function}: inputs and targets need axes (B, ...) with one B, got {got}")
    check_count(function, "batch", batch)
    training = model.training
    model.eval()
    for x, y in zip(inputs.split(batch), targets.split(batch), strict=True):
        yield _outputs(function, model, x, y, loss), y
    model.train(training)


def _outputs(function, model, inputs, targets, loss="cross-entropy"):
    """A model's outputs, checked: logits behind the axes of the targets for a cross-entropy, else their very shape."""
    outputs = model(inputs)
    check_tensor(function, "outputs of the model", outputs)
    logits = loss == "cross-entropy"
    if logits and (targets.is_floating_point() or targets.is_complex()):
        raise ValueError(f"{function}: targets of logits must be integers, got {targets.dtype}")
    got, expected = tuple(outputs.shape), ", ".join([*map(str, targets.shape), *["V"] * logits])
    if (got[:-1] if logits else got) != tuple(targets.shape):
        raise ShapeError(f"{function}: outputs of the model have shape {got}, expected ({expected}) for these targets")
    return outputs


class _Run:
    """A model, its optimiser and its record, which are saved and loaded together."""

    def __init__(self, model, plan):
        groups = defaultdict(list)
        for name, p in model.named_parameters():
            groups[plan.weight_decay * _is_matrix(model, name, p), plan.scales.get(name, 1.0)].append(p)
        options = [{"params": part, "weight_decay": decay, "scale": scale} for (decay, scale), part in groups.items()]
        self.model, self.plan, self.record = model, plan, Record()
        self.optimizer = torch.optim.AdamW(options, lr=plan.lr)

    def step(self, inputs, targets):
        """One step, on the mean loss over the questions."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(len(self.record.losses)) * group["scale"]
        loss = LOSSES[self.plan.loss](_outputs("train", self.model, inputs, targets, self.plan.loss), targets)
        self._check("loss", loss.item())
        self.optimizer.zero_grad()
        loss.backward()
        self._check("norm of the gradient", nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip).item())
        self.optimizer.step()
        self.record.losses.append(loss.item())

    def _check(self, name, number):
        """Check that a number of this step is finite, before the weights are not."""
        if not math.isfinite(number):
            at = f"step {len(self.record.losses)}: look at its batch from the task, or lower the lr"
            raise ValueError(f"train: the {name} is {number:.3g} at {at}")

    def test(self, done, inputs, targets):
        """Measure the test, and record its loss, and its accuracy if the targets are tokens."""
        self.record.test_losses[done] = mean_loss(self.model, inputs, targets, self.plan.loss)
        if self.plan.loss == "cross-entropy":
            self.record.accuracies[done] = accuracy(self.model, inputs, targets)

    def save(self, path, fingerprint):
        """Write everything that the next step depends on."""
        state = {
            "plan": asdict(self.plan),
            "task": fingerprint,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.record.losses,
            "accuracies": self.record.accuracies,
            "test_losses": self.record.test_losses,
        }
        write_atomically(path, lambda file: torch.save(state, file))

    def load(self, path, fingerprint):
        """Go on from a file, if it is one of this run."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            saved = {"plan": state["plan"], "task": state["task"]}
        except Exception as error:
            kind = type(error).__name__
            raise ValueError(f"train: {path} is not a checkpoint ({kind}); give another file") from error
        for name, expected in (("plan", asdict(self.plan)), ("task", fingerprint)):
            if saved[name] != expected:
                raise ValueError(f"train: {path} is of another {name}; give another file, or remove it")
        shapes = {key: value.shape for key, value in self.model.state_dict().items()}
        if {key: value.shape for key, value in state["model"].items()} != shapes:
            raise ValueError(f"train: {path} is of another model; give another file, or remove it")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.record = Record(state["losses"], state["accuracies"], test_losses=state["test_losses"])


def write_atomically(path: Path, write: Callable[[object], None]) -> None:
    """Write a file so that at any moment its name has the old contents or the new ones, and nothing in between.

    Args:
        path: of the file.
        write: takes a binary file and writes to it.
    """
    handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _fingerprint(batch):
    """Checksums of the first batch: enough to tell one task, or one seed, from another."""
    parts = (part.detach().cpu().resolve_conj().resolve_neg().flatten().contiguous() for part in batch)
    return [zlib.crc32(part.view(torch.uint8).numpy().tobytes()) for part in parts]  # NumPy has no bfloat16


def _plain(value):
    """A value with Python's own numbers and strings in place of NumPy's."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(part) for key, part in value.items()}
    kinds = (bool, bool), (numbers.Integral, int), (numbers.Real, float), (str, str)
    return next((own(value) for kind, own in kinds if isinstance(value, kind)), value)


def _is_matrix(model, name, p):
    """Whether weight decay is for a parameter: no bias or norm, and nothing that a mixer has beside its layers."""
    path, _, name = name.rpartition(".")
    owner = model.get_submodule(path)
    return (
        p.ndim > 1 and not name.endswith(("bias", "A_log")) and not isinstance(owner, (Mixer, nn.LayerNorm, nn.RMSNorm))
    )
