"""Your turn: a function whose body the reader writes, checked at once; a solution lies folded below.

    @your_turn(check, look="which ranks hold a part of the sum?")
    def whole(part):
        \"\"\"The sum of all ranks' `part`.\"\"\"
        ...

    @whole.solution                      # in a cell of its own, tagged `solution`, which the build seals: `folded`
    def whole(part):
        dist.all_reduce(part)
        return part

After the second cell `whole` is the reader's function if it passed its check, and else the solution. So the rest of the
page runs for everyone, and a headless run sees that the solution passes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from course_kit.notebook.self_check import Verdict

Check = Callable[[Callable[..., Any]], object]
"""Calls the function it is given and raises AssertionError, with what was expected and what came, if that is wrong."""


class Turn:
    """A function that the reader is asked to write.

    Attributes:
        function: as the reader left it.
        verdict: right, wrong or open (not written yet).
    """

    def __init__(self, function: Callable[..., Any], check: Check, look: str) -> None:
        functools.update_wrapper(self, function)
        self.function, self._check, self._look = function, check, look
        self.verdict = Verdict("open", "Not written yet. Replace the dots and run the cell again.")
        if not is_stub(function):
            self.verdict = self._judge(function)
        _show(self.verdict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The reader's function."""
        return self.function(*args, **kwargs)

    def solution(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a solution. Returns the reader's function if it passed, and else this one.

        Raises:
            ValueError: the solution does not pass the check itself.
        """
        if self.verdict.state == "right":
            _show(Verdict("right", "Yours is used below."))
            return self.function
        if (verdict := self._judge(function)).state != "right":
            raise ValueError(f"the solution of {function.__name__} does not pass its own check: {verdict.message}")
        _show(Verdict("open", "This one is used below, until yours passes its check."))
        return function

    def _judge(self, function: Callable[..., Any]) -> Verdict:
        try:
            self._check(function)
        except AssertionError as problem:
            return Verdict("wrong", f"Not yet: {problem}. {self._look}".strip())
        except Exception as problem:  # whatever the reader's code may raise
            said = f"it raises {type(problem).__name__}: {problem}".rstrip(".")  # many messages bring a full stop
            return Verdict("wrong", f"Not yet: {said}. {self._look}".strip())
        return Verdict("right", "Right.")


def your_turn(check: Check, look: str = "") -> Callable[[Callable[..., Any]], Turn]:
    """Decorates a function that the reader is to write, and checks it as soon as its cell runs.

    Args:
        check: called with the function; raises AssertionError with a sentence that says what was expected and what
            came, without a full stop. It never gives the answer away.
        look: where to look, shown with what is wrong.
    """
    return lambda function: Turn(function, check, look)


def is_stub(function: Callable[..., Any]) -> bool:
    """Whether nothing but a docstring and `...` (or `pass`) is in it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return all(
        isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in definition.body
    )


def _show(verdict: Verdict) -> None:
    """As a cell's output; outside of a notebook, as a line."""
    from IPython.core.getipython import get_ipython

    if get_ipython() is None:
        print(verdict)
    else:
        from IPython.display import display

        display(verdict)
