"""Memory in pictures: by category over the time of a step and side by side, against GPUs, and how it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.measure.memory import MemoryRecord, Timeline
from course_kit.notebook.picture import GRID, INK, MUTED, PALETTE, PAPER, Picture, legend, new_figure, note
from course_kit.units import Bytes


def memory_timeline(record: MemoryRecord, *, caption: str | None = None) -> Picture:
    """The bytes alive after every operation of a record, stacked by category, with its phases and its peak.

    Args:
        record: the record that `measure.memory` yielded.
        caption: the text below; by default, the phase of the peak and its largest category.
    """
    timeline = record.timeline
    figure, (axes,) = new_figure(height=3.4)
    unit = Bytes(timeline.bytes.sum(axis=1).max()).best_unit()
    layers = timeline.bytes.T / Bytes.units[unit]
    shown = [i for i, category in enumerate(CATEGORIES) if layers[i].any()] or [0]
    colors = [PALETTE[CATEGORIES[i]] for i in shown]
    labels = [CATEGORIES[i] for i in shown]
    axes.stackplot(range(len(timeline)), layers[shown], labels=labels, colors=colors, step="post", linewidth=0)
    top = 1.24 * layers.sum(axis=0).max()
    axes.set(xlabel="operation", ylabel=f"alive ({unit})", xlim=(0, max(1, len(timeline) - 1)), ylim=(0, top or 1))
    _mark_phases(axes, timeline)
    _mark_peak(axes, timeline, unit)
    legend(figure, "lower center", len(CATEGORIES))
    return Picture(figure, caption=caption or _peak_in_words(record), alt=_timeline_in_words(record))


def _mark_phases(axes: Axes, timeline: Timeline) -> None:
    """A line where a phase begins, and its name above the areas where there is room for it."""
    top = 0.97 * axes.get_ylim()[1]
    for phase in timeline.phases:
        axes.axvline(phase.start, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        if (phase.stop - phase.start) / len(timeline) > 0.0105 * len(phase.name):  # a letter is 1 % of the axis wide
            middle = (phase.start + phase.stop) / 2
            axes.text(middle, top, phase.name, ha="center", va="top", color=MUTED, size=9.5)


def _mark_peak(axes: Axes, timeline: Timeline, unit: str) -> None:
    row = timeline.peak_row
    total = timeline.account(row).total
    place = (row, total.to(unit))
    axes.plot(*place, marker="o", markersize=5, color=INK, clip_on=False, zorder=5)
    words, left_half = f"peak {_one_decimal(total, unit)}", row < len(timeline) / 2
    offset, side = ((7, 3), "left") if left_half else ((-7, 3), "right")
    note(axes, words, place, offset, ha=side, va="bottom", bbox=PAPER)


def _one_decimal(nbytes: Bytes, unit: str) -> str:
    return f"{nbytes:.1{unit}}" if unit != "B" else f"{nbytes}"


def _peak_in_words(record: MemoryRecord) -> str:
    """One sentence: the phase of the peak, and its largest category."""
    peak = record.peak
    largest = max(CATEGORIES, key=lambda category: peak[category])
    share = f"{peak[largest] / max(1, peak.total):.0%}"
    where = {
        "forward": "during the forward pass",
        "backward": "during the backward pass",
        "optimizer step": "inside the optimizer's step",
    }.get(record.peak_phase, "outside of the passes")
    return f"The peak of {peak.total} comes {where}; {share} of it are {largest}."


def _timeline_in_words(record: MemoryRecord) -> str:
    """The accounts at entry, at the end of each phase and at the peak."""
    timeline = record.timeline
    moments = [("At entry", timeline.account(0))]
    moments += [(f"After {phase.name}", timeline.account(phase.stop - 1)) for phase in timeline.phases[:6]]
    moments += [("At the peak", record.peak)]
    told = [f"{moment}: {_in_words(account)}." for moment, account in moments]
    return f"Stacked areas over {len(timeline):,} operations. " + " ".join(told)


def _in_words(account: MemoryAccount) -> str:
    parts = [f"{category} {nbytes}" for category, nbytes in account.items() if nbytes]
    return ", ".join(parts) or "nothing"


def stack_categories(
    axes: Axes, accounts: Mapping[str, MemoryAccount], unit: str, thick: float, upright: bool = False
) -> None:
    """A bar for each name → account, stacked by category; categories without bytes get no place in the legend.

    Args:
        unit: unit of the bars' lengths.
        thick: width of a bar, as a share of its place.
        upright: from the bottom up, instead of from the left and downwards.
    """
    names, base = list(accounts), np.zeros(len(accounts))
    for category in CATEGORIES:
        sizes = np.array([account[category].to(unit) for account in accounts.values()])
        look: dict[str, Any] = {"color": PALETTE[category], "label": category}
        if sizes.any() and upright:
            axes.bar(names, sizes, thick, bottom=base, **look)
        elif sizes.any():
            axes.barh(names, sizes, thick, left=base, **look)
        base += sizes
    axes.grid(False, axis="x" if upright else "y")


def memory_bar(
    accounts: Mapping[str, MemoryAccount], *, limit: Mapping[str, Bytes] | None = None, unit: str | None = None,
    caption: str, alt: str = "",
) -> Picture:  # fmt: skip
    """Accounts side by side, one stacked bar each, against the memory of devices.

    Args:
        accounts: name → account.
        limit: name → bytes ("A100 80GB": Bytes(80 * 10**9)), drawn as vertical lines.
        unit: unit of the axis; by default the best one for the largest account.

    Raises:
        ValueError: no account given, or the unit is unknown.
    """
    if not accounts:
        raise ValueError("memory_bar needs at least one account, given none: pass a dict of name and MemoryAccount")
    limits = limit or {}
    largest = max([account.total for account in accounts.values()] + list(limits.values()))
    unit = unit or largest.best_unit()
    figure, (axes,) = new_figure(height=1.3 + 0.42 * len(accounts))
    stack_categories(axes, accounts, unit, 0.62)
    at_the_edge = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}  # no limit stands there
    for name, account in accounts.items():
        note(axes, _one_decimal(account.total, unit), (1, name), (0, 0), **at_the_edge)
    for name, nbytes in limits.items():
        axes.axvline(nbytes.to(unit), color=INK, linewidth=1.2, linestyle="--")
        note(axes, name, (nbytes.to(unit), 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes.set(xlabel=unit, xlim=(0, 1.2 * largest.to(unit) or 1))
    axes.invert_yaxis()
    legend(figure, "lower center", len(CATEGORIES))
    words = [f"{name}: {_in_words(account)}, together {account.total}." for name, account in accounts.items()]
    words += [f"Limit of {name}: {nbytes}." for name, nbytes in limits.items()]
    return Picture(figure, caption=caption, alt=alt or "Stacked bars. " + " ".join(words))


def memory_against_gpus(account: MemoryAccount, gpus: Mapping[str, Bytes], *, caption: str, alt: str) -> Picture:
    """One stacked bar, and below it a bar for the memory of each card; a line carries the total down to them.

    Raises:
        ValueError: no card given.
    """
    if not gpus:
        raise ValueError("memory_against_gpus needs at least one card: pass a dict of name and bytes")
    figure, (axes,) = new_figure(height=1.5 + 0.3 * len(gpus))
    total = account.total.to("GiB")
    stack_categories(axes, {"at the peak": account}, "GiB", 0.8)
    for name, memory in gpus.items():
        fits, size = account.total <= memory, memory.to("GiB")
        axes.barh([name], [size], height=0.55, color="#98A2AD" if fits else GRID)
        words = (
            f"fits, {account.total / memory:.0%} full" if fits else f"at least {-(-account.total // memory)} of them"
        )
        note(axes, words, (max(size, total), name), (6, 0), va="center")
    note(axes, f"{account.total:.1GiB}", (total, "at the peak"), (6, 0), va="center", color="black")
    axes.axvline(total, color=INK, linewidth=1, linestyle="--")
    axes.set(xlabel="GiB", xlim=(0, 1.22 * max(total, *(memory.to("GiB") for memory in gpus.values()))))
    axes.invert_yaxis()
    legend(figure, "lower center", len(CATEGORIES))
    return Picture(figure, caption=caption, alt=alt)


def memory_growth(
    over: Sequence[int], predicted: Mapping[str, Sequence[Bytes]], *, along: str, caption: str,
    measured: Mapping[str, Sequence[Bytes]] | None = None, limits: Mapping[str, Bytes] | None = None,
    log: bool = False,
) -> Picture:  # fmt: skip
    """Bytes over one quantity: formulas as lines, measurements as rings on them.

    Args:
        over: the quantity's values.
        predicted: name of a line → its bytes, one for each value.
        along: name of the quantity.
        measured: the same names, or some of them → measured bytes.
        limits: name → bytes, drawn as horizontal lines.
        log: both axes logarithmic, to base 2.

    Raises:
        ValueError: no line, or a line has another number of values than `over`.
    """
    measured, limits = measured or {}, limits or {}
    if not predicted or any(len(values) != len(over) for values in (*predicted.values(), *measured.values())):
        raise ValueError(f"memory_growth needs lines of {len(over)} values each, as many as `over` has")
    figure, (axes,) = new_figure(height=3.2)
    unit = max(max(values) for values in predicted.values()).best_unit()
    for name, values in predicted.items():
        (line,) = axes.plot(over, [nbytes.to(unit) for nbytes in values], lw=2)
        note(axes, name, (over[-1], values[-1].to(unit)), (8, 0), va="center", color=line.get_color(), size=10)
    for values in measured.values():
        rings = [nbytes.to(unit) for nbytes in values]
        axes.plot(over, rings, ls="", marker="o", ms=5, mfc="white", mec=PALETTE["measured"], mew=1.5, zorder=4)
    for name, nbytes in limits.items():
        axes.axhline(nbytes.to(unit), color=INK, lw=1, ls="--")
        note(axes, name, (over[0], nbytes.to(unit)), (2, 3), va="bottom")
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(over, [f"{value:,}" for value in over])
    axes.minorticks_off()
    axes.set(xlabel=along, ylabel=f"alive ({unit})")
    told = [f"{name}: {values[0]} at {over[0]:,}, {values[-1]} at {over[-1]:,}." for name, values in predicted.items()]
    told += ["The measured dots lie on the lines."] if measured else []
    told += [f"{name} has {nbytes}." for name, nbytes in limits.items()]
    return Picture(figure, caption=caption, alt=f"Bytes over {along}. {' '.join(told)}")


def kept_tensors(kept: Mapping[str, Sequence[tuple[str, Bytes]]], *, caption: str) -> Picture:
    """Tensors that autograd keeps of one block, in the order of the forward pass, for several batches.

    Args:
        kept: name of a batch → its tensors, (name, bytes) each; the tensors' names are the same for all.

    Raises:
        ValueError: no batch, or two that do not keep the same tensors.
    """
    batches = [[name for name, _ in tensors] for tensors in kept.values()]
    if not batches or any(names != batches[0] for names in batches):
        raise ValueError(f"kept_tensors compares batches that keep the same tensors, in one order; given {batches}")
    figure, panels = new_figure(columns=len(kept), height=1.1 + 0.22 * len(batches[0]))
    places = range(len(batches[0]))
    longest = max(nbytes.to("MiB") for tensors in kept.values() for _, nbytes in tensors)
    for axes, (batch, tensors) in zip(panels, kept.items(), strict=True):
        sizes = [nbytes.to("MiB") for _, nbytes in tensors]
        axes.barh(places, sizes, height=0.72, color=PALETTE["activations"])
        together = sum((nbytes for _, nbytes in tensors), Bytes(0))
        axes.set(title=f"{batch}: {together:.1MiB}", xlabel="MiB", xlim=(0, 1.25 * longest))
        for place, (_, nbytes) in enumerate(tensors):
            words = f"{nbytes:.0{nbytes.best_unit()}}" if nbytes >= 2**10 else str(nbytes)
            note(axes, words, (nbytes.to("MiB"), place), (4, 0), va="center", color=MUTED, size=9)
        axes.set_yticks(places, batches[0] if axes is panels[0] else [])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(False, axis="y")
        axes.invert_yaxis()
    told = [f"{batch}: {', '.join(f'{name} {size}' for name, size in tensors)}." for batch, tensors in kept.items()]
    return Picture(figure, caption=caption, alt=f"A bar for each tensor that is kept. {' '.join(told)}")
