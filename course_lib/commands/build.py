"""`course build`: the loop over lessons and what it prints.

No lesson opens this module.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console

from course_lib.build import BuildError, Lesson, build, check


def build_lessons(lessons: Sequence[Lesson], console: Console, *, fresh: bool = False) -> bool:
    """Build each lesson, go on after a failure, and return whether all went well."""
    good = True
    for lesson in lessons:
        start = time.perf_counter()
        try:
            with console.status(f"building {lesson.name}"):
                changed = build(lesson, fresh=fresh)
        except (BuildError, ValueError, RuntimeError, CellExecutionError, CellTimeoutError, DeadKernelError) as problem:
            good = False
            console.print(f"✗ {lesson.name}", style="bold red", markup=False)
            console.out(str(problem))
        else:
            seconds = time.perf_counter() - start
            console.print(f"✓ {lesson.name}: {'written' if changed else 'unchanged'}, {seconds:.1f} s", style="green")
    return good


def check_lessons(lessons: Sequence[Lesson], console: Console) -> bool:
    """Print what is wrong with the stored notebooks, running nothing, and return whether all are fine."""
    good = True
    for lesson in lessons:
        complaints = check(lesson)
        good = good and not complaints
        console.print(f"{'✗' if complaints else '✓'} {lesson.name}", style="red" if complaints else "green")
        for complaint in complaints:
            console.print(f"  {complaint}", markup=False)
    return good
