"""The caches against attention over pairs, token by token; the numbers and bytes they keep; that old ones stay true."""

import copy
import math

import pytest
import torch
from comparing import same_function
from oracles_multilevel import dense, windowed
from torch.utils.flop_counter import FlopCounterMode

from smalearn import ShapeError
from smalearn.multilevel import FullCache, KeyCache, WindowCache
from smalearn.testing import assert_close, random_tensors

WIDE = torch.empty(0, dtype=torch.float64)


def levels(Q, K, V, ranks, block_lens, since=0):
    """Causal multi-level attention to the keys from `since` on, every pair from the definition."""
    i = torch.arange(K.shape[-2])
    parts = zip(Q.split(ranks, -1), K.split(ranks, -1), block_lens, strict=True)
    S = sum((q @ k.mT) * (i[:, None] // size == i // size) for q, k, size in parts)
    unseen = (i[:, None] < i) | (i < torch.as_tensor(since)[..., None])
    return S.masked_fill(unseen, -math.inf).softmax(-1) @ V


def multilevel(ranks, block_lens):
    def start(*leading, like=WIDE):
        return KeyCache(leading, ranks, block_lens, 3, like=like)

    return start, lambda *QKV: levels(*QKV[:3], ranks, block_lens, *QKV[3:])


def full(context):
    def start(*leading, like=WIDE):
        return FullCache(leading, 6, context, 3, like)

    return start, lambda *QKV: levels(*QKV[:3], (6,), (33,), *QKV[3:])


def window(w):
    def start(*leading, like=WIDE):
        return WindowCache(leading, 6, w, 3, like)

    return start, lambda *QKV: windowed(*QKV[:3], w, True, *QKV[3:])


# name -> how a cache starts, and the attention that it continues; each query may see keys from a number on
CACHES = {
    "levels": multilevel((2, 2, 1, 1), (32, 16, 8, 4)),
    "levels-0": multilevel((0, 3, 0, 3), (40, 20, 10, 5)),
    "levels-1": multilevel((2, 4), (32, 1)),
    "levels-ragged": multilevel((1, 2, 3), (42, 14, 7)),
    "full": full(33),
    "full-growing": full(None),
    "window": window(5),
    "window-0": window(0),
    "window-wide": window(99),
}
each_cache = pytest.mark.parametrize("name", CACHES)


def text(*leading, length=32):
    return random_tensors([(*leading, length, 6), (*leading, length, 6), (*leading, length, 3)])


def read(cache, tensors, sizes):
    """The outputs of texts of the given lengths, read one after the other, and the last cache."""
    parts, start = [], 0
    for size in sizes:
        y, cache = cache.read(*(x[..., start : start + size, :] for x in tensors))
        parts.append(y)
        start += size
    return torch.cat(parts, -2), cache


@each_cache
@pytest.mark.parametrize("sizes", [[32], [1, 31], [4, 4, 24], [7, 0, 11, 1, 13], [16, 16], [31, 1]])
def test_a_prompt_in_parts(name, sizes):
    start, parallel = CACHES[name]
    tensors = text(2)
    assert_close(read(start(2), tensors, sizes)[0], parallel(*tensors))


@each_cache
@pytest.mark.parametrize("appended", [0, 4, 9])
def test_a_text_that_begins_sees_nothing_before_it(name, appended):
    """In each row elsewhere, or nowhere; read or appended, at once or in parts; the blocks of levels stay."""
    start, parallel = CACHES[name]
    Q, K, V = text(3)
    starts = torch.tensor([[0] * 7 + [7] * 6 + [13] * 19, [0] * 32, [0] * 4 + [4] * 28])
    reset = torch.nn.functional.pad(starts.diff() > 0, (1, 0))
    cache, parts = start(3, like=WIDE).append(K[:, :appended], V[:, :appended], reset[:, :appended]), []
    for begin, end in ((appended, 12), (12, 12), (12, 13), (13, 31)):
        y, cache = cache.read(*(x[:, begin:end] for x in (Q, K, V)), reset[:, begin:end])
        parts.append(y)
    parts.append(cache.read(*(x[:, 31:] for x in (Q, K, V)))[0])
    assert_close(torch.cat(parts, 1), parallel(Q, K, V, starts)[:, appended:])
    assert cache.since.tolist() == [13, 0, 4]
    with pytest.raises(ShapeError, match=r"Cache.read: reset has shape \(2, 1\), expected \(3, 1\)"):
        cache.read(*(x[:, 31:] for x in (Q, K, V)), reset[:2, :1])


@pytest.mark.parametrize("name", ["levels", "full"])
def test_a_long_prompt_is_cut_into_pieces(name, monkeypatch):
    """No scores have more rows than a piece; what is read does not depend on it."""
    start, parallel = CACHES[name]
    tensors, rows = text(2), []
    attend = KeyCache._attend
    monkeypatch.setattr("smalearn.multilevel.cache.PIECE", 3)
    monkeypatch.setattr(KeyCache, "_attend", lambda cache, Q, since: (rows.append(Q.shape[-2]), attend(cache, Q))[1])
    assert_close(read(start(2), tensors, [5, 27])[0], parallel(*tensors))
    assert (max(rows), sum(rows)) == (3, 32)


@each_cache
@pytest.mark.parametrize("prompt", [0, 1, 5, 8, 16, 23, 31, 32])
def test_appending_a_prompt_and_reading_on(name, prompt):
    start, parallel = CACHES[name]
    tensors = text(2)
    cache = start(2).append(*(x[:, :prompt] for x in tensors[1:]))
    assert cache.length == prompt
    Y, _ = read(cache, [x[:, prompt:] for x in tensors], [1] * (32 - prompt) or [0])
    assert_close(Y, parallel(*tensors)[:, prompt:])


@each_cache
def test_an_old_cache_stays_true(name):
    """Two texts that begin alike, in turns: neither overwrites what the other needs."""
    start, parallel = CACHES[name]
    first, second = text(2), [x.flip(1) for x in text(2)]
    for prompt in (3, 16):
        for new, old in zip(second, first, strict=True):
            new[:, :prompt] = old[:, :prompt]
        shared = start(2).append(*(x[:, :prompt] for x in first[1:]))
        caches, outputs = [shared, shared], [[], []]
        for t in range(prompt, 32):
            for k, tensors in enumerate((first, second)):
                y, caches[k] = caches[k].read(*(x[:, t : t + 1] for x in tensors))
                outputs[k].append(y)
        for tensors, parts in zip((first, second), outputs, strict=True):
            assert_close(torch.cat(parts, 1), parallel(*tensors)[:, prompt:])
        assert shared.length == prompt


@each_cache
@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (1, 2), (0, 1)])
def test_gradients_where_some_operands_have_none(name, frozen):
    """A product of frozen keys and recorded queries keeps the keys: nobody may write over them, recorded or not."""
    start, parallel = CACHES[name]
    inputs = text(length=9)
    leaves = [x.requires_grad_() for k, x in enumerate(inputs) if k not in frozen]
    Y, cache = read(start(), inputs, [1] * 7)
    with torch.no_grad():
        cache.read(*(x[7:8] for x in inputs))
    same_function(Y, parallel(*(x[:7] for x in inputs)), leaves)


