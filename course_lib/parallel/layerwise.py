"""A model that holds a few layers' weights at a time: each unit's weights come before its pass and go after it.

    forward      pre-hook: unshard the unit, start the next one      hook: reshard
    backward     hook on the unit's output: unshard, start the one before      AfterBackward on its input: reshard

The weights come from other ranks (`parallel.zero3`) or from files (`offload.on_disk`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function, Variable
from torch.utils._pytree import tree_leaves

from course_lib.train.recompute import take_tensors


class LoadableUnit(Protocol):
    """Weights that come, are used and go together."""

    place: int  # in the order of the forward pass; the root unit is 0
    is_open: bool  # its backward pass has begun, and is not over

    def start_unshard(self) -> None:
        """Ask for the weights, if they are not here."""

    def unshard(self) -> None:
        """Wait until all weights are here."""

    def reshard(self) -> None:
        """Give the weights' memory back."""


U = TypeVar("U", bound=LoadableUnit)

_NO_RESULT = (
    "{} has weights to train, but its result ({}) has no tensor that requires a gradient, so the backward pass could "
    "not gather its weights: let it return its tensors, instead of storing them elsewhere; freeze it "
    "(requires_grad_(False)) before it is wrapped; or call the model under torch.no_grad()"
)


class LayerwiseModule(nn.Module, Generic[U]):
    """A module that has a unit's weights in memory during the unit's passes, and perhaps the next unit's.

    A unit must be run by calling it (`block(x)`), and return the tensors that others use: in lists, mappings,
    dataclasses, or attributes of any object (`find_tensors`). Its weights go when its backward pass is over; where its
    arguments' tensors are in no list, tuple or dict, they go when a unit that ran before begins its backward pass. The
    root unit has all other weights, and is there during the whole forward and backward pass.

    Args:
        modules: the root, which is the whole module; then those that come and go one at a time, in order of their use.
        units: one for each of `modules`.
        prefetch: ask for the next unit's weights while one is at work.

    Raises:
        ValueError: in the forward pass, if a unit trains and no tensor of its result requires a gradient.
    """

    def __init__(self, modules: Sequence[nn.Module], units: Sequence[U], prefetch: bool) -> None:
        super().__init__()
        self.module, self.units, self.prefetch = modules[0], units, prefetch
        self._is_backward = False
        self._calls = 0
        self._call = [0] * len(units)  # the number of each unit's last forward pass
        self._open_call = [0] * len(units)  # the number of the one that each unit's backward pass belongs to
        for unit, each in zip(units, modules, strict=True):
            # first of the module's hooks: another hook that uses the weights finds them
            each.register_forward_pre_hook(partial(self._before_forward, unit), prepend=True, with_kwargs=True)
            each.register_forward_hook(partial(self._after_forward, unit))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward pass."""
        return self.module(*args, **kwargs)

    def _before_forward(self, unit: U, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not in_backward():
            self._is_backward = False
            self._free_all_if_root(unit)  # where the last pass has ended in an error
        self._calls += 1
        self._call[unit.place] = self._calls
        self._gather(unit, 0 if in_backward() else 1)  # a recomputed unit's neighbour is already on its way
        if not torch.is_grad_enabled():
            return None
        tensors, put = take_tensors((args, kwargs))
        if not any(tensor.requires_grad for tensor in tensors):
            return None
        marked = iter(AfterBackward.apply(partial(self._close, unit), *(t for t in tensors if t.requires_grad)))
        return put([next(marked) if tensor.requires_grad else tensor for tensor in tensors])

    def _after_forward(self, unit: U, module: nn.Module, _args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            results = [tensor for tensor in find_tensors(output) if tensor.requires_grad]
            if not results and any(parameter.requires_grad for parameter in module.parameters()):
                raise ValueError(_NO_RESULT.format(type(module).__name__, type(output).__name__))
            call = self._call[unit.place]
            for tensor in results:
                if unit.place == 0 or _belongs_to(tensor, call):
                    tensor.register_hook(partial(self._before_backward, unit, call))
        if not in_backward():  # a recomputed unit's backward pass comes next
            unit.reshard()
            self._free_all_if_root(unit)

    def _before_backward(self, unit: U, call: int, _gradient: Tensor) -> None:
        if not self._is_backward:
            Variable._execution_engine.queue_callback(self._end_of_pass)
        for other in self.units if unit.place else ():  # the root's results may come from the middle of a unit
            if self._open_call[other.place] > call:  # autograd goes through the newest nodes first: this one is done
                self._close(other)
        ahead = 0 if unit.is_open else -1  # another result of a unit at work: its neighbour may have been freed already
        self._is_backward = unit.is_open = True
        self._open_call[unit.place] = call
        self._gather(unit, ahead)

    def _gather(self, unit: U, ahead: int) -> None:
        """Have a unit's weights here, and those of its neighbour on their way."""
        unit.unshard()
        place = (unit.place + ahead) % len(self.units)
        if self.prefetch and not self._was_used(place):
            self.units[place].start_unshard()

    def _was_used(self, place: int) -> bool:
        """Whether a unit has had its turn in this pass: then nothing would free it if it came ahead."""
        if self._is_backward:
            return self._open_call[place] == self._call[place]
        return self._call[place] > self._call[0]

    def _free_all_if_root(self, unit: U) -> None:
        # weights that were gathered ahead and not used would be old after the next step
        for each in self.units if unit.place == 0 else ():
            each.reshard()

    def _close(self, unit: U) -> None:
        """Free a unit's weights: its backward pass is over."""
        if unit.is_open:
            unit.is_open = False
            unit.reshard()
            self._closed(unit)

    def _closed(self, unit: U) -> None:
        """Take the unit's gradients, which are complete; subclasses say how."""
        raise NotImplementedError

    def _end_of_pass(self) -> None:
        # the root unit is used to the end, and a unit whose inputs need no gradient has no AfterBackward
        for unit in reversed(self.units):
            self._close(unit)
            unit.reshard()
        self._is_backward = False


