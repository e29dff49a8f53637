"""The judge of exercise 4.6: what it counts, and each of its verdicts."""

import re

import pytest
import torch

from smalearn.course.ch04.invent import Judge, Operations, _mask
from smalearn.course.ch04.scans import break_it
from smalearn.course.exercises import evaluate, registry, report
from smalearn.course.exercises.card import card
from smalearn.masks import CausalMask, DecayMask, FourierMask, LowRankMask, SemiseparableMask, ToeplitzMask
from smalearn.testing import random_tensors

ALL = Judge(1, 7, 128, 256)
double = torch.float64


def ones(*shape):
    return torch.ones(shape, dtype=double)


def waves(length):
    time = torch.arange(length, dtype=double)
    return torch.stack([time.cos(), time.sin()], 1)


MASKS = {
    "causal": CausalMask,
    "decay": lambda T: DecayMask(T, 0.9),
    "semiseparable": lambda T: SemiseparableMask(-torch.arange(T, dtype=double) / T),
    "Toeplitz": lambda T: ToeplitzMask(waves(T)[:, 0], waves(T)[:, 1]),
    "Fourier": FourierMask,
    "low rank": lambda T: LowRankMask(waves(T), waves(T)),
    "low rank, causal": lambda T: LowRankMask(waves(T), waves(T)) * CausalMask(T),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_the_library_are_structured(name):
    build = MASKS[name]
    dtype = torch.complex128 if build(2).is_complex else double
    assert ALL(lambda T: build(T).dense(dtype), lambda x: build(len(x)).matmul(x)) == "structured"
    verdict = "from T = 128 to 256 the operations of matmul grow more than threefold"
    assert ALL(lambda T: build(T).dense(dtype), lambda x: build(len(x)).dense(dtype) @ x) == verdict


def triangle(T):
    return ones(T, T).tril()


@pytest.mark.parametrize(
    ("dense", "matmul", "verdict"),
    [
        (lambda T: [[1.0] * T] * T, lambda x: x, "at T = 1: dense(T) is no (T, T) tensor"),
        (lambda T: ones(T, T + 1), lambda x: x, "at T = 1: dense(T) is no (T, T) tensor"),
        (triangle, lambda x: x.cumsum(0)[:, :1], "at T = 1: matmul(x) does not have the shape of x"),
        (triangle, lambda x: x.cumsum(0).tolist(), "at T = 1: matmul(x) does not have the shape of x"),
        (
            triangle,
            lambda x: x.flip(0).cumsum(0),
            "at T = 7: matmul(x) and dense(T) @ x differ: at row 0, column 0 the mask is 1 in dense, 0 in matmul",
        ),
        (triangle, lambda x: x.cumsum(0) * torch.nan, "at T = 1: matmul(x) and dense(T) @ x differ"),
        (
            triangle,
            lambda x: x.cumsum(1),
            "at T = 1: matmul(x) and dense(T) @ x differ: column 1 of matmul(x) depends on column 0 of x, and time is "
            "axis 0",
        ),
        (
            triangle,
            lambda x: torch.rand(1) * x.cumsum(0),
            "at T = 1: matmul(x) and dense(T) @ x differ: two calls with the same x differ, so draw what is random "
            "once, or from a seed",
        ),
        (lambda x: x.cumsum(0), triangle, "at T = 1: the two have changed places: judge(dense, matmul)"),
        (lambda T: torch.eye(T), torch.clone, "at T = 7: fewer than a quarter of the mask's entries are not zero"),
    ],
)
def test_verdicts(dense, matmul, verdict):
    assert ALL(dense, matmul) == verdict


def test_growth_needs_a_doubled_length():
    def matmul(x):
        return triangle(len(x)) @ x

    assert Judge(128, 200)(triangle, matmul) == Judge(256)(triangle, matmul) == "structured"


@pytest.mark.parametrize(
    ("work", "count"),
    [
        (lambda x: x @ ones(3, 5), 2 * 8 * 3 * 5 + 15),
        (lambda x: x[None].expand(2, 8, 3).bmm(ones(2, 3, 5)), 2 * 2 * 8 * 3 * 5 + 30),
        (lambda x: x.cumsum(0), 24),
        (lambda x: x.sum(), 24),
        (lambda x: x[2:].mT.reshape(3, 6)[0], 0),
        (lambda x: x.clone().add_(1), 2 * 24),
        (lambda x: torch.fft.fft(x.to(torch.complex128), dim=0), 24 + 24 * 3),
    ],
)
def test_what_counts_as_an_operation(work, count):
    (x,) = random_tensors([(8, 3)])
    with Operations() as operations:
        work(x)
    assert operations.count == count


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda judge: judge, "Expected the judge's verdict, got Judge"),
        (lambda judge: "structured", "Expected the judge's verdict, got 'structured'"),
        (lambda judge: (triangle, torch.clone), "Your two functions go to the judge"),
        (lambda judge: judge(triangle, lambda x: 2 * x.cumsum(0)), "At T = 1: matmul(x) and dense(T) @ x differ"),
        (lambda judge: judge(triangle, lambda x: x.cumsum(0)), "At T = 7: this is the mask of section 1"),
    ],
)
def test_an_attempt_hears_what_the_judge_says_or_that_it_was_not_asked(attempt, sentence):
    result = evaluate(registry()["4.6"], attempt)
    assert result.problem.sentence.startswith(sentence)
    assert "judge = " not in report.render(result) + card(result, [], "")


