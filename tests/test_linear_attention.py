import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles_linear_attention import linear_attention as loop
from oracles_linear_attention import sum_of_products
from torch.utils._python_dispatch import TorchDispatchMode

from smalearn import ShapeError
from smalearn.linear_attention import (
    linear_attention_chunked,
    linear_attention_parallel,
    linear_attention_recomputed,
    linear_attention_recurrent,
    linear_attention_step,
)
from smalearn.testing import assert_close, random_tensors, relative_rms

INF = float("inf")


def parallel_with_state(Q, K, V, log_a=None, initial_state=None):
    """The parallel form has no state: zero in, and none out to compare."""
    return linear_attention_parallel(Q, K, V, log_a), None


def chunks_of(length, form=linear_attention_chunked):
    return lambda *args: form(*args, chunk_len=length)


# name -> (form, gates that it takes, whether it takes an initial state)
FORMS = {
    "parallel": (parallel_with_state, {"none", "token", "key"}, False),
    "recurrent": (linear_attention_recurrent, {"none", "token", "key", "full"}, True),
    "chunked-5": (chunks_of(5), {"none", "token", "key"}, True),
    "chunked-64": (linear_attention_chunked, {"none", "token", "key"}, True),
    "recomputed-4": (chunks_of(4, linear_attention_recomputed), {"none", "token"}, True),
}
CASES = [(form, gate) for form, (_, gates, _) in FORMS.items() for gate in sorted(gates)]
DECAYS = ["mild", "zeros", "strong", "sums", "resets", "all-inf"]


def decays(kind, shape, seed=5):
    """log_a of a shape: near 0, exactly 0, −1e4 among them, sums of −1e3, or −inf among them."""
    mild, where = random_tensors([shape, shape], seed=seed)
    mild = -mild.abs()
    return {
        "mild": mild,
        "zeros": torch.where(where > 0, 0.0, mild),
        "strong": torch.where(where > 1, -1e4, 0.1 * mild),
        "sums": 60 * mild - 10,
        "resets": torch.where(where > 1, -INF, torch.where(where < -1, -1e4, 0.1 * mild)),
        "all-inf": torch.full(shape, -INF, dtype=torch.float64),
    }[kind]


def inputs(length, gate, kind="mild", leading=(), features=3, head_dim=2, seed=0):
    """Q, K, V, log_a and an initial state."""
    *qkv, state = random_tensors(
        [(*leading, length, n) for n in (features, features, head_dim)] + [(*leading, head_dim, features)], seed=seed
    )
    axes = {"none": None, "token": (), "key": (features,), "full": (head_dim, features)}[gate]
    return [*qkv, None if axes is None else decays(kind, (*leading, length, *axes), seed + 5), state]


def run(form, operands):
    """Y and the last state, and the gradients of everything that has one, for random cotangents."""
    operands = [None if x is None else x.detach().clone().requires_grad_() for x in operands]
    Y, state = form(*operands)
    pairs = [(Y, random_tensors([Y.shape], 11, Y.dtype)[0])]
    if state is not None:
        pairs.append((state, random_tensors([state.shape], 12, state.dtype)[0]))
    leaves = [x for x in operands if x is not None]
    loss = sum((x * cotangent).sum() for x, cotangent in pairs)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [Y, *([] if state is None else [state]), *grads]


def compare(name, operands, tolerance=None, dtype=torch.float64):
    """A form in a dtype against the loop in float64 on the same numbers: outputs and gradients."""
    form, _, takes_state = FORMS[name]
    operands = [None if x is None else x.to(dtype) for x in operands]
    operands[4] = operands[4] if takes_state else None
    results = run(form, operands)
    oracle = loop if takes_state else lambda *args: (loop(*args)[0], None)
    expected = run(oracle, [None if x is None else x.double() for x in operands])
    for actual, truth in zip(results, expected, strict=True):
        assert actual.dtype == dtype
        assert_close(actual, truth, tolerance)


def test_the_oracle_is_the_unrolled_sum_of_products():
    Q, K, V, log_a, _ = inputs(5, "full")
    assert_close(loop(Q, K, V, log_a)[0], sum_of_products(Q, K, V, log_a))


@pytest.mark.parametrize(("name", "gate"), CASES)
@pytest.mark.parametrize("kind", DECAYS)
def test_values_and_gradients_are_those_of_the_loop(name, gate, kind):
    for length in (1, 2, 19):
        compare(name, inputs(length, gate, kind))


