"""SSD and the delta rule of one sequence that lies on several devices, each of which has a slice of it.

To its carry-in H a slice is one big step, whatever its length: the carry-out is H' = H Φ + E, where E is the carry-out
if it begins with zeros. For SSD the transition Φ is a number, the product of the decays. For the delta rule it is a
matrix (N, N), the product of all diag(exp(log_a_t)) (I - β_t k_t k_t^T): what the rule itself makes of the state I if
every value is 0. So each rank

1. computes Φ and E of its slice, sends both to all, and meanwhile computes its outputs from the state zero;
2. combines what comes from its left, H_(r+1) = H_r Φ_r + E_r: an exclusive scan over ranks;
3. adds what its carry-in contributes: to y_t, H times what came of q_t on the way back to the border.

Backward the same from right to left: the gradients of the carry-ins travel while that of the outputs is computed, and
what the carry-out of rank r is worth is G_(r+1) = dH_(r+1) + G_(r+2) Φ_(r+1)^T.

The functions take a `DeviceMesh` of one axis, as torch's `context_parallel` does: `init_device_mesh("cuda", (8,),
mesh_dim_names=("cp",))`, or `mesh["cp"]` of one that has an axis of data, too. Its backend carries the tensors, "gloo"
those of a CPU and "nccl" those of NVIDIA GPUs; every exchange is `torch.distributed.all_gather`. Torch can compare
what the ranks are about to send: `TORCH_DISTRIBUTED_DEBUG=DETAIL` says which of them differs in shape or dtype.

When does a split pay? However long a slice is, its step (Φ, E) has as many numbers as the keys and values of a few
tokens: with P = 64 and N = 128 of 43, for the delta rule of 128. With 24 such heads on 8 GPUs that do 5e13
multiply-adds a second, SSD forward is faster than on one of them from 37,000 tokens on if 12.5 GB/s come into each, and
from 2,300 on at 400 GB/s. The delta rule, split, does 3.2 times the work: on fewer than 4 ranks it is never faster,
and only memory is saved. What an all-gather moves grows with the ranks; a tree of messages has steps to compose, but on
64 ranks moves a tenth. All this is counted, for up to 1,024 ranks, by `python -m experiments.split_sequence --plan`;
put numbers of your own into `split_plan.PLACES`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from smalearn import fast
from smalearn._checks import check_count, check_dtypes, check_shapes, check_ssd
from smalearn.fast.ranks import MATRIX, SCALAR, Scan, group_of
from smalearn.linear_attention.delta import check_delta
from smalearn.masks.decay import since_start, until_end

__all__ = ["Traffic", "delta_rule", "ssd", "traffic", "window"]


class Traffic(NamedTuple):
    """Bytes that one rank receives from all others, in `ssd` or `delta_rule` and in its backward."""

    forward: int
    backward: int


def ssd(
    X: torch.Tensor,
    log_a: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    mesh: DeviceMesh | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`smalearn.fast.ssd` of a sequence whose slices lie on the ranks of a mesh, in the order of the ranks.

    H_t = exp(log_a_t) H_(t-1) + X_t B_t^T, Y_t = H_t C_t, where t runs through all slices.

    All ranks call it, with the same shapes but for T and the same dtypes. If one of them needs gradients all do, of the
    same arguments, and all call backward, from losses that together are the loss: a rank that has none of its own takes
    `0 * Y.sum()`. Two calls give the same bits. A NaN or infinity in a slice may reach all outputs of later ones.

    Args:
        X: (..., T, P) this rank's slice of the inputs. T may differ from rank to rank, and be 0.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, dtype of X or float32.
        B: (..., T, N). Heads that share B and C have an axis of size 1, or none, there.
        C: (..., T, N).
        initial_state: on rank 0 the state (..., P, N) before the first token of all, dtype of X or float32; zeros if
            None, as it has to be on the other ranks.
        mesh: of one axis, along which the sequence is split; all ranks if None.

    Returns:
        Y (..., T, P), dtype of X, of this slice, and the state after this slice (..., P, N), float32 if X is half
        precision: the last rank has that of the whole sequence.

    Raises:
        ShapeError: an axis has two sizes, or the initial state has an axis that no other argument has.
        ValueError: a dtype or device differs, log_a (on a CPU) is positive, a rank other than 0 has an initial state,
            or the mesh has several axes.
        RuntimeError: there is no process group, or this process is not in the mesh; a second derivative is asked for;
            or another rank has died or does not take part. "gloo" notices a death at once, and silence after the
            timeout of the group, which is yours to set: `init_process_group(timeout=timedelta(seconds=20))`, where
            torch's own is half an hour. The group is of no use after that.

    Cost:
        That of `fast.ssd`, and 2·T·N·P multiply-adds for each head. `traffic` says how many bytes: as many for a slice
        of a million tokens as for one of ten, on their way while `fast.ssd` runs.

    Source:
        Dao and Gu 2024 (Mamba-2), section 8.2, where the states are sent from rank to rank.
    """
    function = "distributed.ssd"
    group = group_of(function, mesh, initial_state)
    check_dtypes(function, {"log_a": log_a})
    check_ssd(function, X, log_a, B, C, initial_state)
    wide = torch.promote_types(X.dtype, torch.float32)
    log_a_column = log_a.double()[..., None]  # a reset in a sum costs the others no digit
    scan = Scan(function, SCALAR, log_a_column.sum(-2, keepdim=True).exp().to(wide), group)
    weighted = X * until_end(log_a_column).exp().to(wide)
    left = scan.send(torch.einsum("...tp, ...tn -> ...pn", weighted, B.to(wide)), initial_state)
    Y, _ = fast.ssd(X, log_a, B, C)
    carry_in, carry_out = scan.receive(left)
    reads = torch.einsum("...tn, ...pn -> ...tp", C.to(wide), carry_in)
    return (Y + reads * since_start(log_a_column).exp().to(wide)).to(X.dtype), carry_out


