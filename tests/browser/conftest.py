"""Fixtures: one Chromium, one JupyterLab and one page for it, and a bare page for the explorer alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from course_kit.notebook.explorer import Explorer
from course_lib.numerics.formats import FloatFormat
from course_pages.lesson01.explorer import DEFAULT_FORMATS, BitExplorer
from tests.browser.jupyterlab import REPOSITORY, JupyterLab, launch, serve

# A stand-in for the model that anywidget hands to render(): state to read, set and listen to; `saved` counts messages.
MOUNT = """async ({ module, css, state, dark }) => {
    const [paper, ink] = dark ? ['#111', '#eee'] : ['#fff', '#222'];
    document.body.style.cssText = `margin: 0; background: ${paper}; color: ${ink}`;
    document.body.innerHTML = '<div id="widget"></div>';
    document.head.append(Object.assign(document.createElement('style'), { textContent: css }));
    const listeners = [];
    window.model = {
        saved: 0, get: (key) => state[key], on: (_, fn) => listeners.push(fn), off: () => {},
        set: (key, value) => { state[key] = value; listeners.forEach((fn) => fn()); },
        save_changes() { this.saved += 1; },
    };
    const url = URL.createObjectURL(new Blob([module], { type: 'text/javascript' }));
    window.explorer = await import(url);
    window.explorer.default.render({ model: window.model, el: document.getElementById('widget') });
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the session; a test's page lives in a context of its own, with an empty profile."""
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page. The test fails if a JavaScript exception goes uncaught."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("about:blank")
    yield page
    context.close()
    assert not errors


@pytest.fixture
def mount(page: Page) -> Callable[..., Page]:
    """`mount(value, formats, dark)`: the explorer alone on a page, without Jupyter and without Python behind it."""

    def mounted(value: float = 0.1, formats: tuple[FloatFormat, ...] = DEFAULT_FORMATS, dark: bool = False) -> Page:
        state = BitExplorer(value, formats).get_state()
        page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": dark})
        return page

    return mounted


Alone = Callable[..., Page]


@pytest.fixture
def alone(page: Page) -> Alone:
    """`alone(RingExplorer, dark=True, ranks=4)`: that explorer on a page, without Jupyter or Python behind it."""

    def mounted(kind: Callable[..., Explorer], dark: bool = False, **given: Any) -> Page:
        state = kind(**given).get_state()
        page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": dark})
        return page

    return mounted


@pytest.fixture(scope="session")
def jupyterlab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """JupyterLab over a copy of the lessons, loaded in one page: a notebook then opens in a second or two."""
    root: Path = tmp_path_factory.mktemp("root")
    for notebook in REPOSITORY.glob("lessons/*.ipynb"):
        shutil.copy(notebook, root)
    with serve(root, tmp_path_factory.mktemp("scratch")) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        driver = JupyterLab(context.new_page(), root, [])
        driver.page.on("pageerror", lambda error: driver.page_errors.append(str(error)))
        driver.page.goto(address, wait_until="domcontentloaded")
        driver.page.wait_for_function("() => window.jupyterapp", timeout=60_000)
        driver.page.evaluate("async () => { await window.jupyterapp.restored }")
        driver.page.wait_for_function("() => !document.getElementById('jupyterlab-splash')")
        yield driver
        context.close()


@pytest.fixture
def unnamed() -> Callable[[Locator], list[str]]:
    """`unnamed(locator)`: the interactive elements inside that a screen reader would announce without a name."""
    roles = "button|textbox|checkbox|combobox|slider|spinbutton|switch|link|listbox|radio|tab"

    def find(locator: Locator) -> list[str]:
        lines = locator.aria_snapshot().splitlines()
        found = [line for line in lines if re.match(rf"\s*- ({roles})\b", line)]
        assert found, "no interactive element at all"
        return [line for line in found if not re.match(rf"\s*- ({roles}) [\"/]", line)]

    return find