@each_cache
def test_branches_have_graphs_of_their_own(name):
    """Two recorded texts after one prompt: the backward of one neither needs nor spends the other's."""
    start, parallel = CACHES[name]
    prompt = [x[:, :5] for x in text(2)]
    cache = start(2).append(*prompt[1:])
    branches = [[x.requires_grad_() for x in random_tensors([y[:, :2].shape for y in prompt], seed=k)] for k in (2, 3)]
    outputs = [cache.read(*(x.square() for x in inputs))[0].square().sum() for inputs in branches]
    for inputs, y in zip(branches, outputs, strict=True):
        whole = parallel(*(torch.cat([old, new.square()], 1) for old, new in zip(prompt, inputs, strict=True)))
        y.backward()
        for x, expected in zip(inputs, torch.autograd.grad(whole[:, 5:].square().sum(), inputs), strict=True):
            assert_close(x.grad, expected)


@each_cache
def test_decoding_after_a_recorded_prompt_leaves_its_gradient_alone(name):
    start, parallel = CACHES[name]
    inputs = [x.requires_grad_() for x in text(2, length=9)]
    y, cache = start(2).read(*(x[:, :8] for x in inputs))
    with torch.no_grad():
        z, _ = cache.read(*(x[:, 8:] for x in inputs))
    assert_close(z, parallel(*inputs)[:, 8:])
    same_function(y, parallel(*(x[:, :8] for x in inputs)), inputs)


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("context", [1, 3, 4, 9, 16, 31])
def test_room_for_a_context_that_fills_no_block(context):
    ranks, block_lens = (2, 2, 1, 1), (32, 16, 8, 4)
    cache = KeyCache((2,), ranks, block_lens, 3, context, WIDE)
    assert cache.key_bytes == 8 * 2 * sum(r * min(context, size) for r, size in zip(ranks, block_lens, strict=True))
    assert cache.value_bytes == 8 * 2 * 3 * context
    tensors = text(2, length=context)
    Y, cache = read(cache, tensors, [1] * context)
    assert_close(Y, dense(*tensors, ranks, block_lens))
    with pytest.raises(ShapeError, match=f"^KeyCache.read: {context + 1} tokens, expected at most {context}, the"):
        cache.read(*(x[:, :1] for x in tensors))


