"""The accumulation explorer as a reader meets it: by mouse, keyboard and screen reader, narrow and wide, exported."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, Page, expect

from course_lib.model.hardware import T4
from course_pages.lesson05.explorer import AccumulationExplorer
from tests.browser.conftest import MOUNT
from tests.browser.jupyterlab import executed
from tests.browser.test_static import STATE, VIEW

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def explorer() -> AccumulationExplorer:
    return AccumulationExplorer(global_batch=64, micro_batch=4)


@pytest.fixture
def mounted(page: Page, explorer: AccumulationExplorer) -> Callable[..., Page]:
    """`mounted(dark, **state)`: the explorer alone on a page, without Jupyter, without Python behind it."""

    def mount(dark: bool = False, **changed: object) -> Page:
        state = explorer.get_state()
        kept = {key: value for key, value in state.items() if isinstance(value, str | int | float | dict)}
        page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": kept | changed, "dark": dark})
        return page

    return mount


def bar(page: Page, micro: int) -> Locator:
    return page.get_by_role("button", name=f" of {micro}: ")


def test_the_bars_tell_the_librarys_peaks(mounted: Callable[..., Page], explorer: AccumulationExplorer) -> None:
    page = mounted()
    names = page.locator(".ax-bar").evaluate_all("bars => bars.map((bar) => bar.getAttribute('aria-label'))")
    memory = T4.usable
    assert names == [
        f"{64 // size} piece{'s' * (size < 64)} of {size}: "
        f"{peak.total.to('GiB'):.{1 if peak.total < 100 * 2**30 else 0}f} GiB, "
        f"{'fits' if peak.total <= memory else 'too much'}"
        for size, peak in explorer.splits.items()
    ]
    for size in (1, 2, 4, 8):
        heights = bar(page, size).locator(".ax-part").evaluate_all(
            "parts => parts.map((part) => part.getBoundingClientRect().height)"
        )  # fmt: skip
        shares = [height / sum(heights) for height in reversed(heights)]
        peak = explorer.splits[size]
        assert shares == pytest.approx([n / peak.total for n in peak.values()], abs=0.02)


def test_the_line_stands_at_the_memory_of_the_gpu(mounted: Callable[..., Page], explorer: AccumulationExplorer) -> None:
    page = mounted()
    column = bar(page, 8).locator(".ax-column").bounding_box()
    line, top = page.locator(".ax-line").bounding_box(), bar(page, 8).locator(".ax-part").first.bounding_box()
    assert column and line and top
    bottom = column["y"] + column["height"]
    ratio = (bottom - top["y"]) / (bottom - line["y"])
    assert ratio == pytest.approx(explorer.splits[8].total / T4.usable, abs=0.03)


def test_keyboard_and_mouse_choose_a_piece(mounted: Callable[..., Page]) -> None:
    page = mounted()
    page.get_by_role("slider", name="Sequences in a piece").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("status")).to_contain_text("64 sequences as 8 pieces of 8: 15.52 GiB at the peak")
    assert page.evaluate("[model.get('micro_batch'), model.saved]") == [8, 1]
    bar(page, 16).click()
    expect(page.get_by_role("status")).to_contain_text("The T4 shows a program 14.56 GiB: 14.61 too few.")
    expect(bar(page, 16)).to_have_attribute("aria-pressed", "true")
    expect(bar(page, 16)).to_be_focused()


def test_a_smaller_step_takes_the_piece_along(mounted: Callable[..., Page]) -> None:
    page = mounted(micro_batch=64)
    page.get_by_role("slider", name="Sequences in a step").fill("3")
    assert page.evaluate("[model.get('global_batch'), model.get('micro_batch')]") == [8, 8]
    expect(page.get_by_role("status")).to_contain_text("8 sequences in one piece")


def test_optimizer_and_gpu_are_lists(mounted: Callable[..., Page]) -> None:
    page = mounted()
    page.get_by_role("combobox", name="Optimizer").select_option("sgd")
    expect(page.get_by_role("status")).to_contain_text("7.76 GiB at the peak")
    page.get_by_role("combobox", name="GPU").select_option("L4")
    expect(page.locator(".ax-line")).to_have_text("L4: 22.0 GiB")


def test_the_step_has_a_tooth_for_each_piece(mounted: Callable[..., Page]) -> None:
    page = mounted()
    step = page.evaluate("explorer.step([10, 10, 20, 30, 2], 3)")
    hills = [corner[1] for corner in step["corners"]]
    assert hills == [30, 62, 40, 72, 40, 72, 40]
    expect(page.get_by_role("img", name="Memory over one step of 16 pieces")).to_have_count(1)
    bar(page, 1).click()
    expect(page.locator(".ax-pane b").nth(1)).to_have_text("The first 16 of 64 pieces")


def test_python_sets_the_numbers(mounted: Callable[..., Page]) -> None:
    page = mounted()
    page.evaluate("model.set('micro_batch', 2)")
    expect(page.get_by_role("status")).to_contain_text("as 32 pieces of 2: 5.28 GiB")
    assert page.evaluate("model.saved") == 0


def test_nothing_sticks_out(mounted: Callable[..., Page]) -> None:
    page = mounted(global_batch=512)
    for width in (340, 600, 760, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
        assert not page.locator(".ex-body div:not(.ax-line), .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(mounted: Callable[..., Page], unnamed: Callable[[Locator], list[str]]) -> None:
    assert not unnamed(mounted().locator("#widget"))


def test_an_exported_page_holds_a_living_explorer(page: Page) -> None:
    """All is taken from the exported page, except Jupyter's own loader, which the page would fetch from the web."""
    source = (
        "from course_pages.lesson05.explorer import AccumulationExplorer\nAccumulationExplorer(global_batch=64).show()"
    )
    notebook = executed(source)
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    assert "16 × 4: 8.7 GiB" in exported
    (view,), (states,) = VIEW.findall(exported), STATE.findall(exported)
    state = json.loads(states)["state"][json.loads(view)["model_id"]]["state"]
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    bar(page, 4).click()
    expect(page.get_by_role("status")).to_contain_text("64 sequences as 16 pieces of 4: 8.69 GiB")
