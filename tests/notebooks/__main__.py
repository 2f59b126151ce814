"""`python -m tests.notebooks`: execute every lesson and solved lab again; compare all outputs with the stored ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--nbval",
    "-p", "tests.notebooks.gate",
    "--nbval-current-env",  # whatever kernel a notebook names, take this Python
    "--nbval-sanitize-with", str(Path(__file__).with_name("nbval_sanitize.cfg")),
    "--nbval-cell-timeout", "400",
    "--nbval-kernel-startup-timeout", "120",
    "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
    "--timeout", "600",
)  # fmt: skip


def run(arguments: list[str]) -> int:
    """Run the gate in this process: `arguments` are pytest's; all lessons and solved labs, unless they name any."""
    named = any(Path(argument.split("::")[0]).exists() for argument in arguments)
    everything = [] if named else [str(ROOT / "lessons"), str(ROOT / "solutions")]
    return pytest.main([*OPTIONS, *arguments, *everything])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
