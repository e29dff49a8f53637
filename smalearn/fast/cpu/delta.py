"""The gated delta rule on a CPU at the speed of its matrix products: plain PyTorch, with a backward of its own.

In a chunk, with s the running sums of its log_a, L, e and f as in `fast.cpu.ssd`, R the keys that read, in the delta
rule K, H (N, P) the state before the chunk, transposed, and B = diag(β),

    [A; S] = [L B; L B] ∘ [R; Q] K^T                       of A what is below the diagonal
    E  = (I + A)^-1 (V - (e ∘ R) H)                        what the memory, when it is asked, lacks of the values
    Y  = S E + (e ∘ Q) H
    H' = exp(s_last) H + (f ∘ B K)^T E

β stands beside the keys that write, and not beside the errors E, so that β = 0 divides nothing. The inverse is a
triangular solve; all but E and H' is computed for all chunks of a block at once. Backward, with dH' the gradient of the
state after the chunk and G = [-dV; dY],

    dV = (I + A)^-T (S^T dY + (f ∘ B K) dH')               the adjoint of a solve: the solve with the transpose
    dH = exp(s_last) dH' + (e ∘ [R; Q])^T G
    D  = L ∘ (G E^T)                                       of the upper half what is below the diagonal
    d[R; Q] = D B K + e ∘ (G H^T)                          through the keys and queries that read
    d(B K)  = D^T [R; Q] + f ∘ (E dH'^T)                   through the keys that write

then dβ is the sum of K ∘ d(B K) over the features, and dlog_a collects what crosses each token, as in `Scan`.
"""

import itertools
from typing import NamedTuple

import torch

from smalearn._operator import Operator
from smalearn.fast.cpu.memory import empty_like
from smalearn.fast.cpu.scan import Scan, crossing, decay_, flow
from smalearn.fast.groups import grouped
from smalearn.linear_attention.delta import weigh_keys
from smalearn.linear_attention.generalized_delta import correct_in_chunks
from smalearn.linear_attention.inputs import key_gate

CHUNK_LEN = 16
"""32 takes 1.2 times as long forward, 1.05 with gradients (T = 2048, 8 heads, N = P = 64, one thread of an EPYC)."""
CACHE = 1 << 21
"""Numbers that a block may use at once, 8 MiB in float32: half takes 1.05 and 1.1 times as long, double 1.1 and 1.0."""
MILD = -40.0
"""Sum of a chunk's log_a from which on exp(s_i - s_j) is exp(s_i) exp(-s_j): float32 ends at exp(88)."""
ABOVE_ONE = 1 + 1e-4
"""A β r·k from which on A is computed in float64; with unit keys and β = 1 it is 1 but for rounding."""


def delta_rule_cpu_unchecked(Q, K, V, beta, log_a, initial_state, read=None):
    """`fast.delta_rule` on a CPU, of tensors that have been checked, with one decay per token or none.

    With `read` (..., T, N) these keys read the memory, and K are those along which is erased and written.
    """
    operands, restore = grouped(V, log_a, K, Q, initial_state, beta, read)
    return restore(*OPERATOR(*operands))


class Block(NamedTuple):
    """Operands of a block of K chunks and n heads.

    Attributes:
        V: (K, n, Q, P).
        RQ: (K, n, 2·Q, N), the keys that read and below them the queries.
        K: (K, n, Q, N), the keys that write.
        writes: (K, n, Q, N), f ∘ B K.
        scores: (K, n, 2·Q, Q), A and below it S.
        beta: (K, n, Q, 1).
        totals: exp(s_last), (n, 1, 1) or None for each chunk.
        decays: e and f (K, n, Q, 1), and L (K, n, Q, Q); or None.
        sums: s (K, n, Q) in float64, or None.
    """

    V: torch.Tensor
    RQ: torch.Tensor
    K: torch.Tensor
    writes: torch.Tensor
    scores: torch.Tensor
    beta: torch.Tensor
    totals: list[torch.Tensor | None]
    decays: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    sums: torch.Tensor | None


