"""Closed forms: the cost of a step, computed before the step runs. `measure` observes the same quantities."""

from course_lib.predict.allocator import CachingAllocator, OutOfMemory
from course_lib.predict.chain import Chain, swap_break_even
from course_lib.predict.experts import expert_parameters, expert_traffic, layer_flops
from course_lib.predict.failures import daly, mean_time_between_stops, waste, young
from course_lib.predict.flops import recomputed_flops, step_flops
from course_lib.predict.memory import (
    Convolution,
    activations,
    activations_paper,
    block_activations,
    block_input,
    convolution_activations,
    host_memory,
    inference_buffers,
    kv_cache,
    model_states,
    rank_activations,
)
from course_lib.predict.offload import bandwidth_for, flops_a_byte, link_efficiency, offloaded_step, tokens_for
from course_lib.predict.overlap import gradients_ready, overlap, tokens_to_hide
from course_lib.predict.peak import largest, peak
from course_lib.predict.pipeline import bubble, in_flight, rank_memory
from course_lib.predict.planner import plan
from course_lib.predict.rank_traffic import data_traffic, rank_traffic
from course_lib.predict.roofline import attainable, decode_intensity, ridge, tokens_a_pass
from course_lib.predict.scaling import (
    critical_batch_tokens,
    noise_scale,
    steps_and_examples,
    training_flops,
    utilization,
)
from course_lib.predict.setup import Precision, Setup
from course_lib.predict.tensors import parameters, rank_parameters, rank_tensors
from course_lib.predict.traffic import (
    Link,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    bus_factor,
    crossover_bytes,
    fit_link,
    reduce_scatter,
    two_level_all_reduce,
)
from course_lib.predict.zero import fewest_ranks, unit_buffers
