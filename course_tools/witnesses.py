"""Origins of the two numbers of every table in a lesson or lab, and the tables that have no witness.

A table convinces if its two numbers cannot know of each other. This module reads the source and follows names to the
expressions that they were bound to at the top level: a help for authors, not a proof.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

DRESSING = {
    *("Bytes", "Count", "Flops", "Ratio", "Seconds", "quantity", "abs", "dict", "enumerate", "float", "int", "len"),
    *("list", "math.prod", "max", "min", "next", "range", "round", "set", "sorted", "sum", "tuple", "zip"),
}
"""Calls that make nothing new of their arguments. The result of any other call is an origin."""
PUBLISHED = ("paper", "published")
"""Words in the heading of a column with published numbers, which are typed in."""
MEASURED = re.compile(r"#\s*measured: \S+")
"""A comment in or just above a table of published numbers: the measurement's author and machine. A paper's evaluation
of the very formula that stands beside it is no witness, and belongs into a print."""


@dataclass(frozen=True)
class Row:
    """A row of a `compare`, as the source has it.

    Attributes:
        line: line of the source at which the call begins.
        name: the row's key as it is written, or "the table" where rows are not written out.
        predicted: the calls, attributes and unknown names that the left number is made from; empty if typed in.
        measured: the same for the right number.
        problem: the reason, in words, for which the right one is no witness of the left one; "" if it is one.
    """

    line: int
    name: str
    predicted: tuple[str, ...]
    measured: tuple[str, ...]
    problem: str


def rows(source: str) -> list[Row]:
    """Every row of every table, in the order of the source."""
    tree, found, lines = ast.parse(source), [], source.splitlines()
    names = _Names(tree)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "compare":
            given = {keyword.arg: names.expanded(keyword.value, call.lineno + 1) for keyword in call.keywords}
            headings = ast.unparse(given["columns"]) if "columns" in given else ""
            for row, predicted, measured in _rows(given["predicted"], given["measured"]):
                left, right = names.bare(predicted), names.bare(measured)
                origins = tuple(sorted(names.origins(left))), tuple(sorted(names.origins(right)))
                problem = _problem(left, right, names, headings)
                text = "\n".join(lines[max(0, call.lineno - 2) : call.end_lineno])
                if not problem and not origins[1] and not MEASURED.search(text):
                    problem = "the published number names no measurement (`# measured: who, on what`)"
                found.append(Row(call.lineno, row, *origins, problem))
    return sorted(found, key=lambda row: row.line)


def suspects(source: str) -> list[str]:
    """A line for every row of a table in which both numbers, "measured" and predicted, have the same origin."""
    return [f"line {row.line}, {row.name}: {row.problem}" for row in rows(source) if row.problem]


def tables(notebook: NotebookNode) -> dict[int, list[list[Row]]]:
    """The tables of every code cell that has any, each as its rows: index of the cell in the notebook → its tables."""
    begins, source = [0], ""
    for cell in notebook.cells:
        source += _python(cell) + "\n"
        begins.append(source.count("\n"))
    found: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows(source):
        found[bisect.bisect_left(begins, row.line) - 1][row.line].append(row)
    return {cell: list(by_line.values()) for cell, by_line in found.items()}


def _python(cell: NotebookNode) -> str:
    """A code cell's text; "" for any other cell, or for one that begins with a magic."""
    if cell.cell_type != "code":
        return ""
    try:
        ast.parse(cell.source)
    except SyntaxError:
        return ""
    return cell.source


def _problem(predicted: ast.expr, measured: ast.expr, names: _Names, headings: str) -> str:
    """The fault of a row, in words; "" if there is none."""
    if ast.dump(predicted) == ast.dump(measured):
        return "both sides are the same expression"
    functions = [ast.unparse(side.func) for side in (predicted, measured) if isinstance(side, ast.Call)]
    if len(functions) == 2 and functions[0] == functions[1] and not headings:
        return f"both sides come from {functions[0]}"
    left, right = names.origins(predicted), names.origins(measured)
    if right and left == right:
        return f"both sides come from {' and '.join(sorted(right))}"
    if right and all(origin.startswith("predict.") for origin in right):
        return "what is called measured is a formula"
    if shared := sorted(_formulas(left) & _formulas(right)):
        return f"both sides rest on {' and '.join(shared)}"
    if not right and not any(word in headings for word in PUBLISHED):
        return "what is called measured is typed in, and no heading says who published it"
    return ""


def _formulas(origins: set[str]) -> set[str]:
    """The functions of `predict` among the origins."""
    return {origin.split("(")[0] for origin in origins if origin.startswith("predict.")}


def _rows(predicted: ast.expr, measured: ast.expr) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """The rows of a table, where both sides are written out as mappings; else the table as one row."""
    if isinstance(predicted, ast.Dict) and isinstance(measured, ast.Dict):
        left, right = (
            {ast.unparse(key): value for key, value in zip(side.keys, side.values, strict=True) if key}
            for side in (predicted, measured)
        )
        if left.keys() == right.keys():
            yield from ((key, left[key], right[key]) for key in left)
            return
    yield "the table", predicted, measured


