"""The memory bar as a reader meets it: its numbers, mouse and keyboard, narrow and wide, light and dark."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Locator, Page, expect

from course_lib.model import hardware
from course_lib.predict import parameters
from course_pages.lesson02.explorer import MemoryBarExplorer, held, shape
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


@pytest.fixture
def bar(alone: Alone) -> Alone:
    """`bar(dark=False, **settings)`."""
    return partial(alone, MemoryBarExplorer)


def test_the_browser_counts_as_the_library_does(bar: Callable[..., Page]) -> None:
    page, chosen = bar(), random.Random(0)
    offers = {name: control.values for name, control in MemoryBarExplorer.controls().items()}
    runs = [{name: chosen.choice(values) for name, values in offers.items()} for _ in range(60)]
    runs += [{**runs[0], "batch": batch, "attention": attention, "recompute": recompute}
             for batch in (1, 2) for attention in ("explicit", "fused") for recompute in ("none", "full")]  # fmt: skip
    runs = [{**run, "layers": min(run["layers"], 24)} for run in runs]  # the library follows each layer
    add = "runs => runs.map((run) => explorer.peak(JSON.parse(model.get('table')), run))"
    for run, found in zip(runs, page.evaluate(add, runs), strict=True):
        assert found["phase"] == held(**run).phase
        assert found["account"] == {category: int(nbytes) for category, nbytes in held(**run).items()}, run
        assert found["count"] == parameters(shape(run["layers"], run["width"], run["seq"], run["attention"]))


def test_the_keyboard_moves_a_slider_and_everything_follows(bar: Callable[..., Page]) -> None:
    page = bar(layers=12, width=768, batch=8)
    before = page.locator(".ex-key").all_inner_texts()
    page.get_by_role("slider", name="Batch (sequences)").focus()
    page.keyboard.press("ArrowRight")
    after = page.locator(".ex-key").all_inner_texts()
    assert before[:3] == after[:3] and before[3] != after[3] and "activations" in after[3]
    assert page.evaluate("[model.get('batch'), model.saved]") == [16, 1]


def test_a_choice_changes_what_it_should(bar: Callable[..., Page]) -> None:
    page = bar()
    page.get_by_role("combobox", name="Optimizer").select_option("SGD")
    expect(page.locator(".ex-key").nth(2)).to_have_text("optimizer 5.8 GiB")  # the fp32 copy is left
    page.get_by_role("combobox", name="Precision").select_option("all bf16")
    expect(page.locator(".ex-key").nth(2)).to_be_hidden()
    assert page.evaluate("[model.get('optimizer'), model.get('precision')]") == ["sgd", "bf16"]


def test_a_preset_sets_four_sliders(bar: Callable[..., Page]) -> None:
    page = bar(batch=64)
    page.get_by_role("button", name="GPT-3 175B").click()
    expect(page.get_by_role("status")).to_contain_text("175 billion parameters")
    expect(page.get_by_role("status")).to_contain_text("No single card holds it")
    assert page.evaluate("['layers', 'width', 'batch', 'seq'].map((name) => model.get(name))") == [96, 12288, 1, 2048]
    assert page.get_by_role("slider", name="Width").get_attribute("aria-valuetext") == "12,288"


def test_the_verdicts_agree_with_the_cards(bar: Callable[..., Page]) -> None:
    page = bar(layers=48, width=1600, batch=1, attention="fused")
    texts = page.locator(".mx-verdict").all_inner_texts()
    assert texts[0] == "at least 2 of them" and texts[2].endswith("% full") and texts[-1].endswith("% full")
    expect(page.get_by_role("status")).to_contain_text("at the peak, in the optimizer's step")
    widths = page.locator(".ex-block").evaluate_all("parts => parts.map((part) => part.getBoundingClientRect().width)")
    track = page.locator(".ex-track").first.bounding_box()
    account = MemoryBarExplorer(layers=48, width=1600, batch=1, attention="fused").account
    assert track
    for width, nbytes in zip(widths, account.values(), strict=True):
        assert width == pytest.approx(track["width"] * nbytes / (1.02 * hardware.V100_32GB.usable), abs=0.5)


def test_python_sets_the_numbers(bar: Callable[..., Page]) -> None:
    page = bar()
    page.evaluate("model.set('layers', 12)")
    expect(page.get_by_role("slider", name="Layers")).to_have_value("12")
    assert page.evaluate("model.saved") == 0


@pytest.mark.parametrize("settings", [{}, {"layers": 128, "width": 20480, "batch": 1024, "seq": 32768}], ids=str)
def test_nothing_sticks_out(bar: Callable[..., Page], settings: dict) -> None:
    page = bar(**settings)
    for width in (340, 600, 760, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
        assert not page.locator(".ex-body div, .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(bar: Callable[..., Page], unnamed: Callable[[Locator], list[str]]) -> None:
    page = bar()
    assert not unnamed(page.locator("#widget"))
    expect(page.get_by_role("img", name="parameters 2.9 GiB, optimizer 17.4 GiB, activations 39.1 GiB")).to_have_count(
        1
    )


def test_a_move_redraws_at_once(bar: Callable[..., Page]) -> None:
    times = bar().evaluate("""() => {
        const input = document.querySelector('.ex-field input');
        return Array.from({ length: 100 }, (_, i) => {
            const start = performance.now();
            input.value = (i * 7) % 128;
            input.dispatchEvent(new Event('input'));
            return performance.now() - start;
        }).sort((a, b) => a - b);
    }""")
    assert times[len(times) // 2] < 20, times
