"""The ring explorer: an all-reduce step by step, and what each rank holds of each part.

Step forward and the parts travel: every rank sends one part to its right neighbour, in the first pass the receiver adds
it up, in the second it keeps it. The schedule runs in the browser (`ring.js`), so the explorer stays alive in a page
without Python. `ring_frames` plays the library's own schedule in Python; the tests hold the two against each other, and
the picture for places that run no JavaScript is drawn from it.

Lesson 06 opens this module.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import anywidget
import traitlets

from course_lib.explore import browser
from course_lib.figures.collectives import Holding, film_of_holdings
from course_lib.figures.style import SERIES, Picture
from course_lib.ranks import schedules

MIN_RANKS, MAX_RANKS = 2, 8


@dataclass(frozen=True)
class Frame:
    """The state after some steps.

    Attributes:
        step: how many steps were taken.
        holding: holding[rank][part] is the set of ranks whose summand is in what this rank has of that part.
        arrived: (from, to, part, whether it was added) of every message of the last step; empty at the start.
    """

    step: int
    holding: Holding
    arrived: tuple[tuple[int, int, int, bool], ...]


def ring_frames(world_size: int) -> list[Frame]:
    """The 2(p-1) + 1 states of a ring all-reduce, from `ranks.schedules`.

    Raises:
        ValueError: `world_size` is not between 2 and 8.
    """
    _check(world_size)
    everyone = range(world_size)
    plan = [schedules.all_reduce_ring(world_size, rank) for rank in everyone]
    start = [[Counter({rank: 1}) for _ in everyone] for rank in everyone]
    held = [[[set(part) for part in parts] for parts in each] for each in schedules.hold(plan, start)]
    arrived = [()] + [
        tuple((source, to, receive.part, receive.add) for source, _, to, receive in schedules.messages(number, rounds))
        for number, rounds in enumerate(zip(*plan))
    ]
    return [Frame(step, holding, each) for step, (holding, each) in enumerate(zip(held, arrived))]


class RingExplorer(anywidget.AnyWidget):
    """A ring all-reduce to step through, for 2 to 8 ranks.

    Set `explorer.step = 3` and the drawing follows; press a button and `explorer.step` follows.

    Args:
        world_size: the number of ranks, and of parts.
        step: how many steps have been taken, from 0 to 2(p-1).

    Raises:
        ValueError: the number of ranks is not between 2 and 8, or there is no such step.
    """

    _esm = browser.script("ring")
    _css = browser.style("ring")
    world_size = traitlets.Int(4).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    _colors = traitlets.List().tag(sync=True)

    def __init__(self, world_size: int = 4, step: int = 0) -> None:
        _check(world_size)
        if not 0 <= step <= 2 * (world_size - 1):
            raise ValueError(f"step={step}: a ring of {world_size} has the steps 0 to {2 * (world_size - 1)}")
        super().__init__(world_size=world_size, step=step, _colors=list(SERIES))

    @property
    def frame(self) -> Frame:
        """What the explorer shows now."""
        frames = ring_frames(self.world_size)
        return frames[min(max(self.step, 0), len(frames) - 1)]

    def show(self, caption: str = "", alt: str = "") -> None:
        """Display the explorer, with a picture of all its steps for places that run no JavaScript.

        Args:
            caption: what to see; a general one if empty.
            alt: the picture in words; a general one if empty.
        """
        p = self.world_size
        draw(
            p,
            caption=caption or "Each rank passes one part a step to its right neighbour; nobody ever sends more.",
            alt=alt
            or f"{2 * p - 1} grids with {p} ranks as rows and {p} parts as columns. At first each row has its own "
            f"colour. In steps 1 to {p - 1} one cell of each row collects one colour more, until each rank has one "
            f"part with all {p}. In steps {p} to {2 * p - 2} these finished parts are copied around, until all cells "
            f"have all colours.",
        ).show(widget=self)


def draw(world_size: int, *, caption: str, alt: str) -> Picture:
    """The picture of the explorer for a static page: a film strip of all states."""
    frames = ring_frames(world_size)
    titles = ["start"] + [
        f"step {frame.step}: {'add' if frame.step < world_size else 'copy'}" for frame in frames if frame.step
    ]
    marks = [{(to, part) for _, to, part, _ in frame.arrived} for frame in frames]
    return film_of_holdings(list(zip(titles, (frame.holding for frame in frames))), marks, caption=caption, alt=alt)


def _check(world_size: int) -> None:
    if not MIN_RANKS <= world_size <= MAX_RANKS:
        raise ValueError(f"the explorer draws rings of {MIN_RANKS} to {MAX_RANKS} ranks, not {world_size}")
