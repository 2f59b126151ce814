"""The scale explorer as a reader meets it: its counts in words and colours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from course_pages.lesson04.explorer import ScaleExplorer
from tests.browser.conftest import Alone
from tests.pages.lesson04.test_explorer import SPREAD

pytestmark = pytest.mark.browser


@pytest.fixture
def scale(alone: Alone) -> Alone:
    """`scale(power, number_format)`."""

    def mounted(power: int = 0, number_format: str = "fp16") -> Page:
        data = {"weights": [SPREAD], "layers": [SPREAD[:100] / 64]}
        return alone(ScaleExplorer, gradients=data, power=power, number_format=number_format)

    return mounted


def expected(power: int, number_format: str = "fp16") -> ScaleExplorer:
    return ScaleExplorer({"weights": [SPREAD]}, power=power, number_format=number_format)


@pytest.mark.parametrize("power", [0, 40, *(pytest.param(power, marks=pytest.mark.nightly) for power in (-8, 7, 24))])
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
