"""The course's site as a reader meets it: every page once, every explorer once, on a phone, in both themes.

`COURSE_SITE=build/site` looks at a whole site, as the workflow that publishes it does; otherwise at a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from rich.console import Console

from course_tools.labs import find_labs
from course_tools.lessons import find_lessons
from course_tools.site.build import build_site
from tests.browser.conftest import TOUCH
from tests.browser.jupyterlab import REPOSITORY

READS = ("course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*", "docs/**/*", "*.md")
pytestmark = pytest.mark.browser

PHONE = {"width": 360, "height": 780}
READY = "() => document.documentElement.dataset.courseReady"
WIDER = """() => [...document.querySelectorAll('article *, .bd-header *')].filter((node) =>
    node.getBoundingClientRect().right > innerWidth + 1 && node.checkVisibility()
    && !node.closest('svg *, pre, .math-block, [style*=overflow], .pst-scrollable-table-container'))
    .map((node) => node.outerHTML.slice(0, 120))"""
TABLES = """() => {
    const wide = [...document.querySelectorAll('article table')].map((table) => [table, table.parentElement])
        .filter(([table, box]) => table.checkVisibility() && table.offsetWidth > box.clientWidth);
    const reached = ([_, box]) => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX === 'auto'
        && box.tabIndex === 0 && box.role && box.ariaLabel;
    return [wide.length, wide.filter((each) => !reached(each)).map(([table]) => table.innerText.slice(0, 80))];
}"""
"""How many tables are wider than the page, and which of them scroll in no box that the keyboard reaches."""
WORDLESS = """() => [...document.images].filter(({ alt }) => alt.length <= 20 || /^\\S+$|\\.(png|svg|gif)$/.test(alt))
    .map((image) => image.outerHTML.slice(0, 120))"""
LOOKS = """() => {
    const seen = new Set(), papers = new Map();
    const paper = (node) => {
        if (!node) return '';
        if (!papers.has(node)) {
            const { backgroundColor, backgroundImage, opacity } = getComputedStyle(node);
            const own = `${backgroundColor} ${backgroundImage} ${opacity}`;
            const through = backgroundColor.endsWith(', 0)') || opacity !== '1';
            const seenThrough = own === 'rgba(0, 0, 0, 0) none 1' ? '' : own;
            papers.set(node, through ? seenThrough + paper(node.parentElement) : own);
        }
        return papers.get(node);
    };
    for (const node of document.querySelectorAll('body *')) {
        delete node.dataset.look;
        if (![...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim())) continue;
        const { color, fontSize, fontWeight } = getComputedStyle(node);
        const look = `${color} ${fontSize} ${fontWeight} ${paper(node)}`;
        if (seen.has(look) || !node.checkVisibility()) continue;
        seen.add(look);
        node.dataset.look = '';
    }
}"""
"""Marks one element of each look: thousands of a page's words have the same colours, size and paper."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site in a folder."""
    if given := os.environ.get("COURSE_SITE"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("site") / "pages"
    lessons, labs = find_lessons(REPOSITORY, ["06"]), find_labs(REPOSITORY, ["lab06"])
    build_site(REPOSITORY, lessons, labs, folder, Console(quiet=True), library=False)
    return folder


@pytest.fixture
def reader(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One page for all pages, as wide as a phone, and what its console complained about or what it asked of the web."""
    context = browser.new_context(viewport=PHONE, reduced_motion="reduce")  # type: ignore[arg-type]
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(f"{page.url}: {error}"))
    page.on("console", lambda message: said.append(f"{page.url}: {message.text}") if message.type == "error" else None)
    page.on("request", lambda asked: said.append(asked.url) if asked.url.startswith("http") else None)
    yield page, said
    context.close()


def pages_of(site: Path) -> list[Path]:
    """All of them; lectures are no pages of this kind."""
    pages = (path for path in sorted(site.rglob("*.html")) if path.name != "search.html")
    return [path for path in pages if path.relative_to(site).parts[0] not in ("_static", "slides")]


def violations(page: Page) -> list[Any]:
    """What axe finds in the light, and of colours in the dark; colours are judged once for each look of the page."""
    rules = {"color-contrast": {"enabled": False}}
    runs: list[tuple[str, str | None, dict[str, Any]]] = [("light", None, {"rules": rules})]
    runs += [(theme, "[data-look]", {"runOnly": ["color-contrast"]}) for theme in ("light", "dark")]
    found = []
    for theme, context, options in runs:
        page.evaluate("(theme) => { document.documentElement.dataset.theme = theme }", theme)
        if context:
            page.evaluate(LOOKS)
        options = {"preload": False, "resultTypes": ["violations"], **options}
        complaints = Axe().run(page, context=context, options=options).response["violations"]
        found += [(theme, each["id"], [node["html"][:160] for node in each["nodes"]][:3]) for each in complaints]
    return found


@pytest.mark.nightly
def test_every_page_is_quiet_narrow_and_open_to_all(site: Path, reader: tuple[Page, list[str]]) -> None:
    page, said = reader
    problems, wide = {}, 0
    for path in pages_of(site):
        page.goto(path.as_uri())
        page.wait_for_function(READY)
        tables, lost = page.evaluate(TABLES)
        wide += tables
        wider = page.evaluate(WIDER)
        if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
            wider += ["the page scrolls sideways"]
        if found := wider + lost + page.evaluate(WORDLESS) + violations(page):
            problems[path.relative_to(site).as_posix()] = found
    assert wide > 3, "no table is wider than a phone: this looked at nothing"
    assert not said and not problems, (said, problems)


def test_every_explorer_answers_without_a_kernel(site: Path, reader: tuple[Page, list[str]]) -> None:
    page, said = reader
    shown = 0
    for path in sorted(site.glob("lessons/[0-9]*.html")):
        page.goto(path.as_uri())
        page.wait_for_function(READY)
        for explorer in page.locator(".course-widget .explorer").all():
            assert explorer.evaluate(TOUCH), f"{path.name}: {explorer.get_attribute('class')}"
            shown += 1
        for box in page.locator(".course-widget .ask").all():
            box.get_by_role("textbox").fill("12")
            box.get_by_role("textbox").press("Enter")
            assert box.get_by_role("status").inner_text() == "Noted."
    assert shown and not said, said
