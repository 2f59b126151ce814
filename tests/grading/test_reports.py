"""What people read: grades.csv, feedback for students, the summary; text from students can do nothing in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mistune
import pytest
from nbformat import NotebookNode
from rich.console import Console

from course_tools.grading.report.adjustments import Adjustment, apply
from course_tools.grading.report.feedback import as_html, as_markdown
from course_tools.grading.report.reports import grade_rows, print_summary, write_reports
from course_tools.grading.report.results import NOT_RUN, PASSED, TIMEOUT, UNREADABLE, WRONG_LAB, CheckResult, Result
from course_tools.grading.report.words import number, one_line, plain, safe_cell

from .making import WORTH, result

SECRET = 'check.equal(check.call(moving_average, [1], 2), [], "fewer numbers than the window is wide")'
HOSTILE = "<script>alert(1)</script> </pre> ``` [x](javascript:alert) ![](http://e.vil/p.png) <img src=x onerror=y>"
FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", " =1", "\u202e=1", "\uff1d1"]


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"))))


def test_grades_csv_has_a_column_for_each_question(full_key: NotebookNode, tmp_path: Path) -> None:
    write_reports([result(failed={"q1-values": "no"}), result("bob", status="time limit")], tmp_path, full_key)
    ada, bob = table(tmp_path / "grades.csv")
    assert list(ada) == ["student", "name", "q1", "q2", "q3", "total", "out_of", "status", "notes"]
    assert list(ada.values()) == ["ada", "Ada", "20", "40", "20", "80", "100", "graded", ""]
    assert bob["status"] == "time limit"
    assert (tmp_path / "grades.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "Excel needs the mark to read names"


def test_adjustments_have_columns_when_there_are_any(full_key: NotebookNode) -> None:
    late = Adjustment(2, "ada", "", None, 1, "see me")
    more = Adjustment(3, "ada", "", 2.0, None, "by mail")
    header, ada, bob = grade_rows(apply([result(), result("bob")], [late, more], late=10), full_key)
    assert header[-6:] == ["manual", "penalty", "total", "out_of", "status", "notes"]
    assert ada[-6:] == [2, -10, 92, 100, "graded", "see me"] and bob[-6:-4] == [0, 0]
    points = [cell for cell in ada[2:7] if isinstance(cell, int | float)]
    assert sum(points) == 92, "the columns must add up to the total"


def test_questions_of_an_older_lab_keep_their_column_and_points_by_hand_come_last(full_key: NotebookNode) -> None:
    (first,) = apply([result()], [Adjustment(2, "ada", "", 2.0, None, "")])
    second = replace(result("bob"), checks=(CheckResult("q4", "q4-values", 5.0, 5.0, False, PASSED),))
    header, *_, bob = grade_rows([first, second], full_key)
    assert header[2:7] == ["q1", "q2", "q3", "q4", "manual"] and bob[2:7] == [0, 0, 0, 5, 0]


def test_no_points_yet_is_not_zero_points(full_key: NotebookNode, tmp_path: Path) -> None:
    write_reports([result(status="not graded", notes=("the grader failed (KeyError: /etc/x)",))], tmp_path, full_key)
    (row,) = table(tmp_path / "grades.csv")
    assert row["q1"] == row["total"] == "" and "KeyError" in row["notes"]
    for kind in ("md", "html"):
        text = (tmp_path / "feedback" / f"ada.{kind}").read_text("utf-8")
        assert "could not be graded yet" in text and "of 100" not in text and "KeyError" not in text


@pytest.mark.parametrize("name", FORMULAS)
def test_a_name_never_becomes_a_formula(name: str, full_key: NotebookNode, tmp_path: Path) -> None:
    write_reports([result("s", name, notes=(name,), status=name)], tmp_path, full_key)
    for file in ("grades.csv", "gradebooks/canvas.csv", "gradebooks/moodle.csv"):
        text = (tmp_path / file).read_bytes().decode("utf-8-sig")
        for cells in csv.reader(io.StringIO(text)):
            assert not any(cell.strip()[:1] in tuple("=+@\t\r\uff1d") and cell for cell in cells), cells
            assert not any(cell.startswith("-") and cell.strip("-").isalpha() for cell in cells)
        assert all(line.startswith('"') for line in text.splitlines()), "a cell that holds ; could fall apart"


def test_numbers_below_zero_stay_numbers_and_text_does_not_become_one() -> None:
    assert safe_cell(-3.0) == -3 and safe_cell("-3") == "'-3" and safe_cell(0.1 + 0.2) == 0.3


def test_feedback_says_which_public_checks_failed_and_how(full_key: NotebookNode) -> None:
    graded = result(failed={"q1-values": "expected [1.5, 2.5]\ngot [1.5]", "q2-hidden": SECRET})
    for render in (as_markdown, as_html):
        text = render(graded, full_key)
        assert "expected [1.5, 2.5]" in text and "q1-values" in text and "20" in text
        assert "2 · The mean of all ranks" in text and "0 of 20 points" in text
        assert "q2-hidden" not in text and "fewer numbers" not in text and "secret" not in text
        assert "60 of 100" in text or "60 <small>of 100" in text
        assert text.count("3 · Halves") == 1, "a question with all its points needs no section"


@pytest.mark.parametrize("status", [UNREADABLE, WRONG_LAB])
def test_what_was_never_opened_has_no_list_of_failed_checks(status: str, full_key: NotebookNode) -> None:
    nothing = result(status=status, failed=dict.fromkeys(WORTH, ""), outcome=NOT_RUN)
    for render in (as_markdown, as_html):
        text = render(nothing, full_key)
        assert "nothing in it could be graded" in text and "2 · The mean of all ranks" in text
        assert "was not reached" not in text and "run only at grading" not in text
        assert "was not reached" in render(result(failed={"q1-values": ""}, outcome=NOT_RUN), full_key)
    (by_hand,) = apply([nothing], [Adjustment(2, "ada", "q2", 5.0, None, "from the screenshot")])
    assert "from the screenshot" in as_markdown(by_hand, full_key)


def test_a_hidden_failure_names_its_topic(full_key: NotebookNode) -> None:
    lost = result(failed={"q1-hidden": SECRET, "q3-hidden": SECRET})
    for render in (as_markdown, as_html):
        text = render(lost, full_key)
        assert text.count("What failed among them is about: Further checks, on numbers of their own.") == 1
        assert text.count("They ask for what the text of the question says, on other inputs.") == 1, "q3 names none"
        assert "about:" not in render(result(failed={"q1-values": "x"}), full_key), "what passed names none"
        rows = (replace(row, topic="On numbers." if row.check == "q1-hidden" else "") for row in lost.checks)
        text = render(replace(lost, checks=tuple(rows)), full_key)
        assert "about: On numbers." in text and "Further checks" not in text, "the one that failed"


def test_a_public_check_is_named_by_the_line_that_its_cell_begins_with(full_key: NotebookNode) -> None:
    lost = result(failed={"q1-values": "x", "q3-hidden": SECRET})
    for render in (as_markdown, as_html):
        assert render(lost, full_key).count("the cell that begins with") == 1
    assert "check.equal(check.call(moving_average" in as_html(lost, full_key)


def test_a_hidden_test_that_a_public_check_repeats_is_withheld(full_key: NotebookNode) -> None:
    graded = result(failed={"q2-values": f"ValueError: I read {SECRET} and more"})
    for render in (as_markdown, as_html):
        text = render(graded, full_key)
        assert "fewer numbers" not in text and "not shown" in text


def test_a_line_that_the_student_wrote_as_the_solution_has_it_is_shown(full_key: NotebookNode) -> None:
    report = "rank 0 waits in all_reduce, called in\n    dist.all_reduce(value)"
    for render in (as_markdown, as_html):
        assert "dist.all_reduce(value)" in render(result(failed={"q2-values": report}), full_key)


def test_outcomes_and_statuses_are_in_plain_words(full_key: NotebookNode) -> None:
    graded = result(failed={"q1-values": ""}, outcome=TIMEOUT, status="process limit")
    for render in (as_markdown, as_html):
        text = render(graded, full_key)
        assert "did not end in time" in text and "stopped at its process limit" in text
    for status in ("unreadable", "wrong lab", "tampered", "memory limit"):
        assert "notebook" in as_markdown(result(status=status), full_key).split("\n\n", 2)[2]


@pytest.mark.parametrize("where", ["name", "message", "notes", "comment", "reason"])
def test_text_from_elsewhere_stays_text(where: str, full_key: NotebookNode) -> None:
    graded = _with(where, HOSTILE)
    page = as_html(graded, full_key)
    assert "&lt;script&gt;" in page and "<script" not in page and "<img" not in page
    assert "default-src 'none'" in page
    shown = str(mistune.html(as_markdown(graded, full_key)))
    assert "<script" not in shown and "<img" not in shown and "<a " not in shown, shown
    assert "alert(1)" in shown, "the text itself must still be there"


@pytest.mark.parametrize("where", ["name", "message", "notes", "comment", "reason"])
def test_text_does_not_break_out_of_its_place(where: str, full_key: NotebookNode) -> None:
    graded = _with(
        where, "a\n\n# Heading\n\n| 100 | 100 |\n```\n\n**bold** https://e.vil\r\n- item\x1b[31mred\x00\u202e"
    )
    shown = str(mistune.create_markdown(plugins=["table", "url"])(as_markdown(graded, full_key)))
    assert "<h1>Heading" not in shown and "<strong>bold" not in shown and "<li>item" not in shown, shown
    assert 'href="https://e.vil' not in shown
    for text in (shown, as_html(graded, full_key)):
        assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text and "[31m" not in text
        assert "red" in text


def test_a_message_keeps_its_lines(full_key: NotebookNode) -> None:
    graded = result(failed={"q1-values": "first\n\n    second\tthird"})
    assert "    first\n    \n        second  third" in as_markdown(graded, full_key)
    assert "<pre>first\n\n    second  third</pre>" in as_html(graded, full_key)


def test_lateness_and_words_by_hand_are_in_the_feedback(full_key: NotebookNode) -> None:
    rows = [Adjustment(2, "ada", "", None, 1, "see me"), Adjustment(3, "ada", "q2", -2.5, None, "copied text")]
    (graded,) = apply([result()], rows, late=10)
    for render in (as_markdown, as_html):
        text = render(graded, full_key)
        for words in ("1 day late", "−10", "see me", "−2.5", "copied text", "87.5"):
            assert words in text, words


def test_points_are_printed_without_needless_digits() -> None:
    assert [number(value) for value in (20.0, 2.5, 0.1 + 0.2, 0, -0.001, 100)] == ["20", "2.5", "0.3", "0", "0", "100"]


def test_plain_text_keeps_letters_of_every_script() -> None:
    assert one_line("Zoë  Ångström\n王芳 \u0645\u06cc\u200c\u062e") == "Zoë Ångström 王芳 \u0645\u06cc\u200c\u062e"
    assert plain("a\x1b]0;title\x07b\ud800") == "ab"


def test_the_summary_says_what_a_batch_was_like(full_key: NotebookNode) -> None:
    results = [result(f"s{i}") for i in range(8)]
    results += [result("low", failed={"q2-values": "x", "q2-hidden": "x"}, isolated=False)]
    results += [
        result("cheat", status="tampered", notes=("a check was [bold]replaced",)),
        result("x", status="not graded"),
    ]
    text = summary(results, full_key)
    assert "10 graded, median 100" in text and "90–100  " in text
    assert text.index("2 · The mean") < text.index("1 · Windows"), "the hardest question comes first"
    assert "90%" in text and "q2-values (1)" in text
    assert "cheat" in text and "tampered" in text and "a check was [bold]replaced" in text
    assert "NOT ISOLATED: 1 of 11" in text
    assert [line for line in text.splitlines() if "60–70" in line][0].rstrip().endswith("1")


def test_the_median_of_an_even_number_lies_between_the_two_in_the_middle(full_key: NotebookNode) -> None:
    results = [result("low", failed=dict.fromkeys(["q1-values", "q1-hidden"], "x")), result("high")]
    assert "2 graded, median 80" in summary(results, full_key)


def test_only_what_may_have_cost_points_is_to_be_looked_at(full_key: NotebookNode) -> None:
    lost, notes = {"q2-values": "x"}, {"lazy": ["q2: not answered"], "odd": ["q1: no answer found"]}
    notes["both"] = ["q2: not answered", "q1: found by names"]
    results = [result(name, failed=lost, notes=tuple(said)) for name, said in notes.items()]
    text = summary([*results, result("whole", notes=("q1: found by names",))], full_key)
    assert "lazy" not in text and "odd" in text and "found by names" in text and "not answered" not in text
    assert "whole" not in text, "nothing was lost"
    assert result(notes=("a",)).with_notes("a", "b").notes == ("a", "b")


def test_a_batch_without_any_points_has_a_summary_too(full_key: NotebookNode) -> None:
    assert "not graded" in summary([result(status="not graded")], full_key)
    assert "0–10" in summary([result(failed=dict.fromkeys(["q1-values"], ""))], full_key)


def summary(results: list[Result], key: NotebookNode) -> str:
    console = Console(width=150, record=True, file=io.StringIO())
    print_summary(results, key, console)
    return console.export_text()


def _with(where: str, text: str) -> Result:
    makers: dict[str, Callable[[], Result]] = {
        "name": lambda: result("s", text),
        "message": lambda: result("s", failed={"q1-values": text}),
        "notes": lambda: result("s", notes=(text,)),
        "comment": lambda: apply([result("s")], [Adjustment(2, "s", "", None, None, text)])[0],
        "reason": lambda: apply([result("s")], [Adjustment(2, "s", "q1", 1.0, None, text)])[0],
    }
    return makers[where]()
