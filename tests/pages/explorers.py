"""Every explorer of the course, found where the pages keep theirs: `course_pages/lessonNN/explorer.py`."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import torch

import course_pages
from course_kit.notebook.explorer import Explorer

READS = ("course_pages/lesson*/*", "course_kit/notebook/*")


def _explorers() -> dict[str, Any]:
    files = sorted(Path(str(course_pages.__file__)).parent.glob("lesson*/explorer.py"))
    modules = [importlib.import_module(f"course_pages.{path.parent.name}.explorer") for path in files]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return {each.__name__: each for each in found if issubclass(each, Explorer) and each is not Explorer}


EXPLORERS = _explorers()
"""Class by name, in the order of the lessons."""

NEEDED = {"ScaleExplorer": "{'all': [torch.arange(1.0, 100)], 'few': [torch.full((9,), 2.0**-30)]}"}
"""What an explorer must be given to show anything, as a cell would write it."""


def make(name: str, **chosen: Any) -> Any:
    """An explorer with these values of its controls, and with what it cannot do without."""
    needed = [eval(NEEDED[name], {"torch": torch})] if name in NEEDED else []
    return EXPLORERS[name](*needed, **chosen)


def words_of(made: Any) -> str:
    """What stands for the picture where there is none, as `show` sends it."""
    return made._picture(caption=made.caption, alt=made._told()).alt


def shown_by(name: str) -> str:
    """Lines of a cell that show an explorer; `torch` must be there."""
    return f"from {EXPLORERS[name].__module__} import {name}\n{name}({NEEDED.get(name, '')}).show()"


def places(name: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Values of all controls, drawn at random; a limit of one by another is not looked at."""
    chosen, offers = random.Random(seed), make(name).offers
    return [{control: chosen.choice(values) for control, values in offers.items()} for _ in range(count)]
