"""Every mask under test with its definition in plain Python. A new mask adds lines here and inherits the suite."""

from smalearn.masks import BandedMask, BlockDiagonalMask, CausalMask, DilatedMask

# (mask, entry(t, s)): the entry is the definition, written out without the package.
MASKS = [
    *[(CausalMask(T, S), lambda t, s: s <= t) for T, S in [(1, 1), (33, 33), (7, 13), (13, 7), (31, None)]],
    *[
        (BandedMask(T, S, window), lambda t, s, window=window: abs(t - s) <= window)
        for T, S, window in [(1, 1, 0), (33, 33, 0), (33, 33, 4), (13, 7, 2), (7, 31, 3), (5, 5, 99)]
    ],
    *[
        (
            DilatedMask(T, S, window, gap),
            lambda t, s, window=window, gap=gap: abs(t - s) <= window * gap and (t - s) % gap == 0,
        )
        for T, S, window, gap in [(1, 1, 1, 2), (33, 33, 3, 4), (13, 29, 2, 3), (29, 13, 5, 1)]
    ],
    *[
        (BlockDiagonalMask(T, S, blocks), lambda t, s, T=T, S=S, blocks=blocks: t * blocks // T == s * blocks // S)
        for T, S, blocks in [(1, 1, 1), (33, 33, 3), (12, 20, 4), (20, 12, 1)]
    ],
]
