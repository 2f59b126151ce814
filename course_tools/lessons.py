"""The lessons and their places: each has a source that people edit, from which its notebook is built.

CONTRIBUTING.md explains the way from source to notebook.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar


@dataclass(frozen=True)
class Lesson:
    """One lesson in the checkout at `root`.

    Attributes:
        root: the folder that holds `lessons/` and `course_lib/`.
        name: number and topic, as in `00_how_this_course_measures`.
    """

    root: Path
    name: str

    @property
    def source(self) -> Path:
        """The py:percent file that people edit."""
        return self.root / "lessons" / "src" / f"{self.name}.py"

    @property
    def notebook(self) -> Path:
        """The executed notebook that readers open; written by `course build`."""
        return self.root / "lessons" / f"{self.name}.ipynb"

    @property
    def number(self) -> str:
        """The part of the name before the first underscore."""
        return self.name.split("_")[0]

    @property
    def opens(self) -> list[str]:
        """Files that the header names for reading, in their package: `train/step.py`; none without such a row."""
        row = re.search(r"^# \| Opens \| (.*) \|$", self.source.read_text("utf-8"), re.MULTILINE)
        return re.findall(r"`([^`]+)`", row[1]) if row else []


def course_root(start: Path | None = None) -> Path:
    """The folder to work in: the first one from `start` (default: here) upwards that holds a course.

    Outside of any course, the root is the clone that this package was installed from.

    Raises:
        ValueError: there is none (the package came as a wheel).
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[1]):
        if (folder / "lessons").is_dir() and any((folder / name).is_file() for name in ("start.py", "GLOSSARY.md")):
            return folder
    raise ValueError(f"no course in {here} or above it: `course open --to DIR` puts the lessons into a folder of yours")


def all_lessons(root: Path) -> list[Lesson]:
    """Every lesson that has a source or a notebook, in order."""
    files = [*(root / "lessons").glob("*.ipynb"), *(root / "lessons" / "src").glob("*.py")]
    return [Lesson(root, name) for name in sorted({file.stem for file in files})]


def find_lessons(root: Path, wanted: Iterable[str] = ()) -> list[Lesson]:
    """The lessons that `wanted` names, in that order; all of them when it is empty.

    Args:
        root: the checkout.
        wanted: numbers ("0", "00"), names, beginnings of names, or paths of a source or a notebook.

    Raises:
        ValueError: a name fits no lesson, or more than one; the message lists the lessons.
    """
    lessons = all_lessons(root)
    return [pick(lessons, name, "lesson") for name in wanted] or lessons


class Named(Protocol):
    """An item with a name and a number: a lesson, a lab."""

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> str: ...


Item = TypeVar("Item", bound=Named)


def pick(items: Sequence[Item], wanted: str, noun: str) -> Item:
    """The one of `items` that `wanted` names: by number, by name, by the name's beginning, or by a path.

    Raises:
        ValueError: the name fits no item, or more than one; the message lists them.
    """
    stem = Path(wanted).name.removesuffix(".ipynb").removesuffix(".py")
    numbers = {stem, stem.zfill(2)} if stem.isdecimal() else {stem}
    exact = [item for item in items if stem == item.name or item.number in numbers]
    found = exact or [item for item in items if stem and item.name.startswith(stem)]
    if len(found) == 1:
        return found[0]
    names = "\n".join(f"  {item.name}" for item in items) or "  (none yet)"
    problem = f"{wanted!r} could be any of {len(found)} {noun}s" if found else f"there is no {noun} {wanted!r}"
    raise ValueError(f"{problem}. The {noun}s are:\n{names}")