@pytest.mark.parametrize(("name", "gate"), CASES)
@pytest.mark.parametrize("kind", DECAYS)
def test_float32(name, gate, kind):
    compare(name, inputs(50, gate, kind, features=4, head_dim=3), dtype=torch.float32)


@pytest.mark.parametrize(("name", "gate"), CASES)
@pytest.mark.parametrize("leading", [(2,), (2, 4), (0,), (2, 0)])
def test_leading_axes(name, gate, leading):
    compare(name, inputs(6, gate, "resets", leading))


@pytest.mark.parametrize(("name", "gate"), CASES)
@pytest.mark.parametrize(
    ("of_queries", "of_keys", "of_values", "of_gate", "of_state"),
    [
        ((2, 1), (2, 1), (2, 3), (2, 3), (2, 3)),
        ((2, 3), (2, 1), (2, 1), (2, 1), (1, 1)),
        ((1, 1), (1, 3), (2, 1), (1, 1), (2, 1)),
        ((1, 1), (1, 1), (1, 1), (2, 3), (1, 1)),
        ((1,), (1,), (1,), (1,), (2, 3)),
        ((), (), (2, 3), (), ()),
    ],
)
def test_leading_axes_broadcast(name, gate, of_queries, of_keys, of_values, of_gate, of_state):
    if not FORMS[name][2] and len(of_state) > len(of_keys):
        of_state = of_keys
    (Q, K, V, log_a, _), (_, _, _, _, state) = inputs(7, gate, "zeros"), inputs(7, gate)
    many = [(of_queries, Q), (of_keys, K), (of_values, V), (of_gate, log_a), (of_state, state)]
    scale = random_tensors([leading for leading, _ in many], seed=3)
    operands = [
        None if x is None else s.abs().reshape(*s.shape, *(1,) * x.ndim) * x
        for (_, x), s in zip(many, scale, strict=True)
    ]
    compare(name, operands)


@pytest.mark.parametrize("name", FORMS)
def test_no_tokens(name):
    form, gates, takes_state = FORMS[name]
    for gate in gates:
        for leading in [(), (2, 3)]:
            Q, K, V, log_a, state = inputs(0, gate, leading=leading)
            Y, last = form(Q, K, V, log_a)
            assert Y.shape == (*leading, 0, 2)
            if takes_state:
                assert torch.equal(last, torch.zeros_like(state))
                assert torch.equal(form(Q, K, V, log_a, state)[1], state)


lengths = st.integers(1, 40)


@given(
    length=lengths,
    chunk_len=lengths,
    gate=st.sampled_from(["none", "token", "key"]),
    kind=st.sampled_from(DECAYS),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 99),
)
def test_chunked_for_every_length_and_chunk_length(length, chunk_len, gate, kind, sizes, seed):
    operands = inputs(length, gate, kind, (), *sizes, seed)
    for actual, expected in zip(chunks_of(chunk_len)(*operands), loop(*operands), strict=True):
        assert_close(actual, expected)
    Q, K, V, log_a, state = (None if x is None else x.float() for x in operands)
    single = [Q.abs(), K.abs(), V.abs(), log_a, state.abs()]  # a sum that cancels would have no digits to compare
    for actual, expected in zip(
        chunks_of(chunk_len)(*single), loop(*(None if x is None else x.double() for x in single)), strict=True
    ):
        assert_close(actual, expected)


@pytest.mark.parametrize(("name", "gate"), CASES)
def test_gradcheck(name, gate):
    form, _, takes_state = FORMS[name]
    Q, K, V, log_a, state = inputs(6, gate)
    operands = [Q, K, V, log_a, state] if takes_state else [Q, K, V, log_a]
    leaves = [x.requires_grad_() for x in operands if x is not None]

    def function(*leaves):
        left = iter(leaves)
        results = form(*(None if x is None else next(left) for x in operands))
        return results if takes_state else results[0]

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize(("name", "gate"), CASES)
def test_stride_zero_and_missing_gradients(name, gate):
    form, _, takes_state = FORMS[name]
    for output in range(2 if takes_state else 1):
        operands = inputs(9, gate, "resets")[: 5 if takes_state else 4]
        leaves = [x.requires_grad_() for x in operands if x is not None]
        results = torch.autograd.grad(form(*operands)[output].sum(), leaves, allow_unused=True, materialize_grads=True)
        truth = torch.autograd.grad(loop(*operands)[output].sum(), leaves, allow_unused=True, materialize_grads=True)
        for actual, expected in zip(results, truth, strict=True):
            assert_close(actual, expected)


