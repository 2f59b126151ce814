"""Answers that readers may give to a turn, as text: what must pass its check, and what must not.

From `tests/pages/lesson00/answers.txt`:

    import torch.distributed as dist

    == check_average(model)

    right gathered
        for parameter in model.parameters():
            ...

    wrong the_weights: in weight and bias
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)

    wrong a_quarter: 2 ranks bring
    - parameter.grad /= dist.get_world_size()
    + parameter.grad /= 4

A check, and the parameters of its answers. Then answers: a kind, a name, for a wrong one the words that its verdict
must hold, and a body; `nightly` before the kind where another answer of the default is refused in the same way.
Instead of a body, an edit of the page's own solution, or with `wrong the_sum of gathered: words` of another answer:
whole lines, the first not indented; two spaces begin a line that stays, `@@` begins another place. What has no body is
the answer of that name above. All else is Python, which the answers below see: imports, helpers, decorators, comments.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_kit.cells import remember

READS = ("tests/pages/lesson*/answers.txt", "course_pages/lesson*/turns.py", "lessons/src/*.py")
ROOT = Path(__file__).parents[2]
_CHECK = re.compile(r"== (check_\w+)(\(.*\))")
_ANSWER = re.compile(r"(nightly )?(?:right (\w+)|wrong (\w+))(?: of (\w+))?(?:: (.+))?")
_TURN = re.compile(r"your_turn\(turns\.(\w+)")


@dataclass
class Answer:
    """One answer to a turn.

    Attributes:
        words: what the verdict must hold; none where the answer is right.
        line: of the file, from 1.
        base: the answer that `edit` changes; else the page's own solution.
    """

    check: str
    name: str
    words: str
    nightly: bool
    line: int
    base: str
    edit: list[str] = field(default_factory=list)
    function: Any = print


def answers_to(lesson: str) -> list[Answer]:
    """Answers to a lesson's turns, as they stand in `tests/pages/lessonNN/answers.txt`."""
    (page,) = ROOT.glob(f"lessons/src/{lesson[-2:]}_*.py")
    return read(ROOT / "tests/pages" / lesson / "answers.txt", solutions(page.read_text("utf-8")))


def solutions(page: str) -> dict[str, str]:
    """The source of every solution of a page, by its check."""
    found, checks = {}, {}
    for node in _functions(re.sub(r"^[%!].*", "", page, flags=re.M)):
        for mark in map(ast.unparse, node.decorator_list):
            if match := _TURN.match(mark):
                checks[node.name] = match[1]
            elif mark == f"{node.name}.solution":
                found[checks[node.name]] = _source(page, node, mark)
    return found


def read(file: Path, of_page: dict[str, str]) -> list[Answer]:
    """Read a file of answers.

    Args:
        of_page: check → source of the page's own solution.

    Raises:
        ValueError: what is wrong, with file and line.
        SyntaxError: the same, of Python.
    """
    answers, lines = _parsed(file)
    code, names = "\n".join(lines), {"__name__": f"answers of {file.parent.name}"}
    _run(code, str(file), names)
    sources = {node.name: _source(code, node) for node in _functions(code)}
    for answer in answers:
        if answer.edit:
            try:
                base = sources[answer.base] if answer.base else of_page[answer.check]
                changed = edited(base, answer.edit)
            except (ValueError, KeyError) as problem:
                raise ValueError(
                    f"{file}:{answer.line}: {answer.name} edits what is not there once: {problem}"
                ) from None
            sources[answer.name] = re.sub(r"^def \w+", f"def {answer.name}", changed, flags=re.M)
            _run(sources[answer.name], f"{file}:{answer.line}", names)
        answer.function = names[answer.name]
    return answers


def edited(source: str, edit: list[str]) -> str:
    """A function in which whole lines are others.

    Raises:
        ValueError: how often the old lines are there, if not once.
    """
    lines = source.split("\n")
    for hunk in "\n".join(edit).split("\n@@\n"):
        old, new = ([line[2:] for line in hunk.split("\n") if line[0] in kinds] for kinds in (" -", " +"))
        margins = [line[: len(line) - len(line.lstrip())] for line in lines]
        fit = [at for at, by in enumerate(margins) if lines[at : at + len(old)] == [by + line for line in old]]
        if len(fit) != 1:
            raise ValueError(f"{len(fit)} places fit {chr(10).join(old)!r}")
        lines[fit[0] : fit[0] + len(old)] = [margins[fit[0]] + line for line in new]
    return "\n".join(lines)


def _parsed(file: Path) -> tuple[list[Answer], list[str]]:
    """Answers, not yet compiled, and the lines of the file as Python; each keeps its number."""
    check = parameters = ""
    answers, code, editing = list[Answer](), file.read_text("utf-8").split("\n"), False
    for at, line in enumerate(code[:-1]):
        where = f"{file}:{at + 1}: {line!r}"
        if match := _CHECK.fullmatch(line):
            (check, parameters), code[at] = match.groups(), ""
        elif check and (match := _ANSWER.fullmatch(line)) and bool(match[3]) == bool(match[5]):
            nightly, right, wrong, base, words = match.groups("")
            again, editing = not code[at + 1].strip(), re.match(r"[-+]|  \S", code[at + 1]) is not None
            if again != any(answer.name == right + wrong for answer in answers):
                raise ValueError(f"{where}: {'no body, and no such answer above' if again else 'two are called so'}")
            answers.append(Answer(check, right + wrong, words, bool(nightly), at + 1, base))
            code[at] = "" if again or editing else f"def {right}{wrong}{parameters}:"
        elif re.match(r"==|(nightly )?(right|wrong) ", line):
            raise ValueError(f"{where}: is it `== check_sum(x)`, then `right name` or `wrong name: words`?")
        elif editing := editing and bool(line):
            answers[-1].edit.append(line)
            code[at] = ""
    return answers, code


def _functions(code: str) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]


def _source(text: str, node: ast.FunctionDef, without: str = "") -> str:
    """The text of a function, with its decorators but one."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    return "".join(f"@{mark}\n" for mark in marks if mark != without) + str(ast.get_source_segment(text, node))


def _run(source: str, filename: str, names: dict[str, Any]) -> None:
    """Run code whose text `inspect.getsource` finds."""
    remember(filename, source)
    exec(compile(source, filename, "exec", dont_inherit=True), names)
