"""Bigger Than One GPU: the tools around the course, to open, run, build and grade it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

TAUGHT = ("course_kit", "course_lib", "course_pages")
"""The packages that lessons and labs import, the lowest first."""

# nbformat imports jsonschema, which builds a grammar of web addresses if it finds this module: three seconds in every
# process, to check a format that no notebook has. None means: not to be found.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def folders() -> list[Path]:
    """The folders of the course's packages on this machine: those of `TAUGHT`, then these tools."""
    return [Path(str(importlib.import_module(name).__file__)).parent for name in (*TAUGHT, __name__)]
