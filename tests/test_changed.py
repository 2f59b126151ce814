"""What a change can touch: too much costs minutes, too little lets a fault through."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from course_tools.author.inputs import digest, inputs
from course_tools.lessons import Lesson
from tests import changed

FILES = {
    "lessons/src/01_one.py": "from course_lib import upper\n",
    "course_lib/__init__.py": "",
    "course_lib/upper.py": "from .lower import name\n",
    "course_lib/lower/__init__.py": 'WORKER = "course_lib.worker"\n',
    "course_lib/lower/words.txt": "words\n",
    "course_lib/worker.py": "",
    "course_lib/alone/__init__.py": "",
    "course_lib/alone/part.py": "",
    "course_lib/nobodys.py": "",
    "tests/conftest.py": "import course_lib.alone\n",
    "tests/test_one.py": "from course_lib import upper\n",
    "tests/test_two.py": 'def f():\n    import course_lib.alone.part\n\n\nREADS = ("docs/*.md",)\n',
    "tests/room/conftest.py": "",
    "tests/room/test_three.py": 'COMMAND = ["python", "-m", "course_tools", "build"]\n',
    "course_tools/__init__.py": "",
    "course_tools/__main__.py": "from course_tools import cli\n",
    "course_tools/cli.py": "",
    "docs/guide.md": "",
    "README.md": "",
    "constraints.txt": "torch==2\n",
}
ONE, TWO, THREE = "tests/test_one.py", "tests/test_two.py", "tests/room/test_three.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small course with three files of tests."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path.resolve()


def touched(checkout: Path, *names: str) -> list[str]:
    """The files of tests that changes of these files touch."""
    found = changed.touched_files({checkout / name for name in names}, checkout)
    return sorted(path.relative_to(checkout).as_posix() for path in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests/test_one.py", [ONE]),
        ("course_lib/upper.py", [ONE]),
        ("course_lib/lower/__init__.py", [ONE]),
        ("course_lib/worker.py", [ONE]),  # named in a string, as what another process runs
        ("course_lib/lower/words.txt", [ONE]),  # data beside what is imported
        ("course_lib/lower/deleted.py", [ONE]),
        ("course_lib/alone/part.py", [TWO]),
        ("docs/guide.md", [TWO]),  # declared
        ("course_lib/alone/__init__.py", [THREE, ONE, TWO]),  # imported by the conftest.py above all of them
        ("course_lib/__init__.py", [THREE, ONE, TWO]),
        ("tests/room/conftest.py", [THREE]),
        ("course_tools/cli.py", [THREE]),  # run by `python -m`
        ("constraints.txt", [THREE, ONE, TWO]),
        ("course_lib/nobodys.py", []),
        ("README.md", []),
    ],
)
def test_a_changed_file_touches_the_tests_that_import_or_read_it(
    checkout: Path, name: str, expected: list[str]
) -> None:
    assert touched(checkout, name) == expected


def test_an_import_that_is_new_counts_and_several_changes_add_up(checkout: Path) -> None:
    (checkout / "course_lib" / "upper.py").write_text("import course_lib.nobodys\n\n", "utf-8")
    assert touched(checkout, "course_lib/nobodys.py") == [ONE]
    assert touched(checkout, "course_lib/upper.py", "docs/guide.md") == [ONE, TWO]
    assert touched(checkout) == []


def test_a_hash_changes_with_every_input_and_with_nothing_else(checkout: Path) -> None:
    source = Lesson(checkout, "01_one").source
    before = digest(source, checkout)
    needed = inputs([source], checkout)
    for name, text in FILES.items():
        path = checkout / name
        path.write_text(f"{text}\n\n", "utf-8")
        decides = path in needed or name == "constraints.txt"
        assert (digest(source, checkout) != before) == decides, name
        path.write_bytes(text.replace("\n", "\r\n").encode())
        assert digest(source, checkout) == before, "the end of a line is the system's"
        path.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("file", "unknown"), [(ONE, ["README.md", "docs/guide.md"]), (TWO, ["README.md", "course_lib/upper.py"])]
)
def test_a_file_that_no_walk_knows_is_named(checkout: Path, file: str, unknown: list[str]) -> None:
    reads = changed.Reads(checkout)
    for name in ("README.md", "docs/guide.md", "course_lib/upper.py"):
        (checkout / name).read_text("utf-8")
    assert reads.undeclared(checkout / file) == unknown


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository of one commit."""
    for command in (["init", "-q", "-b", "main"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    commit(tmp_path, "one.py")
    return tmp_path.resolve()


def commit(root: Path, name: str) -> None:
    """One more commit, with one new file."""
    (root / name).write_text("1\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(["git", "commit", "-q", "-m", name], cwd=root, check=True)


def test_what_changed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in changed.changed_files(repository) or ())

    assert changed.changed_files(repository) is None, "a history of one commit says nothing"
    commit(repository, "two.py")
    assert names() == ["two.py"], "nothing differs from HEAD: the last commit"
    subprocess.run(["git", "switch", "-q", "-c", "branch"], cwd=repository, check=True)
    commit(repository, "three.py")
    commit(repository, "four.py")
    assert names() == ["four.py", "three.py"], "since the branch left main"
    (repository / "one.py").write_text("2\n")
    (repository / "new.py").touch()
    (repository / "two.py").unlink()
    assert names() == ["new.py", "one.py", "two.py"], "what differs from HEAD, what is new, what is gone"
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", "/")
    assert changed.changed_files(Path("/")) is None, "no repository at all"
