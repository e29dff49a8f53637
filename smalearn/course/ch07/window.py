"""Exercise 7.2: a convolution that can be resumed."""

import itertools

import torch

from smalearn.course.exercises.core import exercise
from smalearn.course.exercises.way import Way


def convolve(x, weight, window):
    """Every channel a weighted sum of its last K tokens: y (T, D), and the next window (K - 1, D).

    Write the causal convolution of every channel with its own taps, and return the next window.

    Hint: Put the window before the text. Then every token has K - 1 tokens before it, and nothing is special.

    Hint: With the window in front the text is `longer`, and tap k meets longer[k], longer[k + 1], …: T of its rows.

    Hint: y is `sum(tap * longer[k : k + len(x)] for k, tap in enumerate(weight))`. The next window is what stands at
    the END of the longer text, K - 1 rows: at which row do they begin, so that for K = 1 there are none?

    Insight: The window is the convolution's memory: a block has two, a window of K - 1 tokens, and a state of P·N
    numbers for each head.
    """
    longer = torch.cat([window, x])
    y = sum(tap * longer[k : k + len(x)] for k, tap in enumerate(weight))
    return y, longer[len(x) :]


def _convolve_cases(randn):
    """Length, channels, taps, and whether there was a text before."""
    for length, dim, taps, past in [(2, 1, 1, 0), (3, 1, 2, 0), (1, 2, 3, 1), (4, 2, 3, 1), (5, 3, 4, 0), (2, 3, 4, 1)]:
        yield randn(length, dim), randn(taps, dim), past * randn(taps - 1, dim) + 0.0


def _as_many_channels_as_tokens(randn, length):
    return randn(length, length), randn(3, length), randn(2, length)


def _convolve_loop(x, weight, window):
    """One number after the other, each with the tokens that it sees."""
    taps, seen = len(weight), torch.cat([window, x])
    y = torch.zeros_like(x)
    for t in range(len(x)):
        for d in range(x.shape[1]):
            for k in range(taps):
                y[t, d] += weight[k, d] * seen[t + k, d]
    return y, seen[len(seen) - taps + 1 :]


def _of_outputs(x, weight, window):
    rows = []
    for token in x:
        rows.append((weight * torch.cat([window, token[None]])).sum(0))
        window = torch.cat([window, rows[-1][None]])[1:]
    return torch.stack(rows), window


def two_at_once(likely, *parts):
    """Two slips at once, by their sentences: of each part the likeliest, which stand first."""
    for first, second in itertools.combinations(parts, 2):
        pairs = itertools.product(list(first.items())[:likely], list(second.items())[:likely])
        yield from ((f"{one}. And {two}", f"{edit} ; {other}") for (one, edit), (two, other) in pairs)


