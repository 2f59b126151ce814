"""The ladder: one training step made smaller rung by rung, with its bytes and its seconds side by side.

Lesson 05 opens this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.accounts import CATEGORIES, MemoryAccount
from course_lib.figures.style import INK, MUTED, PALETTE, new_figure, present
from course_lib.tables import as_html, as_text
from course_lib.units import Bytes, Seconds


@dataclass(frozen=True)
class Rung:
    """One row of the ladder, measured.

    Attributes:
        name: what changed since the row above.
        peak: bytes at the worst moment of a step.
        seconds: of a step over the same number of sequences in every row.
    """

    name: str
    peak: MemoryAccount
    seconds: Seconds


class Ladder:
    """The rungs as a table: as the last expression of a cell it renders as HTML, elsewhere as text."""

    HEADER = ("", "peak", "of the first row", "seconds", "of the first row")

    def __init__(self, rungs: Sequence[Rung]) -> None:
        if not rungs:
            raise ValueError("a ladder without a rung given; it needs at least the plain step")
        self.rungs = list(rungs)

    def rows(self) -> list[tuple[str, ...]]:
        """The printed cells."""
        first = self.rungs[0]
        return [
            (
                rung.name,
                f"{rung.peak.total:.1MiB}",
                f"{rung.peak.total / first.peak.total:.0%}",
                f"{rung.seconds:.2s}",
                f"{rung.seconds / first.seconds:.0%}",
            )
            for rung in self.rungs
        ]

    def show(self, *, caption: str) -> None:
        """Show the ladder as a figure: bytes by category on the left, seconds on the right."""
        told = "; ".join(f"{rung.name}: {rung.peak.total:.1MiB}, {rung.seconds:.2s}" for rung in self.rungs)
        present(draw_ladder(self.rungs), caption=caption, alt=f"Bars, from the plain step downwards. {told}.")

    def __repr__(self) -> str:
        return as_text(self.HEADER, self.rows())

    def _repr_html_(self) -> str:
        return as_html(self.HEADER, self.rows())


def draw_ladder(rungs: Sequence[Rung]) -> Figure:
    """The figure of `Ladder.show`, not yet shown."""
    figure, (held, took) = new_figure(columns=2, height=1.3 + 0.38 * len(rungs))
    names = [rung.name for rung in rungs]
    _stack(held, {rung.name: rung.peak for rung in rungs}, "MiB", horizontal=True)
    took.barh(names, [rung.seconds for rung in rungs], height=0.66, color=MUTED)
    for i, rung in enumerate(rungs):
        held.annotate(f"{rung.peak.total:.0MiB}", (rung.peak.total.to("MiB"), i), (4, 0), **_BESIDE)
        took.annotate(f"{rung.seconds:.2s}", (rung.seconds, i), (4, 0), **_BESIDE)
    held.set(xlabel="peak (MiB)", xlim=(0, 1.22 * max(rung.peak.total.to("MiB") for rung in rungs)))
    took.set(xlabel="seconds", xlim=(0, 1.25 * max(rung.seconds for rung in rungs)), yticklabels=[])
    for axes in (held, took):
        axes.grid(False, axis="y")
        axes.invert_yaxis()
    figure.legend(*held.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=9.5)
    return figure


def draw_cuts(peaks: Mapping[int, MemoryAccount], gpu: str, memory: Bytes) -> Figure:
    """A batch cut into pieces of every size: what is alive at the peak, by category, against a GPU's memory.

    Args:
        peaks: sequences in a piece → account at the peak.
        gpu: the name of the GPU.
        memory: its bytes. Bars that reach beyond twice that are cut off there; their height stands above them.
    """
    figure, (axes,) = new_figure(height=3.4)
    _stack(axes, {str(size): peak for size, peak in peaks.items()}, "GiB", horizontal=False)
    top = min(2 * memory.to("GiB"), 1.15 * max(memory, *(peak.total for peak in peaks.values())) / 2**30)
    for i, peak in enumerate(peaks.values()):
        height = min(peak.total.to("GiB"), 0.94 * top)
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"{peak.total.to('GiB'):.1f}", (i, height), (0, 3), textcoords="offset points", ha="center",
                      color=INK, size=9.5, bbox=paper)  # fmt: skip
    axes.axhline(memory.to("GiB"), color=INK, lw=1.4, ls="--")
    axes.annotate(f"{gpu}: {memory:.0GiB}", (-0.4, memory.to("GiB")), (0, 3), textcoords="offset points",
                  color=INK, size=9.5)  # fmt: skip
    axes.set(xlabel="sequences in a piece", ylabel="peak (GiB)", ylim=(0, top))
    axes.grid(False, axis="x")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9.5)
    return figure


_BESIDE = {"textcoords": "offset points", "va": "center", "color": INK, "size": 9.5}


def _stack(axes: Axes, peaks: Mapping[str, MemoryAccount], unit: str, horizontal: bool) -> None:
    """Bars of categories, one bar for each account."""
    base = [0.0] * len(peaks)
    for category in CATEGORIES:
        sizes = [peak[category].to(unit) for peak in peaks.values()]
        if horizontal:
            axes.barh(list(peaks), sizes, 0.66, left=base, color=PALETTE[category], label=category)
        else:
            axes.bar(list(peaks), sizes, 0.66, bottom=base, color=PALETTE[category], label=category)
        base = [b + size for b, size in zip(base, sizes)]
