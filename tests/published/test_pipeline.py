"""What papers measured with pipelines, beside what the bubble alone lets expect.

`pipeline.json` holds each figure; see `rows.py`.
"""

from collections.abc import Callable

import pytest

from course_lib.pipeline.schedule import ORDERS, simulate

from .rows import rows_of, within

ROWS = rows_of(__file__)


def speeds(order: str, stages: list[int], micro_batches: list[int]) -> list[float]:
    """Work over time, all ranks together, over that of the first."""
    ranks_at_work = [p * (1 - simulate(ORDERS[order](p, m)).bubble) for p, m in zip(stages, micro_batches)]
    return [each / ranks_at_work[0] for each in ranks_at_work]


def seconds(order: str, stages: list[int], micro_batches: list[int]) -> list[float]:
    """Of a step, from those of the first."""
    spans = [simulate(ORDERS[order](p, m)).makespan for p, m in zip(stages, micro_batches)]
    return [60.1 * each / spans[0] for each in spans]


COMPUTED: dict[str, Callable[..., list[float]]] = {"gpipe_t3_transformer": speeds, "mt_nlg_step": seconds}


def test_every_row_is_recomputed() -> None:
    assert set(COMPUTED) == set(ROWS)


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    assert COMPUTED[name](**ROWS[name]["inputs"]) == within(ROWS[name])
