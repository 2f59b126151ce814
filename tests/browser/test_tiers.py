"""The explorer of the three tiers as a reader meets it: its numbers, its buttons and its bars."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from course_pages.lesson11.explorer import PLACES, TiersExplorer
from tests.browser.conftest import Alone
from tests.pages.explorers import places

pytestmark = pytest.mark.browser

LOOK = "explorer.look(JSON.parse(model.get('table')), JSON.parse(model.get('_controls')), run)"


def test_the_browser_adds_up_and_divides_as_python_does(alone: Alone) -> None:
    page, runs = alone(TiersExplorer), places("TiersExplorer", 25)
    for run, found in zip(runs, page.evaluate(f"runs => runs.map((run) => {LOOK})", runs), strict=True):
        shown = TiersExplorer(None, **run)
        for place, tier in zip(PLACES, found["tiers"], strict=True):
            account, capacity = shown.tiers[place], shown.capacities[place]
            assert tier["held"] == list(map(int, account.values())) and tier["total"] == account.total
            assert (tier["capacity"], tier["fits"]) == (capacity, account.total <= capacity)
        assert found["seconds"] == pytest.approx([float(each) for each in shown.seconds.values()])
        assert found["efficiency"] == pytest.approx(float(shown.efficiency))


def test_a_button_moves_four_states_at_once(alone: Alone) -> None:
    page = alone(TiersExplorer, sequences=2)
    status = page.get_by_role("status")
    page.get_by_role("button", name="ZeRO-Infinity").click()
    expect(status).to_contain_text("the card computes in 1.25 s of them: 4 %.")
    expect(page.locator(".ex-total")).to_have_text(["3.4 GiB, fits", "1.0 GiB, fits", "99.2 GiB, fits"])
    moved = page.evaluate("['sequences', 'weights', 'optimizer', 'checkpoints'].map((name) => model.get(name))")
    assert moved == [2, "disk", "disk", "main memory"]
    page.get_by_role("button", name="All on the GPU").click()
    page.get_by_role("combobox", name="Model").select_option("GPT-2 XL")
    expect(status).to_have_text("GPT-2 XL: all of it fits on the GPU, and nothing travels.")


def test_bars_end_where_their_bytes_do(alone: Alone) -> None:
    page = alone(TiersExplorer)
    track = page.locator(".ex-track").first.bounding_box()
    assert track
    account, capacity = TiersExplorer().tiers["GPU"], TiersExplorer().capacities["GPU"]
    parts = page.locator(".ex-stack").first.locator(".ex-block")
    widths = parts.evaluate_all("parts => parts.map((part) => part.getBoundingClientRect().width)")
    due = [0.75 * track["width"] * nbytes / capacity for nbytes in account.values()]
    assert widths == pytest.approx(due, abs=0.5)
