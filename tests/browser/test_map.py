"""The map of layouts as a reader meets it: cells, dots, a click, and what becomes illegal."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from course_pages.lesson17.explorer import MapExplorer, cells, published
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


def test_cells_dots_and_a_click(alone: Alone) -> None:
    page = alone(MapExplorer)
    status = page.get_by_role("status").first
    cell, (seconds, _) = cells("8B on 8", "H100", 0, 1, False)[2, 2], published("8B on 8", 0, 1)[2, 2]
    expect(status).to_contain_text(
        f"Tensor 2, 2 stages: {cell.step:.1f} s a step, {cell.gb:.0f} GB on the fullest GPU, which fits. "
        f"Published: {seconds:.1f} s"
    )
    expect(page.locator(".mx-full")).to_have_count(4)
    expect(page.get_by_text("● died")).to_have_count(4)
    page.get_by_role("button", name="Tensor 8, 1 stage:").click()
    expect(status).to_contain_text("Its blocks wait for their launches.")
    expect(page.locator(".mx-here")).to_have_count(1)


def test_zero_needs_replicas_and_dots_are_h100s(alone: Alone) -> None:
    page = alone(MapExplorer)
    page.get_by_role("slider", name="ZeRO").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Tensor 8, 1 stage:").click()
    expect(page.get_by_role("status").first).to_contain_text("not legal here")
    page.get_by_role("combobox", name="GPU", exact=True).select_option("A100")
    expect(page.get_by_text("●", exact=False)).to_have_count(1)  # the note below the map
