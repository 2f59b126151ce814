"""Every lesson in JupyterLab, as a reader runs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import REPOSITORY, JupyterLab

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

LESSONS = sorted(path.stem for path in REPOSITORY.glob("lessons/src/*.py"))


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_from_top_to_bottom(
    jupyterlab: JupyterLab, name: str, unnamed: Callable[[Locator], list[str]]
) -> None:
    assert (jupyterlab.root / f"{name}.ipynb").exists(), f"lessons/{name}.ipynb is missing: run `course build`"
    with jupyterlab.notebook(f"{name}.ipynb"):
        expect(
            jupyterlab.page.locator(".jp-OutputArea-output img").first
        ).to_be_visible()  # stored pictures, before it runs
        expect(jupyterlab.page.get_by_text("Error displaying widget")).to_have_count(0)
        jupyterlab.run_all()
        widgets = jupyterlab.page.locator(".jp-OutputArea-output .jupyter-widgets")
        assert not [each for widget in widgets.all() for each in unnamed(widget)]
    assert not jupyterlab.page_errors
