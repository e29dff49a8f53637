"""Feature maps that act on each entry: elu + 1, and cosFormer's ReLU with positions. They estimate no softmax."""

import math

import torch

from smalearn._checks import check_count
from smalearn.kernel_attention.base import FeatureMap


class EluPlusOne(FeatureMap):
    """phi(x) = elu(x) + 1 entry by entry: x + 1 for x > 0 and e^x below. All features are positive.

    A kernel of its own and no approximation of exp(q · k): nothing makes it one.

    Args:
        inputs: N; as many features.

    Raises:
        ValueError: inputs is not an integer ≥ 1.

    Cost:
        T·N operations.

    Source:
        Katharopoulos et al. 2020, "Transformers are RNNs"; Mamba-2 paper, section 4.1.3.

    Example:
        >>> EluPlusOne(3).query(torch.tensor([[-1.0, 0.0, 2.0]]))
        tensor([[0.3679, 1.0000, 3.0000]])
    """

    def __init__(self, inputs: int):
        self.inputs = self.features = check_count("EluPlusOne", "inputs", inputs)

    def _query(self, x):
        # Not elu(x) + 1: far below zero that rounds to 0, which is not positive.
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


class CosFormer(FeatureMap):
    """phi(x_t) = (relu(x_t) cos θ_t, relu(x_t) sin θ_t) with θ_t = π t / 2M: the entries, reweighted by distance.

    phi(q_i) · phi(k_j) = relu(q_i) · relu(k_j) · cos(π (i - j) / 2M): plain ReLU features under the mask
    L[i, j] = cos(π (i - j) / 2M), a Toeplitz matrix of rank 2. The mask is non-negative because |i - j| ≤ M. A query
    or a key without a positive entry has no features left.

    Args:
        inputs: N; 2N features.
        horizon: M, the largest position. The features of a token depend on it, so it stays fixed: a sequence that is
            decoded step by step needs the M of the longest sequence from the start.
        offset: position t of the first row, for decoding; rows count up from it.

    Raises:
        ValueError: inputs or horizon is not an integer ≥ 1, or offset not an integer ≥ 0; in `query` and `key`, a
            position is beyond the horizon.

    Cost:
        2·T·N multiplications, T cosines and sines.

    Source:
        Qin et al. 2022, "cosFormer". The Mamba-2 paper, section 4.1.3, leaves out the ReLU and writes
        (x cos, sin); the second half is x sin.
    """

    def __init__(self, inputs: int, horizon: int, offset: int = 0):
        self.inputs = check_count("CosFormer", "inputs", inputs)
        self.features = 2 * inputs
        self.horizon = check_count("CosFormer", "horizon", horizon)
        self.offset = check_count("CosFormer", "offset", offset, least=0)

    def _query(self, x):
        positions = torch.arange(self.offset, self.offset + x.shape[-2], dtype=x.dtype, device=x.device)
        angles = (math.pi / (2 * self.horizon) * positions)[:, None]
        return torch.cat([x.relu() * angles.cos(), x.relu() * angles.sin()], dim=-1)

    def _check(self, method, name, x):
        super()._check(method, name, x)
        last = self.offset + x.shape[-2] - 1
        if last > self.horizon:
            raise ValueError(f"CosFormer.{method}: horizon M = {self.horizon} must reach the last position, got {last}")
