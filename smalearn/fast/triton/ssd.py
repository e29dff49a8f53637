"""SSD on a GPU: one program loops over the chunks of a head with the state on the chip; `programs.py` says how.

The forward is one launch. With gradients it also writes the state before every chunk; the backward is three launches,
a backward scan for the gradients of these states, one program for each chunk and head, and one for each chunk and group
of heads. On a GPU a small launch before each of the two sums up the log decays. Sequences that lie end to end are scans
of their own in the same launches. Where scans are too few to fill the GPU, each becomes two, over segments: one for
what each segment adds to the state, one from the carry-ins that follow from that.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from smalearn._operator import Operator
from smalearn.fast.groups import grouped
from smalearn.fast.triton import launch, programs, programs_backward
from smalearn.fast.triton.checks import DTYPES, check_grid, check_operands, check_triton, strided
from smalearn.fast.triton.configs import LARGEST
from smalearn.fast.triton.plan import Plan
from smalearn.linear_attention.chunked import in_chunks


def ssd_triton(
    X: torch.Tensor,
    log_a: torch.Tensor | None,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scalar state space model by Triton: the same function as `smalearn.ssd.ssd_chunked`, for a GPU.

    Two calls give the same bits. Tensors on a CPU go through Triton's interpreter, which is for learning and tests.

    Arguments, results and errors are those of `smalearn.fast.ssd`, with X in float32, float16 or, on a GPU, bfloat16, P
    and N from 1 to 256, and log_a may be None; the state is float32, Y lies in memory as X does. RuntimeError if Triton
    is missing, or does not interpret though there is no GPU.

    Cost:
        T·Q·(N·tiles + P) + 2·T·N·P multiply-adds for each head, with chunks of Q tokens (64 on large GPUs, 32 on
        others, 16 in float32) and P in tiles (64, 32 and 16); the backward T·Q·(3·N + 2·P + Q) + 5·T·N·P. It reads X,
        and B and C once for each tile, and writes Y; with gradients also T/Q states of N·P numbers, in the dtype of X.
        The backward holds as many gradients of states, and T·Q numbers of pairs of tokens.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.
    """
    check_operands("ssd_triton", X, log_a, B, C, initial_state)
    check_triton("ssd_triton", X)
    return ssd_of("on_triton", X, log_a, B, C, initial_state)


