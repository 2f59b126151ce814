"""`start.py test quick`: tests that the last change can have touched, in a minute: a guess, which CI does not run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from course_tools import TAUGHT
from tests import machine
from tests.labs.affected import affected_labs
from tests.stages import PYTEST, STAGES, STEAL, Stage

PACKAGES = (*TAUGHT, "course_tools")
TYPED = tuple(f"{name}/" for name in (*PACKAGES, "tests"))
BUILT = ("lessons/", "solutions/", "labs/")
COVERED = (*TYPED, *BUILT)
AT_ONCE = "for a lab whose own files changed its known-wrong answers, for some others the solution"
MOST = 4
"""Number of labs whose solutions run, the first lab and others as far apart as can be: all take a minute alone."""


def stages(root: Path) -> list[Stage]:
    """The stages of a quick test; all of them, whole, in CI and where the changed files are not known."""
    changed = changed_files(root)
    if changed is None or machine.in_ci():
        print(
            "quick: " + ("nothing is skipped in CI" if changed else "what changed is unknown") + ": every stage runs."
        )
        return STAGES
    print(f"quick: {len(changed)} changed: {', '.join(changed[:8])}{' …' if len(changed) > 8 else ''}")
    if left := [path for path in changed if not path.startswith(COVERED)]:
        print(f"What depends on {', '.join(left)} only the whole test knows: python3 start.py test")
    return [stage for stage in chosen(root, changed) if stage.commands]


def changed_files(root: Path) -> list[str] | None:
    """Files that differ from HEAD; if none does, from the commit where the branch left main, or from the last one.

    Returns:
        Paths relative to the course, without deleted ones; None without git or without history.
    """
    files = names(root, "diff", "--name-only", "HEAD")
    new = names(root, "ls-files", "--others", "--exclude-standard")
    if files is None or new is None:
        return None
    if not files and not new:
        head, fork = names(root, "rev-parse", "HEAD"), names(root, "merge-base", "HEAD", "main")
        base = fork[0] if fork and fork != head else "HEAD~1"
        files = names(root, "diff", "--name-only", base, "HEAD")
        if files is None:
            return None
    return sorted(path for path in {*files, *new} if (root / path).is_file())


def names(root: Path, *arguments: str) -> list[str] | None:
    """The lines that git prints; None if git fails."""
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except OSError:
        return None
    return ran.stdout.splitlines() if ran.returncode == 0 else None


def chosen(root: Path, changed: list[str]) -> list[Stage]:
    """The stages for these changes; those without commands have nothing to do."""
    python = [path for path in changed if path.endswith(".py")]
    typed = [path for path in python if path.startswith(TYPED) and not path.startswith("tests/mutants/")]
    types = [["pyright", "--pythonpath", sys.executable, *typed]] if typed else []
    unit = [[*PYTEST, "-m", "not browser", *tests]] if (tests := mirrors(root, changed)) else []
    built = sorted({Path(path).stem for path in changed if path.startswith(BUILT)} & sources(root))
    notebooks = [["course_tools", "build", "--check", *built]] if built else []
    return [
        STAGES[0],
        Stage("types", "static types of the changed files", types, timed=False),
        Stage("unit", "the tests that mirror the changed modules", unit),
        Stage("notebooks", "whether the changed notebooks are what their sources build", notebooks, timed=False),
        Stage("labs", AT_ONCE, labs(changed)),
    ]


def sources(root: Path) -> set[str]:
    """The names of all lessons and labs."""
    return {path.stem for folder in ("lessons", "solutions") for path in (root / folder / "src").glob("*.py")}


def mirrors(root: Path, changed: list[str]) -> list[str]:
    """Test files: those that changed, and those of the modules that changed."""
    found: set[str] = set()
    for path in map(Path, changed):
        if path.parts[0] == "tests" and path.name.startswith("test_") and "browser" not in path.parts:
            found.add(path.as_posix())
        if path.parts[0] in PACKAGES:
            found.update(mirror(root, path))
        if path.name == "start.py":
            found.add("tests/test_start.py")
    return sorted(found)


def mirror(root: Path, path: Path) -> list[str]:
    """The tests of one module: `test_NAME.py` beside its siblings' or anywhere, else some of its room's."""
    rooms = ["pages"] * (path.parts[0] == "course_pages") + [name.strip("_") for name in path.parts[1:-1]]
    folders = [root / "tests" / Path(*rooms[:depth]) for depth in range(len(rooms), -1, -1)]
    own = f"test_{path.stem.strip('_')}.py"
    tests = [folder / own for folder in folders if (folder / own).is_file()][:1] or list((root / "tests").rglob(own))
    for folder in folders[1:] if not tests else []:
        room = folder / rooms.pop()
        tests = list(folder.glob(f"test_{room.name}.py")) or naming(path.stem, sorted(room.glob("test_*.py")))
        if tests:
            break
    return [test.relative_to(root).as_posix() for test in tests if "browser" not in test.parts]


def naming(module: str, tests: list[Path]) -> list[Path]:
    """Those of the tests that name the module; if none does, those not marked as slow."""
    texts = {test: test.read_text("utf-8") for test in tests}
    named = [test for test, text in texts.items() if re.search(rf"\b{module}\b", text)]
    return named or [test for test, text in texts.items() if "mark.slow" not in text]


def labs(changed: list[str]) -> list[list[str]]:
    """All tests of labs whose own files changed; of labs that a changed module reaches, those of the solutions."""
    touched = affected_labs(map(Path, changed))
    own = [lab for lab in touched if any(lab in path for path in changed)]
    reached = [lab for lab in touched if lab not in own]
    some = reached[:: -(-len(reached) // MOST) or 1]
    if len(some) < len(reached):
        print(f"Of {len(reached)} labs that it reaches, {', '.join(some)} run; all of them: python3 start.py test labs")
    wanted = " or ".join([*own, *(f"(solution and {lab})" for lab in some)])
    return [[*PYTEST, *STEAL, "tests/labs/test_labs.py", "-k", wanted]] if wanted else []
