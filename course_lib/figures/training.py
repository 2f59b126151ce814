"""Loss curves, with the floor that no model can pass drawn in.

Lesson 00 opens this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_lib.figures.style import INK, MUTED, new_figure, present, series_color


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    *,
    caption: str,
    alt: str,
    start: float | None = None,
    floor: float | None = None,
) -> None:
    """Show the loss of one or more runs over their steps.

    Args:
        curves: name → loss of each step, in nats per token.
        caption: what the reader should see.
        alt: the figure in words.
        start: loss of a model that knows nothing (a dotted line), e.g. log of the vocabulary's size.
        floor: entropy of the source (a solid line at the bottom): no model can get below it.
    """
    present(draw_loss_curves(curves, start=start, floor=floor), caption=caption, alt=alt)


def draw_loss_curves(
    curves: Mapping[str, Sequence[float]], *, start: float | None = None, floor: float | None = None
) -> Figure:
    """The figure of `loss_curves`, not yet shown."""
    figure, (axes,) = new_figure(height=3.0)
    longest = max(len(losses) for losses in curves.values())
    for index, (name, losses) in enumerate(curves.items()):
        axes.plot(losses, color=series_color(index), linewidth=1.8, label=name)
    if start is not None:
        axes.axhline(start, color=MUTED, linewidth=1.2, linestyle=":")
        axes.annotate(
            "knows nothing", (longest, start), (0, -4), textcoords="offset points", ha="right", va="top", color=MUTED
        )
    if floor is not None:
        axes.axhline(floor, color=INK, linewidth=1.2)
        axes.annotate(
            "entropy of the text: the floor", (0, floor), (0, -4), textcoords="offset points", va="top", color=INK
        )
    tops = [loss for losses in curves.values() for loss in losses if math.isfinite(loss)]
    axes.set(
        xlabel="step", ylabel="loss (nats per token)", ylim=(0, 1.08 * max([*tops, start or 0])), xlim=(0, longest)
    )
    if len(curves) > 1:
        axes.legend(frameon=False, loc="upper right")
    return figure
