"""The exercises of chapter 01 on contraction orders: which axes survive a step, what an order costs, which one wins."""

import itertools
import math

from smalearn.course.exercises.core import exercise


def kept_axes(left, right, others, output):
    """The axes, sorted, of the pairwise contraction of `left` and `right` while `others` still wait for their turn.

    Two operands of a larger contraction are multiplied first. Which axes must the result keep?

    Hint: An axis may be summed away when nobody will ask for it again. Who could ask?

    Hint: Two can ask: the output, and any operand that is still waiting.

    Hint: `set(output).union(*others)` holds every axis that somebody still needs.

    Insight: An axis stays as long as the output or a waiting operand has it. Libraries such as opt_einsum search for a
    good order by this one rule.
    """
    needed = set(output).union(*others)
    return "".join(sorted(set(left + right) & needed))


def _axes_cases(randn):
    yield "S", "S", [], ""
    yield "TN", "SN", ["SP", "TS"], "TP"
    yield "SN", "SP", ["TN", "TS"], "TP"
    yield "TS", "SPN", ["TN"], "TP"
    yield "TN", "TPN", [], "TP"
    yield "AB", "BC", ["CD"], "AD"
    yield "BC", "AB", [], "C"


def _not_kept(answer, left, right, others, output):
    """The first axis that is there without need, or is needed and gone."""
    if not isinstance(answer, str):
        return f"the answer must be a string of axes, got {type(answer).__name__}"
    for axis in sorted({*left, *right, *answer}):
        asking = [f"the waiting operand {operand}" for operand in others if axis in operand]
        asking += ["the output"] if axis in output else []
        if axis in answer and axis not in left + right:
            return f"in {answer!r} there is {axis}, an axis of neither operand"
        if axis in answer and not asking:
            return (
                f"in {answer!r} there is {axis}, which neither the output nor a waiting operand asks for: sum over it"
            )
        if asking and axis not in answer:
            return f"in {answer!r} there is no {axis}, but {asking[0]} still asks for it"
    if len(set(answer)) < len(answer):
        return f"in {answer!r} an axis stands twice"
    return "" if answer == "".join(sorted(answer)) else f"the axes of {answer!r} must be sorted"


exercise(
    "1.3",
    "Which axes survive?",
    claim="000:function-vs-algorithm",
    level=2,
    minutes=8,
    cases=_axes_cases,
    refuse=_not_kept,
    wrong={
        "you summed every axis that both operands share. K and V share S, but L still asks for S: a shared "
        "axis stays while the output or a waiting operand has it": "set(left + right) & needed → {*left} ^ {*right}",
        "these are the axes that are summed: the result keeps the others": "& needed → - needed",
        "you kept every axis: then nothing is ever summed and the intermediate is too large": " & needed → ",
        "you asked only the waiting operands: the output wants its axes too": "set(output) → set()",
        "you asked only the first of the waiting operands": "*others → *others[:1]",
        "these are all axes that somebody needs: "
        "the result can only keep those that its two operands have": "set(left + right) & needed → needed",
    },
)(kept_axes)


def cheapest_order(sizes):
    """Steps such as "TN, SN -> TS" that contract TN, SN, TS, SP to TP with the fewest multiply-adds for these sizes.

    A step contracts two operands and costs the product of the sizes of all their different axes; its result waits with
    the others, its letters in any order. No order may be cheaper than yours.

    Hint: With four operands there are few orders: six pairs can come first, then three, then one. Try them all.

    Hint: Which axes a step keeps is exercise 1.3: `kept_axes(left, right, others, "TP")`.

    Hint: Recursion: for each pair of a list of operands, the cost of this step plus the least cost of what is left, the
    list without the two and with their result.

    Insight: Orders of one contraction can differ by large factors: by 23 at T = S = 128, N = P = 16. Which one is the
    cheapest depends on the sizes, so a library must search, as yours does.
    """

    def search(operands):
        if len(operands) == 1:
            return 0, []
        found = []
        for pair in itertools.combinations(range(len(operands)), 2):
            left, right = (operands[place] for place in pair)
            others = [axes for place, axes in enumerate(operands) if place not in pair]
            kept = kept_axes(left, right, others, "TP")
            macs, steps = search([*others, kept])
            macs += math.prod(sizes[axis] for axis in set(left + right))
            found.append((macs, [f"{left}, {right} -> {kept}", *steps]))
        return min(found)

    return search(["TN", "SN", "TS", "SP"])[1]


OPERANDS, OUTPUT = ["TN", "SN", "TS", "SP"], "TP"
FORM = '"TN, SN -> TS": two operands, an arrow, the axes that stay'


