"""Material of a wheel beside its packages: lessons and students' labs, for `course open` where there is no clone.

Hatch calls this while it builds (pyproject.toml names it).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[1]))  # a builder imports this file alone
from course_tools.copying import MATERIAL, handed_out  # noqa: E402


class Material(BuildHookInterface):
    """Adds lessons and labs to a wheel. An editable installation has the clone itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files and their places in the wheel."""
        root = Path(self.root)
        if version == "standard":
            inside = MATERIAL.relative_to(MATERIAL.parents[1])
            for path in handed_out(root):
                build_data["force_include"][str(root / path)] = (inside / path).as_posix()
