"""The tests' time by lesson, lab and file, from the reports that pytest writes for each stage."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

OF_A_LAB = re.compile(r"(?<![a-z])lab(\d\d)")
OF_A_LESSON = re.compile(r"(?:^|[/\[. ])(\d\d)_[a-z0-9]")
A_FILE = re.compile(r"^tests\.([\w.]*test_\w+)")
REST, LEAST_S = "the rest", 20


def whose(name: str) -> str:
    """The lab or lesson that a test is about, by the test's whole name: `lab03`, `lesson 03`; else its file."""
    if lab := OF_A_LAB.search(name):
        return f"lab{lab[1]}"
    if lesson := OF_A_LESSON.search(name):
        return f"lesson {lesson[1]}"
    file = A_FILE.search(name)
    return file[1] if file else REST


def by_lesson(reports: Path) -> dict[str, dict[str, float]]:
    """Seconds by lab, lesson or file, and by stage, from the files `STAGE-0.xml` in a folder.

    Files of less than 20 s share one entry.
    """
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for path in sorted(reports.glob("*.xml")):
        stage = path.stem.rpartition("-")[0]
        for case in ElementTree.parse(path).iter("testcase"):
            name = f"{case.get('classname')} {case.get('name')}"
            spent[whose(name)][stage] += float(case.get("time") or 0)
    small = [name for name, stages in spent.items() if "test_" in name and sum(stages.values()) < LEAST_S]
    for name in small:
        for stage, seconds in spent.pop(name).items():
            spent[REST][stage] += seconds
    return {name: dict(stages) for name, stages in sorted(spent.items())}


def table(spent: dict[str, dict[str, float]]) -> list[str]:
    """One line for each lab, lesson and file, a column for each stage, and the sum."""
    stages = list(dict.fromkeys(stage for row in spent.values() for stage in row))
    width = max([10, *map(len, spent)])
    lines = [" " * width + "".join(f"{stage:>11}" for stage in [*stages, "together"])]
    for name, row in spent.items():
        cells = [f"{row[stage]:9.1f} s" if stage in row else " " * 11 for stage in stages]
        lines.append(f"{name:{width}}{''.join(cells)}{sum(row.values()):9.1f} s")
    return lines