@pytest.mark.parametrize(("name", "gate"), CASES)
def test_strided_inputs_are_left_alone(name, gate):
    operands = [
        None if x is None else x.repeat_interleave(2, -1).flip(0)[..., ::2].flip(0) for x in inputs(9, gate, "mild")
    ]
    before = [None if x is None else x.clone() for x in operands]
    Y, _ = FORMS[name][0](*operands[: 5 if FORMS[name][2] else 4])
    state = operands[4] if FORMS[name][2] else None
    assert_close(Y, loop(*operands[:4], state)[0])
    assert all(x is None or torch.equal(x, y) for x, y in zip(operands, before, strict=True))


@pytest.mark.parametrize("gate", ["none", "token", "key", "full"])
def test_decoding_step_by_step_is_training(gate):
    Q, K, V, log_a, state = inputs(20, gate, "resets", (2, 3))
    Y, last = loop(Q, K, V, log_a, state)
    time = {"none": 0, "token": -1, "key": -2, "full": -3}[gate]
    for t in range(20):
        log_a_t = None if log_a is None else log_a.select(time, t)
        y, state = linear_attention_step(Q[..., t, :], K[..., t, :], V[..., t, :], log_a_t, state)
        assert_close(y, Y[..., t, :])
    assert_close(state, last)


@pytest.mark.parametrize(("name", "gate"), [case for case in CASES if FORMS[case[0]][2]])
@pytest.mark.parametrize("split", [0, 1, 7, 20])
def test_a_sequence_in_two_parts(name, gate, split):
    operands = inputs(20, gate, "zeros")
    form, state, parts = FORMS[name][0], operands[4], []
    for part in (slice(0, split), slice(split, None)):
        Y, state = form(*(None if x is None else x[part] for x in operands[:4]), state)
        parts.append(Y)
    for actual, expected in zip((torch.cat(parts), state), loop(*operands), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize(("name", "gate"), CASES)
def test_causality_is_exact(name, gate):
    operands, other = inputs(30, gate), inputs(30, gate, seed=1)
    state = [operands[4]] if FORMS[name][2] else []
    mixed = [None if x is None else torch.cat([x[:17], y[17:]]) for x, y in zip(operands[:4], other[:4], strict=True)]
    Y, Y_mixed = (FORMS[name][0](*x[:4], *state)[0] for x in (operands, mixed))
    assert torch.equal(Y[:17], Y_mixed[:17])
    assert not torch.equal(Y[17:], Y_mixed[17:])


@pytest.mark.parametrize(("name", "gate"), [case for case in CASES if case[1] != "none"])
@pytest.mark.parametrize("reset", [-INF, -1e4])
def test_a_reset_forgets_exactly(name, gate, reset):
    operands, other = inputs(30, gate), inputs(30, gate, seed=1)
    mixed = [torch.cat([y[:17], x[17:]]) for x, y in zip(operands[:4], other[:4], strict=True)]
    operands[3][17] = mixed[3][17] = reset
    form, _, takes_state = FORMS[name]
    Y, Y_mixed = (
        form(*x, *([state] if takes_state else []))[0] for x, state in ((operands[:4], operands[4]), (mixed, other[4]))
    )
    assert torch.equal(Y[17:], Y_mixed[17:])
    assert not torch.equal(Y[:17], Y_mixed[:17])


@pytest.mark.parametrize(("name", "gate"), [case for case in CASES if case[1] not in ("none", "full")])
@pytest.mark.parametrize("reset", [-INF, -1e4, -1e3])
def test_float32_is_accurate_after_a_reset(name, gate, reset):
    """Sums of log_a that hold the reset would have lost the digits of what follows."""
    operands = inputs(120, gate, "mild", features=4, head_dim=3)
    operands[3] = 0.05 * operands[3]
    operands[3][[20, 70, 100]] = reset
    single = [x.float() for x in operands]
    Y = FORMS[name][0](*single[: 5 if FORMS[name][2] else 4])[0]
    expected, _ = loop(*(x.double() for x in single))
    for start in (20, 70, 100):
        assert relative_rms(Y[start : start + 20], expected[start : start + 20]) < 1e-6


class LargestExponent(TorchDispatchMode):
    """Records the largest number that any exponential is taken of."""

    largest = -INF

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.exp, torch.ops.aten.exp_, torch.ops.aten.exp2):
            self.largest = max([self.largest, *args[0].flatten().tolist()])
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(("name", "gate"), [case for case in CASES if case[1] != "none"])
def test_no_exponential_of_a_positive_number(name, gate):
    operands = inputs(50, gate, "resets")
    with LargestExponent() as mode:
        run(FORMS[name][0], [*operands[:4], operands[4] if FORMS[name][2] else None])
    assert -INF < mode.largest <= 0


