"""The bucket explorer as a reader meets it: its numbers and its words."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import pytest
from playwright.sync_api import expect

from course_kit.units import Seconds
from course_lib import predict
from course_lib.predict.overlap import GradientReady
from course_pages.lesson07.explorer import BucketExplorer
from tests.browser.conftest import Alone
from tests.pages.explorers import places

pytestmark = pytest.mark.browser


@pytest.fixture
def explorer(alone: Alone) -> Alone:
    """`explorer(bucket=20)`."""
    return partial(alone, BucketExplorer)


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
    page = explorer()
    parsed = "JSON.parse(model.get('table')), JSON.parse(model.get('_controls'))"
    for place in places("BucketExplorer", 30):
        ours = BucketExplorer(**place).result()
        theirs = page.evaluate(f"(place) => explorer.run({parsed}, place, place.bucket)", place)
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
