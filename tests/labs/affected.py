"""Which labs a change can touch: those that have a changed file among what their cells, or what runs them, import."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

from course_tools import TAUGHT
from course_tools.labs import Lab, find_labs
from tests.test_floors import imported

ROOT = Path(__file__).parents[2]
PACKAGES = (*TAUGHT, "course_tools", "tests")
RUNS_THEM = ("tests/labs/test_labs.py", "tests/conftest.py")
EVERYBODYS = ("pyproject.toml", "constraints.txt")


def affected_labs(changed: Iterable[Path] | None, root: Path = ROOT) -> list[str]:
    """The labs, as in `lab01`, that must be run again when these files have changed.

    Args:
        changed: files, absolute or relative to `root`, deleted ones included; None if nothing is known.
        root: the checkout.
    """
    labs = find_labs(root)
    if changed is None:
        return [lab.number for lab in labs]
    files = {(root / path).resolve() for path in changed}
    needed = {lab: depends_on(lab) for lab in labs}
    return [lab.number for lab in labs if any(_touches(file, lab, needed[lab]) for file in files)]


def depends_on(lab: Lab) -> set[Path]:
    """Every Python file that a lab's cells, or the tests that run them, import, directly or not."""
    found = set[Path]()
    waiting = [path.resolve() for path in (lab.source, *(lab.root / name for name in RUNS_THEM)) if path.exists()]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += _imports(file, lab.root.resolve(), file.stat().st_mtime_ns)
    return found


def _touches(file: Path, lab: Lab, needed: set[Path]) -> bool:
    """Whether a changed file is the lab's, everybody's, imported, or data (or deleted) beside an imported one."""
    root = lab.root.resolve()
    own = (lab.source, lab.notebook.parent, lab.solution.parent, root / "tests" / "mutants" / lab.number)
    if file in {root / name for name in EVERYBODYS} or any(file.is_relative_to(path.resolve()) for path in own):
        return True
    if file.suffix == ".py" and file.exists():
        return file in needed
    beside = any(file.is_relative_to(root / package) for package in PACKAGES)
    return beside and any(path.parent == file.parent for path in needed)


@functools.lru_cache(4096)
def _imports(file: Path, root: Path, _changed_at: int) -> list[Path]:
    """The files of the checkout that a Python file imports, those of packages above them included."""
    names = {name for _, name in imported(file, file.relative_to(root).parts[:-1])} | set(_named(file))
    return [path for name in names if name.split(".")[0] in PACKAGES for path in _files(name, root)]


def _named(file: Path) -> Iterator[str]:
    """Modules that stand in a string, as what another process is to run does."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("course_"):
            yield node.value


def _files(name: str, root: Path) -> Iterator[Path]:
    """What is read when `name` is imported: a module, the packages around it; the last part may be a name inside."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:length])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())
