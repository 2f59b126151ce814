"""Who may import whom: the tools the library, never the other way; inside the library down, never in a circle."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (
    {"units", "accounts", "tables", "communications", "waits", "numerics", "model", "ranks"},
    {"train", "parallel"},
    {"predict", "measure", "compare"},
    {"figures", "explore", "notebook", "checks"},
)
ROOMS = {
    "author": {"lessons", "labs", "kernel", "choosing"},
    "grading": {"lessons", "labs", "choosing", "author"},
    "site": {"lessons", "labs", "choosing", "author"},
}
"""What the rooms of `course_tools` that students do not get may use of it beside themselves."""
READERS_RANKS = {"pool", "magic", "collectives", "schedules"}
"""The modules of `ranks` that a reader opens; its other rooms have a door: a name that begins with `_`."""


def imported(path: Path, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def imports(root: Path, package: str) -> Iterator[tuple[Path, int, str]]:
    """Every import of every file of a package: the file, the line, the dotted name."""
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield from ((path.relative_to(root), line, name) for line, name in imported(path, parts[:-1]))


def floor(part: str) -> int:
    """The floor of a top-level module or package of `course_lib`."""
    found = [number for number, parts in enumerate(FLOORS) if part in parts]
    assert found, f"course_lib/{part} has no floor yet: add it to FLOORS, to the lowest one that its imports allow"
    return found[0]


def violations(root: Path) -> list[str]:
    """Every import that points up, out of the library into the tools, or through somebody's door."""
    found = []
    for path, line, name in imports(root, "course_lib"):
        here, (top, *rest) = path.with_suffix("").parts, name.split(".")
        if top == "course_tools":
            found.append(f"{path}:{line} imports {name}: the library does not know its tools")
        if top != "course_lib" or not rest or rest[0].startswith("__version") or here[1] == "__init__":
            continue
        if floor(rest[0]) > floor(here[1]):
            found.append(f"{path}:{line} imports {rest[0]}, a floor above")
    for package in ("course_lib", "course_tools"):
        for path, line, name in imports(root, package):
            door = re.match(r"(course_\w+\.(?:\w+\.)*?)_[a-z]", name)
            if door and not ".".join(path.parts).startswith(door[1]):
                found.append(f"{path}:{line} imports {name}: behind a door")
    for path, line, name in imports(root, "course_tools"):
        here, (top, *rest) = path.parts, name.split(".")
        if top == "course_tools" and rest and rest[0] not in ROOMS.get(here[1], {rest[0]}) | {here[1]}:
            found.append(f"{path}:{line} imports {name}: {here[1]} uses {', '.join(sorted(ROOMS[here[1]]))} only")
        if top == "course_tools" and here[1] not in ROOMS and rest and rest[0] in ROOMS and here[1] != "doctor.py":
            found.append(f"{path}:{line} imports {name}, which students do not get")
    return found


def circle(root: Path) -> list[str]:
    """The modules of the first circle of imports at import time, or nothing."""
    files = [path for package in ("course_lib", "course_tools") for path in (root / package).rglob("*.py")]
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    graph: dict[str, set[str]] = {}
    for module, path in names.items():
        package = path.relative_to(root).parent.parts
        at_import = [node for node in ast.parse(path.read_text("utf-8")).body if not isinstance(node, ast.If)]
        lines = {line for node in at_import if isinstance(node, ast.Import | ast.ImportFrom) for line in [node.lineno]}
        wanted = [name for line, name in imported(path, package) if line in lines]
        found = {name if name in names else name.rpartition(".")[0] for name in wanted}
        # `from package import module` inside the package needs the module, not the package's own __init__
        graph[module] = {name for name in found & names.keys() if not f"{module}.".startswith(f"{name}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        return problem.args[1]
    return []


def test_every_import_is_one_that_the_house_allows() -> None:
    assert violations(ROOT) == []


def test_no_module_imports_in_a_circle() -> None:
    assert circle(ROOT) == []


def test_a_reader_of_ranks_sees_four_modules() -> None:
    shown = {path.stem for path in (ROOT / "course_lib" / "ranks").glob("[!_]*.py")}
    assert shown == READERS_RANKS


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Two packages without a fault."""
    for package in ("course_lib/model", "course_lib/ranks/_processes", "course_tools/author", "course_tools/grading"):
        (tmp_path / package).mkdir(parents=True)
    (tmp_path / "course_lib" / "model" / "gpt.py").write_text("from course_lib import units\n")
    (tmp_path / "course_tools" / "author" / "build.py").write_text("from course_lib.model import gpt\n")
    return tmp_path


WRONG = {
    "a floor above": ("course_lib/model/gpt.py", "from course_lib import units, predict\n"),
    "a floor above, inside a function": ("course_lib/model/gpt.py", "def f():\n    import course_lib.explore.bits\n"),
    "a floor above, relative": ("course_lib/model/gpt.py", "from ..train import step\n"),
    "the tools": ("course_lib/model/gpt.py", "from course_tools import labs\n"),
    "behind a door": ("course_lib/model/gpt.py", "from course_lib.ranks._processes import crew\n"),
    "the grader, from the author's room": ("course_tools/author/build.py", "from course_tools.grading import grade\n"),
    "the author's room, from what students get": ("course_tools/running.py", "from course_tools.author import code\n"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_import_that_is_not_allowed_is_found(house: Path, fault: str) -> None:
    assert violations(house) == []
    path, text = WRONG[fault]
    (house / path).write_text(text)
    assert len(violations(house)) == 1


def test_a_circle_is_found(house: Path) -> None:
    modules = ["course_lib.model.a", "course_lib.model.b", "course_lib.model.c"]
    for here, there in itertools.pairwise([*modules, modules[0]]):
        (house / Path(*here.split("."))).with_suffix(".py").write_text(f"import {there}\n")
    assert set(circle(house)) == set(modules)
