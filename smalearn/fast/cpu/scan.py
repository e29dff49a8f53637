"""Forward and backward of the chunked SSD scan on a CPU, one cache-sized block of chunks at a time."""

import torch
import torch.nn.functional as F

CHUNK_LEN = 32
"""16 takes 1.13, 64 takes 1.10 times as long (T = 2048, 24 heads, with gradients, one thread of an AMD EPYC)."""
CACHE = 3 << 19
"""Numbers that the scratch memory of a block may hold, 6 MiB in float32."""
FLOOR = -1000.0
"""exp(FLOOR) is 0 in float64 too: a log_a below it means the same, and -inf - -inf is avoided."""


def batch_parts(X: torch.Tensor, B: torch.Tensor) -> list[slice]:
    """Slices of the batch so small that four chunks of one fit the cache; one slice of all if X is empty."""
    together = max(1, CACHE // (4 * CHUNK_LEN * _numbers_per_token(X, B)))
    return [slice(start, start + together) for start in range(0, len(X), together)] if X.numel() else [slice(None)]


def block_len(X: torch.Tensor, B: torch.Tensor) -> int:
    """Tokens of a block, whole pairs of chunks: as many as fit the cache for one of `batch_parts`."""
    chunk_len = max(1, min(2 * CHUNK_LEN, X.shape[3]))
    numbers = _numbers_per_token(X, B)
    together = max(1, min(len(X), CACHE // (4 * CHUNK_LEN * numbers)))
    return max(1, CACHE // (chunk_len * numbers * together)) * chunk_len


def states_of_blocks(X: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Memory for the state before every block, (blocks, b·g, N, r, P)."""
    batch, groups, heads, length, head_dim = X.shape
    blocks = (length + block_len(X, B) - 1) // block_len(X, B)
    dtype = torch.promote_types(X.dtype, torch.float32)
    return X.new_empty(blocks, batch * groups, B.shape[-1], heads, head_dim, dtype=dtype)


def _numbers_per_token(X, B):
    """Scratch memory of a token of one of the batch.

    X, and a row of L in float32 and float64, of each head; B, C, their gradients and their scores.
    """
    _, groups, heads, _, head_dim = X.shape
    return max(1, groups * (heads * (head_dim + 3 * CHUNK_LEN) + 4 * B.shape[-1] + 2 * CHUNK_LEN))


class Scratch:
    """Named buffers for all blocks: fresh memory has a page fault every 4 KiB, which costs more than filling it."""

    def __init__(self, dtype: torch.dtype):
        self.dtype, self.buffers = dtype, {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Uninitialised memory of that shape; what had that name before is lost."""
        size = torch.Size(shape).numel()
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = torch.empty(size, dtype=dtype or self.dtype)
        return self.buffers[name][:size].view(shape)


class Scan:
    """SSD of one part of the batch.

    Axes: K chunks of a block, b batch, g groups, r heads of a group, Q tokens of a chunk, P, N, and n = b·g.
    By head means (K, b, g, r, Q, P). By token means (K, b, g, Q, r, P), where the heads of a group are columns of one
    matrix, as they are in the state (n, N, r, P).

    Args:
        X: (b, g, r, T, P).
        log_a: (b, g, r, T), or None.
        B: (b, g, 1, T, N).
        C: (b, g, 1, T, N).
        block: tokens of a block, from `block_len`.
    """

    def __init__(self, X: torch.Tensor, log_a: torch.Tensor | None, B: torch.Tensor, C: torch.Tensor, block: int):
        self.X, self.log_a, self.B, self.C, self.block = X, log_a, B, C, block
        self.b, self.g, self.r, self.length, self.head_dim = X.shape
        self.state = B.shape[-1]
        self.chunk_len = max(1, min(CHUNK_LEN, self.length))
        self.scratch = Scratch(torch.promote_types(X.dtype, torch.float32))

    def forward(self, initial_state, Y, kept=None):
        """Write Y, and the state before every block to `kept` (blocks, n, N, r, P) if given; return the last state."""
        H = self._columns(initial_state)
        for number, start in enumerate(range(0, self.length, self.block)):
            if kept is not None:
                kept[number] = H
            self._forward_block(start, H, Y)
        return self._rows(H)

    def backward(self, dY, dstate, kept, grads):
        """Write the gradients of X, log_a, B and C; return that of the initial state."""
        dH = self._columns(dstate)
        for start, H in reversed(list(zip(range(0, self.length, self.block), kept, strict=True))):
            self._backward_block(start, dY, H, dH, *grads)
        return self._rows(dH)

    def _forward_block(self, start, H, Y):
        """The formulas of `fast.cpu.ssd` for one block; H becomes the state after it."""
        X, B, C, (e, f, totals, L) = self._read(start)
        inside = self._products("inside", _weigh(self._scores(B, C), L), self._copy("X", X))
        x, flat = self._by_token("x", X, f), H.flatten(2)
        y = self.scratch("y", *x.shape)
        for B_k, C_k, x_k, y_k, total in zip(B, C, _matrices(x), _matrices(y), totals, strict=True):
            torch.bmm(C_k, flat, out=y_k)
            if total is not None:
                H.mul_(total)
            flat.baddbmm_(B_k.mT, x_k)
        self._write(Y, start, inside, y, e)

    def _backward_block(self, start, dY, H, dH, dX, dlog_a, dB, dC):
        """The formulas of `fast.cpu.ssd` for one block; dH becomes the gradient of the state before it."""
        X, B, C, (e, f, totals, L) = self._read(start)
        dY = self._chunks(dY, start)
        x, dy = self._by_token("x", X, f), self._by_token("dy", dY, e)
        X, dY = self._copy("X", X), self._copy("dY", dY)
        scores, W = self._scores(B, C), self._products("W", dY, X.mT)
        W = W.tril_() if L is None else W.mul_(L)
        dM = W.sum(3).flatten(1, 2)
        grad_B, grad_C = self._products("dB", dM.mT, C), self._products("dC", dM, B)
        G = None if L is None else W.mul_(scores)
        inside = self._products("X", _weigh(scores, L).mT, dY)  # the buffer named X is free from here on

        dx, y, through = self._scan_back(B, C, x, dy, totals, self._states(H, B, x, totals), dH, grad_B, grad_C)
        self._write(dX, start, inside, dx, f)
        self._put(dB, start, grad_B.unflatten(1, (self.b, self.g, 1)))
        self._put(dC, start, grad_C.unflatten(1, (self.b, self.g, 1)))
        if L is not None:
            past, future = (x.sum(-1).mT for x in (y.mul_(dy), dx.mul_(x)))
            self._put(dlog_a[..., None], start, flow(crossing(G), past, future, through)[..., None])

    def _scan_back(self, B, C, x, dy, totals, states, dH, grad_B, grad_C):
        """Add to grad_B and grad_C what crosses chunk borders; return B dH, C H, and ⟨H, dH⟩ for each chunk."""
        dx, y, product = (self.scratch(*named) for named in (("dx", *x.shape), ("y", *x.shape), ("product", *dH.shape)))
        through = self.scratch("through", len(x), *dH.shape[::2])
        flat, pairs = dH.flatten(2), zip(states.flatten(3), states, totals, through, strict=True)
        steps = list(zip(B, C, *map(_matrices, (x, dy, dx, y)), grad_B, grad_C, pairs, strict=True))
        for B_k, C_k, x_k, dy_k, dx_k, y_k, dB_k, dC_k, (flat_k, H_k, total, through_k) in reversed(steps):
            torch.bmm(B_k, flat, out=dx_k)
            torch.bmm(C_k, flat_k, out=y_k)
            dB_k.baddbmm_(x_k, flat.mT)
            dC_k.baddbmm_(dy_k, flat_k.mT)
            if total is not None:
                torch.sum(torch.mul(dH.mul_(total), H_k, out=product), (1, 3), out=through_k)
            flat.baddbmm_(C_k.mT, dy_k)
        return dx, y, through.unflatten(1, (self.b, self.g))[..., None]

    def _states(self, H, B, x, totals):
        """The states (K, n, N, r, P) before the chunks of a block, H being the first."""
        states = self.scratch("states", len(x), *H.shape)
        states[0] = H
        for before, after, B_k, x_k, total in zip(states, states[1:], B, _matrices(x), totals, strict=False):
            torch.mul(before, 1 if total is None else total, out=after)
            after.flatten(2).baddbmm_(B_k.mT, x_k)
        return states

    def _read(self, start):
        """A block's X by head, B and C as contiguous (K, n, Q, N), and its decays."""
        X, *maps = (self._chunks(x, start) for x in (self.X, self.B, self.C))
        B, C = (self._copy(name, x).flatten(1, 3) for name, x in zip("BC", maps, strict=True))
        return X, B, C, self._decays(start, len(X))

    def _decays(self, start, chunks):
        """Decays: e and f as factors by token, a factor of the state for each chunk, and L (K, b, g, r, Q, Q)."""
        if self.log_a is None:
            return None, None, [None] * chunks, None
        s, dtype = self._running_sums(start), self.scratch.dtype
        last = s[..., -1:]
        differences = self.scratch("differences", *s.shape, s.shape[-1], dtype=torch.float64)
        torch.sub(s[..., :, None], s[..., None, :], out=differences)
        L = self.scratch("L", *differences.shape).copy_(differences).exp_().tril_()  # tril_ overwrites the infs
        totals = last.exp().to(dtype).reshape(chunks, self.b * self.g, 1, self.r, 1)
        e, f = (x.exp_().to(dtype).mT.contiguous()[..., None] for x in (s.clone(), last - s))
        return e, f, totals, L

    def _running_sums(self, start):
        """Running sums of log_a in every chunk of a block, (K, b, g, r, Q), None without decay."""
        if self.log_a is None:
            return None
        log_a = self._chunks(self.log_a[..., None], start)[..., 0]
        return log_a.double().clamp(min=FLOOR).cumsum(-1)  # no clamp_: for float64, .double() is the input itself

    def _chunks(self, x, start):
        """The block's tokens of x (b, g, r, T, D) by head: a view, or padded by zeros to whole chunks."""
        x = x.narrow(3, start, min(self.block, self.length - start))
        missing = -x.shape[3] % self.chunk_len
        x = F.pad(x, (0, 0, 0, missing)) if missing else x
        return x.unflatten(3, (-1, self.chunk_len)).movedim(3, 0)

    def _put(self, out, start, x):
        """Inverse of `_chunks`: write x by head into the block of out (b, g, r, T, D)."""
        out = out.narrow(3, start, min(self.block, self.length - start))
        if out.shape[3] % self.chunk_len:
            out.copy_(x.movedim(0, 3).flatten(3, 4).narrow(3, 0, out.shape[3]))
        else:
            out.unflatten(3, (-1, self.chunk_len)).movedim(3, 0).copy_(x)

    def _write(self, out, start, inside, outside, factor):
        """Write inside (by head) + factor ∘ outside (by token) into the block of out (b, g, r, T, P)."""
        whole = min(self.block, self.length - start) % self.chunk_len == 0
        target = (self._chunks(out, start) if whole else inside).transpose(-2, -3)
        if factor is None:
            torch.add(inside.transpose(-2, -3), outside, out=target)
        else:
            torch.addcmul(inside.transpose(-2, -3), outside, factor, out=target)
        if not whole:
            self._put(out, start, inside)

    def _scores(self, B, C):
        """C B^T in every chunk, (K, b, g, 1, Q, Q)."""
        return self._products("scores", C, B.mT).unflatten(1, (self.b, self.g, 1))

    def _copy(self, name, x):
        """The tensor itself if it is contiguous and of the dtype of all arithmetic, else its copy that is."""
        return x if x.is_contiguous() and x.dtype == self.scratch.dtype else self.scratch(name, *x.shape).copy_(x)

    def _by_token(self, name, X, factor):
        """Scale X by a factor, or not, by token; the scaling is the copy that transposes."""
        rows = X.transpose(-2, -3)
        if factor is None and self.r == 1 and rows.dtype == self.scratch.dtype:
            return rows  # columns of their own already
        out = self.scratch(name, *rows.shape)
        return out.copy_(rows) if factor is None else torch.mul(rows, factor, out=out)

    def _products(self, name, x, y):
        """Multiply all matrices at once, contiguous or transposed ones: `@` would copy the transposed."""
        out = self.scratch(name, *y.shape[:-2], x.shape[-2], y.shape[-1])
        x = x.expand(*y.shape[:-2], *x.shape[-2:])  # without decay all heads of a group share their scores
        torch.bmm(x.flatten(0, -3), y.flatten(0, -3), out=out.flatten(0, -3))
        return out

    def _columns(self, state):
        """A state (b, g, r, P, N), zeros if None, as a new tensor (n, N, r, P)."""
        if state is None:
            return torch.zeros(self.b * self.g, self.state, self.r, self.head_dim, dtype=self.scratch.dtype)
        columns = state.flatten(0, 1).permute(0, 3, 1, 2).to(self.scratch.dtype)
        return columns.clone(memory_format=torch.contiguous_format)

    def _rows(self, H):
        """Inverse of `_columns`."""
        return H.permute(0, 2, 3, 1).unflatten(0, (self.b, self.g))


def _matrices(x):
    """All heads as columns: by token (K, b, g, Q, r, P) as (K, n, Q, r·P)."""
    return x.flatten(4).flatten(1, 2)


def _weigh(scores, L):
    """L ∘ C B^T in the memory of L; without decay the causal scores, in their own."""
    return scores.tril_() if L is None else L.mul_(scores)


def flow(inside, past, future, through):
    """Gradient of log_a, (..., Q): for every t the sum of all that flows from before t to t or later.

    Only terms that cross t are added and nothing is subtracted, so that small gradients between strong decays keep
    their digits.

    Args:
        inside: (..., Q), what flows inside the chunk, from `crossing`.
        past: (..., Q), from before the chunk to t.
        future: (..., Q), from s to after the chunk.
        through: (..., 1), from before the chunk to after it.
    """
    ones = inside.new_ones(inside.shape[-1], inside.shape[-1])
    before, until = ones.triu(1), ones.tril()  # [s < t], [i ≥ t]
    return inside + past @ until + future @ before + through


def crossing(inside: torch.Tensor) -> torch.Tensor:
    """What crosses each t, (..., Q), of (..., Q, Q), flow from s (column) to a later or the same t (row)."""
    return (inside @ inside.new_ones(inside.shape[-2:]).triu_(1)).tril_().sum(-2)


def decay_(state: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """Multiply a state in place by the decay of a chunk, if it decays."""
    return state if factor is None else state.mul_(factor)
