"""A function that the reader writes: open, wrong, right, and what the page uses afterwards; its folded solution."""

from collections.abc import Callable
from textwrap import indent
from typing import Any

import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell

from course_kit import ranks
from course_kit.cells import add_magic, remember
from course_kit.notebook import your_turn
from course_kit.notebook.your_turn import Turn, is_stub, run_line, seal


def doubles(function):
    if function(3) != 6:  # not `assert`, which pytest would put details behind
        raise AssertionError(f"twice 3 was expected, {function(3)} came")


def written(body: str, head: str = "double(x)", names: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A function from a cell."""
    found, file, source = dict[str, Any](), f"<{body}>", f"def {head}:\n{indent(body, '    ')}"
    remember(file, source)
    notebooks = {"__name__": "__main__", "torch": torch, "dist": dist} if names is None else names
    exec(compile(source, file, "exec"), notebooks, found)
    return found.popitem()[1]


def turn(body: str, check: Callable[..., Any] = doubles, head: str = "double(x)") -> Turn:
    """A reader's answer to "Your turn", with "Read `*`." as the place to look at."""
    return Turn(written(body, head), check, "Read `*`.")


def halves(function):
    assert function(4) / 2 == 1


def first(function):
    return list(function(3))[0] + 1


NO_RETURN = "has no return, and so it gives None"
WRONG = {  # the body, the check, words of the verdict, words that it must not have
    "another value": ("return x", doubles, "✗ Not yet: twice 3 was expected, 3 came. Read `*`.", NO_RETURN),
    "an error": ('return x["a"]', doubles, "it raises TypeError: 'int' object is not subscriptable. Read", NO_RETURN),
    "a full stop of its own": ('raise ValueError("no.")', doubles, "raises ValueError: no. Read `*`.", NO_RETURN),
    "no return": ("x *= 2", doubles, f"expected, None came. double {NO_RETURN}. Read `*`.", "✓"),
    "no return, an error": ("x /= 2", halves, f"'NoneType' and 'int'. double {NO_RETURN}", "✓"),
    "the None of another's": ("return print(end='')", doubles, "None came", NO_RETURN),
    "a None inside": ("x += None", doubles, "'int' and 'NoneType'", NO_RETURN),
    "a None that is given": ("yield None", first, "'NoneType' and 'int'", NO_RETURN),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_one_is_told_what_came_and_where_to_look(what):
    body, check, words, not_so = WRONG[what]
    answer = turn(body, check)
    assert answer.verdict.state == "wrong"
    assert words in repr(answer.verdict) and not_so not in repr(answer.verdict)
    if check is doubles:
        assert answer.solution(lambda x: 2 * x)(1) == 2


def test_a_stub_is_open_and_the_solution_is_used(capsys):
    @your_turn(doubles, look="read `*`.")
    def double(x):
        """Twice x."""
        ...  # noqa: PIE790

    assert isinstance(double, Turn) and double.verdict.state == "open" and double.__doc__ == "Twice x."
    assert capsys.readouterr().out == "○ Not written yet. Replace the dots and run the cell again.\n"

    @double.solution
    def solved(x):
        return 2 * x

    assert solved(4) == 8
    assert capsys.readouterr().out == "○ This one stands in until yours passes its check.\n"
    with pytest.raises(ValueError, match="does not pass its own check: Not yet: twice 3 was expected, 3 came"):
        double.solution(lambda x: x)


@pytest.mark.parametrize(("body", "stub"), [("...", True), ('"""It."""\npass', True), ("return None", False)])
def test_what_a_stub_is(body, stub):
    assert is_stub(written(body)) == stub


def test_a_right_one_is_used():
    double = turn("return x + x")
    used = double.solution(lambda x: 2 * x)
    assert double.verdict.state == "right" and used is double.function and double(5) == 10


@pytest.mark.parametrize("names", [{}, {"double": lambda x: None}], ids=["nothing", "the stub of before"])
def test_one_that_calls_itself_is_judged_by_itself(names):
    """While a cell runs, its name still means the stub of before, or nothing at all."""
    before = dict(names)
    calls_itself = Turn(written("return 0 if x == 0 else 2 + double(x - 1)", names=names), doubles, "")
    assert calls_itself.verdict.state == "right", calls_itself.verdict
    assert names.get("double") is before.get("double")  # the cell itself binds it, later


def on_ranks(function):
    assert ranks.run(function, world_size=2, timeout_s=1.5) == [0, 0]


def test_what_the_time_limit_stopped_is_not_called_wrong():
    """A busy machine is no mistake of the reader's; ranks that wait for each other are."""
    busy = turn("while True:\n    pass", on_ranks, "busy()").verdict
    assert busy.state == "open" and "Could not be checked: " in busy.message and "still running" in busy.message
    deadlock = turn("dist.recv(torch.zeros(1), 1 - dist.get_rank())", on_ranks, "deadlock()").verdict
    assert deadlock.state == "wrong" and deadlock.message.endswith(". Read `*`.")
    assert "\n" not in deadlock.message and "recv" in deadlock.message


# --- the solution that lies folded below the reader's cell, sealed by the build ---

SOURCE = 'def double(x):\n    """Twice x, and <b>no more</b>."""\n    return factor * x'
SEALED = f"double {seal(SOURCE)}"


@pytest.fixture
def names():
    return {"double": turn("..."), "factor": 2}


def test_the_solution_is_used_and_reads_the_notebooks_names(names):
    shown = run_line(SEALED, names)
    assert names["double"](4) == 8 and names["double"].__globals__ is names
    assert repr(shown) == SOURCE and "double" not in seal(SOURCE)
    assert "&lt;b&gt;no more" in shown._repr_html_() and shown._repr_html_().startswith("<details")
    run_line(SEALED, names)  # a cell may run twice
    assert names["double"](4) == 8


def test_the_readers_own_stays(names):
    names["double"] = double = turn("return x + x")
    run_line(SEALED, names)
    assert names["double"] is double.function


@pytest.mark.parametrize(
    ("line", "factor", "error", "words"),
    [
        ("double no§base64", 2, ValueError, "was changed, and cannot be read any more"),
        (f"half {seal(SOURCE)}", 2, NameError, "half is not there yet; run the cell of your turn, above, first"),
        (SEALED, 3, ValueError, "does not pass its own check: Not yet: twice 3 was expected, 9 came"),
    ],
)
def test_what_goes_wrong_is_said(names, line, factor, error, words):
    with pytest.raises(error, match=words):
        run_line(line, names | {"factor": factor})


def test_a_cell_of_a_notebook_says_it_as_a_magic(names):
    shell = InteractiveShell()
    add_magic("solution", "line", run_line, shell)
    shell.user_ns.update(names)
    result = shell.run_cell(f"%solution {SEALED}")
    result.raise_error()
    assert repr(result.result) == SOURCE and shell.user_ns["double"](2) == 4
