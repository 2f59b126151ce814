"""The feedback that a student reads about a graded lab, in Markdown and in HTML.

It has points for each question, and the message of each public check that failed; of hidden tests only the points:
never their text, nor anything that a student's code printed. All that comes from students is escaped.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup
from nbformat import NotebookNode

from course_tools.author.check_cells import topic_of
from course_tools.author.lab_source import grade_id_of, is_check, is_hidden, questions, secret_blocks
from course_tools.grading.cells import first_line
from course_tools.grading.report import words
from course_tools.grading.report.adjustments import MANUAL
from course_tools.grading.report.results import PASSED, UNREADABLE, WRONG_LAB, CheckResult, Result

_WITHHELD = "(not shown: the message holds text that belongs to the grader)"


@dataclass(frozen=True)
class LostCheck:
    """A public check that failed.

    Attributes:
        name, begins: as in `q1-values`, and the first line of its cell, by which a student finds it.
        outcome, message: the check's outcome, and its message.
        lost: the points that the check held back.
    """

    name: str
    begins: str
    outcome: str
    message: str
    lost: float


@dataclass(frozen=True)
class QuestionFeedback:
    """One question as the student sees it.

    Attributes:
        name, title: `q1`, and the heading in the lab.
        points, out_of: points of all the question's checks, hidden ones and manual points included.
        failed: public checks that failed.
        hidden_points, hidden_out_of: points of the tests that run only at grading.
        topics: topics of those that failed: the words that stand in their cells in the students' notebook.
        by_hand: points that the instructor added or took, with the reason.
    """

    name: str
    title: str
    points: float
    out_of: float
    failed: tuple[LostCheck, ...]
    hidden_points: float
    hidden_out_of: float
    topics: tuple[str, ...]
    by_hand: tuple[tuple[float, str], ...]

    @property
    def lost_something(self) -> bool:
        """Whether a public check failed, or points of hidden tests are lost."""
        return bool(self.failed) or self.hidden_points < self.hidden_out_of

    @property
    def share(self) -> float:
        """Points as a share of those that the question has, between 0 and 1."""
        return min(1.0, max(0.0, self.points / self.out_of)) if self.out_of else 0.0


def feedback_questions(result: Result, key: NotebookNode) -> list[QuestionFeedback]:
    """The questions of a result, in the lab's order."""
    titles = {question.name: question.title for question in questions(key)} | {MANUAL: "The lab as a whole"}
    secrets = [line for block in secret_blocks(key, ["HIDDEN TESTS"]) for line in block]
    topics = {grade_id_of(cell): topic_of(cell) for cell in key.cells if is_hidden(cell)}
    begins = {grade_id_of(cell): first_line(cell) for cell in key.cells if is_check(cell)}
    words_of = (secrets, topics, begins)
    return [_question(name, titles.get(name, name), result.of(name), *words_of) for name in result.questions]


def as_markdown(result: Result, key: NotebookNode) -> str:
    """The feedback as Markdown; messages stand in indented blocks, out of which no text can break."""
    return _render("feedback.md.jinja", result, key)


def as_html(result: Result, key: NotebookNode) -> str:
    """The feedback as one HTML page without scripts, in light and dark."""
    return _render("feedback.html.jinja", result, key)


def shown_notes(result: Result) -> list[str]:
    """Notes of repairs and oddities. Where the grader itself failed, its words are for the instructor alone."""
    return [] if not result.decided else [words.one_line(note) for note in result.notes]


def _question(
    name: str,
    title: str,
    checks: Sequence[CheckResult],
    secrets: Sequence[str],
    topics: Mapping[str, str],
    begins: Mapping[str, str],
) -> QuestionFeedback:
    given = [check for check in checks if not _by_hand(check)]
    hidden = [check for check in given if check.hidden]
    lost = [check for check in hidden if check.outcome != PASSED]
    failed = [check for check in given if not check.hidden and check.outcome != PASSED]
    return QuestionFeedback(
        name=name,
        title=title,
        points=sum(check.points for check in checks),
        out_of=sum(check.out_of for check in checks),
        failed=tuple(_lost(check, secrets, begins.get(check.check, "")) for check in failed),
        hidden_points=sum(check.points for check in hidden),
        hidden_out_of=sum(check.out_of for check in hidden),
        topics=tuple(filter(None, (check.topic or topics.get(check.check) for check in lost))),
        by_hand=tuple((check.points, words.one_line(check.message)) for check in checks if _by_hand(check)),
    )


def _lost(check: CheckResult, secrets: Sequence[str], begins: str) -> LostCheck:
    message = words.plain(check.message).strip()
    if any(secret in message for secret in secrets):  # an answer may raise text that it has read; never solutions
        message = _WITHHELD
    outcome = words.OUTCOME.get(check.outcome, check.outcome)
    return LostCheck(check.check, begins, outcome, message, check.out_of - check.points)


def _by_hand(check: CheckResult) -> bool:
    return check.check.startswith(f"{check.question}-by-hand-")


def _render(template: str, result: Result, key: NotebookNode) -> str:
    found = feedback_questions(result, key)
    opened = result.status not in (UNREADABLE, WRONG_LAB)
    return (
        _environment()
        .get_template(template)
        .render(
            result=result,
            title=words.lab_title(key),
            questions=found,
            sections=[question for question in found if question.by_hand or (opened and question.lost_something)],
            graded=result.decided,
            status=words.status_words(result.status),
            notes=shown_notes(result),
            share=min(1.0, result.points / result.out_of) if result.out_of else 0.0,
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=lambda name: bool(name and name.endswith(".html.jinja")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": words.number,
        "signed": lambda value: f"{'+' if value >= 0 else '−'}{words.number(abs(value))}",
        "line": words.one_line,
        "markdown": words.markdown,
        "block": lambda text: textwrap.indent(text, "    ", lambda line: True),
        "paragraphs": lambda text: [words.one_line(part) for part in text.splitlines() if part.strip()],
        "percent": lambda share: Markup(f"{100 * share:.1f}%"),
    }
    return environment
