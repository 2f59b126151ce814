"""Programs as a notebook's cells would define them, and ranks that fail, for tests in a plain pytest process."""

import ast
import itertools
import linecache
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, NamedTuple

import pytest

from course_kit import ranks

READS = ("tests/ranks/programs/*.txt",)

Cell = Callable[..., Callable[..., Any]]
PROGRAMS = Path(__file__).parent / "programs"
_numbers = itertools.count(1)
_IMPORTS = "import os, sys, time, torch, torch.distributed as dist; rank = dist.get_rank; "


def define(source: str, **variables: Any) -> Callable[..., Any]:
    """The last function that `source` defines, as if it stood in a notebook cell; its first line is cell line 1."""
    filename = f"/tmp/ipykernel_1/{next(_numbers)}.py"
    source = dedent(source).lstrip("\n")
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(_IMPORTS, namespace)
    namespace.update(variables)
    before = set(namespace)
    exec(compile(source, filename, "exec"), namespace)
    return [value for name, value in namespace.items() if name not in before and callable(value)][-1]


@pytest.fixture
def cell() -> Cell:
    """`define`, as a fixture."""
    return define


class Program(NamedTuple):
    """A cell's source, how it is run, the verdict on it, and the end of one rank's report."""

    source: str
    options: dict[str, Any]
    verdict: str
    ending: str

    def assert_told_by(self, failure: ranks.RankFailure) -> None:
        """A failure says the verdict first, has a report with that end, and shows none of the course's own code."""
        text = str(failure)
        assert failure.verdict == self.verdict
        assert text.startswith(self.verdict)
        assert f"{self.ending}\n\n" in f"{text}\n\n", text
        assert "course_kit" not in text and "course_lib" not in text and "/tmp" not in text


def programs(file: str) -> dict[str, Program]:
    """Programs of a file by name: `# name [option=value]`, the body of `f` (or a cell with `def f`), and what is said.

    Lines after `>` are the verdict, lines after `|` the end of one rank's report.
    """
    found, text = {}, (PROGRAMS / f"{file}.txt").read_text(encoding="utf-8")
    for part in re.split(r"^# ", text, flags=re.MULTILINE)[1:]:
        head, *lines = part.rstrip().splitlines()
        name, _, options = head.partition(" [")
        source = "\n".join(line for line in lines if not line.startswith((">", "|")))
        if "def f(" not in source:
            source = f"def f():\n{indent(source, '    ')}"
        verdict = " ".join(line[2:] for line in lines if line.startswith(">"))
        ending = "\n".join(line[2:] for line in lines if line.startswith("|"))
        pairs = (option.split("=") for option in filter(None, options.rstrip("]").split(", ")))
        found[name] = Program(source, {key: ast.literal_eval(value) for key, value in pairs}, verdict, ending)
    return found


def failure_of(
    fn: Callable[..., Any], world_size: int = 2, within_s: float = 30.0, **options: Any
) -> ranks.RankFailure:
    """The failure of `fn`, known long before a limit of 60 s would end it; and the next call works."""
    ranks.run(int, world_size=world_size)  # ranks are up: what follows is the time of the diagnosis alone
    start = time.monotonic()
    with pytest.raises(ranks.RankFailure) as caught:
        ranks.run(fn, world_size=world_size, **options)
    assert time.monotonic() - start < within_s
    assert ranks.run(int, world_size=world_size) == [0] * world_size
    return caught.value


def alive(pid: int, patience_s: float = 30.0) -> bool:
    """Whether the process is still there after some patience."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    return True
