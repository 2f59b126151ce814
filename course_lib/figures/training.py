"""Loss curves, with the losses of readers who know just so much drawn in.

Lesson 00 opens this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_lib.figures.style import INK, STYLES, new_figure, present, series_color


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    *,
    caption: str,
    alt: str,
    levels: Mapping[str, float] | None = None,
    unit: str = "nats per token",
) -> None:
    """Show the loss of one or more runs over their steps.

    Args:
        curves: name → loss of each step.
        caption: what the reader should see.
        alt: the figure in words.
        levels: name → loss of a reader who knows just that much, drawn as a dotted line: "knows nothing" (the log of
            the vocabulary's size) at the top, the entropy of the source at the bottom.
        unit: of the losses.
    """
    present(draw_loss_curves(curves, levels, unit), caption=caption, alt=alt)


def draw_loss_curves(
    curves: Mapping[str, Sequence[float]], levels: Mapping[str, float] | None = None, unit: str = "nats per token"
) -> Figure:
    """The figure of `loss_curves`, not yet shown."""
    figure, (axes,) = new_figure(height=3.0)
    longest = max(len(losses) for losses in curves.values())
    for index, (name, losses) in enumerate(curves.items()):
        axes.plot(losses, color=series_color(index), linestyle=STYLES[index % len(STYLES)], linewidth=1.8, label=name)
    for name, level in (levels or {}).items():
        axes.axhline(level, color=INK, linewidth=1.2, linestyle=":")
        axes.annotate(
            name, (longest, level), (-2, 3), textcoords="offset points", ha="right", va="bottom", color=INK, size=9
        )
    finite = [loss for losses in curves.values() for loss in losses if math.isfinite(loss)]
    highest = max([*finite, *(levels or {}).values()])
    axes.set(xlabel="step", ylabel=f"loss ({unit})", ylim=(0, 1.12 * highest), xlim=(0, longest))
    if len(curves) > 1:
        axes.legend(frameon=False, loc="upper right")
    return figure
