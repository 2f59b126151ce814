"""`course open --to DIR`: the lessons and the labs, copied to where a reader can work on them.

A wheel brings them along in `material/`, since no reader should work among installed packages; in a clone they are
the clone's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from course_tools.lessons import course_root

MATERIAL = Path(__file__).resolve().with_name("material")
"""The folder in which an installed wheel keeps lessons and labs; `wheel.py` puts them there."""

KINDS = ("lessons/*.ipynb", "labs/*/*.ipynb", "docs/*.md", "GLOSSARY.md", "LICENSE-CONTENT")


def has_course() -> bool:
    """Whether there is a course here, above here, or where this package was installed from."""
    with suppress(ValueError):
        return course_root().is_dir()
    return False


def handed_out(folder: Path) -> Iterator[Path]:
    """The files of the course in a folder that a reader gets, as paths in that folder."""
    for kind in KINDS:
        yield from sorted(path.relative_to(folder) for path in folder.glob(kind))


def copy_course(target: Path) -> tuple[int, int]:
    """Copy the course to a folder. A file that is there already stays as it is: it may be a reader's own work.

    Returns:
        The number of files that were written, and of those that were there.

    Raises:
        ValueError: there is nothing to copy, or the folder cannot be written.
    """
    source = MATERIAL if MATERIAL.is_dir() else course_root()
    written = kept = 0
    try:
        for path in handed_out(source):
            place = target / path
            if place.exists():
                kept += 1
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            half = place.with_name(place.name + ".part")  # so that a full disk leaves no half a lesson behind
            shutil.copyfile(source / path, half)
            os.replace(half, place)
            written += 1
    except OSError as problem:
        raise ValueError(f"the course could not be copied to {target}: {problem}") from None
    return written, kept
