"""Make this process one on the simulated machine that its environment names: `begin()`, once, before CUDA is used.

PyTorch's own `torch.cuda` stays. What it asks of C++, `torch._C._cuda_…`, is answered here: by the built library where
tensors are concerned, by Python for all else. The package's docstring says what that cannot tell of a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import os
from types import SimpleNamespace
from typing import Any

import torch

from tests.simulated_gpu import cards, kernels, nccl, streams

C: Any = torch._C
CUDA: Any = torch.cuda
WARPS = {"warp_size": 32, "max_threads_per_multi_processor": 1024, "regs_per_multiprocessor": 65536}
FUNCTIONS = ("begin", "wait", "current", "set_current", "allocated", "peak", "reset_peak", "set_capacity")
FUNCTIONS += ("batch", "resize", "keep_history", "history_length", "history")
EVENT = 4
"""Numbers of an event of the history: GPU, whether it was handed out, address, bytes."""
_kept: list[Any] = []
"""Kernels that PyTorch has as long as their library is here."""


def begin() -> None:
    """Give this process the machine's GPUs."""
    machine = cards.here()
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        machine = machine.times(0)
    library = load(os.environ[cards.LIBRARY])
    library.begin(machine.gpus, ctypes.c_int64(machine.memory_bytes))
    answer_about_devices(library, machine)
    answer_about_memory(library, machine)
    answer_about_streams(library)
    _kept.append(kernels.register())
    nccl.answer(library)


def load(path: str) -> Any:
    """The functions of the built library, without their prefix."""
    torch.ops.load_library(path)
    library, found = ctypes.CDLL(path), SimpleNamespace()
    for name in FUNCTIONS:
        function = getattr(library, f"simulated_{name}")
        function.restype = ctypes.c_int64
        setattr(found, name, functools.partial(function))  # a plain one has no hash, and dynamo keeps a table of all
    return found


def answer_about_devices(library: Any, machine: cards.Machine) -> None:
    """Which GPUs there are, which one is current, what it is; and that no fork may have used them before."""
    asked = SimpleNamespace(pid=None)  # the process that first asked the driver, as cuInit counts

    def device_count() -> int:
        asked.pid = asked.pid or os.getpid()
        return machine.gpus

    def initialise() -> None:
        generators = tuple(torch.ops.simulated_gpu.generator(gpu) for gpu in range(device_count()))
        for generator in generators:
            generator.seed()  # by chance, unless somebody has asked for a seed
        CUDA.default_generators = generators

    def set_device(gpu: int) -> None:
        if gpu >= machine.gpus:
            raise RuntimeError("CUDA error: invalid device ordinal (simulated)")
        library.set_current(gpu)

    def exchange_device(gpu: int) -> int:
        before = library.current()
        if gpu >= 0:
            set_device(gpu)
        return before

    major, minor = machine.capability
    properties = SimpleNamespace(
        name=machine.name, major=major, minor=minor, total_memory=machine.memory_bytes, uuid="", is_integrated=0,
        multi_processor_count=machine.processors, L2_cache_size=4 * 2**20, gcnArchName="", **WARPS,
    )  # fmt: skip
    C._cuda_init, C._cuda_getDeviceCount = initialise, device_count
    C._cuda_getDevice, C._cuda_setDevice = library.current, set_device
    C._cuda_canDeviceAccessPeer = lambda one, other: one != other
    C._cuda_getCompiledVersion, C._cuda_getArchFlags = lambda: 12080, lambda: f"sm_{major}{minor}"
    CUDA._get_device_properties = lambda gpu: properties
    CUDA._exchange_device, CUDA._maybe_exchange_device = exchange_device, lambda gpu: exchange_device(gpu)
    CUDA._device_count_nvml = lambda: machine.gpus  # which asks no driver
    CUDA._is_in_bad_fork = CUDA.random._is_in_bad_fork = lambda: asked.pid not in (None, os.getpid())
    CUDA._queued_calls.clear()  # looks at how PyTorch was compiled for CUDA
    torch.version.cuda = "12.8"


def answer_about_memory(library: Any, machine: cards.Machine) -> None:
    """Bytes allocated and their peak; a snapshot of who got which block."""

    def memory_stats(gpu: int) -> dict[str, Any]:
        bytes_ = {"current": library.allocated(gpu), "peak": library.peak(gpu)}
        segments = {name: -(-nbytes // 2**21) * 2**21 for name, nbytes in bytes_.items()}  # as if there were one
        return {"allocated_bytes": {"all": bytes_}, "reserved_bytes": {"all": segments}}

    def snapshot(pool: Any) -> dict[str, Any]:
        length = library.history_length()
        numbers = (ctypes.c_int64 * (EVENT * length))()
        library.history(numbers)
        traces: list[list[dict[str, Any]]] = [[] for _ in range(machine.gpus)]
        for at in range(0, EVENT * length, EVENT):
            gpu, allocated, address, nbytes = numbers[at : at + EVENT]
            for action in ("alloc",) if allocated else ("free_requested", "free_completed"):
                event = {"action": action, "addr": address, "size": nbytes, "stream": 0, "time_us": at, "frames": []}
                traces[gpu].append(event)
        return {"segments": [], "device_traces": traces, "allocator_settings": {}, "external_annotations": []}

    def free_and_total(gpu: int) -> tuple[int, int]:
        return machine.memory_bytes - library.allocated(gpu), machine.memory_bytes

    def set_fraction(fraction: float, gpu: int) -> None:
        library.set_capacity(gpu, ctypes.c_int64(int(fraction * machine.memory_bytes)))

    def resize(storage: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
        if storage.device.type != "cuda":
            return of_cpu(storage, nbytes)
        library.resize(ctypes.c_void_p(storage._cdata), ctypes.c_int64(nbytes))
        return storage

    storages: Any = torch.UntypedStorage
    of_cpu, storages.resize_ = storages.resize_, resize
    C._cuda_memoryStats, C._cuda_memorySnapshot = memory_stats, snapshot
    C._cuda_resetPeakMemoryStats, C._cuda_setMemoryFraction = library.reset_peak, set_fraction
    C._cuda_emptyCache = lambda: None
    C._cuda_record_memory_history = lambda enabled, *rest: library.keep_history(enabled is not None)
    CUDA._cudart = SimpleNamespace(cudaMemGetInfo=free_and_total)


def answer_about_streams(library: Any) -> None:
    """One stream a GPU, on which all is done at once; who waits for one has late copies brought home."""
    CUDA.Stream, CUDA.Event = CUDA.streams.Stream, CUDA.streams.Event = streams.make(library)
    C._cuda_synchronize = library.wait
    C._cuda_getCurrentStream = C._cuda_getDefaultStream = lambda gpu: (0, gpu, 1)
    C._cuda_getCurrentRawStream = lambda gpu: 0
    CUDA.set_stream = lambda stream: None
    CUDA.is_current_stream_capturing = lambda: False
