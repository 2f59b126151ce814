"""A restart, drawn: samples that ranks read before a kill and after it, and samples that no rank reads.

Three ways to deal an epoch of 48 samples out to ranks, 8 a step. By shard and by stride a rank's state is the number
of samples read of its own part, and a rank without a state takes rank r mod w's, as the two libraries of the lesson
do. By function the state is the step. The table has every rank's samples; the script cuts them where the kill is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from course_kit.notebook.explorer import Control, Explorer
from course_kit.notebook.picture import Picture, legend, new_figure, series_color
from course_lib.data.order import Order

SAMPLES, BATCH, SEED = 48, 8, 3
WORLDS = (1, 2, 4, 8)
SCHEMES = ("by shard", "by stride", "by function")
LOST, FIRST, SECOND = "#000000", series_color(0), series_color(4)


def dealt(scheme: str, world_size: int) -> list[list[int]]:
    """Every rank's samples of the epoch, in the order in which the rank reads them."""
    ranks, part = range(world_size), SAMPLES // world_size
    if scheme == "by shard":
        return [list(range(rank * part, (rank + 1) * part)) for rank in ranks]
    if scheme == "by stride":
        return [list(range(rank, SAMPLES, world_size)) for rank in ranks]
    order, steps = Order(SAMPLES, BATCH, SEED), range(SAMPLES // BATCH)
    return [[int(sample) for step in steps for sample in order.of(step, rank, world_size)] for rank in ranks]


@cache
def restart_table() -> dict[str, Any]:
    """Samples of each rank by scheme and world size ("dealt"), sizes, and colors of both readings and of none."""
    return {
        "dealt": {scheme: {world: dealt(scheme, world) for world in WORLDS} for scheme in SCHEMES},
        "batch": BATCH, "samples": SAMPLES, "colors": [FIRST, SECOND, LOST],
    }  # fmt: skip


class RestartExplorer(Explorer):
    """A run that is killed and goes on, on as many ranks or on another number.

        RestartExplorer().show()                                # by stride, 2 ranks, 4 after step 2
        RestartExplorer(scheme="by function").show()            # the same, and nothing is lost

    `explorer.before` and `explorer.after` are each rank's samples; `explorer.lost`, `explorer.twice`.

    Args:
        scheme: the way in which samples are dealt out.
        world_before, world_after: ranks before the kill and after it.
        step: number of steps before the kill.
    """

    caption = (
        "Black samples are read by nobody, striped ones twice. Which ways of dealing survive another number of ranks?"
    )
    scheme = Control("Samples are dealt", SCHEMES, "by stride", kind="choice")
    world_before = Control("Ranks before", WORLDS, 2)
    world_after = Control("Ranks after", WORLDS, 4)
    step = Control("Killed after step", range(SAMPLES // BATCH + 1), 2)
    _table = staticmethod(restart_table)

    @property
    def before(self) -> list[list[int]]:
        """Samples that each rank read before the kill."""
        read = self.step * BATCH // self.world_before
        return [mine[:read] for mine in dealt(self.scheme, self.world_before)]

    @property
    def after(self) -> list[list[int]]:
        """Samples that each rank reads after the kill: a rank skips as many of its samples as its state says."""
        world = self.world_after if self.scheme == "by function" else self.world_before
        return [mine[self.step * BATCH // world :] for mine in dealt(self.scheme, self.world_after)]

    def _read(self, times: int) -> list[int]:
        read = sum(self.before + self.after, [])
        return [sample for sample in range(SAMPLES) if read.count(sample) == times]

    @property
    def lost(self) -> list[int]:
        """Samples that no rank reads."""
        return self._read(0)

    @property
    def twice(self) -> list[int]:
        """Samples that are read both before the kill and after it."""
        return self._read(2)

    def _picture(self, *, caption: str, alt: str) -> Picture:
        first, second = sum(self.before, []), sum(self.after, [])
        epoch = {
            sample: FIRST if sample in first else SECOND if sample in second else LOST for sample in range(SAMPLES)
        }
        rows = {"the epoch": epoch}
        rows |= {f"before: rank {rank}": dict.fromkeys(mine, FIRST) for rank, mine in enumerate(self.before)}
        rows |= {f"after: rank {rank}": dict.fromkeys(mine, SECOND) for rank, mine in enumerate(self.after)}
        figure, (axes,) = new_figure(height=0.9 + 0.24 * len(rows))
        for y, colors in enumerate(rows.values()):
            for sample, color in colors.items():
                hatch = "////" if sample in self.twice else None
                axes.broken_barh(
                    [(sample - 0.45, 0.9)], (y - 0.4, 0.8), facecolor=color, edgecolor="white", lw=0.3, hatch=hatch
                )
        axes.set(xlim=(-0.7, SAMPLES - 0.3), ylim=(len(rows) - 0.4, -0.6), xlabel="sample")
        axes.set_yticks(range(len(rows)), list(rows), fontsize=8.5)
        axes.grid(False)
        keys = {"read before the kill": FIRST, "read after it": SECOND, "read by nobody": LOST}
        legend(figure, "upper center", 3, keys)
        return Picture(figure, caption=caption, alt=alt)

    def _told(self) -> str:
        return (
            f"{SAMPLES} samples, {BATCH} a step, dealt {self.scheme}. {self.world_before} ranks make {self.step} "
            f"steps, then {self.world_after} go on. Read by nobody: {len(self.lost)}; read twice: {len(self.twice)}."
        )
