"""The chunked scan on a CPU where decays are mild: they are folded into X and Y, and no mask holds them.

In a chunk, with s the running sums of log_a, u a power of 2 near exp(s_last / 2), H (N, P) the state before it,
transposed, and S = tril(C B^T), which all heads share that share B and C,

    X' = u exp(-s) ∘ X                     Y = exp(s) / u ∘ (S X' + C H')
    H' = u H                               H_next = exp(s_last) / u (H' + B^T X')

since L[i, j] = exp(s_i) / u · u exp(-s_j). So heads are columns of one matrix in every product. Scaling by u keeps
numbers in range, and as a power of 2 it changes no bit: what follows a token does not matter to its output. With
dH_next the gradient of the state after the chunk, dY' = exp(s) / u ∘ dY, D = exp(s_last) / u dH_next and
W = tril(dY' X'^T) of each head,

    dX = u exp(-s) ∘ (S^T dY' + B D)       dC = W B + dY' H'^T
    dH = u (D + C^T dY')                   dB = W^T C + X' D^T

and dlog_a collects what crosses each token, as in `Scan`. One chunk after another is read, used and written, so that
it stays in the cache.
"""

import math
from typing import NamedTuple

import torch

from smalearn.fast.cpu.scan import CHUNK_LEN, Scan, crossing, flow

STRONGEST = -80.0
"""Least sum of a chunk's log_a: half of it goes to X, half to Y. float32 ends at exp(88), and both need room."""


class Chunk(NamedTuple):
    """What is read of a chunk.

    Attributes:
        X: by token, (b, g, Q, r, P).
        fold: u exp(-s), by token, (b, g, Q, r, 1), or 1.
        unfold: exp(s) / u, by token.
        enter: factor of the state before it, (n, 1, r, 1): u, and that by which it left the chunk before; or 1.
        leave: factor of the state after it, exp(s_last) / u and the u of the next.
        B: (n, Q, N).
        C: (n, Q, N).
        S: (n, Q, Q).
    """

    X: torch.Tensor
    fold: torch.Tensor
    unfold: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    S: torch.Tensor


class Buffer(NamedTuple):
    """Memory for a chunk, seen by token (b, g, Q, r, P), as columns (n, Q, r·P) and by head (n, r, Q, P)."""

    tokens: torch.Tensor
    columns: torch.Tensor
    heads: torch.Tensor


