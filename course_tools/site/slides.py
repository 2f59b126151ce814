"""The first sitting of a lesson as slides: one question, figure, table or function each; prose becomes the notes."""

from __future__ import annotations

import ast
import html
import re
from dataclasses import dataclass, field
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_kit.notebook.your_turn import unseal
from course_tools.site.prose import as_html, chunks_of, points_of

_WIDGET = re.compile(r'class="course-widget" data-model="(\w+)"')
_CAPTION = re.compile(r'<p style="margin: 4px 0"><em>(.*?)</em>', re.DOTALL)
_IN_WORDS = re.compile(r"<details>.*</details>", re.DOTALL)
_QUESTION = re.compile(r"\*\*The question:?\*\*:? *(.+?)(?:\n\n|$)", re.DOTALL)
_MOST_LINES = 14
"""Lines of a cell's output on a slide; the notes have all of them."""


@dataclass
class Slide:
    """One slide.

    Attributes:
        kind: kind of content: title, section, points, code, ask, figure, explorer, table or turn.
        section: the heading of the lesson's section.
        body: the slide's HTML.
        notes: the speaker's notes, as pieces of HTML.
    """

    kind: str
    section: str
    body: str
    notes: list[str] = field(default_factory=list)


class Deck:
    """Reads the cells of a first sitting, in order, and writes down `slides`.

    Args:
        cells: from `notebook.page_of`, so that widgets and figures are HTML.
        questions: the guess that a widget asks for, by the widget's name.
    """

    def __init__(self, cells: list[dict[str, Any]], questions: dict[str, str]) -> None:
        self.slides: list[Slide] = []
        self._questions = questions
        self._section = ""
        self._waiting: list[str] = []  # notes of the slide that comes next
        self._asked: list[str] = []  # widgets whose guess no table has answered yet
        for cell in cells:
            (self._prose if cell["cell_type"] == "markdown" else self._code)(cell)
        self._note("".join(self._waiting))

    def _add(self, kind: str, body: str) -> None:
        self.slides.append(Slide(kind, self._section, body, self._waiting))
        self._waiting = []

    def _note(self, text: str) -> None:
        if text:
            self.slides[-1].notes.append(text)

    # --- prose -------------------------------------------------------------------------------------------------------

    def _prose(self, cell: dict[str, Any]) -> None:
        for heading, text in chunks_of("".join(cell["source"])):
            if not self.slides:
                self._title(heading, text)
                continue
            if heading:
                self._section = heading
            points = points_of(text, questions=bool(heading))
            if heading or points:
                title = f"<h2>{_inline(heading)}</h2>" if heading else ""
                listed = "".join(f'<div class="point">{as_html(point)}</div>' for point in points)
                self._add("section" if heading else "points", title + listed)
                self._note(as_html(text))
            elif text.lower().startswith("**your turn"):
                self._waiting.append(as_html(text))
            else:
                self._note(as_html(text))

    def _title(self, heading: str, text: str) -> None:
        question = _QUESTION.search(text)
        asked = f'<div class="question">{as_html(question[1][0].upper() + question[1][1:])}</div>' if question else ""
        self._section = heading
        self._add("title", f"<h1>{_inline(heading)}</h1>{asked}")
        self._note(as_html(text.replace(question[0], "", 1) if question else text))

    # --- code --------------------------------------------------------------------------------------------------------

    def _code(self, cell: dict[str, Any]) -> None:
        source = "".join(cell["source"])
        if "solution" in cell["metadata"].get("tags", []):
            self._note(f"<p>One solution:</p>{_coloured(unseal(source.split()[-1]))}")
            return
        failed = any(output["output_type"] == "error" for output in cell["outputs"])
        statements = _statements(source, with_tables=failed)
        said = "\n".join(_said(output) for output in cell["outputs"] if _said(output))
        shown = [text for kind, text in statements if kind == "code" or (kind == "call" and said)]
        if said or any(re.match(r"(?:@.*\n)*(?:def|class|with|for) ", text) for text in shown):
            lines = said.splitlines()
            told = "\n".join([*lines[:_MOST_LINES], *(["…"] if len(lines) > _MOST_LINES else [])])
            below = f'<pre class="said" tabindex="0">{html.escape(told)}</pre>' if said else ""
            self._add("code", _coloured(_apart(shown)) + below)
            self._note(f"<pre>{html.escape(said)}</pre>" if len(lines) > _MOST_LINES else "")
        elif shown:
            self._waiting.append(_coloured("\n".join(shown)))
        for kind, text in statements:
            if kind == "turn":
                self._add("turn", f"<h2>Your turn</h2>{_coloured(text)}")
        for output in cell["outputs"]:
            self._output("".join(output.get("data", {}).get("text/html", "")))

    def _output(self, shown: str) -> None:
        widget = _WIDGET.search(shown)
        if widget and widget[1] in self._questions:
            self._asked.append(widget[1])
            self._add("ask", shown)
        elif widget or "course-figure" in shown:
            self._add("explorer" if widget else "figure", shown)
        elif caption := _CAPTION.search(shown):
            self.slides[-1].body += f'<p class="caption">{caption[1]}</p>'
            self._note("".join(_IN_WORDS.findall(shown)))
        elif "<table" in shown:
            asked = "".join(f"<p>{html.escape(self._questions[each])}</p>" for each in self._asked)
            guessed = f'<p class="guessed" data-from="{" ".join(self._asked)}" aria-live="polite"></p>' if asked else ""
            self._add("table", f'<div class="asked">{asked}</div>{shown}{guessed}')
            self._asked = []


