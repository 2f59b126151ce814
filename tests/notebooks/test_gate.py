"""The gate lets the built lesson pass and stops every notebook that was tampered with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from course_tools.lessons import Lesson
from tests.notebooks.gate import a_second_time

pytestmark = [pytest.mark.notebook, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def code(notebook: NotebookNode, words: str) -> NotebookNode:
    """The code cell whose source contains `words`."""
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and words in cell.source)


def gate(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the gate over a folder in a process of its own, as `start.py test` does."""
    command = [sys.executable, "-m", "tests.notebooks", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def never_run(notebook: NotebookNode) -> None:
    cell = code(notebook, "perf_counter")
    cell.execution_count, cell.outputs = None, []


def misspelt_tag(notebook: NotebookNode) -> None:
    code(notebook, "perf_counter").metadata.tags = ["varys"]


def nbval_tag(notebook: NotebookNode) -> None:
    code(notebook, "compare(").metadata.tags = ["nbval-skip"]


def nbval_comment(notebook: NotebookNode) -> None:
    code(notebook, "compare(").source += "\n# NBVAL_IGNORE_OUTPUT"


def semicolon(notebook: NotebookNode) -> None:
    code(notebook, "compare(").source += ";"


def interactive(notebook: NotebookNode) -> None:
    code(notebook, "compare(").source += "\nipywidgets.interact(print, x=1)"


def unmarked_error(notebook: NotebookNode) -> None:
    code(notebook, "view(5)").metadata = {}


def error_that_never_came(notebook: NotebookNode) -> None:
    code(notebook, "view(5)").outputs = []


def shuffled(notebook: NotebookNode) -> None:
    code(notebook, "perf_counter").execution_count = 17


def machine_path(notebook: NotebookNode) -> None:
    code(notebook, "perf_counter").outputs[0].text = "/home/someone/course/data.txt"


def varying_widget(notebook: NotebookNode) -> None:
    code(notebook, "IntSlider").metadata = {"tags": ["varies"]}


REFUSED: dict[Callable[[NotebookNode], None], str] = {
    never_run: "cell 3: it was never run",
    misspelt_tag: "cell 3: unknown tag 'varys'",
    nbval_tag: "cell 5: unknown tag 'nbval-skip'",
    nbval_comment: "cell 5: the comment NBVAL_IGNORE_OUTPUT switches checks off",
    semicolon: "cell 5: a line ends in ';'",
    interactive: "cell 5: 'interact': its output cannot be compared",
    unmarked_error: "cell 4: it stores an error (RuntimeError:",
    error_that_never_came: "cell 4: it is tagged 'raises-exception', but nothing was raised",
    shuffled: "the cells were not run once each, from top to bottom",
    machine_path: "cell 3: its output contains a folder of the machine that built it",
    varying_widget: "cell 2: it is tagged 'varies' and shows a widget",
}


def test_what_cannot_be_compared_is_refused_before_anything_runs(built: Lesson, tmp_path: Path) -> None:
    for tamper in REFUSED:
        notebook = nbformat.read(built.notebook, as_version=4)
        tamper(notebook)
        nbformat.write(notebook, tmp_path / f"{tamper.__name__}.ipynb")
    result = gate(tmp_path)
    assert result.returncode != 0 and "passed" not in result.stdout
    missing = [
        f"{t.__name__}: {words}" for t, words in REFUSED.items() if f"{t.__name__}.ipynb: {words}" not in result.stderr
    ]
    assert not missing, result.stderr


def other_text(notebook: NotebookNode) -> None:
    output = code(notebook, "compare(").outputs[0]
    output.data["text/plain"] = output.data["text/plain"].replace("1.0250", "1.0000")


def lost_child_print(notebook: NotebookNode) -> None:
    code(notebook, "child").outputs = []


def other_error(notebook: NotebookNode) -> None:
    code(notebook, "view(5)").outputs[0].evalue = "something else"


def cell_that_fails(notebook: NotebookNode) -> None:
    code(notebook, "compare(").source = "1 / 0"


def picture_instead_of_text(notebook: NotebookNode) -> None:
    code(notebook, "compare(").outputs[0].data = {"image/png": PNG}


FAILED = (other_text, lost_child_print, other_error, cell_that_fails, picture_instead_of_text)


def untouched(notebook: NotebookNode) -> None:
    assert code(notebook, "perf_counter").metadata.tags == ["varies"]  # its stored seconds differ from any run's


@pytest.mark.parametrize("wrong", [FAILED[:1], pytest.param(FAILED, marks=pytest.mark.nightly)], ids=["one", "all"])
def test_outputs_that_differ_fail_and_those_that_vary_do_not(
    built: Lesson, tmp_path: Path, wrong: tuple[Callable[[NotebookNode], None], ...]
) -> None:
    for tamper in (*wrong, untouched):
        notebook = nbformat.read(built.notebook, as_version=4)
        tamper(notebook)
        nbformat.write(notebook, tmp_path / f"{tamper.__name__}.ipynb")
    result = gate(tmp_path)
    assert result.returncode == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == len(wrong), result.stdout
    assert all(any(f"{tamper.__name__}.ipynb" in line for line in failed) for tamper in wrong), result.stdout


def test_outputs_may_take_their_time() -> None:
    """nbval gives up after 5 s of silence; four ranks that wait for a timeout are silent for longer."""
    from tests.notebooks import gate as plugin

    class Item:
        path, cell, options, output_timeout = ROOT / "x.ipynb", nbformat.v4.new_code_cell(), {"check": True}, 5

    item = Item()
    plugin.prepare(item)
    assert item.output_timeout == 30 and item.options["check"]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_kernel_that_dies_at_its_start_is_started_once_more(deaths: int) -> None:
    ends = iter([RuntimeError("Kernel died before replying")] * deaths + ["started"])

    def start() -> object:
        if isinstance(end := next(ends), Exception):
            raise end
        return end

    if deaths == 1:
        assert a_second_time(start)() == "started"
    else:
        pytest.raises(RuntimeError, a_second_time(start))
