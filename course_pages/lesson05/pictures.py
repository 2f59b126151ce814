"""The ladder: one training step made smaller rung by rung, with its bytes and its seconds side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.notebook.picture import INK, MUTED, Picture, legend, new_figure, note
from course_kit.tables import Tabular
from course_kit.units import Bytes, Seconds
from course_pages.shared.memory import stack_categories


class Rung(NamedTuple):
    """One row of the ladder, measured."""

    name: str  # the change since the row above
    peak: MemoryAccount  # bytes at the worst moment of a step
    seconds: Seconds  # of a step over the same number of sequences in every row


class Ladder(Tabular):
    """The rungs as a table."""

    def __init__(self, rungs: Sequence[Rung]) -> None:
        if not rungs:
            raise ValueError("a ladder without a rung given; it needs at least the plain step")
        self.rungs = list(rungs)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        first = self.rungs[0]
        return ("", "peak", "of the first row", "seconds", "of the first row"), [
            (
                rung.name,
                f"{rung.peak.total:.1MiB}",
                f"{rung.peak.total / first.peak.total:.0%}",
                f"{rung.seconds:.2s}",
                f"{rung.seconds / first.seconds:.0%}",
            )
            for rung in self.rungs
        ]

    def picture(self, *, caption: str) -> Picture:
        """The ladder as bars: bytes by category on the left, seconds on the right."""
        rungs = self.rungs
        figure, (held, took) = new_figure(columns=2, height=1.3 + 0.38 * len(rungs))
        stack_categories(held, {rung.name: rung.peak for rung in rungs}, "MiB", 0.66)
        took.barh([rung.name for rung in rungs], [rung.seconds for rung in rungs], height=0.66, color=MUTED)
        for i, rung in enumerate(rungs):
            note(held, f"{rung.peak.total:.0MiB}", (rung.peak.total.to("MiB"), i), (4, 0), va="center")
            note(took, f"{rung.seconds:.2s}", (rung.seconds, i), (4, 0), va="center")
        held.set(xlabel="peak (MiB)", xlim=(0, 1.22 * max(rung.peak.total.to("MiB") for rung in rungs)))
        took.set(xlabel="seconds", xlim=(0, 1.25 * max(rung.seconds for rung in rungs)), yticklabels=[])
        took.grid(False, axis="y")
        for axes in (held, took):
            axes.invert_yaxis()
        legend(figure, "lower center", len(CATEGORIES), fontsize=9.5)
        told = "; ".join(f"{rung.name}: {rung.peak.total:.1MiB}, {rung.seconds:.2s}" for rung in rungs)
        return Picture(figure, caption=caption, alt=f"Bars, from the plain step downwards. {told}.")


def peaks_by_micro_batch(
    peaks: Mapping[int, MemoryAccount], gpu: str, memory: Bytes, *, caption: str, alt: str
) -> Picture:
    """A batch cut into pieces of every size: the bytes alive at the peak, by category, against a GPU's memory.

    Args:
        peaks: sequences in a piece → account at the peak.
        gpu: the name of the GPU.
        memory: the GPU's bytes that a program sees. Bars that reach beyond twice that are cut off there; below each
            bar stands its height.
    """
    figure, (axes,) = new_figure(height=3.4)
    # Heights stand below the bars: a label on top of one would hide the line.
    bars = {f"{size}\n{peak.total.to('GiB'):.1f}": peak for size, peak in peaks.items()}
    stack_categories(axes, bars, "GiB", 0.66, upright=True)
    top = min(2 * memory.to("GiB"), 1.15 * max(memory, *(peak.total for peak in peaks.values())) / 2**30)
    axes.axhline(memory.to("GiB"), color=INK, lw=1.4, ls="--")
    note(axes, f"{gpu}:\n{memory:.1GiB}", (len(peaks) - 0.5, memory.to("GiB")), (6, 0), va="center")
    axes.set_xlim(-0.5, len(peaks) - 0.5)
    axes.set(xlabel="sequences in a piece, and GiB at the peak", ylabel="peak (GiB)", ylim=(0, top))
    legend(figure, "lower center", len(CATEGORIES), fontsize=9.5)
    return Picture(figure, caption=caption, alt=alt)
