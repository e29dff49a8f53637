"""The ladder of your models: loss, time and memory of each mixer that you trained, kept in `ladder.json`.

Every mixer goes into the same model (`smalearn.models.minimal`) and learns the same text, Python's own documentation.
Runs are appended; the newest of each name is drawn. One seed: it does not rank mixers that are 0.01 bits apart.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from types import CodeType
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from smalearn.course.plots.style import GREY, INK
from smalearn.data import Pieces, load_text, split_text
from smalearn.models.minimal import WIDTH, TinyLM, write
from smalearn.train import Plan, train, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["climb", "draw", "rungs"]

LENGTH, BATCH, STEPS = 128, 8, 500
FEW = 200  # steps after which a model writes hardly any words
RECORDED = """The () provinglex), the (garchard, in the following level number of the operandard of -les a newlibous, \
and the result is defined, and the current function, the exception is a contain"""
TESTED = 256  # tokens of a text that is tested
POSITIONS = 100, 2000  # at which a token is timed
REPEATS = 7
PLACES = [(x, y) for y in (0, 24, -24, 48, -48, 72, 96, 120, 144, 168) for x in (10, -10, 0)]  # of a name, in points


@functools.cache
def _text() -> tuple[Pieces, torch.Tensor, torch.Tensor]:
    """Pieces of words, and the text in them: what is learned, and what is not seen."""
    text = load_text("python prose").text
    pieces = Pieces(text)
    return pieces, *split_text(pieces.encode(text))


def climb(
    name: str, mixer: Callable, step: Callable | None = None, seconds: float = 40, file: Path | None = None
) -> TinyLM:
    """Train a model with your mixer, let it write, measure it, and put it on the ladder.

    Args:
        name: of the rung.
        mixer: (Q, K, V) -> Y over all tokens, as `smalearn.models.minimal` says.
        step: the same for one token, from a state; None to keep all tokens.
        seconds: it trains no longer, but for three steps at least; with three, and a tenth of the tokens before the
            one that is timed, where SMALEARN_QUICK is set.
        file: where the runs are kept; `ladder.json` beside your chapters where None.

    Returns:
        The model.

    Raises:
        ValueError: the ladder's file is not one.
    """
    file = file or _file()
    earlier = rungs(file)  # a faulty file is known before it takes half a minute
    print("Measuring this machine…", end=" ", flush=True)
    pieces, _, unseen = _text()
    torch.manual_seed(0)
    model = TinyLM(mixer, len(pieces), step)
    quick = bool(os.environ.get("SMALEARN_QUICK"))
    steps = 3 if quick else _affordable(model, _batch, seconds)
    print(f"{steps} of {STEPS} steps, in {seconds:g} seconds at most.")
    began = time.perf_counter()
    done = _train(model, steps, began + seconds)
    rung = {"name": name, "steps": done, "seconds": round(time.perf_counter() - began, 1)}
    rung |= {"bits": _bits(model, unseen, pieces), "step": step is not None, "ours": _ours(model), "milliseconds": {}}
    for position in POSITIONS:
        milliseconds, rung["bytes"] = _decoding(model, unseen[: position // 10 if quick else position])
        rung["milliseconds"][position] = milliseconds
    text = json.dumps([*earlier, rung], indent=1)
    write_atomically(file, lambda opened: opened.write(text.encode()))
    print(f"{name}: {rung['bits']:.2f} bits per character after {done} steps. It writes:\n{_written(model, 60)}")
    if done < FEW:
        print(f"\nSo few steps teach it little. After 500, attention wrote on our machine:\n{RECORDED}")
    return model


def rungs(file: Path | None = None) -> list[dict]:
    """The runs on the ladder, in the order in which they were made."""
    file = file or _file()
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [one | {"milliseconds": {int(at): ms for at, ms in one["milliseconds"].items()}} for one in found]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"ladder: {file} is not a ladder; move it away to begin another") from None


def draw(file: Path | None = None) -> Axes:
    """Draw a rung for each mixer's newest run: across its bits, up the time of a token after few and after many."""
    import matplotlib.pyplot as plt

    made = rungs(file)
    newest = {one["name"]: one for one in made}
    ax = plt.subplots(figsize=(7, 4.4))[1]
    ax.set(
        xlabel="bits per character of an unseen text: fewer are better",
        ylabel="milliseconds for one more token",
        yscale="log",
    )
    ax.margins(0.3, 0.2)
    ax.minorticks_off()
    ax.yaxis.set_major_formatter("{x:g}")
    for number, rung in enumerate(newest.values()):
        x, times, colour = rung["bits"], [*rung["milliseconds"].values()], f"C{number}"
        ax.plot([x, x], times, color=colour, label=rung["name"])
        ax.scatter([x, x], times, 50, ["white", colour], edgecolors=colour, linewidths=1.5, zorder=3)
    if made:
        last = made[-1]
        ax.scatter(last["bits"], max(last["milliseconds"].items())[1], 200, "none", edgecolors=INK, zorder=3)
        keys = [ax.scatter([], [], *key, edgecolors=INK) for key in ((50, "white"), (50, INK), (200, "none"))]
        few, many = (f"after {position:,} tokens" for position in POSITIONS)
        title = "one seed each:\na tenth of a bit decides nothing"
        ax.legend(keys, [few, many, "your newest"], title=title, fontsize=8, title_fontsize=8, alignment="left")
        _name(ax, newest.values())
    return ax


def _name(ax: Axes, shown: Iterable[dict]) -> None:
    """Write beside each rung what it is, at the first place where that covers nothing."""
    from matplotlib.text import Text

    ax.figure.draw_without_rendering()  # from here on it is known where everything stands
    taken = [ax.get_legend().get_window_extent(), *(line.get_window_extent().padded(7) for line in ax.lines)]
    for rung in shown:
        facts = [rung["name"], f"keeps {rung['bytes'] / 1000:,.0f} kB"]
        facts += [f"{rung['steps']} steps"] * (rung["steps"] != STEPS)
        if ours := rung.get("ours"):
            facts += ["our solution", f"of {', '.join(ours)}"]
        at = rung["bits"], max(rung["milliseconds"].items())[1]
        for number, place in enumerate([*PLACES, PLACES[0]]):
            text = ax.annotate(
                "\n".join(facts),
                at,
                place,
                textcoords="offset points",
                ha="left" if place[0] > 0 else "right" if place[0] < 0 else "center",
                va="center",
                fontsize=8,
                arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkB": 6},
            )
            text.get_window_extent()  # moves it to its place
            box = Text.get_window_extent(text).padded(3)  # without the arrow
            inside = ax.bbox.x0 < box.x0 and box.x1 < ax.bbox.x1 and ax.bbox.y0 < box.y0
            if (inside and not any(map(box.overlaps, taken))) or number == len(PLACES):
                taken.append(box)
                break
            text.remove()


def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a step learns from: texts, and the token that follows each of theirs."""
    known = _text()[1]
    start = torch.randint(len(known) - LENGTH, (BATCH, 1), generator=torch.Generator().manual_seed(number))
    text = known[start + torch.arange(LENGTH + 1)]
    return text[:, :-1], text[:, 1:]


def _train(model: TinyLM, steps: int, deadline: float) -> int:
    """Train for so many steps, or fewer; what it writes after 1 % and 10 % of them is printed."""

    def task(number):
        if number >= 3 and time.perf_counter() > deadline:  # the machine slowed down
            raise KeyboardInterrupt  # as its stop button does: `train` returns what it has
        if number and number in (steps // 100, steps // 10):
            print(f"After {number} step{'s' * (number > 1)} it writes: {' '.join(_written(model, 20).split())}")
        return _batch(number)

    plan = Plan(steps, lr=0.012, every=STEPS)
    return len(train(model, task, plan)[1].losses)


def _written(model: TinyLM, length: int) -> str:
    pieces = _text()[0]
    return "The" + pieces.decode(torch.tensor(list(write(model, pieces.encode("The"), length))))


def _file() -> Path:
    """`ladder.json` in the folder of the chapters; elsewhere while chapters are tested."""
    if os.environ.get("SMALEARN_QUICK"):
        return Path(tempfile.gettempdir()) / f"ladder-{os.getpid()}.json"
    here = Path.cwd()
    return (here.parent if here.name == "appendix" else here) / "ladder.json"


def _ours(model: TinyLM) -> list[str]:
    """The exercises whose reference solution, which `check` handed back, the mixers and steps call."""
    called = [f for block in model.blocks for f in (block.mixer, block.step_function) if inspect.isfunction(f)]
    notebook = {id(f.__globals__) for f in called}
    for function in called:  # it grows: what is written in the notebook calls other functions
        if id(function.__globals__) in notebook:
            named = map(function.__globals__.get, _names(function.__code__))
            called += [f for f in named if inspect.isfunction(f) and f not in called]
    return sorted({f.__smalearn_reference__ for f in called if hasattr(f, "__smalearn_reference__")})


def _names(code: CodeType) -> Iterator[str]:
    """The global names in a function's code, and in the comprehensions and functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _affordable(model: TinyLM, task: Callable, seconds: float) -> int:
    """How many steps fit into the time: the median of three that are measured; their gradients are thrown away."""
    times = []
    for number in range(3):
        began = time.perf_counter()
        inputs, targets = task(number)
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        times.append(time.perf_counter() - began)
    model.zero_grad()
    return max(3, min(STEPS, int(seconds / (1.2 * median(times)))))  # 1.2: the optimiser


@torch.inference_mode()
def _bits(model: TinyLM, unseen: torch.Tensor, pieces: Pieces) -> float:
    """Bits for each CHARACTER of a text that was not learned: comparable between vocabularies, unlike bits a token."""
    texts = unseen[: len(unseen) // TESTED * TESTED].view(-1, TESTED)
    nats = sum(model.loss(text[None]).item() * (TESTED - 1) for text in texts)
    return nats / len("".join(pieces.decode(text[1:]) for text in texts)) / math.log(2)


@torch.inference_mode()
def _decoding(model: TinyLM, tokens: torch.Tensor) -> tuple[float, int]:
    """Median milliseconds of one more token after these, and the bytes that are kept of them."""
    memory = _read(model, tokens)
    model.step(tokens[-1:], memory)  # the first one allocates
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        model.step(tokens[-1:], memory)
        times.append(time.perf_counter() - began)
    return 1e3 * median(times), sum(map(_bytes, (state for _, state in memory)))


def _read(model: TinyLM, tokens: torch.Tensor) -> list:
    """What a model keeps of tokens: step by step, or all at once where it keeps them all."""
    memory, X = [], model.embed(tokens)[None]
    if model.blocks[0].keeps_all:
        for block in model.blocks:
            seen = F.pad(block.norm1(X), (0, 0, WIDTH - 1, 0))
            *parts, gates = block.operands(seen, len(tokens))
            memory.append((seen[:, -WIDTH + 1 :], [*parts, *gates.values()]))
            X = block(X)
        return memory
    for token in tokens:
        _, memory = model.step(token[None], memory)
    return memory


def _bytes(state: object) -> int:
    return state.nbytes if torch.is_tensor(state) else sum(map(_bytes, state))
