import math

import pytest
import torch
from registry_features import INPUTS, MAPS

from smalearn import kernel_attention
from smalearn.kernel_attention import (
    CosFormer,
    EluPlusOne,
    FeatureMap,
    HyperbolicRandom,
    LinearRandomized,
    PositiveRandom,
    PowerSeries,
    RandomFourier,
    gaussian_directions,
    orthogonal_directions,
    segment_means,
)
from smalearn.testing import assert_close, random_tensors

every_map = pytest.mark.parametrize("name", MAPS)
RANDOM = [RandomFourier, PositiveRandom, HyperbolicRandom, LinearRandomized]
every_random_map = pytest.mark.parametrize("build", RANDOM)


def kernel(phi, Q, K):
    return phi.query(Q) @ phi.key(K).mT


def by_definition(name, Q, K):
    entry = MAPS[name][1]
    rows = [[entry(q, k, i, j) for j, k in enumerate(K.tolist())] for i, q in enumerate(Q.tolist())]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(Q), len(K))


def test_registry_has_every_map():
    public = {getattr(kernel_attention, name) for name in kernel_attention.__all__}
    concrete = {c for c in public if isinstance(c, type) and issubclass(c, FeatureMap)} - {FeatureMap}
    assert {type(phi) for phi, _ in MAPS.values()} == concrete


@every_map
@pytest.mark.parametrize(("target", "source"), [(5, 7), (1, 1), (0, 3), (3, 0)])
def test_kernel_is_the_definition(name, target, source):
    Q, K = random_tensors([(target, INPUTS), (source, INPUTS)])
    phi = MAPS[name][0]
    assert phi.query(Q).shape == (target, phi.features)
    assert phi.key(K).shape == (source, phi.features)
    assert_close(kernel(phi, Q, K), by_definition(name, Q, K))


@every_map
@pytest.mark.parametrize("leading", [(2,), (2, 4)])
def test_leading_axes_and_float32(name, leading):
    (x,) = random_tensors([(*leading, 5, INPUTS)])
    phi = MAPS[name][0]
    for function in (phi.query, phi.key):
        whole = function(x)
        for index in ((0,) * len(leading), (-1,) * len(leading)):
            assert_close(whole[index], function(x[index]))
    if not isinstance(phi, tuple(RANDOM)):
        assert_close(phi.query(x.float()), phi.query(x))
        assert phi.query(x.float()).dtype == torch.float32


@every_map
def test_gradients(name):
    Q, K = random_tensors([(5, INPUTS), (5, INPUTS)], grad=True)
    phi = MAPS[name][0]
    assert torch.autograd.gradcheck(phi.query, Q)
    assert torch.autograd.gradcheck(phi.key, K)


def test_maps_name_their_sizes_and_fit_what_there_is_to_fit():
    assert repr(RandomFourier(torch.zeros(4, 3))) == "RandomFourier(inputs=3, features=8)"
    (x,) = random_tensors([(5, INPUTS)])
    for phi, _ in MAPS.values():
        fitted = phi.fit(x, x)
        assert (fitted is phi) != isinstance(phi, tuple(RANDOM))
        assert (type(fitted), repr(fitted)) == (type(phi), repr(phi))


def test_gradients_at_zero_are_finite():
    for phi, _ in MAPS.values():
        x = torch.zeros(2, INPUTS, dtype=torch.float64, requires_grad=True)
        (phi.query(x).sum() + phi.key(x).sum()).backward()
        assert x.grad.isfinite().all()


# ------------------------------------------------------------------------------------- positions and power series


def test_elu_plus_one_stays_positive_and_continuous():
    phi = EluPlusOne(1)
    x = torch.tensor([[-40.0], [-1e-6], [0.0], [1e-6], [40.0]])
    assert_close(phi.query(x)[:, 0], torch.tensor([math.exp(-40), 1 - 1e-6, 1, 1 + 1e-6, 41]), 1e-6)
    assert (phi.query(x) > 0).all()


