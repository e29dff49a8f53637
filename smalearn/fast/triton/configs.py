"""How large the tiles of the GPU programs are: a rule. Nothing is tuned at run time."""

from typing import NamedTuple

import torch

LARGEST = 256
"""Largest P and N: a state of N rows must fit a program's registers."""
LARGE = {"sm80", "sm90", "sm100", "sm103"}
"""Architectures whose programs may have more shared memory than 99 KiB."""
SHARED = {"sm75": 64, "sm80": 163, "sm86": 99, "sm89": 99, "sm90": 227, "sm100": 227, "sm103": 227, "sm120": 99}
"""KiB of shared memory that a program may have (CUDA programming guide, technical specifications)."""


class Config(NamedTuple):
    """Sizes of one launch."""

    chunk_len: int  # tokens of a chunk, a power of two from 16 to 128
    tile: int  # columns of P that a program holds, a power of two from 16
    num_warps: int  # warps of a program, of 32 threads each
    num_stages: int  # chunks whose loads are under way at once


def padded(size: int) -> int:
    """The smallest power of two that holds `size` and that a matrix product of a GPU can have, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def without_matrix_units(architecture: str, dtype: torch.dtype) -> bool:
    """Tell whether products are done by the ordinary units: in float32, and on GPUs older than Ampere (sm75, T4).

    A T4 has matrix units, but Triton 3.7 has no instructions for them.
    """
    return dtype == torch.float32 or architecture in ("sm70", "sm75")


def config(architecture: str, head_dim: int, state: int, dtype: torch.dtype) -> tuple[Config, Config, Config]:
    """Sizes for the scans over time, and for the backward of the chunks, of inputs and of maps: all of one chunk_len.

    The architecture is that of the GPU, such as "sm90"; "cpu" where there is none.
    """
    head_dim, state = padded(head_dim), padded(state)
    if architecture == "cpu":  # interpreted: the fewer operations the better
        return (Config(64, min(head_dim, 64), 4, 1),) * 3
    if without_matrix_units(architecture, dtype):  # the largest tiles that fit the registers, as compiled
        return (Config(16, 16, 8, 1),) * 3
    narrow = min(head_dim, 32)
    if architecture not in LARGE:
        return Config(32, narrow, 8 if state > 128 else 4, 1), Config(32, narrow, 4, 1), Config(32, narrow, 8, 1)
    tile = min(head_dim, 64 if state <= 128 else 32)
    maps = Config(64, tile, 4, 3) if state <= 128 else Config(64, tile, 8, 2)
    spread = architecture == "sm80" and state * tile > 4096  # for sm90 it would repeat products of 64 rows
    return Config(64, tile, 8 if spread else 4, 2), Config(64, tile, 4, 1), maps
