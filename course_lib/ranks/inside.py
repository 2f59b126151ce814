"""For code that runs in a rank, whoever started it: `ranks.run`, `%%ranks` or torchrun on several machines.

Lesson 06 opens this module.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def init(backend: str | None = None) -> None:
    """Join the process group that torchrun announces. Inside `ranks.run` there is one already, and nothing happens.

    All ranks must call. Put it under `if __name__ == "__main__":` of the script that torchrun starts.

    Args:
        backend: None takes NCCL (with gloo for CPU tensors) if this rank has a GPU of its own, else gloo.

    Raises:
        ValueError: the process was not started by torchrun.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ValueError("ranks.init() joins what torchrun started; to start ranks from here, use ranks.run(fn)")
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if backend is None:
        has_gpus = dist.is_nccl_available() and torch.cuda.device_count() >= local_size
        backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
    if "nccl" in backend:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(backend)


def device() -> torch.device:
    """The device that belongs to this rank: its own GPU where the group uses NCCL, else the CPU."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and "nccl" in dist.get_backend_config():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
