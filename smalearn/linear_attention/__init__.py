"""Linear attention and its gates: one function, computed in parallel, step by step, or chunk by chunk.

    H_t = G_t ∘ H_(t-1) + v_t k_t^T,    y_t = H_t q_t

with a gate G_t = exp(log_a_t) in [0, 1]: none, one decay per token, one per key feature, or one per entry of the state.
Each file holds one algorithm; that they agree is tested. `catalogue` shows known models as choices of the gate,
`delta_catalogue` those of the delta rule as choices of three keys.
"""

from smalearn.linear_attention.catalogue import MODELS, OTHER_MODELS, Gates, RecurrentModel
from smalearn.linear_attention.chunked import linear_attention_chunked
from smalearn.linear_attention.delta import delta_rule_chunked, delta_rule_recurrent, delta_rule_step, l2norm
from smalearn.linear_attention.delta_catalogue import DELTA_MODELS, DeltaModel, Keys
from smalearn.linear_attention.generalized_delta import (
    generalized_delta_rule_chunked,
    generalized_delta_rule_recurrent,
    generalized_delta_rule_step,
)
from smalearn.linear_attention.log_linear import log_linear_attention, log_linear_step
from smalearn.linear_attention.parallel import linear_attention_parallel
from smalearn.linear_attention.recompute import linear_attention_recomputed
from smalearn.linear_attention.recurrent import linear_attention_recurrent, linear_attention_step
from smalearn.linear_attention.slots import gated_slot_attention, slot_weights

__all__ = [
    "DELTA_MODELS",
    "MODELS",
    "OTHER_MODELS",
    "DeltaModel",
    "Gates",
    "Keys",
    "RecurrentModel",
    "delta_rule_chunked",
    "delta_rule_recurrent",
    "delta_rule_step",
    "gated_slot_attention",
    "generalized_delta_rule_chunked",
    "generalized_delta_rule_recurrent",
    "generalized_delta_rule_step",
    "l2norm",
    "linear_attention_chunked",
    "linear_attention_parallel",
    "linear_attention_recomputed",
    "linear_attention_recurrent",
    "linear_attention_step",
    "log_linear_attention",
    "log_linear_step",
    "slot_weights",
]
