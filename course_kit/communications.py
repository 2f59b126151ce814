"""Every communication of torch.distributed: the course's one name for it, and the argument that a rank contributes.

One all-reduce has many names. A reader writes `dist.all_reduce`; PyTorch's dispatcher sees `c10d::allreduce_`, or
`_c10d_functional::all_reduce` where DTensor or a compiled graph asks for the sum. `measure.traffic` counts by this
table, `measure.timeline` draws by it, and the diagnosis of a deadlock names calls by it, so all three use one name.

Watchers of Python's waits share one cover of `Work.wait`: of two covers that each put back the function they found, one
stays for ever when the first to come leaves first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist

Kind = Literal["collective", "send", "recv", "wait"]

_TABLE: dict[str, dict[str, str]] = {
    "all_reduce": {
        "dist.all_reduce": "tensor",
        "dist.all_reduce_coalesced": "tensors",
        "c10d::allreduce_": "tensors",
        "c10d::allreduce_coalesced_": "tensors",
        "_c10d_functional::all_reduce": "input",
        "_c10d_functional::all_reduce_": "input",
        "_c10d_functional::all_reduce_coalesced": "inputs",
        "_c10d_functional::all_reduce_coalesced_": "inputs",
    },
    "broadcast": {
        "dist.broadcast": "tensor",
        "dist.broadcast_object_list": "",
        "c10d::broadcast_": "tensors",
        "_c10d_functional::broadcast": "input",
        "_c10d_functional::broadcast_": "input",
    },
    "reduce": {"dist.reduce": "tensor", "c10d::reduce_": "tensors"},
    "all_gather": {
        "dist.all_gather": "tensor",
        "dist.all_gather_coalesced": "input_tensor_list",
        "dist.all_gather_into_tensor": "input_tensor",
        "dist.all_gather_single": "input_tensor",
        "dist.all_gather_object": "",
        "c10d::allgather_": "input_tensors",
        "c10d::_allgather_base_": "input_tensor",
        "c10d::allgather_coalesced_": "input_list",
        "c10d::allgather_into_tensor_coalesced_": "inputs",
        "_c10d_functional::all_gather_into_tensor": "input",
        "_c10d_functional::all_gather_into_tensor_out": "input",
        "_c10d_functional::all_gather_into_tensor_coalesced": "inputs",
    },
    "reduce_scatter": {
        "dist.reduce_scatter": "input_list",
        "dist.reduce_scatter_tensor": "input",
        "dist.reduce_scatter_single": "input",
        "c10d::reduce_scatter_": "input_tensors",
        "c10d::_reduce_scatter_base_": "input_tensor",
        "c10d::reduce_scatter_tensor_coalesced_": "inputs",
        "_c10d_functional::reduce_scatter_tensor": "input",
        "_c10d_functional::reduce_scatter_tensor_out": "input",
        "_c10d_functional::reduce_scatter_tensor_coalesced": "inputs",
    },
    "all_to_all": {
        "dist.all_to_all": "input_tensor_list",
        "dist.all_to_all_single": "input",
        "c10d::alltoall_": "input_tensors",
        "c10d::alltoall_base_": "input",
        "_c10d_functional::all_to_all_single": "input",
    },
    "gather": {"dist.gather": "tensor", "dist.gather_object": "", "c10d::gather_": "input_tensors"},
    "scatter": {"dist.scatter": "tensor", "dist.scatter_object_list": "", "c10d::scatter_": "output_tensors"},
    "send": {
        "dist.send": "tensor",
        "dist.isend": "tensor",
        "dist.send_object_list": "",
        "c10d::send": "tensors",
        "_c10d_functional::isend": "tensor",
    },
    "recv": {
        "dist.recv": "tensor",
        "dist.irecv": "tensor",
        "dist.recv_object_list": "",
        "c10d::recv_": "tensors",
        "c10d::recv_any_source_": "tensors",
        "_c10d_functional::irecv": "tensor",
    },
    "barrier": {"dist.barrier": "", "dist.monitored_barrier": "", "c10d::barrier": "", "c10d::monitored_barrier_": ""},
    "new_group": {"dist.new_group": ""},
    "wait": {"_c10d_functional::wait_tensor": "tensor"},
}
"""The course's name → its names elsewhere → the argument that holds the rank's tensors ("": no tensor)."""


class Communication(NamedTuple):
    """One line of the table."""

    name: str  #: the course's name, as `torch.distributed` has it ("all_reduce", "send", …)
    holds: str  #: the argument with the tensors that this rank gives, or gets in a recv or scatter; "" for none

    @property
    def kind(self) -> Kind:
        """A send to one rank, a recv from one, a wait, or a call of all ranks of a group."""
        return self.name if self.name in ("send", "recv", "wait") else "collective"  # type: ignore[return-value]


COMMUNICATIONS = {
    called: Communication(name, holds) for name, elsewhere in _TABLE.items() for called, holds in elsewhere.items()
}
"""Any name of a communication ("dist.all_reduce", "c10d::allreduce_", …) → its line of the table."""


def backend_of(device: torch.device, group: dist.ProcessGroup | None = None) -> str:
    """Name of the backend that moves tensors of a device in a group ("gloo", "nccl"); "" if none does.

    A group has one for each kind of device: `dist.get_backend` of "cpu:gloo,cuda:nccl" is that whole string.
    """
    by_device = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return by_device.get(device.type, "")


Around = Callable[[dist.Work], AbstractContextManager[None]]
_original = dist.Work.wait
_watchers: list[Around] = []


def watch_waits(around: Around) -> None:
    """Let every `work.wait()` of this process happen inside `around(work)` from now on."""
    _watchers.append(around)
    setattr(dist.Work, "wait", _watched)  # noqa: B010 (a C++ class; an assignment would not type-check)


def unwatch_waits(around: Around) -> None:
    """Take `around` off `work.wait()`; when the last watcher leaves, torch.distributed is as it came.

    Raises:
        ValueError: `around` does not watch.
    """
    _watchers.remove(around)
    if not _watchers:
        setattr(dist.Work, "wait", _original)  # noqa: B010


@functools.wraps(_original)
def _watched(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
    with ExitStack() as stack:
        for around in tuple(_watchers):
            stack.enter_context(around(work))
        return _original(work, *args, **kwargs)