def test_a_window_keeps_its_tokens_only():
    cache, tensors = WindowCache((2,), 6, 5, 3, like=WIDE), text(2)
    for t in range(32):
        _, cache = cache.read(*(x[:, t : t + 1] for x in tensors))
        assert cache.key_numbers == 2 * 6 * min(t + 1, 5)
        assert (cache.key_bytes, cache.value_bytes) == (8 * cache.key_numbers, 4 * cache.key_numbers)
    whole = WindowCache((2,), 6, 5, 3, like=WIDE).append(*tensors[1:])
    assert (whole.length, whole.nbytes) == (32, cache.nbytes)


@pytest.mark.parametrize("name", ["levels", "full"])
def test_a_step_writes_in_place(name):
    """No copy of what is there, unless another text has taken the place."""
    cache, tensors = CACHES[name][0](), text()
    _, cache = read(cache, tensors, [9])
    token = [x[9:10] for x in tensors]
    once, twice = (cache.read(*token)[1] for _ in range(2))
    assert once._values.storage.data_ptr() == cache._values.storage.data_ptr()
    assert twice._values.storage.data_ptr() != cache._values.storage.data_ptr()


def test_a_step_multiplies_what_is_kept():
    """Multiply-adds of a decoding step, counted by torch: live keys, and all values."""
    cache, tensors = KeyCache((), (2, 2, 2), (32, 8, 4), 3, like=WIDE), text()
    for t in range(32):
        with FlopCounterMode(display=False) as counter:
            _, cache = cache.read(*(x[t : t + 1] for x in tensors))
        if t % 4:  # the first token of a block is multiplied by no matrix product
            assert counter.get_total_flops() == 2 * (cache.key_numbers + 3 * (t + 1))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KeyCache((), (2, 2), (8,), 3), "^KeyCache: every level has a rank and a block length, got 2 ranks"),
        (lambda: KeyCache((), (2, 2), (8, 3), 3), r"^KeyCache: block_lens\[1\] must divide block_lens\[0\] = 8"),
        (lambda: KeyCache((), (2,), (8,), 3, 9), r"^KeyCache: context must be ≤ block_lens\[0\] = 8, got 9"),
    ],
)
def test_sizes_that_do_not_fit(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@each_cache
def test_errors_name_the_argument(name):
    cache = CACHES[name][0](2)
    kind, (Q, K, V) = type(cache).__name__, text(2, length=4)
    before = copy.copy(cache)
    calls = {"read": lambda K, V: cache.read(Q, K, V), "append": cache.append}
    for function, call in calls.items():
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: V has shape \(2, 4, 2\), expected \(2, S, 3\)"):
            call(K, V[..., 1:])
        with pytest.raises(ShapeError, match=rf"^{kind}.{function}: K has shape \(1, 4, 6\), expected \(2, S, 6\)"):
            call(K[:1], V)
    assert vars(cache) == vars(before)


@pytest.mark.parametrize("name", ["levels", "full"])
def test_a_text_longer_than_the_context(name):
    start = CACHES[name][0]
    context, kind = start().block_lens[0], type(start()).__name__
    tensors = random_tensors([(context + 1, 6), (context + 1, 6), (context + 1, 3)])
    message = rf"{context + 1} tokens, expected at most {context}, the context of the cache"
    with pytest.raises(ShapeError, match=f"^{kind}.append: {message}"):
        start().append(*tensors[1:])
    cache = start().append(*(x[:context] for x in tensors[1:]))
    with pytest.raises(ShapeError, match=f"^{kind}.read: {message}"):
        cache.read(*(x[context:] for x in tensors))
