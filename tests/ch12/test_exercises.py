"""What the exercises of chapter 12 say to kernels that students would write."""

import itertools

import pytest
import torch

from smalearn.course.ch12.chunk import walked
from smalearn.course.ch12.exponents import decay_tile
from smalearn.course.ch12.walk import walk_kernel
from smalearn.course.exercises import evaluate, registry
from smalearn.course.exercises.core import count_lines
from smalearn.fast import tile as tl
from smalearn.fast.jit import triton
from smalearn.testing import random_tensors, relative_rms

EXERCISES = registry()


def judged(id, attempt):
    return evaluate(EXERCISES[id], attempt)


def walking(kernel):
    """A launcher as the solution's, of another kernel."""

    def walk(X, log2_a, B, C, initial, Q):
        (N, P), Y, final = initial.shape, torch.full_like(X, torch.nan), torch.full(initial.shape, torch.nan)
        kernel[(1,)](X, log2_a, B, C, Y, initial, final, len(X), Q=Q, N=N, P=P)
        return Y, final

    return walk


@triton.jit
def without_masks(x, log2_a, b, c, y, initial, final, length, Q: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    i, n, p = tl.arange(0, Q), tl.arange(0, N), tl.arange(0, P)
    state = n[:, None] * P + p[None, :]
    tl.store(final + state, tl.load(initial + state))
    for start in range(0, length, Q):
        wide = (start + i)[:, None] * P + p[None, :]
        tl.store(y + wide, tl.load(x + wide))


def test_a_forgotten_mask_is_told_with_its_offset():
    result = judged("12.8", walking(without_masks))
    assert result.outcome == "error"
    assert any("without_masks, program (0, 0, 0): load of x at offset 32" in line for line in result.problem.lines)


@triton.jit
def indexed(h, x, b, c, log2_a, y, after, Q: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    s = tl.cumsum(tl.load(log2_a + tl.arange(0, Q)))
    tl.store(y, s[-1])


def reading(kernel):
    def one_chunk(H, X, B, C, log2_a):
        Y, after = torch.empty_like(X), torch.empty_like(H)
        kernel[(1,)](H, X, B, C, log2_a, Y, after, Q=len(X), N=len(H), P=H.shape[1])
        return Y, after

    return one_chunk


def test_what_triton_lacks_is_an_error_that_names_the_word():
    result = judged("12.7", reading(indexed))
    assert result.outcome == "error"
    assert any(
        "no entries that one can pick, [-1]: mask with tl.where and add up, tl.sum" in x for x in result.problem.lines
    )


def test_an_answer_of_pytorch_is_not_as_asked():
    result = judged("12.2", lambda x, log2_a: x * log2_a.exp2())
    assert result.outcome == "not as asked"
    assert result.detours == ("it launches no kernel: `kernel[grid](…)`",)


def test_a_launcher_without_a_grid_hears_how():
    @triton.jit
    def bare(x):
        tl.store(x, 1.0)

    result = judged("12.2", lambda x, log2_a: bare(x))
    assert result.outcome == "error"
    assert any("bare: a kernel is launched, bare[grid](...)" in line for line in result.problem.lines)


def test_code_and_length_of_a_solution_have_its_kernel():
    exercise = EXERCISES["12.2"]
    assert exercise.code.startswith("@triton.jit\ndef decay_kernel(")
    assert "\n\n\ndef decayed(x, log2_a):" in exercise.code
    assert count_lines(exercise.solution) == 7


@pytest.mark.parametrize("form", ["quotient", "late mask"])
def test_forms_that_break_are_right_where_decays_are_mild(form):
    log2_a = -torch.rand(16)
    s = log2_a.double().cumsum(0)
    assert torch.allclose(decay_tile(form, log2_a), (s[:, None] - s).tril().exp2().tril().float(), rtol=1e-5)


def test_what_breaks_exponents_says_what_is_wrong_with_an_answer():
    says = {
        "a tensor of 16 numbers, (16,), is asked for": lambda form, least, length: 3,
        "finite numbers are asked for; yours has nan": lambda form, least, length: torch.full((length,), torch.nan),
        "the log decays must lie between -12 and 0": lambda form, least, length: torch.full((length,), 1.0),
        "the form “quotient” gives finite numbers for these": lambda form, least, length: torch.zeros(length),
    }
    for sentence, attempt in says.items():
        assert sentence.lower() in judged("12.6", attempt).problem.sentence.lower()


@pytest.mark.parametrize("id", [f"12.{number}" for number in (2, 3, 4, 5, 7, 8, 9, 10, 11)])
def test_solutions_are_the_same_in_tritons_interpreter(id):
    from triton_marks import needs_triton

    if needs_triton.args[0]:
        pytest.skip(needs_triton.kwargs["reason"])
    from smalearn.fast import jit
    from smalearn.fast.triton.everywhere import _difference, _in_triton, _through

    exercise = EXERCISES[id]
    for case in exercise.draw(3):
        expected = _through(jit.in_emulator, exercise.solution, case)
        if all(x.numel() for x in (expected if isinstance(expected, tuple) else (expected,))):
            assert _difference(_through(_in_triton, exercise.solution, case), expected) < 1e-5


def rewritten(id, old, new):
    """The solution with one expression exchanged."""
    exercise = EXERCISES[id]
    assert old in exercise.code
    space = {"torch": torch, "tl": tl, "triton": triton, "walk_kernel": walk_kernel}
    exec(exercise.code.replace(old, new), space)
    return judged(id, space[exercise.solution.__name__])


@pytest.mark.parametrize(
    ("id", "old", "new", "said"),
    [
        ("12.5", "triton.cdiv(x.shape[1], 16)", "1", "nothing is stored: they hold"),
        ("12.8", "a + start + i, mask=inside, other=0.0", "a + start + i", None),
        ("12.8", "a + start + i, mask=inside, other=0.0", "a + start + i, mask=inside", "it is given: `other=0.0`"),
        ("12.8", "b + narrow, mask=inside[:, None], other=0.0", "b + narrow, mask=inside[:, None]", "a load is any"),
        ("12.9", "tl.store(final + state, H)", "pass", "entries in which nothing is stored"),
        ("12.9", "ssd_kernel[P // tile", "ssd_kernel[1", "nothing is stored"),
    ],
)
def test_a_slip_in_a_kernel_is_named(id, old, new, said):
    result = rewritten(id, old, new)
    assert result.outcome == ("failed" if said else "error")
    assert said is None or said in result.sign


READ = "a = tl.load(log2_a + rows"
EXACT, CARRIED = ', input_precision="ieee"', 'fX, input_precision="ieee")'
CONSTANT = "its `length` is a `tl.constexpr` and changes with the length: each length is compiled anew"


@pytest.mark.parametrize(
    ("id", "old", "new", "said"),
    [
        *((id, EXACT, "", 'input_precision="ieee"') for id in ("12.4", "12.7", "12.8", "12.9", "12.11")),
        ("12.4", f"tl.dot(A, B{EXACT})", "tl.sum(A[:, :, None] * B[None, :, :], 1)", "it calls no `tl.dot`"),
        ("12.9", ".to(X.dtype)", "", "in half precision it stops: TypeError: "),
        ("12.9", "torch.empty(X.shape, dtype=X.dtype)", "torch.empty(X.shape)", "its output is float32"),
        (
            "12.9",
            "torch.empty(initial.shape)",
            "torch.empty_like(initial, dtype=X.dtype)",
            "the state it returns is float16",
        ),
        ("12.9", CARRIED, f"{CARRIED}\n        H = H.to(X.dtype).to(tl.float32)", "has been rounded to float16"),
        ("12.9", READ, f"H = H.to(X.dtype)\n        {READ}", "has been rounded to float16"),
        ("12.2", "length, block", "length: tl.constexpr, block", CONSTANT),
        ("12.5", "length, width", "length: tl.constexpr, width", CONSTANT),
        ("12.8", "final, length,", "final, length: tl.constexpr,", CONSTANT),
    ],
)
def test_what_is_right_but_not_as_asked_hears_the_one_thing(id, old, new, said):
    result = rewritten(id, old, new)
    assert (result.outcome, len(result.detours)) == ("not as asked", 1)
    assert said in result.detours[0]


def test_a_sum_that_begins_as_a_number_is_refused_as_the_compiler_does():
    result = rewritten("12.5", "tl.zeros((tile,), tl.float32)", "0.0")
    assert "total is one number, float32, before the loop" in " ".join(result.problem.lines)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("@triton.jit\n", "", "a kernel has `@triton.jit` above its `def`"),
        ("tile: tl.constexpr", "tile", "mark them `tl.constexpr`"),
    ],
)
def test_a_slip_in_the_head_of_a_kernel_is_an_error(old, new, said):
    """The head of 12.5 is the learner's."""
    result = rewritten("12.5", old, new)
    assert result.outcome == "error"
    assert said in " ".join(result.problem.lines)


