"""Known-wrong answers: what is wrong, and only that, as edits of the solution in `tests/mutants/labNN/qN.diff`.

    # The largest number of the block, where the rule wants the largest magnitude.
    largest_without_its_sign: q1-values q1-hidden
    - .abs().amax(dim=1)
    + .amax(dim=1)

What is wrong; a name, and the checks of its question that it must lose, exactly those (`q1-loss?`: it may, where a
race decides); the solution's text, and what stands there instead. The old text must be there once in the answers of
the question; two spaces begin a line that stays. `@@ WideSum.add` begins another edit, and looks inside this function
or class only. There, new text without an old one replaces the whole body. An empty line ends the fault.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

_HEAD = re.compile(r"(\w+): +(q\d[\w-]*\??(?: +q\d[\w-]*\??)*)")
_LINE = re.compile(r"[-+ ](?: (.*))?")


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new`; where `old` is empty, the body of `inside` does."""

    inside: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """One known-wrong answer.

    Attributes:
        file: where it stands; its folder is named after the lab and the file after the question.
        name: as in `naive_sum`.
        wrong: a sentence, what is wrong.
        loses: the checks of its question that must fail.
        may_lose: those that fail in some runs and not in others; no other check may fail.
        edits: what makes the solution wrong.
    """

    file: Path
    name: str
    wrong: str
    loses: frozenset[str]
    may_lose: frozenset[str]
    edits: tuple[Edit, ...]

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.name}, {self.name}"

    def answers(self, solution: Mapping[str, str]) -> dict[str, str]:
        """The answer cells that the edits change, by grade_id.

        Args:
            solution: grade_id → source of every answer cell.

        Raises:
            ValueError: an anchor is gone or not the only one, or nothing changes.
        """
        try:
            changed = reduce(self._edited, self.edits, dict(solution))
        except ValueError as problem:
            raise ValueError(f"{self}: {problem}") from None
        if changed == solution:
            raise ValueError(f"{self}: its edits change nothing")
        return {grade_id: source for grade_id, source in changed.items() if source != solution[grade_id]}

    def _edited(self, cells: dict[str, str], edit: Edit) -> dict[str, str]:
        own = {grade_id: text for grade_id, text in cells.items() if grade_id.split("-")[0] == self.file.stem}
        for searched in (own, cells) if edit.inside else (own,):
            if spans := [(key, *span) for key, text in searched.items() for span in _spans(text, edit.inside)]:
                break
        else:
            raise ValueError(f"no answer of {'the lab' if own else self.file.stem} has {edit.inside or 'a cell'}")
        if edit.old:
            spans = [(key, *place) for key, *span in spans for place in _places(cells[key], edit.old, *span)]
        if len(spans) != 1:
            where = f" in {edit.inside}" if edit.inside else ""
            raise ValueError(
                f"the anchor {edit.old!r} is gone{where}"
                if not spans
                else f"{len(spans)} places{where} fit {edit.old!r}; take more lines, or name the function: `@@ step`"
            )
        key, start, end = spans[0]
        text = cells[key]
        return cells | {key: text[:start] + _indented(edit.new, _indentation(text, start)) + text[end:]}


def read_faults(folder: Path) -> list[Fault]:
    """The known-wrong answers of a lab, question by question."""
    return [fault for file in sorted(folder.glob("q*.diff")) for fault in parse(file, file.read_text("utf-8"))]


def cover(faults: Sequence[Fault]) -> list[Fault]:
    """The fewest of a lab's known-wrong answers, taken greedily, that lose every check which any of them loses.

    Of equals the one that changes the least, then the first.
    """
    found: list[Fault] = []
    needed = {check for fault in faults for check in fault.loses}
    while needed:
        found.append(max(faults, key=lambda fault: (len(fault.loses & needed), -len(repr(fault.edits)))))
        needed -= found[-1].loses
    return found


def parse(file: Path, text: str) -> Iterator[Fault]:
    """The known-wrong answers of one question.

    Raises:
        ValueError: what is wrong with it, and where; or two have one name.
    """
    names = set[str]()
    for block in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        lines = block.splitlines()
        sentence = " ".join(line[1:].strip() for line in lines if line.startswith("#"))
        head, *rest = [line for line in lines if not line.startswith("#")] or [""]
        if not sentence or not (match := _HEAD.fullmatch(head.strip())):
            raise ValueError(f"{file}, {block[:60]!r}: begin with `# what is wrong` and `name: q1-values q1-hidden`")
        if match[1] in names:
            raise ValueError(f"{file}: two are called {match[1]}")
        names.add(match[1])
        if not (edits := tuple(_edits(rest, f"{file}, {match[1]}"))):
            raise ValueError(f"{file}, {match[1]}: it has no edit")
        perhaps = frozenset(re.findall(r"([\w-]+)\?", match[2]))
        yield Fault(file, match[1], sentence, frozenset(re.findall(r"[\w-]+", match[2])) - perhaps, perhaps, edits)


def _edits(lines: Iterable[str], name: str) -> Iterator[Edit]:
    hunks: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("@@"):
            hunks.append((line[2:].strip(" @"), []))
        elif _LINE.fullmatch(line):
            hunks = hunks or [("", [])]
            hunks[-1][1].append(line)
        else:
            raise ValueError(f"{name}: {line!r} begins with none of `- `, `+ `, two spaces, `@@`")
    for inside, hunk in hunks:
        old, new = ("\n".join(line[2:] for line in hunk if line[0] in kinds) for kinds in (" -", " +"))
        if old == new or not (old or inside) or old.startswith(" "):
            raise ValueError(f"{name}: {hunk} needs an old text, not indented in its first line, and another new one")
        yield Edit(inside, old, new)


def _spans(text: str, inside: str) -> Iterator[tuple[int, int]]:
    """Where a cell holds the function or class `inside`, as in `WideSum.add`: begin and end of its body."""
    if not inside:
        yield 0, len(text)
        return
    lines = [0, *(match.end() for match in re.finditer("\n|$", text))]
    for name, node in _definitions(ast.parse(text).body):
        if name == inside:
            told = ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
            first, last = node.body[told], node.body[-1]
            begin, end = lines[first.lineno - 1] + first.col_offset, lines[last.end_lineno or 0]
            yield begin, begin + len(text[begin:end].rstrip())


def _definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Functions and classes, and those inside them, by dotted name."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node.body, f"{prefix}{node.name}.")


def _places(text: str, old: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each place where `old` stands, its further lines indented as the first."""
    for match in re.finditer(re.escape(old.partition("\n")[0]), text[:end]):
        wanted = _indented(old, _indentation(text, match.start()))
        if match.start() >= start and text.startswith(wanted, match.start()):
            yield match.start(), match.start() + len(wanted)


def _indentation(text: str, place: int) -> str:
    line = text[text.rfind("\n", 0, place) + 1 :]
    return line[: len(line) - len(line.lstrip())]


def _indented(text: str, indentation: str) -> str:
    """All lines but the first, which stands where it is put."""
    return textwrap.indent(text, indentation).removeprefix(indentation)
