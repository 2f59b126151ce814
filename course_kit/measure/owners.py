"""Owners of memory: parameters, gradients and optimizer state, found by asking models and optimizers.

A gradient is a temporary result until autograd puts it into `.grad`; Adam's variance is one until Adam files it in its
state. So an owner is noted when it becomes known, and holds for the block's whole life.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from course_kit.measure.tracker import Tracker, in_backward


class Owners:
    """The models and optimizers of a record: those given, and those that are called while it is open."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._places: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._hooks = ExitStack()

    def meet_model(self, model: nn.Module) -> None:
        """Count a model's parameters, gradients and buffers from the start of the record."""
        if any(model is known for known in self.models):
            return
        self.models.append(model)
        for name, module in model.named_modules():
            self._places.setdefault(id(module), name or type(module).__name__)
        for name, parameter in model.named_parameters():
            self._meet_parameter(parameter, name, "parameters")
        for name, buffer in model.named_buffers():
            for storage in self.tracker.add(buffer, from_start=True):
                storage.name = name

    def meet_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Count an optimizer's state. Weights that the optimizer holds and no model does are its own copies."""
        if any(optimizer is known for known in self.optimizers):
            return
        self.optimizers.append(optimizer)
        for number, parameter in enumerate(parameters_of(optimizer)):
            self._meet_parameter(parameter, f"optimizer weight {number}", "optimizer" if self.models else "parameters")
        self._note_state(optimizer)

    def _meet_parameter(self, parameter: Tensor, name: str, owner: str) -> None:
        if id(parameter) in self._names:
            return
        self._names[id(parameter)] = name
        self._note(parameter, owner, name)
        self._note_gradient(parameter)
        if parameter.is_leaf and parameter.requires_grad:
            handle = parameter.register_post_accumulate_grad_hook(self._note_gradient)
            self._hooks.callback(handle.remove)

    def _note(self, tensor: Any, owner: str, name: str) -> None:
        if isinstance(tensor, Tensor):
            for storage in self.tracker.add(tensor, from_start=True):
                if not storage.name or owner == "parameters":  # the first claim stands
                    storage.owner, storage.name = owner, name

    def _note_gradient(self, parameter: Tensor) -> None:
        if parameter.is_leaf or parameter.retains_grad:  # a weight that was gathered for this pass has no gradient here
            self._note(parameter.grad, "gradients", f"{self._names[id(parameter)]}.grad")

    def _note_state(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, state in list(optimizer.state.items()):
            of = self._names.get(id(parameter), "optimizer")
            entries = state.items() if isinstance(state, dict) else [("state", state)]
            for key, value in entries:
                for leaf in tree_leaves(value):
                    self._note(leaf, "optimizer", f"{of}: {key}")

    def settle(self) -> None:
        """Ask all models and optimizers once more, and find tensors that no hook has told of."""
        for model in self.models:
            for name, parameter in model.named_parameters():  # again: `to_empty` and the like replace parameters
                self._meet_parameter(parameter, name, "parameters")
                self._note(parameter, "parameters", name)  # a parameter may have moved to new memory
                self._note_gradient(parameter)
        for optimizer in self.optimizers:
            self._note_state(optimizer)

    def watch(self) -> ExitStack:
        """Install the hooks that tell of modules being called and optimizers stepping; closing removes them all."""
        for handle in (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._enter_step),
            register_optimizer_step_post_hook(self._leave_step),
        ):
            self._hooks.callback(handle.remove)
        return self._hooks

    def _enter_module(self, module: nn.Module, _inputs: Any) -> None:
        if not self.tracker.where:
            if id(module) not in self._places:
                self.meet_model(module)
            if self.tracker.phase not in ("forward", "optimizer step") and not in_backward():
                self.tracker.begin("forward")
        self.tracker.where.append(self._places.get(id(module), type(module).__name__))

    def _leave_module(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self.tracker.where:
            self.tracker.where.pop()

    def _enter_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.tracker.begin("optimizer step")
        self.meet_optimizer(optimizer)
        for parameter in parameters_of(optimizer):
            self._note_gradient(parameter)

    def _leave_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._note_state(optimizer)
        self.tracker.begin(None)


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All tensors that an optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"][:]  # a copy: `ZeroOptimizer`'s list refuses readers of gradients, which we are not
