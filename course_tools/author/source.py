"""From a lesson's source to a notebook that has not run yet, the same to the byte each time."""

from __future__ import annotations

import copy
import functools
import hashlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_kit.notebook.your_turn import seal
from course_tools.lessons import Lesson

NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
COLAB_CELL = """\
import sys
if "google.colab" in sys.modules:  # elsewhere this cell does nothing
    %pip install -q "git+{repository}"
    from importlib.util import find_spec
    if find_spec("course_kit") is None:
        sys.exit("The course could not be installed from "
                 "{repository}, which must be public.")
    from google.colab import output
    output.enable_custom_widget_manager()"""
_SOLUTION = re.compile(r"\A(?:#.*\n)*@(\w+)\.solution\n(def \1\(.*)\Z", re.S)
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{path}/blob/{tag}/{notebook}.ipynb)"
)


def read_source(lesson: Lesson) -> NotebookNode:
    """The notebook that a lesson's source describes, without outputs.

    Cell ids depend on the cells' text alone, so that editing one cell changes one id.

    Raises:
        ValueError: the lesson has no source, or jupytext is not installed.
    """
    if not lesson.source.exists():
        raise ValueError(f"{lesson.name} has a notebook but no source: {lesson.source} is missing")
    cells = read_cells(lesson.source)
    for cell in cells:
        cell.metadata = nbformat.from_dict(_metadata(sorted(tags_of(cell))))
        _seal_solution(cell)
    add_colab(cells, repository_url(lesson.root), f"lessons/{lesson.name}")
    _number(cells, lesson.name)
    return nbformat.v4.new_notebook(cells=cells, metadata=NOTEBOOK_METADATA)


def _metadata(tags: list[str]) -> dict:
    """Metadata of a cell with these tags. One key hides the cell in JupyterLab, another in Colab, none in VS Code."""
    collapsed = {"cellView": "form", "jupyter": {"source_hidden": True}} if "solution" in tags else {}
    return collapsed | ({"tags": tags} if tags else {})


def _seal_solution(cell: NotebookNode) -> None:
    """Turn `@f.solution` and its function into a line that unfolds on a click (`course_kit.notebook.your_turn`)."""
    if found := _SOLUTION.search(cell.source):
        name, text = found.groups()
        cell.source = f"%solution {name} {seal(text)}"


def read_cells(source: Path) -> list[NotebookNode]:
    """The cells of a py:percent file that hold anything, with the options that stand behind `# %%`.

    Raises:
        ValueError: jupytext is not installed, or there are no cells.
    """
    cells = [copy.deepcopy(cell) for cell in _parsed(source.read_text("utf-8")) if cell.source.strip()]
    if not cells:
        raise ValueError(f"{source.name} holds no cells; each begins with a line `# %%` or `# %% [markdown]`")
    return cells


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> list[NotebookNode]:
    """The cells of a py:percent file; a lab is read anew for each term and each submission."""
    try:
        import jupytext
    except ImportError:
        raise ValueError("building needs jupytext: pip install 'bigger-than-one-gpu[instructor]'") from None
    return jupytext.reads(text, fmt="py:percent").cells


def tags_of(cell: NotebookNode) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def repository_url(root: Path) -> str:
    """The address at which the course is published, from pyproject.toml; a tag may stand behind it (`…@v0.1`)."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"].rstrip("/")


def split_tag(repository: str) -> tuple[str, str]:
    """An address without its tag, and the tag: `https://host/path@v0.1` → `https://host/path`, `v0.1`; else `main`."""
    place, slash, name = repository.rpartition("/")  # an "@" further left belongs to a user
    name, _, tag = name.partition("@")
    return place + slash + name, tag or "main"


def add_colab(cells: list[NotebookNode], repository: str, notebook: str) -> None:
    """Put the cell that prepares Google Colab after the header, unless the source has its own.

    The badge appears once pyproject.toml has the real address of the repository, and opens the tag that is installed.
    """
    if any(cell.cell_type == "code" and "google.colab" in cell.source for cell in cells):
        return
    if "_OWNER_" not in repository and cells[0].cell_type == "markdown":
        address, tag = split_tag(repository)
        path = address.removeprefix("https://github.com/")
        cells[0].source += "\n\n" + BADGE.format(path=path, tag=tag, notebook=notebook)
    position = 1 if cells[0].cell_type == "markdown" else 0
    cells.insert(position, nbformat.v4.new_code_cell(COLAB_CELL.format(repository=repository)))


def _number(cells: list[NotebookNode], name: str) -> None:
    seen: Counter[str] = Counter()
    for cell in cells:
        text = f"{name}:{cell.cell_type}:{cell.source}:{tags_of(cell)}"
        seen[text] += 1
        cell.id = hashlib.sha256(f"{text}:{seen[text]}".encode()).hexdigest()[:12]
