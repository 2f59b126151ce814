"""Streams and events of a simulated GPU: all is done at once, so that waiting only brings late copies home.

Stands for torch/cuda/streams.py.
"""

from __future__ import annotations

import time
from typing import Any

import torch


def make(library: Any) -> tuple[type, type]:
    """The classes `Stream` and `Event`, over the built library."""

    class Event:
        """A moment; `synchronize` waits for all that was asked for so far, which may be more than on a GPU."""

        def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
            self.enable_timing, self.at = enable_timing, 0.0

        def record(self, stream: Any = None) -> None:
            self.at = time.perf_counter()

        def wait(self, stream: Any = None) -> None:
            """Nothing: whatever a stream shall wait for is done."""

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            library.wait()

        def elapsed_time(self, other: Event) -> float:
            if not (self.enable_timing and other.enable_timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            return 1e3 * (other.at - self.at)

    class Stream:
        """The one stream of a GPU, under many names."""

        def __init__(self, device: Any = None, priority: int = 0, device_index: int = -1, **given: Any) -> None:
            number = torch.cuda._utils._get_device_index(device, optional=True) if device_index < 0 else device_index
            self.device = torch.device("cuda", number)
            self.stream_id = self.cuda_stream = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and self.device == other.device

        def __hash__(self) -> int:
            return hash(self.device)

        def synchronize(self) -> None:
            library.wait()

        def query(self) -> bool:
            return True

        def wait_event(self, event: Event) -> None:
            """Nothing: what the event marks is done."""

        def wait_stream(self, stream: Stream) -> None:
            """Nothing: what the other stream does is done."""

        def record_event(self, event: Event | None = None) -> Event:
            event = event or Event()
            event.record(self)
            return event

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    return Stream, Event
