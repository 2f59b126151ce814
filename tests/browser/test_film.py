"""The film explorer as a reader meets it: by mouse, by keyboard and by screen reader."""

from __future__ import annotations

from functools import partial

import pytest
from playwright.sync_api import Locator, Page, expect

from course_lib.predict.chain import Chain
from course_pages.lesson03.explorer import FilmExplorer
from tests.browser.conftest import Alone

pytestmark = pytest.mark.browser


@pytest.fixture
def film(alone: Alone) -> Alone:
    """`film(layers=16, every=4, ratio=1)`."""
    return partial(alone, FilmExplorer)


def slider(page: Page, name: str) -> Locator:
    return page.get_by_role("slider", name=name)


@pytest.mark.parametrize(
    ("layers", "ratio"),
    [(2, 1), (7, 3), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((16, 1), (32, 20)))],
)
def test_the_browser_shows_the_librarys_film(film: Alone, layers: int, ratio: int) -> None:
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


def test_moments_are_told_in_words_and_play_ends(film: Alone) -> None:
    page = film(layers=2, every=1)
    slider(page, "Moment").fill("3")
    expect(page.locator(".fx-now")).to_have_text(
        "Layer 2 runs forward again. Held: 2 inputs of segments, the insides of 1 layer: 3 together."
    )
    page.get_by_role("button", name="Play").click()
    expect(slider(page, "Moment")).to_have_value("6")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
