"""The labs and their places: one source each, from which the students' notebook and the solved one are built.

INSTRUCTORS.md explains the way from source to notebooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course_tools.lessons import pick


@dataclass(frozen=True)
class Lab:
    """One lab in the checkout at `root`.

    Attributes:
        root: the folder that holds `labs/`, `solutions/` and `course_lib/`.
        name: number and topic, as in `lab01_block_formats`.
        term: the term for which its numbers are drawn, as in `2027-spring`; empty for the published ones.
    """

    root: Path
    name: str
    term: str = ""

    @property
    def source(self) -> Path:
        """The py:percent file that people edit: text, stubs, solutions, checks, hidden tests."""
        return self.root / "solutions" / "src" / f"{self.name}.py"

    @property
    def notebook(self) -> Path:
        """The students' notebook: no solutions, no hidden tests, not run; written by `course build`."""
        return self.root / "labs" / self.name / f"{self.name}.ipynb"

    @property
    def solution(self) -> Path:
        """The solved notebook, executed, without hidden tests; written by `course build`."""
        return self.root / "solutions" / self.name / f"{self.name}.ipynb"

    @property
    def number(self) -> str:
        """The part of the name before the first underscore, as in `lab01`."""
        return self.name.split("_")[0]


def all_labs(root: Path) -> list[Lab]:
    """Every lab that has a source or a students' notebook, in order. The copy that students get has no sources."""
    files = [*(root / "solutions" / "src").glob("lab*.py"), *(root / "labs").glob("lab*/lab*.ipynb")]
    return [Lab(root, name) for name in sorted({file.stem for file in files})]


def find_labs(root: Path, wanted: Iterable[str] = ()) -> list[Lab]:
    """The labs that `wanted` names ("lab01", "1", a whole name or its beginning, a path); by default all with a source.

    Raises:
        ValueError: a name fits no lab, or more than one; the message lists the labs.
    """
    labs = all_labs(root)
    found = [pick(labs, f"lab{name.zfill(2)}" if name.isdecimal() else name, "lab") for name in wanted]
    return found or [lab for lab in labs if lab.source.exists()]
