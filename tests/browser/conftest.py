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
from tests.browser.jupyterlab import REPOSITORY, JupyterLab, launch, serve
from tests.browser.shown import SIZE
from tests.pages.explorers import EXPLORERS, make

# A stand-in for the model that anywidget hands to render(): state to read, set and listen to; `saved` counts messages.
# `model.reset()` goes back to the first state. Several explorers on one page have ids, and are `shown[id]`.
MOUNT = """async ({ module, css, state, dark, id = 'widget' }) => {
    const [paper, ink] = dark ? ['#111', '#eee'] : ['#fff', '#222'];
    document.body.style.cssText = `margin: 0; background: ${paper}; color: ${ink}`;
    document.getElementById(id)?.remove();
    document.body.append(Object.assign(document.createElement('div'), { id }));
    document.head.append(Object.assign(document.createElement('style'), { textContent: css }));
    const listeners = [], first = { ...state };
    window.model = {
        saved: 0, get: (key) => state[key], on: (_, fn) => listeners.push(fn), off: () => {},
        set: (key, value) => { state[key] = value; listeners.forEach((fn) => fn()); },
        save_changes() { this.saved += 1; },
        reset() {
            Object.keys(first).filter((key) => state[key] !== first[key]).forEach((key) => this.set(key, first[key]));
            this.saved = 0;
        },
    };
    (window.shown ??= {})[id] = window.model;
    const url = URL.createObjectURL(new Blob([module], { type: 'text/javascript' }));
    window.explorer = await import(url);
    window.explorer.default.render({ model: window.model, el: document.getElementById(id) });
}"""

TOUCH = """async (node) => {
    const before = node.innerHTML;
    for (const control of node.querySelectorAll('button:enabled, input[type=range], input[type=checkbox], select')) {
        const { min, max, value } = control;
        if (control.type === 'range') control.value = value === max ? min : max;
        if (control.tagName === 'SELECT') control.selectedIndex = (control.selectedIndex + 1) % control.options.length;
        if (['range', 'select-one'].includes(control.type)) {
            const touched = node.innerHTML;
            control.dispatchEvent(new Event('input', { bubbles: true }));
            control.dispatchEvent(new Event('change', { bubbles: true }));
            if (touched !== node.innerHTML) return true;
        } else { control.click(); if (before !== node.innerHTML) return true; }
    }
    return false;
}"""
"""Moves one control after the other until the drawing changes: whether one did."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the session."""
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def only_page(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One page for all tests that look at a document alone, and its uncaught exceptions."""
    context = browser.new_context(viewport=SIZE)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page, errors
    context.close()


@pytest.fixture
def page(only_page: tuple[Page, list[str]]) -> Iterator[Page]:
    """An empty document. The test fails if a JavaScript exception goes uncaught."""
    page, errors = only_page
    page.set_viewport_size(SIZE)
    page.goto("about:blank")
    errors.clear()
    yield page
    assert not errors


def mount(page: Page, made: Explorer, dark: bool = False, **place: Any) -> None:
    """Put an explorer on a page, without Jupyter and without Python behind it; `id` tells it from others there."""
    state = made.get_state()
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": dark, **place})


@pytest.fixture(scope="session")
def everybody(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """A page with all explorers, and its uncaught exceptions."""
    context = browser.new_context(viewport=SIZE)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in EXPLORERS:
        mount(page, make(name), id=name)
    yield page, errors
    context.close()


Alone = Callable[..., Page]


@pytest.fixture
def alone(page: Page) -> Alone:
    """`alone(RingExplorer, dark=True, ranks=4)`: that explorer on a page; its model and module are `window`'s."""

    def mounted(kind: Callable[..., Explorer], dark: bool = False, **given: Any) -> Page:
        mount(page, kind(**given), dark)
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
