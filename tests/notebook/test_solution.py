"""A solution that lies folded below its cell: sealed by the build, used when the reader's own does not pass."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course_kit.cells import add_magic
from course_kit.notebook import your_turn
from course_kit.notebook.your_turn import run_line, seal

SOURCE = 'def double(x):\n    """Twice x, and <b>no more</b>."""\n    return factor * x'


def doubles(function):
    if function(3) != 6:
        raise AssertionError(f"twice 3 was expected, {function(3)} came")


@pytest.fixture
def names():
    @your_turn(doubles)
    def double(x): ...

    return {"double": double, "factor": 2}


def test_the_solution_is_used_and_reads_the_notebooks_names(names):
    shown = run_line(f"double {seal(SOURCE)}", names)
    assert names["double"](4) == 8 and names["double"].__globals__ is names
    assert repr(shown) == SOURCE and "double" not in seal(SOURCE)
    assert "&lt;b&gt;no more" in shown._repr_html_() and shown._repr_html_().startswith("<details")
    run_line(f"double {seal(SOURCE)}", names)  # a cell may run twice
    assert names["double"](4) == 8


def test_the_readers_own_stays(names):
    @your_turn(doubles)
    def double(x):
        return x + x

    names["double"] = double
    run_line(f"double {seal(SOURCE)}", names)
    assert names["double"] is double.function


def test_what_goes_wrong_is_said(names):
    with pytest.raises(ValueError, match="was changed, and cannot be read any more"):
        run_line("double no§base64", names)
    with pytest.raises(NameError, match="half is not there yet; run the cell of your turn, above, first"):
        run_line(f"half {seal('def half(x): return x / 2')}", names)
    with pytest.raises(ValueError, match="does not pass its own check: Not yet: twice 3 was expected, 9 came"):
        run_line(f"double {seal(SOURCE)}", names | {"factor": 3})


def test_a_cell_of_a_notebook_says_it_as_a_magic(names):
    shell = InteractiveShell()
    add_magic("solution", "line", run_line, shell)
    shell.user_ns.update(names)
    result = shell.run_cell(f"%solution double {seal(SOURCE)}")
    result.raise_error()
    assert repr(result.result) == SOURCE and shell.user_ns["double"](2) == 4
