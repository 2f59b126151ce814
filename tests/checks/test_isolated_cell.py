"""A check's names: an answer cannot read them while it runs, and they are gone afterwards, but for those it keeps."""

import importlib
from typing import Any

import IPython
import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_kit import ranks
from course_kit.checks import CheckFailed, isolated_cell

ANSWER = "def answer(x):\n    return globals().get('expected', 2 * x)\n"
CHECK = """
import math
def helper(x):
    return answer(x)

expected = 7
assert helper(2) == 4, "the answer sees what is expected"
"""


@pytest.fixture
def names() -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(ANSWER, space)
    return space


def test_an_answer_cannot_read_what_a_check_expects(names):
    isolated_cell.run(CHECK, names)
    assert {"expected", "helper", "math"}.isdisjoint(names)


def test_what_is_kept_belongs_to_the_notebook_and_sees_the_answer_of_the_day(names):
    isolated_cell.run(CHECK, names, ["helper"])
    names["answer"] = lambda x: x + 1
    assert names["helper"](2) == 3
    assert {"expected", "math"}.isdisjoint(names)


def test_a_name_that_a_check_binds_anew_is_as_it_was(names):
    names["a"] = 1
    isolated_cell.run("a = 2\nfor answer in range(3):\n    pass", names)
    assert names["a"] == 1 and names["answer"](1) == 2


def test_functions_and_values_of_a_check_travel_to_ranks(names):
    text = "shift = 5\ndef shifted():\n    return answer(rank()) + shift\nimport torch.distributed as dist\n"
    text += "def rank():\n    return dist.get_rank()\nfound.append(ranks.run(shifted, world_size=2))"
    names |= {"ranks": ranks, "found": []}
    isolated_cell.run(text, names)
    assert names["found"] == [[5, 7]]


def test_an_error_names_its_line(names):
    with pytest.raises(ZeroDivisionError) as caught:
        isolated_cell.run_cell("", "x = 1\nx / 0", names)
    assert caught.traceback[-1].lineno == 2  # counted from 0; the line of the magic is the first


def test_a_notebook_knows_the_magic(names, monkeypatch):
    shell = InteractiveShell()
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    importlib.reload(isolated_cell)
    shell.user_ns.update(names)
    assert shell.run_cell("%%check keeps helper, math\n" + CHECK).success
    assert {"helper", "math"} <= shell.user_ns.keys() and "expected" not in shell.user_ns
    failed = shell.run_cell("%%check\nfrom course_kit.checks import check\ncheck.equal(1, 2, 'one')")
    assert isinstance(failed.error_in_exec, CheckFailed)


def test_the_line_that_failed_is_that_of_the_check_and_not_of_what_it_called(names):
    with pytest.raises(AssertionError):
        isolated_cell.run(CHECK.replace("== 4", "== 5"), names)
    assert isolated_cell.failed_line == 7
    with pytest.raises(TypeError):
        isolated_cell.run("import math\nfor x in (1,\n          None):\n    answer(x)\n", names)
    assert isolated_cell.failed_line == 4
