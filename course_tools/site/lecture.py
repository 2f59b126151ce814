"""`course slides`: one HTML file for a lecture, with all its scripts, pictures and widgets inside.

reveal.js through nbconvert is no way to this: its pages ask three other hosts (for reveal.js, MathJax and Jupyter's
widgets), its slides are cells, and its notes are marked by hand. The script in `deck/` has some 100 lines instead.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path

from pygments.formatters import HtmlFormatter

from course_tools.lessons import Lesson
from course_tools.site import notebook
from course_tools.site.slides import Deck, Slide

_HERE = Path(__file__).parent
_SECOND = re.compile(r"^## Second sitting", re.MULTILINE)
_STATE = "application/vnd.jupyter.widget-state+json"
_FIGURE = re.compile(r'<a [^>]+>(<img [^>]*)src="_figures/([^"]+)"([^>]*>)</a>')
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{sheet}</style>
</head>
<body>
<main id="deck">
{slides}
</main>
<nav aria-label="Slides">
<button id="back" title="Back (←)">←</button> <output id="where"></output> <button id="on" title="On (→)">→</button>
<button id="notes-here" title="Notes below (n)">notes</button>
<button id="notes-there" title="Notes in a second window (s)">speaker</button>
</nav>
<script>{widgets}</script>
<script type="module">{living}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def write_lecture(lesson: Lesson, folder: Path) -> tuple[Path, int]:
    """Write the slides of a lesson's first sitting, from its notebook as it is stored; nothing is run.

    Args:
        lesson: the lesson to make slides of.
        folder: gets the file, called like the lesson; one that is there is replaced.

    Returns:
        The file, and the number of its slides.

    Raises:
        ValueError: the lesson was not built, or has no outputs.
    """
    if not lesson.notebook.exists():
        raise ValueError(f"{lesson.notebook.name} is missing; run `course build {lesson.number}`")
    stored = json.loads(lesson.notebook.read_text("utf-8"))
    if notebook.lacks_outputs(stored):
        raise ValueError(f"{lesson.notebook.name} has no outputs; run `course build {lesson.number}`")
    text, slides = lecture_of(stored, lesson.name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{lesson.name}.html"
    file.write_text(text, "utf-8")
    return file, slides


def lecture_of(stored: dict, name: str) -> tuple[str, int]:
    """The slides of a stored notebook's first sitting as the text of one HTML file, and their number."""
    slides, page = slides_of(stored, name)
    return _whole(slides, page), len(slides)


def slides_of(stored: dict, name: str) -> tuple[list[Slide], notebook.Page]:
    """The slides of a stored notebook's first sitting, and the figures and widgets that they show."""
    states = stored["metadata"].get("widgets", {}).get(_STATE, {}).get("state", {})
    questions = {model: about["state"]["question"] for model, about in states.items() if "question" in about["state"]}
    page = notebook.page_of({**stored, "cells": _first_sitting(stored["cells"])}, name, up="")
    return Deck(page.notebook["cells"], questions).slides, page


def _first_sitting(cells: list[dict]) -> list[dict]:
    """The cells above the heading "Second sitting", with the lines above it in its own cell."""
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and (heading := _SECOND.search(text)):
            return [*cells[:number], {**cell, "source": text[: heading.start()]}]
    return cells


def _whole(slides: list[Slide], page: notebook.Page) -> str:
    def inside(found: re.Match[str]) -> str:
        png = base64.b64encode(page.figures[found[2]]).decode()
        return f'{found[1]}src="data:image/png;base64,{png}"{found[3]}'

    deck = _HERE / "deck"
    colours = HtmlFormatter(style="a11y-high-contrast-light").get_style_defs(".code")
    sections = "\n".join(_section(slide) for slide in slides)
    return _PAGE.format(
        title=html.escape(slides[0].section),
        sheet=f"{colours}\n{(deck / 'deck.css').read_text('utf-8')}",
        slides=_FIGURE.sub(inside, sections).replace(' loading="lazy"', ""),
        widgets=page.script.replace("</", "<\\/"),  # no text of a widget ends the script around it
        living=(_HERE / "static" / "site.js").read_text("utf-8"),
        script=(deck / "deck.js").read_text("utf-8"),
    )


def _section(slide: Slide) -> str:
    plain = re.sub(r"[`*$]", "", slide.section)
    head = "" if slide.kind in ("title", "section") else f'<p class="running">{html.escape(plain)}</p>'
    notes = "\n".join(slide.notes).replace("<details>", "<details open>")
    return (
        f'<section class="slide is-{slide.kind}" aria-label="{html.escape(plain)}">{head}'
        f'<div class="room"><div class="content">{slide.body}</div></div>'
        f'<aside class="notes" aria-label="Notes">{notes}</aside></section>'
    )
