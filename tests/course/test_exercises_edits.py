"""Wrong answers as edits of the solution."""

import inspect
from dataclasses import replace

import pytest
from demos import CAUSAL, causal_product

from smalearn.course.exercises import verify
from smalearn.course.exercises.edits import Edited

EDITS = {
    "nothing is hidden": ".tril() → ",
    "this keeps the future and hides the past": "tril → triu",
    "another function of other letters": "Q → K ; @ V → @ V * 2",
}


def test_each_text_is_replaced_wherever_it_stands():
    found = Edited(causal_product, [], "tril() @ V → triu() @ V ; triu() → triu(1) ; Q → (Q + Q) ; @ → +")
    head, body = "def causal_product(Q, K, V):", "    return ((Q + Q) + K.mT).triu(1) + V"
    assert inspect.getsource(found.function) == f"{head}\n{body}"


@pytest.mark.parametrize("edits", ["nothing → something", "tril", "tril → triu ; tril → again"])
def test_a_text_that_is_not_there_is_said_to_the_author(edits):
    message = "causal_product: no '(nothing|tril)' in its source to replace"
    with pytest.raises(ValueError, match=message):
        Edited(causal_product, [], edits).function  # noqa: B018
    (problem, *_) = verify(replace(CAUSAL, wrong=EDITS | {"missed": edits}), seeds=[0])
    assert problem.endswith("in its source to replace")


def test_edits_that_make_no_python_are_named_to_the_author():
    (problem,) = verify(replace(CAUSAL, wrong=EDITS | {"cut short": "return → return ("}), seeds=[0])
    assert "'return → return ('" in problem