def one_launch_a_head(X, log2_a, B, C, initial, borders, chunk_len, tile):
    """The walk of 12.8, launched for each head of each sequence."""
    (heads, P), N, Y, final = X.shape[1:], B.shape[2], torch.empty(X.shape), torch.empty(initial.shape)
    for k, (first, end) in enumerate(itertools.pairwise(borders.tolist())):
        for head in range(heads):
            group = head * B.shape[1] // heads
            parts = (z[first:end] for z in (X[:, head], log2_a[:, head], B[:, group], C[:, group]))
            x, a, b, c = (z.contiguous() for z in parts)
            y, sizes = torch.empty(x.shape), {"chunk_len": chunk_len, "N": N, "P": P}
            walk_kernel[(1,)](x, a, b, c, y, initial[k, head], final[k, head], end - first, **sizes)
            Y[first:end, head] = y
    return Y, final


def test_a_loop_in_python_over_heads_and_sequences_is_not_as_asked():
    found = judged("12.9", one_launch_a_head).detours
    assert any("it launches 4 times" in one for one in found)
    assert "it launches one program where 8 are asked, side by side" in found


def test_one_program_as_wide_as_its_arguments_is_not_as_asked():
    block = "block=triton.next_power_of_2(len(x))"
    result = rewritten("12.2", "(triton.cdiv(len(x), 16),)", "(1,)")
    assert result.outcome == "failed"
    exercise = EXERCISES["12.2"]
    space = {"torch": torch, "tl": tl, "triton": triton}
    exec(exercise.code.replace("(triton.cdiv(len(x), 16),)", "(1,)").replace("block=16", block), space)
    assert "its `block` is a `tl.constexpr` and changes with the length" in judged("12.2", space["decayed"]).detours[0]


