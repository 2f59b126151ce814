"""Bytes that grow: lines over depth, batch or sequence length.

Lesson 02 opens this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_lib.figures.style import INK, PALETTE, new_figure, present, series_color
from course_lib.units import Bytes


def memory_growth(
    over: Sequence[int], predicted: Mapping[str, Sequence[Bytes]], *, along: str, caption: str,
    measured: Mapping[str, Sequence[Bytes]] | None = None, limits: Mapping[str, Bytes] | None = None,
    log: bool = False,
) -> None:  # fmt: skip
    """Show bytes over one quantity: formulas as lines, measurements as dots on them.

    Args:
        over: the quantity's values.
        predicted: name of a line → its bytes, one for each value.
        along: what `over` is.
        caption: what the reader should see.
        measured: the same names, or some of them → measured bytes.
        limits: name → bytes, drawn as horizontal lines.
        log: both axes logarithmic, the first to base 2.

    Raises:
        ValueError: no line, or a line has another number of values than `over`.
    """
    told = [f"{name}: {values[0]} at {over[0]:,}, {values[-1]} at {over[-1]:,}." for name, values in predicted.items()]
    told += ["The measured dots lie on the lines."] if measured else []
    told += [f"{name} has {nbytes}." for name, nbytes in (limits or {}).items()]
    figure = draw_memory_growth(over, predicted, along, measured, limits, log)
    present(figure, caption=caption, alt=f"Bytes over {along}. {' '.join(told)}")


def draw_memory_growth(
    over: Sequence[int], predicted: Mapping[str, Sequence[Bytes]], along: str,
    measured: Mapping[str, Sequence[Bytes]] | None = None, limits: Mapping[str, Bytes] | None = None,
    log: bool = False,
) -> Figure:  # fmt: skip
    """The figure of `memory_growth`, not yet shown."""
    lines = {**predicted, **{f"measured {name}": values for name, values in (measured or {}).items()}}
    if not predicted or any(len(values) != len(over) for values in lines.values()):
        raise ValueError(f"memory_growth needs lines of {len(over)} values each, as many as `over` has")
    figure, (axes,) = new_figure(height=3.2)
    unit = max(max(values) for values in predicted.values()).best_unit()
    for number, (name, values) in enumerate(predicted.items()):
        color = series_color(number)
        axes.plot(over, [nbytes.to(unit) for nbytes in values], color=color, lw=2)
        axes.annotate(
            name, (over[-1], values[-1].to(unit)), (8, 0), textcoords="offset points", va="center", color=color, size=10
        )
    for values in (measured or {}).values():
        dots = [nbytes.to(unit) for nbytes in values]
        axes.plot(over, dots, ls="", marker="o", ms=5, mfc="white", mec=PALETTE["measured"], mew=1.5, zorder=4)
    for name, nbytes in (limits or {}).items():
        axes.axhline(nbytes.to(unit), color=INK, lw=1, ls="--")
        axes.annotate(
            name, (over[0], nbytes.to(unit)), (2, 3), textcoords="offset points", va="bottom", color=INK, size=9.5
        )
    if log:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(over, [f"{value:,}" for value in over])
    axes.minorticks_off()
    axes.set(xlabel=along, ylabel=f"alive ({unit})")
    axes.spines["right"].set_visible(False)
    return figure
