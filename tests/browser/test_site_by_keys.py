"""The site without a mouse, and on paper: where Tab goes, what keys open and change, what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.test_site import READY, reader, site  # noqa: F401 (fixtures)

READS = ("course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*", "docs/**/*", "*.md")
pytestmark = [pytest.mark.browser, pytest.mark.nightly]

PARTS = ["skip", "header", "side", "crumbs", "article", "after"]
"""The way of the focus through a page; a page without sections has no side."""
FOCUS = """(parts) => {
    const node = document.activeElement, look = getComputedStyle(node), box = node.getBoundingClientRect();
    const row = (node.closest('tr') ?? node).getBoundingClientRect();
    const within = ['#pst-skip-link', '.bd-header', '.bd-sidebar-primary', '.bd-header-article', 'article', 'body'];
    window.stops ??= new Map();
    const again = window.stops.has(node);
    window.stops.set(node, true);
    return {
        part: parts[within.findIndex((each) => node.closest(each))], again, out: node === document.body,
        top: row.top + scrollY, own: box.top + scrollY, bottom: box.bottom + scrollY, left: box.left,
        widget: [...document.querySelectorAll('.course-widget')].indexOf(node.closest('.course-widget')),
        seen: (look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) > 0) || look.boxShadow !== 'none',
        name: node.outerHTML.slice(0, 120),
    };
}"""
FORGOTTEN = """() => {
    const all = document.querySelectorAll('article :is(a[href], button, input, select, summary, [tabindex="0"])');
    const visible = (node) => node.checkVisibility({ visibilityProperty: true });
    const reached = (node) => node.tabIndex === 0 && visible(node) && !node.disabled;
    return [...all].filter((node) => reached(node) && node.type !== 'radio' && !window.stops.has(node))
        .map((node) => node.outerHTML.slice(0, 120));
}"""


def opened(page: Page, path: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_function(READY)


def samples(site: Path) -> list[Path]:  # noqa: F811
    """A lesson, a lab, a guide, the glossary, and a part of the reference where there is one."""
    found = [next(site.glob(f"{kind}/*06*.html")) for kind in ("lessons", "labs")]
    return found + [
        path for name in ("glossary", "contributing", "api/units") if (path := site / f"{name}.html").exists()
    ]


def stops_of(page: Page) -> list[dict[str, Any]]:
    """Where Tab goes from the top of the page until it leaves it."""
    stops: list[dict[str, Any]] = []
    while True:
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS, PARTS)
        if stop["out"] or stop["again"]:
            return stops
        stops.append(stop)


def is_before(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a reader meets `one` first; in a widget that means left of it, or above."""
    if one["widget"] == other["widget"] >= 0:
        return other["own"] >= one["bottom"] - 4 or (other["left"] >= one["left"] - 1 and other["bottom"] > one["own"])
    return other["top"] >= one["top"] - 4


def test_tab_goes_through_a_page_as_it_is_read_and_out_again(site: Path, reader: tuple[Page, list[str]]) -> None:  # noqa: F811
    page, _ = reader
    for path in samples(site):
        opened(page, path)
        stops = stops_of(page)
        way = [stop["part"] for stop in stops]
        assert way[0] == "skip" and way == sorted(way, key=PARTS.index) and "article" in way, (path.name, way)
        assert not [stop["name"] for stop in stops if not stop["seen"]], path.name
        inside = [stop for stop in stops if stop["part"] == "article"]
        wrong = [(a["name"], b["name"]) for a, b in zip(inside, inside[1:]) if not is_before(a, b)]
        assert not wrong and not page.evaluate(FORGOTTEN), (path.name, wrong, page.evaluate(FORGOTTEN))


def test_the_skip_link_leads_to_the_content(site: Path, reader: tuple[Page, list[str]]) -> None:  # noqa: F811
    page, _ = reader
    opened(page, samples(site)[0])
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("!!document.activeElement.closest('main')")


def test_keys_open_a_solution_and_move_an_explorer(site: Path, reader: tuple[Page, list[str]]) -> None:  # noqa: F811
    page, _ = reader
    opened(page, samples(site)[0])
    solution = page.locator("details", has_text="One solution").first
    solution.locator("summary").focus()
    for is_open in (True, False):
        page.keyboard.press("Enter")
        assert solution.evaluate("(node) => node.open") is is_open
    explorer = page.locator(".course-widget .explorer").first
    before = explorer.inner_text()
    explorer.get_by_role("button", name="one step forward").focus()
    page.keyboard.press("Enter")
    assert explorer.inner_text() != before


def test_paper_is_white_and_hides_nothing_but_the_way_through_the_site(
    site: Path,  # noqa: F811
    reader: tuple[Page, list[str]],  # noqa: F811
) -> None:
    page, _ = reader
    opened(page, samples(site)[0])
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    folded = "article details:not([open])"
    assert page.locator(folded).count() > 3
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(f"{folded}:not(:has(> summary > small))").count() == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in (".bd-header", ".bd-sidebar-primary", ".bd-sidebar-secondary", ".course-actions", folded):
        assert not [each for each in page.locator(hidden).all() if each.is_visible()], hidden
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(folded).count() > 3 and page.evaluate("document.documentElement.dataset.theme") == "dark"
