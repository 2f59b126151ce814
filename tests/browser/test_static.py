"""The explorer in an exported page: no kernel, no Jupyter, and still alive."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.conftest import MOUNT
from tests.browser.jupyterlab import REPOSITORY, executed

pytestmark = pytest.mark.browser

STATE = re.compile(r'<script type="application/vnd\.jupyter\.widget-state\+json">(.*?)</script>', re.DOTALL)
NARROW: ViewportSize = {"width": 640, "height": 900}
"""Half of a laptop's screen: the notebook beside an editor."""
TOO_WIDE = """() => [...document.querySelectorAll('table')].filter(
    (each) => each.getBoundingClientRect().width > each.parentElement.clientWidth + 1).map((each) => each.innerText)"""
VIEW = re.compile(r'<script type="application/vnd\.jupyter\.widget-view\+json">(.*?)</script>', re.DOTALL)


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    """A notebook that shows the explorer, executed, with the state of its widgets."""
    return executed("from course_pages.lesson01.explorer import BitExplorer\nBitExplorer(65504).show()")


def test_an_exported_page_holds_a_living_explorer(notebook: nbformat.NotebookNode, page: Page) -> None:
    """All is taken from the exported page, except Jupyter's own loader, which the page would fetch from the web."""
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    views, states = VIEW.findall(exported), STATE.findall(exported)
    assert len(views) == len(states) == 1
    model = json.loads(states[0])["state"][json.loads(views[0])["model_id"]]
    state = model["state"]
    assert model["model_module"] == "anywidget"
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    fp16 = page.locator('.bx-row[data-format="fp16"]')
    expect(fp16.locator(".bx-note")).to_have_text("largest finite")
    fp16.get_by_role("button", name=re.compile("^exponent bit 1 of 5")).click()
    expect(fp16.locator(".bx-stored")).to_have_text("0.9995117")


def test_a_page_without_scripts_shows_the_picture(notebook: nbformat.NotebookNode) -> None:
    """What GitHub shows, and every viewer that does not know widgets."""
    static = copy.deepcopy(notebook)
    del static.metadata["widgets"]
    exported, _ = HTMLExporter().from_notebook_node(static)
    assert not VIEW.findall(exported)
    assert exported.count('src="data:image/png;base64,') == 1
    assert "fp16 holds 65504" in exported


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("lessons/*.ipynb")), ids=lambda path: path.stem)
def test_every_table_of_a_lesson_fits_half_a_screen(path: Path, page: Page) -> None:
    exported, _ = HTMLExporter(template_name="lab", mathjax_url="").from_filename(str(path))
    page.set_viewport_size(NARROW)
    page.set_content(exported, wait_until="domcontentloaded")
    assert page.locator("table").count() >= 4
    assert page.evaluate(TOO_WIDE) == []
