"""`python -m tests.notebooks`: execute every lesson and solved lab again; compare all outputs with the stored ones."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from course_lib.build.guards import output_complaints, source_complaints

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--nbval",
    "-p", "tests.notebooks.gate",
    "--nbval-current-env",  # whatever kernel a notebook names, take this Python
    "--nbval-sanitize-with", str(Path(__file__).with_name("nbval_sanitize.cfg")),
    "--nbval-cell-timeout", "120",
    "--nbval-kernel-startup-timeout", "120",
    "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
    "--timeout", "600",
)  # fmt: skip


def run(arguments: list[str]) -> int:
    """Run the gate in this process: `arguments` are pytest's; all lessons and solved labs, unless they name any.

    Refuses notebooks whose outputs nbval could not or would not compare, and lists what is wrong, cell by cell.
    """
    named = [path for argument in arguments if (path := Path(argument.split("::")[0])).exists()]
    everything = [] if named else [ROOT / "lessons", ROOT / "solutions"]
    if bad := [text for path in notebooks(named or everything) for text in complaints(path)]:
        print("notebooks that cannot be compared:", *bad, sep="\n", file=sys.stderr)
        return pytest.ExitCode.USAGE_ERROR
    return pytest.main([*OPTIONS, *arguments, *map(str, everything)])


def notebooks(places: list[Path]) -> list[Path]:
    """The notebooks named, and those in the folders named."""
    found = {path for place in places for path in (place.rglob("*.ipynb") if place.is_dir() else [place])}
    return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)


def complaints(path: Path) -> list[str]:
    """What nbval would not notice about a notebook."""
    notebook = nbformat.read(path, as_version=4)
    return [f"{path.name}: {text}" for text in source_complaints(notebook) + output_complaints(notebook, ROOT)]


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
