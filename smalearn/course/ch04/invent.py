"""The last exercise of chapter 04: a structured mask of the learner's own, held to Definition 4.2."""

import math
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn.course.exercises.core import exercise
from smalearn.testing import random_tensors, relative_rms

__all__ = ["Judge", "Operations"]


def invent(judge):
    """Two memories in one mask, 0.5^(t-s) + 0.99^(t-s): a sum of structured masks is structured.

    Invent a mask that is not sparse, as two functions, and return judge(dense, matmul). The judge says "structured" if
    the two agree and the operations of matmul grow at most threefold when T doubles.

    Hint: New structured masks are made from old ones: a sum of two, a product of two decays, rows or columns scaled,
    time reversed, blocks of one structure with another between them.

    Hint: The sum is the easiest: `dense` adds two matrices, `matmul` adds two products. `DecayMask(T, 0.9)` has
    `dense(torch.float64)` and `matmul(x)`; so have all masks of this chapter.

    Hint: `dense` may return `sum(DecayMask(length, gamma).dense(torch.float64) for gamma in (0.5, 0.99))`. What does
    `matmul(x)` add up, and where does it get the length?

    Insight: Sums, matrix products, scalings and transposes of structured masks are structured, always; entrywise
    products only by a rule.
    """
    rates = torch.tensor([0.5, 0.99], dtype=torch.float64)

    def dense(length):
        time = torch.arange(length)
        return sum(rate ** (time[:, None] - time).clamp(min=0) for rate in rates).tril()

    def matmul(x):
        memories, rows = x.new_zeros(2, x.shape[1]), []
        for now in x:
            memories = rates[:, None] * memories + now
            rows.append(memories.sum(0))
        return torch.stack(rows)

    return judge(dense, matmul)


COLUMNS = 3
GROWTH = 3.0  # T log T gives 2.3 from 256 to 512, T² gives 4
aten = torch.ops.aten
FACTORS = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1, aten.addmv: 1}  # place of the left matrix
SPECTRA = {aten._fft_r2c, aten._fft_c2r, aten._fft_c2c}