@pytest.mark.parametrize(("name", "gate"), CASES)
@pytest.mark.parametrize(("dtype", "wide"), [(torch.bfloat16, True), (torch.float16, False)])
def test_half_precision(name, gate, dtype, wide):
    """All half, or with gate and state in float32."""
    form, _, takes_state = FORMS[name]
    operands = [None if x is None else x.to(dtype) for x in inputs(70, gate, "zeros", features=4, head_dim=3)]
    operands = [x if x is None or i < 3 or not wide else x.float() for i, x in enumerate(operands)]
    results = run(form, [*operands[:4], operands[4] if takes_state else None])
    oracle = loop if takes_state else lambda *args: (loop(*args)[0], None)
    exact = [None if x is None else x.double() for x in operands]
    expected = run(oracle, [*exact[:4], exact[4] if takes_state else None])
    leaves = [x for x in operands[: 5 if takes_state else 4] if x is not None]
    dtypes = [dtype, *([torch.float32] if takes_state else []), *(x.dtype for x in leaves)]
    assert [x.dtype for x in results] == dtypes
    # The cotangents of the two runs differ by their rounding to half precision, so only outputs are held to it.
    for actual, truth in list(zip(results, expected, strict=True))[: 2 if takes_state else 1]:
        assert relative_rms(actual, truth) <= 1.1 * relative_rms(truth.to(actual.dtype), truth) + 1e-6
    for actual, truth in list(zip(results, expected, strict=True))[2 if takes_state else 1 :]:
        assert relative_rms(actual, truth) < 4 * torch.finfo(dtype).eps


def test_step_in_half_precision():
    q, k, v = (x.half() for x in random_tensors([(3,), (3,), (2,)]))
    y, state = linear_attention_step(q, k, v, torch.tensor(-0.1), torch.ones(2, 3))
    assert (y.dtype, state.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize(
    "function",
    [linear_attention_chunked, linear_attention_recomputed, linear_attention_recurrent, linear_attention_parallel],
)
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(5, 3), (5, 2), (5, 2)], "axis 'n' is 3 in Q but 2 in K"),
        ([(5, 3), (4, 3), (5, 2)], "axis 't' is 5 in Q but 4 in K"),
        ([(5, 3), (5, 3), (4, 2)], "axis 't' is 5 in Q but 4 in V"),
        ([(5, 3), (5, 3), (5, 2), (4,)], "axis 't' is 5 in Q but 4 in log_a"),
        ([(3,), (5, 3), (5, 2)], r"Q needs trailing axes \(T, N\), got shape \(3,\)"),
        ([(5, 3), (5, 3), (5, 2), ()], r"log_a has 0 axes, expected 1 for \(..., T\), 2 for \(..., T, N\), 3 for"),
        ([(5, 3), (5, 3), (5, 2), (2, 2, 5, 3)], r"log_a has 4 axes, expected 1 for \(..., T\)"),
        ([(2, 5, 3), (5, 3), (3, 5, 2)], r"leading axes \(3,\) of V do not broadcast with \(2,\) before it"),
    ],
)
def test_shape_errors(function, shapes, message):
    tensors = random_tensors(shapes)
    tensors[3:] = [-x.abs() for x in tensors[3:]]
    with pytest.raises(ShapeError, match=f"^{function.__name__}: {message}"):
        function(*tensors)


@pytest.mark.parametrize(
    "function", [linear_attention_chunked, linear_attention_recomputed, linear_attention_recurrent]
)
def test_errors_about_the_state(function):
    Q, K, V, log_a, state = inputs(5, "token")
    with pytest.raises(ShapeError, match=f"{function.__name__}: axis 'p' is 2 in V but 3 in initial_state"):
        function(Q, K, V, log_a, state.mT)
    with pytest.raises(
        ValueError,
        match=f"{function.__name__}: initial_state is torch.float16, expected torch.float64 or torch.float32",
    ):
        function(Q, K, V, log_a, state.half())
    with pytest.raises(ValueError, match=f"{function.__name__}: initial_state is on meta but Q is on cpu"):
        function(Q, K, V, log_a, state.to("meta"))