def delta_rule(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    beta: torch.Tensor,
    log_a: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    mesh: DeviceMesh | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`smalearn.fast.delta_rule` of a sequence whose slices lie on the ranks of a mesh, in the order of the ranks.

    H' = exp(log_a_t) ∘ H_(t-1), H_t = H' + β_t (v_t - H' k_t) k_t^T, y_t = H_t q_t, where t runs through all slices.
    What `ssd` says of calls, of gradients, of the mesh and of errors holds here too.

    Args:
        Q: (..., T, N) this rank's slice of the queries. T may differ from rank to rank, and be 0.
        K: (..., T, N) keys, of norm 1 as a rule.
        V: (..., T, P) values.
        beta: (..., T) strength of the correction, from 0 to 2; dtype of Q or float32.
        log_a: (..., T) log decay ≤ 0, −inf for a reset, or (..., T, N), one per key feature, or None.
        initial_state: on rank 0 the state (..., P, N) before the first token of all; None on the other ranks.
        mesh: of one axis, along which the sequence is split; all ranks if None.

    Returns:
        Y (..., T, P), dtype of Q, of this slice, and the state after this slice (..., P, N), float32 if Q is half
        precision.

    Raises:
        ShapeError: an axis has two sizes, log_a.ndim matches no supported gate shape, or the initial state has an axis
            that no other argument has.
        ValueError: a dtype or device differs or is complex, (on a CPU) log_a is positive or beta not in [0, 2], a rank
            other than 0 has an initial state, or the mesh has several axes.
        RuntimeError: as in `ssd`.

    Cost:
        That of `fast.delta_rule` twice, with P values and with N, and T·N·P multiply-adds for each head. The transition
        is on its way while the values are run; what they add has nothing left to travel under.

    Source:
        Yang et al. 2024 (DeltaNet), whose chunks combine in this way.
    """
    function = "distributed.delta_rule"
    group = group_of(function, mesh, initial_state)
    check_delta(function, Q, K, V, beta, log_a, initial_state)
    wide = torch.promote_types(Q.dtype, torch.float32)
    one = torch.eye(K.shape[-1], dtype=wide, device=K.device)
    reads, transition = fast.delta_rule(Q, K, torch.zeros_like(K), beta, log_a, one)
    scan = Scan(function, MATRIX, transition, group)
    Y, left = fast.delta_rule(Q, K, V, beta, log_a)
    carry_in, carry_out = scan.receive(scan.send(left, initial_state))
    return (Y + torch.einsum("...tn, ...pn -> ...tp", reads.to(wide), carry_in)).to(Q.dtype), carry_out


def window(x: torch.Tensor, length: int, mesh: DeviceMesh | None = None) -> torch.Tensor:
    """The last tokens before this rank's slice, for a causal convolution: zeros before the first token of all.

    They may come from several ranks, where slices are shorter than the window. What `ssd` says of calls, of gradients
    and of the mesh holds here too.

    Args:
        x: (..., T, D) this rank's slice. T may differ from rank to rank, and be 0.
        length: of the window, K - 1 for a convolution of K tokens.
        mesh: of one axis, along which the sequence is split; all ranks if None.

    Returns:
        (..., length, D), dtype of x.

    Raises:
        ShapeError: x has no axis of time.
        ValueError: length is not an integer ≥ 0, or the mesh has several axes.
        RuntimeError: as in `ssd`.

    Cost:
        From every other rank a window and length² numbers, and a window in the backward.
    """
    function = "distributed.window"
    group = group_of(function, mesh)
    check_dtypes(function, {"x": x})
    check_shapes(function, {"x": (x, "td")})
    check_count(function, "length", length, 0)
    tokens = x.shape[-2]
    # The window, too, is a state (D, length): T tokens shift it by T places and fill these.
    kept = max(0, length - tokens)
    scan = Scan(function, MATRIX, torch.diag(x.new_ones(kept), kept - length), group)
    left = F.pad(x, (0, 0, length, 0))[..., tokens:, :].mT
    return scan.receive(scan.send(left))[0].mT


def traffic(ranks: int, heads: int, head_dim: int, state: int, transition: int = 1, itemsize: int = 4) -> Traffic:
    """Count the bytes that a rank receives in `ssd` or `delta_rule`.

    forward = (ranks - 1)·heads·(P·N + transition)·itemsize, backward = (ranks - 1)·heads·P·N·itemsize. T is not in it.

    Args:
        ranks: ≥ 1, in the mesh.
        heads: how many states there are, the batch included.
        head_dim: P.
        state: N.
        transition: numbers in it, 1 for `ssd` and N² for `delta_rule`.
        itemsize: bytes of a number of the state: 8 for float64, 4 for all others.

    Raises:
        ValueError: an argument is not an integer ≥ 1.

    Example:
        >>> traffic(ranks=8, heads=24, head_dim=64, state=128)
        Traffic(forward=5505696, backward=5505024)
    """
    sizes = {"ranks": ranks, "heads": heads, "head_dim": head_dim, "state": state}
    for name, size in (sizes | {"transition": transition, "itemsize": itemsize}).items():
        check_count("traffic", name, size)
    number = (ranks - 1) * heads * itemsize
    return Traffic(number * (head_dim * state + transition), number * head_dim * state)
