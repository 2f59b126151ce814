"""What others measured and print about collectives and data parallelism, computed again by this library."""

import math
from collections.abc import Callable
from pathlib import Path

from course_lib import predict
from course_lib.model import hardware, zoo
from course_lib.predict import Setup

from .rows import figures, rows_of

READS = ("lessons/src/06_*.py",)
ROWS = rows_of(__file__)
MANY = 10**6
LESSONS = Path(__file__).parents[2] / "lessons" / "src"


def tokens_inside(flops_per_s: float, bytes_per_s: float) -> float:
    return predict.tokens_to_hide(flops_per_s, bytes_per_s, MANY)


def tokens_across(flops_per_s: float, bytes_per_s: float, ranks_per_node: int, inside_bytes_per_s: float) -> float:
    many = MANY * ranks_per_node
    return predict.tokens_to_hide(flops_per_s, bytes_per_s, many, 2, ranks_per_node, inside_bytes_per_s)


def replicas(gpus: int, tensor: int, pipeline: int, seq: int, sequences_per_replica: int) -> list[int]:
    """Replicas, and tokens in a step."""
    one = Setup(zoo.LLAMA3_405B, sequences_per_replica, seq, tensor=tensor, pipeline=pipeline)
    count = gpus // one.world_size
    many = one.with_(batch_size=count * one.batch_size, data=count)
    assert many.world_size == gpus and many.rows_per_pass == sequences_per_replica
    return [many.data, many.batch_size * many.seq]


def alpha_b() -> float:
    """The exponent of the critical batch size, from two losses."""
    return math.log(2) / math.log(predict.critical_batch_tokens(1.0) / predict.critical_batch_tokens(2.0))


def share_of_the_wire(bus_gb_per_s: float) -> float:
    return 1e9 * bus_gb_per_s / hardware.H200_141GB.link_bytes_per_s


COMPUTED: dict[str, Callable[..., float | list[float] | list[int]]] = {
    "ring_allreduce_per_rank": lambda p, n: predict.all_reduce(n, p).bytes,
    "zero_comm_dp_baseline": lambda p: predict.bus_factor("all_reduce", p),
    "tpu_v5p_tokens_one_axis": tokens_inside,
    "tpu_v5p_chips_16m": lambda tokens, **speeds: tokens / tokens_inside(**speeds),
    "h100_tokens_inside_a_node": tokens_inside,
    "h100_tokens_across_nodes": tokens_across,
    "h100_pure_dp_batch_16000": lambda ranks, **speeds: ranks * tokens_across(**speeds),
    "kaplan_B_star": lambda: predict.critical_batch_tokens(1.0),
    "kaplan_alpha_B": alpha_b,
    "llama3_t4_8k_16384_replicas": replicas,
    "h200_x8_bus_bandwidth": lambda p, algorithm_gb_per_s: [
        predict.bus_factor("all_reduce", p) * speed for speed in algorithm_gb_per_s
    ],
    "h200_nvls_share_of_the_wire": share_of_the_wire,
    "h200_ring_share_of_the_wire": share_of_the_wire,
}


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED)


def test_lesson_06_quotes_what_was_measured() -> None:
    row, quoted = ROWS["h200_x8_bus_bandwidth"], (LESSONS / "06_collectives.py").read_text("utf-8")
    ring = ROWS["h200_ring_share_of_the_wire"]["inputs"]["bus_gb_per_s"]
    for number in [*row["inputs"]["algorithm_gb_per_s"], *row["value"], ring]:
        assert f"{number:.2f}" in quoted
