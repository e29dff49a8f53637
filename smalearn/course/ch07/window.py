"""Exercise 7.2: a convolution that can be resumed."""

import itertools

import torch

from smalearn.course.exercises.core import exercise


def _convolve_loop(x, weight, window):
    """One number after the other, each with the tokens that it sees."""
    taps, seen = len(weight), torch.cat([window, x])
    y = torch.zeros_like(x)
    for t in range(len(x)):
        for d in range(x.shape[1]):
            for k in range(taps):
                y[t, d] += weight[k, d] * seen[t + k, d]
    return y, seen[len(seen) - taps + 1 :]


def _sums(x, weight, window):
    return convolve(x, weight, window)[0]


def _last_inputs(x, weight, window):
    return convolve(x, weight, window)[1]


def _but(y=_sums, following=_last_inputs):
    """The exercise's answer, but for y or for the next window."""
    return lambda x, weight, window: (y(x, weight, window), following(x, weight, window))


# ------------------------------------------------------------------------------------------------------- wrong windows


def _with_zeros(x, weight, window):
    """The last tokens of x alone, after zeros where there are fewer."""
    return torch.cat([torch.zeros_like(window), x])[len(x) :]


def _with_outputs(x, weight, window):
    return torch.cat([window, _sums(x, weight, window)])[len(x) :]


def _from_the_end(x, weight, window):
    """A slice [-(K - 1):], which for K = 1 is the whole text."""
    return torch.cat([window, x])[-len(window) :]


def _of_outputs(x, weight, window):
    rows = []
    for token in x:
        rows.append((weight * torch.cat([window, token[None]])).sum(0))
        window = torch.cat([window, rows[-1][None]])[1:]
    return torch.stack(rows), window


# ---------------------------------------------------------------------------------------------------------- wrong sums


def _after_zeros(x, weight, window):
    """As if there had been no text before."""
    return _sums(x, weight, torch.zeros_like(window))


def _window_after(x, weight, window):
    """Convolve the text with the window behind it."""
    length, seen = len(x), torch.cat([x, window])
    return sum(tap * seen[k : k + length] for k, tap in enumerate(weight)), seen[length:]


def _mixed(x, weight, window):
    """A full sum over the channels, the same for all."""
    y = _sums(x, weight, window)
    return y.sum(1, keepdim=True).expand_as(y).clone()


def _of_all_channels(x, weight, window):
    """Every channel's taps on the sum of all channels."""
    x, window = (part.sum(1, keepdim=True).expand_as(part) for part in (x, window))
    return _sums(x, weight, window)


def _centred(x, weight, window):
    """Half of the taps look ahead."""
    ahead = len(window) - len(window) // 2
    return _sums(torch.cat([x, torch.zeros_like(window[:ahead])]), weight, window)[ahead:]


def _backwards(x, weight, window):
    return _sums(x.flip(0), weight.flip(0), torch.zeros_like(window)).flip(0)


def _all_but_the_last_tap(x, weight, window):
    seen = torch.cat([window, x])
    return sum(weight[k] * seen[k : k + len(x)] for k in range(len(weight) - 1))


def _apart(x, weight, window):
    """The sum of the taps times the sum of the tokens."""
    seen = torch.cat([window, x])
    return torch.stack([weight.sum(0) * seen[t : t + len(weight)].sum(0) for t in range(len(x))])


def _circular(x, weight, window):
    return sum(tap * x.roll(len(window) - k, 0) for k, tap in enumerate(weight))


def _for_the_window_too(x, weight, window):
    return _after_zeros(torch.cat([window, x]), weight, window)


def _padded_too(x, weight, window):
    zeros = torch.zeros_like(window)
    return _sums(torch.cat([window, x, zeros]), weight, zeros)


def _too_few(x, weight, window):
    seen, taps = torch.cat([window, x]), len(weight)
    return torch.stack([(weight * seen[t : t + taps]).sum(0) for t in range(len(x) - taps + 1)])


def _convolve_cases(randn):
    """Length, channels, taps, and whether there was a text before."""
    for length, dim, taps, past in [(2, 1, 1, 0), (3, 1, 2, 0), (1, 2, 3, 1), (4, 2, 3, 1), (5, 3, 4, 0), (2, 3, 4, 1)]:
        yield randn(length, dim), randn(taps, dim), past * randn(taps - 1, dim) + 0.0


