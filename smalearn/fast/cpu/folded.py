"""The chunked scan on a CPU where every head has its own B and C: decays are folded into them, no mask holds them.

With s the running sums of a chunk's log_a, let C' = exp(s) ∘ C and B' = exp(-s) ∘ B. Then L ∘ C B^T is the lower
triangle of C' B'^T, and with H the state before the chunk, (N, P),

    Y = tril(C' B'^T) X + C' H                          H' = exp(s_last) (H + B'^T X)

exp(-s) must not overflow: a block with a chunk whose log_a sum to less than `STRONGEST` is left to `Scan`. With dH' the
gradient of the state after a chunk, W = tril(dY X^T) and D = exp(s_last) dH',

    dX = tril(C' B'^T)^T dY + B' D                      dC' = W B' + dY H^T
    dH = D + C'^T dY                                    dB' = W^T C' + X D^T

and dlog_a collects what crosses each token, as in `Scan`.
"""

import torch

from smalearn.fast.cpu.scan import Scan, flow

STRONGEST = -40.0
"""Least sum of a chunk's log_a. float32 ends at exp(88), and B and C need room."""


class FoldedScan(Scan):
    """SSD of one part of the batch where heads share nothing, r = 1.

    Axes of a block: K chunks, n = b·g heads, Q tokens of a chunk, then N or P.
    """

    def _forward_block(self, start, H, Y):
        """The formulas above for one block; H becomes the state after it."""
        s = self._running_sums(start)
        if _strong(s):
            return super()._forward_block(start, H, Y)
        X, B, C, totals = self._fold(start, s)
        y, H = self._multiply("y", self._multiply("scores", C, B.mT).tril_(), X), H.squeeze(2)
        for B_k, C_k, X_k, y_k, total in zip(B.mT, C, X, y, totals, strict=True):
            y_k.baddbmm_(C_k, H)
            decay_(H.baddbmm_(B_k, X_k), total)
        self._put_heads(Y, start, y)

    def _backward_block(self, start, dY, H, dH, dX, dlog_a, dB, dC):
        """The formulas above for one block; dH becomes the gradient of the state before it."""
        s = self._running_sums(start)
        if _strong(s):
            return super()._backward_block(start, dY, H, dH, dX, dlog_a, dB, dC)
        X, B, C, totals = self._fold(start, s)
        dY = self._heads("dY", dY, start)
        M, W = self._multiply("scores", C, B.mT).tril_(), self._multiply("W", dY, X.mT).tril_()
        dx, db, dc = self._multiply("dX", M.mT, dY), self._multiply("dB", W.mT, C), self._multiply("dC", W, B)
        H, D = self._states_before(H.squeeze(2), B, X, totals), self._gradients_after(dH.squeeze(2), C, dY, totals)
        past, future = self._multiply("past", dY, H.mT), self._multiply("future", X, D.mT)
        dx.flatten(0, 1).baddbmm_(B.flatten(0, 1), D.flatten(0, 1))
        self._put_heads(dX, start, dx)
        self._put_heads(dC, start, dc.add_(past), s)
        self._put_heads(dB, start, db.add_(future), None if s is None else -s)
        if s is not None:
            parts = M.mul_(W), past.mul_(C).sum(-1), future.mul_(B).sum(-1), H.mul_(D).sum((2, 3))[..., None]
            self._put_heads(dlog_a[..., None], start, flow(*parts)[..., None])

    def _states_before(self, H, B, X, totals):
        """The state before every chunk, (K, n, N, P), H being the first."""
        states = self.scratch("states", len(X), *H.shape)
        states[0] = H
        for before, after, B_k, X_k, total in zip(states, states[1:], B.mT, X, totals, strict=False):
            decay_(torch.baddbmm(before, B_k, X_k, out=after), total)
        return states

    def _gradients_after(self, dH, C, dY, totals):
        """D of every chunk, (K, n, N, P); dH becomes the gradient of the state before the first."""
        D = self.scratch("D", len(dY), *dH.shape)
        D[-1] = dH
        for D_k, C_k, dY_k, total, before in reversed(list(zip(D, C.mT, dY, totals, [dH, *D[:-1]], strict=True))):
            torch.baddbmm(decay_(D_k, total), C_k, dY_k, out=before)
        return D

    def _fold(self, start, s):
        """A block's X, C' and B', and the decay of the state by each chunk, (n, 1, 1) or None."""
        X, B, C = (
            self._heads(name, x, start, power)
            for name, x, power in (("X", self.X, None), ("B", self.B, None if s is None else -s), ("C", self.C, s))
        )
        totals = [None] * len(X) if s is None else s[..., -1:, None].exp().to(X.dtype).flatten(1, 3)
        return X, B, C, totals

    def _heads(self, name, x, start, power=None):
        """A block of x (b, g, 1, T, D), times exp(power) (K, b, g, 1, Q) if given, as a contiguous (K, n, Q, D)."""
        x = self._chunks(x, start).squeeze(3)
        out = self.scratch(name, *x.shape)
        if power is None:
            out.copy_(x)
        else:
            torch.mul(x, _factor(power, out), out=out)
        return out.flatten(1, 2)

    def _put_heads(self, out, start, x, power=None):
        """Write x (K, n, Q, D), times exp(power) if given, into the block of out (b, g, 1, T, D)."""
        x = x.unflatten(1, (self.b, self.g))
        if power is not None:
            x.mul_(_factor(power, x))
        self._put(out, start, x.unsqueeze(3))

    def _multiply(self, name, x, y):
        """Multiply all matrices of a block."""
        out = self.scratch(name, *x.shape[:-1], y.shape[-1])
        torch.bmm(x.flatten(0, 1), y.flatten(0, 1), out=out.flatten(0, 1))
        return out


def _strong(s):
    """Whether exp(-s) might overflow."""
    return s is not None and bool((s[..., -1] < STRONGEST).any())


def _factor(power, like):
    """exp(power), (K, b, g, 1, Q), to multiply tensors (K, b, g, Q, D)."""
    return power.exp().to(like.dtype).squeeze(3)[..., None]


def decay_(state, total):
    """Multiply a state in place by the decay of a chunk, if it decays."""
    return state if total is None else state.mul_(total)
