"""Numbers of a lab that change with the term, so that last term's answers do not fit this term's lab.

A lab's source names them in a cell of its own, in capitals that begin with `TERM_`:

    # %% term=true
    TERM_BLOCK = (32, 16, 64)
    TERM_BITS = f"{4 + 8 / TERM_BLOCK:g}"

A tuple is a choice: the number of the published course, then those of which the term's name draws one. Any other value
is computed from the lines above it. Wherever a name stands in the source, in text, code or a caption, the notebooks
have its number.

INSTRUCTORS.md explains `course release --term`.
"""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

from nbformat import NotebookNode

from course_tools.labs import Lab

_NAME = re.compile(r"\bTERM_[A-Z0-9_]+\b")


def with_numbers(cells: list[NotebookNode], lab: Lab) -> list[NotebookNode]:
    """The cells of a lab's source with the numbers of `lab.term`, without the cell that names them.

    Raises:
        ValueError: a cell uses a name that none of them binds.
    """
    naming = [cell for cell in cells if cell.metadata.pop("term", False)]
    numbers = _drawn("\n".join(cell.source for cell in naming), lab)
    others = [cell for cell in cells if cell not in naming]
    for cell in others:
        if unknown := set(_NAME.findall(cell.source)) - set(numbers):
            raise ValueError(f"{lab.source.name}: no cell `# %% term=true` binds {', '.join(sorted(unknown))}")
        cell.source = _NAME.sub(lambda name: str(numbers[name[0]]), cell.source)
    return others


def _drawn(source: str, lab: Lab) -> dict[str, object]:
    """The names that a cell `# %% term=true` binds in this term. The cell, which the author wrote, is run."""
    scope: dict[str, object] = {}
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if _NAME.fullmatch(name):
                exec(ast.unparse(statement), scope)
            case _:
                raise ValueError(f"{lab.source.name}: {ast.unparse(statement)!r} is no line `TERM_NAME = …`")
        if isinstance(choices := scope[name], tuple):
            published, *others = choices
            chance = random.Random(f"{lab.name} {name} {lab.term}")
            scope[name] = chance.choice(others) if lab.term else published
    return {name: value for name, value in scope.items() if _NAME.fullmatch(name)}


def keep_term(root: Path, term: str) -> None:
    """Keep the term of the last release, for `course grade`."""
    if term:
        _place(root).write_text(term + "\n", "utf-8")
    else:
        _place(root).unlink(missing_ok=True)


def kept_term(root: Path) -> str:
    """The term of the last release; empty for the numbers of the published course."""
    return _place(root).read_text("utf-8").strip() if _place(root).is_file() else ""


def _place(root: Path) -> Path:
    return root / "solutions" / "term.txt"
