"""Memory by category: over the time of a step, and side by side.

Lesson 00 opens this module.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.accounts import CATEGORIES, MemoryAccount
from course_lib.figures.style import GRID, INK, MUTED, PALETTE, new_figure, present
from course_lib.measure.memory import MemoryRecord, Timeline
from course_lib.units import Bytes


def memory_timeline(record: MemoryRecord, *, caption: str | None = None, alt: str | None = None) -> None:
    """Show the bytes alive after every operation of a record, stacked by category, with its phases and its peak.

    Args:
        record: what `measure.memory` yielded.
        caption: what the reader should see; by default, when the peak is and what it is made of.
        alt: the figure in words; by default the accounts at its turning points.
    """
    present(
        draw_memory_timeline(record),
        caption=caption or timeline_caption(record),
        alt=alt or timeline_alt(record),
    )


def timeline_caption(record: MemoryRecord) -> str:
    """One sentence about the peak."""
    peak = record.peak
    largest = max(CATEGORIES, key=lambda category: peak[category])
    share = f"{peak[largest] / max(1, peak.total):.0%}"
    where = {
        "forward": "during the forward pass",
        "backward": "during the backward pass",
        "optimizer step": "inside the optimizer's step",
    }.get(record.peak_phase, "outside of the passes")
    return f"The peak of {peak.total} comes {where}; {share} of it are {largest}."


def timeline_alt(record: MemoryRecord) -> str:
    """The accounts at entry, at the end of each phase and at the peak, in words."""
    timeline = record.timeline
    moments = [("At entry", timeline.account(0))]
    moments += [(f"After {phase.name}", timeline.account(phase.stop - 1)) for phase in timeline.phases[:6]]
    moments += [("At the peak", record.peak)]
    told = [f"{moment}: {_in_words(account)}." for moment, account in moments]
    return f"Stacked areas over {len(timeline):,} operations. " + " ".join(told)


def _in_words(account: MemoryAccount) -> str:
    parts = [f"{category} {nbytes}" for category, nbytes in account.items() if nbytes]
    return ", ".join(parts) or "nothing"


def draw_memory_timeline(record: MemoryRecord) -> Figure:
    """The figure of `memory_timeline`, not yet shown."""
    timeline = record.timeline
    figure, (axes,) = new_figure(height=3.4)
    unit = Bytes(timeline.bytes.sum(axis=1).max()).best_unit()
    rows = np.arange(len(timeline))
    layers = timeline.bytes.T / Bytes.units[unit]
    shown = [i for i, category in enumerate(CATEGORIES) if layers[i].any()] or [0]
    colors = [PALETTE[CATEGORIES[i]] for i in shown]
    axes.stackplot(rows, layers[shown], labels=[CATEGORIES[i] for i in shown], colors=colors, step="post", linewidth=0)
    top = 1.24 * layers.sum(axis=0).max()
    axes.set(xlabel="operation", ylabel=f"alive ({unit})", xlim=(0, max(1, len(timeline) - 1)), ylim=(0, top or 1))
    _mark_phases(axes, timeline)
    _mark_peak(axes, timeline, unit)
    _legend(figure, axes)
    return figure


def _mark_phases(axes: Axes, timeline: Timeline) -> None:
    """A line where a phase begins, and its name above the areas where there is room for it."""
    height = axes.get_ylim()[1]
    for phase in timeline.phases:
        axes.axvline(phase.start, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        share = (phase.stop - phase.start) / len(timeline)
        if share > 0.0105 * len(phase.name):
            axes.text(
                (phase.start + phase.stop) / 2, 0.97 * height, phase.name, ha="center", va="top", color=MUTED, size=9.5
            )


def _mark_peak(axes: Axes, timeline: Timeline, unit: str) -> None:
    row = timeline.peak_row
    total = timeline.account(row).total
    value = total.to(unit)
    axes.plot([row], [value], marker="o", markersize=5, color=INK, clip_on=False, zorder=5)
    left_half = row < len(timeline) / 2
    axes.annotate(
        f"peak {total:.1{unit}}" if unit != "B" else f"peak {total}",
        (row, value),
        (7 if left_half else -7, 3),
        textcoords="offset points",
        ha="left" if left_half else "right",
        va="bottom",
        color=INK,
        size=9.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # a phase's line may pass behind the words
    )


def memory_bar(
    accounts: Mapping[str, MemoryAccount],
    *,
    limit: Mapping[str, Bytes] | None = None,
    unit: str | None = None,
    caption: str,
    alt: str | None = None,
) -> None:
    """Show accounts side by side, one stacked bar each, against the memory of devices.

    Args:
        accounts: name → account.
        limit: name → bytes ("A100 80GB": Bytes(80 * 10**9)), drawn as vertical lines.
        unit: of the axis; by default the best one for the largest account.
        caption: what the reader should see.
        alt: the figure in words; by default all accounts and limits.

    Raises:
        ValueError: no account given, or the unit is unknown.
    """
    words = [f"{name}: {_in_words(account)}, together {account.total}." for name, account in accounts.items()]
    words += [f"Limit of {name}: {nbytes}." for name, nbytes in (limit or {}).items()]
    present(draw_memory_bar(accounts, limit, unit), caption=caption, alt=alt or "Stacked bars. " + " ".join(words))


def draw_memory_bar(
    accounts: Mapping[str, MemoryAccount], limit: Mapping[str, Bytes] | None = None, unit: str | None = None
) -> Figure:
    """The figure of `memory_bar`, not yet shown."""
    if not accounts:
        raise ValueError("memory_bar needs at least one account, given none: pass a dict of name and MemoryAccount")
    limits = limit or {}
    largest = max([account.total for account in accounts.values()] + list(limits.values()))
    unit = unit or largest.best_unit()
    figure, (axes,) = new_figure(height=1.3 + 0.42 * len(accounts))
    names = list(accounts)
    left = np.zeros(len(names))
    for category in CATEGORIES:
        widths = np.array([accounts[name][category].to(unit) for name in names])
        if widths.any():
            axes.barh(names, widths, left=left, height=0.62, color=PALETTE[category], label=category)
            left += widths
    for name, total in zip(names, left):
        axes.annotate(
            f"{accounts[name].total:.1{unit}}" if unit != "B" else f"{accounts[name].total}",
            (total, name), (5, 0), textcoords="offset points", va="center", color=INK, size=9.5,
        )  # fmt: skip
    for name, nbytes in limits.items():
        axes.axvline(nbytes.to(unit), color=INK, linewidth=1.2, linestyle="--")
        axes.annotate(
            name, (nbytes.to(unit), 1.0), (0, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="center", va="bottom", color=INK, size=9.5,
        )  # fmt: skip
    axes.set(xlabel=unit, xlim=(0, 1.16 * largest.to(unit) or 1))
    axes.grid(False, axis="y")
    axes.invert_yaxis()
    _legend(figure, axes)
    return figure


def draw_memory_against_gpus(account: MemoryAccount, gpus: Mapping[str, Bytes]) -> Figure:
    """One stacked bar, and below it a bar for the memory of each card; a line carries the total down to them.

    Args:
        account: what must fit.
        gpus: name → memory.

    Raises:
        ValueError: no card given.
    """
    if not gpus:
        raise ValueError("draw_memory_against_gpus needs at least one card: pass a dict of name and bytes")
    figure, (axes,) = new_figure(height=1.5 + 0.3 * len(gpus))
    total, left = account.total.to("GiB"), 0.0
    for category in CATEGORIES:
        size = account[category].to("GiB")
        if size:
            axes.barh(["to hold"], [size], left=left, height=0.8, color=PALETTE[category], label=category)
            left += size
    top = max(total, *(memory.to("GiB") for memory in gpus.values()))
    for name, memory in gpus.items():
        fits = account.total <= memory
        axes.barh([name], [memory.to("GiB")], height=0.55, color="#98A2AD" if fits else GRID)
        words = (
            f"fits, {account.total / memory:.0%} full" if fits else f"at least {-(-account.total // memory)} of them"
        )
        axes.annotate(
            words, (max(memory.to("GiB"), total), name), (6, 0), textcoords="offset points", va="center", color=INK,
            size=9.5,
        )  # fmt: skip
    axes.annotate(
        f"{account.total:.1GiB}", (total, "to hold"), (6, 0), textcoords="offset points", va="center", size=9.5
    )
    axes.axvline(total, color=INK, linewidth=1, linestyle="--")
    axes.set(xlabel="GiB", xlim=(0, 1.22 * top))
    axes.grid(False, axis="y")
    axes.invert_yaxis()
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(CATEGORIES), frameon=False)
