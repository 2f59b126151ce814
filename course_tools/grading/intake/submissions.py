"""Find submissions: in a folder, or in a zip as Canvas and Moodle download it.

Nothing is unpacked to disk and no link is followed. A file that cannot be taken as it is becomes a submission with a
`problem`, so that its student appears in the gradebook with a reason.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

_MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)$", re.I)
_CANVAS = re.compile(r"^(?P<name>[^_]+)_(?P<late>LATE_)?(?P<id>\d+)_(?P<attachment>\d+)_(?P<file>.+)$")
_SKIPPED = {"__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"}
_MOST_MEMBERS = 100_000
_TOO_LARGE = "the file is larger than {limit:.4g} MiB"


@dataclass(frozen=True)
class Submission:
    """The submission of one student for one lab.

    Attributes:
        student: a name for files, unique in the batch.
        name: the student's name, from the path.
        source: the file's path inside the folder or zip.
        data: the file's bytes; empty where there is a problem.
        problem: the reason for which the file cannot be graded, in words for the student; mostly empty.
        notes: oddities of the files.
        gradebook_id: the student's number in Canvas or Moodle, if the path holds one.
    """

    student: str
    name: str
    source: str
    data: bytes = b""
    problem: str = ""
    notes: tuple[str, ...] = ()
    gradebook_id: str = ""


@dataclass(frozen=True)
class _Found:
    """A file below the folder of submissions; `read` gives its bytes or raises ValueError with the reason."""

    path: PurePosixPath
    time: tuple
    read: Callable[[], bytes]


@dataclass(frozen=True)
class _Owner:
    """The student to whom a path belongs."""

    name: str
    gradebook_id: str = ""
    late: bool = False


def find_submissions(where: Path, lab: str, *, largest_bytes: int) -> list[Submission]:
    """Every submission, by student.

    Args:
        where: a folder with a folder for each student, a folder of notebooks, or a zip of one of these.
        lab: the lab's name; of several notebooks of one student, the newest whose name holds its number is taken.
        largest_bytes: limit on the size of one file.

    Raises:
        ValueError: there is nothing there that could hold submissions.
    """
    if where.is_dir():
        files = list(_in_folder(where, largest_bytes))
        folders = [path.name for path in sorted(where.iterdir()) if path.is_dir()]
        empty = [_printable(name) for name in folders if not _is_skipped(name)]
    elif zipfile.is_zipfile(where):
        files, empty = _without_top(list(_in_zip(where, largest_bytes)), lab), []
    else:
        what = "this is neither" if where.exists() else "there is nothing of that name"
        raise ValueError(f"{where}: give a folder or a zip of submissions; {what}")
    groups: dict[_Owner, list[_Found]] = {_owner(PurePosixPath(name, "x"), lab): [] for name in empty}
    for file in files:
        if len(file.path.parts) > 1 or file.path.suffix == ".ipynb" or _from_system(file.path.name):
            groups.setdefault(_owner(file.path, lab), []).append(file)
    if not groups:
        raise ValueError(f"{where}: no notebooks there; expected a folder for each student, or .ipynb files")
    return list(_unique(_choose(owner, found, lab, largest_bytes) for owner, found in groups.items()))


def _choose(owner: _Owner, files: list[_Found], lab: str, largest_bytes: int) -> Submission:
    """The one file of a student that is graded."""
    notebooks = [file for file in files if file.path.suffix == ".ipynb"] or [*_in_their_zips(files, largest_bytes)]
    notes = ["marked as late in the download"] if owner.late else []
    blank = Submission(_slug(f"{owner.name} {owner.gradebook_id}"), owner.name, "", gradebook_id=owner.gradebook_id)
    if not notebooks:
        kinds = ", ".join(sorted({file.path.suffix or file.path.name for file in files}))
        problem = f"no notebook (.ipynb) was handed in, but {kinds}"[:200] if kinds else "nothing was handed in"
        return replace(blank, source=str(files[0].path) if files else "", problem=problem)
    chosen = max(notebooks, key=lambda file: (_fits(file, lab), file.time, file.path.stem == lab, str(file.path)))
    if len(notebooks) > 1:
        rule = "the newest that is called like the lab" if _fits(chosen, lab) else "the newest"
        notes.append(f"{len(notebooks)} notebooks were handed in; this is about {chosen.path.name}, {rule}")
    blank = replace(blank, source=str(chosen.path), notes=tuple(notes))
    try:
        return replace(blank, data=chosen.read())
    except ValueError as problem:
        return replace(blank, problem=str(problem))


def _fits(file: _Found, lab: str) -> bool:
    return lab.split("_")[0] in file.path.name


def _in_their_zips(files: list[_Found], largest_bytes: int) -> Iterator[_Found]:
    """Notebooks in zips that a student handed in."""
    for file in (file for file in files if file.path.suffix.lower() == ".zip"):
        with contextlib.suppress(ValueError):
            inside = _in_zip(io.BytesIO(file.read()), largest_bytes)
            yield from (replace(f, path=file.path / f.path) for f in inside if f.path.suffix == ".ipynb")


def _owner(path: PurePosixPath, lab: str) -> _Owner:
    """Name, number and lateness from the layout: Moodle's, Canvas', a folder for each student, or loose files.

    Some systems write ö as an o and two dots; it is the same name.
    """
    path = PurePosixPath(unicodedata.normalize("NFC", str(path)))
    first = path.parts[0]
    if match := _MOODLE.match(first):
        return _Owner(match["name"].strip(), match["id"])
    if len(path.parts) > 1:
        return _Owner(first)
    if match := _CANVAS.match(first):
        return _Owner(match["name"], match["id"], bool(match["late"]))
    stem = path.stem
    return _Owner(stem.replace(lab, "").strip(" _-.") or stem)


def canvas_attachment(source: str) -> str:
    """Canvas' number of the file that was handed in, from the `source` of a submission; empty if it has none."""
    first = PurePosixPath(source).parts[0] if source else ""
    match = None if _MOODLE.match(first) else _CANVAS.match(first)
    return match["attachment"] if match else ""


