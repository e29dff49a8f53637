"""The feature map of a power series: every kernel f(q · k) that is a polynomial, and exp up to a remainder."""

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Self

import torch

from smalearn._checks import check_count, check_number, check_type
from smalearn.kernel_attention.base import FeatureMap


class PowerSeries(FeatureMap):
    """All monomials up to degree m, weighted so that phi_q(q) · phi_k(k) = f(q · k) = Σ_j c_j (q · k)^j, exactly.

    The multinomial theorem: (q · k)^j = Σ_α (j! / α!) q^α k^α over all exponents α of degree j. So
    phi_k(x)_α = √(|c_j| j! / α!) x^α, and phi_q(x)_α carries the sign of c_j besides. With c_j ≥ 0 the two are one
    map and the kernel is positive semidefinite; a negative coefficient needs two different maps.

    Args:
        inputs: N; binomial(N + m, m) features.
        coefficients: c_0 … c_m of the series.

    Raises:
        TypeError: coefficients are not a list of numbers.
        ValueError: inputs is not an integer ≥ 1, or there is no coefficient.

    Cost:
        T·m·binomial(N + m, m) multiplications and entries.

    Source:
        Mamba-2 paper, section 4.1.3 (the feature map of exp, infinite in truth); Schoenberg 1942 (when one map does).

    Example:
        >>> phi = PowerSeries.exp(inputs=2, degree=2)  # 1 + q·k + (q·k)²/2
        >>> phi.key(torch.tensor([[2.0, 3.0]]))  # x²/√2, xy, x, y²/√2, y, 1
        tensor([[2.8284, 6.0000, 2.0000, 6.3640, 3.0000, 1.0000]])
    """

    def __init__(self, inputs: int, coefficients: Sequence[float]):
        self.inputs = check_count("PowerSeries", "inputs", inputs)
        check_type("PowerSeries", "coefficients", coefficients, Sequence)
        for i, coefficient in enumerate(coefficients):
            check_number("PowerSeries", f"coefficients[{i}]", coefficient)
        if not coefficients:
            raise ValueError("PowerSeries: coefficients, expected at least one, got none")
        self.coefficients = tuple(map(float, coefficients))
        # A monomial of degree ≤ m is a choice of m factors among the N inputs and a one, which is number N.
        monomials = list(combinations_with_replacement(range(inputs + 1), len(coefficients) - 1))
        self._factors = torch.tensor(monomials, dtype=torch.long)
        self._weights = torch.tensor([self._weight(factors) for factors in monomials], dtype=torch.float64)
        self.features = len(monomials)

    @classmethod
    def exp(cls, inputs: int, degree: int) -> Self:
        """The Taylor series of exp, c_j = 1/j!, cut off after a degree.

        |exp(x) - f(x)| ≤ e^|x| |x|^(m+1) / (m+1)! for x = q · k and degree m.

        Args:
            inputs: N.
            degree: m ≥ 0, the last power.

        Returns:
            The map, of binomial(N + m, m) features.

        Raises:
            ValueError: inputs is not an integer ≥ 1, or degree not an integer ≥ 0.
        """
        check_count("PowerSeries.exp", "degree", degree, least=0)
        return cls(inputs, [1 / math.factorial(power) for power in range(degree + 1)])

    def _weight(self, factors):
        """c_j j! / α! of a monomial."""
        powers = [factors.count(n) for n in range(self.inputs)]
        degree = sum(powers)
        return self.coefficients[degree] * math.factorial(degree) / math.prod(map(math.factorial, powers))

    def _query(self, Q):
        return self._key(Q) * self._weights.sign().to(Q)

    def _key(self, K):
        with_one = torch.cat([K, torch.ones_like(K[..., :1])], dim=-1)
        monomials = with_one[..., self._factors.to(K.device)].prod(-1)
        return monomials * self._weights.abs().sqrt().to(K)
