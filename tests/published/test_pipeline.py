"""What papers measured with pipelines, beside what the bubble alone lets expect."""

from collections.abc import Callable
from typing import Any

from course_lib.pipeline.schedule import (
    ORDERS,
    Action,
    Costs,
    Message,
    Schedule,
    dualpipe,
    peak_in_flight,
    simulate,
    zb_v,
)

from .rows import figures, rows_of

ROWS = rows_of(__file__)


def speeds(order: str, stages: list[int], micro_batches: list[int]) -> list[float]:
    """Work over time, all ranks together, over that of the first."""
    ranks_at_work = [p * (1 - simulate(ORDERS[order](p, m)).bubble) for p, m in zip(stages, micro_batches)]
    return [each / ranks_at_work[0] for each in ranks_at_work]


def seconds(order: str, stages: list[int], micro_batches: list[int]) -> list[float]:
    """Of a step, from those of the first."""
    spans = [simulate(ORDERS[order](p, m)).makespan for p, m in zip(stages, micro_batches)]
    return [60.1 * each / spans[0] for each in spans]


def bubble_rates(
    orders: list[str], stages: list[int], micro_batches: list[int], times: list[list[float]]
) -> list[float]:
    """Waiting over all time of the rank that takes longest, case by case, at the times of F, B, W and a message."""
    rates = []
    for p, m, (forward, input_gradient, weight_gradient, message) in zip(stages, micro_batches, times):
        costs = Costs(forward, input_gradient, weight_gradient, transfer=message)
        waiting = [simulate(ORDERS[order](p, m), costs).bubble_without_sync for order in orders]
        rates += [over_ideal / (1 + over_ideal) for over_ideal in waiting]
    return rates


def held_by_rank_0(orders: list[str], p: int, m: int) -> list[float]:
    """Micro-batches; in ZB-V they are halves."""
    schedules = [dualpipe(p, m) if order == "dualpipe" else ORDERS[order](p, m) for order in orders]
    return [peak_in_flight(each.actions[0]) * each.ranks / each.stages for each in schedules]


def idle_with_overlap(stages: list[int], micro_batches: list[int]) -> list[float]:
    """Units in which a rank of DualPipe idles, where an F and the BW behind it are one block of 3 units."""
    return [makespan_in_blocks(dualpipe(p, m)) - 3 * m for p, m in zip(stages, micro_batches)]


def makespan_in_blocks(schedule: Schedule) -> float:
    """End of the last rank. A block needs both messages to begin, and both of its results leave at its end."""
    left: list[list[list[Action]]] = [[] for _ in schedule.actions]
    for blocks, row in zip(left, schedule.actions):
        for action in row:
            joins = action.kind == "BW" and [each.kind for each in blocks[-1]] == ["F"]
            blocks.append([*blocks.pop(), action] if joins else [action])
    clock = [0.0] * schedule.ranks
    there: dict[Message | None, float] = {None: 0.0}
    while any(left):
        for rank, blocks in enumerate(left):
            while blocks and all(schedule.consumes(action) in there for action in blocks[0]):
                block = blocks.pop(0)
                start = max(clock[rank], *(there[schedule.consumes(action)] for action in block))
                clock[rank] = start + sum(2 if action.kind == "BW" else 1 for action in block)
                there |= {made: clock[rank] for action in block if (made := schedule.produces(action))}
    return max(clock)


def numbers_until_the_last_forward(p: int, m: int, ranks: list[int]) -> list[int]:
    """The micro-batches of each rank's actions, counted from 1, as they stand in the figure's boxes."""
    rows = [zb_v(p, m).actions[rank] for rank in ranks]
    ends = [max(place for place, action in enumerate(row) if action.kind == "F") + 1 for row in rows]
    return [action.micro_batch + 1 for row, end in zip(rows, ends) for action in row[:end]]


COMPUTED: dict[str, Callable[..., list[Any]]] = {
    "gpipe_t3_transformer": speeds,
    "mt_nlg_step": seconds,
    "zero_bubble_t5": bubble_rates,
    "zero_bubble_peaks": held_by_rank_0,
    "dualpipe_t2_activations": held_by_rank_0,
    "dualpipe_t2_bubble": idle_with_overlap,
    "zb_v_figure_8": numbers_until_the_last_forward,
}


test_every_row_is_recomputed, test_published_figure = figures(ROWS, COMPUTED)
