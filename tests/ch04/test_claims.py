"""The claims of chapter 04, one test each or more, in the order of claims.toml."""

import itertools
import math
import re

import oracles_mixing as oracles
import pytest
import torch
from cells import printed
from counting import slope
from oracles_mixing import matrix
from registry_masks import FAMILIES

from smalearn.course.ch04.structure import Operator, masked_product
from smalearn.course.plots.structures import _matrices
from smalearn.course.widgets import mask_explorer
from smalearn.kernel_attention import softmax_attention
from smalearn.linear_attention import linear_attention_recurrent
from smalearn.masks import (
    BandedMask,
    CausalMask,
    DecayMask,
    FourierMask,
    LowRankMask,
    SemiseparableMask,
    ToeplitzMask,
    alibi_slopes,
    scan_associative,
    scan_chunked,
    scan_recurrent,
    segsum,
)
from smalearn.sma import LINEAR, QUADRATIC, sma_linear, sma_orders, sma_quadratic
from smalearn.ssm import block_ranks
from smalearn.testing import assert_close, random_tensors

T, N, P = 7, 3, 2
double = torch.float64


def built(family, target=T, source=T + 2, leading=()):
    """A family's mask with its parameters, its definition as a matrix, and its lengths."""
    source = target if family.square else source
    parameters = family.draw(leading, target, source)
    return family.build(target, source, *parameters), family.oracle(target, source, parameters), (target, source)


def qkv(target, source, dtype=double):
    tensors = random_tensors([(target, N), (source, N), (source, P)])
    return [torch.complex(x, x.flip(-1)) for x in tensors] if dtype.is_complex else tensors


def decays(length, seed=0):
    return -random_tensors([(length,)], seed=seed)[0].abs()


def transforms(n, count):
    """Operations of so many real transforms of length n."""
    return count * 2.5 * n * math.log2(n)


COSTS = {  # the mask of a length, a power of two; the operations of its product with one column; their slope
    "causal": (CausalMask, lambda n: n, 1),
    "decay": (lambda n: DecayMask(n, 0.5), lambda n: 2 * (n - 1), 1),
    "semiseparable": (lambda n: SemiseparableMask(decays(n)), lambda n: 2 * (n - 1), 1),
    "low rank": (lambda n: LowRankMask(*random_tensors([(n, 2)] * 2)), lambda n: 2 * (2 * n - 1) + 3 * n, 1),
    "banded": (lambda n: BandedMask(n, n, 2), lambda n: 5 * n - 6, 1),
    "Toeplitz": (
        lambda n: ToeplitzMask(torch.ones(n)),
        lambda n: transforms(2 * n, 3) + 6 * n,
        1 + math.log2(216 / 201),
    ),
    "Fourier": (FourierMask, lambda n: transforms(n, 2), 1 + math.log2(13 / 12)),
}

every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)


@pytest.mark.claim("000:mask-causal", "smalearn.masks.causal.CausalMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.causal.CausalMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.causal.DecayMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.causal.SemiseparableMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.lowrank.LowRankMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.sparse.SparseMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.fourier.ToeplitzMask.cost")
@pytest.mark.claim("000:mask-toeplitz", "smalearn.masks.fourier.ToeplitzMask.cost")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.fourier.FourierMask.cost")
@pytest.mark.parametrize("name", COSTS)
def test_counted_operations_grow_slower_than_the_matrix(name):
    build, formula, exponent = COSTS[name]
    for length in (256, 4096):
        assert build(length).cost() == formula(length)
    assert slope(lambda length: build(length).cost(), 4096, 8192) == pytest.approx(exponent, abs=1e-3)


