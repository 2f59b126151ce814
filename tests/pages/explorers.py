"""Every explorer of the course, found where the pages keep theirs: `course_pages/lessonNN/explorer.py`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import course_pages
from course_kit.notebook.explorer import Explorer


def _explorers() -> dict[str, Any]:
    files = sorted(Path(str(course_pages.__file__)).parent.glob("lesson*/explorer.py"))
    modules = [importlib.import_module(f"course_pages.{path.parent.name}.explorer") for path in files]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return {each.__name__: each for each in found if issubclass(each, Explorer) and each is not Explorer}


EXPLORERS = _explorers()
"""Class by name, in the order of the lessons."""
