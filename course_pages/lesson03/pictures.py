"""Recompute in pictures: a chain's tensors over time, the peak for every K, other ways to buy memory, plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course_kit.notebook.picture import GRID, INK, MUTED, PALETTE, PAPER, SERIES, Picture, legend, new_figure, note
from course_kit.units import Bytes, Flops
from course_lib.predict.chain import Chain, Moment

KEPT, INSIDE = SERIES[0], PALETTE["activations"]
RUNS = {"forward": "#7A7A7A", "recompute": SERIES[1], "backward": SERIES[2]}


def chain_film(chain: Chain, every: int | None, *, caption: str, alt: str) -> Picture:
    """Two pictures over one time: the layers whose tensors are held (a row each), and the bytes of these tensors.

    Args:
        chain: its bytes are drawn in units of one boundary.
        every: K; None keeps everything.
    """
    figure, (lives, held) = new_figure(rows=2, height=4.6)
    frames, plain = chain.film(every), chain.film(None)
    for frame in frames:
        _draw_frame(lives, frame, every)
    unit = chain.boundary_bytes
    starts, durations = [frame.start for frame in frames], [frame.duration for frame in frames]
    for name, color, heights in (
        ("inputs of segments, kept", KEPT, [frame.boundaries for frame in frames]),
        ("saved inside layers", INSIDE, [frame.held / unit for frame in frames]),
    ):
        held.bar(starts, heights, durations, align="edge", color=color, label=name, zorder=3 - (color == INSIDE))
    times = [0, *(frame.start for frame in plain), plain[-1].start + 2]
    values = [0, *(frame.held / unit for frame in plain), 0]
    held.step(times, values, where="post", color=MUTED, lw=1.2, ls=":", zorder=4, label="if everything is kept")
    peak = chain.peak(every) / unit
    held.axhline(peak, color=INK, lw=1, ls="--", zorder=4)
    note(held, f"peak {peak:g}", (0.5, peak))
    end = 4 * chain.layers  # each layer runs forward, once more forward, and backward, which counts twice
    lives.set(xlim=(0, end), ylim=(0.4, chain.layers + 0.6), ylabel="layer", xticklabels=[])
    held.set(xlim=(0, end), ylabel="held, in inputs", xlabel="time, in runs of a layer forward")
    words = {"forward": "runs forward", "recompute": "runs again", "backward": "runs backward"}
    runs = [Rectangle((0, 0), 1, 1, facecolor=RUNS[phase], label=each) for phase, each in words.items()]
    legend(figure, "lower center", 3, handles=[*held.get_legend_handles_labels()[0], *runs], fontsize=9.5)
    return Picture(figure, caption=caption, alt=alt)


def _draw_frame(axes: Axes, frame: Moment, every: int | None) -> None:
    """One moment: the layers whose tensors are held, the boundaries below them, and the layer that runs."""
    x, width = frame.start, frame.duration
    first = (frame.layer // every) * every if every else 0
    if frame.inside:
        axes.add_patch(Rectangle((x, first + 0.5), width, frame.inside, facecolor=INSIDE))
    for segment in range(frame.boundaries):
        axes.add_patch(Rectangle((x, segment * (every or 1) + 0.5), width, 0.3, facecolor=KEPT))
    run = Rectangle((x + 0.1 * width, frame.layer + 0.78), 0.8 * width, 0.45, facecolor=RUNS[frame.phase], zorder=3)
    axes.add_patch(run)


def peak_for_every_k(
    predicted: Mapping[int, Bytes], activations: Mapping[int, Bytes], total: Mapping[int, Bytes], plain: Bytes, *,
    caption: str,
) -> Picture:  # fmt: skip
    """The peak against K: the formula, the bytes that autograd held, and all bytes alive.

    Args:
        predicted: K → bytes that autograd should hold at the peak.
        activations: K → bytes that autograd held.
        total: K → everything alive at the peak.
        plain: bytes that autograd holds when everything is kept.
    """
    figure, (axes,) = new_figure(height=3.2)
    ks = list(predicted)
    axes.plot(ks, [total[k].to("MiB") for k in ks], "s", ms=4, color=PALETTE["temporaries"], label="everything alive")
    axes.plot(ks, [predicted[k].to("MiB") for k in ks], color=PALETTE["predicted"], label="formula")
    axes.plot(ks, [activations[k].to("MiB") for k in ks], "o", ms=6, color=PALETTE["measured"], label="activations")
    axes.axhline(plain.to("MiB"), color=MUTED, lw=1.2, ls="--")
    note(axes, "activations if everything is kept", (4.2, plain.to("MiB")), color=MUTED)
    root = math.sqrt(len(ks))
    axes.axvline(root, color=INK, lw=1, ls=":")
    note(axes, f"√N = {root:g}", (root, 1), (4, 0))
    axes.set(xlabel="K, layers in a segment", ylabel="peak (MiB)", ylim=(0, None), xticks=ks)
    legend(figure, "lower center", 3)
    least, floor = min(activations, key=activations.__getitem__), min(total, key=total.__getitem__)
    alt = (
        f"Peak bytes against K from 1 to {max(predicted)}. The activations fall from {activations[1]} at K = 1 to "
        f"{activations[least]} at K = {least} and rise again to {activations[max(activations)]}; every measured point "
        f"lies on the line of the formula. Keeping everything takes {plain}. With all else that is alive the lowest "
        f"is {total[floor]}, at K = {floor}."
    )
    return Picture(figure, caption=caption, alt=alt)


def swap_or_recompute(intensities: Mapping[str, float], break_even: Mapping[str, float], *, caption: str) -> Picture:
    """FLOPs that each kept byte stands for, and the point from which each device would rather swap.

    Args:
        intensities: tensor → FLOPs that would compute it again, for each of its bytes.
        break_even: device → FLOPs per byte from which on swapping is faster.
    """
    figure, (axes,) = new_figure(height=1.5 + 0.36 * len(intensities))
    axes.scatter(list(intensities.values()), list(intensities), s=22, color=KEPT, zorder=3)
    for name, value in intensities.items():
        note(axes, f"{value:,.0f}", (value, name), (-9, 0), ha="right", va="center", bbox=PAPER)
    for i, (name, value) in enumerate(break_even.items()):
        axes.axvline(value, color=SERIES[1 + i], lw=1.6, ls="--", label=f"{name}: {value:,.0f}")
    axes.set(xscale="log", xlim=(10, 2e6), ylim=(len(intensities) - 0.5, -0.5))
    axes.set_xlabel("FLOPs to compute one byte again (swap what lies right of the line)")
    axes.grid(False, axis="y")
    legend(figure, "lower center", 2)
    told = "; ".join(f"{name}: {value:,.0f}" for name, value in {**intensities, **break_even}.items())
    return Picture(figure, caption=caption, alt=f"FLOPs for a byte, on a log axis. {told}.")


Costs = Sequence[tuple[int, int, int]]
"""Bytes of each layer's input, bytes that the layer saves, FLOPs of its forward pass."""
Segments = Sequence[tuple[int, int]]
"""Recomputed segments: first layer, and the one after the last."""


