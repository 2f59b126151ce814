"""Plans for an uneven chain in pictures: what each layer saves and costs, and what a plan holds over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from course_kit.notebook.picture import GRID, INK, MUTED, PALETTE, SERIES, Picture, legend, new_figure, note
from course_kit.units import Bytes, Flops

Costs = Sequence[tuple[int, int, int]]
"""For each layer: bytes of its input, bytes that it saves, FLOPs of its forward pass."""
Segments = Sequence[tuple[int, int]]
"""Recomputed segments: first layer, and the one after the last."""


def chain_with_plan(costs: Costs, segments: Segments, *, caption: str) -> Picture:
    """The layers of a chain, what each saves and costs, and which segments run again.

    Args:
        costs: the layers.
        segments: what is recomputed; may be empty.
        caption: what the reader should see.
    """
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
    """What steps held after each of their operations, against a limit.

    Args:
        held: name → bytes after each operation.
        limit: the line that must not be crossed.
        caption: what the reader should see.
    """
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
