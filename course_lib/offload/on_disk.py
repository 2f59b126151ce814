"""ZeRO-Infinity on one device: a model in files, with a unit or two of it in main memory at a time.

    model = DiskOffloadedModel(GPT(config, dtype=torch.bfloat16), Disk("run"), lr=1e-3)
    loss = model(inputs, targets)
    loss.backward()
    model.step()

A unit (a block) is read just before its forward pass, and dropped just after. For its backward pass it is read again,
and its states, fp32 weights and moments, are read meanwhile. As soon as its gradients are complete, the unit is updated
and written. So gradients live for one unit, not for the model (L2L, Pudipeddi et al. 2020, goes one layer at a time;
ZeRO-Infinity, Rajbhandari et al. 2021, reads ahead and writes behind).

For each parameter in 16 bits a step reads 2 + 2 + 12 bytes and writes 2 + 12. Main memory holds, with W the bytes of
the largest unit in its dtype and R those of the root unit (all parameters outside of blocks),

    weights     R + W, with `prefetch` R + 2W
    gradients   R + W
    states      6W or 6R of the unit that is updated, and of the one that is still being written

whatever the number of blocks. The disk holds 14 bytes a parameter, and twice that while a step is written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import torch
from torch import Tensor, nn

from course_lib.offload.disk import Disk
from course_lib.parallel.layerwise import LayerwiseModule, plan_units, units_of


class DiskOffloadUnit:
    """Parameters that are loaded together, and their states (fp32 weights and moments): a `LoadableUnit`.

    Between passes a parameter has its shape, and NaN for values. `is_updated`: new weights and states are being written
    in this step.
    """

    def __init__(self, place: int, parameters: Sequence[nn.Parameter], disk: Disk, adamw: dict[str, Any]) -> None:
        self.place, self.parameters, self.disk = place, parameters, disk
        self.is_open = self.is_updated = False
        sizes = [parameter.numel() for parameter in parameters]
        self._size = sum(sizes)
        self._cuts = [slice(end - size, end) for end, size in zip(torch.tensor(sizes).cumsum(0).tolist(), sizes)]
        dtype = parameters[0].dtype if parameters else torch.float32  # the root may have none of its own
        self._flat = torch.empty(self._size, dtype=dtype)
        self._whole = [self._flat[cut].view(p.shape) for cut, p in zip(self._cuts, parameters, strict=True)]
        for whole, parameter in zip(self._whole, parameters, strict=True):
            whole.copy_(parameter.detach())
        nothing = torch.full((), torch.nan, dtype=dtype)
        self._nothing = [nothing.expand(p.shape) for p in parameters]  # all shapes, with strides of 0, in one number
        self._masters = [nn.Parameter(torch.empty(0)) for _ in parameters]  # filled for the update only
        self._adamw = torch.optim.AdamW(self._masters or [torch.empty(0)], fused=True, **adamw)
        self._counts = [torch.zeros(()) for _ in parameters]
        self._coming: Future[None] | None = None
        self._states: tuple[Tensor, Future[None]] | None = None  # and the read that fills them

    def write_first(self) -> None:
        """Write the present weights, and moments of zero."""
        states = torch.zeros(3, self._size)  # fp32 weights, first moments, second moments
        states[0] = self._flat  # widened, if the model has 16 bits
        self.disk.start_write(f"unit{self.place}.weights", self._flat.clone())  # `_empty` frees _flat
        self.disk.start_write(f"unit{self.place}.states", states)
        self._empty()

    def forget_and_find(self) -> None:
        """Drop weights, gradients and states in memory; the unit is again as the disk has it."""
        with contextlib.suppress(OSError, ValueError):  # a read that was under way when a pass broke off
            self._arrived()
        self._empty()
        self.is_open = self.is_updated = False
        self._states = None
        for parameter in self.parameters:
            parameter.grad = None
        for count, stored in zip(self._counts, self.disk.facts["counts"][self.place], strict=True):
            count.fill_(stored)  # Adam's t belongs to the weights that the disk has

    @property
    def counts(self) -> list[int]:
        """The number of updates of each parameter: Adam's t."""
        return [int(count) for count in self._counts]

    def start_unshard(self) -> None:
        """Start to read the weights, if they are not in memory."""
        if not self._flat.untyped_storage().nbytes():  # resized, not made anew: views of _flat stay valid
            self._flat.untyped_storage().resize_(self._flat.nbytes)
            self._coming = self.disk.start_read(f"unit{self.place}.weights", self._flat)

    def unshard(self) -> None:
        """Wait for the weights, and let the parameters view them."""
        self.start_unshard()
        if self._arrived():
            for parameter, whole in zip(self.parameters, self._whole):
                parameter.data = whole

    def reshard(self) -> None:
        """Free the weights' memory."""
        self._arrived()
        self._empty()

    def start_states(self) -> None:
        """Start to read the states, unless they are being read."""
        if self._states is None:
            states = torch.empty(3, self._size)
            self._states = states, self.disk.start_read(f"unit{self.place}.states", states)

    def update(self) -> None:
        """Apply and free the parameters' gradients, and start to write new weights and states."""
        states = self._take_states()
        if all(parameter.grad is None for parameter in self.parameters):
            return  # not used, or used again in this pass: the gradient is complete after the last use
        if self.is_updated:
            raise ValueError(f"unit {self.place} was updated, and has got a gradient again in the same backward pass")
        self.is_updated = True
        for parameter, master, cut, count in zip(self.parameters, self._masters, self._cuts, self._counts):
            weight, first, second = states[:, cut].unbind()
            master.data = weight  # a view of `states`, as are the moments: Adam works in place
            master.grad = None if parameter.grad is None else parameter.grad.float().reshape(-1)
            parameter.grad = None
            self._adamw.state[master] = {"step": count, "exp_avg": first, "exp_avg_sq": second}
        self._adamw.step()  # fused: one pass over weight, gradient and both moments
        for master in self._masters:  # else Adam would keep `states`
            master.grad, master.data = None, torch.empty(0)
            self._adamw.state[master] = {}
        self.disk.start_write(f"unit{self.place}.states", states)
        self.disk.start_write(f"unit{self.place}.weights", states[0].to(self._flat.dtype, copy=True))

    def _take_states(self) -> Tensor:
        """Wait for the states and hand them over."""
        self.start_states()
        assert self._states is not None
        (states, coming), self._states = self._states, None
        coming.result()
        return states

    def _arrived(self) -> bool:
        """Wait for weights that are being read, and return whether there were any."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.result()
        return coming is not None

    def _empty(self) -> None:
        for parameter, nothing in zip(self.parameters, self._nothing):
            parameter.data = nothing
        self._flat.untyped_storage().resize_(0)


class DiskOffloadedModel(LayerwiseModule[DiskOffloadUnit]):
    """A module with its trainable weights and AdamW's states in files; the backward pass updates them.

    Call `step` once for each backward pass. For a larger batch, add up the losses of several forward passes and go
    backward once. Gradients cannot be clipped by their norm, since the first unit is updated before the norm is known.
    A backward pass that ends in an error changes nothing. Frozen parameters and buffers stay in memory. Units run as in
    `LayerwiseModule`.

    Args:
        module: loads the weights on the disk, if there are any; else its own weights are written.
        disk: a disk that no other model uses.
        prefetch: read the next unit while one computes.
        units: the modules that are loaded one at a time; None for the children of all ModuleLists.
        adamw: keyword arguments of `torch.optim.AdamW` (not `amsgrad`).

    Raises:
        ValueError: nothing to train, one unit lies in another or has several dtypes, or the disk has another model.
    """

    def __init__(
        self, module: nn.Module, disk: Disk, prefetch: bool = True, units: Iterable[nn.Module] | None = None,
        **adamw: Any,
    ) -> None:  # fmt: skip
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("no parameter to train: all are frozen, or there is none")
        modules = [module, *(units_of(module) if units is None else units)]
        planned = [[trained[number] for number in numbers] for numbers in plan_units(modules, trained)]
        for place, parameters in enumerate(planned):
            if len(dtypes := {parameter.dtype for parameter in parameters}) > 1:
                raise ValueError(f"the parameters of unit {place} have dtypes {dtypes}: one file has one dtype")
        made = [DiskOffloadUnit(place, parameters, disk, adamw) for place, parameters in enumerate(planned)]
        super().__init__(modules, made, prefetch)
        self.disk = disk
        self._kinds = [f"{p.dtype} {tuple(p.shape)} in unit {n}" for n, each in enumerate(planned) for p in each]
        self._backward: Literal["none", "begun", "over"] = "none"
        if disk.facts:
            self._check_kinds()
            for unit in made:
                unit.forget_and_find()
        else:
            for unit in made:
                unit.write_first()
            self._commit(0)

    @property
    def steps(self) -> int:
        """The number of steps that the disk has."""
        return self.disk.facts["steps"]

    def step(self) -> None:
        """Commit the updates that the backward pass has made.

        Raises:
            ValueError: there was no backward pass, or it has ended in an error.
            OSError: a write has failed. Model and disk are as before the backward pass.
        """
        if self._backward == "begun":
            self._forget()
            raise ValueError(
                "the backward pass has ended in an error, so nothing of it counts: there is nothing to step"
            )
        if self._backward == "none":
            raise ValueError("step() follows a backward pass, which has made the updates: there was none")
        try:
            self._commit(self.steps + 1)
        except OSError:
            self._forget()
            raise
        self._backward = "none"
        for unit in self.units:
            unit.is_updated = False

    def whole_state_dict(self) -> dict[str, Tensor]:
        """Copy the module's own state dict, into as much new memory as the whole model needs."""
        for unit in self.units:
            unit.unshard()
        state = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        for unit in self.units:
            unit.reshard()
        return state

    def _commit(self, steps: int) -> None:
        self.disk.commit(steps=steps, counts=[unit.counts for unit in self.units], _kinds=self._kinds)

    def _check_kinds(self) -> None:
        pairs = itertools.zip_longest(self.disk.facts.get("_kinds", ()), self._kinds)
        if differ := [f"found {found}, needed {needed}" for found, needed in pairs if found != needed]:
            raise ValueError(f"{self.disk.folder} has another model, {len(differ)} parameters differ: {differ[0]}")

    def _forget(self) -> None:
        """Undo the backward pass, in the model and on the disk."""
        self._backward = "none"
        self.disk.discard()  # all writes since the last commit
        for unit in self.units:
            unit.forget_and_find()

    def _free_all_if_root(self, unit: DiskOffloadUnit) -> None:
        if unit.place == 0 and self._backward == "begun":  # a new forward pass after a backward pass that broke off
            self._forget()
        super()._free_all_if_root(unit)

    def _before_backward(self, unit: DiskOffloadUnit, call: int, _gradient: Tensor) -> None:
        if self._backward == "over":
            raise ValueError(
                "a second backward pass before step(): the first one has updated the weights already. Call step(), or "
                "add up the losses of several forward passes and go backward once"
            )
        super()._before_backward(unit, call, _gradient)
        self._backward = "begun"
        unit.start_states()

    def _closed(self, unit: DiskOffloadUnit) -> None:
        unit.update()

    def _end_of_pass(self) -> None:
        super()._end_of_pass()
        self._backward = "over"
