"""Numbers that change with the term: drawn from its name, the same for everybody, and judged by in the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from nbformat import NotebookNode
from rich.console import Console

from course_tools.author.lab_builder import build_lab
from course_tools.author.lab_source import grade_id_of, read_lab
from course_tools.author.release import release_course
from course_tools.author.terms import kept_term
from course_tools.grading.intake.rebuild import rebuild
from course_tools.labs import Lab

from .conftest import SOURCE, make_lab

NAMES = """\
# %% term=true
TERM_WIDTH = (2, 3, 4, 5)
TERM_WORD = {2: "two", 3: "three", 4: "four", 5: "five"}[TERM_WIDTH]

# %%
import torch
"""


@pytest.fixture
def varied(tmp_path: Path) -> Lab:
    """A lab whose first check asks for windows of another width each term."""
    lab = make_lab(tmp_path / "course")
    source = SOURCE.replace("# %%\nimport torch\n", NAMES, 1)
    source = source.replace(
        '[1, 2, 3], 2), [1.5, 2.5], "windows of two"',
        '[1] * 9, TERM_WIDTH), [1.0] * (10 - TERM_WIDTH), "windows of TERM_WORD"',
    )
    lab.source.write_text(source, "utf-8")
    return lab


def as_if_run(notebook: NotebookNode, *_: object, **__: object) -> None:
    """Number the cells, as a kernel does."""
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number


def check_of(lab: Lab) -> str:
    return next(cell.source for cell in read_lab(lab).cells if grade_id_of(cell) == "q1-values")


def test_the_published_lab_has_the_first_number_and_terms_draw_the_others(varied: Lab) -> None:
    assert '[1] * 9, 2), [1.0] * (10 - 2), "windows of two"' in check_of(varied)
    drawn = {check_of(replace(varied, term=f"term {number}")) for number in range(40)}
    assert len(drawn) == 3 and not any("windows of two" in text for text in drawn)
    assert check_of(replace(varied, term="fall")) == check_of(replace(varied, term="fall"))
    assert not any("TERM_" in cell.source for cell in read_lab(varied).cells)


UNDRAWN = {
    "TERM_WIDTH = (2, 3)": "no cell .* binds TERM_WORD",
    "import os": "'import os' is no line",
    "x = 1": "'x = 1'",
}


@pytest.mark.parametrize(("line", "words"), UNDRAWN.items())
def test_what_cannot_be_drawn_is_refused(varied: Lab, line: str, words: str) -> None:
    text = varied.source.read_text("utf-8")
    begin, end = text.index("TERM_WIDTH = "), text.index("\n# %%\nimport torch")
    varied.source.write_text(f"{text[:begin]}{line}\n{text[end:]}", "utf-8")
    with pytest.raises(ValueError, match=words):
        read_lab(varied)


def test_a_release_has_the_terms_numbers_and_is_remembered(
    varied: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course_tools.kernel.execute", as_if_run)  # what cells print does not matter here
    build_lab(varied)
    (varied.root / "course_lib").mkdir()
    (varied.root / "course_lib" / "units.py").write_text("x = 1\n", "utf-8")
    release_course(varied.root, tmp_path / "out", [varied], Console(quiet=True), term="fall")
    released = tmp_path / "out" / varied.notebook.relative_to(varied.root)
    text = released.read_text("utf-8")
    sources = "".join(line for cell in json.loads(text)["cells"] for line in cell["source"])
    assert check_of(replace(varied, term="fall")).splitlines()[0] in sources
    assert "TERM_" not in text and json.loads(text)["metadata"]["course"]["term"] == kept_term(varied.root) == "fall"
    assert not (tmp_path / "out" / "solutions").exists()
    fall, spring = (read_lab(replace(varied, term=term)) for term in ("fall", "spring"))
    assert not any("numbers" in note for note in rebuild(fall, text.encode()).notes)
    note = "this notebook has the numbers of 'fall'; it was judged with the numbers of 'spring'"
    assert rebuild(spring, text.encode()).notes[0] == note
    release_course(varied.root, tmp_path / "out", [varied], Console(quiet=True), force=True)
    assert kept_term(varied.root) == "" and "windows of two" in released.read_text("utf-8")
