"""The tests' time by room, and by lesson and lab, from the reports that pytest writes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

OF_A_LAB = re.compile(r"(?<![a-z])lab(\d\d)")
OF_A_LESSON = re.compile(r"(?:^|[/\[. ])(?:lesson)?(\d\d)(?=[_\].]|$)")
A_ROOM = re.compile(r"^tests\.(\w+)")
COLUMNS = ("notebooks", "labs", "pages", "browser")
"""Rooms with a column of their own in the table of lessons; the others share one."""

Case = tuple[str, float]
"""A test's whole name and its seconds."""


def cases(folder: Path) -> list[Case]:
    """Every test of the reports `*.xml` in a folder."""
    found = [case for path in sorted(folder.glob("*.xml")) for case in ElementTree.parse(path).iter("testcase")]
    return [(f"{case.get('classname')} {case.get('name')}", float(case.get("time") or 0)) for case in found]


def room(name: str) -> str:
    """The folder of a test, or its file where it lies in none."""
    found = A_ROOM.match(name)
    return found[1] if found else "elsewhere"


def whose(name: str) -> str:
    """The lab or lesson that a test is about, by its whole name: `lab03`, `lesson 03`; empty for the others."""
    if lab := OF_A_LAB.search(name):
        return f"lab{lab[1]}"
    lesson = OF_A_LESSON.search(name)
    return f"lesson {lesson[1]}" if lesson else ""


def by_room(cases: Iterable[Case]) -> list[str]:
    """One line for each room, the dearest first: tests, seconds, share; rooms below 1 % share one."""
    rooms: dict[str, list[float]] = defaultdict(list)
    for name, seconds in cases:
        rooms[room(name)].append(seconds)
    total = sum(map(sum, rooms.values())) or 1.0
    rest = [name for name, times in rooms.items() if sum(times) < total / 100]
    rooms["the rest"] = [seconds for name in rest for seconds in rooms.pop(name)]
    ordered = sorted(((sum(times), len(times), name) for name, times in rooms.items() if times), reverse=True)
    return [f"{name:14} {count:6} tests {spent:9.1f} s {spent / total:5.0%}" for spent, count, name in ordered]


def by_lesson(cases: Iterable[Case]) -> list[str]:
    """One line for each lesson and lab, with a column for each room of `COLUMNS`, and the sum."""
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, seconds in cases:
        if owner := whose(name):
            spent[owner][room(name) if room(name) in COLUMNS else "others"] += seconds
    heads = [*COLUMNS, "others"]
    lines = [" " * 10 + "".join(f"{head:>11}" for head in [*heads, "together"])]
    for owner, row in sorted(spent.items()):
        cells = [f"{row[head]:9.1f} s" if head in row else " " * 11 for head in heads]
        lines.append(f"{owner:10}{''.join(cells)}{sum(row.values()):9.1f} s")
    return lines
