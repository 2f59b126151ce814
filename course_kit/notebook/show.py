"""Print library code in a lesson: the source that you read is the source that runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


class Source:
    """Python source that renders highlighted in a notebook, and as plain text elsewhere."""

    def __init__(self, origin: str, code: str) -> None:
        self.origin, self.code = origin, code

    def __repr__(self) -> str:
        return f"# {self.origin}\n{self.code}"

    def _repr_markdown_(self) -> str:
        return f"`{self.origin}`\n\n```python\n{self.code}\n```"


def show(thing: Callable[..., object] | type | ModuleType, *, docstring: bool = True) -> Source:
    """The source of a library function, class or module, with the file that holds it.

    Args:
        thing: a Python function, class or module of `course_lib` (or of any other package).
        docstring: False leaves out the thing's own docstring (where the text above the cell has said it all).

    Raises:
        ValueError: there is no Python source to show (a builtin, a C function, an instance).
    """
    if not (inspect.isroutine(thing) or inspect.isclass(thing) or inspect.ismodule(thing)):
        raise ValueError(f"show() takes a function, a class or a module, not a {type(thing).__name__}")
    thing = inspect.unwrap(thing)  # type: ignore[arg-type]  # a decorated function: show its author's text
    try:
        code = textwrap.dedent(inspect.getsource(thing)).rstrip()
        path = Path(inspect.getsourcefile(thing) or "")
    except (OSError, TypeError):
        raise ValueError(f"{thing!r} has no Python source to show (is it a builtin or written in C?)") from None
    if not docstring and thing.__doc__:
        code = _without_docstring(code)
    package = inspect.getmodule(thing).__name__.split(".")[0]  # type: ignore[union-attr]
    parts = path.parts[path.parts.index(package) :] if package in path.parts else (path.name,)
    return Source("/".join(parts), code)


def _without_docstring(code: str) -> str:
    """`code` (one def or class) without its first string statement."""
    body = ast.parse(code).body[0].body  # type: ignore[attr-defined]
    lines = code.splitlines()
    first = body[0]
    end = first.end_lineno
    if len(body) > 1 and not lines[end].strip():
        end += 1  # the blank line that set the docstring apart
    return "\n".join(lines[: first.lineno - 1] + lines[end:])