def chain_with_plan(costs: Costs, segments: Segments, *, caption: str) -> Picture:
    """The layers of a chain, the bytes and FLOPs of each, and the segments that run again, if any."""
    figure, (saved, flops) = new_figure(rows=2, height=3.8)
    layers = np.arange(len(costs))
    unit = Bytes(max((saved for _, saved, _ in costs), default=0)).best_unit()
    inputs = np.array([given for given, _, _ in costs]) / Bytes.units[unit]
    inside = np.array([saved - given for given, saved, _ in costs]) / Bytes.units[unit]
    saved.bar(layers, inputs, color=SERIES[0], label="its input", zorder=2)
    saved.bar(layers, inside, bottom=inputs, color=PALETTE["activations"], label="its insides", zorder=2)
    flops.bar(layers, [count / 1e6 for _, _, count in costs], color=MUTED, zorder=2)
    for axes in (saved, flops):
        for start, stop in segments:
            axes.axvspan(start - 0.46, stop - 0.54, color=SERIES[1], alpha=0.22, lw=0, zorder=1)
        axes.grid(axis="x", visible=False)
    saved.set(ylabel=f"saves ({unit})", xticks=layers, xticklabels=[])
    flops.set(ylabel="forward (MFLOP)", xlabel="layer; shaded: recomputed, one shade for each segment", xticks=layers)
    legend(figure, "upper right", 2, fontsize=9.5)
    told = "; ".join(f"{n}: {Bytes(saved)}, {Flops(flops)}" for n, (_, saved, flops) in enumerate(costs))
    again = ", ".join(f"{start} to {stop - 1}" for start, stop in segments) or "none"
    alt = f"Two rows of bars, one bar for each layer: bytes saved, and FLOPs. {told}. Recomputed segments: {again}."
    return Picture(figure, caption=caption, alt=alt)


def held_against_limit(held: Mapping[str, np.ndarray], limit: Bytes, *, caption: str) -> Picture:
    """Bytes that steps (by name) held after each of their operations, against a limit."""
    figure, (axes,) = new_figure(height=3.2)
    for color, (name, values) in zip((MUTED, *SERIES[1:4]), held.items(), strict=False):
        values = np.asarray(values) / Bytes.units["MiB"]
        rows = np.arange(len(values))
        axes.fill_between(rows, values, step="post", color=GRID if color == MUTED else color, alpha=0.35, lw=0)
        axes.step(rows, values, where="post", color=color, lw=1.4, label=name)
    axes.axhline(limit.to("MiB"), color=INK, lw=1.2, ls="--")
    note(axes, "limit", (0, limit.to("MiB")), (4, 3))
    axes.set(xlabel="operation", ylabel="alive (MiB)", xlim=(0, None), ylim=(0, None))
    legend(figure, "lower center", 3)
    told = "; ".join(f"{name}: {len(b):,} operations, peak {Bytes(b.max()):.2MiB}" for name, b in held.items())
    alt = f"Bytes alive over the operations of a step. {told}. The limit is {limit:.2MiB}."
    return Picture(figure, caption=caption, alt=alt)
