"""The ZeRO explorer as a reader meets it: its numbers and its bars."""

from __future__ import annotations

from functools import partial

import pytest
from playwright.sync_api import expect

from course_pages.lesson10.explorer import GPUS, STAGES, ZeroExplorer, at_most, needed, sent
from tests.browser.conftest import Alone
from tests.pages.explorers import places

pytestmark = pytest.mark.browser

LOOK = "runs => runs.map((run) => explorer.look(table, JSON.parse(model.get('_controls')), run))"


@pytest.fixture
def explorer(alone: Alone) -> Alone:
    """`explorer(ranks=64)`."""
    return partial(alone, ZeroExplorer)


def test_the_browser_adds_up_what_python_predicts(explorer) -> None:
    page, runs = explorer(), places("ZeroExplorer", 40)
    look = LOOK.replace("table", "JSON.parse(model.get('table'))")
    for run, found in zip(runs, page.evaluate(look, runs), strict=True):
        for zero, stage in enumerate(found):
            account = at_most(run["model"], run["ranks"], zero, run["sequences"])
            n_bytes, seconds = sent(run["model"], run["ranks"], zero, run["gpu"])
            assert stage["held"] == list(map(int, account.values())) and stage["total"] == account.total
            assert stage["fits"] == (account.total <= GPUS[run["gpu"]].usable)
            assert (stage["sent"], stage["seconds"]) == (f"{n_bytes:.1GB}", f"{seconds:.1}")
            assert stage["fewest"] == needed(run["model"], zero, run["sequences"], run["gpu"])


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
    words = "Stage 2: and gradients: weights 12.4 GiB, gradients 1.6 GiB, optimizer state 9.3 GiB"
    expect(page.get_by_role("img", name=words)).to_have_count(1)
    expect(page.locator(".ex-longer")).to_have_count(0)
    page.evaluate("model.set('model', 'MT-NLG 530B')")
    expect(page.locator(".ex-longer")).to_have_count(4)
