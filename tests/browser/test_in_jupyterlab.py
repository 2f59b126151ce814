"""The explorer in JupyterLab, with a kernel behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import JupyterLab

READS = ("lessons/*.ipynb", "lessons/src/*.py", "course_pages/lesson*/*")
pytestmark = pytest.mark.browser

EXPLORER = ".jp-OutputArea-output .bit-explorer"


@pytest.fixture(scope="module")
def notebook(jupyterlab: JupyterLab) -> Iterator[JupyterLab]:
    """A small notebook whose first cell shows the explorer, run and open for all tests here."""
    cells = (
        "from course_pages.lesson01.explorer import BitExplorer\nexplorer = BitExplorer(0.1)\nexplorer.show()",
        "explorer.value",
    )
    with jupyterlab.notebook(jupyterlab.write("explorer.ipynb", *cells)):
        jupyterlab.run_all()
        yield jupyterlab


@pytest.fixture
def opened(notebook: JupyterLab) -> Iterator[JupyterLab]:
    """The same notebook, the explorer back at 0.1, after all that an earlier test did has reached the kernel."""
    notebook.page_errors.clear()
    shown = notebook.page.get_by_role("textbox", name="Number")
    for _ in range(50):
        if float(shown.input_value()) == float(notebook.execute("print(explorer.value)")):
            break
    notebook.execute("explorer.value = 0.1")
    expect(fp16(notebook).locator(".bx-stored")).to_have_text("0.09997559")
    yield notebook
    assert not notebook.page_errors


def fp16(jupyterlab: JupyterLab) -> Locator:
    return jupyterlab.page.locator('.bx-row[data-format="fp16"]')


def test_a_click_reaches_the_kernel(opened: JupyterLab) -> None:
    before = fp16(opened).screenshot()
    fp16(opened).get_by_role("button", name=re.compile("^exponent bit 1 of 5")).click()
    assert opened.execute("print(explorer.value)") == "6552.0"
    assert fp16(opened).screenshot() != before
    expect(opened.page.locator('.bx-row[data-format="fp8_e4m3fn"] .bx-note')).to_have_text("held at the largest")


def test_the_kernel_moves_the_drawing(opened: JupyterLab) -> None:
    opened.execute("explorer.value = 65504")
    expect(fp16(opened).locator(".bx-note")).to_have_text("largest finite")
    opened.execute("explorer.value = float('-inf')")
    expect(fp16(opened).locator(".bx-stored")).to_have_text("−∞")
    opened.execute("explorer.value = -0.0")
    expect(fp16(opened).locator(".bx-note")).to_have_text("negative zero")


def test_jupyterlabs_shortcuts_do_not_take_the_keys(opened: JupyterLab) -> None:
    """In command mode "d d" deletes the cell, "1" makes it a heading, arrows leave it."""
    page = opened.page
    cells = page.evaluate("panel.content.widgets.length")
    page.get_by_role("textbox", name="Number").click()
    page.keyboard.press("Control+a")
    page.keyboard.type("dd1/3")
    page.keyboard.press("Control+a")
    page.keyboard.type("1/3")
    expect(fp16(opened).locator(".bx-stored")).to_have_text("0.333252")
    fp16(opened).locator(".bx-sign").focus()
    for key in ("ArrowRight", "ArrowRight", "1", "d", "d", "Space", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("panel.content.widgets.length") == cells
    assert page.evaluate("panel.content.widgets[0].model.type") == "code"
    assert page.evaluate("document.activeElement.closest('.bx-row').dataset.format") == "fp8_e5m2"


def change_theme(jupyterlab: JupyterLab, theme: str) -> None:
    """Change it and wait until the splash screen is gone: JupyterLab trips over a second one that comes meanwhile."""
    color = "getComputedStyle(document.querySelector('.bx-stored')).color"
    old = jupyterlab.page.evaluate(f"document.body.dataset.jpThemeName === '{theme}' ? null : {color}")
    if old is not None:
        jupyterlab.page.evaluate("(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
        jupyterlab.page.wait_for_function(f"(old) => {color} !== old", arg=old)
    jupyterlab.page.wait_for_function("() => !document.getElementById('jupyterlab-splash')")


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_the_explorer_fits_a_narrow_window_in_both_themes(opened: JupyterLab, theme: str) -> None:
    page = opened.page
    page.set_viewport_size({"width": 760, "height": 900})
    change_theme(opened, theme)
    for selector in (EXPLORER, ".jp-Notebook .jp-OutputArea-output:has(.bit-explorer)", "body"):
        wide = page.locator(selector).first.evaluate("(node) => node.scrollWidth - node.clientWidth")
        assert wide <= 0, f"{selector} can be scrolled sideways by {wide} pixels"
    page.set_viewport_size({"width": 1280, "height": 1000})


def test_every_control_has_a_name(opened: JupyterLab, unnamed: Callable[[Locator], list[str]]) -> None:
    assert not unnamed(opened.page.locator(EXPLORER))


def test_the_caption_stands_below_the_explorer(opened: JupyterLab) -> None:
    caption = opened.page.get_by_text("The same number in every format.")
    expect(caption).to_be_visible()
    below, above = caption.bounding_box(), opened.page.locator(EXPLORER).bounding_box()
    assert below and above and below["y"] >= above["y"] + above["height"] - 1
