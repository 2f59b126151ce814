"""How long a lesson takes, by the rule, and what its header says."""

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from course_kit.notebook import show
from course_tools.author.minutes import sittings, stated, time_complaints

ROOT = Path(__file__).parents[2]
READS = ("lessons/*.ipynb",)
LESSONS = sorted(ROOT.glob("lessons/*.ipynb"))
TABLE = "<table><tr><th>bytes</th></tr><tr><td>1</td></tr>\n<tr>\n<td>2</td></tr></table>"


def page(header: str):
    """Ten minutes of prose and fifteen of doing; behind the line another ten of prose."""
    table = new_output("display_data", {"text/html": TABLE, "text/plain": "1 2"})
    figure = new_output("display_data", {"image/png": "…", "text/plain": "a picture"})
    source = new_output("display_data", {"text/markdown": show(stated, docstring=False)._repr_markdown_()})
    return [
        new_markdown_cell(f"# A page\n\n| Time | {header} |"),
        new_code_cell("import sys\nif 'google.colab' in sys.modules: ..."),
        new_markdown_cell("word " * 1990 + "<details><summary>Answers</summary> many, many words </details>"),
        new_code_cell('guess = ask("how many", unit="MiB")\n\nother = ask("how much", unit="s")'),
        new_code_cell("compare(guess=guess, predicted=f(), measured=g())", outputs=[table, figure]),
        new_code_cell("show(stated, docstring=False)", outputs=[source]),
        new_code_cell("SplitExplorer()"),
        new_code_cell("@your_turn(looks)\ndef f(x): ..."),
        new_code_cell("@f.solution\ndef solved(x): return x", metadata={"tags": ["solution"]}),
        new_markdown_cell("The end of it.\n\n## Second sitting\n\n" + "word " * 1997),
    ]


def test_a_page_is_counted_by_the_rule() -> None:
    first, second = sittings(page("25 minutes"))
    assert (first.words, first.all_words, first.lines) == (2003, 2008, 7)
    assert (first.tables, first.explorers, first.turns, first.guesses) == (1, 1, 1, 2)
    assert (first.rows, first.figures, first.printed) == (2, 1, 4)
    read = 2003 / 200 + (7 + 4) * 4 / 60 + 2 * 5 / 60 + 0.5
    assert first.minutes == pytest.approx(read + 6 + 5 + 2 * 0.75)
    assert (second.words, second.minutes) == (2000, 10)


def test_a_header_that_promises_less_is_refused() -> None:
    honest = "first sitting 25 minutes, second sitting 10; a second of it is computing"
    assert stated(page(honest)) == [25, 10] and time_complaints(page(honest)) == []
    short = time_complaints(page(honest.replace("25", "20")))
    assert len(short) == 1 and "says 20 minutes for the first sitting, and the rule counts 24" in short[0]
    assert "for the second sitting, and the rule counts 10" in time_complaints(page(honest.replace(" 10;", " 5;")))[0]
    assert "the minutes of 1 sittings, and the page has 2" in time_complaints(page("25 minutes"))[0]
    assert time_complaints(page("some time")) == []


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda notebook: notebook.stem)
def test_a_first_sitting_fits_in_a_class(notebook: Path) -> None:
    cells = nbformat.read(notebook, as_version=4).cells
    assert len(stated(cells)) == 2 and time_complaints(cells) == []
    first, second = sittings(cells)
    assert first.words <= 1800 and first.lines <= 160 and first.tables <= 10 and first.minutes <= 50
    assert first.explorers <= 1 and first.turns >= 3 and second.turns >= 1
