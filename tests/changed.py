"""`start.py test changed`: exactly the tests that a change can touch, by the imports and the declared data of each.

A test file is touched where the change and its inputs meet (`course_tools.author.inputs`). Of a test that is made once
for each lesson or lab, those run whose own inputs meet the change. The walk is held to its
word: a test that opens a file of the course which the walk does not know fails, and says what to declare.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from course_tools.author.inputs import PACKAGES, inputs
from course_tools.labs import Lab
from course_tools.lessons import Lesson

ROOT = Path(__file__).resolve().parents[1]
EVERYBODYS = ("pyproject.toml", "constraints.txt")
"""Files that can change whatever runs."""
OURS = (*PACKAGES, "lessons", "labs", "solutions", "docs", "changelog.d", ".github", "README.md", "INSTRUCTORS.md")
SEEN = (".py", ".json", ".js", ".css", ".md", ".ipynb", ".diff", ".toml", ".jinja", ".yml", ".yaml", ".cfg", ".txt")


def changed_files(root: Path) -> set[Path] | None:
    """Files that differ from HEAD; if none does, from the commit where the branch left main, or from the last one.

    Returns:
        Absolute paths, deleted files included; None without git or without history.
    """
    files = _names(root, "diff", "--name-only", "HEAD")
    new = _names(root, "ls-files", "--others", "--exclude-standard")
    if files is None or new is None:
        return None
    if not files and not new:
        head, fork = _names(root, "rev-parse", "HEAD"), _names(root, "merge-base", "HEAD", "main")
        files = _names(root, "diff", "--name-only", fork[0] if fork and fork != head else "HEAD~1", "HEAD")
        if files is None:
            return None
    return {root.resolve() / name for name in (*files, *new)}


def test_files(root: Path) -> list[Path]:
    """All files of tests."""
    return sorted((root / "tests").rglob("test_*.py"))


def touched_files(changed: Iterable[Path], root: Path) -> list[Path]:
    """The files of tests that these changes can touch."""
    return [file for file in test_files(root) if touches(changed, needs(file, root), root)]


def touches(changed: Iterable[Path], needed: set[Path], root: Path) -> bool:
    """Whether one of the changed files is needed, is everybody's, or is gone (a name or data) from a needed folder."""
    folders = {path.parent for path in needed}
    for path in changed:
        if path in needed or path in {root / name for name in EVERYBODYS}:
            return True
        if not path.exists() and path.parent in folders:
            return True
    return False


@functools.cache
def needs(file: Path, root: Path, *, read: bool = True) -> set[Path]:
    """The inputs of a file of tests and of the conftest.py files above it; without `read`, not what it reads."""
    above = [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(root / "tests")]
    return inputs([file], root, read=read) | inputs(filter(Path.is_file, above), root)


@functools.cache
def needs_of(item: Lesson | Lab) -> set[Path]:
    """The inputs of a lesson's or a lab's cells, its notebooks, and a lab's known-wrong answers."""
    own = [item.source, item.notebook]
    if isinstance(item, Lab):
        mutants = item.root / "tests" / "mutants"
        own += [item.solution, *(mutants / item.number).glob("*"), mutants / "generated" / f"{item.number}.toml"]
    return inputs([path for path in own if path.is_file()], item.root)


def is_touched(item: pytest.Item, changed: set[Path]) -> bool:
    """Whether a test can be touched; one that is made for a lesson or lab is not by what its file reads of others."""
    made_for = getattr(item, "callspec", None)
    own = [value for value in (made_for.params.values() if made_for else ()) if isinstance(value, Lesson | Lab)]
    needed = needs(item.path, ROOT, read=not own).union(*map(needs_of, own))
    return touches(changed, needed, ROOT)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that the files of pytest's option `--changed` cannot touch."""
    names: list[str] = config.getoption("--changed") or []
    if changed := {(ROOT / name).resolve() for name in names}:
        kept = [item for item in items if is_touched(item, changed)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


class Reads:
    """Files of a checkout that this process opens, beside those that the walk knows.

    Attributes:
        opened: by their names, since somebody cleared it.
        of_collection: file of tests → those that were opened while it was collected.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.root, self.opened = root, set[str]()
        self.of_collection: dict[Path, set[str]] = {}
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(str(self.root)):
            self.opened.add(arguments[0])

    def undeclared(self, file: Path) -> list[str]:
        """Files of the course that were opened on behalf of a file of tests and are none of its inputs."""
        opened = self.opened | self.of_collection.pop(file, set())
        known = needs(file, self.root)  # which opens files itself
        found = {source(path) for path in opened} - known
        wanted = [path.relative_to(self.root) for path in found if path.suffix in SEEN and path.is_file()]
        return sorted(path.as_posix() for path in wanted if path.parts[0] in OURS)


def source(opened: str) -> Path:
    """The source of a compiled module; any other file is its own."""
    path = Path(opened)
    if path.parent.name == "__pycache__":
        return path.parents[1] / f"{path.name.split('.')[0]}.py"
    return path


def _names(root: Path, *arguments: str) -> list[str] | None:
    """The lines that git prints; None if git fails."""
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return ran.stdout.splitlines() if ran.returncode == 0 else None
