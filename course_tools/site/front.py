"""The site's first page: a question, a promise, a picture that moves, and where to start."""

from __future__ import annotations

import html
import io
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from PIL import Image

from course_tools.author.minutes import stated

PICTURE = "docs/course.gif"
STILL = "_files/course.png"
"""The picture's last frame, for readers whose system asks for less motion."""
_ALT = (
    "The explorer of lesson 06. Four ranks in a ring pass parts of a sum on, step by step, until after six steps every "
    "cell of every rank holds the whole sum."
)
_PAGE = """\
# Bigger Than One GPU

<p class="front-question">Your model no longer fits into one GPU, or its training no longer ends. What do you do, what
does it cost, and how do you know?</p>

- **You guess, a formula predicts, your machine measures.** All three stand in one table. A wrong claim stops the page.
- **Four real processes start from a cell, in milliseconds.** A report tells who waits for whom, if they ever do.
- **No GPU is needed.** Every lesson runs on a laptop's processor, and on a GPU of Colab.

<p class="front-start"><a href="{first}">Start with lesson {number}</a></p>

<picture>
<source srcset="{still}" media="(prefers-reduced-motion: reduce)">
<img src="{moving}" class="course-figure" alt="{alt}" width="{width}" height="{height}">
</picture>

## Lessons

<div class="front-cards">
{cards}
</div>

Each lesson is a notebook that was run: read it here, touch its explorers, then open it in Colab or on your own machine.
Most have a [lab](labs/index.md), graded on what you computed and on the bytes that it took. If you want to teach with
it: [for instructors](instructors.md). All about the course, and how to install it: [README](readme.md).
"""


@dataclass(frozen=True)
class Card:
    """A lesson on the first page.

    Attributes:
        page: the lesson's path on the site, without a suffix.
        title: number and title, as in "07 · Data parallelism".
        question: the question of the header, in Markdown.
        minutes: minutes of the first sitting; empty where the header has none.
    """

    page: str
    title: str
    question: str
    minutes: str

    def __str__(self) -> str:
        number, _, title = self.title.partition(" · ")
        question = re.sub(r"[*$]([^*$]+)[*$]", r"<em>\1</em>", html.escape(self.question))  # emphasis, and one symbol
        time = f'<span class="front-time">{self.minutes} minutes</span>' if self.minutes else ""
        return (
            f'<a class="front-card" href="{self.page}.html"><span class="front-number">{number}</span>'
            f"<strong>{html.escape(title)}</strong><span>{question[:1].upper()}{question[1:]}</span>{time}</a>"
        )


def card_of(page: str, notebook: str) -> Card:
    """The card of a page, from the text of its notebook."""
    cells = nbformat.reads(notebook, as_version=4).cells
    title, question = title_and_question(cells[0].source)
    return Card(page, title, question, next(map(str, stated(cells)), ""))


def title_and_question(header: str) -> tuple[str, str]:
    """The title of a notebook, and the question of a lesson or the goal of a lab; "" where it has none."""
    about = re.search(r"^\*\*(?:The question|Goal):?\*\*:? *(.+?)(?:\n\n|$)", header, re.M | re.S)
    return header.partition("\n")[0].lstrip("# "), " ".join(about[1].split()) if about else ""


def front_page(root: Path, cards: Sequence[Card]) -> tuple[str, dict[str, bytes]]:
    """The page's Markdown, and the files beside it."""
    moving = f"_files/{posixpath.basename(PICTURE)}"
    with Image.open(root / PICTURE) as picture:
        picture.seek(getattr(picture, "n_frames", 1) - 1)
        (width, height), png = picture.size, io.BytesIO()
        picture.convert("RGB").save(png, "PNG", optimize=True)
    text = _PAGE.format(
        first=f"{cards[0].page}.html", number=cards[0].title.partition(" · ")[0], still=STILL, moving=moving,
        alt=_ALT, width=width, height=height, cards="\n".join(map(str, cards)),
    )  # fmt: skip
    return text, {moving: (root / PICTURE).read_bytes(), STILL: png.getvalue()}
