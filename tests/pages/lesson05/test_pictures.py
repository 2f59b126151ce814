"""The ladder as figure and table: what was measured, and shares of the first row."""

from __future__ import annotations

from course_kit.accounts import CATEGORIES, MemoryAccount
from course_kit.units import Bytes, Seconds
from course_pages.lesson05.pictures import Ladder, Rung, peaks_by_micro_batch

MIB = 2**20
PLAIN = MemoryAccount(Bytes(10 * MIB), Bytes(0), Bytes(20 * MIB), Bytes(69 * MIB), Bytes(MIB))
LEAN = MemoryAccount(Bytes(10 * MIB), Bytes(10 * MIB), Bytes(0), Bytes(5 * MIB))
RUNGS = [Rung("plain", PLAIN, Seconds(0.5)), Rung("lean & slow", LEAN, Seconds(0.75))]


def test_the_bars_are_the_accounts():
    picture = Ladder(RUNGS).picture(caption="c")
    held, took = picture.figure.axes
    assert picture.caption == "c" and "plain: 100.0 MiB, 0.50 s; lean & slow: 25.0 MiB, 0.75 s" in picture.alt
    for category, bars in zip(CATEGORIES, held.containers, strict=True):
        assert [bar.get_width() for bar in bars] == [rung.peak[category] / MIB for rung in RUNGS]  # type: ignore[union-attr]
    last = [bar.get_x() + bar.get_width() for bar in held.containers[-1]]  # type: ignore[union-attr]
    assert last == [100, 25]
    assert [bar.get_width() for bar in took.containers[0]] == [0.5, 0.75]  # type: ignore[union-attr]


def test_the_table_has_shares_of_the_first_row():
    ladder = Ladder(RUNGS)
    _, rows = ladder._table()
    assert rows[1] == ("lean & slow", "25.0 MiB", "25%", "0.75 s", "150%")
    assert "lean &amp; slow" in ladder._repr_html_()
    lines = repr(ladder).splitlines()
    assert len(lines) == 3 and lines[1].startswith("plain") and lines[1].split()[-3:] == ["0.50", "s", "100%"]


def test_cuts_stand_against_a_gpu():
    gib = 2**30
    peaks = {size: MemoryAccount(Bytes(gib), Bytes(gib), Bytes(0), Bytes(size * gib)) for size in (1, 2, 64)}
    figure = peaks_by_micro_batch(peaks, "a card", Bytes(8 * gib), caption="c", alt="a").figure
    axes = figure.axes[0]
    assert list(axes.lines[0].get_ydata()) == [8, 8]  # type: ignore[arg-type]
    assert axes.get_ylim() == (0, 16)
    assert [text.get_text() for text in axes.texts] == ["a card:\n8.0 GiB"]
    figure.draw_without_rendering()  # only then have ticks their words
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1\n3.0", "2\n4.0", "64\n66.0"]
