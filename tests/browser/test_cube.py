"""The cube explorer as a reader meets it: its numbers, mouse and keyboard, narrow and wide."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from course_pages.lesson12.explorer import CubeExplorer, sent
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


def test_the_browser_finds_the_groups_and_adds_up_what_python_predicts(alone: Alone) -> None:
    page, chosen = alone(CubeExplorer), random.Random(0)
    offers = {name: control.values for name, control in CubeExplorer.controls().items()}
    runs = [{name: chosen.choice(values) for name, values in offers.items()} for _ in range(40)]
    looked = page.evaluate("runs => runs.map((run) => explorer.look(JSON.parse(model.get('table')), run))", runs)
    for run, found in zip(runs, looked, strict=True):
        shown = CubeExplorer(**run)
        stage = shown.mesh.coordinates(run["rank"])["pipeline"]
        for axis, (group, torn, took) in shown.costs.items():
            n_bytes = sent(run["model"], run["pipeline"], run["data"], run["tensor"])[stage][axis]
            assert (found[axis]["group"], found[axis]["torn"]) == (group, torn)
            assert found[axis]["bytes"] == f"{n_bytes / 1e9:.1f} GB"
            assert found[axis]["seconds"] == pytest.approx(float(took), abs=1e-4)


def test_moves_are_told_drawn_and_reach_python(alone: Alone) -> None:
    page = alone(CubeExplorer)
    status = page.get_by_role("status")
    expect(status).to_contain_text("over the network along data and pipeline.")
    expect(page.locator(".cx-met")).to_have_count(5)
    page.get_by_label("Slowest").select_option("tensor, pipeline, data")
    expect(status).to_contain_text("over the network along tensor.")
    page.get_by_label("Ranks in a machine").select_option("8")
    expect(page.locator(".cx-machine")).to_have_count(2)
    page.get_by_role("slider", name="Look at rank").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".cx-self")).to_have_text("4")
    assert page.evaluate("['order', 'machine', 'rank'].map((name) => model.get(name))") == [
        "tensor, pipeline, data",
        8,
        4,
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(alone: Alone, dark: bool) -> None:
    """At four widths, with the fewest ranks and with the most."""
    page = alone(CubeExplorer, dark=dark)
    cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
    for change in ({"tensor": 2}, {"tensor": 4, "data": 4, "pipeline": 4, "order": "tensor, data, pipeline"}):
        page.evaluate("(change) => Object.entries(change).forEach(([name, value]) => model.set(name, value))", change)
        for width in (340, 600, 760, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not page.locator(".ex-body div, .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(alone: Alone, unnamed: Callable[[Locator], list[str]]) -> None:
    page = alone(CubeExplorer)
    assert not unnamed(page.locator("#widget"))
    expect(page.get_by_role("img")).to_have_attribute(
        "aria-label", "16 ranks in 4 machines; rank 5 meets along tensor 4, 6, 7; along data 1; along pipeline 13"
    )
