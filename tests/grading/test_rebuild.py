"""Notebooks as students hand them in, and what is made of them."""

from __future__ import annotations

import copy
import json

import nbformat
import pytest
from nbformat import NotebookNode

from course_tools.author.code import bound, read
from course_tools.author.lab_source import grade_id_of, is_check, student_version
from course_tools.grading.intake.rebuild import Rebuilt, Unreadable, WrongLab, rebuild
from tests.grading.conftest import HALF, MOVING_AVERAGE, Grade, cell_of, notebook, points

new_code = nbformat.v4.new_code_cell


def rebuilt(key: NotebookNode, book: NotebookNode) -> Rebuilt:
    return rebuild(key, nbformat.writes(book).encode())


def answer(result: Rebuilt, name: str) -> str:
    return cell_of(result.notebook, name).source


def test_a_notebook_as_it_should_be_needs_no_repair(key: NotebookNode) -> None:
    result = rebuilt(key, notebook(key))
    assert (answer(result, "q1"), answer(result, "q3"), result.notes) == (MOVING_AVERAGE, HALF, [])
    assert "### BEGIN HIDDEN TESTS" in answer(result, "q1-hidden"), "checks come from the lab"


def test_the_last_copy_of_an_answer_counts(key: NotebookNode) -> None:
    book = notebook(key, q1="def moving_average(numbers, width):\n    return 0\n")
    second = copy.deepcopy(cell_of(book, "q1"))
    second.source, second.id = MOVING_AVERAGE, "copy"
    book.cells.insert(book.cells.index(cell_of(book, "q1")) + 1, second)
    result = rebuilt(key, book)
    assert answer(result, "q1") == MOVING_AVERAGE
    assert result.notes == ["q1: 2 cells answer it; of those that define the same, the last one counts"]


def test_a_copy_that_is_still_the_stub_does_not_count(key: NotebookNode) -> None:
    book = notebook(key)
    stub = copy.deepcopy(cell_of(student_version(key), "q1"))
    stub.id = "stub"
    book.cells.append(stub)
    result = rebuilt(key, book)
    assert (answer(result, "q1"), result.notes) == (MOVING_AVERAGE, [])


def test_a_split_answer_is_put_together(key: NotebookNode) -> None:
    book = notebook(key, q1="def total(part):\n    return sum(part)\n")
    second = copy.deepcopy(cell_of(book, "q1"))
    second.source, second.id = "def moving_average(numbers, width):\n    return total(numbers)\n", "second"
    book.cells.insert(book.cells.index(cell_of(book, "q1")) + 1, second)
    result = rebuilt(key, book)
    assert answer(result, "q1").startswith("def total") and answer(result, "q1").endswith(second.source)
    assert "put together" in result.notes[0]


def test_stripped_metadata_is_made_up_for_by_names(key: NotebookNode) -> None:
    book = notebook(key)
    for number, cell in enumerate(book.cells):
        cell.metadata, cell.id = nbformat.NotebookNode(), f"c{number}"
    book.metadata = nbformat.NotebookNode()
    result = rebuilt(key, book)
    assert (answer(result, "q1"), answer(result, "q3")) == (MOVING_AVERAGE, HALF)
    assert all("lost its mark" in note for note in result.notes) and len(result.notes) == 2


def test_the_id_of_a_cell_is_enough(key: NotebookNode) -> None:
    book = notebook(key, q1="moving_average = lambda numbers, width: []\n")
    cell_of(book, "q1").metadata = nbformat.NotebookNode()
    assert answer(rebuilt(key, book), "q1").startswith("moving_average = lambda")


def test_deleted_cells_are_back_and_a_deleted_answer_is_none(key: NotebookNode) -> None:
    book = notebook(key)
    book.cells = [cell for cell in book.cells if grade_id_of(cell) == "q3"]
    result = rebuilt(key, book)
    assert sum(is_check(cell) for cell in result.notebook.cells) == 4
    assert "raise NotImplementedError" in answer(result, "q1") and result.notes == ["q1: no answer found"]


def test_two_answers_in_one_cell(key: NotebookNode) -> None:
    book = notebook(key, q1=MOVING_AVERAGE + "\n" + HALF)
    book.cells = [cell for cell in book.cells if grade_id_of(cell) != "q3"]
    result = rebuilt(key, book)
    assert (answer(result, "q3"), result.notes) == ("", ["q3: answered in the cell of another question"])


def test_cells_of_the_students_own_run_if_an_answer_needs_them(key: NotebookNode) -> None:
    uses = "def half(number):\n    return times(number, 0.5)\n"
    book = notebook(key, q3=uses)
    helper = new_code("import operator\n\ndef times(a, b):\n    return operator.mul(SIGN * a, b)\n")
    constant, experiment = new_code("SIGN = 1\n"), new_code("number = 7\nprint(number)")
    book.cells[3:3] = [constant, experiment, helper]
    result = rebuilt(key, book)
    sources = [cell.source for cell in result.notebook.cells]
    place = sources.index(uses)
    assert sources[place - 2 : place] == [constant.source, helper.source]
    assert experiment.source not in sources and len(result.notes) == 2
    assert result.notes[0] == "q3: a cell of your own that it needs runs before it (SIGN = 1)"


