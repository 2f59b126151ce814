"""The cell that prepares Google Colab: what it installs, what it says where that fails, and the cells behind it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient.exceptions import CellExecutionError

from course_tools.author.source import add_colab
from course_tools.kernel import execute

ADDRESS = "https://github.com/someone/course"
SENTENCE = f"The course could not be installed from {ADDRESS}@v0.1, which must be public."
COLAB_WITHOUT_PIP = """\
import sys
from types import ModuleType
sys.modules |= {"google": ModuleType("google"), "google.colab": ModuleType("google.colab"), "course_kit": None}
get_ipython().register_magic_function(lambda line: print("ERROR: git said no"), "line", "pip")
"""


class Shell:
    """Stands for IPython, and for `google.colab.output`; keeps what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def run_line_magic(self, name: str, line: str) -> None:
        self.calls.append(f"%{name} {line}")

    def enable_custom_widget_manager(self) -> None:
        self.calls.append("widgets")


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The shell of a notebook that is open in Google Colab."""
    shell, module = Shell(), ModuleType("google.colab")
    module.output = shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google", ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", module)
    return shell


def cells_of(repository: str) -> tuple[str, str]:
    """Header and Colab cell of a lesson that is published there."""
    cells = [nbformat.v4.new_markdown_cell("# 00")]
    add_colab(cells, repository, "lessons/00_tiny")
    return cells[0].source, cells[1].source


def run(source: str, shell: Shell) -> None:
    exec(TransformerManager().transform_cell(source), {"get_ipython": lambda: shell})


@pytest.mark.parametrize(("tag", "opened"), [("", "main"), ("@v0.1", "v0.1")])
def test_the_badge_opens_the_tag_that_the_cell_installs(tag: str, opened: str) -> None:
    header, cell = cells_of(ADDRESS + tag)
    assert f"colab.research.google.com/github/someone/course/blob/{opened}/lessons/00_tiny.ipynb" in header
    assert f'"git+{ADDRESS}{tag}"' in cell and max(map(len, cell.splitlines())) <= 88


def test_elsewhere_the_cell_does_nothing() -> None:
    shell = Shell()
    run(cells_of(ADDRESS)[1], shell)
    assert shell.calls == []


def test_on_colab_it_installs_and_enables_widgets(colab: Shell) -> None:
    run(cells_of(ADDRESS)[1], colab)
    assert [call.split()[0] for call in colab.calls] == ["%pip", "widgets"]


def test_a_course_that_cannot_be_installed_is_told_in_one_sentence(
    colab: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "course_kit", None)  # there is no such package: pip failed
    with pytest.raises(SystemExit, match=SENTENCE):
        run(cells_of(ADDRESS + "@v0.1")[1], colab)
    assert [call.split()[0] for call in colab.calls] == ["%pip"]


@pytest.mark.nightly
@pytest.mark.notebook
def test_no_cell_runs_after_that_sentence(tmp_path: Path) -> None:
    sources = (COLAB_WITHOUT_PIP, cells_of(ADDRESS + "@v0.1")[1], "import course_kit")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.raises(CellExecutionError):
        execute(notebook, tmp_path, reproducible=True)
    outputs = json.dumps([cell.outputs for cell in notebook.cells])
    assert SENTENCE in outputs and "ModuleNotFoundError" not in outputs and "Traceback" not in outputs
    assert not notebook.cells[2].execution_count
