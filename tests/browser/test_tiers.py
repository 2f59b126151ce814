"""The explorer of the three tiers as a reader meets it: its numbers, mouse and keyboard, narrow and wide."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from course_pages.lesson11.explorer import PLACES, STATES, TiersExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser

LOOK = "explorer.look(JSON.parse(model.get('table')), JSON.parse(model.get('_controls')), run)"


def test_the_browser_adds_up_and_divides_as_python_does(alone: Alone) -> None:
    page, chosen = alone(TiersExplorer), random.Random(0)
    offers = {name: control.values for name, control in TiersExplorer.controls().items()}
    runs: list[dict[str, Any]] = [{name: chosen.choice(each) for name, each in offers.items()} for _ in range(25)]
    for run, found in zip(runs, page.evaluate(f"runs => runs.map((run) => {LOOK})", runs), strict=True):
        shown = TiersExplorer(None, **run)
        for place, tier in zip(PLACES, found["tiers"], strict=True):
            account, capacity = shown.tiers[place], shown.capacities[place]
            assert tier["held"] == list(map(int, account.values())) and tier["total"] == account.total
            assert (tier["capacity"], tier["fits"]) == (capacity, account.total <= capacity)
        assert found["seconds"] == pytest.approx([float(each) for each in shown.seconds.values()])
        assert found["efficiency"] == pytest.approx(float(shown.efficiency))


def test_moves_are_told_drawn_and_reach_python(alone: Alone) -> None:
    page = alone(TiersExplorer)
    status = page.get_by_role("status")
    expect(status).to_have_text(
        "GPT-3 6.7B: everything fits. A step takes 4.37 s if nothing is hidden, "
        "and the card computes in 2.50 s of them: 57 %."
    )
    page.get_by_role("slider", name="Sequences").focus()
    page.keyboard.press("ArrowLeft")
    expect(status).to_contain_text("in 1.25 s of them: 40 %.")
    page.get_by_role("combobox", name="Optimizer state").select_option("GPU")
    expect(status).to_have_text("GPT-3 6.7B: 102.5 GiB do not fit on the GPU, which has 39.5 GiB.")
    expect(page.locator(".ex-longer")).to_have_count(1)
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


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(alone: Alone, dark: bool) -> None:
    """At four widths, with short words and with the longest."""
    page = alone(TiersExplorer, dark=dark)
    cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
    longest = {"model": "Llama 3 405B", "gpu": "H100 SXM 80GB", "sequences": 1, "memory": "2 TiB"}
    for change in ({}, longest | dict.fromkeys(STATES, "main memory")):
        page.evaluate("(change) => Object.entries(change).forEach(([name, value]) => model.set(name, value))", change)
        for width in (340, 600, 760, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = page.locator(".ex-body div:not(.ex-longer), .ex-body label, .tx-where").evaluate_all(cut)
            assert not found, (width, found)


def test_every_control_and_bar_has_a_name(alone: Alone, unnamed: Callable[[Locator], list[str]]) -> None:
    page = alone(TiersExplorer)
    assert not unnamed(page.locator("#widget"))
    for name in (
        "GPU memory: weights 12.4 GiB, gradients 12.4 GiB, checkpoints 2.0 GiB, passing through 4.6 GiB",
        "the processor: 1.04 s",
    ):
        expect(page.get_by_role("img", name=name)).to_have_count(1)
