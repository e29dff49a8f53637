"""All GPU programs compiled for the cards that people have: none of them asks for more than its card gives."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch
from triton_marks import needs_triton

from smalearn.course.ch12.kernel import chunked_ssd
from smalearn.fast import jit
from smalearn.fast.triton.compiled import Launch, compile_for
from smalearn.fast.triton.configs import LARGEST, SHARED

CHAPTER = Path(__file__).parents[1] / "chapters/12_chunked_kernel.ipynb"
SCRIPT = Path(__file__).with_name("compile_programs.py")
FORWARD = {"ssd_forward", "ssd_backward_states", "ssd_step", "attend"}
FAMILIES = "ssd,step,layer,delta,multilevel"
CARDS = {"sm75": "float16", "sm80": "bfloat16", "sm86": "bfloat16", "sm89": "bfloat16", "sm90": "bfloat16"}
CARDS |= {"sm100": "bfloat16", "sm120": "bfloat16"}


def compiled(target, families, dtype, state, head_dim):
    """Name, registers, bytes spilled and bytes of shared memory of each program, and whether it multiplies by wgmma."""
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
    delta = {"delta_rule_forward", "delta_rule_inverses"}
    ssd = {"ssd_backward_inputs", "ssd_backward_maps", "ssd_carry", "ssd_sums"}
    assert FORWARD | ssd | delta == set(names)
    for name, registers, spilled, shared, _ in programs:
        assert registers <= 255
        assert shared <= SHARED[target] * 1024, name
        assert spilled <= (600 if name in FORWARD else 6000), name  # the backward of chunks has more than fits


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("target", ["sm75", "sm86", "sm90"])
def test_in_float32_programs_fit_the_card(target):
    programs = compiled(target, "ssd,step,delta,multilevel", "float32", 128, 64)
    assert {"delta_rule_forward", "delta_rule_inverses", "attend"} < {name for name, *_ in programs}
    for name, _, spilled, shared, _ in programs:
        assert shared <= SHARED[target] * 1024, name
        assert spilled <= 200, name


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("target", ["sm86", "sm90"])
@pytest.mark.parametrize(("families", "state"), [("ssd", LARGEST), ("multilevel", 64)])
def test_programs_of_other_tiles_fit_the_card(target, families, state):
    """The largest state, which takes more warps or narrower tiles, and the longer tiles of narrow attention."""
    for name, _, spilled, shared, _ in compiled(target, families, CARDS[target], state, 64):
        assert shared <= SHARED[target] * 1024, name
        assert name not in FORWARD or spilled <= 600, name


@pytest.mark.full
@needs_triton
def test_odd_sizes_and_options_compile():
    """Types that change in a loop, say, no interpreter minds."""
    programs = compiled("sm90", f"{FAMILIES},optional", "bfloat16", 24, 40)
    assert {name for name, *_ in programs} > FORWARD
    assert [wgmma for name, *_, wgmma in programs if name == "attend"] == [1, 0]  # in float32 there is none
    assert max(shared for *_, shared, _ in programs) <= SHARED["sm90"] * 1024


@pytest.fixture
def learners_launches():
    """What section 9 of chapter 12 launches in bfloat16, and the same in float32 and chunks of 16."""
    (cell,) = (one for one in nbformat.read(CHAPTER, as_version=4).cells if one.id == "gpu-run")
    launches = []
    token = jit.sender.set(
        lambda kernel, grid, *given, **constants: launches.append(Launch(kernel, grid, given, constants))
    )

    def everywhere(run, X, log2_a, B, C, *others):
        run(X, log2_a, B, C, *others)
        run(X.float(), log2_a, B.float(), C.float(), *others[:-2], 16, 16)
        return SimpleNamespace(compiled_for=lambda *_, **__: None)

    exec(cell.source, {"torch": torch, "chunked_ssd": chunked_ssd, "everywhere": everywhere, "print": lambda *_: None})
    jit.sender.reset(token)
    return launches


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("target", CARDS)
def test_the_learners_kernel_fits_the_card(target, learners_launches):
    halves, float32 = compile_for(target, learners_launches)
    assert max(float32.shared, halves.shared) <= SHARED[target] * 1024
    assert not float32.mma + float32.wgmma + float32.tcgen05
    assert bool(halves.mma + halves.wgmma + halves.tcgen05) == (target != "sm75")


@pytest.mark.full
@needs_triton
def test_longer_chunks_of_float32_do_not_fit(learners_launches):
    """What the chapter says of chunks of 64: kilobytes of each thread are spilled."""
    _, short = learners_launches
    chunk_len, N, P, _ = short.arguments[-4:]
    fits, large = compile_for(
        "sm86", [short, short._replace(arguments=(*short.arguments[:-4], 4 * chunk_len, N, P, 32))]
    )
    assert large.spilled > 2000 > 5 * fits.spilled
