"""The strangers' packages, which ranks of these tests have from the start: read once, and not in each rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Preload them where nothing else is tested; beside other tests, the ranks that need them import them."""
    if session.items and all(item.path.is_relative_to(Path(__file__).parent) for item in session.items):
        os.environ["COURSE_RANKS_IMPORT"] = "tests.foreign.models"
