"""All explorers in one exported page: no kernel, no Jupyter, and still alive."""

from __future__ import annotations

import copy
import html
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Page, ViewportSize

from tests.browser.conftest import MOUNT, TOUCH
from tests.browser.jupyterlab import REPOSITORY, executed
from tests.pages.explorers import EXPLORERS, make, shown_by, words_of

READS = ("lessons/*.ipynb", "lessons/src/*.py", "course_pages/lesson*/*")
pytestmark = pytest.mark.browser

STATE = re.compile(r'<script type="application/vnd\.jupyter\.widget-state\+json">(.*?)</script>', re.DOTALL)
NARROW: ViewportSize = {"width": 640, "height": 900}
"""Half of a laptop's screen: the notebook beside an editor."""
TOO_WIDE = """() => [...document.querySelectorAll('table')].filter(
    (each) => each.getBoundingClientRect().width > each.parentElement.clientWidth + 1).map((each) => each.innerText)"""
VIEW = re.compile(r'<script type="application/vnd\.jupyter\.widget-view\+json">(.*?)</script>', re.DOTALL)


@pytest.fixture(scope="module")
def notebook() -> nbformat.NotebookNode:
    """A notebook that shows each explorer, executed, with the state of its widgets."""
    return executed("import torch\n" + "\n".join(map(shown_by, EXPLORERS)))


@pytest.fixture(scope="module")
def states(notebook: nbformat.NotebookNode) -> dict[str, dict[str, Any]]:
    """What the exported page holds of each explorer."""
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    views = [json.loads(view)["model_id"] for view in VIEW.findall(exported)]
    (models,) = STATE.findall(exported)
    stored = [json.loads(models)["state"][view] for view in views]
    assert {each["model_module"] for each in stored} == {"anywidget"}
    return dict(zip(EXPLORERS, (each["state"] for each in stored), strict=True))


@pytest.mark.nightly  # the site has the same page, and a test that touches each of them
@pytest.mark.parametrize("name", EXPLORERS)
def test_an_exported_page_holds_a_living_explorer(states: dict[str, dict[str, Any]], name: str, page: Page) -> None:
    """All is taken from the exported page, except Jupyter's own loader, which the page would fetch from the web."""
    state = states[name]
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    assert page.locator("#widget").evaluate(TOUCH), "answers to nobody"


@pytest.mark.nightly  # test_explorers.py of the pages asks what is sent
def test_a_page_without_scripts_shows_the_picture(notebook: nbformat.NotebookNode) -> None:
    """What GitHub shows, and every viewer that does not know widgets."""
    static = copy.deepcopy(notebook)
    del static.metadata["widgets"]
    exported, _ = HTMLExporter().from_notebook_node(static)
    assert not VIEW.findall(exported)
    assert exported.count('src="data:image/png;base64,') == len(EXPLORERS)
    assert [name for name in EXPLORERS if html.escape(words_of(make(name)), quote=False) not in exported] == []


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("lessons/*.ipynb")), ids=lambda path: path.stem)
def test_every_table_of_a_lesson_fits_half_a_screen(path: Path, page: Page) -> None:
    exported, _ = HTMLExporter(template_name="lab", mathjax_url="").from_filename(str(path))
    page.set_viewport_size(NARROW)
    page.set_content(exported, wait_until="domcontentloaded")
    assert page.locator("table").count() >= 4
    assert page.evaluate(TOO_WIDE) == []