def ssd_tiles(
    X: torch.Tensor,
    log_a: torch.Tensor | None,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ssd_triton` in our Triton emulator: the same programs, on every system, to look into; slow.

    Arguments, results and errors are those of `ssd_triton`, with tensors on the CPU, float32 or float16.

    Cost:
        That of `ssd_triton`, one tile after the other in NumPy.

    Source:
        Dao and Gu 2024 (Mamba-2), section 6.

    Example:
        >>> from smalearn.fast import tile
        >>> with tile.recording() as events:
        ...     Y, state = ssd_tiles(torch.ones(64, 16), torch.zeros(64), torch.ones(64, 16), torch.ones(64, 16))
        >>> sum(event.bytes for event in events if (event.kind, event.operand) == ("store", "y"))
        4096
    """
    check_operands("ssd_tiles", X, log_a, B, C, initial_state)
    if X.device.type != "cpu" or X.dtype == torch.bfloat16:
        raise ValueError(f"ssd_tiles: X is {X.dtype} on {X.device}, expected torch.float32 or torch.float16 on cpu")
    return ssd_of("on_tiles", X, log_a, B, C, initial_state)


def triton_handles(X: torch.Tensor, B: torch.Tensor) -> bool:
    """Tell whether `ssd_triton` computes with tensors like these: on a GPU, of a dtype and sizes that it takes.

    Args:
        X: (..., T, P) inputs.
        B: (..., T, N) input maps.

    Returns:
        True if Triton is there too; nothing is imported to find out.
    """
    sizes = 1 <= X.shape[-1] <= LARGEST and 1 <= B.shape[-1] <= LARGEST
    return X.device.type == "cuda" and X.dtype in DTYPES and sizes and launch.has_triton()


class Layer(NamedTuple):
    """Operands that Mamba-2's layer adds to the programs; log_a is that of all step sizes then."""

    # step sizes, their bias and D (b, g, r, T, 1), and the gate z, like X; all but the first may be None
    operands: tuple[torch.Tensor | None, ...]
    steps: tuple[bool, float, float]  # whether step sizes go through softplus, the least and the greatest

    def constants(self, dy: torch.Tensor | None = None, gated: torch.Tensor | None = None) -> dict[str, object]:
        """Arguments of the programs, with a gradient of the outputs and where dy ∘ silu(z) goes, or without."""
        return {"layer": tuple(map(strided, (*self.operands, dy, gated))), "steps": self.steps}


def ssd_of(run, X, log_a, B, C, initial_state=None, borders=None):
    """SSD by programs, with gradients; the operands are those of `ssd_triton`, and checked.

    `run` names the function of `launch` that runs programs, a key of `OPERATORS`. Where sequences lie end to end,
    `borders` says where each begins and the last ends, and states are (..., sequences·P, N).
    """
    operands, restore = grouped(X, log_a, B, C, initial_state)
    operator = OPERATORS[run]
    check_grid(operator.name, operands[0], 1 if borders is None else len(borders) - 1)
    return restore(*operator(*operands, settings=tuple(borders or ())))


def _operator(name, run):
    """The operator whose programs a function of `launch` runs; its settings are the borders."""

    def forwards(tensors, settings, keep):
        results = forward(getattr(launch, run), _plan(tensors, settings), *tensors, keep=keep)
        return [x for x in results if x is not None]

    def backwards(gradients, tensors, kept, settings, needs):
        dY, dstate = gradients
        dY = tensors[0].new_zeros(()).expand(tensors[0].shape) if dY is None else dY
        return backward(getattr(launch, run), _plan(tensors, settings), *tensors, *kept, dY, dstate)

    return Operator(
        name, forwards, backwards, _shapes, readable, (5, 2), kept_from=2, instead="smalearn.ssd.ssd_chunked"
    )


def _plan(tensors, settings):
    """Plan of the programs for X, log_a, B, C and an initial state."""
    return Plan(tensors[0], tensors[2], list(map(int, settings)) or None)


def _shapes(tensors, settings, keep):
    """Tensors like those of `forward`."""
    X, plan = tensors[0], _plan(tensors, settings)
    state = X.new_empty(*X.shape[:3], plan.sequences * X.shape[4], plan.state, dtype=torch.float32)
    return [torch.empty_like(X), state, *([plan.states_of_chunks(X)] if keep else [])]


def readable(tensors: Sequence[torch.Tensor | None], settings: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """The readable form for one sequence after the other."""

    def scan(X, log_a, B, C, H):
        return in_chunks(C, B, X, log_a, H)

    return by_sequence(scan, *tensors, list(map(int, settings)) or None)


def by_sequence(scan, X, log_a, B, C, states, borders):
    """Scan one sequence after the other: scan(X, log_a, B, C, state), of states (..., sequences·P, N) each its own."""
    borders = borders or [0, X.shape[-2]]
    states = [None] * (len(borders) - 1) if states is None else states.unflatten(-2, (len(borders) - 1, -1)).unbind(-3)
    outputs, ends = [], []
    for (start, end), H in zip(itertools.pairwise(borders), states, strict=True):
        now = slice(start, end)
        one = None if log_a is None else log_a[..., now]
        Y, H = scan(X[..., now, :], one, B[..., now, :], C[..., now, :], H)
        outputs.append(Y)
        ends.append(H)
    return (outputs[0], ends[0]) if len(ends) == 1 else (torch.cat(outputs, -2), torch.cat(ends, -2))


OPERATORS = {"on_triton": _operator("ssd_triton", "on_triton"), "on_tiles": _operator("ssd_tiles", "on_tiles")}


def forward(run, plan, X, log_a, B, C, initial_state, keep=False, layer=None, dy=None, gated=None):
    """Y, the last states (b, g, r, sequences·P, N), and if `keep` the state before every chunk, else None.

    With a layer Y is its output, or with dy, the gradient of that, the gradient of z; then `gated` is overwritten with
    dy ∘ silu(z).
    """
    log_a, initial_state = _column(log_a, X), plan.by_sequence(initial_state)
    sums = sums_of(run, log_a, **plan.sums)
    Y, final = torch.empty_like(X), plan.new_states(X)
    states = plan.states_of_chunks(X) if keep else None
    extras = {"sums": sums} | (layer.constants(dy, gated) if layer else {})

    def scan(Y, initial, states, totals=None):
        operands = X, log_a, B, C, Y, _turned(initial), _turned(final), states
        more = extras | {"totals": strided(totals)}
        run(programs.ssd_forward, plan.scans, *map(strided, operands), *plan.numbers, **plan.scan, **more)

    if plan.cut:
        totals = plan.new_totals(X)
        scan(None, None, None, totals)
        initial_state = carried(run, plan, final, totals, initial_state)
    scan(Y, initial_state, states)
    return Y, plan.joined(final).contiguous(), states


def backward(run, plan, X, log_a, B, C, initial_state, states, dY, dstate, layer=None):
    """Gradients of X, log_a, B, C and the initial state; with a layer dY is that of what its gate multiplies.

    With a layer dlog_a is that of the log decays of all step sizes, in float32, and two more follow, (b, g, r, T, 1) in
    float32: those of the step sizes through their products with X, and of D by token.
    """
    column, dstate = _column(log_a, X), plan.by_sequence(dstate)
    pairs = X.new_empty(*X.shape[:4], plan.chunk_len)
    dX, dB, dC, dstates = map(torch.empty_like, (X, B, C, states))
    dlog_a, dinitial = None if log_a is None else torch.empty_like(log_a), plan.new_states(X)
    sums, extras, more = {"sums": sums_of(run, column, **plan.sums)}, {}, ()
    if layer:
        dlog_a, *more = (X.new_empty(*X.shape[:4], 1, dtype=torch.float32) for _ in range(3))
        dlog_a, extras = dlog_a[..., 0], layer.constants()

    def scan(dfinal, dstates, totals=None):
        operands = dY, column, C, _turned(dfinal), _turned(dinitial), dstates
        constants = plan.scan | sums | {"totals": strided(totals)}
        run(programs_backward.ssd_backward_states, plan.scans, *map(strided, operands), *plan.numbers, **constants)

    if plan.cut:
        totals = plan.new_totals(X)
        scan(None, None, totals)
        dstate = carried(run, plan, dinitial, totals, dstate, back=True)
    scan(dstate, dstates)
    if X.shape[3]:  # else there is no sum to read
        inside = tuple(map(strided, (X, column, B, C, dY, states, dstates)))
        outputs = map(strided, (dX, None if dlog_a is None else dlog_a[..., None], pairs))
        gradients = dict(zip(("ddt", "dskip"), map(strided, more), strict=False))
        numbers = *plan.numbers[:2], X.shape[1]
        inputs, maps = plan.inputs | sums | extras | gradients, plan.maps | sums | extras
        run(programs_backward.ssd_backward_inputs, plan.pieces, *inside, *outputs, *numbers, **inputs)
        outputs = map(strided, (pairs, dB, dC))
        run(programs_backward.ssd_backward_maps, plan.groups, *inside, *outputs, *numbers[:2], **maps)
    dinitial = None if initial_state is None else plan.joined(dinitial, back=True).to(initial_state.dtype)
    return dX, dlog_a, dB, dC, dinitial, *more


def carried(run, plan, added, totals, outer, back=False):
    """The state before every segment, from what each adds; with `back` the gradient of that after it."""
    before = torch.empty_like(added)
    operands = map(strided, (_turned(added), totals, _turned(outer), _turned(before)))
    numbers = plan.places.ends, plan.numbers[1], plan.segments, plan.sequences
    constants = {"sizes": plan.scan["sizes"], "back": back, "num_warps": 4, "num_stages": 1}
    run(programs.ssd_carry, plan.carries, *operands, *numbers, **constants)
    return before


def sums_of(run, log_a, chunk_len, chunks=None):
    """Running sums of log decays (b, g, r, T, 1) by chunk, as programs take them; None where each sums for itself.

    `run` is the function of `launch` that runs programs; `chunks` says where chunks begin, as for `ssd_sums`.
    """
    if not sums_beforehand(log_a.device):
        return None
    batch, groups, heads, length, _ = log_a.shape
    sums = [log_a.new_empty(log_a.shape, dtype=torch.float32) for _ in range(2)]
    grid = (-(-length // chunk_len) if chunks is None else len(chunks)) * groups * heads, batch
    constants = {"chunk_len": chunk_len, "chunks": chunks, "num_warps": 2, "num_stages": 1}
    run(programs.ssd_sums, grid, *map(strided, (log_a, *sums)), length, heads, groups, **constants)
    return tuple(map(strided, sums))


def sums_beforehand(device: torch.device) -> bool:
    """Tell whether log decays are summed in a launch of their own: where programs are compiled, see `programs.py`."""
    return device.type == "cuda"


def _column(log_a, X):
    """log_a (b, g, r, T, 1), zeros without memory if None."""
    return X.new_zeros(()).expand(*X.shape[:4], 1) if log_a is None else log_a[..., None]


def _turned(state):
    """A state (b, g, r, P, N) seen as the programs hold it, (b, g, r, N, P)."""
    return None if state is None else state.mT
