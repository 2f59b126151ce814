"""The scale explorer as a reader meets it: by mouse, by keyboard, by screen reader, narrow and wide, and exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, Page, expect

from course_pages.lesson04.explorer import ScaleExplorer
from tests.browser.conftest import MOUNT, Alone
from tests.browser.jupyterlab import executed
from tests.browser.test_static import STATE, VIEW
from tests.pages.lesson04.test_explorer import SPREAD

pytestmark = pytest.mark.browser


@pytest.fixture
def scale(alone: Alone) -> Alone:
    """`scale(power, number_format, dark)`."""

    def mounted(power: int = 0, number_format: str = "fp16", dark: bool = False) -> Page:
        data = {"weights": [SPREAD], "layers": [SPREAD[:100] / 64]}
        return alone(partial(ScaleExplorer, data), dark, power=power, number_format=number_format)

    return mounted


def slider(page: Page) -> Locator:
    return page.get_by_role("slider", name="Loss scale")


def drawn(page: Page, name: str) -> str:
    return page.locator(f".sx-histogram .sx-{name}").get_attribute("d") or ""


def expected(power: int, number_format: str = "fp16") -> ScaleExplorer:
    return ScaleExplorer({"weights": [SPREAD]}, power=power, number_format=number_format)


@pytest.mark.parametrize("power", [-8, 0, 7, 24, 40])
@pytest.mark.parametrize("number_format", ["fp16", "bf16", "fp8_e5m2"])
def test_the_page_says_what_python_counted(scale: Callable[..., Page], power: int, number_format: str) -> None:
    page, counts = scale(power, number_format), expected(power, number_format).counts
    status = page.get_by_role("status")
    if counts.overflowed:
        expect(status).to_contain_text(f"{counts.overflowed:,} of {counts.total:,} become inf. The step is skipped")
    elif counts.flushed:
        expect(status).to_contain_text(f"{counts.flushed:,} of {counts.total:,} become 0")
    else:
        expect(status).to_contain_text("no gradient is lost")
    shares = [(counts.flushed, counts.total), (counts.subnormal, counts.total), (counts.normal, counts.total)]
    shown = page.locator(".sx-legend b").all_inner_texts()
    assert shown[:3] == [page.evaluate("([a, b]) => explorer.percent(a, b)", pair) for pair in shares]


def test_shares_are_never_rounded_to_none_or_all(page: Page, scale: Callable[..., Page]) -> None:
    scale()
    ask = "([count, total]) => explorer.percent(count, total)"
    pairs = {
        (0, 9): "0 %",
        (9, 9): "100 %",
        (1, 10**6): "under 0.01 %",
        (999_999, 10**6): "over 99.99 %",
        (1, 8): "12.5 %",
    }
    assert {pair: page.evaluate(ask, list(pair)) for pair in pairs} == pairs


def test_a_bar_gets_the_colour_of_its_fate(page: Page, scale: Callable[..., Page]) -> None:
    scale()
    fates = page.evaluate("[-26, -25, -15, -14, 15, 16].map((place) => explorer.fate(place, [-25, -14, 16]))")
    assert fates == [0, 1, 1, 2, 2, 3]


def test_the_keyboard_moves_the_scale_and_everything_follows(scale: Callable[..., Page]) -> None:
    page = scale()
    before, overview = drawn(page, "normal"), page.locator(".sx-overview .sx-chosen").get_attribute("d")
    slider(page).focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("status")).to_contain_text("Scale 2¹:")
    assert slider(page).get_attribute("aria-valuetext") == "2¹ = 2"
    assert drawn(page, "normal") != before
    assert page.locator(".sx-overview .sx-chosen").get_attribute("d") != overview
    page.keyboard.press("Home")
    assert slider(page).get_attribute("aria-valuetext") == "2⁻⁸ = 1/256"
    assert page.evaluate("model.get('power')") == -8 and page.evaluate("model.saved") == 2


def test_group_and_format_are_chosen(scale: Callable[..., Page]) -> None:
    page = scale()
    page.get_by_label("Gradients of").select_option("layers")
    expect(page.get_by_role("status")).to_contain_text("of 100 become 0")
    page.get_by_label("Format").select_option("bf16")
    expect(page.get_by_role("status")).to_contain_text("no gradient is lost, and none loses digits")
    expect(page.locator(".sx-reach")).to_contain_text("beyond both ends")
    assert page.evaluate("[model.get('group'), model.get('number_format')]") == ["layers", "bf16"]
    assert not drawn(page, "flushed") and not drawn(page, "subnormal")


def test_a_column_of_the_strip_is_a_way_to_choose(scale: Callable[..., Page]) -> None:
    page = scale()
    strip = page.locator(".sx-overview")
    box = strip.bounding_box()
    assert box
    strip.click(position={"x": box["width"] * (16 + 8 + 0.5) / 49, "y": 10})
    assert page.evaluate("model.get('power')") == 16


def test_python_sets_the_scale(scale: Callable[..., Page]) -> None:
    page = scale()
    page.evaluate("model.set('power', 12)")
    expect(page.get_by_role("status")).to_contain_text("Scale 2¹²")
    expect(slider(page)).to_have_value("12")
    assert page.evaluate("model.saved") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(scale: Callable[..., Page], dark: bool) -> None:
    page = scale(40, dark=dark)
    for width in (340, 600, 760, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
        assert not page.locator(".ex-body div, .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(scale: Callable[..., Page], unnamed: Callable[[Locator], list[str]]) -> None:
    page = scale()
    assert not unnamed(page.locator("#widget"))
    expect(page.get_by_role("img", name="Histogram by size. Scale 2⁰")).to_have_count(1)
    expect(page.get_by_role("img", name="Fates at each scale")).to_have_count(1)


def test_a_move_redraws_at_once(scale: Callable[..., Page]) -> None:
    times = scale().evaluate("""() => {
        const input = document.querySelector('.ex-field input');
        return Array.from({ length: 100 }, (_, i) => {
            const start = performance.now();
            input.value = (i * 7) % 49 - 8;
            input.dispatchEvent(new Event('input'));
            return performance.now() - start;
        }).sort((a, b) => a - b);
    }""")
    assert times[len(times) // 2] < 20, times


def test_an_exported_page_holds_a_living_explorer(page: Page) -> None:
    """All is taken from the exported page, except Jupyter's own loader, which the page would fetch from the web."""
    source = (
        "import torch\nfrom course_pages.lesson04.explorer import ScaleExplorer\n"
        "ScaleExplorer({'x': [torch.tensor([2.0**-30, 1.0])]}).show()"
    )
    notebook = executed(source)
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    assert "50.0 % becomes 0" in exported
    (view,), (states,) = VIEW.findall(exported), STATE.findall(exported)
    state = json.loads(states)["state"][json.loads(view)["model_id"]]["state"]
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    slider(page).fill("6")
    expect(page.get_by_role("status")).to_contain_text("no gradient is lost")
