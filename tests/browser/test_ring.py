"""The ring explorer as a reader meets it: by mouse, by keyboard and by screen reader."""

from __future__ import annotations

from functools import partial

import pytest
from playwright.sync_api import Locator, Page, expect

from course_pages.lesson06.explorer import RingExplorer, ring_frames
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


@pytest.fixture
def ring(alone: Alone) -> Alone:
    """`ring(world_size=4, step=0)`."""
    return partial(alone, RingExplorer)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def cell(page: Page, rank: int, part: int) -> Locator:
    return page.locator(f'.rx-cell[data-rank="{rank}"][data-part="{part}"]')


@pytest.mark.parametrize("p", [2, 5, *(pytest.param(p, marks=pytest.mark.nightly) for p in (3, 4, 6, 7, 8))])
def test_the_browser_plays_the_librarys_schedule(ring: Alone, p: int) -> None:
    page, frames = ring(world_size=p), ring_frames(p)
    look = """(step) => {
        model.set('step', step);
        return [...document.querySelectorAll('.rx-cell')].map((cell) => ({
            held: [...cell.querySelectorAll('.rx-slot')].flatMap((slot, i) => slot.matches('.rx-in') ? [i] : []),
            marks: [...cell.querySelectorAll('.rx-mark')].map((mark) => mark.textContent),
        }));
    }"""
    for step, frame in enumerate(frames):
        cells = page.evaluate(look, step)
        assert [set(cell["held"]) for cell in cells] == [part for parts in frame.holding for part in parts]
        arrived = {(to, part): "+" if added else "=" for _, to, part, added in frame.arrived}
        following = frames[step + 1].arrived if step + 1 < len(frames) else ()
        leaving = {(source, part) for source, _, part, _ in following}
        assert [cell["marks"] for cell in cells] == [
            [arrived.get((rank, part), ""), "↓" if (rank, part) in leaving else ""]
            for rank in range(p) for part in range(p)
        ]  # fmt: skip


def test_stepping_moves_the_parts_and_says_so(ring: Alone) -> None:
    page = ring()
    expect(button(page, "one step back")).to_be_disabled()
    expect(cell(page, 0, 3)).to_have_accessible_name("rank 0, part 3: summand of 0, goes to rank 1 next")
    button(page, "one step forward").click()
    expect(cell(page, 1, 3)).to_have_accessible_name(
        "rank 1, part 3: summands of 0 and 1, added just now from rank 0, goes to rank 2 next"
    )
    expect(cell(page, 1, 3).locator(".rx-in")).to_have_count(2)
    for _ in range(5):
        button(page, "one step forward").click()
    expect(page.get_by_role("status")).to_have_text(
        "Step 6 of 6: second pass, what arrives is finished and is kept. Everybody has everything."
    )
    expect(page.locator(".rx-done")).to_have_count(16)
    expect(page.locator(".rx-sent")).to_contain_text("6 messages, 1.5 n; at the end 1.5 n. Everyone to everyone: 3 n")
    expect(button(page, "one step forward")).to_be_disabled()
    assert page.evaluate("[model.get('step'), model.saved]") == [6, 6]
    button(page, "back to the start").click()
    expect(page.locator(".rx-done")).to_have_count(0)


def test_more_ranks_start_again(ring: Alone) -> None:
    page = ring(step=5)
    page.get_by_role("combobox", name="ranks").select_option("7")
    expect(page.locator(".rx-cell")).to_have_count(49)
    assert page.evaluate("[model.get('world_size'), model.get('step')]") == [7, 0]


def test_the_keyboard_walks_the_cells_and_follows_a_part(ring: Alone) -> None:
    page = ring(step=1)
    cell(page, 0, 0).focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    expect(cell(page, 3, 1)).to_be_focused()
    expect(page.locator('.rx-cell[tabindex="0"]')).to_have_count(1)
    page.keyboard.press("Space")
    expect(page.locator('.rx-cell[aria-pressed="true"]')).to_have_count(4)
    expect(page.locator(".rx-faded")).to_have_count(12)
    page.keyboard.press("Enter")
    expect(page.locator(".rx-faded")).to_have_count(0)
    page.get_by_role("slider", name="steps taken").focus()
    page.keyboard.press("End")
    assert page.evaluate("model.get('step')") == 6