class DeltaScan(Scan):
    """The delta rule for one part of the batch, of b·g = n heads with keys of their own; the state is (n, N, 1, P).

    V is (b, g, 1, T, P), log_a (b, g, 1, T) or None, K, Q and read (b, g, 1, T, N), the last None for K, beta (b, g, 1,
    T); `block` counts the tokens of a block, from `_block_len`.
    """

    def __init__(self, V, log_a, K, Q, beta, read, block):
        super().__init__(V, log_a, K, Q, block)
        self.beta, self.read, self.chunk_len = beta, read, _chunk_len(V)

    def _forward_block(self, start, H, Y):
        """The formulas above for one block; H becomes the state after it."""
        block, H = self._read(start), H.squeeze(2)
        T, V, RQ, E = self._inverse(block), block.V, block.RQ, self.scratch("E", *block.V.shape)
        said = self.scratch("said", *RQ.shape[:-1], V.shape[-1])  # by the memory, to keys and to queries
        to_keys, to_queries = self._halves(said)
        e = block.decays[0] if block.decays else V.new_ones(len(V), 1, 1, 1)
        chunks = zip(T, V, RQ, E, said, to_keys, e, block.writes.mT, block.totals, strict=True)
        for T_k, V_k, RQ_k, E_k, said_k, to_keys_k, e_k, K_k, total in chunks:
            torch.bmm(RQ_k, H, out=said_k)
            torch.bmm(T_k, V_k.addcmul_(to_keys_k, e_k, value=-1), out=E_k)
            decay_(H, total).baddbmm_(K_k, E_k)
        y = self._products("y", self._halves(block.scores)[1], E)
        self._put_heads(Y, start, y.addcmul_(to_queries, e))

    def _backward_block(self, start, dY, H, dH, dV, dlog_a, dK, dQ, dbeta, dread):
        """The formulas above for one block; dH becomes the gradient of the state before it."""
        block = self._read(start)
        T, E, Z = self._solve(block)
        H = self._correct(block, E, Z, H.squeeze(2))
        G, eG, dH = self._correct_back(block, T, self._heads("dY", dY, start), dH.squeeze(2))
        D = self._products("D", G, E.mT)
        for half, diagonal in zip(self._halves(D), (-1, 0), strict=True):
            half.tril_(diagonal)
        read, write = self._products("read", eG, H.mT), self._products("write", E, dH.mT)
        if block.decays:
            _, f, L = block.decays
            write.mul_(f)
            self._put_heads(dlog_a[..., None], start, self._flow(block, D, read, write, H, dH)[..., None])
            self._twice(D).mul_(L[:, :, None])
        write.flatten(0, 1).baddbmm_(D.flatten(0, 1).mT, block.RQ.flatten(0, 1))
        self._twice(D).mul_(block.beta.mT[:, :, None])
        read.flatten(0, 1).baddbmm_(D.flatten(0, 1), block.K.flatten(0, 1))
        of_keys, of_queries = self._halves(read)
        self._put_heads(dbeta[..., None], start, self._dot("product", block.K, write))
        write.mul_(block.beta)
        if dread is None:
            write.add_(of_keys)
        else:
            self._put_heads(dread, start, of_keys)
        self._put_heads(dK, start, write)
        self._put_heads(dQ, start, of_queries)
        self._put_heads(dV, start, self._halves(G)[0].neg())

    def _flow(self, block, D, read, write, H, dH):
        """Gradient of log_a (K, n, Q), from what crosses the borders of the chunks and D inside."""
        inside = torch.mul(D, block.scores, out=self.scratch("inside", *D.shape))
        past = self._dot("products", read, block.RQ)
        future = self._dot("product", write, block.K) * block.beta
        through = self._dot("states product", H.flatten(2), dH.flatten(2)) * torch.stack(block.totals)[..., 0]
        inside, past = (self._twice(x).sum(2) for x in (inside, past[..., 0]))
        return flow(crossing(inside), past, future[..., 0], through)

    def _correct(self, block, E, Z, H):
        """Take from E (K, n, Q, P) what the memory says; return the states (K, n, N, P) before the chunks, H first."""
        states = self.scratch("states", len(E), *H.shape)
        states[0] = H
        for k, total in enumerate(block.totals):
            E[k].baddbmm_(Z[k], states[k], alpha=-1)
            if k + 1 < len(E):
                torch.mul(states[k], 1 if total is None else total, out=states[k + 1])
                states[k + 1].baddbmm_(block.writes[k].mT, E[k])
        return states

    def _correct_back(self, block, T, dY, dH):
        """G = [-dV; dY], e ∘ G, and the gradients (K, n, N, P) of the states after the chunks, of which dH is the last.

        dH becomes the gradient of the state before the first.
        """
        _, S = self._halves(block.scores)
        dV, Z = self._products("dV", T.mT, self._products("y", S.mT, dY)), self._products("Z", T.mT, block.writes)
        G = self.scratch("G", *dV.shape[:2], 2 * self.chunk_len, dV.shape[-1])
        self._halves(G)[1].copy_(dY)
        eG = G if block.decays is None else self.scratch("eG", *G.shape)
        states = self.scratch("dstates", len(dV), *dH.shape)
        states[-1] = dH
        for k in reversed(range(len(dV))):
            torch.neg(dV[k].baddbmm_(Z[k], states[k]), out=G[k, :, : self.chunk_len])
            if block.decays:
                torch.mul(G[k].unflatten(1, (2, -1)), block.decays[0][k, :, None], out=eG[k].unflatten(1, (2, -1)))
            before, total = states[k - 1] if k else dH, block.totals[k]
            torch.mul(states[k], 1 if total is None else total, out=before)
            before.baddbmm_(block.RQ[k].mT, eG[k])
        return G, eG, states

    def _solve(self, block):
        """T, T V and T (e ∘ R)."""
        T = self._inverse(block)
        Te = T if block.decays is None else torch.mul(T, block.decays[0].mT, out=self.scratch("Te", *T.shape))
        return T, self._products("E", T, block.V), self._products("Z", Te, self._halves(block.RQ)[0])

    def _inverse(self, block):
        """T = (I + A)^-1."""
        A = self._system(block)
        one = torch.eye(self.chunk_len, dtype=A.dtype).expand_as(A)
        # From the right: half the time of a solve from the left, and a sixth of one whose right-hand sides are V and K.
        T = torch.linalg.solve_triangular(A, one, upper=False, unitriangular=True, left=False)
        return T.to(self.scratch.dtype)

    def _system(self, block):
        """A; in float64 where a β r·k is above 1: with keys alike, rounding comes out of T many times as large."""
        A = self._halves(block.scores)[0]
        if bool((A.diagonal(dim1=-2, dim2=-1) <= ABOVE_ONE).all()):
            return A
        reads = self._halves(block.RQ)[0].double()
        A = (reads @ block.K.double().mT).mul_(block.beta.mT)
        if block.sums is not None:
            A.mul_((block.sums[..., :, None] - block.sums[..., None, :]).clamp_(max=0).exp_())
        return A

    def _read(self, start):
        """The operands of a block."""
        V, beta = self._heads("V", self.X, start), self._heads("beta", self.beta[..., None], start)
        RQ = self.scratch("RQ", *V.shape[:2], 2 * self.chunk_len, self.state)
        for half, x in zip(self._halves(RQ), (self.B if self.read is None else self.read, self.C), strict=True):
            half.unflatten(1, (self.b, self.g)).copy_(self._chunks(x, start).squeeze(3))
        keys = self._halves(RQ)[0] if self.read is None else self._heads("K", self.B, start)
        scores = self._products("scores", RQ, keys.mT)
        s = self._running_sums(start)
        s = None if s is None else s.flatten(1, 3)
        totals, decays = self._decays(s, len(V))
        columns, rows = beta.mT, beta
        if decays:
            _, f, L = decays
            columns, rows = torch.mul(L, columns, out=self.scratch("LB", *L.shape)), rows * f
        self._twice(scores).mul_(columns[:, :, None])
        self._halves(scores)[1].tril_()
        writes = torch.mul(keys, rows, out=self.scratch("writes", *keys.shape))
        return Block(V, RQ, keys, writes, scores, beta, totals, decays, s)

    def _decays(self, s, chunks):
        """exp(s_last) of each chunk, and (e, f, L), from s (K, n, Q); None in both places without decay."""
        if s is None:
            return [None] * chunks, None
        dtype, last = self.scratch.dtype, s[..., -1:]
        e, f, total = (x.exp().to(dtype)[..., None] for x in (s, last - s, last))
        L = self.scratch("L", *s.shape, s.shape[-1])
        if bool((last < MILD).any()):
            differences = self.scratch("differences", *L.shape, dtype=torch.float64)
            L.copy_(torch.sub(s[..., :, None], s[..., None, :], out=differences)).exp_()
        else:
            torch.mul(e, s.neg().exp().to(dtype)[..., None, :], out=L)
        return list(total), (e, f, L.tril_())  # tril_ overwrites the infs

    def _heads(self, name, x, start):
        """A block of x (b, g, 1, T, D) as a contiguous (K, n, Q, D)."""
        x = self._chunks(x, start).squeeze(3)
        return self.scratch(name, *x.shape).copy_(x).flatten(1, 2)

    def _put_heads(self, out, start, x):
        """Write x (K, n, Q, D) into the block of out (b, g, 1, T, D)."""
        self._put(out, start, x.unflatten(1, (self.b, self.g, 1)))

    def _dot(self, name, x, y):
        """Row by row, x (K, n, rows, D) with y: (K, n, rows, 1)."""
        return torch.mul(x, y, out=self.scratch(name, *x.shape)).sum(-1, keepdim=True)

    def _twice(self, x):
        """Both halves (K, n, 2, Q, D) of x (K, n, 2·Q, D)."""
        return x.unflatten(2, (2, self.chunk_len))

    def _halves(self, x):
        """The upper and the lower half of x (K, n, 2·Q, D)."""
        return x[:, :, : self.chunk_len], x[:, :, self.chunk_len :]


