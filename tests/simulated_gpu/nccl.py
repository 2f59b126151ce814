"""Groups of ranks that PyTorch takes for NCCL's: gloo's, under that name.

Stands for torch.distributed's `ProcessGroupNCCL`. That tensors of GPUs travel by it, and what NCCL refuses, is in
`device/nccl.h`.
"""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

PATIENCE = datetime.timedelta(minutes=10)
"""What NCCL's groups wait unless they are told otherwise."""
_kept: list[Any] = []
"""Groups, so that C++ finds their Python again, which has their name."""


def answer() -> None:
    """Let PyTorch find NCCL."""
    if not dist.is_available():
        return

    class ProcessGroupNCCL(c10d.ProcessGroupGloo):
        """A group of gloo's that says it is NCCL's."""

        class Options:
            """What PyTorch writes into the options of a group."""

            _timeout = PATIENCE

        def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
            super().__init__(store, rank, size, timeout=options._timeout)
            _kept.append(self)

        def name(self) -> str:
            return "nccl"

    c10d.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = PATIENCE
