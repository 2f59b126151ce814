"""Which labs a change is run for: too many cost minutes, too few let a fault through."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_tools.labs import Lab

from .affected import ROOT, affected_labs, depends_on


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two labs: one imports a module that imports another, one imports neither."""
    files = {
        "solutions/src/lab01_one.py": "from course_lib import upper\n",
        "solutions/src/lab02_two.py": "def f():\n    import course_lib.alone.part\n",
        "course_lib/__init__.py": "",
        "course_lib/upper.py": "from .lower import name\n",
        "course_lib/lower/__init__.py": 'WORKER = "course_lib.worker"\n',
        "course_lib/lower/words.txt": "words\n",
        "course_lib/worker.py": "",
        "course_lib/alone/__init__.py": "",
        "course_lib/alone/part.py": "",
        "course_lib/nobodys.py": "",
        "course_tools/runs.py": "",
        "tests/labs/test_labs.py": "import course_tools.runs\n",
        "README.md": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("solutions/src/lab01_one.py", ["lab01"]),
        ("tests/mutants/lab02/q1.diff", ["lab02"]),
        ("labs/lab02_two/lab02_two.ipynb", ["lab02"]),
        ("course_lib/upper.py", ["lab01"]),
        ("course_lib/lower/__init__.py", ["lab01"]),
        ("course_lib/worker.py", ["lab01"]),  # named in a string, as what another process runs
        ("course_lib/lower/words.txt", ["lab01"]),
        ("course_lib/lower/deleted.py", ["lab01"]),
        ("course_lib/alone/part.py", ["lab02"]),
        ("course_lib/nobodys.py", []),
        ("course_lib/__init__.py", ["lab01", "lab02"]),
        ("course_tools/runs.py", ["lab01", "lab02"]),
        ("tests/labs/test_labs.py", ["lab01", "lab02"]),
        ("pyproject.toml", ["lab01", "lab02"]),
        ("README.md", []),
    ],
)
def test_a_changed_file_reaches_the_labs_that_import_it(checkout: Path, changed: str, expected: list[str]) -> None:
    assert affected_labs([Path(changed)], checkout) == expected
    assert affected_labs([checkout / changed], checkout) == expected


def test_an_import_that_is_new_counts_at_once(checkout: Path) -> None:
    assert affected_labs([Path("course_lib/nobodys.py")], checkout) == []
    (checkout / "course_lib" / "upper.py").write_text("import course_lib.nobodys\n", "utf-8")
    assert affected_labs([Path("course_lib/nobodys.py")], checkout) == ["lab01"]


def test_several_changes_add_up_and_none_at_all_reaches_nothing(checkout: Path) -> None:
    changed = [Path("course_lib/upper.py"), Path("course_lib/alone/part.py")]
    assert affected_labs(changed, checkout) == ["lab01", "lab02"]
    assert affected_labs([], checkout) == []


def test_where_nothing_is_known_all_labs_are_run(checkout: Path) -> None:
    assert affected_labs(None, checkout) == ["lab01", "lab02"]


def test_the_courses_own_labs_depend_on_what_they_teach() -> None:
    lab = Lab(ROOT, "lab05_gradient_accumulation")
    needed = {path.relative_to(ROOT).as_posix() for path in depends_on(lab)}
    assert {"course_lib/train/accumulate.py", "course_lib/model/gpt.py", "tests/labs/running.py"} <= needed
    assert not any(name.startswith(("course_pages/lesson", "course_tools/grading")) for name in needed)
