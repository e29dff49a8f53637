"""The contract of a feature map, and the checks that all maps share."""

from abc import ABC, abstractmethod
from typing import Self

import torch

from smalearn._checks import ShapeError, check_dtypes, check_shapes


class FeatureMap(ABC):
    """Two functions phi_q and phi_k; the kernel of the map is k(q, k) = phi_q(q) · phi_k(k).

    A subclass says what it does to queries (`_query`); it does the same to keys unless it says otherwise (`_key`).

    Attributes:
        inputs: N, the size of a query and of a key.
        features: how many features there are, the size of phi(x).
    """

    inputs: int
    features: int

    def query(self, Q: torch.Tensor) -> torch.Tensor:
        """phi_q of every row.

        Args:
            Q: (..., T, N) queries.

        Returns:
            (..., T, features), dtype of Q.

        Raises:
            ShapeError: Q has fewer than two axes, or its last axis is not `inputs`.
            ValueError: Q has no floating dtype, or another one than the map's tensors.
        """
        self._check("query", "Q", Q)
        return self._query(Q)

    def key(self, K: torch.Tensor) -> torch.Tensor:
        """phi_k of every row: (..., S, features) for keys K (..., S, N), dtype and errors as for `query`."""
        self._check("key", "K", K)
        return self._key(K)

    def fit(self, Q: torch.Tensor, K: torch.Tensor) -> Self:
        """The map adapted to these sequences: the map itself, unless its class says otherwise.

        Args:
            Q: (..., T, N) queries.
            K: (..., S, N) keys.

        Returns:
            A map; this one is not changed.

        Raises:
            ShapeError: as for `query`.
            ValueError: as for `query`.
        """
        self._check("fit", "Q", Q)
        self._check("fit", "K", K)
        return self._fit(Q, K)

    @abstractmethod
    def _query(self, Q: torch.Tensor) -> torch.Tensor:
        """The features of every row of Q, already checked."""

    def _key(self, K):
        return self._query(K)

    def _fit(self, Q, K):
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(inputs={self.inputs}, features={self.features})"

    def _check(self, method: str, name: str, x: torch.Tensor) -> None:
        where = f"{type(self).__name__}.{method}"
        check_dtypes(where, {name: x}, real=True)
        check_shapes(where, {name: (x, "tn")})
        if x.shape[-1] != self.inputs:
            raise ShapeError(f"{where}: axis 'n' is {x.shape[-1]} in {name} but {self.inputs} in the map")
