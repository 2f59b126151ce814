"""The names that a cell binds, and those that it reads, from its text alone."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

_HEAD = re.compile(r"^(?:async +def|def|class)\s+(\w+)", re.M)
_ASSIGNED = re.compile(r"^(\w+)[ \t]*(?::[^=\n]+)?=(?!=)", re.M)
_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.M)
_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


def parse(source: str) -> ast.Module | None:
    """The cell without its magics; None if that is not Python. The text may come from anyone."""
    try:
        with _no_warnings():
            return ast.parse(_MAGIC.sub(r"\1pass", source))
    except _NOT_PYTHON:
        return None


def defined(source: str) -> set[str]:
    """Functions and classes that the cell defines at its top level, also when it is not valid Python."""
    tree = parse(source)
    if tree is None:
        return set(_HEAD.findall(source))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def bound(source: str) -> set[str]:
    """Everything that the cell binds at its top level: definitions, imports, assignments."""
    tree = parse(source)
    if tree is None:
        return set(_HEAD.findall(source)) | set(_ASSIGNED.findall(source))
    found = defined(source)
    for node in _outside_functions(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found


def read(source: str) -> set[str]:
    """Names that the cell, or a function in it, takes from outside; the cell's own and builtins are left out."""
    return loaded(source) - bound(source) - set(dir(builtins))


def loaded(source: str) -> set[str]:
    """Names that the cell, or a function in it, uses as globals, wherever they were bound."""
    try:
        with _no_warnings():
            table = symtable.symtable(_MAGIC.sub(r"\1pass", source), "cell", "exec")
    except _NOT_PYTHON:
        return set()
    return set(_from_outside(table))


def definitions(source: str) -> str:
    """The imports, functions and classes of a cell: all that later cells may need when the cell is not run again."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    tree = parse(source)
    return "\n\n".join(ast.unparse(node) for node in tree.body if isinstance(node, kinds)) if tree else ""


def leads_to(sources: Iterable[str]) -> dict[str, set[str]]:
    """For each name that these cells bind, the names that it is made of.

    A function and a class are made of the names that they read; others of all names in their cell's other statements.
    """
    found: dict[str, set[str]] = {}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for tree in filter(None, map(parse, sources)):
        others = [node for node in tree.body if not isinstance(node, kinds)]
        parts = [node for node in tree.body if isinstance(node, kinds)] + [ast.Module(others, [])]
        for text in map(ast.unparse, parts):
            for name in bound(text):
                found.setdefault(name, set()).update(loaded(text))
    return found


def closed(names: Iterable[str], leads: Mapping[str, set[str]]) -> set[str]:
    """These names and all that they lead to, directly or through others."""
    found, waiting = set[str](), set(names)
    while waiting:
        found |= waiting
        waiting = {used for name in waiting for used in leads.get(name, ())} - found
    return found


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Silence Python's warnings of a student's backslashes, which are not for the instructor's screen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _from_outside(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that are global where they are read."""
    top = table.get_type() == "module"
    yield from (s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
    for inner in table.get_children():
        yield from _from_outside(inner)


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those inside functions and classes, which bind names of their own."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, inner)]
