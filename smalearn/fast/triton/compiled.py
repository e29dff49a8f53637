"""Compile a program for a GPU that need not be there, and say what the compiler made of it.

Triton decides when it is imported whether it interprets or compiles, so this happens in a process of its own, which
sees the programs' source and the types of their arguments, and nothing of smalearn: that it compiles shows that the
source is Triton's.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from smalearn.fast import tile
from smalearn.fast.jit import Kernel
from smalearn.fast.strict import outside

TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64"}
HEAD = "import triton\nimport triton.language as tl"
SCRIPT = """
import json, pathlib, re, runpy, subprocess, sys
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Absent:  # a GPU that compiles and is never run
    get_current_target = lambda self: GPUTarget("cuda", capability, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

class Memory:  # of some type; it begins at a multiple of 16, as PyTorch's does
    def __init__(self, dtype): self.dtype = dtype
    def data_ptr(self): return 0

def given(x):
    return Memory(x["type"]) if isinstance(x, dict) else x

folder, capability = pathlib.Path(sys.argv[1]), int(sys.argv[2])
driver.set_active(Absent())
sys.path.insert(0, str(folder))
import source
for name, grid, arguments, constants in json.loads((folder / "launches.json").read_text(encoding="utf-8")):
    constants = {key: given(x) for key, x in constants.items()}
    kernel = getattr(source, name).warmup(*map(given, arguments), grid=tuple(grid), **constants)
    (folder / "cubin").write_bytes(kernel.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(folder / "cubin")]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{word}:(\\d+)", usage).group(1)) for word in ("REG", "STACK"))
    counts = [kernel.asm["ptx"].count(word) for word in ("wgmma.mma_async", "mma.sync", "tcgen05.mma")]
    print("compiled", json.dumps([name, registers, stack, kernel.metadata.shared, *counts]))
"""


class Launch(NamedTuple):
    """A launch of a kernel: its grid, its arguments in order, and those by name, with `num_warps` and `num_stages`."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: tuple
    constants: dict[str, object]


class Compiled(NamedTuple):
    """What the compiler made of a program."""

    kernel: str  # its name
    registers: int  # of each thread, 255 at most
    spilled: int  # bytes of each thread that found no register and lie in memory
    shared: int  # bytes of shared memory of each program
    wgmma: int  # instructions of Hopper's matrix units, for tiles that come from shared memory
    mma: int  # those of other GPUs' since 2020, for tiles in registers
    tcgen05: int  # those of data centre Blackwell's


def compile_for(target: str, launches: Iterable[Launch]) -> list[Compiled]:
    """Compile the programs of some launches for an architecture such as "sm90", each pair of program and types once.

    It returns one `Compiled` for each launch; RuntimeError, with the compiler's last words, where it refuses a program.
    It takes a process, and a second for each program, ten and more for large products without matrix units. Triton
    keeps what it has compiled, and finds it the next time.
    """
    launches = list(launches)
    kernels = {name: kernel for launch in launches for name, kernel in _needed(launch.kernel).items()}
    with tempfile.TemporaryDirectory() as folder:
        source = "\n\n\n".join([HEAD, *_constants(kernels.values()), *map(_source, kernels.values())]) + "\n"
        Path(folder, "source.py").write_text(source, encoding="utf-8")
        Path(folder, "launches.json").write_text(json.dumps(list(map(_sent, launches))), encoding="utf-8")
        command = [sys.executable, "-c", SCRIPT, folder, target.removeprefix("sm")]
        variables = os.environ | {"TRITON_INTERPRET": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        words = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise RuntimeError(f"compile_for: {target}, Triton's compiler says\n{words}")
    lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("compiled ")]
    return [Compiled(*json.loads(line)) for line in lines]


def _needed(kernel):
    """A kernel and those that it calls, callees first."""
    function, found = inspect.unwrap(kernel), {}
    for name in function.__code__.co_names:
        if isinstance(callee := function.__globals__.get(name), Kernel):
            found |= _needed(callee)
    return found | {kernel.__name__: kernel}


def _constants(kernels):
    """Lines that define the global constants of kernels."""
    found = {name: x for kernel in kernels for name, x in outside(inspect.unwrap(kernel)).items()}
    values = {name: x.value for name, x in found.items() if isinstance(x, tile.constexpr)}
    return [f'{name} = tl.constexpr({type(x).__name__}("{x}"))' for name, x in values.items()]  # float("-inf"), too


def _source(kernel):
    """Source of a program as it was written."""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(kernel))).strip()
    except OSError:
        raise RuntimeError(f"compile_for: source of {kernel.__name__} cannot be read: write it in a cell") from None


def _sent(launch):
    """A launch as JSON: a tensor is the type of its entries."""
    arguments, constants = launch.arguments, launch.constants
    return launch.kernel.__name__, launch.grid, list(map(_type, arguments)), {n: _type(x) for n, x in constants.items()}


def _type(x):
    return {"type": TYPES[x.dtype]} if isinstance(x, torch.Tensor) else x