def _from_system(name: str) -> bool:
    return bool(_MOODLE.match(name) or _CANVAS.match(name))


def _unique(submissions: Iterable[Submission]) -> Iterator[Submission]:
    """The submissions in the order of names; of two that would share a file name, the second gets a number."""
    taken: set[str] = set()
    for submission in sorted(submissions, key=lambda s: (s.student.casefold(), s.source)):
        name, number = submission.student, 1
        while name.casefold() in taken:  # some file systems do not tell A from a
            number += 1
            name = f"{submission.student}-{number}"
        taken.add(name.casefold())
        yield replace(submission, student=name)


def _slug(name: str) -> str:
    """A name that is safe for a file: letters, digits, dots, dashes."""
    kept = re.sub(r"[^\w.-]+", "-", name.strip()).strip("-._")
    return kept[:80] or "unnamed"


def _is_skipped(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED


# --- folders ----------------------------------------------------------------------------------------------------------


def _in_folder(top: Path, largest_bytes: int) -> Iterator[_Found]:
    for parent, folders, names in os.walk(top, followlinks=False):
        folders[:] = sorted(name for name in folders if not _is_skipped(name))
        for name in sorted(names):
            path = Path(parent, name)
            if not _is_skipped(name):
                inside = PurePosixPath(_printable(path.relative_to(top).as_posix()))
                yield _Found(inside, (path.lstat().st_mtime,), _reader(path, largest_bytes))


def _printable(name: str) -> str:
    """A file's name, in which bytes of another encoding than UTF-8 are spelt out: no file and no screen takes them."""
    return name.encode("utf-8", "backslashreplace").decode()


def _reader(path: Path, largest_bytes: int) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            raise ValueError("the file is a link or cannot be opened") from None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or path.is_symlink():
                raise ValueError("it is not a plain file")
            return _bounded(file.read(largest_bytes + 1), largest_bytes)

    return read


def _bounded(data: bytes, largest_bytes: int) -> bytes:
    if len(data) > largest_bytes:
        raise ValueError(_TOO_LARGE.format(limit=largest_bytes / 2**20))
    return data


# --- zips -------------------------------------------------------------------------------------------------------------


def _in_zip(archive: Path | io.BytesIO, largest_bytes: int) -> Iterator[_Found]:
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as problem:
        raise ValueError(f"{archive}: the zip cannot be read ({problem})") from None
    if len(members) > _MOST_MEMBERS:
        raise ValueError(f"{archive}: {len(members)} files in one zip are more than any course has")
    for member in members:
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if not member.is_dir() and path.parts and not any(_is_skipped(part) for part in path.parts if part != ".."):
            yield _Found(_kept_inside(path), member.date_time, _unzipper(archive, member, largest_bytes))


def _kept_inside(path: PurePosixPath) -> PurePosixPath:
    """The path without parts that would lead out of the archive; reading such a file is refused, too."""
    return PurePosixPath(*(part for part in path.parts if part not in ("..", "/"))) if path.parts else path


def _unzipper(archive: Path | io.BytesIO, member: zipfile.ZipInfo, largest_bytes: int) -> Callable[[], bytes]:
    def read() -> bytes:
        path = member.filename.replace("\\", "/")
        if path.startswith("/") or ".." in path.split("/") or ":" in path.split("/")[0]:
            raise ValueError("its path leads out of the archive")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise ValueError("the file is a link")
        if member.file_size > largest_bytes:
            raise ValueError(_TOO_LARGE.format(limit=largest_bytes / 2**20))
        try:
            with zipfile.ZipFile(archive) as file, file.open(member) as content:
                return _bounded(content.read(largest_bytes + 1), largest_bytes)  # the declared size may be a lie
        except ValueError:  # too large
            raise
        except Exception as problem:  # any error of a codec: that of LZMA is no OSError
            raise ValueError(f"the archive is damaged or locked here ({problem})"[:200]) from None

    return read


def _without_top(files: list[_Found], lab: str) -> list[_Found]:
    """The files without the one folder that, in many zips, holds everything."""
    tops = {file.path.parts[0] for file in files}
    if len(tops) != 1 or any(len(file.path.parts) == 1 for file in files):  # a lone file is no folder
        return files
    seconds = {file.path.parts[1] for file in files}
    deep = [len(file.path.parts) >= 3 for file in files if file.path.suffix == ".ipynb"]
    flat = all(len(file.path.parts) == 2 for file in files) and len(files) > 1
    if lab in seconds or _MOODLE.match(next(iter(tops))) or not (all(deep) or flat):
        return files
    return [replace(file, path=PurePosixPath(*file.path.parts[1:])) for file in files]