@pytest.mark.claim("001:masked-attention", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("000:structured-requirement", "smalearn.masks.base.Mask.matmul")
@pytest.mark.claim("000:def4.2", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("000:def4.2", "smalearn.sma.sma_linear")
@pytest.mark.claim("000:def4.2-quadratic", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("000:def4.2-linear", "smalearn.sma.sma_linear")
@pytest.mark.claim("004:sma-box", "smalearn.sma.sma_quadratic")
@pytest.mark.claim("004:sma-box", "smalearn.sma.sma_linear")
@every_family
def test_definition_4_2(family):
    mask, L, lengths = built(family)
    Q, K, V = qkv(*lengths, family.dtype)
    expected = oracles.under(L, Q, K, V)
    assert_close(((Q @ K.mT) * L) @ V, expected)
    assert_close(sma_quadratic(Q, K, V, mask), expected)
    assert_close(sma_linear(Q, K, V, mask), expected)


@pytest.mark.claim("000:def4.2-quadratic", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:structured-requirement", "smalearn.sma.sma_orders")
@pytest.mark.parametrize("length", [1, 8, 100])
def test_cost_of_the_quadratic_mode_and_of_a_mask_without_structure(length):
    table = sma_orders(length, length, N, P)
    assert table.named(LINEAR).steps[1].macs == length**2 * N * P
    order = table.named(QUADRATIC)
    assert order.macs == length**2 * (N + P + 1)
    assert max(step.output_elements for step in order.steps) == max(length**2, length * P)


class Spy(DecayMask):
    """A mask that notes how many columns it is multiplied by, and is never formed."""

    dense = None

    def matmul(self, x):
        self.columns = [*getattr(self, "columns", []), x.shape[-1]]
        return super().matmul(x)


@pytest.mark.claim("000:def4.2-linear", "smalearn.sma.sma_orders")
@pytest.mark.claim("000:def4.2-linear", "smalearn.masks.causal.DecayMask.cost")
@pytest.mark.parametrize("length", [2, 16, 300])
def test_cost_of_the_linear_mode(length):
    mask = Spy(length, 0.9)
    sma_linear(*qkv(length, length), mask)
    assert mask.columns == [N * P]
    first, _, last = sma_orders(length, length, N, P).named(LINEAR).steps
    assert first.macs + last.macs == 2 * length * N * P
    steps = N * P * (length - 1)  # of y = gamma y + x, a multiplication and an addition each
    assert mask.cost(N * P) == 2 * steps


@pytest.mark.claim("000:mask-retnet", "smalearn.masks.causal.DecayMask.dense")
@pytest.mark.claim("000:mask-retnet", "smalearn.masks.base.Mask.matmul")
@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.97, 1.0])
def test_decay_mask(gamma):
    length = 37
    L, mask = matrix(lambda t, s: gamma ** (t - s) if s <= t else 0, length), DecayMask(length, gamma)
    assert_close(mask.dense(double), L)
    (x,) = random_tensors([(length, P)])
    assert_close(mask.matmul(x), torch.stack(list(itertools.accumulate(x, lambda y, now: gamma * y + now))))


@pytest.mark.claim("000:mask-toeplitz", "smalearn.masks.base.Mask.matmul")
@pytest.mark.parametrize("length", [1, 2, 13, 32])
def test_toeplitz_mask(length):
    column, row, x = random_tensors([(length,), (length,), (length, P)])
    L = matrix(lambda t, s: column[t - s] if s <= t else row[s - t], length)
    assert_close(ToeplitzMask(column, row).matmul(x), L @ x)
    assert_close(ToeplitzMask(column).matmul(x), L.tril() @ x)
    powers = 0.7 ** torch.arange(length).double()
    assert_close(ToeplitzMask(powers).matmul(x), DecayMask(length, 0.7).dense(double) @ x)
    assert ToeplitzMask(column, row).stored == 2 * length - 1


@pytest.mark.claim("000:alibi", "smalearn.masks.presets.alibi_slopes")
@pytest.mark.claim("000:alibi", "smalearn.kernel_attention.attention.softmax_attention")
@pytest.mark.parametrize("heads", [1, 4, 8])
def test_alibi_is_a_decay_mask(heads):
    Q, K, V = random_tensors([(heads, T, N), (heads, T, N), (heads, T, P)])
    masked = softmax_attention(Q, K, V, DecayMask(T, torch.exp(-alibi_slopes(heads))))
    for h, found in enumerate(alibi_slopes(heads)):
        bias = 2 ** (-8 * (h + 1) / heads)
        assert found.item() == pytest.approx(bias, rel=1e-12)

        def weight(score, t, s, bias=bias):
            return (score - bias * (t - s)).exp() * (s <= t)

        assert_close(masked[h], oracles.attention(Q[h], K[h], V[h], weight))


@pytest.mark.claim("008:fox", "smalearn.kernel_attention.attention.softmax_attention")
def test_fox_is_alibi_with_a_decay_for_each_token():
    Q, K, V = qkv(T, T)
    log_f = torch.tensor([-0.1, -2.0, -30.0, -1e-9, -0.5, -1.0, -0.01], dtype=double)

    def weight(score, t, s):
        return (score + log_f[s + 1 : t + 1].sum()).exp() * (s <= t)

    assert_close(softmax_attention(Q, K, V, SemiseparableMask(log_f)), oracles.attention(Q, K, V, weight))
    constant = torch.full((T,), -0.25, dtype=double)
    alibi = softmax_attention(Q, K, V, DecayMask(T, constant.exp()[0]))
    assert_close(softmax_attention(Q, K, V, SemiseparableMask(constant)), alibi)


@pytest.mark.claim("000:mask-fourier", "smalearn.masks.fourier.FourierMask.dense")
@pytest.mark.claim("000:mask-fourier", "smalearn.masks.base.Mask.matmul")
@pytest.mark.claim("000:mask-fourier", "smalearn.sma.sma_linear")
@pytest.mark.parametrize("length", [1, 8, 13])
def test_fourier_mask(length):
    ts = torch.arange(length, dtype=double)[:, None] * torch.arange(length)
    L = torch.complex((2 * math.pi * ts / length).cos(), (2 * math.pi * ts / length).sin())
    mask = FourierMask(length)
    assert_close(mask.dense(torch.complex128), L)
    Q, K, V = qkv(length, length, torch.complex128)
    assert_close(mask.matmul(V), L @ V)
    assert_close(length * torch.fft.ifft(V, dim=0), L @ V)
    assert_close(sma_linear(Q, K, V, mask), oracles.under(L, Q, K, V))
    assert torch.linalg.matrix_rank(L) == length
    for omega in (torch.exp(torch.tensor(2j * math.pi / length)), torch.exp(torch.tensor(2j * math.pi))):
        assert length == 1 or (omega ** (ts / length) - L).abs().max() > 0.5  # what 000 writes


FIGURE = {
    "causal": CausalMask(12),
    "decay": DecayMask(12, 0.8),
    "1-semiseparable": SemiseparableMask(decays(12)),
    "Toeplitz": ToeplitzMask(*random_tensors([(12,), (12,)])),
    "Fourier": FourierMask(12),
}
ENTRIES = {
    "causal": lambda t, s: float(s <= t),
    "decay": lambda t, s: 0.8 ** (t - s) if s <= t else 0.0,
    "1-semiseparable": lambda t, s: oracles.product(decays(12), t, s),
    "Toeplitz": lambda t, s: FIGURE["Toeplitz"].column[t - s] if s <= t else FIGURE["Toeplitz"].row[s - t],
    "Fourier": lambda t, s: math.cos(2 * math.pi * t * s / 12),
}


@pytest.mark.claim("004:fig-structured-list", "smalearn.course.plots.structures._matrices")
@pytest.mark.claim("000:fig3", "smalearn.course.plots.structures._matrices")
@pytest.mark.parametrize("name", FIGURE)
def test_figure_3(name):
    Q, K, V = qkv(12, 12)
    assert mask_explorer.FAMILIES[:6] == [*FIGURE, "low rank"]
    L, M, H = _matrices(FIGURE[name], Q, K, V)
    expected = matrix(ENTRIES[name], 12)
    assert_close(L, expected)
    assert_close(M, expected * (Q @ K.mT))
    Z = torch.stack([torch.outer(v, k).flatten() for v, k in zip(V, K, strict=True)])
    assert_close(H, expected @ Z)


@pytest.mark.claim("000:fig3", "smalearn.masks.causal.CausalMask.dense")
@pytest.mark.claim("000:fig3", "smalearn.masks.causal.DecayMask.dense")
@pytest.mark.claim("000:fig3", "smalearn.masks.causal.SemiseparableMask.dense")
def test_ranks_of_the_blocks_in_figure_3():
    full = [min(k, 12 - k) for k in range(1, 12)]
    for name, mask in FIGURE.items():
        L = mask.dense(torch.complex128 if mask.is_complex else double)
        assert block_ranks(L, diagonal=-1)[1:].tolist() == (full if name in ("Toeplitz", "Fourier") else [1] * 11), name


@pytest.mark.claim("000:semiseparable-sma", "smalearn.sma.sma_linear")
def test_semiseparable_attention_is_a_recurrence_with_a_gate():
    Q, K, V = qkv(T, T)
    log_a = decays(T)
    Y = sma_linear(Q, K, V, SemiseparableMask(log_a))
    assert_close(Y, oracles.ssm(V, log_a.exp(), K, Q)[0])
    assert_close(Y, linear_attention_recurrent(Q, K, V, log_a)[0])


@pytest.mark.claim("000:semiseparable-sma", "smalearn.masks.causal.SemiseparableMask.dense")
@pytest.mark.claim("004:eq-1ss", "smalearn.masks.causal.SemiseparableMask.dense")
def test_blocks_on_or_below_the_diagonal_have_rank_one():
    log_a = decays(12)
    log_a[5] = -math.inf
    assert block_ranks(SemiseparableMask(log_a).dense(double)).tolist() == [1] * 12


@pytest.mark.claim("000:mask-causal", "smalearn.masks.base.Mask.matmul")
@pytest.mark.claim("001:tril-cumsum", "smalearn.masks.base.Mask.matmul")
@pytest.mark.claim("001:tril-cumsum", "smalearn.sma.sma_linear")
def test_rank_one_scores_scale_a_running_sum():
    u, v, x = random_tensors([(T, 1), (T, 1), (T, 1)])
    expected = u * torch.stack(list(itertools.accumulate(v * x)))
    products = (u @ v.mT).tril() @ x, u * CausalMask(T).matmul(v * x), sma_linear(u, v, x, CausalMask(T))
    for found in products:
        assert_close(found, expected)


@pytest.mark.claim("001:tril-cost", "smalearn.masks.sparse.SparseMask.cost")
@pytest.mark.claim("001:tril-cost", "smalearn.sma.sma_orders")
def test_the_mask_alone_buys_nothing():
    def without(length):  # every entry of tril(B) is read, multiplied and added
        return (BandedMask(length, length, length) * CausalMask(length)).cost()

    def with_rank(length, rank):
        return sma_orders(length, length, rank, 1, scan=True).named(LINEAR).macs

    for length in (1, 64, 128):
        assert without(length) == sum(t + 1 for t in range(length)) == length * (length + 1) // 2
        assert with_rank(length, 4) == 3 * length * 4
    assert slope(without, 64, 128) > 1.98
    assert slope(lambda length: with_rank(length, 4), 64, 128) == pytest.approx(1, abs=1e-12)


class Counted(Operator):
    """An operator that counts its calls and the entries that it is given."""

    calls = 0

    def matmul(self, x):
        self.calls += 1
        return super().matmul(x)


@pytest.mark.claim("001:listing-lowrank", "smalearn.course.ch04.structure.masked_product")
@pytest.mark.claim("001:id-lowrank-mask", "smalearn.course.ch04.structure.masked_product")
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_low_rank_mask_is_as_many_products(rank):
    U, V, B, x = random_tensors([(T, rank), (T, rank), (T, T), (T, 1)])
    operator = Counted(B)
    assert_close(masked_product(U, V, operator, x), (B * (U @ V.mT)) @ x)
    terms = [U[:, i].diag() @ (B @ (V[:, i].diag() @ x)) for i in range(rank)]  # as 001 lists them
    assert_close(sum(terms), (B * (U @ V.mT)) @ x)
    assert operator.calls == rank
    assert_close(masked_product(U, V, DecayMask(T, 0.5), x), (DecayMask(T, 0.5).dense(double) * (U @ V.mT)) @ x)


@pytest.mark.claim("001:id-lowrank-mask", "smalearn.masks.lowrank.HadamardMask._product")
@pytest.mark.claim("001:id-lowrank-mask", "smalearn.masks.lowrank.HadamardMask.cost")
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_a_low_rank_mask_on_another_mask(rank):
    U, V, x = random_tensors([(T, rank), (T, rank), (T, P)])
    mask, decay = LowRankMask(U, V) * DecayMask(T, 0.5), DecayMask(T, 0.5)
    assert_close(mask.matmul(x), (decay.dense(double) * (U @ V.mT)) @ x)
    assert mask.cost() == rank * decay.cost() + 2 * rank * T + (rank - 1) * T  # products, 2 p n scalings, the sum


@pytest.mark.claim("004:sma-box", "smalearn.masks.fourier.ToeplitzMask.cost")
@pytest.mark.claim("004:sma-box", "smalearn.masks.fourier.FourierMask.cost")
@pytest.mark.claim("004:sma-box", "smalearn.masks.causal.DecayMask.cost")
def test_the_chapter_shows_which_products_are_linear():
    rows = re.findall(r"(?m)^(\S.*?) +([\d,]+) operations   doubled: × ([\d.]+)$", printed("04", "growth-run"))
    table = {name: (int(cost.replace(",", "")), float(growth)) for name, cost, growth in rows}
    assert table["decay"] == (DecayMask(4096, 0.8).cost(), 2.0)
    assert table["Toeplitz"][0] == ToeplitzMask(torch.ones(4096), torch.ones(4096)).cost()
    assert table["Fourier"] == (FourierMask(4096).cost(), round(2 * 13 / 12, 2))
    assert 2 < table["Toeplitz"][1] < 2.2
    assert table["any matrix"][1] == 4


@pytest.mark.claim("004:eq-1ss", "smalearn.masks.decay.segsum")
@pytest.mark.claim("004:eq-1ss", "smalearn.masks.decay.decay_matrix")
@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_semiseparable_entries(length):
    log_a = decays(length)
    log_a[3::5] = -math.inf
    L = oracles.decays(log_a.exp())
    assert_close(segsum(log_a).exp(), L)
    found = SemiseparableMask(log_a).dense(double)
    assert_close(found, L)
    assert torch.equal(found == 0, L == 0)
    other = log_a.clone()
    other[0] = -7.0  # a_0 does not occur
    assert torch.equal(SemiseparableMask(other).dense(double), found)
    constant = SemiseparableMask(torch.full((length,), 0.6, dtype=double).log())
    assert_close(constant.dense(double), DecayMask(length, 0.6).dense(double))


@pytest.mark.claim("004:1ss-recurrence", "smalearn.masks.scan.scan_recurrent")
@pytest.mark.claim("004:1ss-recurrence", "smalearn.masks.scan.scan_chunked")
@pytest.mark.claim("004:1ss-recurrence", "smalearn.masks.scan.scan_associative")
@pytest.mark.parametrize("kind", ["random", "resets", "ones", "negative"])
def test_semiseparable_product_is_a_scan(kind):
    a, x = random_tensors([(37,), (37, P)])
    a = a.tanh() if kind == "negative" else a.tanh().abs()
    a = torch.ones(37, dtype=double) if kind == "ones" else a
    a[[4, 20] if kind == "resets" else []] = 0
    dtype = torch.complex128 if kind == "negative" else double
    one = torch.ones(37, 1, dtype=double)
    y, _ = oracles.ssm(x, a, one, one)
    assert_close(oracles.decays(a) @ x, y)
    for scan in (scan_recurrent, scan_chunked, scan_associative):
        assert_close(scan(x.to(dtype), a.to(dtype).log()), y.to(dtype))


@pytest.mark.claim("004:1ss-recurrence", "smalearn.masks.causal.SemiseparableMask.cost")
@pytest.mark.claim("004:1ss-recurrence", "smalearn.masks.scan.scan_recurrent")
def test_the_recurrence_as_the_chapter_prints_it():
    a, x = random_tensors([(4,), (4, 1)])
    a = a.abs().clamp(max=1)
    values = {f"a{t}": a[t] for t in range(4)} | {f"x{t}": x[t] for t in range(4)}
    y = scan_recurrent(x, a.log())
    lines = re.findall(r"y(\d) = (.+)", printed("04", "symbolic-run").replace("·", "*"))
    assert [int(t) for t, _ in lines] == [1, 2, 3]
    for t, formula in lines:
        assert_close(eval(formula, values), y[int(t)])
    assert_close(a[2] * a[1] * x[0] + a[2] * x[1] + x[2], y[2])
    steps = max(formula.count("*") for _, formula in lines)
    assert SemiseparableMask(a.log()).cost() == 2 * steps == 2 * (4 - 1)


@pytest.mark.claim("004:fig-structured-list", "smalearn.masks.causal.SemiseparableMask.dense")
def test_a_path_is_the_semiseparable_mask_of_a_graph():
    log_a, (x, weights) = decays(T), random_tensors([(T, P), (T, T)])
    identity = torch.eye(T, dtype=double)
    A = torch.diag(log_a[1:].exp(), -1)
    assert_close(SemiseparableMask(log_a).dense(double), torch.linalg.inv(identity - A))
    A = weights.tril(-1) * (weights > 0)  # any graph whose arrows go forward in time
    y = x.clone()
    for target, source in A.nonzero():
        y[target] += A[target, source] * y[source]
    assert_close(torch.linalg.solve_triangular(identity - A, x, upper=False), y)
