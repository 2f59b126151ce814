"""The film explorer as a reader meets it: by mouse, by keyboard, by screen reader, narrow and wide, and exported."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, Page, expect

from course_lib.predict.chain import Chain
from course_pages.lesson03.explorer import FilmExplorer
from tests.browser.conftest import MOUNT, Alone
from tests.browser.jupyterlab import executed
from tests.browser.test_static import STATE, VIEW

pytestmark = pytest.mark.browser


@pytest.fixture
def film(alone: Alone) -> Alone:
    """`film(layers, every, ratio, dark)`."""

    def mounted(layers: int = 16, every: int = 4, ratio: int = 1, dark: bool = False) -> Page:
        return alone(FilmExplorer, dark, layers=layers, every=every, ratio=ratio)

    return mounted


def slider(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name)


def shapes(page: Page) -> list[str]:
    return page.locator(".ex-chart path").evaluate_all("paths => paths.map((path) => path.getAttribute('d'))")


@pytest.mark.parametrize(("layers", "ratio"), [(2, 1), (7, 3), (16, 1), (32, 20)])
def test_the_browser_shows_the_librarys_film(film: Callable[..., Page], layers: int, ratio: int) -> None:
    page, chain = film(), Chain(layers, 1, ratio)
    for every in range(layers + 1):
        frames = page.evaluate(
            "(where) => explorer.play(JSON.parse(model.get('table')), ...where)", [layers, every, ratio]
        )
        expected = [
            {"phase": f.phase, "layer": f.layer, "boundaries": f.boundaries, "inside": f.inside, "held": int(f.held),
             "start": f.start, "duration": f.duration, "end": f.start + f.duration}
            for f in chain.film(every or None)
        ]  # fmt: skip
        assert frames == expected
        assert page.evaluate("frames => explorer.peak(frames)", frames) == chain.peak(every or None)


def test_the_keyboard_moves_k_and_everything_follows(film: Callable[..., Page]) -> None:
    page = film()
    before = shapes(page)
    slider(page, "K: layers").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("status")).to_contain_text("Keep an input every 5 layers: at most 8 inputs' worth held")
    page.keyboard.press("End")
    expect(page.get_by_role("status")).to_contain_text("at most 17 inputs' worth held (106 % of 16), 64 layer runs")
    page.keyboard.press("Home")
    expect(page.get_by_role("status")).to_contain_text(
        "Keep everything: at most 16 inputs' worth held (100 % of 16), 48"
    )
    assert slider(page, "K: layers").get_attribute("aria-valuetext") == "keep everything"
    after = shapes(page)
    assert all(old != new for old, new in zip(before[:2], after[:2], strict=True))
    assert page.evaluate("model.get('every')") == 0
    assert page.evaluate("model.saved") == 3


def test_a_shorter_chain_takes_k_along(film: Callable[..., Page]) -> None:
    page = film(16, 12)
    slider(page, "N: layers").fill("8")
    assert page.evaluate("[model.get('layers'), model.get('every')]") == [8, 8]
    expect(page.locator(".fx-lowest")).to_have_text("lowest: 5, at K = 3")


def test_a_layer_like_a_gpts_wants_every_layer_a_segment(film: Callable[..., Page]) -> None:
    page = film()
    slider(page, "A layer saves").fill("20")
    expect(page.locator(".fx-lowest")).to_have_text("lowest: 36, at K = 1")


def test_a_bar_is_a_way_to_choose_k(film: Callable[..., Page]) -> None:
    page = film()
    bars = page.locator(".fx-bars")
    box = bars.bounding_box()
    assert box
    bars.click(position={"x": box["width"] * 8.5 / 17, "y": box["height"] - 5})
    assert page.evaluate("model.get('every')") == 8


def test_moments_are_told_in_words_and_play_ends(film: Callable[..., Page]) -> None:
    page = film(2, 1)
    slider(page, "Moment").fill("3")
    expect(page.locator(".fx-now")).to_have_text(
        "Layer 2 runs forward again. Held: 2 inputs of segments, the insides of 1 layer: 3 together."
    )
    page.get_by_role("button", name="Play").click()
    expect(slider(page, "Moment")).to_have_value("6")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_python_sets_the_numbers(film: Callable[..., Page]) -> None:
    page = film()
    page.evaluate("model.set('every', 2)")
    expect(page.get_by_role("status")).to_contain_text("every 2 layers: at most 10")
    assert page.evaluate("model.saved") == 0
    page.evaluate("model.set('layers', 3)")
    expect(slider(page, "K: layers")).to_have_value("2")


def test_nothing_sticks_out(film: Callable[..., Page]) -> None:
    page = film(32, 1, 20)
    for width in (340, 600, 760, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
        assert not page.locator(".ex-body div, .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(film: Callable[..., Page], unnamed: Callable[[Locator], list[str]]) -> None:
    page = film()
    assert not unnamed(page.locator("#widget"))
    expect(page.get_by_role("img", name="Peak for each K; the lowest is 8")).to_have_count(1)


def test_a_move_redraws_at_once(film: Callable[..., Page]) -> None:
    times = film(32).evaluate("""() => {
        const input = document.querySelector('.ex-field input');
        return Array.from({ length: 100 }, (_, i) => {
            const start = performance.now();
            input.value = (i * 7) % 33;
            input.dispatchEvent(new Event('input'));
            return performance.now() - start;
        }).sort((a, b) => a - b);
    }""")
    assert times[len(times) // 2] < 20, times


def test_an_exported_page_holds_a_living_explorer(page: Page) -> None:
    """All is taken from the exported page, except Jupyter's own loader, which the page would fetch from the web."""
    notebook = executed(
        "from course_pages.lesson03.explorer import FilmExplorer\nFilmExplorer(layers=16, every=4).show()"
    )
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    assert "it holds at most the size of 8 inputs" in exported
    (view,), (states,) = VIEW.findall(exported), STATE.findall(exported)
    state = json.loads(states)["state"][json.loads(view)["model_id"]]["state"]
    page.evaluate(MOUNT, {"module": state["_esm"], "css": state["_css"], "state": state, "dark": False})
    slider(page, "K: layers").fill("8")
    expect(page.get_by_role("status")).to_contain_text("at most 10 inputs' worth held")