def _sizes_cases(randn):
    # in these five an order that is the best of something else is that alone
    alone = [(5, 8, 3, 2), (5, 3, 2, 2), (4, 8, 2, 3), (2, 8, 1, 3), (9, 9, 2, 4)]
    twice = (1, 2, 3, 1)  # not where an axis that both operands have counts twice
    written = (5, 5, 2, 2)  # nor where the entries of the results count
    never_13 = (9, 9, 2, 2)  # (13) is dear, and the best of nothing: who always takes it hears of no measure
    ordinary = [(1, 8, 1, 4), (64, 64, 16, 16), (8, 1, 5, 1)]
    for sizes in [(4, 4, 2, 3), never_13, *alone, *ordinary, twice, written, (4, 1, 1, 2)]:
        yield (dict(zip("TSNP", sizes, strict=True)),)


def _triples(steps):
    """The two operands and the result of each step."""
    return [step.replace(" ", "").replace("->", ",").split(",") for step in steps]


def _size(axes, sizes):
    return math.prod(sizes[axis] for axis in axes)


def _parts(steps, sizes):
    """Multiply-adds of each step."""
    return [_size({*left, *right}, sizes) for left, right, _ in _triples(steps)]


def _macs(steps, sizes):
    return sum(_parts(steps, sizes))


def _fault(steps):
    """Say why a list of steps is not an order of masked attention; "" if it is."""
    waiting = list(OPERANDS)
    for step in steps:
        operands, arrow, result = step.replace(" ", "").partition("->")
        factors = operands.split(",")
        if not arrow or len(factors) != 2:
            return f"a step has the form {FORM}; got {step!r}"
        for factor in factors:
            same = [axes for axes in waiting if {*axes} == {*factor}]
            if not same:
                return f"in {step!r} there is no operand {factor} at that time"
            waiting.remove(same[0])
        if wrong := _wrong_result({*factors[0], *factors[1]}, {*result}, waiting):
            return f"in {step!r} {wrong}"
        waiting.append(result)
    if len(waiting) > 1:
        return f"after your last step more than one operand is left: {' and '.join(waiting)}"
    left = "".join(sorted({*waiting[0]} - {*OUTPUT}))
    return f"your last result still has {left}, which nobody waits for: sum over it" if left else ""


def _wrong_result(axes, result, waiting):
    """Say why the product of two operands with these axes cannot have that result; "" if it can."""
    needed = axes.intersection({*OUTPUT}.union(*waiting))
    for axis in sorted(needed - result):
        asking = [f"{operand}, which still waits," for operand in waiting if axis in operand] or ["the output"]
        return f"the result must keep the axes {''.join(sorted(needed))}: {asking[0]} has {axis}"
    return f"neither operand has {min(result - axes)}" if result - axes else ""


def _dear(steps, sizes):
    if not isinstance(steps, list | tuple) or not all(isinstance(step, str) for step in steps):
        return f"the answer must be a list of steps such as {FORM}"
    if fault := _fault(steps):
        return fault
    macs, least = _macs(steps, sizes), _macs(cheapest_order(sizes), sizes)
    if macs == least:
        return ""
    parts = " + ".join(f"{part:,}" for part in _parts(steps, sizes))
    best_of = _least_of(_triples(steps), sizes)
    return f"your steps take {parts} = {macs:,} multiply-adds, the cheapest order {least:,}{best_of}"


def _joined(*pairs):
    """An order, told by the pairs of axes that meet."""
    return lambda sizes: [f"{left}, {right} -> {result}" for left, right, result in pairs]


QUADRATIC = _joined(("TN", "SN", "TS"), ("TS", "TS", "TS"), ("TS", "SP", "TP"))
LINEAR = _joined(("SP", "SN", "SPN"), ("TS", "SPN", "TPN"), ("TN", "TPN", "TP"))


def _chain(sizes):
    """The cheapest of the orders that bring in one operand after the other."""
    orders = []
    for first, *rest in itertools.permutations(OPERANDS):
        steps, so_far = [], first
        for place, operand in enumerate(rest):
            kept = kept_axes(so_far, operand, rest[place + 1 :], OUTPUT)
            steps.append(f"{so_far}, {operand} -> {kept}")
            so_far = kept
        orders.append(steps)
    return min(orders, key=lambda steps: _macs(steps, sizes))


def _meetings(operands):
    """Every pair of operands, what their product keeps, and the others."""
    for pair in itertools.combinations(range(len(operands)), 2):
        left, right = (operands[place] for place in pair)
        others = [axes for place, axes in enumerate(operands) if place not in pair]
        yield left, right, kept_axes(left, right, others, OUTPUT), others


def _all_orders(operands):
    """The steps of every order: operands and result of each."""
    if len(operands) == 1:
        yield []
    for left, right, kept, others in _meetings(operands):
        yield from ([(left, right, kept), *rest] for rest in _all_orders([*others, kept]))