@pytest.mark.parametrize(
    "function",
    [linear_attention_chunked, linear_attention_recomputed, linear_attention_recurrent, linear_attention_parallel],
)
def test_errors_about_values_and_dtypes(function):
    name = function.__name__
    Q, K, V, log_a, _ = inputs(5, "token")
    with pytest.raises(ValueError, match=f"^{name}: log_a must be ≤ 0, the log of a decay in \\[0, 1\\], got 0.5"):
        function(Q, K, V, torch.where(log_a == log_a[2], 0.5, log_a))
    with pytest.raises(ValueError, match=f"^{name}: log_a must be ≤ 0, .* got nan at \\[2\\]"):
        function(Q, K, V, torch.where(log_a == log_a[2], torch.nan, log_a))
    with pytest.raises(ValueError, match=f"^{name}: V is torch.float32 but Q is torch.float64"):
        function(Q, K, V.float())
    with pytest.raises(ValueError, match=f"^{name}: log_a is torch.float64, expected torch.float32$"):
        function(Q.float(), K.float(), V.float(), log_a)
    with pytest.raises(ValueError, match=f"^{name}: log_a must have a floating dtype, got torch.int64"):
        function(Q, K, V, log_a.long())
    with pytest.raises(TypeError, match=f"^{name}: log_a must be a torch.Tensor, got float"):
        function(Q, K, V, -0.5)
    with pytest.raises(ValueError, match=f"^{name}: log_a is on meta but Q is on cpu"):
        function(Q, K, V, log_a.to("meta"))


@pytest.mark.parametrize(("name", "gate"), CASES)
def test_values_are_looked_at_on_a_cpu_only(name, gate):
    operands = [None if x is None else -x.to("meta") for x in inputs(9, gate)]
    Y, _ = FORMS[name][0](*operands[: 5 if FORMS[name][2] else 4])
    assert (Y.device.type, Y.shape) == ("meta", (9, 2))


@pytest.mark.parametrize("function", [linear_attention_chunked, linear_attention_parallel])
def test_a_full_gate_needs_the_recurrent_form(function):
    message = r"log_a has axes \(..., T, P, N\), expected \(..., T\) or \(..., T, N\); use linear_attention_recurrent"
    with pytest.raises(ValueError, match=f"^{function.__name__}: {message}"):
        function(*inputs(5, "full")[:4])


def test_recomputed_takes_one_decay_per_token():
    with pytest.raises(
        ValueError, match=r"log_a has axes \(..., T, N\), expected \(..., T\); use linear_attention_chunked"
    ):
        linear_attention_recomputed(*inputs(5, "key"))
    with pytest.raises(ValueError, match=r"log_a has axes \(..., T, P, N\), .*; use linear_attention_recurrent"):
        linear_attention_recomputed(*inputs(5, "full"))


@pytest.mark.parametrize("function", [linear_attention_chunked, linear_attention_recomputed])
@pytest.mark.parametrize("chunk_len", [0, -1, 2.0, True])
def test_chunk_length(function, chunk_len):
    with pytest.raises(ValueError, match=f"^{function.__name__}: chunk_len must be an integer ≥ 1, got {chunk_len}"):
        function(*inputs(5, "none"), chunk_len=chunk_len)


def test_errors_of_a_step():
    q, k, v, log_a, state = random_tensors([(3,), (3,), (2,), (2, 3), (2, 3)])
    with pytest.raises(ShapeError, match="linear_attention_step: axis 'n' is 3 in q but 2 in k"):
        linear_attention_step(q, k[:2], v, None, state)
    with pytest.raises(ShapeError, match="linear_attention_step: axis 'p' is 2 in v but 3 in state"):
        linear_attention_step(q, k, v, None, state.mT)
    with pytest.raises(
        ShapeError, match=r"linear_attention_step: log_a has 3 axes, expected 0 for \(...\), 1 for \(..., N\), 2 "
    ):
        linear_attention_step(q, k, v, log_a[None], state)
    with pytest.raises(ValueError, match="linear_attention_step: log_a must be ≤ 0, the log of a decay"):
        linear_attention_step(q, k, v, log_a.abs(), state)
    with pytest.raises(ValueError, match=r"linear_attention_step: k is torch.float32 but q is torch.float64"):
        linear_attention_step(q, k.float(), v, None, state)