class FoldedScan(Scan):
    """SSD of one part of the batch, axes as in `Scan`; every block by the formulas above where nothing overflows."""

    def _forward_block(self, start, H, Y):
        """The formulas above for one block; H becomes the state after it."""
        chunks = self._fold(start)
        if chunks is None:
            return super()._forward_block(start, H, Y)
        x, y, written = self._buffer("x"), self._buffer("y"), self._results("Y", Y, start)
        state = H.mul_(chunks[0].enter).flatten(2)
        for c, Y_c in zip(chunks, written, strict=True):
            torch.mul(c.X, c.fold, out=x.tokens)
            torch.bmm(c.S, x.columns, out=y.columns).baddbmm_(c.C, state)
            torch.mul(y.tokens, c.unfold, out=Y_c)
            state.baddbmm_(c.B.mT, x.columns)
            H.mul_(c.leave)
        self._finish(Y, start, written)

    def _backward_block(self, start, dY, H, dH, dX, dlog_a, dB, dC):
        """The formulas above for one block; dH becomes the gradient of the state before it."""
        chunks = self._fold(start)
        if chunks is None:
            return super()._backward_block(start, dY, H, dH, dX, dlog_a, dB, dC)
        x, dy, y, back = (self._buffer(name) for name in ("x", "dy", "y", "back"))
        states, D = self._folded_states(H, chunks, x), dH.mul_(chunks[-1].leave).flatten(2)
        written, across, multiply_heads = self._results("dX", dX, start), [], self._product_of_heads(dy, x)
        grad_B, grad_C = (self.scratch(name, len(chunks), *chunks[0].B.shape) for name in ("dB", "dC"))
        rows = zip(chunks, self._tokens(dY, start), written, states, states.flatten(3), grad_B, grad_C, strict=True)
        for c, dY_c, dX_c, H_c, H_columns, dB_c, dC_c in reversed(list(rows)):
            torch.mul(c.X, c.fold, out=x.tokens)
            torch.mul(dY_c, c.unfold, out=dy.tokens)
            torch.bmm(c.B, D, out=back.columns)
            W = multiply_heads()
            dM = W.sum(1)
            torch.bmm(dM.mT, c.C, out=dB_c).baddbmm_(x.columns, D.mT)
            torch.bmm(dM, c.B, out=dC_c).baddbmm_(dy.columns, H_columns.mT)
            if dlog_a is not None:
                torch.bmm(c.C, H_columns, out=y.columns)
                past, future = y.tokens.mul_(dy.tokens).sum(-1), torch.mul(back.tokens, x.tokens, out=y.tokens).sum(-1)
                inside, through = crossing(W.mul_(c.S[:, None])), H_c.mul_(dH).sum((1, 3))[..., None]
                inside, through = (part.unflatten(0, (self.b, self.g)) for part in (inside, through))
                across.append((inside, past.mT, future.mT, through))
            back.columns.baddbmm_(c.S.mT, dy.columns)
            torch.mul(back.tokens, c.fold, out=dX_c)
            D.baddbmm_(c.C.mT, dy.columns)
            dH.mul_(c.enter)
        self._finish(dX, start, written)
        self._put(dB, start, grad_B.unflatten(1, (self.b, self.g, 1)))
        self._put(dC, start, grad_C.unflatten(1, (self.b, self.g, 1)))
        if dlog_a is not None:
            gradient = flow(*(torch.stack(part[::-1]) for part in zip(*across, strict=True)))
            self._put(dlog_a[..., None], start, gradient[..., None])

    def _folded_states(self, H, chunks, x):
        """H' of every chunk, (K, n, N, r, P), H being the state before the first."""
        states = self.scratch("states", len(chunks), *H.shape)
        torch.mul(H, chunks[0].enter, out=states[0])
        for before, after, c in zip(states, states[1:], chunks, strict=False):
            torch.mul(c.X, c.fold, out=x.tokens)
            torch.baddbmm(before.flatten(2), c.B.mT, x.columns, out=after.flatten(2))
            after.mul_(c.leave)
        return states

    def _fold(self, start):
        """The chunks of a block, long where decays are milder; None where even short ones would overflow."""
        for length in [CHUNK_LEN] if self.r == 1 else [2 * CHUNK_LEN, CHUNK_LEN]:
            self.chunk_len = min(length, self.length)
            s = self._running_sums(start)
            if s is None or bool((s[..., -1] >= STRONGEST).all()):
                X, B, C = self._tokens(self.X, start), *(self._chunks(x, start) for x in (self.B, self.C))
                B, C = (self._copy(name, x).flatten(1, 3) for name, x in (("B", B), ("C", C)))
                S = self._products("scores", C, B.mT).tril_()
                return [Chunk(*parts) for parts in zip(X, *self._factors(s, len(X)), B, C, S, strict=True)]
        return None

    def _factors(self, s, chunks):
        """For each chunk fold, unfold, enter and leave."""
        if s is None:
            return [[torch.ones((), dtype=self.scratch.dtype)] * chunks] * 4
        last = s[..., -1:]
        u = (last / math.log(4)).round().exp2()
        fold, unfold = (x.to(self.scratch.dtype).mT[..., None] for x in ((-s).exp_().mul_(u), s.exp().div_(u)))
        after = last.exp().div_(u)
        after[:-1] *= u[1:]
        first, *after = (x.to(self.scratch.dtype).view(self.b * self.g, 1, self.r, 1) for x in (u[0], *after))
        return fold, unfold, [first, *after[:-1]], after

    def _tokens(self, x, start):
        """A block of x (b, g, r, T, P) by token, (K, b, g, Q, r, P), a view where the block is whole."""
        return self._chunks(x, start).transpose(-2, -3)

    def _results(self, name, out, start):
        """Where to write a block of out (b, g, r, T, P) by token: there if the block is whole."""
        tokens = min(self.block, self.length - start)
        whole = tokens % self.chunk_len == 0
        shape = -(-tokens // self.chunk_len), self.b, self.g, self.chunk_len, self.r, self.head_dim
        return self._tokens(out, start) if whole else self.scratch(name, *shape)

    def _finish(self, out, start, written):
        """Write a block that was not written in its place."""
        if min(self.block, self.length - start) % self.chunk_len:
            self._put(out, start, written.transpose(-2, -3))

    def _buffer(self, name):
        """Memory for one chunk of X."""
        tokens = self.scratch(name, self.b, self.g, self.chunk_len, self.r, self.head_dim)
        rows = tokens.flatten(0, 1)
        return Buffer(tokens, rows.flatten(2), rows.transpose(1, 2))

    def _product_of_heads(self, dy, x):
        """What multiplies W of every head, (n, r, Q, Q); without decay, one for all heads of a group, (n, 1, Q, Q)."""
        apart = self.log_a is not None and self.r > 1
        W = self.scratch("W", len(dy.columns), self.r if apart else 1, self.chunk_len, self.chunk_len)
        pairs = zip(dy.heads, x.heads.mT, W, strict=True) if apart else [(dy.columns, x.columns.mT, W[:, 0])]
        pairs = list(pairs)

        def multiply():
            for rows, columns, out in pairs:
                torch.bmm(rows, columns, out=out)
            return W.tril_()

        return multiply