def test_parts_of_a_loop_may_be_counted():
    loop = "for part in range(tl.cdiv(length, tile)):\n        start = part * tile"
    assert rewritten("12.5", "for start in range(0, length, tile):", loop).passed


@triton.jit
def token_by_token(x, log2_a, b, c, y, initial, final, length, Q: tl.constexpr, N: tl.constexpr, P: tl.constexpr):
    n, p = tl.arange(0, N), tl.arange(0, P)
    H = tl.load(initial + n[:, None] * P + p[None, :])
    for t in range(0, length):
        X, B, C = tl.load(x + t * P + p), tl.load(b + t * N + n), tl.load(c + t * N + n)
        H = tl.exp2(tl.load(log2_a + t)) * H + B[:, None] * X[None, :]
        tl.store(y + t * P + p, tl.sum(C[:, None] * H, 0))
    tl.store(final + n[:, None] * P + p[None, :], H)


def test_a_walk_from_token_to_token_is_not_as_asked():
    result = judged("12.8", walking(token_by_token))
    assert result.outcome == "not as asked"
    assert {"it calls no `tl.dot`", "it does the same work whatever chunk_len is"} <= set(result.detours)


def test_a_walk_in_chunks_of_its_own_choice_is_not_as_asked():
    walk = EXERCISES["12.8"].solution
    result = judged("12.8", lambda *operands: walk(*operands[:-1], 16))
    assert result.detours == ("it does the same work whatever chunk_len is",)


@pytest.mark.parametrize("strength", [-0.5, -12.0, -100.0])
def test_a_chunk_keeps_its_digits_whatever_its_decays(strength):
    """What is left of a token is 2^(last − s), which is exact only if `last` is an entry of s."""
    H, X, B, C, z = random_tensors([(16, 16)] * 4 + [(16,)], dtype=torch.float32)
    found = EXERCISES["12.7"].solution(H, X, B, C, strength * z.abs())
    for ours, exact in zip(found, walked(H, X, strength * z.abs(), B, C), strict=True):
        assert relative_rms(ours, exact) < 3e-6
