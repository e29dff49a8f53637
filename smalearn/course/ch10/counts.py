"""The exercise of chapter 10 on counting: the rank of levels."""

from smalearn.course.exercises.core import exercise


def rank_of_levels():
    """The rank, an integer.

    A 32 × 32 matrix has five levels of rank 2, with 1, 2, 4, 8 and 16 blocks, and random factors. What is its rank?

    Hint: What is the rank of one level? Of a sum of two matrices, at most?

    Hint: The blocks of a level have no row and no column in common, so their ranks add up: 2, 4, 8, 16 and 32. What is
    the most that a matrix of this size can have?

    Too little: The blocks of a level stand side by side, so that their ranks add up; those of the levels do, too, up to
    a limit.

    Too much: No 32 × 32 matrix has a rank above 32.

    Insight: Full rank costs few parameters if many small blocks carry it: rank and parameters are two budgets.
    """
    return min(32, sum(2 * blocks for blocks in (1, 2, 4, 8, 16)))


exercise(
    "10.3",
    "The rank of levels",
    claim="003:table1-row3",
    kind="predict",
    level=1,
    minutes=4,
    oracle=lambda: 32,
    wrong={
        "this is Σ r_l p_l: level by level it is right, but no 32 × 32 matrix has a rank above 32": lambda: 62,
        "this is Σ r_l, the columns of L: a level of p blocks has p times its r_l": lambda: 10,
        "this is the rank of one block": lambda: 2,
        "this is the rank of the first four levels, 2 + 4 + 8 + 16": lambda: 30,
        "this is the number of the finest blocks: each of them has rank 2": lambda: 16,
        "this is the number of all blocks: each of them has rank 2": lambda: 31,
        "this is the number of levels": lambda: 5,
        "this counts the columns of L and of R: their product has no higher rank than either, and blocks add": lambda: (
            20
        ),
        "this is twice 32: no 32 × 32 matrix has a rank above 32": lambda: 64,
        "this is one more than a 32 × 32 matrix can have": lambda: 33,
        "this is 5 · 32, as if every level had full rank, and ranks added without bound: "
        "a 32 × 32 matrix has 32 at most": lambda: 160,
        "this is how many numbers L has, 32 · 10: a rank is at most 32 here": lambda: 320,
        "this is how many numbers L and R have, 2 · 32 · 10: a rank is at most 32 here": lambda: 640,
        "this is the rank of a single column: each level has 2 of them in every block": lambda: 1,
    },
)(rank_of_levels)
