"""The experts explorer as a reader meets it: its numbers, mouse and keyboard, narrow and wide."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from course_pages.lesson13.explorer import ExpertsExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser

LOOK = "explorer.look(JSON.parse(model.get('table')), JSON.parse(model.get('_controls')), run)"


def test_the_browser_gives_out_places_as_python_does(alone: Alone) -> None:
    page, chosen = alone(ExpertsExplorer), random.Random(0)
    offers = {name: control.values for name, control in ExpertsExplorer.controls().items()}
    runs: list[dict[str, Any]] = [{name: chosen.choice(each) for name, each in offers.items()} for _ in range(30)]
    for run in runs:
        run["ranks"], run["token"] = min(run["ranks"], run["experts"]), run["token"] % run["tokens"]
    for run, found in zip(runs, page.evaluate(f"runs => runs.map((run) => {LOOK})", runs), strict=True):
        shown = ExpertsExplorer(None, **run)
        wanted, kept = shown.wanted, shown.kept
        places = [
            [each["kept"] for choice in range(run["top_k"]) for queue in found["queues"] for each in queue
             if each["token"] == token and each["choice"] == choice]
            for token in range(run["tokens"])
        ]  # fmt: skip
        assert (found["wanted"], places) == (wanted.tolist(), kept.tolist())
        assert (found["capacity"], found["empty"]) == (shown.config.capacity(run["tokens"]), shown.empty)
        assert found["lost"] == (~kept).all(1).nonzero().flatten().tolist()
        assert found["dropped"] == int((~kept).sum())
        assert {name: tuple(pair) for name, pair in found["costs"].items()} == shown.costs


def test_moves_are_told_drawn_and_reach_python(alone: Alone) -> None:
    page = alone(ExpertsExplorer)
    status = page.get_by_role("status")
    expect(status.first).to_have_text(
        "8 experts with 10 places each: 10 of 64 choices are dropped, no token loses both; 26 of 80 places stay empty."
    )
    expect(page.locator(".xp-dropped")).to_have_count(10)
    expect(status.nth(1)).to_have_text(
        "Token 0 wants expert 3, where it gets place 1, and expert 1, which has no place left for it."
    )
    page.get_by_role("slider", name="Look at token").focus()
    page.keyboard.press("ArrowRight")
    expect(status.nth(1)).to_contain_text("Token 1 wants expert 4")
    page.locator(".xp-cell", has_text="30").first.click()
    expect(page.locator(".xp-picked")).to_have_text(["30", "30"])
    page.get_by_role("slider", name="Capacity factor").focus()
    page.keyboard.press("End")
    expect(status.first).to_have_text("No limit: nobody is dropped, and queues may be of any length.")
    page.get_by_role("slider", name="Experts of a token").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".xp-cell")).to_have_count(32)
    assert page.evaluate("['token', 'capacity_factor', 'top_k'].map((name) => model.get(name))") == [30, None, 1]


def test_a_collapsed_router_drops_nearly_everybody(alone: Alone) -> None:
    page = alone(ExpertsExplorer, tokens=64, top_k=1, skew=4.0, capacity_factor=1.0)
    shown = ExpertsExplorer(tokens=64, top_k=1, skew=4.0, capacity_factor=1.0)
    dropped = int((~shown.kept).sum())
    assert dropped > 45
    expect(page.get_by_role("status").first).to_contain_text(f"{dropped} of 64 choices are dropped; {dropped} of 64")
    expect(page.locator(".xp-lost")).to_contain_text(f"and {dropped - 12} more.")


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(alone: Alone, dark: bool) -> None:
    """At four widths, with short queues and with the longest."""
    page = alone(ExpertsExplorer, dark=dark)
    cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
    for change in ({}, {"experts": 16, "tokens": 64, "skew": 4.0, "capacity_factor": 0.5, "token": 63}):
        page.evaluate("(change) => Object.entries(change).forEach(([name, value]) => model.set(name, value))", change)
        for width in (340, 600, 760, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = page.locator(".ex-body div, .ex-body label, .xp-told").evaluate_all(cut)
            assert not found, (width, found)


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


def test_every_control_and_queue_has_a_name(alone: Alone, unnamed: Callable[[Locator], list[str]]) -> None:
    page = alone(ExpertsExplorer)
    assert not unnamed(page.locator("#widget"))
    expect(page.get_by_role("img", name="expert 1: 18 tokens in the queue, 8 dropped")).to_have_count(1)
    expect(page.get_by_role("slider", name="Capacity factor")).to_have_attribute("aria-valuetext", "1.25")
