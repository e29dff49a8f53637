"""Multi-level attention without its (T, T) scores: forward and backward over the squares of a tiling.

Laid-out tensors have columns in front, which make the products do all that belongs to a row:

    q = [-m | Q]   k = [1 | K]     p = exp(q k^T) = exp(Q K^T - m), m the running max of a row
    g = [-δ | dY]  v = [1 | V]     p ∘ g v^T = p ∘ (dY V^T - δ), the gradient of the scores, with δ = Σ dY ∘ Y

Where keys must be masked there is one more column: 1 for a token's query, -10^30 for the key of a padded position.
The running max stops after the squares on the diagonal, so that partial results just add; in the backward m is the log
of the denominator. Should a score exceed it by more than a float can hold (127 bits), everything is done again on the
rescaling path, as flash attention does it: each tile raises the running max and rescales the sums, and it is subtracted
from finished scores, where equal numbers leave exactly 0.
Exponentials are in base 2, the faster ones on a CPU; scores hold that factor inside.
"""

import math
from collections.abc import Sequence

import torch

from smalearn.fast.cpu.layout import Layout
from smalearn.fast.cpu.tiling import Tiling

LOG2E = 1 / math.log(2)
LOWEST = -1e30
"""Far below any score, far above -inf, so that the difference of two is a number."""


def forward(
    tensors: Sequence[torch.Tensor | None], ranks: Sequence[int], block_lens: Sequence[int], causal: bool, keep: bool
) -> list[torch.Tensor]:
    """Y (..., T, P) of Q, K (..., T, N), V (..., T, P) and a bias (..., T, T) or None, float32 or float64.

    Head by head where there is a bias. With `keep` follow q, k and v as `lay_out` gives them, the sums of `Heads`, and
    whether it took the rescaling path.
    """
    Q, K, V, bias = tensors
    layout, tiling = layout_and_tiling(tensors, ranks, block_lens, causal)
    q, k, v = lay_out(layout, tiling, Q, K, V)
    out, sums = q.new_zeros(*q.shape[:2], V.shape[-1]), q.new_empty(2, *q.shape[:2], 1)
    for head in range(0, layout.heads, tiling.heads):
        part = slice(head, head + tiling.heads)
        some = None if bias is None else layout.lay_bias(layout.of_head(bias, head), tiling)
        rescaled = Heads(tiling, q[part], k[part], v[part], some).forward(out[part], sums[:, part])
    Y = layout.restore(out, tiling)
    if keep:
        return [Y, q, k, v, sums, torch.tensor(rescaled, device=q.device)]
    return [Y if tiling.padded_len == Q.shape[-2] else layout.empty(V, Q.shape[-2]).copy_(Y)]


def shapes(
    tensors: Sequence[torch.Tensor | None], ranks: Sequence[int], block_lens: Sequence[int], causal: bool, keep: bool
) -> list[torch.Tensor]:
    """Tensors without values like those of `forward`."""
    Q, _, V, _ = tensors
    if not keep:  # no tiling, so that a length that varies stays free
        return [Layout(*tensors).empty(V, Q.shape[-2])]
    layout, tiling = layout_and_tiling(tensors, ranks, block_lens, causal)
    rows = layout.heads, tiling.padded_len * layout.queries
    Y = layout.restore(Q.new_empty(*rows, V.shape[-1]), tiling)
    width, keys = tiling.extra + Q.shape[-1], (layout.heads, tiling.padded_len)
    sizes = (*rows, width), (*keys, width), (*keys, 1 + V.shape[-1]), (2, *rows, 1)
    return [Y, *map(Q.new_empty, sizes), Q.new_empty((), dtype=torch.bool)]


def layout_and_tiling(
    tensors: Sequence[torch.Tensor | None], ranks: Sequence[int], block_lens: Sequence[int], causal: bool
) -> tuple[Layout, Tiling]:
    """Layout and tiling for Q, K, V and a bias or None."""
    layout = Layout(*tensors)
    heads = layout.heads if tensors[3] is None else 1
    return layout, Tiling(tensors[0].shape[-2], ranks, block_lens, causal, heads, layout.queries)


