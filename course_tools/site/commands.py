"""The commands `course site` and `course slides`. This module only parses and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from course_tools.choosing import chosen_labs, chosen_lessons, console, is_lab, refusal
from course_tools.lessons import course_root


def site(
    names: Annotated[
        list[str] | None, typer.Argument(help="Lessons (00) and labs (lab01) that get a page. Default: all of them.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder to write; an earlier site in it is replaced.")] = Path(
        "build/site"
    ),
    library: Annotated[bool, typer.Option(help="The library's reference too, which takes most of the time.")] = True,
) -> None:
    """Build the course as static pages, from the notebooks as they are stored; nothing is run, nothing is fetched.

    Lessons with explorers that need no kernel, labs as students get them, the glossary, the guides, and the library's
    reference with its sources. Writes nothing if a link leads nowhere, if a page would ask another host for anything,
    or if a hidden test or a solution would go along. Serve the folder with any web server, or open its index.html.
    """
    from course_tools.site.build import build_site

    labs = [name for name in names or [] if is_lab(name)]
    lessons = [name for name in names or [] if name not in labs]
    try:
        seconds = build_site(
            course_root(),
            chosen_lessons(lessons) if lessons or not labs else [],
            chosen_labs(labs) if labs or not lessons else [],
            to,
            console,
            library=library,
        )
    except ValueError as problem:
        raise refusal(problem) from None
    told = ", ".join(f"{phase} {spent:.0f} s" for phase, spent in seconds.items())
    console.print(f"✓ {sum(1 for _ in to.rglob('*.html'))} pages in {to} ({told})", style="green", soft_wrap=True)


def slides(
    lessons: Annotated[list[str], typer.Argument(help="Lessons, such as 06.")],
    to: Annotated[Path, typer.Option("--to", help="Folder to write; files of the same name are replaced.")] = Path(
        "build/slides"
    ),
) -> None:
    """Make a lecture of a lesson's first sitting: one HTML file, with living explorers and speaker notes.

    One question, figure, table or function a slide; the lesson's prose becomes the notes. Nothing is run and nothing is
    fetched, now or in the lecture. Keys: arrows or a remote, n for the notes below, s for the notes in a second window;
    the browser prints it as a handout.
    """
    from course_tools.site.build import need_sphinx

    try:
        need_sphinx()
        from course_tools.site.lecture import write_lecture

        for lesson in chosen_lessons(lessons):
            file, slides = write_lecture(lesson, to)
            console.print(f"✓ {slides} slides in {file}", style="green", soft_wrap=True)
    except ValueError as problem:
        raise refusal(problem) from None


def add_to(app: typer.Typer) -> None:
    """Make these commands part of `course`."""
    app.command(epilog="Examples: `course site --to build/site`, `course site 07 lab07 --no-library`")(site)
    app.command(epilog="Examples: `course slides 06`, `course slides 00 01 --to lecture`")(slides)
