"""Explorers side by side on one page: none changes the look of another, in whichever order their sheets arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from playwright.sync_api import Page

from tests.browser.conftest import MOUNT
from tests.pages.explorers import EXPLORERS

pytestmark = pytest.mark.browser

NEEDED = {"ScaleExplorer": [{"weights": [torch.arange(1.0, 100)]}]}
SHEET = "(css) => document.head.append(Object.assign(document.createElement('style'), { textContent: css }))"
LOOK = """() => [...document.querySelectorAll('#widget, #widget *')].flatMap((node) =>
    [null, '::before'].map((part) => {
        const look = getComputedStyle(node, part);
        const values = [...look].map((name) => look.getPropertyValue(name));
        return [`${node.getAttribute('class')} ${part ?? ''}`, values.join()];
    }))"""
KEEP = f"() => {{ window.alone = ({LOOK})() }}"
CHANGED = f"() => ({LOOK})().filter(([, look], i) => look !== window.alone[i][1]).map(([name]) => name)"


def state_of(name: str) -> dict[str, Any]:
    """An explorer as the browser gets it, without the models of its layout."""
    made = EXPLORERS[name](*NEEDED.get(name, ()))
    return {key: value for key, value in made.get_state().items() if isinstance(value, str | int | float | list | dict)}


@pytest.mark.parametrize("name", EXPLORERS)
def test_no_sheet_changes_another_explorer(page: Page, name: str) -> None:
    state = state_of(name)
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    others = "\n".join(explorer.text("css") for other, explorer in EXPLORERS.items() if other != name)
    for width in (1000, 340):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(KEEP)
        page.evaluate(SHEET, others)
        assert page.evaluate(CHANGED) == []
        page.evaluate("() => document.head.lastElementChild.remove()")
