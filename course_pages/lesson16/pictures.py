"""Pictures of one device: its roofline with points, shares of time, and tiles that walk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from torch import Tensor

from course_kit.notebook.picture import INK, MUTED, PAPER, SERIES, Picture, legend, new_figure, note, series_color
from course_lib import predict

CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}


def roofline(
    flops_per_s: float, bytes_per_s: float, points: Mapping[str, tuple[float, float]], *, caption: str
) -> Picture:
    """The roof of a device, and points on or below it.

    Args:
        flops_per_s, bytes_per_s: rates of the device.
        points: name → (FLOPs a byte, FLOP/s reached).
    """
    figure, (axes,) = new_figure(height=3.2)
    corner = float(predict.ridge(flops_per_s, bytes_per_s))
    intensities = np.geomspace(0.03, max(300.0, 30 * corner), 200)
    roof = [float(predict.attainable(each, flops_per_s, bytes_per_s)) / 1e9 for each in intensities]
    axes.plot(intensities, roof, color=INK, lw=2)
    axes.axvline(corner, color=MUTED, lw=1, ls=":")
    note(axes, f"ridge: {corner:.1f} FLOPs a byte", (corner, roof[0] * 1.3), (6, 0), color=MUTED)
    for number, (name, (intensity, reached)) in enumerate(points.items()):
        axes.plot(intensity, reached / 1e9, "osD^vP"[number % 6], color=series_color(number), ms=8, label=name)
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOPs a byte)", ylabel="GFLOP a CPU second")
    legend(figure, "upper center", 3)
    told = "; ".join(f"{name}: {x:.2g} FLOPs a byte, {y / 1e9:.2g} GFLOP/s" for name, (x, y) in points.items())
    alt = f"A roof that rises to {flops_per_s / 1e9:.0f} GFLOP/s at {corner:.1f} FLOPs a byte and is flat behind. "
    return Picture(figure, caption=caption, alt=f"{alt}{told}.")


def shares(bars: Mapping[str, Mapping[str, float]], *, caption: str) -> Picture:
    """One bar for each name, cut by class; shares in percent."""
    figure, (axes,) = new_figure(height=0.55 * len(bars) + 1.0)
    axes.grid(False)
    kinds, told = [*next(iter(bars.values()))], []
    for place, (name, parts) in enumerate(bars.items()):
        left = 0.0
        for number, (kind, share) in enumerate(parts.items()):
            look: dict[str, Any] = {"color": series_color(number), "hatch": ("", "//", "..")[number], "ec": "white"}
            axes.barh(place, 100 * share, left=left, label=kind if place == 0 else None, **look)
            if share > 0.05:
                axes.text(left + 50 * share, place, f"{100 * share:.3g} %", color=INK, bbox=PAPER, **CENTRED)
            left += 100 * share
        told.append(f"{name}: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in parts.items()))
    axes.set_yticks(range(len(bars)), [*bars])
    axes.set(xlim=(0, 100), xlabel="share (%)")
    axes.invert_yaxis()
    legend(figure, "upper center", len(kinds))
    return Picture(figure, caption=caption, alt=f"Bars cut by class. {'; '.join(told)}.")


def tile_walk(
    scores: Tensor, values: Tensor, frame: Any, rows: int, columns: int, causal: bool, *, caption: str, alt: str
) -> Picture:
    """Scores as a square with the current tile and those before, the values of its keys, the numbers of its queries."""
    figure, (square, table) = new_figure(1, 2, height=3.6)
    size = len(scores)
    for axes in (square, table):
        axes.set_axis_off()
        axes.set(xlim=(-0.6, size + 0.2), ylim=(size + 0.2, -1.8))
    square.set_aspect("equal")
    done = (-1, -1) if frame.tile is None else frame.tile
    for query in range(size):
        for key in range(size):
            now = done[0] <= query < done[0] + rows and done[1] <= key < done[1] + columns and done[0] >= 0
            past = query < done[0] or (query < done[0] + rows and key < done[1])
            hidden = causal and key > query
            color = "white" if hidden else SERIES[1] if now else "#8CBBD9" if past else "#ECEEF1"
            look = {"facecolor": color, "hatch": "///" if hidden else None, "edgecolor": "#C4CAD0", "lw": 0.4}
            square.add_patch(Rectangle((key, query), 0.94, 0.94, **look))
            if now and not hidden:
                square.text(key + 0.47, query + 0.5, f"{scores[query, key]:.0f}", color="white", size=8, **CENTRED)
    for key in range(done[1], done[1] + columns) if frame.tile and not frame.skipped else ():
        square.text(key + 0.47, -0.3, str(int(values[key])), ha="center", color=INK, size=9)
    square.text(0, -1.2, "keys → with their values, queries ↓", color=MUTED, size=9)
    table.text(-0.5, -1.2, f"read so far {frame.read:,} B, held {frame.held:,} B", color=INK, size=9)
    for column, word in enumerate(("query", "top", "total", "mixed", "output")):
        table.text(3.3 * column + 1, 0, word, ha="right", color=MUTED, size=9)
    for place, query in enumerate(range(done[0], done[0] + rows) if frame.tile else ()):
        numbers = frame.top[query], frame.total[query], frame.mixed[query]
        words = [f"{query}", *(f"{each:.2f}" for each in numbers), f"{numbers[2] / (numbers[1] or 1):.2f}"]
        for column, word in enumerate(words):
            table.text(3.3 * column + 1, place + 1, word, ha="right", color=INK, size=9)
    return Picture(figure, caption=caption, alt=alt)
