"""`%solution f …`: a solution of a *your turn* that lies folded below its cell, wherever the page is opened.

JupyterLab and Colab can hide a cell's text, each by a key of its own; VS Code cannot. So the built page holds the
solution as a sealed text (base64), and its output unfolds on a click. The source of the lesson has it in clear:

    @whole.solution
    def whole(part):
        ...
"""

from __future__ import annotations

import base64
import html
import linecache
import sys
from typing import Any

from course_kit.notebook.your_turn import Turn


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
    """The text of one function, in characters that nobody reads by accident."""
    return base64.b64encode(source.encode()).decode()


def unseal(sealed: str) -> str:
    """What `seal` was given.

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
        names: the notebook's.

    Raises:
        NameError: the cell of the turn did not run.
        ValueError: the sealed text was changed, or the solution does not pass its check.
    """
    name, _, sealed = line.partition(" ")
    source, file, found = unseal(sealed.strip()), f"<solution of {name}>", {}
    if name not in names:
        raise NameError(f"{name} is not there yet; run the cell of your turn, above, first")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names, found)
    if isinstance(names[name], Turn):  # else this cell runs a second time
        names[name] = names[name].solution(found[name])
    return Folded(source)


def load_ipython_extension(shell: Any) -> None:
    """Make `%solution` known to IPython."""

    def solution(line: str) -> Folded:
        """A solution of your turn: %solution NAME SEALED."""
        return run_line(line, shell.user_ns)

    shell.register_magic_function(solution, "line", "solution")


ipython = sys.modules.get("IPython")
if ipython is not None and (running := ipython.get_ipython()) is not None:
    load_ipython_extension(running)
