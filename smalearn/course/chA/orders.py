"""The exercise of appendix A on what a score costs: the cheaper order."""

from smalearn.contractions import orders
from smalearn.course.exercises.core import exercise


def cheaper_order(length, dim, ranks):
    """("both" or "keys", multiply-adds) for the scores of levels with 1, 2, 4, … blocks.

    Say which order of a multi-level score takes fewer multiply-adds, both sides projected or keys first, and how many.

    Hint: Both orders put T tokens through both factors, 2TD Σ r_l. They differ in one number: over how many features do
    the T² dot products run?

    Hint: Σ p_l r_l features with both sides projected; D, if keys have come all the way back to features.

    Hint: `width = sum(rank * 2**level for level, rank in enumerate(ranks))`; both sides if it is below `dim`.

    Insight: Once the columns of all levels outnumber the features, the second projection saves nothing: the keys may as
    well meet the tokens themselves.
    """
    through = 2 * length * dim * sum(ranks)
    width = sum(rank * 2**level for level, rank in enumerate(ranks))
    if width < dim:
        return "both", through + length**2 * width
    return "keys", through + length**2 * dim


def _counted(length, dim, ranks):
    """The cost of both orders, by the tool of chapter 01."""
    sizes = {"T": length, "S": length, "D": dim}
    both, keys = 0, orders("TD, DS -> TS", sizes)[0].macs
    for level, rank in enumerate(ranks):
        sizes |= {"P": 2**level, "M": dim // 2**level, "R": rank}
        both += orders("TPM, PMR, PNR, SPN -> TS", sizes | {"N": sizes["M"]}, "XLRY").named("(XL)(RY)").macs
        keys += orders("PMR, SPM -> SPR", sizes)[0].macs + orders("PMR, SPR -> SPM", sizes)[0].macs
    return both, keys


def _less(both, keys):
    return ("both", both) if both < keys else ("keys", keys)


def _not_cheaper(answer, length, dim, ranks):
    """Why this is not the cheaper order, or not what it takes; "" if it is."""
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return "a pair is asked for, (name, multiply-adds)"
    name, macs = answer
    both, keys = _counted(length, dim, ranks)
    right, least = _less(both, keys)
    if name not in ("both", "keys"):
        return 'the first item is to be the name, "both" or "keys", the second the multiply-adds'
    if name != right:
        if both == keys:
            return 'both orders cost the same here, and of equals the name is "keys"'
        if macs == least:
            return "the number is that of the cheaper order, the name is that of the other"
        own = "what this order takes" if macs == {"both": both, "keys": keys}[name] else "not what this order takes"
        return f"the other order is cheaper, and the number is {own}"
    if macs == least:
        return ""
    if macs == (both if name == "keys" else keys):
        return "the name is right, the number is that of the other order"
    through = 2 * length * dim * sum(ranks)
    for known, missing in ((through, "T² dot products"), (least - through, "factors, through which all tokens pass")):
        if macs == known:
            return f"the name is right; the number lacks the {missing}"
    much = "much" if macs > least else "little"
    return f"the name is right, the number {abs(macs - least):g} too {much}: one part is for factors, one for pairs"


def _order_cases(randn):
    yield from [
        (1, 2, [1]),
        (3, 4, [2, 1]),
        (4, 8, [1, 1, 1]),
        (5, 16, [4, 2, 1]),
        (16, 16, [1, 1, 1, 2]),
        (7, 32, [2, 1, 1, 1, 1]),
        (8, 512, [32, 8, 6, 4, 4, 4, 4, 2]),
        (8, 1024, [32, 8, 6, 4, 4, 4, 4, 2]),
        (10, 100, [1]),  # far from where both cost the same
        (12, 64, [1, 1]),
        (6, 8, [8, 4]),  # full blocks: "both" costs as much as keys first, level by level
    ]


exercise(
    "A.4",
    "The cheaper order",
    claim="003:eq32",
    level=2,
    minutes=10,
    cases=_order_cases,
    refuse=_not_cheaper,
    wrong={
        "you count the pairs j ≤ i alone: "
        "here the whole square of scores is made": "length**2 → length * (length + 1) // 2",
        "your keys pass through one factor only: keys first means both, 2·T·D·Σ "
        "r_l": "if width → return _less(through + length**2 * width, through // 2 + length**2 * dim)\n    if width",
        "your keys pass through the dense matrix: each level has two thin factors, 2·D·r_l for each token": (
            "if width → return _less(through + length**2 * width, length * dim**2 + length**2 * dim)\n    if width"
        ),
        "you project through one block of each level: the p_l blocks together "
        "read all D features": "dim * sum(ranks) → sum(dim // 2**level * rank for level, rank in enumerate(ranks))",
        "this is both sides projected, which the paper calls minimal, or keys first counted too high: "
        "with Σ p_l r_l ≥ D keys first is cheaper or as cheap": "width < dim → True",
        "this is always keys first: "
        "with Σ p_l r_l < D the dot products are shorter with both sides projected": "width < dim → False",
        "you take dot products over Σ r_l features: "
        "a level has p_l blocks, each with r_l of its own": "rank * 2**level → rank",
        "your levels have 2, 4, 8, … blocks: the first has one": "2**level → 2 ** (level + 1)",
        "your levels have 1, 2, 3, … blocks: they double": "2**level → (level + 1)",
        "your blocks take in all D features each: a block takes in D/p_l, "
        "so that a side of a level costs T·D·r_l, whatever p_l is": "through + → 2 * length * dim * width +",
        'where both orders cost the same, the answer is "keys"': "< → <=",
        "keys first, you make one T × T product for each level: "
        "add up the keys of all levels before, T·D numbers each": "+ length**2 * dim → + len(ranks) * length**2 * dim",
        "your keys meet the tokens once for each level, ℓ·T²·D: add up the "
        "keys of all levels before": "< dim → < len(ranks) * dim ; + length**2 * dim → + len(ranks) * length**2 * dim",
        "with both sides projected you count one: the tokens of either side pass, 2·T·D·Σ "
        "r_l": "if width → return _less(through // 2 + length**2 * width, through + length**2 * dim)\n    if width",
        "you count one projection: "
        "the tokens pass through both factors, 2·T·D·Σ r_l": "through = 2 * length → through = length",
        "with both sides projected you count all D features for each block: "
        "it takes in D/p_l, so that a level costs 2·T·D·r_l": (
            "if width → return _less(2 * length * dim * width + length**2 * width, through + length**2 * dim)\n"
            "    if width"
        ),
        "keys first, you count the additions of levels, (ℓ − 1)·T·D, too: multiply-adds alone": (
            "if width → "
            "return _less(through + length**2 * width, through + length**2 * dim + (len(ranks) - 1) * length * dim)\n"
            "    if width"
        ),
        "you count two for each multiply-add: "
        "these are FLOPs, multiply-adds are half of them": "through + → 2 * through + 2 *",
    },
)(cheaper_order)