def _statements(source: str, *, with_tables: bool) -> list[tuple[str, str]]:
    """Kind and text of a cell's statements at its top level, without imports, guesses and checks of a turn.

    Kinds: "code", "call" (an expression, worth showing with its output), "turn" (a function to be written).
    """
    body = ast.parse(source).body
    turns = {id(node): _turn(node) for node in body if _turn(node)}
    checks = {call.args[0].id for call in turns.values() if call and call.args and isinstance(call.args[0], ast.Name)}
    found = []
    for node in body:
        text = _text(source, node)
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", "") in checks:
            continue
        if id(node) in turns:
            found.append(("turn", text.partition("\n@")[2] or text.partition("\n")[2]))
        elif isinstance(node, ast.Expr):
            if with_tables or not ("caption=" in text or text.startswith(("compare(", "show(")) or ".show(" in text):
                found.append(("call", text))
        elif not (isinstance(node, ast.Assign) and text.partition("= ")[2].startswith("ask(")):
            found.append(("code", text))
    return found


def _turn(node: ast.stmt) -> ast.Call | None:
    """The `your_turn(…)` above a function that the reader writes."""
    for each in getattr(node, "decorator_list", []):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "your_turn":
            return each
    return None


def _text(source: str, node: ast.stmt) -> str:
    """The lines of a statement, from its decorators to the comment at its end."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    if isinstance(node, ast.FunctionDef) and _turn(node):
        first = node.lineno - 1  # the line above `def` is taken for the decorator's end
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def _said(output: dict[str, Any]) -> str:
    """The text that a cell printed, returned, or failed with."""
    if output["output_type"] == "stream":
        return "".join(output["text"]).rstrip()
    if output["output_type"] == "error":
        return "\n".join(output["traceback"]).rstrip()
    data = output.get("data", {})
    return "".join(data.get("text/plain", "")).rstrip() if set(data) == {"text/plain"} else ""


def _apart(statements: list[str]) -> str:
    """Statements below each other; one of several lines has air around it."""
    text = "\n".join(f"\n{each}\n" if "\n" in each else each for each in statements)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def _coloured(source: str) -> str:
    return highlight(source, PythonLexer(), HtmlFormatter(cssclass="code", wrapcode=True))


def _inline(text: str) -> str:
    """A heading's Markdown without the paragraph around it."""
    return as_html(text).strip().removeprefix("<p>").removesuffix("</p>")
