"""The reading budget of a lesson: the files that its header names, and the functions that the page prints."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_kit.notebook import show
from course_tools.author.source import read_cells
from course_tools.lessons import Lesson, all_lessons
from course_tools.site.names import imported, whole_name

ROOT = Path(__file__).parents[1]
READS = ("lessons/src/*.py", "course_lib/**/*.py", "course_kit/**/*.py")
LESSONS = all_lessons(ROOT)
NAMED = ("course_lib", "course_kit")
FILES, LINES, SHOWN, SHOWN_LINES = 3, 600, 2, 40


def unreadable(lesson: Lesson) -> list[str]:
    """Faults of the row "Opens" of a lesson's header."""
    names, lines, wrong = lesson.opens, 0, []
    if not 1 <= len(names) <= FILES:
        wrong.append(f"{len(names)} files are named; 1 to {FILES} are to be read")
    for name in names:
        files = [path for package in NAMED if (path := ROOT / package / name).is_file()]
        if len(files) != 1:
            wrong.append(f"{name} is {len(files)} files of {' and '.join(NAMED)}; name one as room/file.py")
        lines += sum(len(path.read_text("utf-8").splitlines()) for path in files)
    return wrong + [f"{lines} lines are named; at most {LINES} are to be read"] * (lines > LINES)


def calls_of_show(lesson: Lesson) -> Iterator[ast.Call]:
    """Each `show(...)` in a page's cells: the notebook's function, not a picture's or an explorer's method."""
    for cell in read_cells(lesson.source):
        if cell.cell_type == "code" and not cell.source.startswith(("%", "!")):
            nodes = ast.walk(ast.parse(cell.source))
            yield from (node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "show")


def printed(lesson: Lesson) -> dict[str, int]:
    """The functions and methods of the library that a page prints → number of printed lines."""
    imports, lines = imported({"cells": read_cells(lesson.source)}), {}
    for call in calls_of_show(lesson):
        if not (name := whole_name(ast.unparse(call.args[0]), imports)):
            continue  # the page's own, or another library's
        thing = pkgutil.resolve_name(name)
        if inspect.isroutine(thing) and thing.__module__.startswith("course_lib."):
            options = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
            lines[name] = len(show(thing, **options).code.splitlines())
    return lines


def unshown(lesson: Lesson) -> list[str]:
    """Faults of the functions of the library that a page prints."""
    lines = printed(lesson)
    wrong = [f"{name} is printed in {n} lines; at most {SHOWN_LINES}" for name, n in lines.items() if n > SHOWN_LINES]
    short = len(lines) < SHOWN
    return wrong + [f"{len(lines)} functions of course_lib are printed; the idea is in at least {SHOWN}"] * short


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_header_names_few_files_and_they_are_there(lesson: Lesson) -> None:
    assert unreadable(lesson) == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_a_page_prints_the_functions_that_are_its_idea(lesson: Lesson) -> None:
    assert unshown(lesson) == []


PAGE = """\
# %% [markdown]
# # 20 · A page
#
# | | |
# |---|---|
# | Opens | {opens} |

# %%
from course_kit import measure
from course_kit.notebook import show
from course_lib.parallel import tensor
from course_lib.train.step import train_step

# %%
{code}
"""
OPENS = "`train/step.py`, `compare.py`"
CODE = "show(train_step)\ndisplay(show(tensor.SplitDropout.forward, docstring=False))"
FAULTS = {
    "no file": ("opens", "whatever you like", "0 files are named"),
    "four files": ("opens", "`train/step.py`, `compare.py`, `units.py`, `tables.py`", "4 files are named"),
    "a file that is gone": ("opens", "`train/stop.py`", "train/stop.py is 0 files"),
    "a file of both packages": ("opens", "`__init__.py`", "__init__.py is 2 files"),
    "a room": ("opens", "`train/`", "train/ is 0 files"),
    "too much": ("opens", "`model/gpt.py`, `train/optim.py`, `model/text.py`", "lines are named; at most 600"),
    "one function, twice": ("code", "show(train_step, docstring=False)", "1 functions of course_lib"),
    "a picture's own show": ("code", "figure.show(tensor.loss_of_parts)", "1 functions of course_lib"),
    "a function of the kit": ("code", "show(measure.seconds)", "1 functions of course_lib"),
    "a class": ("code", "show(tensor.SplitDropout)", "1 functions of course_lib"),
    "the page's own": ("code", "def f(): ...\nshow(f)", "1 functions of course_lib"),
}
"""Where the fault is, what stands there (in code, below a first function), and the complaint."""


def page(folder: Path, opens: str = OPENS, code: str = CODE) -> Lesson:
    """A lesson whose source is `PAGE`."""
    lesson = Lesson(folder, "20_page")
    lesson.source.parent.mkdir(parents=True)
    lesson.source.write_text(PAGE.format(opens=opens, code=code), "utf-8")
    return lesson


def test_what_is_within_the_budget_has_no_fault(tmp_path: Path) -> None:
    lesson = page(tmp_path)
    assert lesson.opens == ["train/step.py", "compare.py"]
    assert sorted(printed(lesson)) == [
        "course_lib.parallel.tensor.SplitDropout.forward",
        "course_lib.train.step.train_step",
    ]
    assert unreadable(lesson) == unshown(lesson) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_asks_for_too_much_or_a_page_that_prints_too_little_is_found(tmp_path: Path, fault: str) -> None:
    where, text, complaint = FAULTS[fault]
    lesson = page(tmp_path, **{where: text if where == "opens" else f"show(train_step)\n{text}"})
    (found,) = unreadable(lesson) + unshown(lesson)
    assert complaint in found


def test_a_long_function_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson = page(tmp_path)
    (longest,) = [name for name, n in printed(lesson).items() if n == max(printed(lesson).values())]
    monkeypatch.setattr(f"{__name__}.SHOWN_LINES", printed(lesson)[longest] - 1)
    (found,) = unshown(lesson)
    assert found.startswith(f"{longest} is printed in")
