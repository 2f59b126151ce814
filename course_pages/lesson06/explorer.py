"""The ring explorer: an all-reduce step by step, and the summands of each part that each rank holds.

Step forward and the parts travel: every rank sends one part to its right neighbour, which adds the part up in the
first pass, and keeps it in the second. `ring_frames` plays the library's own schedule, for the page as for the picture.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, NamedTuple

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import SERIES, Picture
from course_lib.collectives import schedules
from course_lib.predict.traffic import all_reduce
from course_pages.shared.collectives import Holding, film_of_holdings

RANKS = range(2, 9)
"""Rings that fit on a page."""


class Frame(NamedTuple):
    """The state after some steps, and (from, to, part, whether it is added up) of every message of the last step."""

    holding: Holding
    arrived: tuple[tuple[int, int, int, bool], ...]


def ring_frames(world_size: int) -> list[Frame]:
    """The 2(p-1) + 1 states of a ring all-reduce, from `collectives.schedules`.

    Raises:
        ValueError: `world_size` is not between 2 and 8.
    """
    if world_size not in RANKS:
        raise ValueError(f"world_size={world_size}: the explorer draws rings of 2 to 8 ranks")
    everyone = range(world_size)
    plan = [schedules.all_reduce_ring(world_size, rank) for rank in everyone]
    start = [[Counter({rank: 1}) for _ in everyone] for rank in everyone]
    held = [[[set(part) for part in parts] for parts in each] for each in schedules.hold(plan, start)]
    arrived = [()] + [
        tuple((source, to, receive.part, receive.add) for source, _, to, receive in schedules.messages(number, rounds))
        for number, rounds in enumerate(zip(*plan))
    ]
    return list(map(Frame, held, arrived))


@cache
def ring_table() -> dict[str, Any]:
    """Every state of every ring.

    Returns:
        "rings": for each number of ranks "sent" (bytes of a rank after each step, in sizes of the tensor),
        "direct" (its bytes where every rank sends to every other one), and "frames": "holding" and "arrived" of each
        step, as in `Frame`. "colors": of the ranks.
    """
    rings = {}
    for p in RANKS:
        frames = [{"holding": [list(map(sorted, parts)) for parts in frame.holding], "arrived": frame.arrived}
                  for frame in ring_frames(p)]  # fmt: skip
        sent, direct = (all_reduce(p, p, algorithm).bytes / p for algorithm in ("ring", "direct"))
        each_step = [sent * step / (len(frames) - 1) for step in range(len(frames))]
        rings[str(p)] = {"sent": each_step, "direct": direct, "frames": frames}
    return {"rings": rings, "colors": list(SERIES)}


class RingExplorer(Explorer):
    """A ring all-reduce to step through, for 2 to 8 ranks.

    Args:
        world_size: the number of ranks, and of parts.
        step: number of steps taken, from 0 to 2(p-1).
    """

    caption = "Each rank passes one part a step to its right neighbour; nobody ever sends more."
    step = Control("steps taken", range(2 * RANKS[-1] - 1), 0, limit=("world_size", lambda p: 2 * p - 2))
    world_size = Control("ranks", RANKS, 4, kind="choice")
    _table = staticmethod(ring_table)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        """A film strip of all states."""
        p, frames = self.world_size, ring_frames(self.world_size)
        titles = ["start", *(f"step {step}: {'add' if step < p else 'copy'}" for step in range(1, len(frames)))]
        marks = [{(to, part) for _, to, part, _ in frame.arrived} for frame in frames]
        return film_of_holdings(list(zip(titles, (frame.holding for frame in frames))), marks, caption=caption, alt=alt)

    def _told(self) -> str:
        p = self.world_size
        return (
            f"{2 * p - 1} grids with {p} ranks as rows and {p} parts as columns. At first each row has its own "
            f"colour. In steps 1 to {p - 1} one cell of each row collects one colour more, until each rank has one "
            f"part with all {p}. In steps {p} to {2 * p - 2} these finished parts are copied around, until all cells "
            f"have all colours."
        )