def _greedy(steps, sizes, measure):
    """Whether each step has the least measure of those that can be done at its time."""
    waiting = list(OPERANDS)
    for step in steps:
        if measure(*step, sizes) > min(measure(*other, sizes) for *other, _ in _meetings(waiting)):
            return False
        for operand in step[:2]:
            waiting.remove(next(axes for axes in waiting if {*axes} == {*operand}))
        waiting.append(step[2])
    return True


def _neighbours(steps):
    """Whether only operands meet that stand side by side; a result stands where its operands stood."""
    waiting = [frozenset(operand) for operand in OPERANDS]
    for left, right, result in steps:
        first, second = sorted((waiting.index(frozenset(left)), waiting.index(frozenset(right))))
        if second > first + 1:
            return False
        waiting[first : second + 1] = [frozenset(result)]
    return True


def _pairs(steps):
    """The pair of operands of each step, whichever comes first."""
    return [{frozenset(left), frozenset(right)} for left, right, _ in steps]


def _step(left, right, result, sizes):
    return _size({*left, *right}, sizes)


def _result(left, right, result, sizes):
    return _size(result, sizes)


def _cost_of(chosen):
    """The cost of an order that is chosen; infinite for others."""
    return lambda steps, sizes: sum(_step(*step, sizes) for step in steps) if chosen(steps) else math.inf


MEASURES = {  # of an order, what a search might take for its cost
    "the order that writes the fewest entries": lambda steps, sizes: sum(_result(*step, sizes) for step in steps),
    "the cheapest if an axis of both operands counts twice": lambda steps, sizes: sum(
        _size(left + right, sizes) for left, right, _ in steps
    ),
    "the order whose largest result is smallest": lambda steps, sizes: max(_result(*step, sizes) for step in steps),
    "the order whose largest step is smallest": lambda steps, sizes: max(_step(*step, sizes) for step in steps),
    "the dearest of all": lambda steps, sizes: -sum(_step(*step, sizes) for step in steps),
    "the cheaper one of (13) and K with V, then L, then Q": _cost_of(
        lambda steps: _pairs(steps) in [_pairs(_triples(order({}))) for order in (QUADRATIC, LINEAR)]
    ),
    "the cheapest of those where only neighbours in the list meet": _cost_of(_neighbours),
    "the one whose every step is the cheapest at its time": lambda steps, sizes: not _greedy(steps, sizes, _step),
    "the one whose every result is the smallest at its time": lambda steps, sizes: not _greedy(steps, sizes, _result),
}


def _best(measure, sizes):
    """All orders that have the least of a measure."""
    orders = list(_all_orders(OPERANDS))
    least = min(measure(order, sizes) for order in orders)
    return [order for order in orders if measure(order, sizes) == least]


def _least_of(steps, sizes):
    """What a dear order is the best of, so that a search could take it for the cheapest; "" if of nothing or much.

    A search that could have failed in a case before this one is not it: there it would have been told.
    """
    cost, found = _cost_of(lambda steps: True), []
    before = list(itertools.takewhile(lambda case: case != (sizes,), _sizes_cases(None)))
    for words, measure in MEASURES.items():
        same = measure(steps, sizes) == measure(_best(measure, sizes)[0], sizes)
        if same and not any(
            cost(order, other) > cost(_best(cost, other)[0], other)
            for (other,) in before
            for order in _best(measure, other)
        ):
            found.append(words)
    return f". Here it is {' and '.join(found)}: what counts is the sum of all steps" if 1 <= len(found) <= 2 else ""


exercise(
    "1.4",
    "The cheapest order",
    claim="000:order-cost",
    kind="open",
    level=3,
    minutes=20,
    cases=_sizes_cases,
    refuse=_dear,
    reached=lambda steps, sizes: f"{_macs(steps, sizes):,} multiply-adds",
    wrong={
        "this is order (13) whatever the sizes: for many tokens with few features it is expensive": QUADRATIC,
        "you begin with K and V whatever the sizes: to multiply by L then costs T·S·N·P": LINEAR,
        "you always bring one operand to the product so far: two pairs may also meet": _chain,
        "the mask TS is never used: it is the fourth operand": _joined(("TN", "SN", "TS"), ("TS", "SP", "TP")),
        "you sum S before the mask has met it: then nothing can be hidden": _joined(
            ("SN", "SP", "NP"), ("TN", "NP", "TP"), ("TP", "TS", "TP")
        ),
        "the values are still waiting: an order ends when one operand is left": _joined(
            ("TN", "SN", "TS"), ("TS", "TS", "TS")
        ),
    },
)(cheapest_order)
