"""The strangers' packages, which ranks of these tests have from the start: read once, and not in each rank."""

from __future__ import annotations

import os

os.environ["COURSE_RANKS_IMPORT"] = "tests.foreign.models"
