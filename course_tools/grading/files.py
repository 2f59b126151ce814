"""Writing files so that an interrupted run never leaves half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a file whole or not at all; line ends stay as they are."""
    write_bytes(path, text.encode(encoding, "backslashreplace"))  # a lone surrogate ends no batch


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
