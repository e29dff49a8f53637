"""smalearn: sequence mixers to derive, check, implement and speed up.

The package behind the notebook course of the same name. Each module is one idea; import the module, then use its
functions (`from smalearn import sma; sma.sma_quadratic(Q, K, V, L)`). Layout is `(..., T, N)` throughout: a call with
2-D tensors is the paper's equation letter for letter, and leading axes (batch, heads) broadcast.

The mathematics, in the order of the chapters:

    contractions       one formula, all its orders and what each costs          01
    kernel_attention   softmax and its feature maps, Linformer, Nyström         02
    linear_attention   parallel, recurrent, chunked; gates                      03
    masks              structured matrices over time                            04
    sma                structured masked attention: Y = (L ∘ Q K^T) V           04
    ssm                state space models, scans, semiseparable matrices        05
    ssd                state space duality: both are one                        06
    weights            structured matrices over features                        10, A
    scores             attention that scores with such a matrix                 10
    multilevel         attention that spends less on far tokens                 11
    fast               what to call when only the result matters                12
    models, data, train    blocks and stacks; texts and tasks; one loop

The workshop on top of it is `course`: exercises, explorers, grading, the site, the command line.
"""

from smalearn._checks import ShapeError

__all__ = ["ShapeError", "__version__"]
__version__ = "0.3.0"
