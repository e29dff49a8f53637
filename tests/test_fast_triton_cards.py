"""All GPU programs compiled for the cards that people have: none of them asks for more than its card gives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from triton_marks import needs_triton

from smalearn.course.exercises.ch12_walk import walk
from smalearn.fast import jit
from smalearn.fast.triton.compiled import Launch, compile_for
from smalearn.fast.triton.configs import SHARED

SCRIPT = Path(__file__).with_name("compile_programs.py")
FORWARD = {"ssd_forward", "ssd_backward_states", "ssd_step", "attend"}
FAMILIES = "ssd,step,layer,delta,multilevel"
CARDS = {"sm75": "float16", "sm80": "bfloat16", "sm86": "bfloat16", "sm89": "bfloat16", "sm90": "bfloat16"}
CARDS |= {"sm100": "bfloat16", "sm120": "bfloat16"}


def compiled(target, families, dtype, state, head_dim):
    """Name, registers, bytes spilled and bytes of shared memory of each program."""
    command = [sys.executable, str(SCRIPT), target, families, dtype, str(state), str(head_dim)]
    variables = os.environ | {"TRITON_INTERPRET": "0"}  # Triton keeps what it has compiled: a second run takes seconds
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(name, *map(int, numbers)) for name, *numbers in lines]


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("target", CARDS)
def test_programs_fit_the_card(target):
    programs = compiled(target, FAMILIES, CARDS[target], 128, 64)
    names = [name for name, *_ in programs]
    assert {*FORWARD, "ssd_backward_chunks", "delta_rule_forward"} == set(names)
    for name, registers, spilled, shared in programs:
        assert registers <= 255
        assert shared <= SHARED[target] * 1024, name
        assert spilled <= (600 if name in FORWARD else 6000), name  # the backward of chunks has more than fits


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("target", ["sm75", "sm86", "sm90"])
def test_in_float32_programs_fit_the_card(target):
    for name, _, spilled, shared in compiled(target, "ssd,step", "float32", 128, 64):
        assert shared <= SHARED[target] * 1024, name
        assert spilled <= 200, name


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("target", CARDS)
def test_the_learners_walk_fits_the_card(target):
    """At the sizes of the chapter, in halves; on a T4, which has no matrix units here, chunks and tiles of 16."""
    chunk_len, width = (16, 16) if target == "sm75" else (32, 64)
    launches = []
    token = jit.sender.set(
        lambda kernel, grid, *given, **constants: launches.append(Launch(kernel, grid, given, constants))
    )
    X, B, C = (torch.zeros(100, width, dtype=torch.float16) for _ in range(3))
    walk(X, torch.zeros(100), B, C, torch.zeros(width, width), chunk_len)
    jit.sender.reset(token)
    (one,) = compile_for(target, launches)
    assert one.shared <= SHARED[target] * 1024
    assert one.spilled <= 100
    assert bool(one.mma + one.wgmma + one.tcgen05) == (target != "sm75")
