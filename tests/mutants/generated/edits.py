"""Mechanical edits of an answer cell: mutmut's operators, and five of our own that students' errors ask for."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation import mutators

_TAKEN = (  # the others crash at once (`x = None`) or change words
    mutators.operator_number,
    mutators.operator_name,
    mutators.operator_augmented_assignment,
    mutators.operator_remove_unary_ops,
    mutators.operator_arg_removal,
    mutators.operator_keywords,
    mutators.operator_swap_op,
    mutators.operator_if_exp,
)
_TWINS = {"min": "max", "any": "all", "floor": "ceil", "argmin": "argmax", "amin": "amax"}
_TWINS |= {other: name for name, other in _TWINS.items()}
_WORDS = m.Raise() | m.Annotation() | m.Assert() | m.Decorator() | m.Import() | m.ImportFrom() | m.FormattedString()
_STAY = m.SimpleStatementLine([m.Pass() | m.Return() | m.Import() | m.ImportFrom() | m.Expr(m.SimpleString())])


class Edit(NamedTuple):
    """One edit: its cell, what it is called in lists, and the whole cell with it."""

    grade_id: str
    name: str
    source: str


def edits(grade_id: str, source: str) -> list[Edit]:
    """Every edit of an answer's solution, in the order of its lines; none that Python reads as the same program."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    finder = _Finder(wrapper.module, source)
    wrapper.visit(finder)
    seen, taken = {_meaning(source)}, Counter[str]()
    made = []
    for start, end, other in finder.found:
        text = source[:start] + other + source[end:]
        meaning = _meaning(text)
        if meaning and meaning not in seen:
            seen.add(meaning)
            name = _name(source, text)
            taken[name] += 1
            made.append(Edit(grade_id, f"{name}  #{taken[name]}" if taken[name] > 1 else name, text))
    return made


class _Finder(cst.CSTVisitor):
    """Places between the marks, or in a signature, and what could stand there: begin, end, text."""

    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, module: cst.Module, source: str) -> None:
        super().__init__()
        self.module, self.lines = module, _solution_lines(source)
        self.begins = [0, *(match.end() for match in re.finditer("\n", source))]
        self.found: list[tuple[int, int, str]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note the edits of a node; nothing inside the words of an error, an annotation, a decorator."""
        inside = self._range(PositionProvider, node).start.line in self.lines
        if inside and isinstance(node, cst.SimpleStatementLine) and not m.matches(node, _STAY):
            self._note(node.body[0], PositionProvider, "pass", until=node.body[-1])
        if m.matches(node, _WORDS) or m.matches(node, m.Arg(keyword=m.Name("strict"))):
            return False
        edited = node if inside else node.default if isinstance(node, cst.Param) else None
        if edited is not None:
            for replaced, other in _replacements(edited):
                self._note(replaced, WhitespaceInclusivePositionProvider, self.module.code_for_node(other))
        if isinstance(node, cst.FunctionDef) and isinstance(node.body, cst.IndentedBlock):
            self._ignore_arguments(node, node.body)
        return True

    def _range(self, kind: Any, node: cst.CSTNode) -> CodeRange:
        return cast(CodeRange, self.get_metadata(kind, node))

    def _note(self, node: cst.CSTNode, kind: Any, text: str, until: cst.CSTNode | None = None) -> None:
        start, end = self._range(kind, node).start, self._range(kind, until or node).end
        self.found.append((self.begins[start.line - 1] + start.column, self.begins[end.line - 1] + end.column, text))

    def _ignore_arguments(self, function: cst.FunctionDef, body: cst.IndentedBlock) -> None:
        """The function takes each default for what it was given."""
        first = body.body[1 if function.get_docstring() is not None and len(body.body) > 1 else 0]
        start = self._range(PositionProvider, first).start
        place = self.begins[start.line - 1] + start.column
        for parameter in (*function.params.params, *function.params.kwonly_params):
            if parameter.default is not None:
                line = f"{parameter.name.value} = {self.module.code_for_node(parameter.default)}"
                self.found.append((place, place, f"{line}\n{' ' * start.column}"))


def _replacements(node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """(node, or a part of it; what mutmut would put there, or we)."""
    for kind, operator in mutators.mutation_operators:
        if operator in _TAKEN and isinstance(node, kind):
            for other in operator(node):
                if operator is not mutators.operator_arg_removal or _tells(node, other):
                    yield node, other
    if isinstance(node, cst.Integer) and node.evaluated_value > 0:
        yield node, node.with_changes(value=str(node.evaluated_value - 1))
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        yield node, node.expression
    if isinstance(node, cst.Call):
        name = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
        if isinstance(name, cst.Name) and name.value in _TWINS:
            yield name, name.with_changes(value=_TWINS[name.value])
    if isinstance(node, cst.If | cst.CompIf):
        yield from ((node.test, cst.Name(value)) for value in ("False", "True"))


def _tells(call: Any, other: Any) -> bool:
    """An argument less; not `strict=`, and no `None`, at which most calls crash."""
    strict = m.Arg(keyword=m.Name("strict"))
    kept = sum(m.matches(argument, strict) for argument in other.args)
    return len(other.args) < len(call.args) and kept == sum(m.matches(argument, strict) for argument in call.args)


def _solution_lines(source: str) -> set[int]:
    """The lines between the marks."""
    inside, lines = False, set()
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip().endswith(" SOLUTION"):
            inside = "BEGIN" in line
        elif inside:
            lines.add(number)
    return lines


def _meaning(source: str) -> str:
    """What Python reads, without what stands where; nothing of what is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "edit", "exec", optimize=0)
            return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError):
        return ""


def _name(before: str, after: str) -> str:
    """The lines that change, as in `self.tokens += n → self.tokens -= n`."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return " → ".join(
        " ⏎ ".join(line.split("  # ")[0].strip() for line in lines) or "(nothing)" for lines in (old, new)
    )