def _forward(tensors, settings, keep):
    """Y, the last state and, if `keep`, the state before every block."""
    initial_state = tensors[4]
    Y, state, *kept = _allocate(empty_like, tensors, keep)
    for part, scan in _scans(tensors, keep):
        H = None if initial_state is None else initial_state[part]
        state[part] = scan.forward(H, Y[part], _kept(kept, part))
    return [Y, state, *kept]


def _backward(gradients, tensors, kept, settings, needs):
    """Gradients, from one state for each block."""
    (dY, dstate), initial_state = gradients, tensors[4]
    dY = tensors[0].new_zeros(()).expand(tensors[0].shape) if dY is None else dY
    grads = [None if x is None else empty_like(x) for x in tensors]
    for part, scan in _scans(tensors, True):
        dH = None if dstate is None else dstate[part]
        outs = [None if x is None else x[part] for x in (*grads[:4], *grads[5:])]
        dinitial = scan.backward(dY[part], dH, _kept(kept, part), outs)
        if initial_state is not None:
            grads[4][part] = dinitial
    return grads


def _shapes(tensors, settings, keep):
    """Empty results, for tracing."""
    return _allocate(torch.empty_like, tensors, keep)


def _readable(tensors, settings):
    """The same function in plain PyTorch."""
    V, log_a, K, Q, initial_state, beta, read = tensors
    keys = weigh_keys(Q, K, beta)
    return correct_in_chunks(Q, keys, V, K if read is None else read, None, key_gate(log_a, K), initial_state)


