"""Imports point down only: a module may use its own floor and those below, also inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

LIBRARY = Path(__file__).parents[1] / "course_lib"
FLOORS = (
    {"units", "accounts", "tables", "numerics", "model", "ranks"},
    {"train", "parallel"},
    {"predict", "measure", "compare"},
    {"figures", "explore", "notebook", "lab"},
    {"cli", "build", "grading", "commands", "__main__"},
)
ANYWHERE = {"__init__"}  # the package itself: only its version


def floor(part: str) -> int:
    """The floor of a top-level module or package of `course_lib`."""
    found = [number for number, parts in enumerate(FLOORS) if part in parts]
    assert found, f"course_lib/{part} has no floor yet: add it to FLOORS, to the lowest one that its imports allow"
    return found[0]


def imported(path: Path, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and top-level part of everything that a file imports from `course_lib`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "course_lib" else [module]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "course_lib" and rest:
                yield node.lineno, rest.split(".")[0]


def violations(library: Path) -> list[str]:
    """Every import that points up."""
    found = []
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if parts[0] in ANYWHERE:
            continue
        for line, part in imported(path, ("course_lib", *parts[:-1])):
            if not part.startswith("__version") and floor(part) > floor(parts[0]):
                found.append(f"{path.relative_to(library)}:{line} imports {part}, a floor above")
    return found


def test_imports_point_down_only() -> None:
    assert violations(LIBRARY) == []


def test_an_import_that_points_up_is_found(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "gpt.py").write_text(
        "from course_lib import units, predict\n"
        "def f():\n    import course_lib.explore.bits\n"
        "from ..train import step\n"
        "from . import zoo\n"
    )
    tops = sorted(text.split(" imports ")[1].split(",")[0] for text in violations(tmp_path))
    assert tops == ["explore", "predict", "train"]