def gradients(
    layout: Layout,
    tiling: Tiling,
    saved: Sequence[torch.Tensor | None],
    dY: torch.Tensor,
    of_bias: bool = False,
) -> list[torch.Tensor | None]:
    """Gradients of Q, K, V and, with `of_bias`, of the bias, from the log of each row's denominator.

    Args:
        layout: of the heads.
        tiling: of the squares.
        saved: q, k, v as `lay_out` gives them, Y (..., T, P), bias or None, and `Heads`' sums or None.
        dY: (..., T, P).
        of_bias: whether the bias has a gradient; None in its place otherwise.
    """
    q, k, v, Y, bias, sums = saved
    g = layout.lay(torch.cat([-(dY * Y).sum(-1, keepdim=True), dY], -1), tiling)
    dq, dk = (x.new_zeros(*x.shape[:2], tiling.features) for x in (q, k))
    dv = v.new_zeros(*v.shape[:2], Y.shape[-1])
    dbias = torch.zeros_like(bias) if of_bias else None
    for head in range(0, layout.heads, tiling.heads):
        part = slice(head, head + tiling.heads)
        some = None if bias is None else layout.lay_bias(layout.of_head(bias, head), tiling)
        dsome = None if dbias is None else torch.zeros_like(some)
        heads = Heads(tiling, q[part], k[part], v[part], some, None if sums is None else sums[:, part])
        heads.backward(g[part], (dq[part], dk[part], dv[part], dsome))
        if dbias is not None:
            place = layout.of_head(dbias, head)
            place += layout.restore_bias(dsome, tiling, place)
    dQ, dK, dV = (layout.restore(x, tiling, of_keys=x is not dq) for x in (dq, dk, dv))
    return [dQ, dK, dV, dbias]


def lay_out(layout, tiling, Q, K, V):
    """Lay out q, k and v with their columns in front; that of q for the running max is zero."""
    q = layout.lay(Q, tiling, tiling.extra)
    k, v = layout.lay(K, tiling, tiling.extra, True), layout.lay(V, tiling, 1, True)
    k[..., 0] = v[..., 0] = 1
    if tiling.masked:
        q[..., 1].view(*q.shape[:1], tiling.padded_len, -1)[:, tiling.where] = 1
        k[..., 1] = LOWEST
        k[:, tiling.where, 1] = 0
    return q, k, v


