"""What papers print about data parallelism, computed again by this library.

`data_parallel.json` holds each figure; see `rows.py`.
"""

import math
from collections.abc import Callable

import pytest

from course_lib import predict
from course_lib.model import zoo
from course_lib.predict import Setup

from .rows import rows_of, within

ROWS = rows_of(__file__)
MANY = 10**6


def chips(flops_per_s: float, bytes_per_s: float, tokens: int) -> float:
    return tokens / predict.tokens_to_hide(flops_per_s, bytes_per_s, MANY)


def tokens_across(flops_per_s: float, bytes_per_s: float, ranks_per_node: int, inside_bytes_per_s: float) -> float:
    many = MANY * ranks_per_node
    return predict.tokens_to_hide(flops_per_s, bytes_per_s, many, 2, ranks_per_node, inside_bytes_per_s)


def pure_data_parallel_batch(ranks: int, **speeds: float) -> float:
    """A ring of nodes is never quite infinite; the book's rule of thumb is."""
    return ranks * tokens_across(**speeds)  # type: ignore[arg-type]


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


COMPUTED: dict[str, Callable[..., float | list[int]]] = {
    "ring_allreduce_per_rank": lambda p, n: predict.all_reduce(n, p).bytes,
    "zero_comm_dp_baseline": lambda p: predict.bus_factor("all_reduce", p),
    "tpu_v5p_tokens_one_axis": lambda flops_per_s, bytes_per_s: predict.tokens_to_hide(flops_per_s, bytes_per_s, MANY),
    "tpu_v5p_chips_16m": chips,
    "h100_tokens_inside_a_node": lambda flops_per_s, bytes_per_s: predict.tokens_to_hide(
        flops_per_s, bytes_per_s, MANY
    ),
    "h100_tokens_across_nodes": tokens_across,
    "h100_pure_dp_batch_16000": pure_data_parallel_batch,
    "kaplan_B_star": lambda: predict.critical_batch_tokens(1.0),
    "kaplan_alpha_B": alpha_b,
    "llama3_t4_8k_16384_replicas": replicas,
}


def test_every_row_is_recomputed() -> None:
    assert set(COMPUTED) == set(ROWS)


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    row = ROWS[name]
    assert COMPUTED[name](**row["inputs"]) == within(row)
