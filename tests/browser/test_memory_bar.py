"""The memory bar as a reader meets it: its numbers, its presets and its bars."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from playwright.sync_api import expect

from course_lib.model import hardware
from course_lib.predict import parameters
from course_pages.lesson02.explorer import MemoryBarExplorer, held, shape
from tests.browser.conftest import Alone
from tests.pages.explorers import places

pytestmark = pytest.mark.browser


@pytest.fixture
def bar(alone: Alone) -> Alone:
    """`bar(layers=12)`."""
    return partial(alone, MemoryBarExplorer)


def test_the_browser_counts_as_the_library_does(bar: Alone) -> None:
    """At places drawn at random, and beside one of them at all its choices; in each phase of a step."""
    page, runs, phases = bar(), places("MemoryBarExplorer", 250), set()
    choices = {"batch": (1, 2), "precision": ("fp32", "mixed", "bf16"), "attention": ("explicit", "fused"),
               "recompute": ("none", "full")}  # fmt: skip
    runs += [runs[0] | dict(zip(choices, chosen)) for chosen in itertools.product(*choices.values())]
    for run in runs:
        run["layers"] = min(run["layers"], 24)  # the library follows each layer
        run |= {"seq": min(run["seq"], 1024), "batch": min(run["batch"], 8)} if run["width"] < 700 else {}  # all phases
    add = "runs => runs.map((run) => explorer.peak(JSON.parse(model.get('table')), run))"
    for run, found in zip(runs, page.evaluate(add, runs), strict=True):
        account = held(**run)
        phases.add(account.phase)
        assert found["phase"] == account.phase
        assert found["account"] == {category: int(nbytes) for category, nbytes in account.items()}, run
        assert found["count"] == parameters(shape(run["layers"], run["width"], run["seq"], run["attention"]))
    assert phases == {"forward", "backward", "optimizer step"}


def test_a_preset_sets_four_sliders(bar: Alone) -> None:
    page = bar(batch=64)
    page.get_by_role("button", name="GPT-3 175B").click()
    expect(page.get_by_role("status")).to_contain_text("175 billion parameters")
    expect(page.get_by_role("status")).to_contain_text("No single card holds it")
    assert page.evaluate("['layers', 'width', 'batch', 'seq'].map((name) => model.get(name))") == [96, 12288, 1, 2048]
    assert page.get_by_role("slider", name="Width").get_attribute("aria-valuetext") == "12,288"


def test_the_verdicts_agree_with_the_cards(bar: Alone) -> None:
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
