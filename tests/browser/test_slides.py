"""A lecture as its speaker meets it: every slide once, an explorer, a guess, the keys, the notes."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from course_tools.lessons import find_lessons
from course_tools.site.lecture import write_lecture
from tests.browser.jupyterlab import REPOSITORY

READS = ("course_*/**/*", "lessons/**/*", "labs/**/*", "solutions/src/*", "docs/**/*", "*.md")
pytestmark = [pytest.mark.browser, pytest.mark.nightly]

OUTSIDE = """() => [...document.querySelectorAll('.slide.now .content, .slide.now .content *')].filter((node) => {
    const room = document.querySelector('.slide.now .room').getBoundingClientRect();
    const box = node.getBoundingClientRect();
    const wide = box.left > room.left - 1 && box.right < room.right + 1;
    const inside = wide && box.top > room.top - 1 && box.bottom < room.bottom + 1;
    return node.checkVisibility() && box.width && !node.closest('svg') && !inside;
}).map((node) => node.outerHTML.slice(0, 120))"""


def test_a_lecture_fits_its_slides_and_answers(browser: Browser, tmp_path: Path) -> None:
    file, slides = write_lecture(find_lessons(REPOSITORY, ["06"])[0], tmp_path)
    context = browser.new_context(viewport={"width": 1024, "height": 768})
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("request", lambda asked: said.append(asked.url) if asked.url.startswith("http") else None)
    page.goto(file.as_uri())
    page.wait_for_function("() => document.documentElement.dataset.courseReady")
    now, problems = page.locator(".slide.now"), {}
    for number in range(1, slides + 1):
        expect(page.locator("#where")).to_have_text(f"{number} / {slides}")
        if wrong := page.evaluate(OUTSIDE):
            problems[number] = wrong
        if now.locator(".explorer").count():
            before = now.locator(".explorer").inner_text()
            now.get_by_role("button", name="one step forward").click()
            assert now.locator(".explorer").inner_text() != before
            page.keyboard.press("ArrowRight")  # the button's own key: no slide is passed by mistake
            expect(page.locator("#where")).to_have_text(f"{number} / {slides}")
        for box in now.get_by_role("textbox").all():
            box.fill("12")
            box.press("Enter")
        page.keyboard.press("PageDown")
    assert not problems
    page.locator(".slide.is-table").first.evaluate(
        "(node) => location.hash = [...node.parentElement.children].indexOf(node) + 1"
    )
    expect(now.locator(".guessed")).to_have_text("Guessed: 12 kB")
    with context.expect_page() as opened:
        page.get_by_role("button", name="speaker").click()
    page.get_by_role("button", name="→").click()
    expect(opened.value.locator("body")).to_contain_text(f"of {slides}")
    page.get_by_role("button", name="notes", exact=True).click()
    expect(page.locator("#below")).to_have_text(now.locator(".notes").text_content() or "", use_inner_text=False)
    context.close()
    assert not said
