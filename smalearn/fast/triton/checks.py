"""Input checks shared by the GPU entry points, and `strided`: a tensor as (pointer, strides)."""

import torch

from smalearn._checks import check_ssd
from smalearn.fast.triton import launch
from smalearn.fast.triton.configs import LARGEST

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST = 65535
"""Programs on the second and third axis of a GPU's grid."""


def check_operands(function, X, log_a, B, C, state, time="t"):
    """Check what `check_ssd` does, and that the programs take these dtypes and sizes."""
    check_ssd(function, X, log_a, B, C, state, time)
    check_programs(function, "X" if time else "x", X, B)


def check_programs(function, name, X, B):
    """Check that the programs take the dtype of X, called `name`, and the sizes P of X and N of B."""
    if X.dtype not in DTYPES:
        raise ValueError(f"{function}: {name} is {X.dtype}, expected torch.float32, torch.float16 or torch.bfloat16")
    for letter, size in (("p", X.shape[-1]), ("n", B.shape[-1])):
        if not 1 <= size <= LARGEST:
            raise ValueError(f"{function}: axis '{letter}' is {size}, expected 1 to {LARGEST}")


def check_triton(function, X, instead="ssd_tiles runs such programs to learn from, ssd_cpu is the fast one"):
    """Check that Triton is here and runs programs where X is; the message says what to take `instead`."""
    if not launch.has_triton():
        raise RuntimeError(f"{function}: Triton is missing, which exists for Linux: {instead}")
    interprets = launch.interprets()
    if X.device.type != "cuda" and not interprets:
        raise RuntimeError(
            f"{function}: the tensors are on {X.device}, expected on a GPU, unless Triton interprets: "
            "set TRITON_INTERPRET=1 before Python starts"
        )
    if interprets and X.dtype == torch.bfloat16:
        raise ValueError(f"{function}: Triton's interpreter is wrong in bfloat16: use float32 or float16 there")


def check_grid(function, X, sequences=1):
    """Check that the leading axes of X (b, g, r, T, P), and so many sequences in T, fit a grid."""
    batch, groups, heads = X.shape[:3]
    if max(batch * sequences, groups * heads) > MOST:
        what = "batch is" if sequences == 1 else "sequences are"
        sizes = f"{what} {batch * sequences} and heads are {groups * heads}"
        raise ValueError(f"{function}: {sizes}, expected at most {MOST}: split the batch")


def strided(x):
    """Give a tensor as a program takes it: itself, and its strides."""
    return None if x is None else (x, *x.stride())
