"""The ZeRO explorer as a reader meets it: its numbers, mouse and keyboard, narrow and wide."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from playwright.sync_api import Locator, expect

from course_pages.lesson10.explorer import GPUS, STAGES, ZeroExplorer, at_most, needed, sent
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser

LOOK = "runs => runs.map((run) => explorer.look(table, JSON.parse(model.get('_controls')), run))"


@pytest.fixture
def explorer(alone: Alone) -> Alone:
    """`explorer(ranks=64, dark=True)`."""
    return partial(alone, ZeroExplorer)


def test_the_browser_adds_up_what_python_predicts(explorer) -> None:
    page, chosen = explorer(), random.Random(0)
    offers = {name: control.values for name, control in ZeroExplorer.controls().items()}
    runs = [{name: chosen.choice(values) for name, values in offers.items()} for _ in range(40)]
    look = LOOK.replace("table", "JSON.parse(model.get('table'))")
    for run, found in zip(runs, page.evaluate(look, runs), strict=True):
        for zero, stage in enumerate(found):
            account = at_most(run["model"], run["ranks"], zero, run["sequences"])
            n_bytes, seconds = sent(run["model"], run["ranks"], zero, run["gpu"])
            assert stage["held"] == list(map(int, account.values())) and stage["total"] == account.total
            assert stage["fits"] == (account.total <= GPUS[run["gpu"]].usable)
            assert (stage["sent"], stage["seconds"]) == (f"{n_bytes:.1GB}", f"{seconds:.1}")
            assert stage["fewest"] == needed(run["model"], zero, run["sequences"], run["gpu"])


def test_moves_are_told_drawn_and_reach_python(explorer) -> None:
    page = explorer(model="GPT-3 6.7B", ranks=4, gpu="A100 40GB")
    status = page.get_by_role("status")
    expect(status).to_have_text("GPT-3 6.7B on 4 × A100 40GB, states alone: fits from stage 2 on.")
    page.get_by_role("slider", name="Ranks").focus()
    page.keyboard.press("ArrowRight")
    expect(status).to_have_text("GPT-3 6.7B on 8 × A100 40GB, states alone: fits from stage 1 on.")
    assert page.evaluate("[model.get('ranks'), model.saved]") == [8, 1]
    page.get_by_label("Model").select_option("GPT-3 175B")
    expect(status).to_have_text(
        "GPT-3 175B on 8 × A100 40GB, states alone: does not fit. Stage 3 does, from 83 ranks on."
    )
    page.evaluate("model.set('sequences', 16)")
    expect(status).to_have_text("GPT-3 175B on 8 × A100 40GB: does not fit, however many ranks there are.")
    expect(page.locator(".zx-facts").nth(3)).to_contain_text("never fits")
    page.evaluate("model.set('model', 'GPT-2 XL')")
    expect(status).to_have_text("GPT-2 XL on 8 × A100 40GB: fits without ZeRO.")


def test_bars_end_where_their_bytes_do(explorer) -> None:
    """On one scale with the card's line, but for those that fade out."""
    page = explorer(model="GPT-3 6.7B", ranks=8, gpu="A100 40GB", sequences=1)
    track = page.locator(".ex-track").first.bounding_box()
    assert track
    top = 1.02 * at_most("GPT-3 6.7B", 8, 0, 1).total
    for zero in range(len(STAGES)):
        parts = page.locator(".ex-stack").nth(zero).locator(".ex-block")
        widths = parts.evaluate_all("parts => parts.map((part) => part.getBoundingClientRect().width)")
        due = [track["width"] * nbytes / top for nbytes in at_most("GPT-3 6.7B", 8, zero, 1).values()]
        assert widths == pytest.approx(due, abs=0.5)
    expect(page.locator(".ex-longer")).to_have_count(0)
    page.evaluate("model.set('model', 'MT-NLG 530B')")
    expect(page.locator(".ex-longer")).to_have_count(4)


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out(explorer, dark: bool) -> None:
    """At four widths, with short words and with the longest."""
    page = explorer(dark=dark)
    cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
    for change in ({}, {"model": "Llama 3 405B", "gpu": "H100 SXM 80GB", "ranks": 4096, "sequences": 16}):
        page.evaluate("(change) => Object.entries(change).forEach(([name, value]) => model.set(name, value))", change)
        for width in (340, 600, 760, 1200):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            found = page.locator(".ex-body div:not(.ex-longer), .ex-body label").evaluate_all(cut)
            assert not found, (width, found)


def test_every_control_and_bar_has_a_name(explorer, unnamed: Callable[[Locator], list[str]]) -> None:
    page = explorer(sequences=1)
    assert not unnamed(page.locator("#widget"))
    bar = page.get_by_role(
        "img", name="Stage 2: and gradients: weights 12.4 GiB, gradients 1.6 GiB, optimizer state 9.3 GiB"
    )
    expect(bar).to_have_count(1)
