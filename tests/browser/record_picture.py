"""Records the picture of README and of the site's first page, docs/course.gif: an explorer in motion.

    python -m tests.browser.record_picture             # builds the page that it shows
    python -m tests.browser.record_picture build/site  # takes a site that is there

Needs what the browser tests need (`pip install -e '.[test]'`, a Chromium).
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from course_tools.lessons import find_lessons
from course_tools.site.build import build_site
from tests.browser.jupyterlab import REPOSITORY, launch

PICTURE = REPOSITORY / "docs" / "course.gif"
LESSON = "lessons/06_collectives.html"
SIZE = {"width": 1000, "height": 900}
COLOURS = 64
LARGEST_BYTES = 2_000_000

Scene = tuple[bytes, int]
"""A screenshot, and for how many milliseconds it is shown."""


def explorer(page: Page, site: Path) -> list[Scene]:
    """The ring of lesson 06, from its first step to its last."""
    page.goto((site / LESSON).as_uri())
    page.wait_for_function("document.documentElement.dataset.courseReady")
    ring = page.locator(".course-widget .explorer").first
    scenes = [(ring.screenshot(), 1500)]
    forward = ring.get_by_role("button", name="one step forward", exact=True)
    while forward.is_enabled():
        forward.click()
        scenes.append((ring.screenshot(), 150))  # on its way
        page.wait_for_timeout(500)
        scenes.append((ring.screenshot(), 900))
    return [*scenes[:-1], (scenes[-1][0], 2500)]


def save(scenes: list[Scene], file: Path) -> None:
    """Write the scenes as one GIF that repeats.

    Raises:
        ValueError: it is larger than README's readers should load.
    """
    pictures = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in scenes]
    few = [picture.quantize(COLOURS, dither=Image.Dither.NONE) for picture in pictures]
    told = [shown_ms for _, shown_ms in scenes]
    few[0].save(file, save_all=True, append_images=few[1:], duration=told, loop=0, optimize=True)
    if file.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes, over {LARGEST_BYTES:,}: show less")


def main(site: Path | None) -> None:
    """Record the picture, from this site or from one that is built for it."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        if site is None:
            site = Path(folder) / "site"
            build_site(REPOSITORY, find_lessons(REPOSITORY, ["06"]), [], site, Console(quiet=True), library=False)
        browser = launch(playwright)
        page = browser.new_context(viewport=SIZE).new_page()  # type: ignore[arg-type]
        save(explorer(page, site), PICTURE)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None)
