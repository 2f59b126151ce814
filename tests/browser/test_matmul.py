"""The matmul explorer as a reader meets it: by mouse, by keyboard, by screen reader, narrow and wide."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Locator, expect

from course_pages.lesson08.explorer import ALONE, CUTS, RANKS, MatmulExplorer, stops, told
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


@pytest.fixture
def explorer(alone: Alone) -> Alone:
    """`explorer(first="rows", dark=True)`."""
    return partial(alone, MatmulExplorer)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("second", [*CUTS, ALONE])
@pytest.mark.parametrize("first", CUTS)
def test_the_browser_draws_what_the_layouts_say(explorer, first: str, second: str, p: int) -> None:
    page, way = explorer(first=first, second=second, ranks=p), stops(first, second, p)
    drawn = page.locator(".mm-box").evaluate_all("boxes => boxes.map((box) => [box.className, box.children.length])")
    assert drawn == [[f"mm-box mm-{each.lies}", 1 if each.lies == "whole" else p] for each in way]
    expect(page.get_by_role("status")).to_have_text(told(first, second, p))
    messages = [f"{each.behind}→{each.sent:.0kB}" for each in way if each.sent]
    assert page.locator(".mm-message").all_text_contents() == messages


def test_a_rank_stands_out_and_its_parts_are_told(explorer) -> None:
    page = explorer()
    slider = page.get_by_role("slider", name="look at")
    assert slider.get_attribute("aria-valuetext") == "all ranks"
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "rank 2"
    assert page.evaluate("[model.get('rank'), model.saved]") == [2, 3]
    expect(page.locator(".mm-note")).to_have_text(
        "Weights, of A: rank 2 holds columns 256 to 383; of B: rank 2 holds rows 256 to 383."
    )
    expect(page.get_by_role("img", name="H, 64 × 512: rank 2 holds columns 256 to 383")).to_have_count(1)
    expect(page.get_by_role("img", name="Y, 64 × 128: rank 2 holds its term")).to_have_count(1)
    expect(page.locator(".mm-faded")).to_have_count(4 * 3)  # A, H, B and Y's terms, of which three ranks step back


def test_choices_reach_python_and_python_reaches_the_page(explorer) -> None:
    page = explorer(ranks=8, rank=7)
    page.get_by_label("cut B by").select_option("(no B)")
    page.get_by_label("ranks", exact=True).select_option("2")
    assert page.evaluate("['second', 'ranks', 'rank'].map((name) => model.get(name))") == ["none", 2, 1]
    page.evaluate("model.set('first', 'rows')")
    expect(page.get_by_role("status")).to_have_text(told("rows", ALONE, 2))


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(explorer, dark: bool) -> None:
    page = explorer(dark=dark, first="rows", second="rows", ranks=8)
    for width in (340, 600, 760, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
        assert not page.locator(".ex-body div, .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(explorer, unnamed: Callable[[Locator], list[str]]) -> None:
    assert not unnamed(explorer().locator("#widget"))