@pytest.mark.notebook
def test_such_cells_really_run(key: NotebookNode, grade: Grade) -> None:
    book = notebook(key, q3="def half(number):\n    return times(number)\n")
    book.cells.insert(3, new_code("def times(a):\n    return a / 2\n"))
    assert points(grade(book)) == {"q1": 40, "q3": 20}


def test_a_cell_that_takes_a_name_of_the_lab_does_not_run(key: NotebookNode) -> None:
    book = notebook(key)
    book.cells.insert(3, new_code("def reference(number): return 0\ncheck = None"))
    assert rebuilt(key, book).notes == []


def test_a_helper_may_have_the_name_of_a_checks_variable(key: NotebookNode) -> None:
    """What a check binds goes with it, so nothing of the lab is in the way."""
    key = copy.deepcopy(key)
    cell_of(key, "q1-hidden").source += "\nscale = 3\n"
    helper, uses = new_code("scale = 0.5\n"), "def half(number):\n    return scale * number\n"
    book = notebook(key, q3=uses)
    book.cells.insert(3, helper)
    sources = [cell.source for cell in rebuilt(key, book).notebook.cells]
    assert sources[sources.index(uses) - 1] == helper.source


def test_names_that_a_star_brings_are_found(key: NotebookNode) -> None:
    uses = "def half(number):\n    return ldexp(number, -1)\n"
    book = notebook(key, q3=uses)
    book.cells.insert(3, new_code("from math import *\n"))
    sources = [cell.source for cell in rebuilt(key, book).notebook.cells]
    assert sources[sources.index(uses) - 1] == "from math import *\n"


def test_an_answer_may_stand_in_a_cell_of_the_labs(key: NotebookNode) -> None:
    """A student merged the two cells, with the upper one active; the lab's own text runs as it was handed out."""
    book = notebook(key)
    given = next(cell for cell in book.cells if cell.source.startswith("def reference"))
    given.source += "\n\n" + HALF
    book.cells.remove(cell_of(book, "q3"))
    result = rebuilt(key, book)
    assert HALF.strip() in answer(result, "q3")
    assert result.notes == ["q3: the cell had lost its mark; found by the names that it defines"]


@pytest.mark.parametrize("version", [3, 4])
def test_older_formats(key: NotebookNode, version: int) -> None:
    book = json.loads(nbformat.writes(notebook(key)))
    for cell in book["cells"]:
        cell.pop("id")
        if version == 3 and cell["cell_type"] == "code":
            cell["input"] = cell.pop("source")
    if version == 3:
        book = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": book["cells"]}]}
    else:
        book |= {"nbformat_minor": 2}
    result = rebuild(key, json.dumps(book).encode())
    assert (answer(result, "q1"), result.notes) == (MOVING_AVERAGE, [])


NOT_NOTEBOOKS = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "HTML": (b"<!DOCTYPE html><html>", "web page"),
    "conflict": (b'{"cells": [\n<<<<<<< HEAD\n{}\n=======\n]}', "a git conflict"),
    "truncated": (b'{"cells": [{"cell_type": "code", "sou', "end seems to be missing"),
    "zip": (b"PK\x03\x04\xff\xff", "another kind"),
    "list": (b"[1, 2]", "not a notebook"),
    "other JSON": (b'{"a": 1}', "not a notebook"),
    "deep": (b'{"cells": ' + b"[" * 100_000, "end seems"),
    "cells of another type": (b'{"cells": 5}', "not a notebook"),
}


@pytest.mark.parametrize(("data", "words"), NOT_NOTEBOOKS.values(), ids=NOT_NOTEBOOKS)
def test_what_is_not_a_notebook(key: NotebookNode, data: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        rebuild(key, data)


def test_another_lab(key: NotebookNode) -> None:
    book = notebook(key)
    book.metadata["course"] = {"lab": "lab91_other"}
    with pytest.raises(WrongLab, match="lab91_other, not of lab90_tiny"):
        rebuilt(key, book)
    other = nbformat.v4.new_notebook(cells=[new_code("def something(): pass")])
    other.cells[0].metadata["nbgrader"] = {"grade_id": "q1", "solution": True}
    with pytest.raises(WrongLab, match="none of the questions"):
        rebuilt(key, other)


def test_parts_of_odd_types_are_left_out(key: NotebookNode) -> None:
    book = json.loads(nbformat.writes(notebook(key)))
    odd = [None, 5, [], {}, {"cell_type": "code"}, {"cell_type": "code", "source": 7}, {"cell_type": ["code"]}]
    odd += [{"cell_type": "code", "source": [1, "x = 1"], "metadata": 3, "id": {}}]
    odd += [{"cell_type": "code", "source": "y = '\ud800'", "metadata": {"nbgrader": []}}]
    book["cells"] = odd + book["cells"]
    assert answer(rebuild(key, json.dumps(book).encode()), "q1") == MOVING_AVERAGE


def test_names_of_a_cell() -> None:
    cell = "import a.b, c as d\nx, y = 1, 2\nfor z in x: w = z\ndef f(p): q = 1\n%magic\nclass C: r = 1"
    assert bound(cell) == {"a", "d", "x", "y", "z", "w", "f", "C"}
    assert read("def f(a):\n    x = a\n    return [g(x, i) for i in h]\nlen(k)") == {"g", "h", "k"}
    assert bound("def f(:\n    pass\nx = 1") == {"f", "x"}
