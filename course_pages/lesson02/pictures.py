"""A map of the allocator's segments, blocks in use and free ones; the hill that a GPU's own allocator wrote down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from course_kit.notebook.picture import GRID, INK, MUTED, SERIES, Picture, legend, new_figure
from course_kit.units import Bytes
from course_lib.predict.allocator import CachingAllocator


def segment_map(card: CachingAllocator, *, wanted: Bytes | None = None, caption: str) -> Picture:
    """Every segment as a row, its blocks side by side.

    Args:
        card: an allocator with at least one segment.
        wanted: a request to draw below, at the same scale.

    Raises:
        ValueError: the allocator has no segment yet.
    """
    if not card.segments:
        raise ValueError("segment_map needs an allocator with at least one segment: allocate something first")
    rows = len(card.segments) + (wanted is not None)
    figure, (axes,) = new_figure(height=1.2 + 0.34 * rows)
    for number, segment in enumerate(card.segments):
        for block in segment.blocks:
            color = GRID if block.owner is None else SERIES[0]
            start, size = Bytes(block.offset).to("MiB"), Bytes(block.nbytes).to("MiB")
            axes.barh(number, size, left=start, height=0.7, color=color, edgecolor="white", linewidth=1)
    names = [f"segment {number + 1}" for number in range(len(card.segments))]
    if wanted is not None:
        axes.barh(rows - 1, wanted.to("MiB"), height=0.7, facecolor="none", edgecolor=SERIES[1], linewidth=1.6, ls="--")
        names.append("wanted")
    axes.set_yticks(range(rows), names)
    axes.set(xlabel="MiB", ylim=(rows - 0.4, -0.6))
    axes.grid(False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    keys = [Patch(color=SERIES[0], label="in use"), Patch(facecolor=GRID, edgecolor=MUTED, lw=0.5, label="free")]
    legend(figure, "lower center", 2, handles=keys)
    alt = (
        f"{len(card.segments)} segments, together {card.reserved}. In use are {card.allocated}, free "
        f"{card.reserved - card.allocated}; the largest free piece has {card.largest_free}."
    )
    return Picture(figure, caption=caption, alt=alt + (f" Wanted: {wanted}." if wanted else ""))


def allocator_hill(history: Sequence[Mapping[str, Any]], before: int) -> Picture:
    """All blocks that are alive, from one event of the allocator to the next.

    Args:
        history: a device's trace of `torch.cuda.memory._snapshot()`.
        before: bytes that were alive when it began.
    """
    signs = {"alloc": 1, "free_completed": -1}
    changes = [signs[event["action"]] * event["size"] for event in history if event["action"] in signs]
    alive = np.cumsum([before, *changes]) / 2**20
    figure, (axes,) = new_figure()
    axes.fill_between(range(len(alive)), alive, step="post", color=SERIES[0], linewidth=0)
    axes.set(xlabel="births and deaths, in order", ylabel="MiB", ylim=(0, None), xlim=(0, len(alive) - 1))
    alt = f"A hill over {len(changes)} births and deaths, from {alive[0]:.1f} MiB to a peak of {alive.max():.1f} MiB."
    return Picture(figure, caption="The hill of section 1 again, as the card's allocator wrote it down.", alt=alt)
