"""Labs whose numbers change with the term: the solution has every point, and last term's answers have not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from course_tools.author.lab_source import read_lab
from course_tools.labs import Lab

from .running import run_lab, solution_of
from .test_labs import LABS

pytestmark = pytest.mark.timeout(600)
READS = ("solutions/src/*.py",)
VARIED = [lab for lab in LABS if "# %% term=true" in lab.source.read_text("utf-8")]


def variants(lab: Lab) -> Iterator[Lab]:
    """The lab with each set of numbers that a term may draw."""
    seen = {tuple(cell.source for cell in read_lab(lab).cells)}
    for number in range(12):
        of_term = replace(lab, term=f"term {number}")
        if (cells := tuple(cell.source for cell in read_lab(of_term).cells)) not in seen:
            seen.add(cells)
            yield of_term


def test_labs_1_2_and_6_have_such_numbers() -> None:
    assert {"lab01", "lab02", "lab06"} <= {lab.number for lab in VARIED}


@pytest.mark.parametrize(
    "lab",
    [
        pytest.param(
            of_term, id=f"{lab.number}-{of_term.term}", marks=pytest.mark.nightly if number or lab != VARIED[0] else ()
        )
        for lab in VARIED
        for number, of_term in enumerate(variants(lab))
    ],
)
def test_the_solution_gets_every_point_and_the_published_one_does_not(lab: Lab) -> None:
    assert run_lab(lab) == {}
    published = solution_of(replace(lab, term=""))
    changed = {name for name, text in solution_of(lab).items() if text != published[name]}
    assert changed, "no answer depends on the term"
    answers = {name: published[name] for name in changed}
    lost = {check.split("-")[0] for check in run_lab(lab, answers)}
    assert {name.split("-")[0] for name in changed} <= lost
