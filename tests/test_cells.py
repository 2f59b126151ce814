"""The number of a cell in a message, from each form of file name that Jupyter and Colab give a cell."""

from types import SimpleNamespace

import pytest

from course_kit import cells


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """IPython's shell after three cells, of which the second ran twice; the first entry stands for none."""
    shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_parsed=["", "a = 1\n", "b = 2", "b = 2"]))
    monkeypatch.setattr(cells, "running_shell", lambda: shell)
    return shell


@pytest.mark.parametrize(
    ("filename", "source", "label"),
    [
        ("<ipython-input-5-0123abcd>", "b = 2\n", "cell [5]"),
        ("/tmp/ipython-input-7-3483785942.py", "b = 2\n", "cell [7]"),
        ("/tmp/ipython-input-3483785942.py", "b = 2\n", "cell [3]"),
        ("/tmp/ipykernel_15464/39831106.py", "a = 1\n", "cell [1]"),
        ("/tmp/ipykernel_15464/39831107.py", "c = 3\n", "cell"),
        ("/tmp/ipykernel_15464/39831108.py", "", "cell"),
    ],
)
def test_a_cell_has_the_number_of_its_last_run(shell: SimpleNamespace, filename: str, source: str, label: str) -> None:
    cells.remember(filename, source)
    assert cells.is_cell(filename) and cells.cell_label(filename) == label


def test_without_a_shell_a_cell_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "running_shell", lambda: None)
    cells.remember("/tmp/ipykernel_15464/39831109.py", "a = 1\n")
    assert cells.cell_label("/tmp/ipykernel_15464/39831109.py") == "cell"
