"""Lessons in JupyterLab: opened as they are stored, run as a reader runs them.

Every cell of every lesson runs in a kernel of its own in the stage before this one (tests/notebooks). What JupyterLab
adds is the drawing of outputs and the way from a widget to its kernel and back; for those it opens every lesson, runs
two of them to the end (one without ranks, one with), and runs everything that is a widget.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import REPOSITORY, JupyterLab
from tests.pages.explorers import EXPLORERS, shown_by

READS = ("lessons/*.ipynb", "lessons/src/*.py", "course_pages/lesson*/*")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

LESSONS = sorted(path.stem for path in REPOSITORY.glob("lessons/src/*.py"))
OPENED = "06_collectives"
WHOLE = ["03_activation_checkpointing", "06_collectives"]
WIDE = """() => [...document.querySelectorAll('.jp-OutputArea-output')].filter(
    (node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.innerText.slice(0, 200))"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name != OPENED else ()) for name in LESSONS]
)
def test_a_lesson_opens_with_what_it_measured(jupyterlab: JupyterLab, name: str) -> None:
    path = jupyterlab.root / f"{name}.ipynb"
    assert path.exists(), f"lessons/{name}.ipynb is missing: run `course build`"
    with jupyterlab.notebook(path.name):
        expect(jupyterlab.page.locator(".jp-OutputArea-output img").first).to_be_visible()
        expect(jupyterlab.page.get_by_text("Error displaying widget")).to_have_count(0)
        assert jupyterlab.page.evaluate(WIDE) == [], "outputs that can be scrolled sideways"
    assert not jupyterlab.page_errors


@pytest.mark.nightly
@pytest.mark.parametrize("name", WHOLE)
def test_a_lesson_runs_from_top_to_bottom(
    jupyterlab: JupyterLab, name: str, unnamed: Callable[[Locator], list[str]]
) -> None:
    with jupyterlab.notebook(f"{name}.ipynb"):
        jupyterlab.run_all(timeout_s=360)
        explorer = jupyterlab.page.locator(".jp-OutputArea-output .explorer").first
        expect(explorer).to_be_visible()
        assert not unnamed(explorer)
    assert not jupyterlab.page_errors


@pytest.mark.nightly
def test_every_widget_lives_in_jupyterlab(jupyterlab: JupyterLab) -> None:
    """Each explorer is drawn from a kernel, and a guess reaches it."""
    cells = ["import torch\nfrom course_kit.notebook import ask", *map(shown_by, EXPLORERS)]
    cells += ["guess = ask('bytes of a parameter', unit='B')"]
    with jupyterlab.notebook(jupyterlab.write("widgets.ipynb", *cells)):
        jupyterlab.run_all()
        areas = jupyterlab.page.locator(".jp-CodeCell")
        for number, name in enumerate(EXPLORERS, 1):
            areas.nth(number).scroll_into_view_if_needed()
            expect(areas.nth(number).locator("svg, button, input").first, name).to_be_visible()
        box = areas.nth(len(cells) - 1).locator("input").first
        box.fill("16")
        box.press("Enter")
        assert "16" in jupyterlab.execute("print(guess.said)")
    assert not jupyterlab.page_errors
