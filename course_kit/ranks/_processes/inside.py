"""Functions for code that runs in a rank, started by `ranks.run` or by torchrun on several machines."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def init(backend: str | None = None) -> None:
    """Join the process group that torchrun announces. Inside `ranks.run` there is one already, and nothing happens.

    All ranks must call, under `if __name__ == "__main__":` of the script that torchrun starts.

    Args:
        backend: None takes NCCL (with gloo for CPU tensors) if each rank of this machine can have a GPU, else gloo.

    Raises:
        ValueError: the process was not started by torchrun, or NCCL is wanted and there are too few GPUs.
    """
    if dist.is_initialized():
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ValueError("ranks.init() joins what torchrun started; to start ranks from here, use ranks.run(fn)")
    backend = backend_for(int(os.environ["LOCAL_WORLD_SIZE"]), backend)
    if "nccl" in backend:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)


def backend_for(ranks_here: int, wanted: str | None = None) -> str:
    """The backend of torch.distributed where `ranks_here` ranks share a machine: the one that is wanted, or else NCCL
    for GPU tensors (and gloo for CPU tensors) when every rank can have its own GPU, or else gloo.

    Raises:
        ValueError: NCCL is wanted, and there are fewer GPUs than ranks.
    """
    gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
    if wanted is None:
        return "cpu:gloo,cuda:nccl" if gpus >= ranks_here else "gloo"
    if "nccl" in wanted and gpus < ranks_here:
        raise ValueError(
            f"backend={wanted!r}: NCCL needs a GPU for each of the {ranks_here} ranks on this machine, and PyTorch can "
            f"use {gpus}; start fewer ranks, or leave backend out: gloo moves the tensors of CPUs and of GPUs"
        )
    return wanted


def device() -> torch.device:
    """The device that belongs to this rank: its own GPU where the group uses NCCL, else the CPU."""
    if dist.is_initialized() and "nccl" in dist.get_backend_config():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
