"""Compile all GPU programs of the package for a GPU that is not there, under TRITON_INTERPRET=0.

For each program that is launched it prints its name, registers, bytes spilled, bytes of shared memory, and whether it
multiplies by `wgmma`.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from smalearn.fast.triton import delta, launch, mamba2, multilevel, plan, ssd, step


class Absent:
    """A GPU that compiles and is never run."""

    def __init__(self, target):
        self.target = GPUTarget("cuda", int(target.removeprefix("sm")), 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compiled(program, grid, *operands, **constants):
    """Compile in place of a launch."""
    kernel = launch.for_triton(program).warmup(*operands, grid=grid, **constants)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cubin")
        path.write_bytes(kernel.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{word}:(\d+)", usage).group(1) for word in ("REG", "STACK"))
    multiplies = int("wgmma" in kernel.asm["ptx"])
    print(program.__name__, registers, stack, kernel.metadata.shared, multiplies, flush=True)


def ssd_programs(dtype, state, head_dim):
    shapes = [(1, 2, 300, head_dim), (1, 1, 300, state), (1, 1, 300, state), (1, 2, head_dim, state)]
    X, B, C, H = (torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    log_a = torch.zeros(1, 2, 300, requires_grad=True)
    Y, last = ssd.ssd_of("on_triton", X, log_a, B, C, H)
    torch.autograd.backward([Y, last], [Y, last])
    with torch.no_grad():  # so long that the scan is cut
        ssd.ssd_of("on_triton", *(x.repeat_interleave(8, 2) for x in (X, log_a, B, C)), H)


def step_programs(dtype, state, head_dim):
    maps = torch.zeros(1, 2, state, dtype=dtype)
    step._step("compile", compiled, maps[..., :16], torch.zeros(1, 2), maps, maps, torch.zeros(1, 2, 16, state))


def layer_programs(dtype, state, head_dim):
    x, z = (torch.zeros(1, 70, 4, head_dim, dtype=dtype) for _ in range(2))
    B, C = (torch.zeros(1, 70, 1, state, dtype=dtype) for _ in range(2))
    tensors = [x.requires_grad_(), torch.zeros(1, 70, 4), *torch.zeros(1, 4), B, C, *torch.zeros(2, 4)]
    x, dt, A, B, C, D, bias = tensors
    options = mamba2._Options(1, (True, 0.0, float("inf")), [0, 30, 30, 70])
    y, last = mamba2._in_one("on_triton", options, mamba2._Tensors(x, dt, A, B, C, D, z, bias, None))
    torch.autograd.backward([y, last], [y, last])


def delta_programs(dtype, state, head_dim):
    V, K = torch.zeros(1, 2, 70, head_dim, dtype=dtype), torch.zeros(1, 2, 70, state, dtype=dtype)
    delta.delta_rule_of("on_triton", K, K, V, torch.zeros(1, 2, 70), torch.zeros(1, 2, 70), None)


def multilevel_programs(dtype, state, head_dim):
    Q, V = torch.zeros(1, 2, 300, state, dtype=dtype), torch.zeros(1, 2, 300, head_dim, dtype=dtype)
    multilevel.multilevel_forward(Q, Q, V, [state // 2, state // 2], [512, 32])


def optional_programs(dtype, state, head_dim):
    """What is absent above, or of another kind."""
    X, B = torch.zeros(1, 2, 300, head_dim, dtype=dtype, requires_grad=True), torch.zeros(1, 1, 300, state, dtype=dtype)
    ssd.ssd_of("on_triton", X, None, B, B, None)[0].sum().backward()
    X, B = X[:, :, :100].detach(), B[:, :, :100]
    delta.delta_rule_of("on_triton", B, B, X, torch.zeros(1, 2, 100), None, torch.zeros(1, 2, head_dim, state))
    X, B = (x[..., None, :].contiguous() for x in (X[:, 0], B[:, 0]))
    options = mamba2._Options(1, (False, 0.1, 0.5), None)
    mamba2._in_one("on_triton", options, mamba2._Tensors(X, X[..., 0], torch.zeros(1), B, B, None, None, None, None))
    ranks = (1, 2, state - 3)  # in float32, with borders that no tile has
    Q, V = torch.zeros(1, 2, 300, state), torch.zeros(1, 2, 300, head_dim)
    multilevel.multilevel_forward(Q, Q, V, ranks, [450, 150, 30])


def main(target, families, dtype, state, head_dim):
    """Compile the programs of some families."""
    assert not launch.interprets()
    launch.on_triton = compiled
    driver.set_active(Absent(target))
    multilevel.check_triton = lambda *_: None
    for module in (plan, delta, multilevel):
        module.architecture = lambda device: target
    plan._processors, ssd.sums_beforehand = lambda device: 9, lambda device: True
    for family in families.split(","):
        globals()[f"{family}_programs"](getattr(torch, dtype), int(state), int(head_dim))


if __name__ == "__main__":
    main(*sys.argv[1:])