LIKELY = 5  # of each, the first: two slips at once are known of these
WRONG_SUMS = {
    "your taps run the wrong way: the LAST row of the weights belongs to the token itself, the first to the one K - 1 "
    "back": lambda x, weight, window: _sums(x, weight.flip(0), window),
    "you put zeros before the text where the window belongs: a text in two parts must give what it gives in one": (
        _after_zeros
    ),
    "you add up the channels: here each channel sees itself alone (depthwise); W_in has mixed them before": _mixed,
    "your y goes through a SiLU: it comes after the convolution, outside": lambda x, weight, window: (
        torch.nn.functional.silu(_sums(x, weight, window))
    ),
    "the last tap is missing, weight[K - 1]: it belongs to the token itself": _all_but_the_last_tap,
    "token t sees the tokens after it: the convolution must look back, or the model reads the answer": _backwards,
    "each of your channels sees the sum of all of them: here it sees itself alone (depthwise)": _of_all_channels,
    "you turn the window round: it stands in the order of the text, oldest first": lambda x, weight, window: _sums(
        x, weight, window.flip(0)
    ),
    "all your channels use the taps of channel 0: each has its own": lambda x, weight, window: _sums(
        x, weight[:, :1].expand_as(weight), window
    ),
    "your taps are added up over the channels: each channel has its own": lambda x, weight, window: _sums(
        x, weight.sum(1, keepdim=True).expand_as(weight), window
    ),
    "your taps stand around the token: the last belongs to the token itself, none to what comes after": _centred,
    "you add up the taps, then the tokens, and multiply the sums: each token meets its own tap": _apart,
    "your shift is circular: the end of the text enters at its beginning, where the window belongs": _circular,
    "your y has the token itself added: its weight is the last tap": lambda x, weight, window: (
        _sums(x, weight, window) + x
    ),
    "your taps go through a softmax: they are weights as they are, of any sign": lambda x, weight, window: _sums(
        x, weight.softmax(0), window
    ),
    "your y is one tap times the token itself, the first: K tokens have a tap each": lambda x, weight, window: (
        weight[0] * x
    ),
    "your y has rows for the tokens of the window, too: they were answered before": _for_the_window_too,
    "you pad with zeros beside the window: the window is the padding, and nothing comes after the text": _padded_too,
}
WRONG_WINDOWS = {
    "your next window forgets the old one: after a text shorter than K - 1, and after every decoded token, some of the "
    "old window is still in sight": _with_zeros,
    "your next window is cut from the text alone: in a shorter text some of the old window belongs to it, and for "
    "K = 1 `[-0:]` is everything": lambda x, weight, window: x[-len(window) :],
    "your next window is cut from the text alone: after a text shorter than K - 1 it is too short, for some of the "
    "old window belongs to it": lambda x, weight, window: x[max(0, len(x) - len(window)) :],
    "for K = 1 the next window is empty, but `[-0:]` is everything: count from the front, `[T:]`": _from_the_end,
    "you return the window that came in: it must move on to the last K - 1 tokens": lambda x, weight, window: window,
    "your next window has K tokens: K - 1 are enough, for the last tap waits for the token that comes": (
        lambda x, weight, window: torch.cat([window, x])[-len(weight) :]
    ),
    "your next window has 3 tokens whatever K is: K is the number of rows of the weights": (
        lambda x, weight, window: torch.cat([window, x])[-3:]
    ),
    "your next window is the whole text: the last K - 1 tokens are enough": (
        lambda x, weight, window: torch.cat([window, x])
    ),
    "your next window stops before the last token: it ends where the text ends": (
        lambda x, weight, window: torch.cat([window, x])[len(x) - 1 : -1]
    ),
    "your next window begins one token after the old one, however long the text is: it ends where the text ends": (
        lambda x, weight, window: torch.cat([window, x])[1 : len(weight)]
    ),
}


@exercise(
    "7.2",
    "A convolution that can be resumed",
    claim="004:fig-mamba2-block",
    level=2,
    minutes=10,
    cases=_convolve_cases,
    oracle=_convolve_loop,
    wrong={sentence: _but(y) for sentence, y in WRONG_SUMS.items()}
    | {sentence: _but(following=window) for sentence, window in WRONG_WINDOWS.items()}
    | {
        f"{one}. And {two}": _but(y, window)
        for (one, y), (two, window) in itertools.product(
            list(WRONG_SUMS.items())[:LIKELY], list(WRONG_WINDOWS.items())[:LIKELY]
        )
    }
    | {
        "your y has K - 1 rows too few: with the window in front, each of the T tokens has its K": _but(_too_few),
        "you put the window after the text: its tokens came before": _window_after,
        "the next window is missing: return y and the last K - 1 tokens": _sums,
        "you take the newest token of the window first: it stands in the order of the text": lambda x, weight, window: (
            _sums(x, weight, window.flip(0)),
            _last_inputs(x, weight, window.flip(0)).flip(0),
        ),
        "the window stands in the order of the text, oldest first: you turn it round, and pass it on like that": (
            lambda x, weight, window: convolve(x, weight, window.flip(0))
        ),
        "your next window holds outputs: the convolution of the next token needs inputs": _but(following=_with_outputs),
        "your next window is cut from y: it holds inputs, and after a short text some of the old window": _but(
            following=lambda x, weight, window: _sums(x, weight, window)[-len(window) :]
        ),
        "your window keeps outputs: the tokens themselves belong there, as they came in": _of_outputs,
    },
)
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
