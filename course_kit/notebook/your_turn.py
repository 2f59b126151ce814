"""Your turn: a function whose body the reader writes, checked at once; a solution lies folded below.

    @your_turn(check, look="which ranks hold a part of the sum?")
    def whole(part):
        \"\"\"The sum of all ranks' `part`.\"\"\"
        ...

    @whole.solution                      # in a cell of its own, tagged `solution`
    def whole(part):
        dist.all_reduce(part)
        return part

After the second cell `whole` is the reader's function if it passed its check, and else the solution: the rest of the
page runs for everyone. The built page holds the solution as `%solution whole …`, a sealed text (base64), whose output
unfolds on a click, also where an editor cannot hide a cell's text.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import html
import inspect
import math
import textwrap
import traceback
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, ClassVar

from IPython.display import display

from course_kit.cells import add_magic, remember
from course_kit.units import Quantity

Function = Callable[..., Any]
"""A function that a reader writes."""
Check = Callable[[Function], object]
"""A function that calls the reader's, and raises AssertionError (expected, came) if that one is wrong."""


class Turn:
    """A function that the reader is asked to write.

    Attributes:
        function: the reader's version.
        verdict: right, wrong or open (not written yet).
    """

    def __init__(self, function: Callable[..., Any], check: Check, look: str) -> None:
        functools.update_wrapper(self, function)
        self.function, self._check, self._look = function, check, look
        self.verdict = Verdict("open", "Not written yet. Replace the dots and run the cell again.")
        if not is_stub(function):
            self.verdict = self._judge(function)
        display(self.verdict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reader's function."""
        return self.function(*args, **kwargs)

    def solution(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a solution; return the reader's function if that passed, and else the solution.

        Raises:
            ValueError: the solution itself does not pass the check.
        """
        if self.verdict.state == "right":
            display(Verdict("right", "Yours counts from here on."))
            return self.function
        if (verdict := self._judge(function)).state != "right":
            raise ValueError(f"the solution of {function.__name__} does not pass its own check: {verdict.message}")
        display(Verdict("open", "This one stands in until yours passes its check."))
        return function

    def _judge(self, function: Callable[..., Any]) -> Verdict:
        try:
            with _named(function):
                self._check(function)
        except AssertionError as problem:
            return self._wrong(function, str(problem), problem)
        except Exception as problem:  # whatever the reader's code may raise
            if getattr(problem, "ran_out_of_time", False):
                again = "Run the cell again; if it says so twice, look for a loop without an end."
                return Verdict("open", f"Could not be checked: {getattr(problem, 'verdict', problem)}. {again}")
            said = getattr(problem, "verdict", None) or f"it raises {type(problem).__name__}: {problem}"
            return self._wrong(function, said.rstrip("."), problem)  # many bring a full stop
        return Verdict("right", "Right.")

    def _wrong(self, function: Callable[..., Any], said: str, problem: Exception) -> Verdict:
        lost = f" {function.__name__} has no return, and so it gives None." if forgets_return(function, problem) else ""
        return Verdict("wrong", f"Not yet: {said}.{lost} {self._look}".strip())


@contextlib.contextmanager
def _named(function: Callable[..., Any]) -> Iterator[None]:
    """Let a function's name mean itself while it is judged, and not the stub of before: it may call itself."""
    names, name = getattr(function, "__globals__", {}), getattr(function, "__name__", "")
    before = {name: names[name]} if name in names else {}
    names[name] = function
    try:
        yield
    finally:
        del names[name]
        names.update(before)


def your_turn(check: Check, look: str = "") -> Callable[[Callable[..., Any]], Turn]:
    """Decorate a function that the reader is to write, and check it as soon as its cell runs.

    Args:
        check: called with the function; raises AssertionError with a sentence of the expected value and the one that
            came, without a full stop, and never gives the answer away.
        look: a place to look at, shown with a wrong answer.
    """
    return lambda function: Turn(function, check, look)


def is_stub(function: Callable[..., Any]) -> bool:
    """Whether a function's body is nothing but a docstring and `...` (or `pass`)."""
    return all(
        isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in _definition(function).body
    )


def forgets_return(function: Callable[..., Any], problem: Exception) -> bool:
    """Whether a check stumbled over the None of a function without `return`, and not the function itself or a rank."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(problem.__traceback__)]
    if "None" not in str(problem) or function.__code__ in frames or hasattr(problem, "verdict"):
        return False
    return not any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(_definition(function)))


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return definition


class Folded:
    """Source that renders as one line which opens on a click, and as plain text elsewhere."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __repr__(self) -> str:
        return self.source

    def _repr_html_(self) -> str:
        said = "One solution. Open it when yours passes, or when you are stuck."
        code = f'<pre style="overflow-x:auto;padding:.4em .9em" tabindex="0">{html.escape(self.source)}</pre>'
        return f'<details style="padding:0 .9em"><summary>{said}</summary>{code}</details>'


def seal(source: str) -> str:
    """Seal the text of one function, in characters that are not read by accident."""
    return base64.b64encode(source.encode()).decode()


def unseal(sealed: str) -> str:
    """The text that was sealed.

    Raises:
        ValueError: the text was changed since.
    """
    try:
        return base64.b64decode(sealed, validate=True).decode()
    except ValueError:
        raise ValueError("this solution's text was changed, and cannot be read any more; take the cell anew") from None


def run_line(line: str, names: dict[str, Any]) -> Folded:
    """Bind a name to the reader's function if it passed its check, and else to the solution.

    Args:
        line: the name, and the sealed function.
        names: the notebook's names.

    Raises:
        NameError: the cell of the turn did not run.
        ValueError: the sealed text was changed, or the solution does not pass its check.
    """
    name, _, sealed = line.partition(" ")
    source, file, found = unseal(sealed.strip()), f"<solution of {name}>", {}
    if name not in names:
        raise NameError(f"{name} is not there yet; run the cell of your turn, above, first")
    remember(file, source)
    exec(compile(source, file, "exec"), names, found)
    if isinstance(names[name], Turn):  # else this cell runs a second time
        names[name] = names[name].solution(found[name])
    return Folded(source)


add_magic("solution", "line", run_line)


class Verdict:
    """A verdict on a reader's answer. As the last expression of a cell, a verdict renders as a coloured line."""

    _COLOURS: ClassVar = {"right": "#009e73", "wrong": "#d55e00", "open": "#999999"}
    _SIGNS: ClassVar = {"right": "✓", "wrong": "✗", "open": "○"}

    def __init__(self, state: str, message: str) -> None:
        self.state, self.message = state, message

    def __repr__(self) -> str:
        return f"{self._SIGNS[self.state]} {self.message}"

    def _repr_html_(self) -> str:
        style = f"border-left:4px solid {self._COLOURS[self.state]};padding:.4em .9em"
        return f'<div style="{style}">{html.escape(repr(self))}</div>'


def self_check(answer: object, expected: object, *, tolerance: float = 0.0, hint: str = "") -> Verdict:
    """Check an exercise's answer, and raise nothing for a wrong one: the notebook goes on.

    Args:
        answer: the reader's answer; None means "not answered yet".
        expected: the right answer, best computed by the code of the lesson rather than typed.
        tolerance: largest accepted relative deviation of a number, or of each in a list (0: equal).
        hint: a place to look at, shown with a wrong answer.

    Returns:
        A verdict that says right, not yet (with the direction for a number, and the hint), or still open.
    """
    if answer is None or answer is ...:
        return Verdict("open", "Not answered yet. Replace None by your answer and run the cell again.")
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return _check_number(answer, expected, tolerance, hint)
    right = type(answer) is type(expected) and answer == expected
    if not right and isinstance(answer, list) and isinstance(expected, list) and len(answer) == len(expected):
        each = (self_check(mine, its, tolerance=tolerance) for mine, its in zip(answer, expected))
        right = all(verdict.state == "right" for verdict in each)
    return Verdict("right", "Right.") if right else Verdict("wrong", f"Not yet. {hint}".strip())


def _check_number(answer: object, expected: float, tolerance: float, hint: str) -> Verdict:
    if isinstance(answer, bool) or not isinstance(answer, Real):  # NumPy's, too
        return Verdict("wrong", f"The answer should be a number, not a {type(answer).__name__}.")
    if isinstance(answer, Quantity) and isinstance(expected, Quantity) and type(answer) is not type(expected):
        return Verdict("wrong", f"The answer should be {type(expected).__name__}, not {type(answer).__name__}.")
    given, target = float(answer), float(expected)
    if given == target or math.isclose(given, target, rel_tol=tolerance, abs_tol=0.0):
        return Verdict("right", "Right.")
    if math.isnan(given):
        return Verdict("wrong", f"Not yet: that is not a number. {hint}".strip())
    return Verdict("wrong", f"Not yet: too {'small' if given < target else 'large'}. {hint}".strip())
