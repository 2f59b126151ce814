"""The stages of `python3 start.py test`: the things that each checks, its commands, and its needs of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests import machine

Commands = list[list[str]]
PYTEST = ["pytest", "-q", "--durations=5", "-p", "no:nbval"]  # a plugin of the stage `notebooks`; it loads slowly
TWO = ["-n", "2"]
BY_FILE = [*TWO, "--dist", "loadfile"]
STEAL = [*TWO, "--dist", "worksteal"]  # tests of a file stay together, and no worker is idle at the end
WAIT = ["-n", "3", "--dist", "worksteal"]  # these mostly wait, for an answer that does not end
LABS = ["tests/labs/test_labs.py", "tests/labs/test_generated.py"]
ELSEWHERE = [*LABS, "tests/grading", "tests/ranks", "tests/foreign"]  # folders that other stages run

LINT = [["ruff", "check", "."], ["ruff", "format", "--check", "."]]


@dataclass(frozen=True)
class Stage:
    """One line of the summary.

    Attributes:
        name: the stage's name on the command line.
        about: the things that the stage checks.
        commands: modules of Python with their arguments.
        needs: a function that looks at the machine and returns the reason why the stage cannot run, or nothing.
        timed: whether the commands are pytest's, which can report the seconds of each test.
    """

    name: str
    about: str
    commands: Commands
    needs: Callable[[], str] | None = None
    timed: bool = True


STAGES = [  # those that fail quickly come first
    Stage("lint", "style and likely mistakes", LINT, timed=False),
    Stage("types", "static types", [["pyright", "--pythonpath", sys.executable]], timed=False),
    Stage(
        "unit",
        "the library, the tools, the stored notebooks",
        [[*PYTEST, *STEAL, "-m", "not browser", *(f"--ignore={path}" for path in ELSEWHERE)]],
    ),
    Stage(
        "labs",
        "stubs, solutions, known-wrong answers and mechanical edits of every lab",
        [[*PYTEST, *STEAL, *LABS]],
    ),
    Stage("grader", "grading, hostile answers included", [[*PYTEST, *WAIT, "-m", "not sandbox", "tests/grading"]]),
    Stage(
        "sandbox",
        "what only bubblewrap promises the grader",
        [[*PYTEST, *WAIT, "-m", "sandbox", "tests/grading"]],
        needs=machine.sandbox,
    ),
    Stage("ranks", "real processes", [[*PYTEST, *STEAL, "-m", "not browser", "tests/ranks"]]),
    Stage("notebooks", "every cell of every notebook again, outputs compared", [["tests.notebooks", "-q", *BY_FILE]]),
    Stage(
        "browser",
        "JupyterLab and its widgets in Chromium",
        [[*PYTEST, *STEAL, "-m", "browser", "tests/browser"]],
        needs=machine.browser,
    ),
    Stage(
        "foreign",
        "models that nobody here wrote, trained under the library",
        [[*PYTEST, *STEAL, "tests/foreign"]],
        needs=machine.foreign,
    ),
]
NAMES = [stage.name for stage in STAGES]
