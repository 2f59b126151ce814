"""Real processes from a notebook cell. `ranks.run(fn)` calls `fn` on 4 ranks and returns their results in rank order.

Importing this package starts the process that ranks are forked from, in the background, so that the first call does not
wait for torch's import.
"""

from __future__ import annotations

import os as _os

from course_kit.ranks._diagnosis.report import RankFailure, RankReport, WaitsIn
from course_kit.ranks._processes import launch as _launch
from course_kit.ranks._processes.inside import device, init
from course_kit.ranks.pool import MAX_WORLD_SIZE, Ranks, run

__all__ = ["MAX_WORLD_SIZE", "RankFailure", "RankReport", "Ranks", "WaitsIn", "device", "init", "run"]

_is_rank = _launch.IN_RANK in _os.environ or "TORCHELASTIC_RUN_ID" in _os.environ  # the latter under torchrun
if not _is_rank and _launch.can_fork():
    _launch.launcher()
