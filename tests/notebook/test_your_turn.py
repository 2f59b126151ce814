"""A function that the reader writes: open, wrong, right, and what the page uses afterwards."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_kit import ranks
from course_kit.cells import remember
from course_kit.notebook import your_turn
from course_kit.notebook.your_turn import Turn, is_stub


def doubles(function):
    if function(3) != 6:  # not `assert`, which pytest would put details behind
        raise AssertionError(f"twice 3 was expected, {function(3)} came")


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


def test_a_wrong_one_is_told_what_came_and_where_to_look():
    @your_turn(doubles, look="Read `*`.")
    def double(x):
        return x

    assert repr(double.verdict) == "✗ Not yet: twice 3 was expected, 3 came. Read `*`."
    assert double.solution(lambda x: 2 * x)(1) == 2

    @your_turn(doubles)
    def broken(x):
        return x["a"]

    assert "Not yet: it raises TypeError: 'int' object is not subscriptable" in broken.verdict.message

    @your_turn(doubles, look="Read `*`.")
    def complains(x):
        raise ValueError("no.")

    assert complains.verdict.message == "Not yet: it raises ValueError: no. Read `*`."


def test_a_forgotten_return_is_named():
    @your_turn(doubles, look="Read `*`.")
    def double(x):
        x *= 2

    said = "twice 3 was expected, None came. double has no return, and so it gives None. Read `*`."
    assert double.verdict.message == f"Not yet: {said}"

    def halves(function):
        assert function(4) / 2 == 1

    @your_turn(halves)
    def half(x):
        x /= 2

    assert "'NoneType' and 'int'. half has no return" in half.verdict.message


def test_a_none_that_comes_of_something_else_is_not_called_so():
    @your_turn(doubles)
    def returns(x):
        return print(end="")

    @your_turn(doubles)
    def stumbles(x):
        x += None

    @your_turn(lambda function: list(function(3))[0] + 1)
    def gives(x):
        yield None

    for turn in (returns, stumbles, gives):
        assert "None" in turn.verdict.message and "no return" not in turn.verdict.message


def test_what_the_time_limit_stopped_is_not_called_wrong():
    """A busy machine is no mistake of the reader's; ranks that wait for each other are."""

    def on_ranks(function):
        assert ranks.run(function, world_size=2, timeout_s=1.5) == [0, 0]

    @your_turn(on_ranks, look="Look at the loop.")
    def busy():
        while True:
            pass

    assert busy.verdict.state == "open" and "Could not be checked: " in busy.verdict.message
    assert "still running" in busy.verdict.message

    @your_turn(on_ranks, look="Who sends?")
    def deadlock():
        dist.recv(torch.zeros(1), 1 - dist.get_rank())

    assert deadlock.verdict.state == "wrong" and deadlock.verdict.message.endswith(". Who sends?")
    assert "\n" not in deadlock.verdict.message and "recv" in deadlock.verdict.message


def test_a_right_one_is_used():
    @your_turn(doubles)
    def double(x):
        return x + x

    used = double.solution(lambda x: 2 * x)
    assert double.verdict.state == "right" and used is double.function and double(5) == 10


def test_one_that_calls_itself_is_judged_by_itself():
    """While a cell runs, its name still means the stub of before, or nothing at all."""
    source = "def double(x):\n    return 0 if x == 0 else 2 + double(x - 1)"
    for names in ({}, {"double": lambda x: None}):
        before, found = dict(names), dict[str, Any]()
        remember("<calls itself>", source)
        exec(compile(source, "<calls itself>", "exec"), names, found)
        turn = Turn(found["double"], doubles, "")
        assert turn.verdict.state == "right", turn.verdict
        assert names.get("double") is before.get("double")  # the cell itself binds it, later


def test_a_solution_that_does_not_pass_stops_the_page():
    @your_turn(doubles)
    def double(x): ...

    with pytest.raises(ValueError, match="does not pass its own check: Not yet: twice 3 was expected, 3 came"):
        double.solution(lambda x: x)


def test_what_a_stub_is():
    def empty(): ...

    def described():
        """It."""
        pass  # noqa: PIE790

    def written():
        return None

    assert is_stub(empty) and is_stub(described) and not is_stub(written)
