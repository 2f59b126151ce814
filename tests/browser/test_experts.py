"""The experts explorer as a reader meets it: its numbers and its queues."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from course_pages.lesson13.explorer import ExpertsExplorer
from tests.browser.conftest import Alone
from tests.pages.explorers import places

pytestmark = pytest.mark.browser

LOOK = "explorer.look(JSON.parse(model.get('table')), JSON.parse(model.get('_controls')), run)"


def test_the_browser_gives_out_places_as_python_does(alone: Alone) -> None:
    page, runs = alone(ExpertsExplorer), places("ExpertsExplorer", 30)
    for run in runs:
        run["ranks"], run["token"] = min(run["ranks"], run["experts"]), run["token"] % run["tokens"]
    for run, found in zip(runs, page.evaluate(f"runs => runs.map((run) => {LOOK})", runs), strict=True):
        shown = ExpertsExplorer(None, **run)
        wanted, kept = shown.wanted, shown.kept
        stands = [
            [each["kept"] for choice in range(run["top_k"]) for queue in found["queues"] for each in queue
             if each["token"] == token and each["choice"] == choice]
            for token in range(run["tokens"])
        ]  # fmt: skip
        assert (found["wanted"], stands) == (wanted.tolist(), kept.tolist())
        assert (found["capacity"], found["empty"]) == (shown.config.capacity(run["tokens"]), shown.empty)
        assert found["lost"] == (~kept).all(1).nonzero().flatten().tolist()
        assert found["dropped"] == int((~kept).sum())
        assert {name: tuple(pair) for name, pair in found["costs"].items()} == shown.costs


def test_a_cell_chooses_its_token(alone: Alone) -> None:
    page = alone(ExpertsExplorer)
    page.locator(".xp-cell", has_text="30").first.click()
    expect(page.locator(".xp-picked")).to_have_text(["30", "30"])
    assert page.evaluate("[model.get('token'), model.saved]") == [30, 1]


def test_a_collapsed_router_drops_nearly_everybody(alone: Alone) -> None:
    page = alone(ExpertsExplorer, tokens=64, top_k=1, skew=4.0, capacity_factor=1.0)
    shown = ExpertsExplorer(tokens=64, top_k=1, skew=4.0, capacity_factor=1.0)
    dropped = int((~shown.kept).sum())
    assert dropped > 45
    expect(page.get_by_role("status").first).to_contain_text(f"{dropped} of 64 choices are dropped; {dropped} of 64")
    expect(page.locator(".xp-lost")).to_contain_text(f"and {dropped - 12} more.")


def test_the_line_stands_behind_the_last_place(alone: Alone) -> None:
    """Also on a narrow page: ten places are as wide as ten tokens, and the first who is dropped stands behind them."""
    page = alone(ExpertsExplorer)
    for width in (340, 1000):
        page.set_viewport_size({"width": width, "height": 900})
        places = page.locator(".xp-places").nth(1).bounding_box()
        cells = [page.locator(".xp-track").nth(1).locator(".xp-cell").nth(i).bounding_box() for i in (9, 10)]
        assert places and cells[0] and cells[1]
        line = places["x"] + places["width"]
        assert cells[0]["x"] + cells[0]["width"] <= line + 0.1 and cells[1]["x"] >= line - 0.1
