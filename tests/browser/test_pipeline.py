"""The pipeline explorer as a reader meets it: its moves, by mouse and by keyboard."""

from __future__ import annotations

import random
import re
from functools import partial

import pytest
from playwright.sync_api import Locator, Page, expect

from course_lib.pipeline.schedule import ORDERS, Schedule, parse, peak_in_flight, problems, simulate
from course_pages.lesson09.explorer import MICRO_BATCHES, STAGES, PipelineExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser

PLAY = """(text) => {
    const rows = explorer.parse(text);
    const { spans, end, busy, idle, peaks } = explorer.play(rows);
    const bars = spans.map((row) => row.map((span) => [span.action.words.split(' ')[0], span.start, span.end]));
    return { bars, end, busy, idle, peaks, written: explorer.written(rows) };
}"""
FAULT = "(text) => explorer.fault(explorer.parse(text), JSON.parse(model.get('table')))"


@pytest.fixture
def explorer(alone: Alone) -> Alone:
    """`explorer(stages=2)`."""
    return partial(alone, PipelineExplorer)


def bar(page: Page, rank: int, action: str) -> Locator:
    return page.get_by_role("button", name=re.compile(f"^rank {rank}: {action}[ ,]"))


def told(page: Page) -> Locator:
    return page.locator(".px-told")


@pytest.mark.parametrize("name", ORDERS)
def test_the_browser_plays_what_python_simulates(explorer, name: str) -> None:
    page = explorer()
    for ranks, count in [(each, count) for each in STAGES for count in MICRO_BATCHES if count in (1, 8, 16)]:
        if name == "interleaved" and count % ranks:
            continue
        schedule = ORDERS[name](ranks, count)
        ours, theirs = simulate(schedule), page.evaluate(PLAY, str(schedule))
        names = str(schedule).splitlines()
        bars = [
            [[word, span.start, span.end] for word, span in zip(words.split(), spans) if span.action.kind != "U"]
            for words, spans in zip(names, ours.spans)
        ]
        assert theirs["bars"] == bars and theirs["written"] == str(schedule)
        assert (theirs["end"], theirs["busy"]) == (ours.makespan, sum(map(ours.busy, range(ranks))))
        part = schedule.ranks / schedule.stages
        assert theirs["peaks"] == [peak_in_flight(actions) * part for actions in schedule.actions]


def swapped(schedule: Schedule, chosen: random.Random) -> Schedule:
    """With two neighbouring actions of a rank in the other order."""
    rank = chosen.randrange(schedule.ranks)
    place = chosen.randrange(len(schedule.actions[rank]) - 1)
    actions = [list(each) for each in schedule.actions]
    actions[rank][place : place + 2] = reversed(actions[rank][place : place + 2])
    return Schedule(schedule.name, tuple(map(tuple, actions)), schedule.owner, schedule.micro_batches)


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "pipedream"])
def test_the_browser_refuses_what_python_refuses_in_the_same_words(explorer, name: str) -> None:
    """Moves drawn at random; 15 on top of each other. (An update moves with its backward.)"""
    page, chosen, found = explorer(), random.Random(1), set()
    for _ in range(6):
        schedule = ORDERS[name](chosen.choice((2, 4)), chosen.choice((4, 8)))
        for _ in range(15):
            moved = swapped(schedule, chosen)
            why = problems(moved)
            assert page.evaluate(FAULT, str(moved)) == (why[0] if why else ""), str(moved)
            found.add(why[0].split(" ")[0] if why else "")
            schedule = schedule if why else moved
    assert len(found) > 1  # some moves are fine, some are not


def test_a_move_is_played_and_reaches_python(explorer) -> None:
    page = explorer(schedule="gpipe", stages=2, micro_batches=2)
    expect(page.locator(".px-summary")).to_contain_text("Done after 9 units")
    bar(page, 1, "BW0").click()
    page.get_by_role("button", name="move earlier").click()
    expect(told(page)).to_have_text("BW0 now stands before F1 on rank 1.")
    expect(page.locator(".px-summary")).to_contain_text("from rank 0 on: 2, 1.")
    assert page.evaluate("model.get('moved')") == "F0 F1 BW0 BW1\nF0 BW0 F1 BW1"
    assert parse(page.evaluate("model.get('moved')")).actions == ORDERS["1f1b"](2, 2).actions
    page.get_by_role("button", name="undo all moves").click()
    expect(page.locator(".px-summary")).to_contain_text("from rank 0 on: 2, 2.")
    assert page.evaluate("model.get('moved')") == ""


def test_an_illegal_move_is_explained_and_not_made(explorer) -> None:
    page = explorer(stages=2, micro_batches=2)
    bar(page, 1, "BW0").click()
    page.get_by_role("button", name="move earlier").click()
    expect(told(page)).to_have_text(re.compile("^Not possible. Rank 1: BW0 .* comes before F0: a backward pass needs"))
    expect(told(page)).to_have_class(re.compile("px-refused"))
    bar(page, 0, "BW0").click()
    page.get_by_role("button", name="move earlier").click()
    expect(told(page)).to_have_text("BW0 now stands before F1 on rank 0.")
    expect(told(page)).not_to_have_class(re.compile("px-refused"))
    page.get_by_role("button", name="undo all moves").click()
    bar(page, 0, "F1").click()
    page.get_by_role("button", name="move earlier").click()
    bar(page, 1, "F1").click()
    page.get_by_role("button", name="move earlier").click()
    expect(told(page)).to_have_text("F1 now stands before BW0 on rank 1.")


def test_a_deadlock_is_explained(explorer) -> None:
    page = explorer(schedule="gpipe", stages=2, micro_batches=2)
    bar(page, 0, "BW0").click()
    page.get_by_role("button", name="move earlier").click()
    expect(told(page)).to_have_text(re.compile("^Not possible. Deadlock: rank 0 waits before BW0 .*nobody can go on.$"))
    assert page.evaluate("[model.get('moved'), model.saved]") == ["", 0]


def test_an_update_moves_with_its_backward_pass(explorer) -> None:
    page = explorer(schedule="pipedream", stages=2, micro_batches=2)
    bar(page, 1, "BW0").click()
    page.get_by_role("button", name="move later").click()
    assert page.evaluate("model.get('moved')").splitlines()[1] == "F0 F1 BW0 U0 BW1 U1"


def test_another_schedule_forgets_the_moves(explorer) -> None:
    page = explorer(stages=2, micro_batches=2)
    bar(page, 1, "BW0").click()
    page.get_by_role("button", name="move later").click()
    page.get_by_role("slider", name="Ranks").fill("2")
    page.get_by_label("Schedule").select_option("zero-bubble")
    assert page.evaluate("[model.get('moved'), model.get('schedule')]") == ["", "zero-bubble"]
    expect(page.get_by_role("button", name="move earlier")).to_be_disabled()
    expect(page.get_by_role("button", name="undo all moves")).to_be_disabled()


def test_where_there_is_no_schedule_the_page_says_why(explorer) -> None:
    page = explorer(schedule="interleaved", micro_batches=6)
    expect(page.locator(".px-summary")).to_contain_text("6 micro-batches on 4 ranks")
    expect(page.locator(".px-bar")).to_have_count(0)


def test_the_keyboard_takes_and_moves(explorer) -> None:
    page = explorer(stages=2, micro_batches=2)
    bar(page, 1, "F0").focus()
    for key in ("ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(bar(page, 1, "BW0")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="move later").focus()
    page.keyboard.press("Enter")
    expect(told(page)).to_have_text("BW0 now stands behind F1 on rank 1.")
