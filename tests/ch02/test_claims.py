"""The claims of chapter 02, one test each, in the order of claims.toml."""

import math

import pytest
import torch
import torch.nn.functional as F
from counting import slope
from registry_features import INPUTS, MAPS

from smalearn.kernel_attention import (
    CosFormer,
    EluPlusOne,
    HyperbolicRandom,
    LinearRandomized,
    PositiveRandom,
    PowerSeries,
    RandomFourier,
    gaussian_directions,
    iterated_pinv,
    kernel_attention,
    linformer,
    nystrom,
    orthogonal_directions,
    softmax_attention,
    softmax_weights,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

DRAWS = 400


def kernel(phi, Q, K):
    return phi.query(Q) @ phi.key(K).mT


def reference_setting():
    """Queries, keys and values of 64 tokens with entries small enough for random features: |q · k| is about 1."""
    Q, K, V = random_tensors([(64, 8), (64, 8), (64, 8)])
    return 0.7 * Q / 8**0.25, 0.7 * K / 8**0.25, V


def unit_pairs():
    """Four queries and keys of norm 1, and exp(q · k) of each pair."""
    q, k = (F.normalize(x, dim=-1) for x in random_tensors([(4, 16), (4, 16)]))
    return q, k, (q * k).sum(-1).exp()


def estimates(build, draw, m):
    """DRAWS independent estimates of the four kernel values, relative to them."""
    q, k, target = unit_pairs()
    phi = build(draw(DRAWS * m, 16, 0, torch.float64).reshape(DRAWS, m, 16))
    return (phi.query(q) * phi.key(k)).sum(-1) / target


def rms_slope(build, draw):
    return slope(lambda m: estimates(build, draw, m).sub(1).square().mean().sqrt().item(), 32, 64, 128, 256, 512)


def within(samples, target, standard_errors=4):
    """Whether the means over the first axis lie as near to the target as chance allows."""
    return ((samples.mean(0) - target).abs() < standard_errors * samples.std(0) / math.sqrt(len(samples))).all()


@pytest.mark.claim("000:exp-feature-map", "smalearn.kernel_attention.series.PowerSeries._key")
def test_exp_has_a_feature_map_without_end():
    Q, K = (0.26 * x for x in random_tensors([(40, 3), (40, 3)]))
    x = Q @ K.mT
    for degree, expected in [(1, 0.3), (2, 5e-2), (4, 1e-3), (6, 1e-5), (8, 6e-8)]:
        phi = PowerSeries.exp(3, degree)
        assert phi.features == math.comb(3 + degree, degree) == phi.query(Q).shape[-1]
        error = (kernel(phi, Q, K) - x.exp()).abs()
        assert (error <= x.abs().exp() * x.abs() ** (degree + 1) / math.factorial(degree + 1) + 1e-15).all()
        assert 0.5 * expected < error.max() < 1.5 * expected  # never 0: no finite degree is enough
    assert_close(kernel(PowerSeries.exp(3, 16), Q, K), x.exp())


@pytest.mark.claim("000:kernel-attention", "smalearn.kernel_attention.attention.kernel_attention")
@pytest.mark.parametrize("name", MAPS)
def test_a_kernel_takes_the_place_of_the_activation(name):
    phi, entry = MAPS[name]
    Q, K, V = random_tensors([(5, INPUTS), (7, INPUTS), (7, 2)])
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for i, q in enumerate(Q.tolist()):
        for j, k in enumerate(K.tolist()):
            expected[i] += entry(q, k, i, j) * torch.cat([V[j], V.new_ones(1)])
    phi_Q, phi_K = phi.query(Q), phi.key(K)
    assert phi_Q.shape[-1] == phi_K.shape[-1] == phi.features
    assert_close(phi_Q @ (phi_K.mT @ V), expected[:, :2], 1e-11)
    assert_close(kernel_attention(Q, K, V, phi), expected[:, :2] / expected[:, 2:], 1e-11)


@pytest.mark.claim("000:linattn-elu", "smalearn.kernel_attention.pointwise.EluPlusOne._query")
def test_elu_plus_one_is_a_kernel_of_its_own():
    phi = EluPlusOne(8)
    Q, K, V = reference_setting()
    assert torch.equal(phi.query(torch.zeros(1, 8)), torch.ones(1, 8))
    assert_close(phi.query(4 * Q), F.elu(4 * Q) + 1)
    assert (phi.query(4 * Q) > 0).all()
    assert phi.features == phi.inputs == 8
    M = kernel_attention(Q, K, torch.eye(64, dtype=torch.float64), phi)
    assert (M > 0).all()
    assert_close(M.sum(-1), torch.ones(64, dtype=torch.float64))
    assert_close(M @ V, kernel_attention(Q, K, V, phi))
    # It has no parameter that would bring it nearer to softmax attention; random features have.
    target = softmax_attention(Q, K, V)
    assert 0.3 < relative_rms(kernel_attention(Q, K, V, phi), target) < 0.5
    W = gaussian_directions(4096, 8, 0, torch.float64)
    assert relative_rms(kernel_attention(Q, K, V, RandomFourier(W)), target) < 0.1


@pytest.mark.claim("000:rfa", "smalearn.kernel_attention.random.RandomFourier._wave")
def test_random_fourier_features():
    Q, K, V = reference_setting()
    W = gaussian_directions(4096, 8, 0, torch.float64)
    phi = RandomFourier(W)
    assert phi.features == 2 * 4096
    difference = (Q[:, None] - K) @ W.mT
    factors = Q.square().sum(-1)[:, None] / 2 + K.square().sum(-1) / 2
    assert_close(kernel(phi, Q, K), factors.exp() * difference.cos().mean(-1))
    assert within(estimates(RandomFourier, gaussian_directions, 32), 1)
    assert abs(rms_slope(RandomFourier, gaussian_directions) + 0.5) < 0.1
    # (cos, sin) alone is the Gaussian kernel: softmax(q·k - |k|²/2), and the error against softmax attention stalls.
    bare = difference.cos().mean(-1)
    bare = bare / bare.sum(-1, keepdim=True) @ V
    target, gaussian = softmax_attention(Q, K, V), (Q @ K.mT - K.square().sum(-1) / 2).softmax(-1) @ V
    assert 0.2 < relative_rms(bare, target) < 0.3
    assert relative_rms(bare, gaussian) < 0.05
    assert relative_rms(kernel_attention(Q, K, V, phi), target) < 0.1
    # Harmless where all keys have one norm, because the factors cancel in the normaliser.
    same = F.normalize(K, dim=-1)
    bare = (((Q[:, None] - same) @ W.mT).cos()).mean(-1)
    assert_close(bare / bare.sum(-1, keepdim=True) @ V, kernel_attention(Q, same, V, phi))


@pytest.mark.claim("000:performer-prf", "smalearn.kernel_attention.random.PositiveRandom._exponent")
def test_positive_random_features():
    Q, K, V = reference_setting()
    W = gaussian_directions(65_536, 8, 0, torch.float64)
    half = (Q.square().sum(-1)[:, None] + K.square().sum(-1)) / 2
    s = (Q[:, None] + K) @ W[:64].mT
    assert_close(kernel(PositiveRandom(W[:64]), Q, K), (-half).exp() * s.exp().mean(-1))
    assert_close(kernel(HyperbolicRandom(W[:64]), Q, K), (-half).exp() * s.cosh().mean(-1))
    for build in (PositiveRandom, HyperbolicRandom):
        relative = estimates(build, gaussian_directions, 32)
        assert (relative > 0).all()
        assert within(relative, 1)
        assert abs(rms_slope(build, gaussian_directions) + 0.5) < 0.1
    # The literal map 2^(-1/2) (exp(Wx), exp(-Wx)) tends to another softmax, softmax(q·k + |k|²/2).
    literal_Q, literal_K = (torch.cat([(x @ W.mT).exp(), (-x @ W.mT).exp()], -1) / math.sqrt(2) for x in (Q, K))
    weights = literal_Q @ literal_K.mT
    literal = weights / weights.sum(-1, keepdim=True) @ V
    other = (Q @ K.mT + K.square().sum(-1) / 2).softmax(-1) @ V
    target = softmax_attention(Q, K, V)
    assert 0.3 < relative_rms(other, target) < 0.45
    assert relative_rms(literal, other) < 0.05
    assert relative_rms(literal, target) > 0.3
    assert relative_rms(kernel_attention(Q, K, V, HyperbolicRandom(W)), target) < 0.05


@pytest.mark.claim("000:performer-orthogonal", "smalearn.kernel_attention.directions.orthogonal_directions")
def test_orthogonal_directions():
    W = orthogonal_directions(48, 16, 0, torch.float64)
    for block in W.split(16):
        gram = block @ block.mT
        assert_close(gram, gram.diagonal().diag())
    for build in (RandomFourier, PositiveRandom, HyperbolicRandom):
        independent, orthogonal = (estimates(build, draw, 64) for draw in (gaussian_directions, orthogonal_directions))
        assert orthogonal.var(0).mean() < 0.95 * independent.var(0).mean()
        assert within(orthogonal, 1)
    # QR without the signs of R's diagonal is not Haar: the one-sided estimate is wrong, up or down with q + k.
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(20_000, 4, 4, generator=generator, dtype=torch.float64)
    norms = torch.randn(20_000, 4, 4, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
    plain = torch.linalg.qr(blocks).Q * norms
    haar = orthogonal_directions(80_000, 4, 0, torch.float64).reshape(20_000, 4, 4)
    means = []
    for sign in (1, -1):
        x = torch.full((1, 4), sign / math.sqrt(8), dtype=torch.float64)
        samples = kernel(PositiveRandom(plain), x, x)[:, 0, 0]
        assert not within(samples, math.exp(0.5), standard_errors=10)
        means.append(samples.mean().item())
        assert within(kernel(PositiveRandom(haar), x, x)[:, 0, 0], math.exp(0.5))
        assert within(kernel(HyperbolicRandom(plain), x, x)[:, 0, 0], math.exp(0.5))
    assert min(means) < 1.5 < 1.8 < max(means)


@pytest.mark.claim("000:cosformer", "smalearn.kernel_attention.pointwise.CosFormer._query")
def test_cosformer_is_relu_features_under_a_mask_of_rank_2():
    Q, K = random_tensors([(12, 3), (12, 3)])
    t = torch.arange(12, dtype=torch.float64)
    L = torch.cos(math.pi * (t[:, None] - t) / (2 * 12))
    phi = CosFormer(3, horizon=12)
    assert_close(kernel(phi, Q, K), (Q.relu() @ K.relu().mT) * L)
    assert (phi.features, torch.linalg.matrix_rank(L).item()) == (2 * 3, 2)
    assert (L >= 0).all()
    assert_close(kernel(phi, torch.ones(12, 3).double(), torch.ones(12, 3).double()), 3 * L)
    # A horizon that follows the length changes features that a decoder has stored.
    assert_close(CosFormer(3, horizon=12, offset=7).key(K[7:]), phi.key(K)[7:])
    assert relative_rms(CosFormer(3, horizon=13).key(K), phi.key(K)) > 0.01
    # The literal map (x cos, sin) is another kernel.
    literal_Q, literal_K = (torch.cat([x * t.cos()[:, None], t.sin()[:, None]], -1) for x in (Q, K))
    assert relative_rms(literal_Q @ literal_K.mT, (Q.relu() @ K.relu().mT) * L) > 0.5


@pytest.mark.claim("000:lara", "smalearn.kernel_attention.random.PositiveRandom._exponent")
@pytest.mark.claim("000:lara", "smalearn.kernel_attention.landmarks.LinearRandomized._query_exponent")
def test_linear_randomized_attention():
    Q, K, V = reference_setting()
    target = softmax_attention(Q, K, V)
    # One direction for each query, drawn from the mixture Σ_s softmax(q·k)_s N(q + k_s, I): the ratio is unbiased.
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(softmax_weights(Q, K), 4000, replacement=True, generator=generator).mT
    noise = torch.randn(4000, 64, 8, generator=generator, dtype=torch.float64)
    samples = kernel_attention(Q[:, None], K, V, PositiveRandom((Q + K[drawn] + noise)[:, :, None]))[:, :, 0]
    assert within(samples, target, standard_errors=4.5)  # 512 comparisons
    assert relative_rms(samples.mean(0), target) < 0.05
    one = (Q + K[drawn[:1]] + noise[:1])[0]
    weights = (one @ K.mT - K.square().sum(-1) / 2).softmax(-1)
    assert_close(samples[0], weights @ V)
    # Landmarks instead: 16 proposals for all queries, each direction weighed by the density of their mixture.
    W = gaussian_directions(16, 8, 0, torch.float64)
    means = Q.reshape(16, 4, 8).mean(1) + K.reshape(16, 4, 8).mean(1)
    kernel_values = torch.zeros(64, 64, dtype=torch.float64)
    for omega in W + means:
        density = (omega - means).square().sum(-1).div(-2).exp().sum()
        xi_Q, xi_K = ((x @ omega - x.square().sum(-1) / 2).exp() for x in (Q, K))
        kernel_values += (-omega @ omega / 2).exp() / density * xi_Q[:, None] * xi_K
    expected = kernel_values / kernel_values.sum(-1, keepdim=True) @ V
    assert_close(kernel_attention(Q, K, V, LinearRandomized(W).fit(Q, K)), expected)
    # Unequal norms, as many features: the ratio of positive terms stays where the Fourier normaliser vanishes.
    scale = [x.exp() for x in random_tensors([(64, 1), (64, 1)], seed=1)]
    Q, K = Q * scale[0], K * scale[1]
    target, errors = softmax_attention(Q, K, V), {LinearRandomized: [], RandomFourier: []}
    for seed in range(20):
        W = gaussian_directions(64, 8, seed, torch.float64)
        for build, directions in [(LinearRandomized, W), (RandomFourier, W[:32])]:
            phi = build(directions).fit(Q, K)
            assert phi.features == 64
            errors[build].append(relative_rms(kernel_attention(Q, K, V, phi), target))
    lara, fourier = (torch.tensor(found).median() for found in errors.values())
    assert lara < 0.9
    assert fourier > 1.5


@pytest.mark.claim("000:linformer", "smalearn.kernel_attention.attention.linformer")
def test_linformer_has_rank_k_and_cannot_be_causal():
    Q, K, V, E, P, random = random_tensors([(32, 8), (32, 8), (32, 4), (6, 32), (6, 32), (32, 32)])
    eye = torch.eye(32, dtype=torch.float64)
    M = (Q @ (E @ K).mT).softmax(-1) @ P
    assert_close(linformer(Q, K, V, E, P), M @ V)
    assert torch.linalg.matrix_rank(M) == 6
    target = softmax_attention(Q, K, V)
    permutation = eye[torch.randperm(32, generator=torch.Generator().manual_seed(0))]
    for exact in (eye, permutation):
        assert_close(linformer(Q, K, V, exact, exact), target)
    orthogonal = torch.linalg.qr(random).Q
    assert relative_rms(linformer(Q, K, V, orthogonal, orthogonal), target) > 0.5
    assert_close(softmax_weights(Q, K) @ orthogonal.mT @ (orthogonal @ V), target)  # what the lemma is about
    changed = V.clone()
    changed[-1] += 1
    assert (linformer(Q, K, changed, E, P) - linformer(Q, K, V, E, P))[0].abs().max() > 0.01


@pytest.mark.claim("000:nystromformer", "smalearn.kernel_attention.attention.nystrom")
@pytest.mark.claim("000:nystromformer", "smalearn.kernel_attention.attention.iterated_pinv")
def test_nystrom_attention():
    Q, K, V = random_tensors([(16, 8), (16, 8), (16, 4)])
    assert_close(nystrom(Q, K, V, 16, iterations=40), softmax_attention(Q, K, V), 1e-10)
    # Smooth sequences: noise under a circular window of 49 tokens.
    window = torch.linspace(-2, 2, 49, dtype=torch.float64).square().neg().exp()
    Q, K, V = (
        F.conv1d(F.pad(x.mT[:, None], (24, 24), mode="circular"), 0.7 * window[None, None] / window.norm())[:, 0].mT
        for x in random_tensors([(256, 8)] * 3)
    )
    target = softmax_attention(Q, K, V)
    errors = [relative_rms(nystrom(Q, K, V, landmarks, iterations=12), target) for landmarks in (4, 8, 16, 32, 64)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.5
    assert errors[-1] < 2e-3
    # The iterated pseudo-inverse at a condition number of 73.
    Q, K = random_tensors([(5, 8), (5, 8)], seed=2)
    A = softmax_weights(Q, K)
    assert 70 < torch.linalg.cond(A) < 76
    gaps = [relative_rms(iterated_pinv(A, iterations), torch.linalg.pinv(A)) for iterations in (6, 8, 10, 12)]
    assert gaps[0] > 0.5
    assert gaps[2] < 1e-6
    assert gaps[3] < 1e-12
    assert_close(nystrom(Q, K, K, 5, iterations=12), A @ K)


@pytest.mark.claim("003:scatterbrain", "smalearn.kernel_attention.attention.softmax_weights")
def test_sparse_plus_low_rank_beats_either_alone():
    t = 2 * math.pi * torch.arange(128, dtype=torch.float64) / 128
    place, eye = torch.stack([t.cos(), t.sin()], -1), torch.eye(128, dtype=torch.float64)
    target = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    # A smooth background of rank about 7, and one source in each row that stands out by 5.8 in its score.
    M = softmax_weights(torch.cat([place, 5.8 * eye], -1), torch.cat([place, eye[target]], -1))
    background, peaks = (place @ place.mT).exp(), eye[target].mT
    weights = background * (5.8 * peaks).exp()
    assert_close(M, weights / weights.sum(-1, keepdim=True))

    def low_rank(A, rank):
        U, S, Vh = torch.linalg.svd(A)
        return (U[:, :rank] * S[:rank]) @ Vh[:rank]

    budget = 16 * 128  # stored entries; a sparse one is counted with its place, as two
    low = low_rank(M, budget // (2 * 128))
    top = M.ravel().topk(budget // 2)
    sparse = torch.zeros_like(M.ravel()).scatter(0, top.indices, top.values).view_as(M)
    rest = low_rank(background / weights.sum(-1, keepdim=True), (budget - 2 * 128) // (2 * 128))
    both = torch.where(peaks == 1, M, rest)
    errors = [(M - x).norm().item() for x in (low, sparse, both)]
    assert errors[0] > 5
    assert 0.1 < errors[1] < 0.5
    assert errors[2] < 0.005


@pytest.mark.claim("004:feature-map-any-f", "smalearn.kernel_attention.series.PowerSeries._query")
def test_one_map_on_both_sides_needs_a_positive_definite_kernel():
    (X,) = random_tensors([(200, 3)])
    G = X @ X.mT
    functions = [torch.exp, torch.square, torch.relu, torch.tanh, torch.sigmoid, lambda x: F.elu(x) + 1, torch.neg]
    eigenvalues = [torch.linalg.eigvalsh(f(G)) for f in functions]
    least = [values[0].item() for values in eigenvalues]
    assert all(values[0] > -1e-12 * values[-1] for values in eigenvalues[:2])
    assert [round(value) for value in least[2:6]] == [-8, -17, -5, -7]
    assert least[6] < -200
    # With non-negative Taylor coefficients one map will do; otherwise the query's differs in sign.
    for coefficients, f in [
        ([0, 0, 1], torch.square),
        ([1, 2, 3], lambda x: 1 + 2 * x + 3 * x**2),
        ([0, -1], torch.neg),
    ]:
        phi = PowerSeries(3, coefficients)
        assert_close(kernel(phi, X, X), f(G))
        assert torch.equal(phi.query(X), phi.key(X)) == (min(coefficients) >= 0)


@pytest.mark.claim("004:softmax-infinite-n", "smalearn.kernel_attention.series.PowerSeries._key")
@pytest.mark.claim("004:softmax-infinite-n", "smalearn.kernel_attention.attention.softmax_weights")
def test_the_rank_of_exp_grows_with_the_points():
    for n in (5, 10, 20, 40):
        (X,) = random_tensors([(n, 3)])
        G = X @ X.mT
        linear, square, taylor = PowerSeries(3, [0, 1]), PowerSeries(3, [0, 0, 1]), PowerSeries.exp(3, 2)
        ranks = [torch.linalg.matrix_rank(kernel(phi, X, X)).item() for phi in (linear, square, taylor)]
        assert ranks == [min(n, 3), min(n, 6), min(n, 10)]
        assert_close(kernel(square, X, X), G**2)
        assert torch.linalg.matrix_rank(G.exp()) == n
        M = softmax_weights(X, X)
        assert_close(M, G.exp() / G.exp().sum(-1, keepdim=True))
        assert torch.linalg.matrix_rank(M) == n
