"""README's tables of sizes: `course build` counts the lines of each part of the packages, and says what has no row.

The tables stand between two comments. A person writes their rows; the names in a row's first cell say which files it is
about, and the figure in its second cell is counted here, rounded to 50.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

TABLES = re.compile(r"(?<=<!-- sizes: `course build` counts them -->\n).*(?=<!-- end of sizes -->)", re.S)
ROW = re.compile(r"^\| (.+?) \| (lines|[\d,]+) \|(?: ([\d,]+) of them are the explorers' scripts)?", re.M)
COUNTED, SCRIPTS = {".py", ".js", ".css", ".jinja"}, {".js", ".css"}
SHARE, STEP = 0.1, 50
"""A figure may be off by a tenth, or 50 lines, before it is stale: not every change is one of README, too."""


class Figure(NamedTuple):
    """A figure of a table: where it stands, what it is about, and the files whose lines it states."""

    start: int
    end: int
    about: str
    files: list[Path]
    part: bool
    """Whether it is a row of its own: neither the sum of a table nor the share of scripts in it."""


def stale_sizes(root: Path) -> list[str]:
    """What is wrong with README's tables of sizes; nothing if it has none."""
    tables, found, listed = _tables(root), [], Counter[Path]()
    for figure in _figures(root, tables):
        said, lines = int(tables[figure.start : figure.end].replace(",", "")), lines_of(figure.files)
        if not figure.files or abs(said - lines) > max(STEP, SHARE * lines):
            found.append(f"README.md: {figure.about} has {lines:,} lines, not {said:,}")
        listed.update({path: int(figure.part) for path in figure.files})
    for path, rows in listed.items():
        if rows != 1 and not (path.stem == "__init__" and path.parent.parent == root):
            found.append(f"README.md: {path.relative_to(root).as_posix()} is counted in {rows} rows of its table")
    return found


def write_sizes(root: Path) -> bool:
    """Count all again if a figure is stale; return whether README has changed."""
    before = tables = _tables(root)
    for figure in list(_figures(root, tables))[::-1] if stale_sizes(root) else ():
        lines = f"{round(lines_of(figure.files) / STEP) * STEP:,}"
        tables = tables[: figure.start] + lines + tables[figure.end :]
    if tables != before:
        page = root / "README.md"
        page.write_text(page.read_text("utf-8").replace(before, tables), "utf-8")
    return tables != before


def lines_of(files: Sequence[Path]) -> int:
    """Lines of files, with docstrings and comments."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def counted_files(folder: Path, pattern: str = "**/*") -> list[Path]:
    """The files whose lines count."""
    return [path for path in folder.glob(pattern) if path.suffix in COUNTED and "__pycache__" not in path.parts]


def _tables(root: Path) -> str:
    page = root / "README.md"
    match = TABLES.search(page.read_text("utf-8")) if page.exists() else None
    return match[0] if match else ""


def _figures(root: Path, tables: str) -> Iterator[Figure]:
    """Each figure of the tables, in order."""
    package = ""
    for row in ROW.finditer(tables):
        if row[2] == "lines":
            package = row[1].strip("`")
            continue
        names = [name.removeprefix(f"{package}/").replace("NN", "*") for name in re.findall(r"`([\w*/.]+)`", row[1])]
        whole = row[1].startswith("all of ")
        patterns = ["**/*"] if whole else [name + "**/*" * name.endswith("/") for name in names]
        files = [path for pattern in patterns for path in counted_files(root / package, pattern)]
        yield Figure(*row.span(2), row[1], files, not whole)
        if row[3]:
            scripts = [path for path in files if path.suffix in SCRIPTS]
            yield Figure(*row.span(3), f"of {row[1]}, scripts", scripts, False)
