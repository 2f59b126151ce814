"""The rules of imports: four packages, the floors of three, no way up, no circle of modules or of rooms."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from course_tools import TAUGHT
from course_tools.author.inputs import imports as names_imported

ROOT = Path(__file__).parents[1]
READS = ("course_*/**/*.py",)
PACKAGES = (*TAUGHT, "course_tools")
FLOORS = {
    "course_kit": (
        {"units", "tables", "communications", "cells", "own_time"},
        {"accounts", "ranks", "notebook"},
        {"measure", "compare"},
        {"checks"},
    ),
    "course_lib": (
        {"numerics", "model", "collectives"},
        {"train", "data"},
        {"pipeline"},
        {"parallel"},
        {"offload", "predict"},
    ),
    "course_pages": ({"shared"}, {"lesson"}),
}
"""The rooms of the packages that lessons import; a room may use those of its own floor's rooms below."""
ABOVE = {
    "course_kit": {"course_lib", "course_pages", "course_tools"},
    "course_lib": {"course_pages", "course_tools"},
    "course_pages": {"course_tools"},
    "course_tools": {"course_pages"},
}
"""Package → the packages that it must not import."""
OF_THE_KIT = {"units", "accounts", "communications", "ranks"}
"""Parts of `course_kit` that `course_lib` may import: values, and real processes."""
ROOMS = {
    "author": {"lessons", "labs", "kernel", "choosing"},
    "grading": {"lessons", "labs", "choosing", "author"},
    "site": {"lessons", "labs", "choosing", "author"},
}
"""Modules of `course_tools` that its rooms, which students do not get, may use beside themselves."""
EVERYBODYS = {"TAUGHT", "folders"}
"""Names of `course_tools` itself."""


