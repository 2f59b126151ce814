"""Real processes from a notebook cell. `ranks.run(fn)` calls `fn` on 4 ranks and returns their results in rank order.

Importing this package starts the process that ranks are forked from, in the background, so that the first call does not
wait for torch's import. Lesson 00 opens this package.
"""

from __future__ import annotations

import os

from course_lib.ranks import launch as _launch
from course_lib.ranks.failures import RankFailure, RankReport, WaitsIn
from course_lib.ranks.pool import Ranks, run

__all__ = ["RankFailure", "RankReport", "Ranks", "WaitsIn", "run"]

_UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ
if _launch.IN_RANK not in os.environ and not _UNDER_TORCHRUN and hasattr(os, "fork"):
    _launch.launcher()
