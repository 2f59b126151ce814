"""How long a lesson takes, by the rule, and what its header says."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_tools.author.minutes import sittings, stated, time_complaints
from course_tools.author.source import read_cells

ROOT = Path(__file__).parents[2]
LESSONS = sorted(ROOT.glob("lessons/src/*.py"))


def page(header: str):
    """Ten minutes of prose and eleven of doing; behind the line another ten of prose."""
    return [
        new_markdown_cell(f"# A page\n\n| Time | {header} |"),
        new_code_cell("import sys\nif 'google.colab' in sys.modules: ..."),
        new_markdown_cell("word " * 1990 + "<details><summary>Answers</summary> many, many words </details>"),
        new_code_cell('guess = ask("how many", unit="MiB")\nother = ask("how much", unit="s")'),
        new_code_cell("compare(guess=guess, predicted=f(), measured=g())"),
        new_code_cell("SplitExplorer()"),
        new_code_cell("@your_turn(looks)\ndef f(x): ..."),
        new_code_cell("@f.solution\ndef solved(x): return x", metadata={"tags": ["solution"]}),
        new_markdown_cell("The end of it.\n\n## Second sitting\n\n" + "word " * 1997),
    ]


def test_a_page_is_counted_by_the_rule() -> None:
    first, second = sittings(page("20 minutes"))
    assert (first.words, first.cells) == (2003, 4)
    assert (first.all_words, first.all_cells) == (2008, 5)
    assert (first.tables, first.explorers, first.turns, first.guesses) == (1, 1, 1, 2)
    assert first.minutes == pytest.approx(2003 / 200 + 2 * 0.5 + 2 * 0.5 + 3 + 4)
    assert (second.words, second.minutes) == (2000, 10)


def test_a_header_that_promises_less_is_refused() -> None:
    honest = "first sitting 20 minutes, second sitting 10; a second of it is computing"
    assert stated(page(honest)) == [20, 10] and time_complaints(page(honest)) == []
    short = time_complaints(page(honest.replace("20", "15")))
    assert len(short) == 1 and "says 15 minutes for the first sitting, and the rule counts 20" in short[0]
    assert "for the second sitting, and the rule counts 10" in time_complaints(page(honest.replace(" 10;", " 5;")))[0]
    assert "the minutes of 1 sittings, and the page has 2" in time_complaints(page("20 minutes"))[0]
    assert time_complaints(page("some time")) == []


@pytest.mark.parametrize("source", LESSONS, ids=lambda source: source.stem)
def test_a_first_sitting_fits_in_a_class(source: Path) -> None:
    cells = read_cells(source)
    first, *_ = sittings(cells)
    assert len(stated(cells)) == 2 and time_complaints(cells) == []
    for_colab = 1  # a cell that the build adds
    assert first.all_words <= 2000 and first.all_cells + for_colab <= 24
    assert first.tables <= 10 and first.minutes <= 45
    assert first.explorers <= 1 and first.turns >= 3