@pytest.mark.parametrize(
    ("tokens", "said"), [(150, None), (139, None), (126, "but is not yet 0"), (100, "e⁻¹⁰³ is the limit")]
)
def test_a_float32_is_0_where_its_last_digit_is_gone(tokens, said):
    result = evaluate(registry()["4.c"], lambda: tokens)
    assert (result.outcome == "passed") == (said is None)
    assert said is None or said in result.misconception


def filled(**places):
    """Log decays of −0.3, but for some."""

    def attempt(form, least, length):
        log_a = torch.full((length,), -0.3, dtype=torch.float64)
        for place, value in places.items():
            log_a[int(place[1:])] = least if value is None else value
        return log_a

    return attempt


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (filled(), "the running sums stay so small"),
        (lambda form, least, length: filled(x2=None)(form, least, 3), "yours comes last"),
        (lambda form, least, length: torch.zeros(length).double().index_fill(0, torch.tensor(0), least), "stand zeros"),
        (filled(x0=None, x1=-2.0, x2=-4.0), "are multiples of that"),
        (filled(x0=None, x1=-1e15 - 0.375, x2=-1e15 - 0.375), "all entries are 0, or nearly"),
        (filled(x1=0.1), "ecays are at most 1"),
        (filled(x1=-1e17), "got -1e+17"),
        (lambda form, least, length: torch.zeros(length), "got (3,) in torch.float32"),
    ],
)
def test_decays_that_break_no_difference_hear_why(attempt, sentence):
    def only_quotients(form, least, length):
        return (break_it if form == "quotient" else attempt)(form, least, length)

    result = evaluate(registry()["4.2"], only_quotients)
    assert result.case == 2
    assert sentence in result.problem.sentence


def test_the_form_that_the_exercise_names_first_is_the_first_case():
    result = evaluate(registry()["4.2"], filled())
    assert result.case == 1
    assert result.problem.sentence.startswith("By quotients the mask is still right: the running product ends at e^-1,")


@pytest.mark.parametrize("dense", [triangle, lambda T: triangle(T).bool(), lambda T: triangle(T).long()])
def test_a_product_may_overwrite_its_input_and_a_mask_hold_true_and_false(dense):
    assert ALL(dense, lambda x: x.cumsum_(0)) == "structured"


def test_a_convolution_costs_its_kernel():
    def matmul(x):
        kernel = (0.5 ** torch.arange(len(x)).double()).flip(0).to(x.dtype)
        padded = torch.nn.functional.pad(x.mT[:, None], (len(x) - 1, 0))
        return torch.nn.functional.conv1d(padded, kernel[None, None])[:, 0].mT

    assert "more than threefold" in Judge(256, 512)(_mask, matmul)


def test_many_dense_blocks_are_dense():
    def matmul(x):
        L, y = _mask(len(x)).to(x.dtype), torch.zeros_like(x)
        for i in range(0, len(x), 128):
            for j in range(0, i + 1, 128):
                y[i : i + 128] += L[i : i + 128, j : j + 128] @ x[j : j + 128]
        return y

    assert "more than threefold" in Judge(256, 512)(_mask, matmul)


def test_what_numpy_computes_is_no_answer():
    masks = {length: _mask(length).numpy() for length in (256, 512)}
    judge = Judge(256, 512)
    assert "next to nothing" in judge(_mask, lambda x: torch.from_numpy(masks[len(x)] @ x.numpy()))


@pytest.mark.parametrize("answer", [1, 2, 3, 5, 6, 7, 8, 9, 16, 0.5, 40])
def test_a_wrong_size_of_state_does_not_learn_what_each_term_takes(answer):
    result = evaluate(registry()["4.5"], lambda: answer)
    said = f"{result.misconception} {result.sign} {result.problem and result.problem.sentence}"
    assert not re.search(r"\btwo\b|\bfour\b|\brank [12]\b|\b4\b", said)
