"""Closed forms: what a step should cost, computed before it runs. `measure` observes the same quantities."""

from course_lib.predict.flops import forward_flops, step_flops, step_flops_paper, token_flops_palm
from course_lib.predict.inference import kv_cache
from course_lib.predict.memory import PeakAccount, activations, activations_paper, model_states, peak
from course_lib.predict.params import parameters
from course_lib.predict.recompute import (
    Chain,
    block_activations,
    block_input,
    held_activations,
    layer_activations_paper,
    recompute_time,
    recomputed_flops,
    swap_break_even,
    swap_time,
)
from course_lib.predict.scaling import training_flops, training_time, utilization
from course_lib.predict.traffic import (
    Link,
    all_gather_bytes,
    all_reduce_bytes,
    all_reduce_messages,
    all_reduce_path,
    all_reduce_seconds,
    all_to_all_bytes,
    broadcast_bytes,
    bus_factor,
    crossover_bytes,
    fit_link,
    reduce_scatter_bytes,
)

__all__ = [
    "Chain",
    "Link",
    "PeakAccount",
    "activations",
    "activations_paper",
    "all_gather_bytes",
    "all_reduce_bytes",
    "all_reduce_messages",
    "all_reduce_path",
    "all_reduce_seconds",
    "all_to_all_bytes",
    "block_activations",
    "block_input",
    "broadcast_bytes",
    "bus_factor",
    "crossover_bytes",
    "fit_link",
    "forward_flops",
    "held_activations",
    "kv_cache",
    "layer_activations_paper",
    "model_states",
    "parameters",
    "peak",
    "recompute_time",
    "recomputed_flops",
    "reduce_scatter_bytes",
    "step_flops",
    "step_flops_paper",
    "swap_break_even",
    "swap_time",
    "token_flops_palm",
    "training_flops",
    "training_time",
    "utilization",
]