class _Names:
    """The expressions that the names of a file stand for."""

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, list[tuple[int, ast.expr]]] = defaultdict(list)
        self._short: set[str] = set()
        self._read(tree.body)

    def _read(self, statements: list[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.FunctionDef):
                body = [each for each in node.body if not isinstance(each, ast.Expr)]
                self._short |= {node.name} if len(body) == 1 and isinstance(body[0], ast.Return) else set()
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value, node.lineno)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign) and node.value is not None:
                self._bind(node.target, node.value, node.lineno)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                function = node.value.func
                if isinstance(function, ast.Attribute) and function.attr in ("append", "add"):
                    self._bind(function.value, node.value.args[0], node.lineno)
            elif isinstance(node, ast.For):
                self._bind(node.target, node.iter, node.lineno)
            elif isinstance(node, ast.With):
                for item in node.items:
                    self._bind(item.optional_vars, item.context_expr, node.lineno)
            for inner in ("body", "orelse"):
                if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                    self._read(getattr(node, inner, []))

    def _bind(self, target: ast.expr | None, value: ast.expr, line: int) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, ast.GeneratorExp) and isinstance(value.generators[0].iter, ast.Tuple):
                # `a, b = (f(each) for each in (x, y))`: a is made by f from x, b by f from y
                each = [ast.Tuple([value.elt, one], ast.Load()) for one in value.generators[0].iter.elts]
                value = ast.Tuple(each, ast.Load())  # type: ignore[arg-type]
            written_out = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for place, one in enumerate(target.elts):
                part = ast.Subscript(value, ast.Constant(place), ast.Load())
                self._bind(one, value.elts[place] if written_out else part, line)  # type: ignore[attr-defined]
        elif isinstance(target, ast.Subscript | ast.Starred):  # a mapping that is filled entry by entry
            self._bind(target.value, value, line)
        elif isinstance(target, ast.Name):
            self._bound[target.id].append((line, value))

    def expanded(self, node: ast.expr, before: int) -> ast.expr:
        """The expression with every name replaced by the expression that was last bound to it, before that line."""
        names = self

        class Expand(ast.NodeTransformer):
            def visit_Name(self, name: ast.Name) -> ast.expr:
                earlier = [(line, value) for line, value in names._bound[name.id] if line < before]
                return names.expanded(earlier[-1][1], earlier[-1][0]) if earlier else name

        return Expand().visit(ast.parse(ast.unparse(node), mode="eval").body)

    def bare(self, node: ast.expr) -> ast.expr:
        """The expression without the dressing around it: `Bytes(round(x))` is x, and so is f(x) if f only returns x."""
        while isinstance(node, ast.Call) and len(node.args) == 1 and self._dresses(node) and not _is_zipped(node):
            node = node.args[0]
        return node

    def _dresses(self, call: ast.Call) -> bool:
        return ast.unparse(call.func) in DRESSING | self._short

    def origins(self, node: ast.AST) -> set[str]:
        """The calls, attributes and unknown names that a value is made from."""
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) == "dict.fromkeys":
                return self.origins(node.args[1])
            if _is_zipped(node):
                return self.origins(node.args[0].args[1])  # type: ignore[attr-defined]
            if isinstance(node.func, ast.Attribute) and _is_zipped(node.func.value):  # dict(zip(…)).items()
                return self.origins(node.func.value)
            if self._dresses(node):
                return set().union(*map(self.origins, [*node.args, *(each.value for each in node.keywords)]))
            return {ast.unparse(node)}
        if isinstance(node, ast.Attribute | ast.Name):
            return {ast.unparse(node)} if _is_dotted(node) else self.origins(node.value)  # type: ignore[union-attr]
        if isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp | ast.SetComp):
            return self._of_comprehension(node)
        if isinstance(node, ast.Dict):
            return set().union(*map(self.origins, node.values))
        return set().union(*(self.origins(child) for child in ast.iter_child_nodes(node)))

    def _of_comprehension(self, node: ast.DictComp | ast.ListComp | ast.GeneratorExp | ast.SetComp) -> set[str]:
        """Origins of the element; where the loop's variable is among them, those of the iterable in its place."""
        found = self.origins(node.value if isinstance(node, ast.DictComp) else node.elt)
        found |= set().union(*(self.origins(test) for loop in node.generators for test in loop.ifs))
        for loop in node.generators:
            loops = {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
            if not found or found & loops:
                found = found - loops | self.origins(loop.iter)
        return found


def _is_zipped(node: ast.expr) -> bool:
    """Whether this is `dict(zip(keys, values))`; keys say nothing about where values come from."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "dict" and ast.unparse(node).startswith("dict(zip(")


def _is_dotted(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))
