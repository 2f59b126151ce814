"""`course build`: README's sizes, the loop over lessons and labs, and the lines that it prints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console

from course_tools.author.builder import BuildError, build, check, other_outputs, stale, stored_notebook
from course_tools.author.lab_builder import build_lab, check_lab
from course_tools.author.readme import stale_sizes, write_sizes
from course_tools.labs import Lab
from course_tools.lessons import Lesson


def build_readme(root: Path, console: Console, *, check: bool) -> bool:
    """Count the lines in README's tables again, or only say which figures are stale, and return whether all is well."""
    if not check and write_sizes(root):
        console.print("✓ README.md: written", style="green")
    complaints = stale_sizes(root)
    for complaint in complaints:
        console.print(f"✗ {complaint}", style="red", markup=False)
    return not complaints


def build_all(items: Sequence[Lesson | Lab], console: Console, *, fresh: bool = False) -> bool:
    """Build each lesson and lab, go on after a failure, and return whether all went well."""
    good = True
    for item in items:
        start = time.perf_counter()
        solved = item.solution if isinstance(item, Lab) else item.notebook
        before = stored_notebook(solved)
        try:
            with console.status(f"building {item.name}"):
                changed = build_lab(item, fresh=fresh) if isinstance(item, Lab) else build(item, fresh=fresh)
        except (BuildError, ValueError, RuntimeError, CellExecutionError, CellTimeoutError, DeadKernelError) as problem:
            good = False
            console.print(f"✗ {item.name}", style="bold red", markup=False)
            console.out(str(problem))
        else:
            seconds = time.perf_counter() - start
            console.print(f"✓ {item.name}: {'written' if changed else 'unchanged'}, {seconds:.1f} s", style="green")
            if not fresh and (where := other_outputs(before, stored_notebook(solved))):
                hint = f"  another output than before {where}; if it differs from run to run, tag that cell 'varies'"
                console.print(hint, style="yellow", markup=False)
    return good


def is_fresh(item: Lesson | Lab) -> bool:
    """Whether the executed notebook was run with the inputs that the checkout holds."""
    stored = stored_notebook(item.solution if isinstance(item, Lab) else item.notebook)
    return stored is not None and not stale(stored, item)


def check_all(items: Sequence[Lesson | Lab], console: Console) -> bool:
    """Print the faults of the stored notebooks, running nothing, and return whether there are none."""
    good = True
    for item in items:
        complaints = check_lab(item) if isinstance(item, Lab) else check(item)
        good = good and not complaints
        console.print(f"{'✗' if complaints else '✓'} {item.name}", style="red" if complaints else "green")
        for complaint in complaints:
            console.print(f"  {complaint}", markup=False)
    return good