class Operations(TorchDispatchMode):
    """Counter of the operations of torch inside a `with`: `count`, a whole number.

    A matrix product (m, k) (k, n) counts 2·m·k·n, a convolution twice its kernel for each entry of its result, a
    Fourier transform of n entries n·log2(n) for each column, a view nothing, and everything else its largest operand or
    result. What Python computes on its own is not seen.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        schema = function._schema
        view = any(one.alias_info for one in schema.returns) and not schema.is_mutable
        self.count += 0 if view else self._cost(function.overloadpacket, args, out)
        return out

    @staticmethod
    def _cost(name, args, out):
        if name in FACTORS:
            left, right = args[FACTORS[name] : FACTORS[name] + 2]
            return 2 * left.numel() * (right.shape[-1] if right.ndim > 1 else 1)
        if name is aten.convolution:
            return 2 * out.numel() * args[1][0].numel()
        flat = [item for arg in (*args, out) for item in (arg if isinstance(arg, list | tuple) else [arg])]
        tensors = [item for item in flat if isinstance(item, torch.Tensor)]
        size = max((tensor.numel() for tensor in tensors), default=0)
        if name in SPECTRA:
            return math.ceil(size * math.log2(max(2, *(max(tensor.shape, default=1) for tensor in tensors))))
        return size


def _where(matmul, L, x):
    """That calls differ, columns are mixed, or the first entry where `matmul` has another number; "" if none."""
    try:
        if relative_rms(matmul(x.clone()), matmul(x.clone())) > 1e-5:
            return ": two calls with the same x differ, so draw what is random once, or from a seed"
        if relative_rms(matmul(2 * x), 2 * matmul(x.clone())) > 1e-5:
            return ": matmul is not linear, twice x must give twice the result"
        if relative_rms(matmul(x.clone())[:, 1:], matmul(x[:, 1:].clone())) > 1e-5:
            return ": column 1 of matmul(x) depends on column 0 of x, and time is axis 0"
        found = matmul(torch.eye(len(L), dtype=L.dtype))
        t, s = ((found - L).abs() > 1e-5 * L.abs().max()).nonzero()[0].tolist()
    except Exception:  # what is written for three columns may fail with others
        return ""
    return f": at row {t}, column {s} the mask is {L[t, s]:.4g} in dense, {found[t, s]:.4g} in matmul"


def _unseen(matmul, L):
    """Say that most entries of a mask, in three of its columns, are 0 in `matmul`: too small to make a difference."""
    columns = torch.tensor([0, len(L) // 2, len(L) - 1])
    filled = L[:, columns] != 0
    seen = matmul(torch.eye(len(L), dtype=L.dtype)[:, columns]) != 0
    few = 2 * (seen & filled).sum() < filled.sum()
    return "most entries of the mask are 0 in matmul, and in dense too small to be noticed" if few else ""


def _is_mask(function, length):
    """Whether it is the other one of the two functions, which makes the mask."""
    try:
        return function(length).shape == (length, length)
    except Exception:
        return False


def _sums(L):
    return bool((torch.ones(L.shape).tril() == L).all())


class Judge:
    """Definition 4.2 as a test: `judge(dense, matmul)` says "structured", or what is missing.

    For each of its lengths T: `dense(T)` is a (T, T) tensor with at least a quarter of its entries not zero, most of
    which are not zero in `matmul` either, and `matmul(x)` equals `dense(T) @ x` for random x (T, 3). From the last
    length but one to the last, twice as long, the counted operations of `matmul` grow at most threefold. Under a seal
    the mask must be another than that of section 1.

    Args:
        lengths: to be tried, ascending; growth is judged if the last is twice the one before.
        seal: what follows "structured", so that who says it must have asked.
    """

    def __init__(self, *lengths: int, seal: str = ""):
        self.lengths, self.seal = lengths, seal

    def __call__(self, dense: Callable, matmul: Callable) -> str:
        """Return the verdict on `dense`, from T to the mask, and `matmul`, from x (T, columns) to its product."""
        counts = []
        for length in self.lengths:
            verdict, count = self._one(dense, matmul, length)
            if self.seal and not verdict and length > 2 and _sums(dense(length)):
                verdict = "this is the mask of section 1, a running sum: make one of your own"
            counts.append(count)
            if verdict:
                return f"at T = {length}: {verdict}"
        before, last = self.lengths[-2:] if len(counts) > 1 else (0, 1)
        if last == 2 * before and counts[-1] > GROWTH * counts[-2]:
            return f"from T = {before} to {last} the operations of matmul grow more than threefold"
        return f"structured{self.seal}"

    @staticmethod
    def _one(dense, matmul, length):
        """Say what is missing at one length, if anything, and count the operations of its product."""
        try:
            L = dense(length)
        except Exception:
            if _is_mask(matmul, length):
                return "the two have changed places: judge(dense, matmul)", 0
            raise
        if not isinstance(L, torch.Tensor) or L.shape != (length, length):
            return "dense(T) is no (T, T) tensor", 0
        L = L if L.is_floating_point() or L.is_complex() else L.double()  # True and 1 are ones
        x = random_tensors([(length, COLUMNS)], seed=length)[0].to(L.dtype)
        with Operations() as operations:
            y = matmul(x.clone())  # which it may overwrite
        if not isinstance(y, torch.Tensor) or y.shape != x.shape:
            return "matmul(x) does not have the shape of x", 0
        if torch.finfo(y.dtype).eps > torch.finfo(x.dtype).eps:
            return f"matmul(x) is {y.dtype} where dense and x are {x.dtype}", 0
        if not relative_rms(y, L @ x) <= 1e-5:
            return f"matmul(x) and dense(T) @ x differ{_where(matmul, L, x)}", 0
        if operations.count <= x.numel() and length > 1:
            return "matmul(x) computes next to nothing with torch: what NumPy or Python compute is not counted", 0
        if 4 * (L != 0).sum() < length**2:
            return "fewer than a quarter of the mask's entries are not zero", 0
        return _unseen(matmul, L), operations.count


def _mask(length):
    time = torch.arange(length)
    return (0.5 ** (time[:, None] - time).clamp(min=0).double()).tril()


def _verdict(answer, judge):
    """What the judge has found, or that it must be asked."""
    if answer == f"structured{judge.seal}":
        return ""
    if isinstance(answer, str) and answer.startswith(("at T = ", "from T = ")):
        return answer
    if isinstance(answer, tuple):
        return "your two functions go to the judge, and its verdict comes back: `return judge(dense, matmul)`"
    found = repr(answer) if isinstance(answer, str) else type(answer).__name__
    return f"expected the judge's verdict, got {found}: `return judge(dense, matmul)`"


def _judges(randn):
    for lengths in [(1,), (2, 7), (256, 512)]:
        yield (Judge(*lengths, seal=f", sealed {randn(1).abs().item():.6f}"),)


exercise(
    "4.6",
    "A mask of your own",
    claim="000:def4.2",
    level=3,
    minutes=20,
    cases=_judges,
    refuse=_verdict,
    wrong={
        "your product is right, and it costs T²: it forms the matrix, or adds up the whole past anew for every token. "
        "What can it keep from one token to the next?": lambda judge: judge(_mask, lambda x: _mask(len(x)) @ x),
        "your two functions are not the same mask. Multiply a short identity matrix by `matmul` and compare it with "
        "`dense`; is one the transpose of the other?": lambda judge: judge(_mask, lambda x: _mask(len(x)).mT @ x),
        "a sparse mask is fast, but it sees next to nothing: here at least a quarter of the entries must not "
        "be zero": lambda judge: judge(lambda length: torch.eye(length, dtype=torch.float64), lambda x: 1 * x),
    },
)(invent)
