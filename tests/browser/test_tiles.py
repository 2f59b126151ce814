"""The tiles explorer as a reader meets it: its tiles, its numbers, its sentence."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from course_pages.lesson16.explorer import TilesExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


def test_a_tile_is_shown_and_the_next_one_is_a_button_away(alone: Alone) -> None:
    page = alone(TilesExplorer)
    status = page.get_by_role("status").first
    expect(status).to_contain_text("Tile 6 of 16, queries 4 to 7, keys 4 to 7")
    expect(page.locator(".tl-now")).to_have_count(10)  # of 16, six are behind their queries
    expect(page.get_by_text("values of keys 4 to 7: 9, 7, 4, 2")).to_be_visible()
    expect(page.get_by_text("read so far")).to_be_visible()
    page.get_by_role("button", name="one tile forward").click()
    expect(status).to_contain_text("it is skipped: nothing is read or computed")
    expect(page.locator(".tl-now")).to_have_count(0)


def test_fewer_tiles_than_steps_show_the_end(alone: Alone) -> None:
    page = alone(TilesExplorer)
    page.get_by_role("slider", name="Queries in a tile").focus()
    page.keyboard.press("End")
    page.get_by_role("slider", name="Keys in a tile").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("status").first).to_contain_text("Tile 1 of 1")
    expect(page.get_by_role("button", name="one tile forward")).to_be_disabled()
