"""The restart explorer as a reader meets it: by keyboard, by screen reader, narrow and wide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from course_pages.lesson15.explorer import RestartExplorer
from tests.browser.conftest import MOUNT

pytestmark = pytest.mark.browser
COUNT = """chosen => {
    const shown = explorer.look(JSON.parse(model.get('table')), chosen);
    return [[...shown.lost], [...shown.twice]];
}"""


@pytest.fixture
def explorer(page: Page) -> Page:
    """The explorer alone on a page, without Jupyter, without Python behind it."""
    state = RestartExplorer().get_state()
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    return page


def test_the_keyboard_moves_the_kill_and_everything_follows(explorer: Page) -> None:
    status = explorer.get_by_role("status")
    expect(status).to_have_text("16 samples of 48 read by nobody. Nothing has said so.")
    expect(explorer.locator(".rs-lost")).to_have_count(16)
    explorer.get_by_role("slider", name="Killed after step").focus()
    explorer.keyboard.press("ArrowLeft")
    expect(status).to_have_text("8 samples of 48 read by nobody. Nothing has said so.")
    explorer.get_by_role("combobox", name="Samples are dealt").select_option("by function")
    expect(status).to_have_text("All 48 samples are read, each once.")
    assert explorer.evaluate("model.get('scheme')") == "by function"


def test_the_script_counts_as_python_does(page: Page) -> None:
    """At every place of the controls the page says what `lost` and `twice` say."""
    state = RestartExplorer().get_state()
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    for scheme, before, after, step in [
        ("by shard", 4, 8, 1),
        ("by shard", 8, 2, 3),
        ("by stride", 4, 1, 5),
        ("by stride", 1, 8, 2),
    ]:
        told = RestartExplorer(scheme=scheme, world_before=before, world_after=after, step=step)
        lost, twice = page.evaluate(COUNT, told.chosen)
        assert (sorted(lost), sorted(twice)) == (told.lost, told.twice)


@pytest.mark.parametrize("width", [340, 760])
def test_nothing_sticks_out(explorer: Page, width: int) -> None:
    explorer.set_viewport_size({"width": width, "height": 900})
    assert explorer.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name(explorer: Page, unnamed: Callable[[Locator], list[str]]) -> None:
    assert not unnamed(explorer.locator("#widget"))