def test_cosformer_decodes_with_an_offset_and_a_fixed_horizon():
    Q, K = random_tensors([(8, INPUTS), (8, INPUTS)])
    whole = CosFormer(INPUTS, horizon=20)
    for t in range(8):
        step = CosFormer(INPUTS, horizon=20, offset=t)
        assert_close(step.query(Q[t : t + 1]), whole.query(Q)[t : t + 1])
        assert_close(step.key(K[t : t + 1]), whole.key(K)[t : t + 1])
    assert (kernel(CosFormer(INPUTS, horizon=7), Q, K) >= -1e-12).all()
    shorter = CosFormer(INPUTS, horizon=8)
    assert not torch.allclose(shorter.key(K), whole.key(K))  # a horizon that grows with T would change old features
    with pytest.raises(ValueError, match=r"CosFormer.query: horizon M = 6 must reach the last position, got 7"):
        CosFormer(INPUTS, horizon=6).query(Q)
    with pytest.raises(ValueError, match=r"CosFormer.key: horizon M = 8 must reach the last position, got 9"):
        CosFormer(INPUTS, horizon=8, offset=2).key(K)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PowerSeries(2, []), "PowerSeries: coefficients, expected at least one, got none"),
        (lambda: segment_means(torch.ones(3, 1), 4), "segment_means: segments must be at most the length 3, got 4"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# --------------------------------------------------------------------------------------------------- directions


@pytest.mark.parametrize("draw", [gaussian_directions, orthogonal_directions])
def test_directions_are_seeded_and_standard_normal(draw):
    W = draw(5, 4, 7, torch.float64)
    assert torch.equal(draw(5, 4, 7, torch.float64), W)
    assert not torch.equal(draw(5, 4, 8, torch.float64), W)
    assert draw(5, 4, 7).dtype == torch.get_default_dtype()
    assert torch.equal(draw(5, 4, 7, torch.float32), W.float())
    many = draw(40_000, 4, 0, torch.float64)
    assert many.shape == (40_000, 4)
    # Each entry is N(0, 1): the first four moments, within 4 standard errors (of independent draws) of 0, 1, 0, 3.
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        moment = (many**power).mean(0)
        assert ((moment - mean).abs() < 4 * math.sqrt(variance / 40_000)).all()
    norms = many.square().sum(-1)  # chi-squared with 4 degrees of freedom
    assert abs(norms.mean() - 4) < 4 * math.sqrt(8 / 40_000)
    assert abs(norms.var() - 8) < 4 * math.sqrt(384 / 40_000)


# ------------------------------------------------------------------------------------------------ random features


def test_variances():
    """The relative variances in closed form, measured with one direction at a time."""
    q, k = (0.7 * torch.nn.functional.normalize(x, dim=-1) for x in random_tensors([(4, 16), (4, 16)]))
    target = (q * k).sum(-1).exp()
    W = gaussian_directions(200_000, 16, 1, torch.float64)[:, None]
    s, d = (q + k).square().sum(-1), (q - k).square().sum(-1)
    expected = {
        RandomFourier: d.exp() * (1 - (-d).exp()) ** 2 / 2,
        PositiveRandom: s.exp() - 1,
        HyperbolicRandom: (1 - (-s).exp()) * (s.exp() - 1) / 2,
    }
    for build, variance in expected.items():
        phi = build(W)
        relative = (phi.query(q) * phi.key(k)).sum(-1) / target
        assert ((relative.var(0) / variance - 1).abs() < 0.15).all()


# --------------------------------------------------------------------------------------------------- fitted maps


@pytest.mark.parametrize("build", [RandomFourier, PositiveRandom, HyperbolicRandom])
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_a_fit_scales_each_query_and_nothing_else(build, leading):
    Q, K = random_tensors([(*leading, 6, INPUTS), (*leading, 8, INPUTS)])
    phi = build(gaussian_directions(5, INPUTS, 0, torch.float64))
    fitted = phi.fit(Q, K)
    ratio = kernel(fitted, Q, K) / kernel(phi, Q, K)
    assert_close(ratio, ratio[..., :1].expand_as(ratio), 1e-11)
    assert phi.shift is None
    assert_close(kernel(fitted.fit(Q, 2 * K), Q, K) / kernel(phi.fit(Q, 2 * K), Q, K), torch.ones_like(ratio), 1e-11)


@pytest.mark.parametrize("build", [PositiveRandom, HyperbolicRandom, LinearRandomized])
def test_a_fit_keeps_numbers_in_range(build):
    """|x|² = 1000 in float32: largest feature and denominator stay near 1, the weights right."""
    Q, K = (1000**0.5 * torch.nn.functional.normalize(x, dim=-1) for x in random_tensors([(40, 16), (50, 16)]))
    Q[0] /= 1e3
    K[7] /= 1e3
    W = gaussian_directions(32, 16, 0, torch.float64)
    phi = build(W.float()).fit(Q.float(), K.float())
    phi_Q, phi_K = phi.query(Q.float()), phi.key(K.float())
    size = phi.features**-0.5
    assert_close(phi_K.amax(-2), torch.full_like(phi_K[0], size), 1e-4)
    assert_close(phi_Q.amax(-1), torch.full_like(phi_Q[:, 0], size), 1e-4)
    assert ((phi_Q @ phi_K.mT).sum(-1) >= 0.999 / phi.features).all()
    wide = build(W).fit(Q, K)
    logs = wide._query_exponent(Q)[:, None] + wide._exponent(K)  # in float64, nothing shifted
    expected = logs.logsumexp(-1).softmax(-1)
    M = phi_Q @ phi_K.mT
    assert_close(M / M.sum(-1, keepdim=True), expected, 2e-3)


def test_a_fit_keeps_fourier_features_in_range():
    Q, K = (1000**0.5 * torch.nn.functional.normalize(x.float(), dim=-1) for x in random_tensors([(40, 16), (50, 16)]))
    K[7] *= 1.01
    plain = RandomFourier(gaussian_directions(32, 16, 0, torch.float32))
    phi = plain.fit(Q, K)
    assert plain.key(K).isinf().any()
    phi_Q, phi_K = phi.query(Q), phi.key(K)
    assert_close(phi_Q.norm(dim=-1), torch.ones(40), 1e-5)
    expected = torch.full((50,), math.exp((1 - 1.01**2) * 500))
    expected[7] = 1
    assert_close(phi_K.norm(dim=-1), expected, 1e-3)


@every_random_map
def test_a_fit_without_queries_or_keys(build):
    phi = build(gaussian_directions(1, INPUTS, 0, torch.float64))
    (x,) = random_tensors([(3, INPUTS)])
    if build is LinearRandomized:
        with pytest.raises(ValueError, match="segment_means: segments must be at most the length 0, got 1"):
            phi.fit(x, x[:0])
        return
    assert_close(phi.fit(x[:0], x).key(x).amax(-2), phi.fit(x, x).key(x).amax(-2))
    assert phi.fit(x, x[:0]).query(x).isfinite().all()
    assert phi.fit(x, x[:0]).key(x[:0]).shape == (0, phi.features)


# ------------------------------------------------------------------------------------------ landmarks and proposals


@pytest.mark.parametrize(("length", "segments"), [(1, 1), (7, 7), (7, 3), (12, 4), (13, 5)])
def test_segment_means(length, segments):
    (x,) = random_tensors([(2, length, 3)])
    parts = [[t for t in range(length) if t * segments // length == c] for c in range(segments)]
    assert [t for part in parts for t in part] == list(range(length))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert_close(segment_means(x, segments), torch.stack([x[:, part].mean(1) for part in parts], 1))
    assert torch.autograd.gradcheck(lambda x: segment_means(x, segments), x.requires_grad_())


def test_gradients_flow_through_the_proposals():
    Q, K, W = random_tensors([(5, INPUTS), (6, INPUTS), (3, INPUTS)], grad=True)

    def weights(Q, K, W):
        M = kernel(LinearRandomized(W).fit(Q, K), Q, K)
        return M / M.sum(-1, keepdim=True)

    assert torch.autograd.gradcheck(weights, (Q, K, W))


def test_the_error_of_positive_features_follows_the_norms_and_not_their_number_of_entries():
    def errors(N, scale):
        """Median relative error of Y with 1,024 features, and of the mean of V."""
        Q, K, V = random_tensors([(128, N)] * 3, seed=N)
        Q, K = scale(Q), scale(K)
        phi = PositiveRandom(gaussian_directions(1024, N, seed=1, dtype=Q.dtype))
        A = kernel(phi, Q, K)
        exact = (Q @ K.mT).softmax(-1) @ V
        answers = A @ V / A.sum(-1, keepdim=True), V.mean(0).expand_as(V)
        return [((Y - exact).norm(dim=-1) / exact.norm(dim=-1)).median() for Y in answers]

    at_one_norm = [errors(N, lambda x: 0.9 * x / x.norm(dim=-1, keepdim=True))[0] for N in (8, 16, 32, 64)]
    assert max(at_one_norm) < 1.5 * min(at_one_norm) < 0.15
    as_in_a_model = {N: errors(N, lambda x: x / x.shape[-1] ** 0.25) for N in (8, 64)}
    assert as_in_a_model[8][0] < 0.75 * as_in_a_model[8][1]
    assert as_in_a_model[64][0] > 1.3 * as_in_a_model[64][1]
