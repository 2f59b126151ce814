"""For each sentence of a contract there is a known-wrong answer that breaks it, and loses a check."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_tools.author.lab_source import read_lab
from course_tools.labs import Lab, find_labs

from .contracts import Promise, promises, sentences
from .faults import read_faults

ROOT = Path(__file__).parents[2]
READS = ("solutions/src/*.py", "tests/mutants/lab*/*")
LABS = find_labs(ROOT)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_each_sentence_of_a_contract_has_a_known_wrong_answer_that_breaks_it(lab: Lab) -> None:
    key = read_lab(lab)
    rows, faults = promises(key), read_faults(ROOT / "tests" / "mutants" / lab.number)
    losing = {(fault.file.stem, fault.name) for fault in faults if fault.loses}
    for question, said in sentences(key).items() if rows or lab.number < "lab20" else ():  # a teacher's may have none
        missing = [each for each in said if not any(each.startswith(row.begins) for row in rows.get(question, []))]
        assert missing == [], f"{question}: rows `#= beginning of the sentence | known-wrong answers`, for these"
    for question, own in rows.items():
        stale = [row.begins for row in own if not any(each.startswith(row.begins) for each in sentences(key)[question])]
        assert stale == [], f"{question}: no sentence of the contract begins like this any more"
        unknown = [name for row in own for name in row.faults if (question, name) not in losing]
        assert unknown == [], f"tests/mutants/{lab.number}/{question}.diff has no such answer that surely loses a check"
        assert all(row.faults or row.why for row in own), "an answer that breaks it, or why none can; `?` stays open"


TEXT = """\
Before it. **The contract.** `f(x)` and `g(x)`

- `x`: a list of
  numbers. It stays as it is. (It may be long. So what.)
- returns

| key | what |
|---|---|
| `"a"` | one |

**What is graded:** nothing.
"""
ANSWER = '''\
def f(x):
    """Twice x. A list."""
    ### BEGIN SOLUTION
    def inner():
        """No promise."""
    ### END SOLUTION
'''


def cell(name: str, source: str, answer: bool = False):
    marks = {"grade_id": name, "solution": answer, "grade": not answer}
    return new_code_cell(source, metadata={"nbgrader": marks})


def test_sentences_are_those_of_contract_and_docstring() -> None:
    rows = "#= Twice | doubles_nothing half\n#= A list. | - says what it is\n#= So what | ? a long one\n# = no | row"
    key = new_notebook(cells=[new_markdown_cell(TEXT), cell("q1-go", ANSWER, True), cell("q1-hidden", rows)])
    told = ["`x`: a list of numbers.", "It stays as it is.", "(It may be long.", "So what.)", "returns", '`"a"` | one']
    assert sentences(key) == {"q1": [*told, "Twice x.", "A list."]}
    assert promises(key) == {
        "q1": [
            Promise("Twice", ("doubles_nothing", "half"), ""),
            Promise("A list.", (), "says what it is"),
            Promise("So what", (), "", "a long one"),
        ]
    }
