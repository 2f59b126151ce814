"""Ranks of these tests have the strangers' packages from the start: they are read once, not in each rank."""

from __future__ import annotations

import os

os.environ["COURSE_RANKS_IMPORT"] = "tests.foreign.models"
