"""Pictures of plans: predictions beside published runs, the cost of stops, and the map of layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from course_kit.notebook.picture import INK, PALETTE, PAPER, Picture, legend, line_look, new_figure, note, series_color
from course_lib import predict
from course_pages.lesson17 import truth


def ratios(found: Mapping[str, Mapping[str, np.ndarray]], *, caption: str) -> Picture:
    """Predicted over measured seconds of published runs, by the planner and by 6ND at one utilization.

    Args:
        found: machine → "seconds" and "thumb", a prediction for each run of `truth.read()`.
    """
    figure, panels = new_figure(1, 2, height=3.4)
    told = []
    for axes, name, title in zip(panels, ("thumb", "seconds"), ("6ND at one utilization", "the planner, held out")):
        errors = []
        largest = sorted(truth.read().items(), key=lambda each: -len(each[1].timed.seconds))
        for place, (machine, runs) in enumerate(largest):
            number = min(place, 6)  # six have a colour of their own
            timed = np.where(runs.clean, runs.seconds, np.nan)
            ratio = found[machine][name] / timed
            errors += np.abs(ratio[np.isfinite(ratio)] - 1).tolist()
            look: Any = {"color": series_color(number), "marker": "osD^vPX"[number], "ls": "", "ms": 4, "alpha": 0.6}
            label = (machine if place < 6 else "all others") if name == "thumb" and place < 7 else None
            axes.plot(timed, ratio, label=label, **look)
        axes.axhline(1, color=INK, lw=1)
        axes.set(xscale="log", yscale="log", xlabel="measured (s a step)", title=title, ylim=(0.012, 8))
        axes.set_yticks([0.02, 0.1, 0.5, 1, 2, 5], ["0.02", "0.1", "0.5", "1", "2", "5"])
        told.append(f"{title}: median error {np.median(errors):.0%} over {len(errors)} runs")
    panels[0].set_ylabel("predicted / measured")
    legend(figure, "lower center", 4, fontsize=8.5)
    return Picture(figure, caption=caption, alt="Points around a line at 1, in two panels. " + "; ".join(told) + ".")


def lost_time(
    runs: Mapping[str, float], points: Mapping[str, Sequence[tuple[float, float]]], checkpoint_s: float, *, caption: str
) -> Picture:
    """The share of time that is lost against the interval between checkpoints.

    Args:
        runs: name → seconds between stops.
        points: name → (seconds of the interval, share lost) by simulation.
        checkpoint_s: seconds of a checkpoint.
    """
    figure, (axes,) = new_figure(height=3.2)
    told = []
    for number, (name, between) in enumerate(runs.items()):
        intervals = np.geomspace(100, 4 * 3600, 150)
        curve = [100 * float(predict.waste(each, checkpoint_s, between)) for each in intervals]
        axes.plot(intervals / 60, curve, label=name, **line_look(number))
        minutes, shares = zip(*[(each / 60, 100 * share) for each, share in points[name]])
        axes.plot(minutes, shares, "o", color=series_color(number), ms=5)
        best = float(predict.young(checkpoint_s, between))
        axes.axvline(best / 60, color=series_color(number), lw=1, ls=":")
        lost = predict.waste(best, checkpoint_s, between)
        told.append(f"{name}: least near {best / 60:.0f} minutes, {lost:.0%} lost")
    axes.set(xscale="log", xlabel="work between two checkpoints (minutes)", ylabel="time lost (%)", ylim=(0, 100))
    axes.set_xticks([2, 5, 10, 20, 60, 240], ["2", "5", "10", "20", "60", "240"])
    legend(figure, "upper center", len(runs))
    alt = "Curves with one bottom each, simulated points on them. " + "; ".join(told)
    return Picture(figure, caption=caption, alt=alt)


def cuts(names: Sequence[str], gigabytes: Mapping[str, np.ndarray], room: float, *, caption: str) -> Picture:
    """GB of the fullest GPU, one pair of bars for each name; `room` is the GB that a GPU can hold."""
    figure, (axes,) = new_figure(height=0.55 * len(names) + 1.0)
    places = np.arange(len(names))
    for number, (what, each) in enumerate(gigabytes.items()):
        color = PALETTE["optimizer" if what == "states" else what]
        at = places + 0.38 * number - 0.19
        axes.barh(at, each, 0.36, color=color, hatch=("", "//")[number], label=what, ec="white")
        for place, gb in zip(at, each):
            note(axes, f"{gb:,.0f} GB", (gb, place), (4, -3.5), size=8.5)
    axes.axvline(room, color=INK, lw=1.2, ls="--")
    axes.set_yticks(places, list(names))
    axes.set(xscale="log", xlabel="GB of the fullest GPU; dashed: what it can hold", xlim=(1, 4000))
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.invert_yaxis()
    legend(figure, "upper center", 2)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{gigabytes[what][n]:,.0f} GB of {what}" for what in gigabytes)
        for n, name in enumerate(names)
    )
    return Picture(figure, caption=caption, alt=f"Pairs of bars that get shorter from row to row. {told}.")


def layout_map(
    cells: Mapping[Any, Any], dots: Mapping[Any, Any], room: float, place: Any, sizes: Any, *, caption: str, alt: str
) -> Picture:
    """The map of layouts, still: seconds by colour, hatched where a layout does not fit, a dot for a published run.

    Args:
        cells, dots: (tensor, pipeline) → a `Cell`; published seconds and GB, or None twice.
        room: GB that can be filled.
        place: the selected cell.
        sizes: those of tensor and of pipeline, in order.
    """
    (tensor, pipeline), (figure, (axes,)) = sizes, new_figure(height=3.4)
    axes.grid(False)
    steps = [each.step for each in cells.values() if each.gb <= room] or [1.0]
    for (x, t), (y, p) in ((a, b) for a in enumerate(tensor) for b in enumerate(pipeline)):
        each = cells.get((t, p))
        fits = each is not None and each.gb <= room
        depth = min(1.0, math.log(each.step / min(steps)) / math.log(4)) if each and fits else 0.0  # 4 times: darkest
        color = (0.90 - 0.75 * depth, 0.95 - 0.55 * depth, 0.98 - 0.25 * depth) if fits else "white"
        look: Any = {"facecolor": color, "hatch": "///" if each and not fits else None, "edgecolor": "#C4CAD0"}
        axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, **look))
        if (t, p) == place:
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, fill=False, edgecolor="#D55E00", lw=2.5))
        if each is None:
            continue
        text = f"{each.step:.1f} s" if fits else f"{each.gb:.0f} GB"
        ink: Any = {"color": "white" if depth > 0.55 else INK, "ha": "center", "va": "center"}
        ink["bbox"] = None if fits else PAPER
        axes.text(x, y + 0.14, text, size=9, **ink)
        if (t, p) in dots:
            said = dots[t, p][0]
            text = "● died" if said is None else f"● {said:.1f} s"
            axes.text(x, y - 0.22, text, size=8, **ink)
    axes.set(xlim=(-0.6, len(tensor) - 0.4), ylim=(-0.6, len(pipeline) - 0.4), xlabel="tensor ranks", ylabel="stages")
    axes.set_xticks(range(len(tensor)), map(str, tensor))
    axes.set_yticks(range(len(pipeline)), map(str, pipeline))
    return Picture(figure, caption=caption, alt=alt)
