"""Which labs a change can touch: those whose own files, or modules that their source imports, are among it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from course_tools.labs import find_labs

ROOT = Path(__file__).parents[2]


def affected_labs(changed: list[str]) -> list[str]:
    """The numbers (`lab03`) of the labs that these files, relative to the course, can touch."""
    found = []
    for lab in find_labs(ROOT):
        own = any(lab.number in path for path in changed)
        if own or {"tests/labs/running.py", *reached(lab.source)} & {*changed}:
            found.append(lab.number)
    return found


def reached(source: Path) -> set[str]:
    """Every file of `course_lib` that a file imports, directly or through others."""
    found: set[str] = set()
    waiting = [source]
    while waiting:
        for path in imported(waiting.pop()):
            if (name := path.relative_to(ROOT).as_posix()) not in found:
                found.add(name)
                waiting.append(path)
    return found


@functools.cache
def imported(path: Path) -> tuple[Path, ...]:
    """The files of `course_lib` that a file names in its imports, packages on the way included."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[Path]:
    code = "\n".join("" if line.lstrip().startswith("%") else line for line in path.read_text("utf-8").splitlines())
    for node in ast.walk(ast.parse(code)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            parts = name.split(".")
            for end in range(1, len(parts) + 1 if parts[0] == "course_lib" else 0):
                base = ROOT.joinpath(*parts[:end])
                yield from (found for found in (base.with_suffix(".py"), base / "__init__.py") if found.is_file())
