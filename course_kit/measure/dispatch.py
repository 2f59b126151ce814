"""Every communication of torch.distributed, seen by a dispatch mode that `traffic` and `timeline` share.

Every communication is an operation of PyTorch's dispatcher, whoever calls it: your own line, a function imported by
name before, DistributedDataParallel's C++ code, a DTensor that changes its layout. So a dispatch mode sees them all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from course_kit.communications import COMMUNICATIONS, Communication


class CommunicationMode(TorchDispatchMode):
    """Hands every communication to `on_communication`, and runs all other operations as they are."""

    @abstractmethod
    def on_communication(self, found: Communication, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        """Run the operation by `call()`, and return its result; `given` are its arguments by name."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See one operation."""
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # a DTensor: let that take itself apart first; its plain calls come by here again
        found = COMMUNICATIONS.get(func._schema.name)
        if found is None:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        return self.on_communication(found, given, lambda: func(*args, **(kwargs or {})))


def group_of(given: dict[str, Any]) -> dist.ProcessGroup:
    """The process group of a call: boxed for the dispatcher, or by name."""
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])  # type: ignore[attr-defined]
    name = given["group_name"]
    return name if isinstance(name, dist.ProcessGroup) else c10d._resolve_process_group(name)  # type: ignore[attr-defined]
