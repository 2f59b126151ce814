"""A call that can be made a second time with the same result: what `recompute` needs to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten


class Segment:
    """A call that can be made again with other tensors in the places of the first ones."""

    def __init__(self, fn: Callable[..., Any], put_inputs: Callable[..., Any], surroundings: Conditions) -> None:
        self.fn, self.put_inputs, self.surroundings = fn, put_inputs, surroundings
        self.put_outputs: Callable[[Sequence[Tensor]], Any]
        self.kinds: list[Any] | None = None
        self.weights: dict[int, tuple[Tensor, int]] = {}

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The tensors of what `fn` returns."""
        args, kwargs = self.put_inputs(inputs)
        outputs, self.put_outputs = take_tensors(self.fn(*args, **kwargs))
        kinds = [(tuple(t.shape), str(t.dtype), t.requires_grad) for t in outputs]
        if self.kinds not in (None, kinds):
            raise ValueError(
                f"a recomputed function returned tensors of {self.kinds} (shape, dtype, requires_grad), but the second "
                f"time {kinds}: it must compute the same, so nothing that it depends on may change in between"
            )
        self.kinds = kinds
        return outputs

    def forget(self, saved: Tensor) -> None:
        """Keep nothing of a tensor that autograd would save in the first run; of a parameter, note the version (PyTorch
        counts a tensor's in-place changes)."""
        base = saved if saved._base is None else saved._base
        if isinstance(base, nn.Parameter):
            self.weights[id(base)] = base, base._version

    def check_weights(self) -> None:
        """Refuse a second run with other weights. A plain backward pass refuses them, too: the ones it saved are gone.

        Raises:
            ValueError: one of those that the first run saved has changed.
        """
        for weight, version in self.weights.values():
            if weight._version != version:
                raise ValueError(
                    f"a weight of shape {tuple(weight.shape)} has changed since a recomputed function used it, so the "
                    "backward pass would compute with other numbers: call optimizer.step() after backward()"
                )


class Conditions:
    """What a function can see besides its arguments, and must see again: the random state, autocast, and the modes that
    change what PyTorch's functions do (`precision.CastPolicy` is one)."""

    def __init__(self, tensors: Sequence[Tensor], preserve_rng: bool) -> None:
        kinds = {"cpu", "cuda", *(tensor.device.type for tensor in tensors)}  # layers on a GPU may get none
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), torch.is_autocast_cache_enabled())
            for kind in sorted(kinds)
            if torch.amp.is_autocast_available(kind)
        ]
        self.modes = _get_current_function_mode_stack()
        gpus = {tensor.device.index for tensor in tensors if tensor.is_cuda}
        if torch.cuda.is_initialized():
            gpus.add(torch.cuda.current_device())
        self.gpu_rng = {gpu: torch.cuda.get_rng_state(gpu) for gpu in gpus} if preserve_rng else {}
        self.cpu_rng = torch.get_rng_state() if preserve_rng else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, everything is as it was; afterwards, as it was before: the draws inside leave no trace outside."""
        with ExitStack() as stack:
            for mode in self.modes:
                stack.enter_context(mode)
            for kind, dtype, enabled, cache in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache))
            if self.cpu_rng is not None:
                stack.enter_context(torch.random.fork_rng(list(self.gpu_rng)))
                torch.set_rng_state(self.cpu_rng)
                for gpu, state in self.gpu_rng.items():
                    torch.cuda.set_rng_state(state, gpu)
            yield


def take_tensors(tree: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """The tensors of nested lists, tuples and dicts, and a function that puts others in their places.

    The function holds no tensor: what is to be kept must go through `save_for_backward`.
    """
    leaves, structure = tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[place] for place in places]
    for place in places:
        leaves[place] = None

    def put(others: Sequence[Tensor]) -> Any:
        filled = list(leaves)
        for place, other in zip(places, others, strict=True):
            filled[place] = other
        return tree_unflatten(filled, structure)

    return tensors, put
