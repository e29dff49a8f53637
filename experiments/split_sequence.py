"""One sequence, several machines: Mamba-2 in training, each sequence split between the ranks of a process group.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m experiments.split_sequence

Every rank holds the same model and a slice of every sequence. Two things cross a border between slices: the last
tokens, for the convolution, and the state. Both come from `smalearn.fast.distributed`; all other parts of the model
treat every token by itself. The task is recall, whose questions lie in other slices than the answers. Without
`torch.distributed.run`, the command trains the same model in one process, with the same losses. Ranks that have a GPU
each train there, others on the CPU. With `--plan` it trains nothing, and prints from which length on a split pays.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from experiments.split_plan import plan
from smalearn.course import progress
from smalearn.data import IGNORE, mqar
from smalearn.fast import distributed
from smalearn.models import Block, Mamba2, SequenceModel
from smalearn.models.mamba2 import time_last
from smalearn.train import Plan

TIMEOUT = timedelta(seconds=60)
"""Time after which a rank that waits for the others gives up."""


@dataclass(frozen=True)
class Setting:
    """The task, the model and its training."""

    pairs: int = 4  # K, to remember
    length: int = 64  # T of the sequence, of all slices together
    vocabulary: int = 32  # V
    dim: int = 64  # D
    state: int = 16  # N
    steps: int = 400  # of training
    batch: int = 32  # examples of a step
    lr: float = 8e-3  # the highest learning rate


FULL = Setting()

SMOKE = Setting(pairs=2, length=10, vocabulary=8, dim=8, state=2, steps=3, batch=4)
"""The same in a second, to see that it runs."""


class SplitMamba2(Mamba2):
    """`Mamba2` in training, for a slice of a sequence whose other slices are on the other ranks.

    Its parameters are those of `Mamba2`, which decodes with them.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (..., T, D) for this rank's slice x (..., T, D) of a sequence."""
        self.check("forward", x)
        z, xBC, dt, _ = self._project(x, self._convolve, None)
        X, *operands = self._operands(xBC, dt)
        Y, _ = distributed.ssd(*time_last(*operands))
        return self._output(Y.movedim(-2, -4), X, z)

    def _convolve(self, xBC, _):
        """The convolution, which sees the tokens before this slice."""
        return self.conv.prefill(xBC, distributed.window(xBC, self.conv.weight.shape[-1] - 1))


def build(setting: Setting, mixer: type[Mamba2] = SplitMamba2, seed: int = 0) -> SequenceModel:
    """The model as it is before its training: the same on every rank, and for `Mamba2` itself."""
    torch.manual_seed(seed)
    sizes = {"head_dim": setting.dim // 2, "expand": 1}
    return SequenceModel(setting.vocabulary, [Block(mixer(setting.dim, setting.state, **sizes)) for _ in range(2)])


def own(x: torch.Tensor) -> torch.Tensor:
    """This rank's slice of x (..., T): slices of one length, or of two that differ by 1."""
    return x.tensor_split(dist.get_world_size(), -1)[dist.get_rank()]


def share_of_loss(model: SequenceModel, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of this rank's slice in the mean loss over all questions of the sequences (batch, T).

    The sum over ranks is the loss, and the gradients of the parts add up to its own.
    """
    logits = model(own(tokens)).flatten(0, -2)
    losses = functional.cross_entropy(logits, own(targets).flatten(), ignore_index=IGNORE, reduction="sum")
    return losses / (targets != IGNORE).sum()


def training(model: SequenceModel, setting: Setting) -> Iterator[float]:
    """Train the model: every rank does the same step, on the sum of the gradients of all; yield the loss of each."""
    plan, parameters = Plan(steps=setting.steps, lr=setting.lr), list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=setting.lr)
    shape = setting.length, setting.pairs, setting.vocabulary
    for step in range(setting.steps):
        optimizer.param_groups[0]["lr"] = plan.rate(step)
        tokens, targets = (x.to(parameters[0].device) for x in mqar(setting.batch, *shape, seed=step))
        loss = share_of_loss(model, tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        loss = _add_up(loss.detach(), parameters)
        nn.utils.clip_grad_norm_(parameters, plan.clip)
        optimizer.step()
        yield loss


def _add_up(loss, parameters):
    """Replace all gradients by their sums over the ranks, in one message with the loss; return its sum."""
    gradients = [parameter.grad for parameter in parameters]
    message = torch.cat([loss.view(1), *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(message)
    parts = message[1:].split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return message[0].item()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; rank 0 prints for all, losses on the way to stderr. Exit status 130 if it was stopped."""
    name = "experiments.split_sequence"
    parser = argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=__doc__.partition("\n")[0],
        epilog=f"Example:\n  python -m torch.distributed.run --standalone --nproc-per-node 2 -m {name}",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # no line of the example is broken
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument(
        "--plan", action="store_true", help="count from which length on a split pays, up to 1,024 ranks"
    )
    args = parser.parse_args(argv)
    if args.plan:
        print(plan())
        return 0
    started, is_first = not dist.is_initialized(), True
    try:
        if started:
            _begin()
        is_first = dist.get_rank() == 0
        report = _report(SMOKE if args.smoke else FULL, progress.part if is_first else lambda _: None)
    except KeyboardInterrupt:
        if is_first:
            print("\nsplit_sequence: stopped", file=sys.stderr)
        return 130
    finally:
        if started and dist.is_initialized():
            dist.destroy_process_group()
    if is_first:
        print(report)
    return 0


def _begin():
    """Begin the group that `torch.distributed.run` has prepared, or one of this process alone."""
    alone = {} if dist.is_torchelastic_launched() else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    have_gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= torch.cuda.device_count()
    backend = "nccl" if have_gpus and dist.is_nccl_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group(backend, timeout=TIMEOUT, **alone)


def _report(setting, tell):
    """Train, and tell the losses; return the traffic, and what became of the loss."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    ranks, model = dist.get_world_size(), build(setting).to(device)
    block = model.blocks[0].mixer
    heads = setting.batch * block.groups * block.heads_per_group
    states = distributed.traffic(ranks, heads, block.head_dim, block.state)
    slices, losses = f"{ranks} rank{'s' * (ranks > 1)}", []
    for step, loss in enumerate(training(model, setting), 1):
        losses.append(loss)
        if step % 50 == 0 or step in (1, setting.steps):
            tell(f"step {step:4}  loss {loss:.4f}")
    return (
        f"a sequence of {setting.length} tokens on {slices}; into each rank, per step and layer,\n"
        f"{states.forward} bytes for the states and {states.backward} for their gradients, however long it is;\n"
        f"loss {losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last of {setting.steps}"
    )


if __name__ == "__main__":
    sys.exit(main())
