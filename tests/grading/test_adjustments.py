"""Late days and manual points: each row counts once, a row that cannot be meant is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_tools.grading.report.adjustments import MANUAL, Adjustment, apply, read_adjustments
from course_tools.grading.report.results import Result

from .making import result

HEADER = "student,question,points,days_late,comment\n"


def rows_of(tmp_path: Path, text: str, encoding: str = "utf-8") -> list[Adjustment]:
    path = tmp_path / "adjust.csv"
    path.write_bytes(text.encode(encoding))
    return read_adjustments(path)


def adjusted(tmp_path: Path, text: str, *results: Result, late: float | None = None) -> list[Result]:
    return apply(results or [result()], rows_of(tmp_path, HEADER + text), late=late)


def test_points_are_added_to_a_question_or_to_the_whole(tmp_path: Path) -> None:
    before = result(failed={"q2-values": "no"})
    (after,) = adjusted(tmp_path, "ada,q2,+2.5,,good idea\nada,,-3,,by mail\nada,q2,1,,\n", before)
    assert sum(check.points for check in after.of("q2")) == 20 + 2.5 + 1
    assert sum(check.points for check in after.of(MANUAL)) == -3
    assert (after.points, after.out_of) == (80 + 2.5 - 3 + 1, 100)
    assert [check.message for check in after.checks[-3:]] == ["good idea", "by mail", ""]
    assert len({check.check for check in after.checks}) == len(after.checks)
    assert before.points == 80 and len(before.checks) == 6, "the result itself was changed"


def test_a_day_costs_a_share_of_what_the_lab_is_worth(tmp_path: Path) -> None:
    before = result(failed={"q1-values": "no"})
    (after,) = adjusted(tmp_path, "ada,,,2,\n", before, late=10)
    assert (after.late_days, after.penalty, after.points) == (2, 20, 60)
    (after,) = adjusted(tmp_path, "ada,,,1.1,\n", before, late=10)
    assert (after.late_days, after.penalty) == (2, 20), "a part of a day is a day"
    (after,) = adjusted(tmp_path, "ada,,,30,\n", before, late=10)
    assert (after.penalty, after.points) == (80, 0), "more was taken than there was"
    (after,) = adjusted(tmp_path, "ada,,,30,\n", before, late=0)
    assert (after.late_days, after.penalty) == (30, 0)


def test_manual_points_count_before_the_penalty(tmp_path: Path) -> None:
    before = result(failed=dict.fromkeys(["q1-values", "q1-hidden", "q2-values", "q2-hidden"], "no"))
    (after,) = adjusted(tmp_path, "ada,q1,5,,\nada,,,1,\n", before, late=20)
    assert after.points == 20 + 5 - 20
    (after,) = adjusted(tmp_path, "ada,q1,5,,\nada,,,1,\n", before, late=100)
    assert (after.penalty, after.points) == (25, 0)


@pytest.mark.parametrize("student", ["ada", "=1+1 Zo\u00eb", "'=1+1 Zo\u00eb", "=1+1 Zoe\u0308"])
def test_a_student_is_found_by_what_stands_in_grades_csv(student: str, tmp_path: Path) -> None:
    (after, _) = adjusted(tmp_path, f"{student},,-3,,\n", result("ada", "=1+1 Zo\u00eb"), result("bob"))
    assert after.points == 97


def test_comments_are_kept_all_of_them(tmp_path: Path) -> None:
    (after,) = adjusted(tmp_path, 'ada,,,,"First, this."\nada,,,,Then that.\n')
    assert after.comment == "First, this.\nThen that." and after.points == 100


def test_others_stay_as_they_are_and_names_serve_as_well(tmp_path: Path) -> None:
    eve = result("eve-17", "Eve Adams")
    ada, after = adjusted(tmp_path, "Eve Adams,q3,-1,,\n", result(), eve)
    assert ada == result() and after.points == 99


def test_the_same_rows_on_the_same_results_give_the_same(tmp_path: Path) -> None:
    text = "ada,q2,2,,x\nada,,,1,\n"
    assert adjusted(tmp_path, text, late=10) == adjusted(tmp_path, text, late=10)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("student;question;points;days_late;comment\r\nada;q2;+2,5;;a, b\r\n\r\n;;;;\r\n", "utf-8-sig"),
        ('Student,Points,Question,Comment\nada,2.5,q2,"a, b"\n', "utf-8"),
        ('student,question,points,days_late,comment\nada,q2,\'+2.5,,"a, b"', "utf-8"),
    ],
    ids=["a German Excel", "columns in another order", "no end of line, text in the cell"],
)
def test_files_as_spreadsheets_write_them(text: str, encoding: str, tmp_path: Path) -> None:
    assert rows_of(tmp_path, text, encoding) == [Adjustment(2, "ada", "q2", 2.5, None, "a, b")]


def test_a_minus_sign_from_a_word_processor_is_a_minus(tmp_path: Path) -> None:
    assert rows_of(tmp_path, HEADER + "ada,,\u22123,,\n")[0].points == -3


WRONG = {
    "ada,q2,two,,\n": "line 2: points is 'two', which is not a number",
    "ada,q2,nan,,\n": "line 2: points is 'nan'",
    "ada,q2,inf,,\n": "line 2: points is 'inf'",
    "ada,,,-1,\n": "line 2: days_late is -1",
    "ada,q1,,2,\n": "line 2: days_late belongs to the whole lab",
    ",q1,2,,\n": "line 2: no student",
    "ada,,,,\n": "line 2: nothing is said about ada",
    "ada,q1,2,,too, many\n": "line 2: 6 cells, but 5 columns",
    "adda,q1,2,,\n": "line 2: no student is called 'adda'; did you mean ada",
    "Twin,q1,2,,\n": "line 2: more than one student is called 'Twin'; did you mean t1 or t2",
    "ada,q9,2,,\n": "line 2: there is no question 'q9'; there are q1, q2, q3",
    "ada,,,2,\nada,,,3,\n": "line 3: a second line says how late ada is",
    'ada,q1,2,,"open\n': "line 2: unexpected end of data",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_row_that_cannot_be_meant_is_named_with_its_line(text: str, tmp_path: Path) -> None:
    people = [result(), result("t1", "Twin"), result("t2", "Twin")]
    with pytest.raises(ValueError) as problem:
        adjusted(tmp_path, text, *people, late=10)
    assert WRONG[text] in str(problem.value), problem.value


def test_all_bad_lines_are_named_at_once_and_nothing_is_applied(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as problem:
        adjusted(tmp_path, "ada,q1,x,,\nada,q2,1,,\nada,q3,y,,\n")
    assert "line 2" in str(problem.value) and "line 4" in str(problem.value) and "line 3" not in str(problem.value)
    with pytest.raises(ValueError, match=r"(?s)line 2.*line 4"):
        adjusted(tmp_path, "adda,q1,1,,\nada,q2,1,,\nbob,q3,1,,\n")


def test_days_late_need_a_rule(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 2: ada is late.*--late PERCENT"):
        adjusted(tmp_path, "ada,,,2,\n")
    assert adjusted(tmp_path, "ada,,,0,\n")[0].points == 100
    for late in (-1, 101, float("nan")):
        with pytest.raises(ValueError, match="--late"):
            adjusted(tmp_path, "", late=late)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "name each column once"), ("student,pionts\n", "no column 'pionts'"), ("student,points,points\n", "once")],
)
def test_the_header_must_be_right(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        rows_of(tmp_path, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_adjustments(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="CSV UTF-8"):
        rows_of(tmp_path, HEADER + "Zoë,q1,1,,\n", "latin-1")
