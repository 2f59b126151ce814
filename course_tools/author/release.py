"""`course release`: the students' copy, as a folder and a zip, after a search for anything that they must not see.

INSTRUCTORS.md explains it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from course_tools import TAUGHT
from course_tools.author.builder import as_text, check
from course_tools.author.lab_builder import check_lab
from course_tools.author.lab_source import read_lab, secret_blocks, student_version
from course_tools.author.marks import BEGIN_HIDDEN, BEGIN_SOLUTION
from course_tools.author.terms import keep_term
from course_tools.labs import Lab, all_labs
from course_tools.lessons import all_lessons

FILES = (
    "README.md",
    "GLOSSARY.md",
    "CHANGELOG.md",
    "LICENSE",
    "LICENSE-CONTENT",
    "start.py",
    ".gitignore",
    "pyproject.toml",
    "constraints.txt",
    "Dockerfile",
    ".dockerignore",
    ".binder/runtime.txt",
    ".binder/postBuild",
    ".devcontainer/devcontainer.json",
    ".vscode/settings.json",
)
FOLDERS = ("lessons", "docs", *TAUGHT, "course_tools")
_SKIPPED = {"__pycache__", ".ipynb_checkpoints", "solutions"}
NOT_FOR_STUDENTS = {Path("course_tools", room) for room in ("author", "grading", "site")}
_RUN = 3  # lines in a row: one line of a solution may well stand in the library, three (or all) are a copy
_EPOCH = (2020, 1, 1, 0, 0, 0)


def release_course(
    root: Path, destination: Path, labs: Sequence[Lab], console: Console, *, term: str = "", force: bool = False
) -> None:
    """Write the release of the course at `root` to `destination` and to a zip beside it, both or none.

    Args:
        root: the checkout.
        destination: a folder that does not exist yet.
        labs: the labs that go along.
        console: gets a line with the size of the release.
        term: name that draws the labs' numbers, and is kept for `course grade`; empty for the published ones.
        force: replace a folder that exists, if it is an earlier release.

    Raises:
        ValueError: something hidden would go along, a lab or a lesson was not built from its source, or `destination`
            is taken.
    """
    destination = destination.resolve()
    archive = destination.with_name(destination.name + ".zip")
    _check_destination(root, destination, archive, force=force)
    lessons = [lesson for lesson in all_lessons(root) if lesson.source.exists()]
    for item in [*labs, *lessons]:
        if complaints := check_lab(item) if isinstance(item, Lab) else check(item):
            raise ValueError(f"{item.name} is not ready: {complaints[0]}")
    files = {path: (root / path).read_bytes() for path in students_files(root, labs)}
    labs = [replace(lab, term=term) for lab in labs]
    if term:
        files |= {lab.notebook.relative_to(root): as_text(student_version(read_lab(lab))).encode() for lab in labs}
    files |= {path: _without_dead_links(path, text, files) for path, text in files.items() if path.suffix == ".md"}
    if leaks := list(find_leaks(files, labs)):
        raise ValueError("nothing was written, because students would see\n" + "\n".join(f"  {leak}" for leak in leaks))
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".release-") as folder:
        _write_folder(Path(folder) / "folder", files)
        _write_zip(Path(folder) / "zip", destination.name, files)
        shutil.rmtree(destination, ignore_errors=True)
        (Path(folder) / "folder").rename(destination)
        (Path(folder) / "zip").replace(archive)
    keep_term(root, term)
    console.print(f"✓ {len(files)} files and {len(labs)} labs in {destination} and {archive.name}", style="green")
    if term:
        console.print(f"with the numbers of {term!r}, by which `course grade` judges from now on", markup=False)


def find_leaks(files: dict[Path, bytes], labs: Sequence[Lab]) -> Iterator[str]:
    """Complaints about files for students that hold marks, secrets of a lab line by line, or copies of several.

    A single line of another lab may stand anywhere (two labs may both say `return result`); several in a row may not.

    Args:
        files: path in the release → content.
        labs: the labs whose solutions and hidden tests are looked for.
    """
    secrets = {lab.name: secret_blocks(read_lab(lab)) for lab in _all_of(labs)}
    blocks = [(name, block) for name, of_lab in secrets.items() for block in of_lab]
    runs: dict[tuple[str, ...], str]
    runs = {tuple(block[i : i + _RUN]): name for name, block in blocks for i in range(max(1, len(block) - _RUN + 1))}
    runs = {run: name for run, name in runs.items() if len(run) > 1}
    for path, content in files.items():
        if path.parts[0] == "solutions":
            yield f"{path}: a file of the solutions"
        lines = [line.strip() for line in _lines(path, content)]
        for mark in (BEGIN_SOLUTION, BEGIN_HIDDEN):
            if path.suffix == ".ipynb" and any(mark in line for line in lines):
                yield f"{path}: {mark}"
        own = {line for block in secrets.get(path.parts[1], []) for line in block} if path.parts[0] == "labs" else set()
        yield from (f"{path}: {line}" for line in lines if line in own)
        kept = [line for line in lines if line]
        windows = (tuple(kept[i : i + n]) for i in range(len(kept)) for n in (2, _RUN))
        yield from [f"{path}: {run[0]} … (of {runs[run]})" for run in windows if run in runs][:1]


def _check_destination(root: Path, destination: Path, archive: Path, *, force: bool) -> None:
    if destination == root.resolve() or destination in root.resolve().parents:
        raise ValueError(f"{destination} holds the course itself; name a new folder")
    if not force and (destination.exists() or archive.exists()):
        raise ValueError(f"{destination} or {archive.name} exists already; name another folder, or add --force")
    if destination.exists() and not (destination / "course_lib").is_dir() and any(destination.iterdir()):
        raise ValueError(f"{destination} is no earlier release, and --force would delete what is in it")
    for own in (".git", "solutions"):
        if (destination / own).exists():
            raise ValueError(f"{destination / own} would be deleted; name another folder and copy what you need")


def students_files(root: Path, labs: Sequence[Lab]) -> Iterator[Path]:
    """The files that students get, as paths in the checkout."""
    yield from (Path(name) for name in FILES if (root / name).is_file())
    folders = [root / name for name in FOLDERS] + [lab.notebook.parent for lab in labs]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(root)
            hidden = any(part in _SKIPPED or part.startswith(".") for part in inside.parts)
            withheld = not NOT_FOR_STUDENTS.isdisjoint(inside.parents)
            if path.is_file() and not path.is_symlink() and not hidden and not withheld:
                yield inside


def _without_dead_links(path: Path, content: bytes, files: dict[Path, bytes]) -> bytes:
    """The content of a page in which links to files that students do not get have become plain words."""

    def words(link: re.Match[str]) -> str:
        return link[0] if Path(os.path.normpath(path.parent / link[2])) in files else link[1]

    return re.sub(r"\[([^\]]+)\]\(([^)#:\s]+)\)", words, content.decode("utf-8")).encode("utf-8")


def _all_of(labs: Sequence[Lab]) -> list[Lab]:
    """Every lab of the course that these belong to: the solution of a lab that comes later must stay hidden, too."""
    return [replace(lab, term=labs[0].term) for lab in all_labs(labs[0].root)] if labs else []


def _lines(path: Path, content: bytes) -> list[str]:
    text = content.decode("utf-8", "replace")
    if path.suffix == ".ipynb":
        return [line for cell in json.loads(text)["cells"] for line in "".join(cell["source"]).splitlines()]
    return text.splitlines()


def _write_folder(folder: Path, files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _write_zip(target: Path, name: str, files: dict[Path, bytes]) -> None:
    """Write a zip, the same bytes for the same files: no dates, sorted."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(f"{name}/{path.as_posix()}", _EPOCH), files[path], zipfile.ZIP_DEFLATED)