def imported(path: Path, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a file imports, also inside functions."""
    return names_imported(ast.walk(ast.parse(path.read_text("utf-8"))), package)


def imports(root: Path, package: str) -> Iterator[tuple[Path, int, str]]:
    """Every import of every file of a package: the file, the line, the dotted name."""
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield from ((path.relative_to(root), line, name) for line, name in imported(path, parts[:-1]))


def floor(package: str, room: str) -> int:
    """The floor of a room, a folder or a module at the top of a package. All lessons' folders are on one."""
    kind = re.sub(r"^lesson\d\d$", "lesson", room)
    found = [number for number, rooms in enumerate(FLOORS[package]) if kind in rooms]
    assert found, f"{package}/{room} has no floor yet: add it to FLOORS, to the lowest one that its imports allow"
    return found[0]


def violations(root: Path) -> list[str]:
    """Every import that points up, out of its package to one above, through a door, or from lesson to lesson."""
    every = ((path, line, name) for package in PACKAGES for path, line, name in imports(root, package))
    return [f"{path}:{line} imports {name}: {what}" for path, line, name in every if (what := problem(path, name))]


def problem(path: Path, name: str) -> str:
    """What is wrong with an import of this name in this file."""
    (package, here, *_), (top, there, *_) = path.with_suffix("").parts, [*name.split("."), ""]
    door = re.match(r"(course_\w+\.(?:\w+\.)*?)_[a-z]", name)
    if door and not ".".join(path.parts).startswith(door[1]):
        return "behind a door"
    if top in ABOVE[package]:
        return f"{package} does not know {top}"
    if (package, top) == ("course_lib", "course_kit") and there not in OF_THE_KIT | {""}:
        return f"of the kit, the library takes {', '.join(sorted(OF_THE_KIT))}"
    if package != top or here == there or there in EVERYBODYS | {""}:
        return ""
    if here in ROOMS:
        return "" if there in ROOMS[here] else f"{here} uses {', '.join(sorted(ROOMS[here]))} only"
    if package not in FLOORS:
        return "students do not get it" if there in ROOMS and path.name != "doctor.py" else ""
    above = -1 if here == "__init__" else floor(package, there) - floor(package, here)
    return "" if above < 0 else "a floor above" if above else "a room of the same floor"


def graph(root: Path) -> dict[str, set[str]]:
    """The other modules that each module needs at import time."""
    files = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    found: dict[str, set[str]] = {}
    for module, path in names.items():
        package = path.relative_to(root).parent.parts
        at_import = [node for node in ast.parse(path.read_text("utf-8")).body if not isinstance(node, ast.If)]
        lines = {line for node in at_import if isinstance(node, ast.Import | ast.ImportFrom) for line in [node.lineno]}
        wanted = [name for line, name in imported(path, package) if line in lines]
        needed = {name if name in names else name.rpartition(".")[0] for name in wanted}
        # `from package import module` inside the package needs the module, not the package's own __init__
        found[module] = {name for name in needed & names.keys() if not f"{module}.".startswith(f"{name}.")}
    return found


def circle(needs: dict[str, set[str]]) -> list[str]:
    """The first circle of needs, or nothing."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as problem:
        return problem.args[1]
    return []


def rooms(root: Path) -> dict[str, set[str]]:
    """The other rooms that each room needs, at import time or later: `course_lib.train` needs `course_lib.model`."""
    found: dict[str, set[str]] = {}
    for package in TAUGHT:
        for path, _, name in imports(root, package):
            here, there = ".".join(path.with_suffix("").parts[:2]), ".".join(name.split(".")[:2])
            if there.startswith(TAUGHT) and here != there:
                found.setdefault(here, set()).add(there)
    return found


def test_every_import_is_one_that_the_house_allows() -> None:
    assert violations(ROOT) == []


def test_no_module_imports_in_a_circle() -> None:
    assert circle(graph(ROOT)) == []


def test_no_room_uses_one_that_uses_it() -> None:
    assert circle(rooms(ROOT)) == []


def test_a_reader_of_ranks_sees_one_module() -> None:
    assert [path.stem for path in (ROOT / "course_kit" / "ranks").glob("[!_]*.py")] == ["pool"]


@pytest.mark.parametrize("old", ["units", "ranks", "figures.style", "explore", "train.disk", "parallel.operators"])
def test_an_old_path_is_gone(old: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        __import__(f"course_lib.{old}")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Four packages without a fault."""
    files = {
        "course_kit/ranks/_processes/worker_group.py": "",
        "course_lib/model/gpt.py": "from course_kit import units\n",
        "course_lib/train/step.py": "from course_lib.model import gpt\n",
        "course_pages/lesson01/pictures.py": "import course_lib.model.gpt, course_pages.shared.losses\n",
        "course_tools/author/build.py": "from course_lib.model import gpt\n",
        "course_tools/grading/grade.py": "",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    return tmp_path


WRONG = {
    "a floor above": ("course_lib/model/gpt.py", "from course_lib import train\n"),
    "a floor above, inside a function": ("course_lib/model/gpt.py", "def f():\n    import course_lib.predict.setup\n"),
    "a floor above, relative": ("course_lib/model/gpt.py", "from ..train import step\n"),
    "a room of the same floor": ("course_lib/model/gpt.py", "from course_lib import numerics\n"),
    "the library, from the kit": ("course_kit/ranks/pool.py", "from course_lib.model import gpt\n"),
    "a page, from the library": ("course_lib/model/gpt.py", "from course_pages.shared import losses\n"),
    "a meter, from the library": ("course_lib/model/gpt.py", "from course_kit import measure\n"),
    "another lesson's page": ("course_pages/lesson01/pictures.py", "from course_pages.lesson02 import pictures\n"),
    "the tools": ("course_lib/model/gpt.py", "from course_tools import labs\n"),
    "a page, from the tools": ("course_tools/running.py", "from course_pages.shared import losses\n"),
    "behind a door": ("course_lib/model/gpt.py", "from course_kit.ranks._processes import worker_group\n"),
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
    assert set(circle(graph(house))) == set(modules)


def test_a_circle_of_rooms_is_found(house: Path) -> None:
    assert circle(rooms(house)) == []
    (house / "course_lib" / "model" / "text.py").write_text("def f():\n    from course_lib.train import recompute\n")
    assert set(circle(rooms(house))) == {"course_lib.model", "course_lib.train"}
