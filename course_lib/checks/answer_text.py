"""What an answer's own text uses, under whatever name it was imported: for `check.written_with`.

Lab 02 opens this module.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any


class AnswerText:
    """The text of one function or class, and what its names stand for.

    Attributes:
        imports: the modules that it imports, and `module.name` for each name that it takes from one.

    Raises:
        OSError, TypeError, SyntaxError: there is no text of it.
    """

    def __init__(self, fn: Callable) -> None:
        nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(fn)))))
        plain = [node for node in nodes if isinstance(node, ast.Import)]
        taken = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        self.imports = [alias.name for node in plain for alias in node.names]
        self.imports += [f"{node.module or ''}.{alias.name}" for node in taken for alias in node.names]
        self._names = list(filter(None, map(_dotted, nodes)))
        inner = inspect.unwrap(fn)
        self._scope = dict(getattr(inner, "__globals__", None) or vars(sys.modules[fn.__module__]))
        for node in (*plain, *taken):
            with contextlib.suppress(Exception):  # what cannot be imported cannot be used either
                exec(ast.unparse(node), self._scope)

    def mentions(self, name: str) -> bool:
        """Whether a dotted name, or a part of one, stands in the text, or another name for the same thing."""
        thing = self._meaning(name)
        return any(
            f".{name}." in f".{text}." or (thing is not None and self._meaning(text) is thing)
            for text in (*self._names, *self.imports)
        )

    def _meaning(self, name: str) -> Any:
        """What a dotted name stands for, in the notebook or by an import of the function's own; None: unknown."""
        head, *rest = name.split(".")
        thing = self._scope.get(head)
        for part in rest:
            thing = inspect.getattr_static(thing, part, None)  # runs nothing of the answer's
        return thing


def _dotted(node: ast.AST) -> str:
    """`a`, `a.b` or `getattr(a, "b")` as a dotted name; "" for anything else."""
    match node:
        case ast.Name() | ast.Attribute():
            return ast.unparse(node)
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
            return f"{ast.unparse(owner)}.{name}"
    return ""
