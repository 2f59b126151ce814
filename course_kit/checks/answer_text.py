"""What an answer's own text uses, under whatever name it was imported: for `check.written_with`."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Any

from course_kit.checks.failed import describe, fail


def written_with(
    fn: Callable, *, allowed: Collection[str] | None = None, forbidden: Sequence[str] = (), look: str = ""
) -> None:
    """A function's own text imports nothing but `allowed` and mentions none of `forbidden`, also by another name.

    It reads the text of this one function. It does not see what the functions do that it calls, names that are put
    together at run time (`vars(dist)["all_" + "reduce"]`), or a copy of the forbidden text. It reminds an honest
    student of the contract and stops nobody else: what counts must be measured.

    Args:
        fn: a function or class of a cell.
        allowed: names of packages, or None for all.
        forbidden: dotted names or parts of them, such as "checkpoint" or "dist.all_reduce".
        look: where to look when it does not hold.
    """
    try:
        text = AnswerText(fn)
    except (OSError, TypeError, SyntaxError):
        wanted, magic = "a function or class written in the cell above", "a magic such as %%time above it: take it away"
        return fail(f"the text of {describe(fn)} cannot be read", expected=wanted, look=look or magic)
    for name in text.imports:
        if allowed is not None and name.split(".")[0] not in allowed:
            fail(f"what {fn.__name__} imports", expected=f"only {', '.join(sorted(allowed))}", came=name, look=look)
    for name in forbidden:
        if text.mentions(name):
            fail(f"what {fn.__name__} may use", expected=f"no {name}: that is what you build here", look=look)
    print(f"✓ {fn.__name__} uses what it may")
    return None


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
