"""What others measured and print about collectives, computed again by this library.

`collectives.json` holds each figure; see `rows.py`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from course_lib import predict
from course_lib.model import hardware

from .rows import rows_of, within

ROWS = rows_of(__file__)
LESSON = Path(__file__).parents[2] / "lessons" / "src" / "06_collectives.py"


def bus_bandwidths(p: int, algorithm_gb_per_s: list[float]) -> list[float]:
    return [predict.bus_factor("all_reduce", p) * speed for speed in algorithm_gb_per_s]


def share_of_the_wire(bus_gb_per_s: float) -> float:
    return 1e9 * bus_gb_per_s / hardware.H200_141GB.link_bytes_per_s


COMPUTED: dict[str, Callable[..., float | list[float]]] = {
    "h200_x8_bus_bandwidth": bus_bandwidths,
    "h200_nvls_share_of_the_wire": share_of_the_wire,
    "h200_ring_share_of_the_wire": share_of_the_wire,
}


def test_every_row_is_recomputed() -> None:
    assert set(COMPUTED) == set(ROWS)


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    row = ROWS[name]
    assert COMPUTED[name](**row["inputs"]) == within(row)


def test_lesson_06_quotes_these_rows() -> None:
    row = ROWS["h200_x8_bus_bandwidth"]
    quoted = LESSON.read_text("utf-8")
    for number in [
        *row["inputs"]["algorithm_gb_per_s"],
        *row["value"],
        ROWS["h200_ring_share_of_the_wire"]["inputs"]["bus_gb_per_s"],
    ]:
        assert f"{number:.2f}" in quoted
