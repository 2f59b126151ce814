"""Which gradients travel together: a plan, made without processes, and the buffers that it describes.

One message per parameter pays the latency of a message for every bias; one message for all must wait until the backward
pass is over. Buckets are the middle (Li et al. 2020, §3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn


def plan_buckets(
    parameters: Sequence[Tensor], bucket_bytes: int, order: Sequence[int] | None = None
) -> list[list[int]]:
    """Fill buckets with gradients in the order in which the backward pass finishes them.

    A bucket is closed as soon as it holds `bucket_bytes` or more; it holds one dtype and one device. Buckets come in
    the order in which they get full.

    Args:
        parameters: what gets a gradient.
        bucket_bytes: 1 gives every parameter its own bucket.
        order: parameter numbers as their gradients are expected; None for the reverse of `parameters`.

    Returns:
        For each bucket, the numbers of its parameters.

    Raises:
        ValueError: `bucket_bytes` is not positive.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes={bucket_bytes}: give at least 1 (25 MiB is {25 * 2**20})")
    order = range(len(parameters) - 1, -1, -1) if order is None else order
    closed: list[list[int]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for number in order:
        kind = parameters[number].dtype, parameters[number].device
        bucket = open_buckets.setdefault(kind, [])
        bucket.append(number)
        if sum(parameters[n].nbytes for n in bucket) >= bucket_bytes:
            closed.append(open_buckets.pop(kind))
    turn = {number: position for position, number in enumerate(order)}
    return sorted([*closed, *open_buckets.values()], key=lambda bucket: turn[bucket[-1]])


class Bucket:
    """The gradients of a few parameters in one flat buffer, and one more number for each: how many ranks had one.

    A parameter that took part on no rank must keep `grad = None`: an optimizer with momentum or weight decay would
    move it on a gradient of zeros. The extra numbers tell, without a message of their own.

    Attributes:
        parameters: whose gradients these are.
        flat: what is reduced, in the parameters' dtype.
        ready: numbers of the parameters whose gradient this backward pass has finished.
        work: the reduction under way, if any.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.flat: Float[Tensor, " elements"] = parameters[0].detach().new_zeros(sum(sizes) + len(sizes))
        *pieces, self._users = self.flat.split([*sizes, len(sizes)])
        self._views = [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters)]
        self._absent: list[int] = []
        self.ready: set[int] = set()
        self.work: dist.Work | None = None

    @property
    def is_full(self) -> bool:
        """Whether every gradient has arrived."""
        return len(self.ready) == len(self.parameters)

    @torch.no_grad()
    def fill(self, share: float) -> None:
        """Copy the gradients in, times `share`. From now on each `grad` is a view of this buffer, so nothing has to be
        copied back after the reduction.

        Raises:
            ValueError: a gradient is sparse.
        """
        present = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if any(grad.layout != torch.strided for grad in grads):
            raise ValueError("a gradient is sparse, and buckets are dense: build its layer with sparse=False")
        self._users.fill_(1.0)
        if grads:  # one call for all: cheaper than a call for each of many small tensors
            torch._foreach_copy_([self._views[i] for i in present], grads)  # type: ignore[attr-defined]
        self._absent = sorted(set(range(len(self.parameters))) - set(present))
        for i in self._absent:
            self._views[i].zero_()
            self._users[i] = 0.0
        self.flat.mul_(share)
        for i in present:
            self.parameters[i].grad = self._views[i]

    def finish(self) -> None:
        """Wait for the reduction; a parameter that only other ranks used gets its gradient here."""
        if self.work is not None:
            self.work.wait()
        users = self._users.tolist() if self._absent else []
        for i in self._absent:
            if users[i]:
                self.parameters[i].grad = self._views[i]
        self.work = None
        self.ready.clear()