def units_of(module: nn.Module) -> list[nn.Module]:
    """The children of all ModuleLists that lie in no other ModuleList: a transformer's blocks."""
    if isinstance(module, nn.ModuleList):
        return list(module.children())
    return [unit for child in module.children() for unit in units_of(child)]


def plan_units(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> list[list[int]]:
    """The numbers of each unit's parameters; those in no unit, or in several, belong to the root.

    The first of `modules` is the root, which contains the others; `parameters` are the whole root's, theirs included.

    Raises:
        ValueError: one unit lies in another, or is given twice.
    """
    units = [{id(each) for each in unit.modules()} for unit in modules[1:]]
    for place, unit in enumerate(modules[1:]):
        if any(id(unit) in inside for other, inside in enumerate(units) if other != place):
            raise ValueError(f"the unit {type(unit).__name__} lies in another one, or is given twice: give one of them")
    owners: dict[int, list[int]] = {id(parameter): [] for parameter in parameters}
    for place, unit in enumerate(modules[1:], 1):
        for parameter in unit.parameters():
            owners[id(parameter)].append(place)
    planned: list[list[int]] = [[] for _ in modules]
    for number, parameter in enumerate(parameters):
        places = owners[id(parameter)]
        planned[places[0] if len(places) == 1 else 0].append(number)
    return planned


def _belongs_to(tensor: Tensor, call: int) -> bool:
    """Whether this call is the first that returns the tensor: a unit may return its own arguments."""
    if tensor.grad_fn is None:
        return False
    notes: Any = tensor.grad_fn.metadata  # a dict that autograd keeps for each of its nodes
    return notes.setdefault("call of a unit", call) == call


def find_tensors(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples, sets, mappings, dataclasses and objects' attributes, each once.

    Weights of modules are not looked for.
    """
    seen: dict[int, Any] = {}  # keeps the objects alive: else a new one might get an old one's id
    waiting = tree_leaves(value)
    while waiting:
        leaf = waiting.pop()
        if id(leaf) not in seen:
            seen[id(leaf)] = leaf
            waiting += tree_leaves(_parts(leaf))
    return [each for each in seen.values() if isinstance(each, Tensor)]


def _parts(value: Any) -> list[Any]:
    """The contents of an object that no pytree knows: a mapping's or list's elements, and attributes."""
    if isinstance(value, (Tensor, nn.Module, type, ModuleType, FunctionType)):
        return []
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    if isinstance(value, Mapping):  # also subclasses of dict
        return [*parts, *value.values()]
    return [*parts, *value] if isinstance(value, (list, tuple, set, frozenset)) else parts


class AfterBackward(Function):
    """Return tensors unchanged; call `then` in the backward pass, when all later nodes, the whole unit's, are done.

    Autograd runs the node that was made last first. A hook on the tensor may be called before the unit is done.
    """

    @staticmethod
    def forward(ctx: Any, then: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.then = then
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.then()
        return None, *gradients


def in_backward() -> bool:
    """Whether autograd is at work in this thread."""
    return torch._C._current_graph_task_id() != -1
