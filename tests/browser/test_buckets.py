"""The bucket explorer as a reader meets it: by mouse, by keyboard, by screen reader, narrow and wide."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import pytest
from playwright.sync_api import Locator, Page, expect

from course_kit.units import Seconds
from course_lib import predict
from course_lib.predict.overlap import GradientReady
from course_pages.lesson07.explorer import BucketExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


@pytest.fixture
def explorer(alone: Alone) -> Alone:
    """`explorer(bucket=20, dark=True)`."""
    return partial(alone, BucketExplorer)


def slider(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name)


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 150, 10**6])
def test_the_browser_agrees_with_the_cases_by_hand(explorer, bucket_bytes: int, overlapped: bool) -> None:
    """The cases of tests/predict/test_overlap.py."""
    four = [GradientReady(*each) for each in (("d", 100, 1.0), ("c", 100, 2.0), ("b", 100, 3.0), ("a", 100, 10.0))]
    link = predict.Link(Seconds(0.5), 0.01)
    ours = predict.overlap(four, bucket_bytes, 2, link, overlapped)
    network = {"bytes": list(accumulate(each.n_bytes for each in four)), "ready_s": [each.ready_s for each in four]}
    closed = [count - 1 for count in accumulate(each.n_gradients for each in ours.departures)]
    queue = "([network, closed, early]) => explorer.queue(network, closed, 1, (n) => 2 * 0.5 + 0.01 * n, early)"
    theirs = explorer().evaluate(queue, [network, closed, overlapped])
    assert [(d["bytes"], d["full"], d["start"], d["end"]) for d in theirs["departures"]] == [
        (int(d.n_bytes), d.full_s, d.start_s, d.end_s) for d in ours.departures
    ]
    assert [theirs["backward"], theirs["end"]] == [float(ours.backward_s), float(ours.end_s)]


def test_the_browser_comes_to_the_times_that_python_predicts(explorer) -> None:
    """Places drawn at random, in all their buckets. (Python sends whole bytes.)"""
    page, chosen = explorer(), random.Random(0)
    offers = {name: control.values for name, control in BucketExplorer.controls().items()}
    for _ in range(12):
        place = {name: chosen.choice(values) for name, values in offers.items()}
        ours = BucketExplorer(**place).result()
        parsed = "JSON.parse(model.get('table')), JSON.parse(model.get('_controls'))"
        run = f"(place) => explorer.run({parsed}, place, place.bucket)"
        theirs = page.evaluate(run, place)
        assert [each[name] for each in theirs["departures"] for name in ("full", "start", "end")] == pytest.approx(
            [time for each in ours.departures for time in (each.full_s, each.start_s, each.end_s)]
        ), place
        assert theirs["backward"] == pytest.approx(float(ours.backward_s)) and theirs["messages"] == ours.messages


@pytest.mark.parametrize(
    "given", [{}, {"network": "GPT-2 small", "gb_per_s": 1.25, "world": 10, "alpha_us": 0}, {"bucket": 10}]
)
def test_the_browser_shows_what_python_predicts(explorer, given) -> None:
    page, result = explorer(**given), BucketExplorer(**given).result()
    words = page.get_by_role("status")
    expect(words).to_contain_text(f"{len(result.departures)} bucket")
    expect(words).to_contain_text(f"{result.messages:,d} messages")
    sending_s = sum(each.end_s - each.start_s for each in result.departures)
    expect(words).to_contain_text(f"{round(100 * (1 - result.waiting_s / sending_s))} % are hidden")


def test_the_keyboard_moves_the_size_and_everything_follows(explorer) -> None:
    page = explorer()
    before = page.locator(".ex-chart path").evaluate_all("paths => paths.map((path) => path.getAttribute('d'))")
    slider(page, "Bucket size").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("status")).to_contain_text("1 bucket, 14 messages from each rank")
    expect(page.get_by_role("status")).to_contain_text("0 % are hidden")
    assert slider(page, "Bucket size").get_attribute("aria-valuetext") == "8 GiB"
    after = page.locator(".ex-chart path").evaluate_all("paths => paths.map((path) => path.getAttribute('d'))")
    assert before[0] != after[0] and before[2] != after[2]
    assert page.evaluate("[model.get('bucket'), model.saved]") == [33, 1]


def test_a_bar_chooses_a_size(explorer) -> None:
    page = explorer()
    bars = page.locator(".bk-sizes")
    box = bars.bounding_box()
    assert box
    bars.click(position={"x": box["width"] * 10.5 / 24, "y": box["height"] - 5})
    assert page.evaluate("model.get('bucket')") == 20


def test_many_ranks_want_larger_buckets(explorer) -> None:
    page = explorer()
    expect(page.locator(".bk-best")).to_contain_text("with 32 MiB")
    slider(page, "Ranks").fill("10")
    expect(page.locator(".bk-best")).to_contain_text("with 1 GiB")


def test_choices_and_the_switch_reach_python(explorer) -> None:
    page = explorer()
    page.get_by_label("1/β, the link").select_option("450 GB/s")
    page.get_by_label("Model").select_option("GPT-2 large")
    page.get_by_role("checkbox").uncheck()
    expect(page.get_by_role("status")).to_contain_text("0 % are hidden")
    names = "['gb_per_s', 'network', 'overlapped'].map((name) => model.get(name))"
    assert page.evaluate(names) == [450, "GPT-2 large", False]


def test_python_sets_the_numbers(explorer) -> None:
    page = explorer()
    page.evaluate("model.set('tokens', 10)")
    expect(slider(page, "Tokens per rank")).to_have_attribute("aria-valuetext", "1,024")
    assert page.evaluate("model.saved") == 0


def test_nothing_sticks_out(explorer) -> None:
    page = explorer(dark=True, bucket=10)
    for width in (340, 600, 760, 1200):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = "nodes => nodes.filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"
        assert not page.locator(".ex-body div, .ex-body label").evaluate_all(cut), width


def test_every_control_has_a_name(explorer, unnamed: Callable[[Locator], list[str]]) -> None:
    page = explorer()
    assert not unnamed(page.locator("#widget"))
    expect(page.get_by_role("img", name="Time to the end for each bucket size; lowest: 135 ms")).to_have_count(1)


def test_a_move_redraws_at_once(explorer) -> None:
    times = explorer().evaluate("""() => {
        const input = document.querySelector('.ex-field input');
        return Array.from({ length: 60 }, (_, i) => {
            const start = performance.now();
            input.value = 10 + (i * 7) % 24;
            input.dispatchEvent(new Event('input'));
            return performance.now() - start;
        }).sort((a, b) => a - b);
    }""")
    assert times[len(times) // 2] < 20, times
