"""A state while it reads a sentence, with a forget gate for every word: one that adds, or one that corrects itself."""

from __future__ import annotations

import torch
import traitlets

from smalearn._checks import ShapeError
from smalearn.course.widgets.base import Checked, Explorer, module
from smalearn.data import ten_words
from smalearn.linear_attention import delta_rule_recurrent, linear_attention_parallel, linear_attention_recurrent

__all__ = ["StateExplorer"]

MAX_WORDS, MAX_FEATURES = 12, 8


class StateExplorer(Explorer):
    """A state that absorbs a sentence word by word, H_t = a_t H_(t-1) + v_t k_t^T, and what a query reads from it.

    Beside the read-out H_t q stands the row of attention that gives the same, the sum of M_ts v_s over the words read,
    M_ts = (a_(s+1) · … · a_t) q·k_s. With `beta` the state follows the delta rule, H_t = H + β (v_t − H k_t) k_t^T
    after the decay, H = a_t H_(t-1). Gates are dragged, or changed by arrow keys; `gates`, `query`, `time` and `beta`
    can be read and set from Python too.

    Args:
        text: 1 to 12 words; if None, those of `ten_words`. "Ann:tea" writes the value “tea” under the key “Ann”, both
            one-hot, and is asked for “Ann”.
        keys: (T, N), one key for each word, N ≤ 8; if None, one-hot by word.
        values: (T, P), one value for each word, P ≤ 8; if None, one-hot for the word that follows, and 0 for the last:
            with one-hot keys the state is then a table of what came after what.
        gates: the T gates a_t, from 0 to 1, or one for all.
        query: the word whose key is asked for; if None, the last word that is repeated, whose answer changes with the
            gates between, or else the first word. Of equal words the first one's key.
        time: how many words have been read, from 0 to T; all of them if None.
        beta: strength of the correction, from 0 to 2; if None, the state adds.

    Raises:
        ShapeError: keys, values or gates do not have one row for each word, or N or P is none of 1 to 8.
        ValueError: too many words; a number is not finite; a gate, the query, the time or beta is none of the above.

    Source: Yang et al. 2023 (GLA); Dao and Gu 2024, "Transformers are SSMs", Proposition 4.1; Yang et al. 2024 (Gated
    DeltaNet).

    Example:
        >>> StateExplorer(gates=0.5, query="than", time=9).readout.tolist()
        [0.0, 0.0, 0.0, 0.0, 0.03125, 0.0, 1.0]
    """

    _esm = module("state_explorer.js")
    _words = traitlets.List().tag(sync=True)
    _asked = traitlets.List().tag(sync=True)
    _corrects = traitlets.Bool().tag(sync=True)
    _K = traitlets.List().tag(sync=True)
    _V = traitlets.List().tag(sync=True)
    _rows = traitlets.List().tag(sync=True)
    _columns = traitlets.List().tag(sync=True)
    gates = Checked().tag(sync=True)
    query = Checked().tag(sync=True)
    time = Checked().tag(sync=True)
    beta = traitlets.Any(None).tag(sync=True)

    def __init__(
        self,
        text: str | None = None,
        keys: object = None,
        values: object = None,
        gates: object = 1.0,
        query: str | None = None,
        time: int | None = None,
        beta: float | None = None,
    ) -> None:
        words = ten_words()[0] if text is None else text.split()
        if not 1 <= len(words) <= MAX_WORDS:
            raise ValueError(f"StateExplorer: text, expected 1 to {MAX_WORDS} words, got {len(words)}")
        asked = [word.partition(":")[0] for word in words]
        if keys is None:
            columns, K = _one_hot(asked)
        else:
            K = _matrix("keys", keys, len(words))
            columns = [f"n = {n}" for n in range(K.shape[1])]
        rows, V = _written(words, values)
        given = {"keys": None if keys is None else K.tolist(), "values": None if values is None else V.tolist()}
        super().__init__(
            _given={"text": text, **given},
            _words=words,
            _asked=asked,
            _corrects=beta is not None,
            _K=K.tolist(),
            _V=V.tolist(),
            _columns=columns,
            _rows=rows,
            gates=gates,
            query=_repeated(asked) if query is None else query,
            time=len(words) if time is None else time,
            beta=beta,
        )

    @traitlets.validate("gates")
    def _valid_gates(self, proposal: dict) -> list[float]:
        gates, length = _tensor("gates", proposal["value"]), len(self._words)
        if gates.shape not in [(), (length,)]:
            raise ShapeError(f"StateExplorer: gates, expected one or {length}, got shape {tuple(gates.shape)}")
        if not ((gates >= 0) & (gates <= 1)).all():
            raise ValueError(f"StateExplorer: gates, expected numbers from 0 to 1, got {gates.tolist()}")
        return gates.expand(length).tolist()

    @traitlets.validate("query")
    def _valid_query(self, proposal: dict) -> str:
        if proposal["value"] in self._asked:
            return proposal["value"]
        raise ValueError(f"StateExplorer: query, expected a word of the text, got {proposal['value']!r}")

    @traitlets.validate("time")
    def _valid_time(self, proposal: dict) -> int:
        time, length = proposal["value"], len(self._words)
        if isinstance(time, int) and not isinstance(time, bool) and 0 <= time <= length:
            return time
        raise ValueError(f"StateExplorer: time, expected an int from 0 to {length}, got {time!r}")

    @traitlets.validate("beta")
    def _valid_beta(self, proposal: dict) -> float | None:
        beta = proposal["value"]
        if beta is None or (isinstance(beta, int | float) and not isinstance(beta, bool) and 0 <= beta <= 2):
            return beta
        raise ValueError(f"StateExplorer: beta, expected a number from 0 to 2 or None, got {beta!r}")

    @property
    def state(self) -> torch.Tensor:
        """The state H_t (P, N) after `time` words, float64."""
        K, V, log_a = self._read()
        if self.beta is not None:
            return delta_rule_recurrent(K, K, V, torch.full_like(log_a, self.beta), log_a)[1]
        return linear_attention_recurrent(K, K, V, log_a)[1]

    @property
    def weights(self) -> torch.Tensor:
        """The row M_t (t) of attention weights of the query over the `time` words that have been read, float64."""
        K, _, log_a = self._read()
        Q, eye = self._q().expand_as(K), torch.eye(len(K), dtype=K.dtype)
        if self.beta is not None:
            return delta_rule_recurrent(Q, K, eye, torch.full_like(log_a, self.beta), log_a)[0][-1:].reshape(-1)
        return linear_attention_parallel(Q, K, eye, log_a)[-1:].reshape(-1)

    @property
    def readout(self) -> torch.Tensor:
        """The values that the query reads, H_t q (P), float64."""
        return self.state @ self._q()

    def _read(self) -> list[torch.Tensor]:
        """Keys (t, N), values (t, P) and log gates (t) of the words that have been read."""
        K, V, gates = (torch.tensor(x, dtype=torch.float64)[: self.time] for x in (self._K, self._V, self.gates))
        return [K, V, gates.log()]

    def _q(self) -> torch.Tensor:
        """The query (N)."""
        return torch.tensor(self._K[self._asked.index(self.query)], dtype=torch.float64)

    def __repr__(self) -> str:
        """The state without its arrays, the same text on every machine."""
        beta = "" if self.beta is None else f", beta={self.beta:g}"
        return f"StateExplorer({len(self._words)} words, query={self.query!r}, time={self.time}{beta})"


