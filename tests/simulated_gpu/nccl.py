"""Groups of ranks that PyTorch takes for NCCL's: gloo's, under that name.

Stands for torch.distributed's `ProcessGroupNCCL`. That tensors of GPUs travel by it, what NCCL refuses, and where ranks
must come together is in `device/nccl.h`.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d

dist: Any = torch.distributed
c10d: Any = distributed_c10d

PATIENCE = datetime.timedelta(minutes=10)
"""What NCCL's groups wait unless they are told otherwise."""
_kept: list[Any] = []
"""Groups, so that C++ finds their Python again, which has their name."""


def answer(library: Any) -> None:
    """Let PyTorch find NCCL, whose batches of messages need no communicator of two ranks."""
    if not dist.is_available():
        return

    class ProcessGroupNCCL(distributed_c10d.ProcessGroupGloo):
        """A group of gloo's that says it is NCCL's."""

        class Options:
            """What PyTorch writes into the options of a group."""

            _timeout = PATIENCE

        def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
            super().__init__(store, rank, size, timeout=options._timeout)
            _kept.append(self)

        def name(self) -> str:
            return "nccl"

    batch_isend_irecv = c10d.batch_isend_irecv

    @functools.wraps(batch_isend_irecv)
    def as_one(operations: Any) -> Any:
        library.batch(True)
        try:
            return batch_isend_irecv(operations)
        finally:
            library.batch(False)

    c10d.batch_isend_irecv = dist.batch_isend_irecv = as_one
    c10d.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = PATIENCE
