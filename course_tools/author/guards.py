"""Things that a notebook must not contain, because the tools around it would let them pass in silence.

nbval takes a cell that was never run for a success, ignores a misspelt tag and compares no pictures; Jupyter goes on
when a widget's callback fails. Each function returns complaints in plain words; an empty list means a clean notebook.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from nbformat import NotebookNode

from course_tools import TAUGHT
from course_tools.author.marks import MAGIC
from course_tools.author.source import tags_of
from course_tools.kernel import widget_state

TAGS = {
    "raises-exception": "the cell fails on purpose",
    "solution": "a solution of a `your_turn`: sealed, and folded below its cell",
    "varies": "its output differs from run to run (seconds, say): it is not compared, and a rebuild keeps it",
}
LONGEST_CELL = 20  # lines; longer code belongs into the library, where it is tested
_BANNED_CALL = re.compile(
    r"\b(interact|interact_manual|interactive|interactive_output|clear_output|update_display)\b\s*\("
)
_BANNED_DECORATOR = re.compile(r"^\s*@(?:\w+\.)?interact", re.M)
_SEMICOLON = re.compile(r"^(?!\s*#).*;\s*(?:#.*)?$", re.M)
_GUESS = re.compile(r"^(\w+) = ask\(", re.M)
_NBVAL_COMMENT = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)", re.M)
_FOLDER = re.compile(
    r"(?<![\w.:/~-])(?:/(?:home|root|tmp|opt|Users|private|mnt|var/folders|usr/lib|usr/local)/|~/|file:///|[A-Z]:\\)"
    r"|(?:site|dist)-packages"
)


def source_complaints(notebook: NotebookNode) -> list[str]:
    """Complaints about the cells as they were written: tags, code that hides outputs or breaks their comparison."""
    complaints = _each(notebook, _about_code)
    complaints += [
        f"cell {number}: only JupyterLab collapses a solution in words; write it in <details>, {first_line(cell)}"
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "markdown" and "solution" in tags_of(cell)
    ]
    complaints += [
        f"cell {number}: a solution is one function below `@f.solution`, called f as well, {first_line(cell)}"
        for number, cell in _code(notebook)
        if "solution" in tags_of(cell) and not cell.source.startswith("%solution ")
    ]
    names = [(number, name) for number, cell in _code(notebook) for name in _GUESS.findall(cell.source)]
    first = {name: number for number, name in reversed(names)}
    return complaints + [
        f"cell {number}: {name} is the name of the box in cell {first[name]}, too; a reader who goes back and runs "
        f"the comparison there again would get this one's guess"
        for number, name in names
        if number != first[name]
    ]


def output_complaints(notebook: NotebookNode, root: Path | None = None) -> list[str]:
    """Complaints about stored outputs: cells that never ran, unwanted errors, folders of the author's machine.

    Args:
        notebook: an executed notebook.
        root: the checkout, for whose path the outputs are searched, too.
    """
    complaints = _each(notebook, lambda cell: _about_outputs(cell, root))
    counts = [cell.execution_count for _, cell in _code(notebook)]
    if None not in counts and counts != list(range(1, len(counts) + 1)):
        complaints.append("the cells were not run once each, from top to bottom, in a fresh kernel")
    state = json.dumps(widget_state(notebook), sort_keys=True, ensure_ascii=False)
    complaints += [f"the stored widgets contain {text}" for text in _folders(state, root)]
    return complaints + _stale_widgets(notebook)


def _stale_widgets(notebook: NotebookNode) -> list[str]:
    """Widgets of this course that were stored with another script or style sheet than they have now.

    Readers who run nothing see the stored one, and nbval does not compare it.
    """
    stale = set()
    for model in widget_state(notebook).values():
        module, _, name = model["state"].get("_anywidget_id", "").rpartition(".")
        if module.startswith(tuple(f"{package}." for package in TAUGHT)):
            now = getattr(importlib.import_module(module), name, None)
            if any(_now(now, part) != model["state"].get(part) for part in ("_esm", "_css")):
                stale.add(name)
    return [f"the stored {name} is not the one of today; run `course build`" for name in sorted(stale)]


def _now(widget: type | None, part: Literal["_esm", "_css"]) -> str:
    """The script or sheet that a widget's class has today."""
    whole = getattr(widget, "text", None)  # of an explorer: its class is not imported, since labs need none
    return str(whole({"_esm": "js", "_css": "css"}[part]) if callable(whole) else getattr(widget, part, ""))


def _code(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Code cells with their number, as nbval counts them: code cells only, from 0."""
    return enumerate(cell for cell in notebook.cells if cell.cell_type == "code")


def _each(notebook: NotebookNode, about: Callable[[NotebookNode], Iterator[str]]) -> list[str]:
    return [f"cell {number}: {text}, {first_line(cell)}" for number, cell in _code(notebook) for text in about(cell)]


def first_line(cell: NotebookNode) -> str:
    """The first line of a cell, by which to find it."""
    lines = [line for line in cell.source.strip().splitlines() if not line.startswith(MAGIC)]
    return f"in the cell {next(iter(lines), '')[:60]!r}"


def _about_code(cell: NotebookNode) -> Iterator[str]:
    source = cell.source
    if unknown := sorted(set(tags_of(cell)) - set(TAGS)):
        yield f"unknown tag {', '.join(map(repr, unknown))}; known are {', '.join(TAGS)}"
    if not source.strip():
        yield "it is empty"
    if len(source.splitlines()) - source.startswith(MAGIC) > LONGEST_CELL and not cell.metadata.get("nbgrader", {}).get(
        "solution"
    ):
        yield f"it has {len(source.splitlines())} lines; {LONGEST_CELL} are the most that a reader takes in at once"
    if _SEMICOLON.search(source):
        yield "a line ends in ';', which hides an output in Jupyter but not in nbval; write `_ = ...`"
    if match := _BANNED_CALL.search(source) or _BANNED_DECORATOR.search(source):
        yield f"{match[0].strip(' (')!r}: its output cannot be compared; use an Explorer, as in course_pages"
    if match := _NBVAL_COMMENT.search(source):
        yield f"the comment {match[1]} switches checks off; use the tag 'varies'"


def _about_outputs(cell: NotebookNode, root: Path | None) -> Iterator[str]:
    tags = tags_of(cell)
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if cell.execution_count is None:
        yield "it was never run; run `course build`"
    if errors and "raises-exception" not in tags:
        yield f"it stores an error ({errors[0].ename}: {errors[0].evalue}) without the tag 'raises-exception'"
    if "raises-exception" in tags and cell.execution_count is not None and not errors:
        yield "it is tagged 'raises-exception', but nothing was raised"
    if "varies" in tags and any("widget-view" in kind for output in cell.outputs for kind in output.get("data", {})):
        yield "it is tagged 'varies' and shows a widget, which a rebuild cannot keep; split the cell"
    for text in _folders("\n".join(_texts(cell)), root):
        yield f"its output contains {text}"


def _texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        yield from (output.get("text", ""), output.get("evalue", ""), *output.get("traceback", []))
        for kind, data in output.get("data", {}).items():
            if not kind.startswith("image/") or kind == "image/svg+xml":
                yield data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _folders(text: str, root: Path | None) -> list[str]:
    """The first folder of the author's machine in `text`, quoted with its surroundings."""
    match = _FOLDER.search(text) or (root and re.search(re.escape(str(root)), text))
    if not match:
        return []
    line = text[max(0, match.start() - 20) : match.end() + 40].replace("\n", " ")
    return [f"a folder of the machine that built it: …{line}…"]
