"""ZeRO-Offload (Ren et al. 2021): a model whose fp32 weights, moments and optimizer live in main memory.

Of the 16 bytes a parameter that AdamW needs under mixed precision, the device keeps 2. Gradients leave as the backward
pass makes them (2Ψ bytes), the processor updates the fp32 weights, and their 16-bit copies come back (2Ψ); the paper
proves that no other cut sends less. A processor can do the update because memory bandwidth bounds it, not FLOPs,
and torch's fused AdamW goes over the memory only once.

With the *delayed* update the device need not wait for the processor, which applies the gradients of step t while the
device computes step t + 1, with weights that lack the update of step t.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from course_kit.units import Bytes
from course_lib.offload.copy_stream import BandwidthLimit, CopyStream
from course_lib.parallel.data import plan_buckets

BUCKET_BYTES = 2**22
"""Bytes of fp32 weights that one call of the optimizer updates: they travel while the next bucket is computed."""
UPDATE_BYTES = 32
"""Bytes a parameter over main memory: a gradient arrives (4), Adam reads 16 and writes 12."""


class OffloadedAdamW:
    """AdamW in main memory, for a model on a device.

        optimizer = OffloadedAdamW(model, CopyStream(), CopyStream(), lr=1e-3)
        loss = model(inputs, targets)
        loss.backward()                # gradients leave one by one
        optimizer.step()               # updated weights return

    Gradients of several backward passes before a step add up in main memory, in fp32. A parameter without a gradient is
    not updated, as in torch's own optimizers.

    Args:
        model: a module in any precision; its parameters must not be assigned anew.
        out, back: the copy streams to main memory and from there.
        delay_from: the number of the first step (from 0) whose gradients are applied one step later; None: every
            update ends within its own step. The paper waits 40 steps, until the loss falls slowly.
        memory_bytes_per_s: bandwidth of main memory, for `UPDATE_BYTES` a parameter in an update; None: the machine's.
        adamw: keyword arguments of `torch.optim.AdamW`.

    Raises:
        ValueError: nothing to train, a negative `delay_from`, or a bandwidth that is not positive.
    """

    def __init__(
        self, model: nn.Module, out: CopyStream, back: CopyStream, delay_from: int | None = None,
        memory_bytes_per_s: float | None = None, **adamw: Any,
    ) -> None:  # fmt: skip
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        if not weights:
            raise ValueError("no parameter of this model is trained: each has requires_grad=False")
        if delay_from is not None and delay_from < 0:
            raise ValueError(f"delay_from counts steps from 0; it cannot be {delay_from}")
        self.out, self.back, self.delay_from = out, back, delay_from
        self.steps = 0
        self._away = [_Away(weight) for weight in weights]
        masters = [away.master for away in self._away]
        plan = plan_buckets(masters, BUCKET_BYTES, range(len(masters)))
        limit = BandwidthLimit(memory_bytes_per_s)
        self._buckets = [_Bucket([self._away[number] for number in numbers], limit, adamw) for numbers in plan]
        self._processor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="processor")  # for delayed updates
        self._update: Future[list[_Updated]] | None = None
        for weight, away in zip(weights, self._away, strict=True):
            weight.register_post_accumulate_grad_hook(functools.partial(_leave, away, out))  # once .grad is complete

    def step(self) -> None:
        """Make this step's update; or, if that is delayed, start it and finish the one of the step before."""
        for away in self._away:
            away.wait()
        due = [(bucket, [away.take() for away in bucket.away]) for bucket in self._buckets]
        updated = (each for bucket, gradients in due for each in bucket.updated(gradients))  # computed on demand
        before, self._update = self._update, None
        if self.delay_from is None or self.steps < self.delay_from:
            self._bring_home(updated)
        else:
            self._update = self._processor.submit(list, updated)  # in its thread, after the update before
        if before is not None:
            self._bring_home(before.result())
        self.steps += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that no `step` has taken; they are in main memory, out of reach of `model.zero_grad`."""
        for away in self._away:
            away.wait()
            away.take()

    def settle(self) -> None:
        """Finish a delayed update, if one is under way. Call this before weights are saved or evaluated."""
        if self._update is not None:
            update, self._update = self._update, None
            self._bring_home(update.result())

    def _bring_home(self, updated: Iterable[_Updated]) -> None:
        """Send all updated weights to the device, then wait: a bucket travels while `updated` computes the next."""
        for copy in [self.back.send(rounded, away.weight) for away, rounded in updated]:
            copy.result()

    @property
    def held(self) -> Bytes:
        """Bytes in main memory: fp32 weights, two moments, and the gradients that have begun to arrive."""
        return sum((bucket.held for bucket in self._buckets), Bytes(0))


class _Away:
    """One parameter's fp32 weight and gradient in main memory."""

    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight
        self.master = weight.detach().to("cpu", torch.float32, copy=True)
        self.gradient: Tensor | None = None
        self.coming: list[Future[None]] = []  # one copy for each backward pass

    def wait(self) -> None:
        """Wait until the gradients of all backward passes have arrived."""
        while self.coming:
            self.coming.pop().result()

    def take(self) -> Tensor | None:
        """Hand over the gradient."""
        gradient, self.gradient = self.gradient, None  # the next one's memory is new: a delayed update still reads this
        return gradient

    def rounded(self) -> Tensor:
        """The updated weight in the device's dtype; a copy, since the next update may begin while this one travels."""
        return self.master.to(self.weight.dtype, copy=True)


_Updated = tuple[_Away, Tensor]
"""A parameter, and its updated weight in the device's dtype."""


class _Bucket:
    """Parameters that one call updates: a call has a fixed cost, above that of a small parameter's arithmetic."""

    def __init__(self, away: list[_Away], limit: BandwidthLimit, adamw: dict[str, Any]) -> None:
        self.away, self._limit = away, limit
        self.adamw = torch.optim.AdamW([each.master for each in away], fused=True, **adamw)

    def updated(self, gradients: list[Tensor | None]) -> list[_Updated]:
        """Update the parameters that have a gradient, and return them."""
        began = time.perf_counter()
        for away, gradient in zip(self.away, gradients, strict=True):
            away.master.grad = gradient
        self.adamw.step()
        self.adamw.zero_grad()
        pairs = zip(self.away, gradients, strict=True)
        updated = [(away, away.rounded()) for away, gradient in pairs if gradient is not None]
        self._limit.wait(UPDATE_BYTES * sum(away.master.numel() for away, _ in updated), began)
        return updated

    @property
    def held(self) -> Bytes:
        """Bytes of weights, gradients and moments, without Adam's step counters (of dim 0)."""
        moments = [moment for state in self.adamw.state.values() for moment in state.values() if moment.dim()]
        kept = [kept for away in self.away for kept in (away.master, away.gradient) if kept is not None]
        return Bytes(sum(tensor.nbytes for tensor in [*moments, *kept]))


def _leave(away: _Away, stream: CopyStream, weight: Tensor) -> None:
    """Send a gradient that autograd has just made, and drop the device's reference to it."""
    gradient, weight.grad = weight.grad, None
    assert gradient is not None, "autograd calls this hook with a gradient"
    first = away.gradient is None
    if away.gradient is None:
        away.gradient = torch.empty_like(away.master)  # fp32, so that several passes add up without rounding to 16 bits
    away.coming.append(stream.send(gradient, away.gradient, add=not first))
