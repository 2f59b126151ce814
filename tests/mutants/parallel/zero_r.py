"""Known-wrong ZeRO-R. Each takes the arguments of the function that it stands for, and has one fault."""

from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.parallel import zero_r
from course_lib.parallel.zero_r import average_through, recompute_part
from course_lib.train.recompute import recompute


def keeps_copies(fn: Any, x: Tensor, group: Any = None, memory: Any = None) -> Tensor:
    """What recompute does: nothing is cut."""
    return recompute(fn, x)


def keeps_a_view(fn: Any, x: Tensor, group: Any = None, memory: Any = None) -> Tensor:
    """Keeps a view of the whole, and with it all of its memory, until the block's backward pass."""
    out, view = recompute_part(fn, x, group, memory), [x.detach()]
    out.register_hook(lambda _: view.clear())
    return out


def does_not_gather(fn: Any, x: Tensor, group: Any = None, memory: Any = None) -> Tensor:
    """Puts its own part in all places."""

    def own_only(whole: Tensor, part: Tensor, _: Any) -> Any:
        whole.view(-1, len(part))[:] = part
        return mock.Mock()

    out = recompute_part(fn, x, group, memory)
    usual = zero_r.start_all_gather

    def fake(_: Any) -> None:
        zero_r.start_all_gather = own_only  # type: ignore[assignment]

    out.register_hook(fake)
    x.register_hook(lambda _: setattr(zero_r, "start_all_gather", usual))
    return out


def takes_new_memory(fn: Any, x: Tensor, group: Any = None, memory: Any = None) -> Tensor:
    """Parts, one by one, wherever there is room."""
    return recompute_part(fn, x, group, None)


def forgets_the_rest(buffer: Tensor, tensors: Any, group: Any = None) -> None:
    """Sends full buffers only."""
    usual = zero_r._average

    def full(part: Tensor, pieces: Any, group: Any) -> None:
        if len(part) == len(buffer):
            usual(part, pieces, group)

    with mock.patch.object(zero_r, "_average", full):
        average_through(buffer, tensors, group)


def adds_up(buffer: Tensor, tensors: Any, group: Any = None) -> None:
    """Forgets 1/N."""
    average_through(buffer, tensors, group)
    for tensor in tensors:
        tensor *= dist.get_world_size()


def all_at_once(buffer: Tensor, tensors: Any, group: Any = None) -> None:
    """Fused, and as large as the model."""
    average_through(torch.empty(sum(tensor.numel() for tensor in tensors)), tensors, group)


WRONG_VALUES = [does_not_gather]
WRONG_BYTES = [keeps_copies, keeps_a_view]
WRONG_AVERAGES = {forgets_the_rest: "is off", adds_up: "is off", all_at_once: "at the peak"}