def _repeated(words: list[str]) -> str:
    """Find the last word but one that has been before; the first word if there is none."""
    return next((words[t] for t in range(len(words) - 2, 0, -1) if words[t] in words[:t]), words[0])


def _one_hot(words: list[str]) -> tuple[list[str], torch.Tensor]:
    """Names of the entries and a vector (T, names) with a single 1 for each word."""
    names = list(dict.fromkeys(words))
    if len(names) > MAX_FEATURES:
        raise ValueError(f"StateExplorer: text, expected at most {MAX_FEATURES} different words, got {len(names)}")
    return names, torch.eye(len(names))[[names.index(word) for word in words]]


def _written(words: list[str], values: object) -> tuple[list[str], torch.Tensor]:
    """Names of the entries of a value and the values (T, P): as given, as named, or else the words that follow."""
    if values is not None:
        V = _matrix("values", values, len(words))
        return [f"p = {p}" for p in range(V.shape[1])], V
    pairs = [word.partition(":") for word in words]
    if all(value for *_, value in pairs):
        return _one_hot([value for *_, value in pairs])
    names, codes = _one_hot([key for key, *_ in pairs])
    V = codes.roll(-1, 0)
    V[-1] = 0
    return names, V


def _tensor(name: str, value: object) -> torch.Tensor:
    """Convert to a float64 tensor of finite numbers, or a ValueError that names the argument."""
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"StateExplorer: {name}, expected an array of numbers, got {value!r}") from error
    if not tensor.isfinite().all():
        raise ValueError(f"StateExplorer: {name}, expected finite numbers, got {tensor.tolist()}")
    return tensor


def _matrix(name: str, value: object, length: int) -> torch.Tensor:
    """Convert keys or values, one row for each word."""
    tensor = _tensor(name, value)
    if tensor.ndim != 2 or len(tensor) != length or not 1 <= tensor.shape[1] <= MAX_FEATURES:
        got = tuple(tensor.shape)
        raise ShapeError(f"StateExplorer: {name}, expected shape ({length}, 1 to {MAX_FEATURES}), got {got}")
    return tensor
