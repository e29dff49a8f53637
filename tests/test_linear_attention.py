"""The oracle of linear attention, chunks of every length, and the gates that a form does not take."""

import pytest
from oracles_linear_attention import linear_attention as loop
from oracles_linear_attention import sum_of_products
from registry_functions import FULL, KEY, TOKEN, Form

from smalearn.linear_attention import linear_attention_chunked, linear_attention_parallel, linear_attention_recomputed
from smalearn.testing import assert_close


def inputs(length, axes, kind="mild"):
    return [*Form(loop, axes).operands(length, (), kind).values()]


def test_the_oracle_is_the_unrolled_sum_of_products():
    Q, K, V, log_a, _ = inputs(5, FULL)
    assert_close(loop(Q, K, V, log_a)[0], sum_of_products(Q, K, V, log_a))


@pytest.mark.parametrize(
    ("function", "axes", "other"),
    [
        (linear_attention_chunked, FULL, "linear_attention_recurrent"),
        (linear_attention_parallel, FULL, "linear_attention_recurrent"),
        (linear_attention_recomputed, FULL, "linear_attention_recurrent"),
        (linear_attention_recomputed, KEY, "linear_attention_chunked"),
    ],
)
def test_a_gate_that_a_form_does_not_take(function, axes, other):
    with pytest.raises(ValueError, match=f"^{function.__name__}: log_a has axes .* use {other}"):
        function(*inputs(5, axes)[:4])


@pytest.mark.parametrize("chunk_len", [0, -1, 2.0, True])
def test_chunk_length(chunk_len):
    for function in (linear_attention_chunked, linear_attention_recomputed):
        with pytest.raises(ValueError, match=f"^{function.__name__}: chunk_len must be .* got {chunk_len}"):
            function(*inputs(5, TOKEN), chunk_len=chunk_len)
