"""The bowl as a reader meets it: its words and curves, keyboard, another fit, narrow and wide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from course_pages.lesson14.explorer import BowlExplorer, bowls_table
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


def test_a_bowl_is_drawn_to_its_own_scale(alone: Alone) -> None:
    """In a box of 1000 × 100 the lowest point lies at the bottom, and the line of least loss in the middle."""
    page = alone(BowlExplorer)
    bowl = bowls_table()["this page's runs"][4]
    shapes = page.evaluate("bowl => explorer.shapes(bowl)", bowl)
    drawn = [*bowl["loss"], *bowl["low"], *bowl["high"], *(loss for _, loss in bowl["runs"])]
    assert (shapes["bottom"], shapes["top"]) == (min(drawn), max(drawn))
    assert float(shapes["paths"]["best"].removeprefix("M").split()[0]) == pytest.approx(500, abs=2)
    assert shapes["paths"]["loss"].count("L") == len(bowl["loss"]) - 1
    least = min(float(point.split()[1]) for point in shapes["paths"]["loss"].removeprefix("M").split("L"))
    assert 4 <= least <= 96


def test_the_keyboard_buys_more_and_another_fit_moves_the_bottom(alone: Alone) -> None:
    page = alone(BowlExplorer)
    status = page.get_by_role("status")
    expect(status).to_contain_text("tokens a parameter, for a loss of 1.741 nats")
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    expect(status).not_to_contain_text("1.741 nats")
    page.get_by_role("combobox").select_option("Chinchilla, 240 runs")
    page.get_by_role("slider").focus()
    page.keyboard.press("End")
    n, d, loss = bowls_table()["Chinchilla, 240 runs"][-1]["best"]
    expect(status).to_contain_text(f"for a loss of {loss:.3f} nats")
    expect(status).to_contain_text("billion parameters and")
    assert 10 < d / n < 40
    assert page.evaluate("[model.get('fit'), model.get('times')]") == ["Chinchilla, 240 runs", 96_000]


def test_nothing_sticks_out_and_every_control_has_a_name(alone: Alone, unnamed: Callable[[Locator], list[str]]) -> None:
    page = alone(BowlExplorer)
    assert not unnamed(page.locator("#widget"))
    for width in (340, 600, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
