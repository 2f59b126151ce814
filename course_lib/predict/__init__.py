"""Closed forms: what a step should cost, computed before it runs. `measure` observes the same quantities."""

from course_lib.predict.flops import forward_flops, step_flops, step_flops_paper, token_flops_palm
from course_lib.predict.inference import kv_cache
from course_lib.predict.memory import PeakAccount, activations, activations_paper, model_states, peak
from course_lib.predict.params import parameters
from course_lib.predict.scaling import training_flops, training_time, utilization
from course_lib.predict.traffic import (
    all_gather_bytes,
    all_reduce_bytes,
    all_reduce_messages,
    all_to_all_bytes,
    broadcast_bytes,
    reduce_scatter_bytes,
)

__all__ = [
    "PeakAccount",
    "activations",
    "activations_paper",
    "all_gather_bytes",
    "all_reduce_bytes",
    "all_reduce_messages",
    "all_to_all_bytes",
    "broadcast_bytes",
    "forward_flops",
    "kv_cache",
    "model_states",
    "parameters",
    "peak",
    "reduce_scatter_bytes",
    "step_flops",
    "step_flops_paper",
    "token_flops_palm",
    "training_flops",
    "training_time",
    "utilization",
]
