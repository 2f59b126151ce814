"""The accumulation explorer as a reader meets it: its bars and its step, by mouse and by keyboard."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from course_lib.model.hardware import T4
from course_pages.lesson05.explorer import AccumulationExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser

GIVEN: dict[str, Any] = {"global_batch": 64, "micro_batch": 4}


@pytest.fixture
def mounted(alone: Alone) -> Alone:
    """`mounted(micro_batch=64)`: 64 sequences in pieces of 4, or what is given."""
    return partial(alone, AccumulationExplorer, **GIVEN)


def bar(page: Page, micro: int) -> Locator:
    return page.get_by_role("button", name=f" of {micro}: ")


def test_the_bars_tell_the_librarys_peaks(mounted: Alone) -> None:
    page, explorer = mounted(), AccumulationExplorer(**GIVEN)
    names = page.locator(".ax-bar").evaluate_all("bars => bars.map((bar) => bar.getAttribute('aria-label'))")
    memory = T4.usable
    assert names == [
        f"{64 // size} piece{'s' * (size < 64)} of {size}: "
        f"{peak.total.to('GiB'):.{1 if peak.total < 100 * 2**30 else 0}f} GiB, "
        f"{'fits' if peak.total <= memory else 'too much'}"
        for size, peak in explorer.splits.items()
    ]
    for size in (1, 2, 4, 8):
        heights = bar(page, size).locator(".ax-part").evaluate_all(
            "parts => parts.map((part) => part.getBoundingClientRect().height)"
        )  # fmt: skip
        shares = [height / sum(heights) for height in reversed(heights)]
        peak = explorer.splits[size]
        assert shares == pytest.approx([n / peak.total for n in peak.values()], abs=0.02)


def test_the_line_stands_at_the_memory_of_the_gpu(mounted: Alone) -> None:
    page, explorer = mounted(), AccumulationExplorer(**GIVEN)
    column = bar(page, 8).locator(".ax-column").bounding_box()
    line, top = page.locator(".ax-line").bounding_box(), bar(page, 8).locator(".ax-part").first.bounding_box()
    assert column and line and top
    bottom = column["y"] + column["height"]
    ratio = (bottom - top["y"]) / (bottom - line["y"])
    assert ratio == pytest.approx(explorer.splits[8].total / T4.usable, abs=0.03)


def test_a_bar_chooses_a_piece(mounted: Alone) -> None:
    page = mounted()
    bar(page, 16).click()
    assert page.evaluate("[model.get('micro_batch'), model.saved]") == [16, 1]
    expect(bar(page, 16)).to_have_attribute("aria-pressed", "true")
    expect(bar(page, 16)).to_be_focused()


def test_the_step_has_a_tooth_for_each_piece(mounted: Alone) -> None:
    page = mounted()
    step = page.evaluate("explorer.step([10, 10, 20, 30, 2], 3)")
    hills = [corner[1] for corner in step["corners"]]
    assert hills == [30, 62, 40, 72, 40, 72, 40]
    expect(page.get_by_role("img", name="Memory over one step of 16 pieces")).to_have_count(1)
    bar(page, 1).click()
    expect(page.locator(".ax-pane b").nth(1)).to_have_text("The first 16 of 64 pieces")
