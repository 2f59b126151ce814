"""Closed forms: what a step should cost, computed before it runs. `measure` observes the same quantities."""

from course_lib.predict.allocator import CachingAllocator, OutOfMemory
from course_lib.predict.chain import Chain
from course_lib.predict.convolution import Convolution, convolution_activations
from course_lib.predict.experts import Held, expert_flops, expert_parameters, expert_traffic, layer_flops
from course_lib.predict.flops import forward_flops, recomputed_flops, step_flops, step_flops_paper, token_flops_palm
from course_lib.predict.inference import inference_buffers, kv_cache
from course_lib.predict.largest import Largest, largest
from course_lib.predict.levels import TwoLevels, tokens_to_hide, two_level_all_reduce
from course_lib.predict.link import Link, Path, fit_link
from course_lib.predict.memory import (
    activations,
    activations_paper,
    block_activations,
    block_input,
    fused_buffer,
    model_states,
)
from course_lib.predict.offload import OffloadedState, bandwidth_for, flops_a_byte, kept_on_device, link_efficiency
from course_lib.predict.overlap import Departure, Overlap, Ready, gradients_ready, overlap
from course_lib.predict.params import parameters
from course_lib.predict.peak import PeakAccount, peak
from course_lib.predict.per_rank import rank_activations, rank_parameters, stage_layers
from course_lib.predict.pipeline import Bubble, bubble, in_flight
from course_lib.predict.rank_traffic import rank_traffic
from course_lib.predict.scaling import (
    NoiseScale,
    critical_batch_tokens,
    noise_scale,
    steps_and_examples,
    training_flops,
    training_time,
    utilization,
)
from course_lib.predict.setup import Device, Gradients, Optimizer, Precision, Recompute, Setup
from course_lib.predict.swap import swap_break_even
from course_lib.predict.traffic import (
    Collective,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    bus_factor,
    crossover_bytes,
    reduce,
    reduce_scatter,
)
from course_lib.predict.zero import data_traffic, fewest_ranks, unit_buffers

__all__ = [
    "Bubble",
    "CachingAllocator",
    "Chain",
    "Collective",
    "Convolution",
    "Departure",
    "Device",
    "Gradients",
    "Held",
    "Largest",
    "Link",
    "NoiseScale",
    "OffloadedState",
    "Optimizer",
    "OutOfMemory",
    "Overlap",
    "Path",
    "PeakAccount",
    "Precision",
    "Ready",
    "Recompute",
    "Setup",
    "TwoLevels",
    "activations",
    "activations_paper",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "bandwidth_for",
    "block_activations",
    "block_input",
    "broadcast",
    "bubble",
    "bus_factor",
    "convolution_activations",
    "critical_batch_tokens",
    "crossover_bytes",
    "data_traffic",
    "expert_flops",
    "expert_parameters",
    "expert_traffic",
    "fewest_ranks",
    "fit_link",
    "flops_a_byte",
    "forward_flops",
    "fused_buffer",
    "gradients_ready",
    "in_flight",
    "inference_buffers",
    "kept_on_device",
    "kv_cache",
    "largest",
    "layer_flops",
    "link_efficiency",
    "model_states",
    "noise_scale",
    "overlap",
    "parameters",
    "peak",
    "rank_activations",
    "rank_parameters",
    "rank_traffic",
    "recomputed_flops",
    "reduce",
    "reduce_scatter",
    "stage_layers",
    "step_flops",
    "step_flops_paper",
    "steps_and_examples",
    "swap_break_even",
    "token_flops_palm",
    "tokens_to_hide",
    "training_flops",
    "training_time",
    "two_level_all_reduce",
    "unit_buffers",
    "utilization",
]
