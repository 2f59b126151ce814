"""What scripts compute and draw is what Python computes: of explorers about which there is nothing else to say."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from course_pages.lesson08.explorer import ALONE, CUTS, RANKS, MatmulExplorer, stops, told
from course_pages.lesson12.explorer import CubeExplorer, sent
from course_pages.lesson14.explorer import BowlExplorer, bowls_table
from course_pages.lesson15.explorer import RestartExplorer
from course_pages.lesson16.explorer import TilesExplorer
from course_pages.lesson17.explorer import MapExplorer, cells, published
from tests.browser.conftest import Alone
from tests.pages.explorers import places

pytestmark = pytest.mark.browser

COUNT = """chosen => {
    const shown = explorer.look(JSON.parse(model.get('table')), chosen);
    return [[...shown.lost], [...shown.twice]];
}"""


def test_the_browser_finds_the_groups_and_adds_up_what_python_predicts(alone: Alone) -> None:
    page, runs = alone(CubeExplorer), places("CubeExplorer", 40)
    looked = page.evaluate("runs => runs.map((run) => explorer.look(JSON.parse(model.get('table')), run))", runs)
    for run, found in zip(runs, looked, strict=True):
        shown = CubeExplorer(**run)
        stage = shown.mesh.coordinates(run["rank"])["pipeline"]
        for axis, (group, torn, took) in shown.costs.items():
            n_bytes = sent(run["model"], run["pipeline"], run["data"], run["tensor"])[stage][axis]
            assert (found[axis]["group"], found[axis]["torn"]) == (group, torn)
            assert found[axis]["bytes"] == f"{n_bytes / 1e9:.1f} GB"
            assert found[axis]["seconds"] == pytest.approx(float(took), abs=1e-4)


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


def test_the_browser_counts_the_lost_as_python_does(alone: Alone) -> None:
    page = alone(RestartExplorer)
    for place in places("RestartExplorer", 40):
        told = RestartExplorer(**place)
        lost, twice = page.evaluate(COUNT, told.chosen)
        assert (sorted(lost), sorted(twice)) == (told.lost, told.twice)


def test_a_tile_is_shown_and_the_next_one_is_a_button_away(alone: Alone) -> None:
    page = alone(TilesExplorer)
    status = page.get_by_role("status").first
    page.get_by_role("button", name="one tile forward").click()
    expect(status).to_contain_text("it is skipped: nothing is read or computed")
    page.get_by_role("button", name="one tile back").click()
    expect(status).to_contain_text("Tile 6 of 16")


def test_cells_dots_and_a_click_on_the_map(alone: Alone) -> None:
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


@pytest.mark.parametrize("p", [pytest.param(p, marks=() if p == 4 else pytest.mark.nightly) for p in RANKS])
@pytest.mark.parametrize("second", [*CUTS, ALONE])
@pytest.mark.parametrize("first", CUTS)
def test_the_browser_draws_what_the_layouts_say(alone: Alone, first: str, second: str, p: int) -> None:
    page, way = alone(MatmulExplorer, first=first, second=second, ranks=p), stops(first, second, p)
    drawn = page.locator(".mm-box").evaluate_all("boxes => boxes.map((box) => [box.className, box.children.length])")
    assert drawn == [[f"mm-box mm-{each.lies}", 1 if each.lies == "whole" else p] for each in way]
    expect(page.get_by_role("status")).to_have_text(told(first, second, p))
    messages = [f"{each.behind}→{each.sent:.0kB}" for each in way if each.sent]
    assert page.locator(".mm-message").all_text_contents() == messages