class Heads:
    """Laid-out heads that are worked on together.

    Args:
        tiling: their squares.
        q: (heads, padded_len·queries, extra + N).
        k: (heads, padded_len, extra + N).
        v: (heads, padded_len, 1 + P).
        bias: (queries or 1, padded_len, padded_len) of one head, or None.
        sums: (2, heads, padded_len·queries, 1) for a backward on the rescaling path: running max, 1 / denominator.
    """

    def __init__(
        self,
        tiling: Tiling,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        sums: torch.Tensor | None = None,
    ):
        self.tiling, self.q, self.k, self.v, self.bias, self.sums = tiling, q, k, v, bias, sums
        self._scratch = q.new_empty(tiling.scratch())
        self._future = None
        if tiling.causal:
            future = q.new_full((tiling.size, tiling.size), -math.inf).triu(1)
            self._future = future.repeat_interleave(tiling.queries, 0)

    def forward(self, out: torch.Tensor, sums: torch.Tensor) -> bool:
        """Write Y to `out`, which is zero, and what the backward needs to `sums` or to the front of q.

        Y is 0 in a row whose every score is -inf.

        Returns:
            Whether it took the rescaling path, so that the backward needs the sums.
        """
        highest, total = sums
        rescaled = self.bias is not None or out.device.type != "cpu"  # on a GPU the question below would wait for it
        self._run(out, total, highest, rescaled)
        if not rescaled and not math.isfinite(out.sum() + total.sum()):
            rescaled, self.q[..., 0] = True, 0
            self._run(out.zero_(), total, highest, rescaled)
        total.masked_fill_(total == 0, math.inf)
        out.div_(total)
        if rescaled:
            total.reciprocal_()
        else:
            self.q[..., :1] = highest.add_(total.log2_()).div_(-LOG2E)
        return rescaled

    def _run(self, out, total, highest, rescaled):
        """Fill in numerators, denominators and running maxima."""
        highest.fill_(LOWEST), total.zero_()
        for square in self.tiling.diagonal():
            self._add(square, self._diagonal(square), (out, total, highest))
        if not rescaled:
            self.q[..., :1] = highest / -LOG2E
        for square in self.tiling.squares():
            for tile in square.tiles():
                self._add(tile, self._scores(tile), (out, total, highest if rescaled else None))

    def _add(self, tile, s, sums):
        """Add what a tile of scores contributes, after the running max is raised to its largest if there is one."""
        out, total = (self._rows(x, tile) for x in sums[:2])
        if sums[2] is not None:
            highest = self._rows(sums[2], tile)
            raised = torch.maximum(highest, s.amax(-1, keepdim=True))
            factor = torch.exp2(highest - raised)
            highest.copy_(raised)
            out.mul_(factor), total.mul_(factor), s.sub_(raised)
        total.add_(s.exp2_().sum(-1, keepdim=True))
        out.add_(torch.bmm(s, self._keys(self.v, tile)[..., 1:]))

    def backward(self, g: torch.Tensor, grads: tuple[torch.Tensor | None, ...]) -> None:
        """Add to the gradients of Q, K, V and the bias."""
        dq, dk, dv, dbias = grads
        other = torch.empty_like(self._scratch)
        for square in self.tiling.diagonal():
            p, ds = self._weights(square, self._diagonal(square), g, other)
            self._keys(dv, square).add_(torch.bmm(p.mT, self._rows(g, square)[..., 1:]))
            self._spread(square, ds, dq, dk)
            self._spread_bias(square, ds, dbias)
        for square in self.tiling.squares():
            self._backward_square(square, g, grads, other)

    def _backward_square(self, square, g, grads, other):
        """All tiles that meet the same keys, whose gradients are summed transposed: the fast shape for few columns."""
        dq, dk, dv, dbias = grads
        used = slice(0, square.columns)
        k = self._bare(self._keys(self.k, square))[..., used]
        into_k, into_v = self._keys(dk, square)[..., used], self._keys(dv, square)
        sum_k, sum_v = (x.new_zeros(len(x), x.shape[2], x.shape[1]) for x in (into_k, into_v))
        for tile in square.tiles():
            p, ds = self._weights(tile, self._scores(tile), g, other)
            sum_v.baddbmm_(self._rows(g, tile)[..., 1:].mT, p)
            sum_k.baddbmm_(self._bare(self._rows(self.q, tile))[..., used].mT, ds)
            self._rows(dq, tile)[..., used].add_(torch.bmm(k.mT, ds.mT).mT)
            self._spread_bias(tile, ds, dbias)
        into_k.add_(sum_k.mT)
        into_v.add_(sum_v.mT)

    def _weights(self, tile, s, g, other):
        """Turn a tile of scores into softmax weights p, in place, and compute the gradient of the scores."""
        if self.sums is not None:
            s.sub_(self._rows(self.sums[0], tile))
        p = s.exp2_()
        if self.sums is not None:
            p.mul_(self._rows(self.sums[1], tile))
        return p, _product(other, self._rows(g, tile), self._keys(self.v, tile).mT, 1).mul_(p)

    def _spread(self, square, ds, dq, dk):
        """Gradients of Q and K from diagonal squares, level by level where blocks are smaller than the square."""
        q, k = self._bare(self._rows(self.q, square)), self._bare(self._keys(self.k, square))
        into_q, into_k = self._rows(dq, square), self._keys(dk, square)
        for columns, blocks in [(slice(0, square.columns), 1), *self.tiling.local]:
            cells = _cells(ds, blocks).flatten(0, 1)
            one_q, one_k = (_split(x[..., columns], blocks) for x in (q, k))
            into_q[..., columns] += torch.bmm(cells, one_k).view_as(q[..., columns])
            into_k[..., columns] += torch.bmm(cells.mT, one_q).view_as(k[..., columns])

    def _spread_bias(self, tile, ds, dbias):
        """Gradient of the bias from a tile."""
        if dbias is not None:
            part = self._part(dbias, tile)
            part += ds.unflatten(1, (-1, self.tiling.queries)).transpose(1, 2).sum_to_size(part.shape)

    def _scores(self, tile):
        """Scores of a tile, in the scratch memory."""
        q, k = (
            x[..., : self.tiling.extra + tile.columns] for x in (self._rows(self.q, tile), self._keys(self.k, tile))
        )
        s = _product(self._scratch, q, k.mT, LOG2E)
        if self.bias is not None:
            s.unflatten(1, (-1, self.tiling.queries)).transpose(1, 2).add_(self._part(self.bias, tile), alpha=LOG2E)
        return s

    def _diagonal(self, square):
        """Scores of diagonal squares: the columns that all pairs share, and the cells of smaller blocks."""
        s = self._scores(square)
        q, k = self._bare(self._rows(self.q, square)), self._bare(self._keys(self.k, square))
        for columns, blocks in self.tiling.local:
            more = torch.bmm(_split(q[..., columns], blocks), _split(k[..., columns], blocks).mT)
            _cells(s, blocks).add_(more.unflatten(0, (-1, blocks)), alpha=LOG2E)
        return s if self._future is None else s.add_(self._future)

    def _bare(self, x):
        """Without the columns in front."""
        return x[..., self.tiling.extra :]

    def _rows(self, x, tile):
        """Part of q, or of what is laid out like q, that belongs to a tile."""
        return self._cut(x, tile, tile.rows[0], self.tiling.queries)

    def _keys(self, x, tile):
        """Part of k or v, or of what is laid out like them, that belongs to a tile."""
        return self._cut(x, tile, tile.keys, 1)

    def _cut(self, x, tile, span, unit):
        """View a span of each segment: (segments, span, width)."""
        segments = x.view(len(x) * self.tiling.padded_len // tile.period, tile.period * unit, x.shape[-1])
        return segments[tile.batch, span[0] * unit : span[1] * unit]

    def _part(self, bias, tile):
        """Tile of a bias (queries or 1, padded_len, padded_len): (segments, queries or 1, rows, keys), a view."""
        count = bias.shape[-1] // tile.period
        segments = bias.view(len(bias), count, tile.period, count, tile.period).diagonal(dim1=1, dim2=3).movedim(-1, 0)
        return segments[tile.batch, :, slice(*tile.rows[0]), slice(*tile.keys)]


def _product(scratch, a, b, alpha):
    """Write alpha·a b into scratch memory."""
    shape = *a.shape[:2], b.shape[2]
    return scratch[: math.prod(shape)].view(shape).baddbmm_(a, b, beta=0, alpha=alpha)


def _split(x, blocks):
    """View each block as a matrix: (segments·blocks, rows/blocks, width)."""
    return x.unflatten(1, (blocks, -1)).flatten(0, 1)


def _cells(s, blocks):
    """Cells on the diagonal of tiles (segments, rows, keys): a view (segments, blocks, rows/blocks, keys/blocks)."""
    cells = s.unflatten(2, (blocks, -1)).unflatten(1, (blocks, -1))
    return cells.diagonal(dim1=1, dim2=3).movedim(-1, 1)