WRONG_SUMS = {
    "your taps run the wrong way: the LAST row of the weights belongs to the token itself, "
    "the first to the one K - 1 back": "enumerate(weight) → enumerate(weight.flip(0))",
    "you put zeros before the text where the window belongs: "
    "a text in two parts must give what it gives in one": "tap * longer[ → tap * torch.cat([0 * window, x])[",
    "you add up the channels: here each channel sees itself alone (depthwise); "
    "W_in has mixed them before": "return y, → return y.sum(1, keepdim=True).expand_as(y),",
    "your y goes through a SiLU: "
    "it comes after the convolution, outside": "return y, → return torch.nn.functional.silu(y),",
    "the last tap is missing, weight[K - 1]: "
    "it belongs to the token itself": "enumerate(weight) → enumerate(weight[:-1])",
    "token t sees the tokens after it: the convolution must look back, "
    "or the model reads the answer": "tap * longer[ → tap * torch.cat([x, 0 * window])[",
    "each of your channels sees the sum of all of them: "
    "here it sees itself alone (depthwise)": "tap * longer[ → tap * longer.sum(1, keepdim=True)[",
    "you turn the window round: it stands in the order of the text, "
    "oldest first": "tap * longer[ → tap * torch.cat([window.flip(0), x])[",
    "all your channels use the taps of channel 0: each has its own": "tap * → tap[0] *",
    "your taps are added up over the channels: each channel has its own": "tap * → tap.sum() *",
    "your taps stand around the token: the last belongs to the token itself, "
    "none to what comes after": "tap * longer[ → tap * torch.cat([longer, 0 * window])[len(weight) // 2 :][",
    "you add up the taps, then the tokens, and multiply the sums: "
    "each token meets its own tap": "tap * → weight.sum(0) *",
    "your shift is circular: the end of the text enters at its beginning, "
    "where the window belongs": "longer[k : k + len(x)] → x.roll(len(window) - k, 0)",
    "your y has the token itself added: its weight is the last tap": "return y, → return y + x,",
    "your taps go through a softmax: they are weights as they are, "
    "of any sign": "enumerate(weight) → enumerate(weight.softmax(0))",
    "your y is one tap times the token itself, the first: "
    "K tokens have a tap each": "return y, → return weight[0] * x,",
    "your y has rows for the tokens of the window, too: "
    "they were answered before": "longer[k : k + len(x)] → torch.cat([0 * window, longer])[k : k + len(longer)]",
    "you pad with zeros beside the window: the window is the padding, and nothing comes after the "
    "text": "longer[k : k + len(x)] → torch.cat([0 * window, longer, 0 * window])[k : k + len(longer) + len(window)]",
}
WRONG_WINDOWS = {
    "your next window forgets the old one: after a text shorter than K - 1, and after every decoded token, "
    "some of the old window is still in sight": "longer[len(x) :] → torch.cat([0 * window, x])[len(x) :]",
    "your next window is cut from the text alone: in a shorter text some of the old window belongs to it, "
    "and for K = 1 `[-0:]` is everything": "longer[len(x) :] → x[-len(window) :]",
    "your next window is cut from the text alone: after a text shorter than K - 1 it is too short, "
    "for some of the old window belongs to it": "longer[len(x) :] → x[max(0, len(x) - len(window)) :]",
    "for K = 1 the next window is empty, but `[-0:]` is everything: "
    "count from the front, `[T:]`": "longer[len(x) :] → longer[-len(window) :]",
    "you return the window that came in: it must move on to the last K - 1 tokens": "longer[len(x) :] → window",
    "your next window has K tokens: K - 1 are enough, "
    "for the last tap waits for the token that comes": "longer[len(x) :] → longer[-len(weight) :]",
    "your next window has 3 tokens whatever K is: "
    "K is the number of rows of the weights": "longer[len(x) :] → longer[-3:]",
    "your next window is the whole text: the last K - 1 tokens are enough": "longer[len(x) :] → longer",
    "your next window stops before the last token: "
    "it ends where the text ends": "longer[len(x) :] → longer[len(x) - 1 : -1]",
    "your next window begins one token after the old one, however long the text is: "
    "it ends where the text ends": "longer[len(x) :] → longer[1 : len(weight)]",
}

exercise(
    "7.2",
    "A convolution that can be resumed",
    claim="004:fig-mamba2-block",
    level=2,
    minutes=10,
    cases=_convolve_cases,
    oracle=_convolve_loop,
    way=Way(case=_as_many_channels_as_tokens, loops=1, axis="T = channels"),
    wrong=WRONG_SUMS
    | WRONG_WINDOWS
    | dict(two_at_once(5, WRONG_SUMS, WRONG_WINDOWS))
    | {
        "your y has K - 1 rows too few: with the window in front, "
        "each of the T tokens has its K": "return y, → return torch.stack(list(y)[: max(0, len(x) - len(window))]),",
        "you put the window after the text: its tokens came before": "[window, x] → [x, window]",
        "the next window is missing: return y and the last K - 1 tokens": "return y, longer[len(x) :] → return y",
        "you take the newest token of the window first: it stands in the order "
        "of the text": "cat([window → cat([window.flip(0) ; longer[len(x) :] → longer[len(x) :].flip(0)",
        "the window stands in the order of the text, oldest first: you turn it round, "
        "and pass it on like that": "cat([window → cat([window.flip(0)",
        "your next window holds outputs: "
        "the convolution of the next token needs inputs": "longer[len(x) :] → torch.cat([window, y])[len(x) :]",
        "your next window is cut from y: it holds inputs, "
        "and after a short text some of the old window": "longer[len(x) :] → y[-len(window) :]",
        "your window keeps outputs: the tokens themselves belong there, as they came in": _of_outputs,
    },
)(convolve)