def _allocate(new_like, tensors, keep):
    """Memory for Y, the last state and, if `keep`, the state before every block, (b, g, blocks, N, P)."""
    V, K = tensors[0], tensors[2]
    dtype = torch.promote_types(V.dtype, torch.float32)
    results = [new_like(V), V.new_empty(*V.shape[:3], V.shape[-1], K.shape[-1], dtype=dtype)]
    blocks = -(-V.shape[3] // _block_len(V, K, keep))
    return results + [V.new_empty(*V.shape[:2], blocks, K.shape[-1], V.shape[-1], dtype=dtype)] * keep


def _kept(kept, part):
    """The states (blocks, n, N, 1, P) before the blocks of a part; None if none are kept."""
    return kept[0][part].flatten(0, 1).transpose(0, 1)[:, :, :, None] if kept else None


def _scans(tensors, keep):
    """Each part of the heads and its scan."""
    V, log_a, K, Q, _, beta, read = tensors
    block = _block_len(V, K, keep)
    for part in _parts(V, K, keep):
        yield part, DeltaScan(*(None if x is None else x[part] for x in (V, log_a, K, Q, beta, read)), block)


def _parts(V, K, keep):
    """Slices of batch and groups, so many heads at once as fit the cache; one of all if V is empty."""
    if not V.numel():
        return [(slice(None), slice(None))]
    (batch, groups), together = V.shape[:2], _heads_together(V, K, keep)
    some = max(1, together // groups)
    starts = itertools.product(range(0, batch, some), range(0, groups, together))
    return [(slice(b, b + some), slice(g, g + together)) for b, g in starts]


def _block_len(V, K, keep):
    """Tokens of a block, whole chunks: as many as fit the cache for the heads of a part."""
    numbers = _chunk_len(V) * _numbers_per_token(V, K, keep)
    heads = min(_heads_together(V, K, keep), max(1, V.shape[0] * V.shape[1]))
    return max(1, CACHE // (numbers * heads)) * _chunk_len(V)


def _heads_together(V, K, keep):
    """How many heads fit the cache with four chunks of each."""
    return max(1, CACHE // (4 * CHUNK_LEN * _numbers_per_token(V, K, keep)))


def _numbers_per_token(V, K, keep):
    """Scratch memory of a token of one head: that of the forward, or what of the backward's is used at once."""
    P, N = V.shape[-1], K.shape[-1]
    if keep:
        return 5 * P + 6 * N + 6 * CHUNK_LEN + 2 * P * N // CHUNK_LEN
    return 5 * P + 3 * N + 7 * CHUNK_LEN


def _chunk_len(V):
    """Tokens of a chunk."""
    return max(1, min(CHUNK_LEN, V.shape[3]))


OPERATOR = Operator(
    "delta_rule_cpu",
    _forward,
    _backward,
    _shapes,
    _readable,
    counts=(7, 2),
    kept_from=2,
    instead="smalearn.linear_attention.delta_rule_chunked",
)
